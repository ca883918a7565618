//! A mark in the pool: clients have gone without giving back what they had in hand.
//!
//! Invariants: the mark is set before a crashed client's slot is free again, so a client that finds itself alone and
//! the mark unset knows that nothing is leaked by a crash; it is cleared by a CAS from the count that was read before
//! everything was given back, so a crash in between sets it again. It decides nothing but whether it is worth while to
//! look.

use crate::PoolError;
use crate::client::first_word;
use crate::layout::{HOME, header, header_word};
use farindex_fabric::{Batch, Span};

/// The bit that says that memory could not be given back: something is damaged.
const TRIED_IN_VAIN: u64 = 1 << 63;

/// How many clients have gone without giving everything back, since that was last done for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaks(u64);

impl Leaks {
    /// Counts one more client.
    pub(crate) fn count(batch: &mut Batch<'_>) {
        batch.faa(header_word(HOME, header::LEAKS), 1);
    }
    /// READs the mark.
    pub async fn read(span: &Span) -> Result<Self, PoolError> {
        Ok(Leaks(first_word(&span.read(header_word(HOME, header::LEAKS), 8).await?)))
    }
    /// Has a client gone so?
    pub fn any(self) -> bool {
        self.0 != 0
    }
    /// Is there memory to be given back, as far as is known?
    pub fn reclaimable(self) -> bool {
        self.any() && self.0 & TRIED_IN_VAIN == 0
    }
    /// Everything was given back.
    pub async fn clear(self, span: &Span) -> Result<(), PoolError> {
        span.cas(header_word(HOME, header::LEAKS), self.0, 0).await?;
        Ok(())
    }
    /// Something is damaged: nobody but a repair tries again.
    pub async fn mark_unreclaimable(self, span: &Span) -> Result<(), PoolError> {
        span.cas(header_word(HOME, header::LEAKS), self.0, self.0 | TRIED_IN_VAIN).await?;
        Ok(())
    }
}
