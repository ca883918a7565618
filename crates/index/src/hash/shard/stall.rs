//! Bounds on waiting: what neither a living client nor recovery resolves within two leases is an error that names the place.
//!
//! A client that holds a lock is the business of [`Backoff`](crate::backoff::Backoff). Here is what nobody holds: a bucket that
//! should have been written, a frozen entry that nothing makes live. Invariant: the wait begins again whenever what is in the way
//! changes, so a table in which others make progress is never taken for a damaged one.

use super::bucket::Snapshot;
use super::lookup::Op;
use crate::IndexError;
use farindex_fabric::{FabricError, RemotePtr};
use farindex_pool::{PoolError, Session};
use std::time::Duration;

/// How long one thing has been in the way.
#[derive(Debug, Default)]
pub(super) struct Stall {
    trace: Option<u64>,
    since: Duration,
    looked: Duration,
}

impl Stall {
    /// Was there something in the way before?
    pub(super) fn begun(&self) -> bool {
        self.trace.is_some()
    }
    /// Notes that `trace` is in the way now. Has it been the same for two leases?
    pub(super) fn lasts(&mut self, session: &Session, trace: u64) -> bool {
        let (now, lease) = (session.endpoint().now(), session.pool().lease());
        // A client that was stopped itself has not waited meanwhile.
        if self.trace != Some(trace) || now.saturating_sub(self.looked) > lease {
            (self.trace, self.since) = (Some(trace), now);
        }
        self.looked = now;
        now.saturating_sub(self.since) > lease * 2
    }
}

impl Op<'_> {
    /// Something is in the way at `at` that no lock explains; `trace` changes when it does. After two leases it is an error.
    pub(super) fn unresolved(
        &mut self,
        at: RemotePtr,
        trace: u64,
        what: impl FnOnce() -> String,
    ) -> Result<(), IndexError> {
        match self.stall.lasts(self.pin.session(), trace ^ at.to_bits()) {
            true => Err(PoolError::Corrupt { at, what: what() }.into()),
            false => Ok(()),
        }
    }

    /// The same for a bucket in which words stand that a settled bucket of this version does not have; then waits.
    pub(super) async fn wait_for_words(
        &mut self,
        seen: &Snapshot,
        version: u64,
        what: impl FnOnce() -> String,
    ) -> Result<(), IndexError> {
        self.unresolved(seen.at, seen.trace(version), what)?;
        self.wait_for(seen.at).await
    }
}

/// The error of a verb whose address was read from the word at `place`: an address that no memory node has is damage there.
pub(super) fn led_from(place: RemotePtr, error: FabricError) -> IndexError {
    match error {
        FabricError::NoSuchNode(_) | FabricError::OutOfBounds { .. } | FabricError::Misaligned { .. } => {
            PoolError::Corrupt { at: place, what: format!("the word there leads nowhere: {error}") }.into()
        }
        error => error.into(),
    }
}
