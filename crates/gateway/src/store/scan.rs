//! Walking over all keys: what SCAN, KEYS, DBSIZE, RANDOMKEY and FLUSHDB need.
//!
//! A hash index is walked from its beginning only, so a cursor cannot be a place in it. It is a place in the order of the
//! keys' *positions*: 32 bits of a hash of the key, the same in every gateway and for ever. A call of SCAN returns the
//! keys whose positions are the smallest at or above the cursor. So a cursor stays valid in every gateway, after restarts
//! and while the table grows, and each key is returned once.
//!
//! To find the smallest positions takes a walk over all keys. A walk therefore keeps more keys than one call returns, up
//! to [`AHEAD_KEYS`], for the calls that follow on this thread. The cursor's low bits are a random tag of its iteration,
//! so that what one iteration has read ahead, before another began, is not taken by the other.

use super::Store;
use super::record::Record;
use crate::Fail;
use farindex::{IndexError, Value, yield_now};
use std::cell::RefCell;
use std::collections::BinaryHeap;
use xxhash_rust::xxh3::xxh3_64;

/// Most keys that a walk keeps for later calls, and most bytes of them.
const AHEAD_KEYS: usize = 32 << 10;
const AHEAD_BYTES: usize = 4 << 20;
/// Iterations of one thread whose keys are kept.
const ITERATIONS: usize = 4;
/// Entries of a walk between two turns of the thread's other work.
const TURN: u64 = 64;
/// Bits of the tag: cursors have 53 bits, which every client's numbers can hold.
const TAG_BITS: u32 = 21;

/// Keys that an iteration has read ahead.
pub(crate) struct Ahead {
    tag: u64,
    /// In descending order of positions.
    keys: Vec<(u32, Box<[u8]>)>,
    /// All keys at or above `from` and below `until` are among `keys`, or were returned.
    from: u64,
    until: u64,
}

/// Behind all positions.
const END: u64 = 1 << 32;

fn position(key: &[u8]) -> u32 {
    (xxh3_64(key) >> 32) as u32
}

impl Store {
    /// Calls `each` with every key and record, expired or not, until it returns `false`. Entries that nobody changes
    /// meanwhile are seen once.
    pub(crate) async fn walk(&self, mut each: impl AsyncFnMut(&[u8], Value) -> Result<bool, Fail>) -> Result<(), Fail> {
        let failed: RefCell<Option<Option<Fail>>> = RefCell::new(None);
        let mut seen = 0u64;
        let visit = async |key: &[u8], value: Value| {
            seen += 1;
            if seen.is_multiple_of(TURN) {
                yield_now().await;
            }
            let stop = match each(key, value).await {
                Ok(true) => return Ok(()),
                Ok(false) => None,
                Err(why) => Some(why),
            };
            failed.replace(Some(stop));
            // Any error ends the walk.
            Err(IndexError::Interrupted)
        };
        let ended = self.hash().visit(visit, &mut |damage| damage.fail()).await;
        match failed.into_inner() {
            Some(None) => Ok(()),
            Some(Some(why)) => Err(why),
            None => Ok(ended.map(drop)?),
        }
    }

    /// One step of an iteration over all keys: about `count` keys, and the cursor for the next step, 0 at the end.
    pub(crate) async fn scan(&self, cursor: u64, count: usize) -> Result<(u64, Vec<Box<[u8]>>), Fail> {
        let (from, tag) = match cursor {
            0 => (0, (self.nonce() & ((1 << TAG_BITS) - 1)).max(1)),
            _ => (cursor >> TAG_BITS, cursor & ((1 << TAG_BITS) - 1)),
        };
        if from >= END {
            return Ok((0, Vec::new()));
        }
        let kept = {
            let mut ahead = self.ahead.borrow_mut();
            let at = ahead.iter().position(|ahead| ahead.tag == tag && ahead.from == from);
            at.map(|at| ahead.remove(at))
        };
        let mut ahead = match kept {
            Some(ahead) => ahead,
            None => self.read_ahead(from, tag).await?,
        };
        let mut keys = Vec::new();
        let mut last = None;
        while let Some((position, _)) = ahead.keys.last() {
            // Keys of one position are never divided: a cursor could not tell them apart.
            if keys.len() >= count && last != Some(*position) {
                break;
            }
            last = Some(*position);
            keys.extend(ahead.keys.pop().map(|(_, key)| key));
        }
        let next = match (ahead.keys.is_empty(), last) {
            (true, _) | (_, None) => ahead.until,
            (false, Some(last)) => u64::from(last) + 1,
        };
        if next >= END {
            return Ok((0, keys));
        }
        ahead.from = next;
        let mut all = self.ahead.borrow_mut();
        if !ahead.keys.is_empty() {
            if all.len() >= ITERATIONS {
                all.remove(0);
            }
            all.push(ahead);
        }
        Ok((next << TAG_BITS | tag, keys))
    }

    /// Walks over all keys for those with the smallest positions at or above `from`.
    async fn read_ahead(&self, from: u64, tag: u64) -> Result<Ahead, Fail> {
        let mut keys: BinaryHeap<(u32, Box<[u8]>)> = BinaryHeap::new();
        let (mut bytes, mut until) = (0, END);
        self.walk(async |key: &[u8], value: Value| {
            let position = position(key);
            if u64::from(position) < from || u64::from(position) >= until || Record::parse(&value)?.is_expired() {
                return Ok(true);
            }
            bytes += key.len();
            keys.push((position, key.into()));
            while (keys.len() > AHEAD_KEYS || bytes > AHEAD_BYTES) && keys.len() > 1 {
                if let Some((dropped, key)) = keys.pop() {
                    bytes -= key.len();
                    until = u64::from(dropped);
                }
                // Those of the same position are left out with it, unless it is the smallest.
                while keys.len() > 1 && keys.peek().is_some_and(|(position, _)| u64::from(*position) >= until) {
                    bytes -= keys.pop().map_or(0, |(_, key)| key.len());
                }
            }
            Ok(true)
        })
        .await?;
        let mut keys = keys.into_sorted_vec();
        if let Some((smallest, _)) = keys.first()
            && u64::from(*smallest) >= until
        {
            // More keys of one position than are kept: the cursor passes them. That takes an adversary, who hides keys
            // that he has chosen.
            until = u64::from(*smallest) + 1;
        }
        keys.retain(|(position, _)| u64::from(*position) < until);
        keys.reverse();
        Ok(Ahead { tag, keys, from, until })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_numbers_of_53_bits() {
        assert_eq!((END << TAG_BITS) - 1, (1 << 53) - 1);
    }
}
