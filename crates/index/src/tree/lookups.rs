//! Lookups, as far as all leaf designs do them alike: blocks that may be a key's, and many keys at once.

use super::anchor::Anchor;
use super::entries::place;
use super::skeleton::Leaves;
use crate::block::{Block, CandidateBlocks, KeyMatch, UNIT, bad_checksum};
use crate::marks::mark;
use crate::table_per_node::TablePerNode;
use crate::{IndexError, Value, join};
use farindex_fabric::{OpKind, RemotePtr, Span};
use farindex_pool::Pin;
use smallvec::SmallVec;

/// Keys that share batches.
const MANY: usize = 128;

/// Slots whose blocks may be a key's, with the words that name the blocks.
pub(super) type Candidates = SmallVec<[(usize, u64); 2]>;

/// What a leaf says about a key.
pub(super) enum Answer {
    /// The value that the key's slot holds.
    Value(usize, Value),
    /// One of these slots has the key, or none.
    Blocks(Candidates),
    Absent,
}

fn wanted(candidates: &Candidates) -> impl Iterator<Item = (usize, RemotePtr, usize)> {
    candidates.iter().map(|(slot, word)| {
        let (at, units) = place(*word);
        (*slot, at, units as usize * UNIT)
    })
}

/// A leaf design's lookups.
pub(super) trait LooksUp: Leaves + TablePerNode<Table = Anchor> {
    /// Looks a key up on its own.
    async fn look_up(&self, key: &[u8]) -> Result<Option<Value>, IndexError>;
    /// READs what answers lookups of these keys, in one batch where copies of inner nodes lead to the leaves. `None` for a
    /// key that takes more.
    async fn answers(&self, span: &Span, keys: &[&[u8]]) -> Result<Vec<Option<Answer>>, IndexError>;

    /// Returns the value that a leaf leads to.
    async fn value_of(&self, span: &Span, answer: Answer, key: &[u8]) -> Result<Option<Value>, IndexError> {
        Ok(match answer {
            Answer::Value(_, value) => Some(value),
            Answer::Blocks(candidates) => {
                self.block_of(span, &candidates, key).await?.map(|(_, block)| block.into_value())
            }
            Answer::Absent => None,
        })
    }

    /// READs the blocks of these slots, all in one batch, and returns the one that is the key's.
    async fn block_of(
        &self,
        span: &Span,
        candidates: &Candidates,
        key: &[u8],
    ) -> Result<Option<(usize, Block)>, IndexError> {
        if candidates.is_empty() {
            return Ok(None);
        }
        let mut blocks = CandidateBlocks::read(span, wanted(candidates)).await?;
        self.next_own(&mut blocks, candidates.len(), key).await
    }

    /// Finds the key's block among the next `count` blocks, and consumes these.
    async fn next_own(
        &self,
        blocks: &mut CandidateBlocks<'_, usize>,
        count: usize,
        key: &[u8],
    ) -> Result<Option<(usize, Block)>, IndexError> {
        let (hash, mut own) = (self.hash(key), None);
        for _ in 0..count {
            match blocks.next(hash, key).await? {
                Some((slot, _, KeyMatch::Own(block))) => own = own.or(Some((slot, block))),
                Some((_, _, KeyMatch::Other)) | None => {}
                // Under the pin a block of a leaf that was read is not reused.
                Some((_, at, KeyMatch::Unsound)) if own.is_none() => return Err(bad_checksum(at)),
                Some((_, _, KeyMatch::Unsound)) => {}
            }
        }
        Ok(own)
    }

    /// Looks many keys up: what the leaves say in one batch, all blocks in another. A key that takes more is looked up on
    /// its own.
    async fn look_up_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>, IndexError> {
        let mut values = Vec::with_capacity(keys.len());
        for part in keys.chunks(MANY) {
            part.iter().try_for_each(|key| self.check_lengths(key, &[]))?;
            let pin = self.session.pin(self.session.span(OpKind::Get))?;
            let found = self.values_of(&pin, part).await?;
            // Nothing is pinned while a key waits for other clients.
            drop(pin);
            let found = part.iter().zip(found).map(|(key, value)| async move {
                match value {
                    Some(value) => Ok(value),
                    None => {
                        mark!("tree many: alone");
                        self.look_up(key).await
                    }
                }
            });
            values.extend(join::try_join_all(found).await?);
        }
        Ok(values)
    }

    async fn values_of(&self, pin: &Pin<'_>, keys: &[&[u8]]) -> Result<Vec<Option<Option<Value>>>, IndexError> {
        let answers = self.answers(pin.span(), keys).await?;
        let blocks = answers.iter().flat_map(|answer| match answer {
            Some(Answer::Blocks(candidates)) => wanted(candidates).collect(),
            _ => Vec::new(),
        });
        let blocks: Vec<_> = blocks.collect();
        let mut blocks = if blocks.is_empty() { None } else { Some(CandidateBlocks::read(pin.span(), blocks).await?) };
        let mut values = Vec::with_capacity(keys.len());
        for (key, answer) in keys.iter().zip(answers) {
            values.push(match (answer, &mut blocks) {
                (Some(Answer::Value(_, value)), _) => Some(Some(value)),
                (Some(Answer::Blocks(candidates)), Some(blocks)) => {
                    let own = self.next_own(blocks, candidates.len(), key).await?;
                    Some(own.map(|(_, block)| block.into_value()))
                }
                (Some(_), _) => Some(None),
                (None, _) => None,
            });
        }
        Ok(values)
    }
}
