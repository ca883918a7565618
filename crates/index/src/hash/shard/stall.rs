//! Bounds on waiting: a state that neither a live client nor recovery resolves within two leases is an error that names
//! the place.
//!
//! [`Backoff`](crate::backoff::Backoff) handles locks that a client holds. This module handles states without a lock: a
//! bucket that should have been written, an entry that stays frozen. Invariant: the wait restarts whenever the state
//! changes, so a table in which other clients make progress is never taken for a damaged one.

use crate::IndexError;
use farindex_fabric::{FabricError, RemotePtr};
use farindex_pool::{PoolError, Session};
use std::time::Duration;

/// How long one state has blocked an operation.
#[derive(Debug, Default)]
pub(super) struct Stall {
    /// Rare, and too large to be moved with every operation.
    seen: Option<Box<Seen>>,
}

#[derive(Debug)]
struct Seen {
    trace: u64,
    since: Duration,
    looked: Duration,
}

impl Stall {
    /// Has a blocking state been noted before?
    pub(super) fn begun(&self) -> bool {
        self.seen.is_some()
    }
    /// Notes the state that blocks now; `trace` is a hash of it. Has it been the same for two leases?
    pub(super) fn lasts(&mut self, session: &Session, trace: u64) -> bool {
        let (now, lease) = (session.endpoint().now(), session.pool().lease());
        let seen = self.seen.get_or_insert_with(|| Box::new(Seen { trace, since: now, looked: now }));
        // A client that was stopped itself has not waited in the meantime.
        if seen.trace != trace || now.saturating_sub(seen.looked) > lease {
            (seen.trace, seen.since) = (trace, now);
        }
        seen.looked = now;
        now.saturating_sub(seen.since) > lease * 2
    }
}

/// Converts the error of a verb whose address was read from the word at `place`: an invalid address is damage at
/// `place`.
pub(super) fn led_from(place: RemotePtr, error: FabricError) -> IndexError {
    match error {
        FabricError::NoSuchNode(_) | FabricError::OutOfBounds { .. } | FabricError::Misaligned { .. } => {
            PoolError::Corrupt { at: place, what: format!("the word there leads nowhere: {error}") }.into()
        }
        error => error.into(),
    }
}
