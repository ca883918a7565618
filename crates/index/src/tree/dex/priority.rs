//! Priority: an operation that has waited for a partition for a lease goes before those of other compute nodes.
//!
//! An owner gives a partition away to the first proposal at its record, and the compute node that gave it away learns of the next
//! map before all others. So two of them can exchange partitions for long, while the proposals of a third one find another
//! one ahead, or follow a map that does not count any more (bug 215).
//!
//! Invariants: D13 in `docs/protocols/dex.md`. Priority is about progress alone. A change of the map keeps D1 and D2 with
//! priority and without it, so it does no harm if two operations believe to have it, or if nobody looks.

use super::Dex;
use super::map::place_of;
use super::ownership::Ownership;
use crate::IndexError;
use crate::marks::mark;
use crate::tree::change::Puts;
use farindex_fabric::RemotePtr;
use farindex_pool::Pin;
use std::time::Duration;

/// Word of the anchor that says which compute node has an operation with priority.
pub(super) const PRIORITY: u64 = 32;
/// No operation has priority.
const NOBODY: u64 = 0;

/// An operation that asks for a partition.
pub(super) struct Asking {
    /// When it began to ask.
    since: Duration,
    /// What it has made of word 4 of the anchor, if it has taken priority.
    taken: Option<u64>,
}

/// What a compute node knows of priority.
#[derive(Default)]
pub(super) struct Seen {
    /// The word that was at the anchor, and when that was seen first.
    word: u64,
    since: Duration,
    /// When an operation of this compute node has ended its priority.
    ended: Option<Duration>,
}

impl Seen {
    /// Notes the word of the anchor; returns for how long it has been the same.
    fn look(&mut self, word: u64, now: Duration) -> Duration {
        if self.word != word {
            (self.word, self.since) = (word, now);
        }
        now.saturating_sub(self.since)
    }
}

impl Dex {
    /// Begins to ask.
    pub(super) fn begin_to_ask(&self) -> Asking {
        Asking { since: self.session.endpoint().now(), taken: None }
    }

    /// May an operation of this compute node, whose record is `me`, propose now? Takes priority if it has waited for a lease.
    /// `word` is what the anchor says, and was READ under this pin with the map.
    pub(super) async fn goes_first(
        &self,
        pin: &Pin<'_>,
        me: RemotePtr,
        word: u64,
        asking: &mut Asking,
    ) -> Result<bool, IndexError> {
        let (now, lease) = (self.session.endpoint().now(), self.session.pool().lease());
        let same = self.own.seen(|seen| seen.look(word, now));
        // Whose operation has had priority for a lease may have crashed, or has lost it: it was given up, or has failed. That may
        // be one of this compute node, too.
        if word != NOBODY && same <= lease {
            if place_of(word) != me {
                mark!("dex: an operation of another compute node goes first");
            }
            return Ok(place_of(word) == me);
        }
        if now.saturating_sub(asking.since) <= lease || !self.own.may_take_priority(now) {
            return Ok(true);
        }
        let mine = self.own.next_word(me);
        let found = pin.span().cas(self.tree().anchor.add(PRIORITY), word, mine).await?;
        if found == word {
            mark!("dex: an operation that has waited for a lease has taken priority");
            asking.taken = Some(mine);
        }
        Ok(found == word)
    }

    /// Ends an operation's priority, if it has taken it. If the operation is dropped before, others wait for a lease.
    pub(super) async fn end_priority(&self, asking: Asking) -> Result<(), IndexError> {
        let Some(word) = asking.taken else { return Ok(()) };
        self.own.seen(|seen| seen.ended = Some(self.session.endpoint().now()));
        let pin = self.tree().pin(self.tree().maintenance()).await?;
        // If the index was dropped, something else lies there.
        self.latest_map(pin.span()).await?;
        pin.span().cas(self.tree().anchor.add(PRIORITY), word, NOBODY).await?;
        Ok(())
    }
}

impl Ownership {
    /// Operations of one compute node do not take priority again and again: those of others wait, too.
    fn may_take_priority(&self, now: Duration) -> bool {
        self.seen(|seen| seen.ended.is_none_or(|ended| now.saturating_sub(ended) > self.lease))
    }
}
