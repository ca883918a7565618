//! The trait that a data plane implements on the memory node.

use crate::control::PlaneKind;
use crate::token::Rights;
use farindex_fabric::Identity;
use rustix::io::write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

/// A data plane: carries verbs to the memory of one node. Only the control thread calls it.
pub trait Plane: Send + Sync {
    /// Which one it is.
    fn kind(&self) -> PlaneKind;
    /// What all clients learn when they are admitted; at most [`MAX_OPAQUE`](crate::control::MAX_OPAQUE) bytes.
    fn parameters(&self) -> Vec<u8> {
        Vec::new()
    }
    /// Sets up one more connection for a client: the request is the client's half, the answer the node's. The plane
    /// must enforce the rights in `peer`. A refusal is reported to the client, whose control connection stays.
    fn attach(&self, peer: &Peer, request: &[u8]) -> Result<Vec<u8>, Refusal>;
    /// Ends one connection that the client does not use any more: the request names it as the plane's answer to the
    /// attach did. A malformed request is ignored.
    fn release(&self, link: u64, request: &[u8]) {
        let _ = (link, request);
    }
    /// Ends all that was attached over this control connection, if anything was. When it returns, nothing of it takes
    /// effect any more (G6), whatever the client still sends.
    fn detach(&self, link: u64);
}

/// Why a plane refuses a connection, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal(pub String);

impl<T: std::fmt::Display> From<T> for Refusal {
    fn from(why: T) -> Self {
        Refusal(why.to_string())
    }
}

/// A client's control connection, as planes see it.
#[derive(Clone)]
pub struct Peer {
    /// Number of the control connection, unique in this run.
    pub link: u64,
    /// The client's identity.
    pub identity: Identity,
    /// What it may do.
    pub rights: Rights,
    pub(crate) inbox: Arc<Inbox>,
}

impl Peer {
    /// Disconnects a client that violates the protocol: its control connection ends with this reason, and all that it
    /// attached. Returns at once; [`Plane::detach`] follows from the control thread.
    pub fn expel(&self, why: impl Into<String>) {
        self.inbox.expel(self.link, why.into());
    }
}

/// Orders of other threads to the control thread.
pub(crate) struct Inbox {
    orders: Mutex<Orders>,
    waker: UnixStream,
}

#[derive(Default)]
pub(crate) struct Orders {
    pub(crate) expelled: Vec<(u64, String)>,
    pub(crate) stop: bool,
}

impl Inbox {
    pub(crate) fn new(waker: UnixStream) -> Self {
        Inbox { orders: Mutex::default(), waker }
    }
    fn give(&self, order: impl FnOnce(&mut Orders)) {
        order(&mut self.orders.lock().unwrap_or_else(PoisonError::into_inner));
        // A full pipe means that the thread will wake anyway.
        let _ = write(self.waker.as_fd(), &[0]);
    }
    fn expel(&self, link: u64, why: String) {
        self.give(|orders| orders.expelled.push((link, why)));
    }
    pub(crate) fn stop(&self) {
        self.give(|orders| orders.stop = true);
    }
    pub(crate) fn take(&self) -> Orders {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        Orders { expelled: std::mem::take(&mut orders.expelled), stop: orders.stop }
    }
}
