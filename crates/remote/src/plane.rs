//! What a data plane implements on the memory node.

use crate::control::PlaneKind;
use crate::token::Rights;
use farindex_fabric::Identity;
use rustix::io::write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

/// What carries verbs to the memory of one node. The control thread calls it, and nobody else.
pub trait Plane: Send + Sync {
    /// Which one it is.
    fn kind(&self) -> PlaneKind;
    /// What all clients are told when they are let in; at most [`MAX_OPAQUE`](crate::control::MAX_OPAQUE) bytes.
    fn parameters(&self) -> Vec<u8> {
        Vec::new()
    }
    /// One more connection of the data plane for a client: its request is the client's half, the answer the node's. The
    /// rights in `peer` are the plane's to keep. A refusal is told to the client, whose control connection stays.
    fn attach(&self, peer: &Peer, request: &[u8]) -> Result<Vec<u8>, Refusal>;
    /// The client does not use one of its connections any more: the request says which, as the plane's answer to the
    /// attach named it. What makes no sense is ignored.
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
    /// Number of the control connection: unlike any other of this run.
    pub link: u64,
    /// Who it is.
    pub identity: Identity,
    /// What it may do.
    pub rights: Rights,
    pub(crate) door: Arc<Door>,
}

impl Peer {
    /// It misbehaves: its control connection ends, and with it all that it attached; it is told why. Returns at once;
    /// [`Plane::detach`] follows from the control thread.
    pub fn expel(&self, why: impl Into<String>) {
        self.door.expel(self.link, why.into());
    }
}

/// Where other threads tell the control thread what to do.
pub(crate) struct Door {
    orders: Mutex<Orders>,
    waker: UnixStream,
}

#[derive(Default)]
pub(crate) struct Orders {
    pub(crate) expelled: Vec<(u64, String)>,
    pub(crate) stop: bool,
}

impl Door {
    pub(crate) fn new(waker: UnixStream) -> Self {
        Door { orders: Mutex::default(), waker }
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
