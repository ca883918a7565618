//! The leak counter: how many clients have left without freeing their memory.
//!
//! Invariants: the counter is raised before the slot of a crashed client is free again. So if a client finds the
//! counter at zero and no other client registered, no crash has leaked memory. The counter is cleared by a CAS from the
//! value that was read before all leaked memory was freed, so a crash in between keeps it raised. It only decides
//! whether a search for leaked memory is worthwhile.

use crate::PoolError;
use crate::layout::{HOME, first_word, header, header_word};
use farindex_fabric::{Batch, Span};

/// The bit that says that leaked memory could not be freed, because something is damaged.
const UNRECLAIMABLE: u64 = 1 << 63;

/// The number of clients that have left without freeing their memory, since all leaked memory was last freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaks(u64);

impl Leaks {
    /// Adds the FAA that counts one more client to a batch.
    pub(crate) fn count(batch: &mut Batch<'_>) {
        batch.faa(header_word(HOME, header::LEAKS), 1);
    }
    /// READs the counter.
    pub async fn read(span: &Span) -> Result<Self, PoolError> {
        Ok(Leaks(first_word(&span.read(header_word(HOME, header::LEAKS), 8).await?)))
    }
    /// Returns whether any client has left memory behind.
    pub fn any(self) -> bool {
        self.0 != 0
    }
    /// Returns whether there is leaked memory that [`Audit::reclaim`](crate::audit::Audit::reclaim) may be able to
    /// free.
    pub fn reclaimable(self) -> bool {
        self.any() && self.0 & UNRECLAIMABLE == 0
    }
    /// Clears the counter: all leaked memory was freed.
    pub async fn clear(self, span: &Span) -> Result<(), PoolError> {
        span.cas(header_word(HOME, header::LEAKS), self.0, 0).await?;
        Ok(())
    }
    /// Records that damage prevents reclamation, so that only a repair tries again.
    pub async fn mark_unreclaimable(self, span: &Span) -> Result<(), PoolError> {
        span.cas(header_word(HOME, header::LEAKS), self.0, self.0 | UNRECLAIMABLE).await?;
        Ok(())
    }
}
