//! Level 3: one slot for each level-1 bucket, and then nodes of 8 slots.
//!
//! Invariants: a client that adds an entry holds the lock of the level-1 bucket, so no two additions run at the same
//! time; updates and removals are CASes as everywhere. When an occupied slot has to become a link, its entry is first
//! copied into the new node; then one CAS replaces it by the link. So at every moment a reader finds the entry in
//! exactly one place. A node is never removed while its index exists.
//!
//! ```text
//! slot   live | dead | unwritten | link -> node | slot | slot | ... | slot 7: live or link -> ...
//! ```

use super::slot::{META, Pattern, Slot};
use super::stall::led_from;
use crate::IndexError;
use crate::cycle::Way;
use crate::marks::mark;
use farindex_fabric::{RemotePtr, Span};
use farindex_pool::{Pin, PoolError};

/// Slots of a node.
pub(super) const NODE_SLOTS: usize = 8;
/// Bytes of a node.
pub(super) const NODE_LEN: usize = NODE_SLOTS * 8;
/// The slots that one level-1 bucket has in level 3, in the order in which a lookup visits them.
pub(super) struct Chain3 {
    /// Addresses and words; links are left out, except that the last word of a full chain stays.
    slots: Vec<(RemotePtr, u64)>,
    /// The nodes.
    pub nodes: Vec<RemotePtr>,
    /// Where damaged memory ends the chain, and what is wrong.
    pub broken: Option<(RemotePtr, String)>,
}

impl Chain3 {
    /// Follows the chain from its first slot, whose word has been read.
    pub(super) async fn read(span: &Span, at: RemotePtr, word: u64) -> Result<Self, IndexError> {
        let chain = Self::follow(span, at, word).await?;
        match chain.broken {
            Some((at, what)) => Err(PoolError::Corrupt { at, what }.into()),
            None => Ok(chain),
        }
    }

    /// Follows the chain as far as possible; damage is reported in `broken`.
    pub(super) async fn follow(span: &Span, at: RemotePtr, word: u64) -> Result<Self, IndexError> {
        let mut chain = Chain3 { slots: Vec::new(), nodes: Vec::new(), broken: None };
        if word & !META == 0 {
            chain.slots.push((at, word));
            return Ok(chain);
        }
        let (mut at, mut word) = (at, word);
        let mut way = Way::from(RemotePtr::NULL);
        while let Slot::Link(node) = Slot::decode(word) {
            if way.leads_back_to(node) {
                chain.broken = Some((at, "a chain of level 3 has a cycle".to_owned()));
                return Ok(chain);
            }
            let words = match span.read(node, NODE_LEN).await.map_err(|error| led_from(at, error)) {
                Ok(words) => words,
                Err(IndexError::Pool(PoolError::Corrupt { at, what })) => {
                    chain.broken = Some((at, what));
                    return Ok(chain);
                }
                Err(error) => return Err(error),
            };
            chain.nodes.push(node);
            let last = NODE_SLOTS - 1;
            for (i, word) in words.words().iter().enumerate().take(last) {
                chain.slots.push((node.add(i as u64 * 8), *word));
            }
            at = node.add(last as u64 * 8);
            word = words.words().get(last).copied().unwrap_or(0);
        }
        chain.slots.push((at, word));
        Ok(chain)
    }

    /// Slots with live words of this pattern.
    pub(super) fn matches(&self, pattern: Pattern) -> impl Iterator<Item = (RemotePtr, u64)> + '_ {
        self.slots.iter().copied().filter(move |(_, word)| pattern.matches(*word))
    }
    /// Is an entry with this fingerprint being moved, or may it have been moved, for a client that expects this
    /// version? The chain has no version of its own: an entry that a split takes out of it leaves a dead slot of the
    /// next version.
    pub(super) fn is_moving(&self, fp: u64, version: u64) -> bool {
        self.slots().any(|(_, slot)| match slot {
            Slot::Frozen(frozen, _) => frozen == fp,
            Slot::Dead(of, _) => of > version,
            _ => false,
        })
    }
    /// Is the chain free of slots that an unfinished split of this or a newer version leaves?
    pub(super) fn is_settled(&self, version: u64) -> bool {
        self.slots().all(|(_, slot)| match slot {
            Slot::Frozen(..) => false,
            Slot::Dead(of, _) => of <= version,
            _ => true,
        })
    }
    /// Hashes the slots that a settled chain of this version does not have.
    pub(super) fn trace(&self, version: u64) -> u64 {
        let settled = |slot| match slot {
            Slot::Live(_) | Slot::Unwritten => true,
            Slot::Dead(of, _) => of <= version,
            _ => false,
        };
        let odd = self.slots.iter().filter(|(_, word)| !settled(Slot::decode(*word)));
        odd.fold(0, |trace, (at, word)| {
            xxhash_rust::xxh3::xxh3_64_with_seed(&(word & !META).to_le_bytes(), trace ^ at.to_bits())
        })
    }
    /// Every slot, decoded.
    pub(super) fn slots(&self) -> impl Iterator<Item = (RemotePtr, Slot)> + '_ {
        self.slots.iter().map(|(at, word)| (*at, Slot::decode(*word)))
    }
    /// Every word.
    pub(super) fn words(&self) -> &[(RemotePtr, u64)] {
        &self.slots
    }

    /// Adds an entry; the caller holds the lock. Returns `false` if an update by another client came in between: the
    /// caller reads the chain again.
    pub(super) async fn add(&self, pin: &Pin<'_>, entry: u64) -> Result<bool, IndexError> {
        let span = pin.span();
        for &(at, word) in &self.slots {
            let free = match Slot::decode(word) {
                Slot::Unwritten => true,
                Slot::Dead(_, stamp) => stamp.grace_period_elapsed(pin.epoch()),
                _ => false,
            };
            if free {
                mark!("level 3: slot filled");
                return Ok(span.cas(at, word, entry | word & META).await? == word);
            }
        }
        let Some(&(at, last)) = self.slots.last() else { return Ok(false) };
        let node = pin.session().alloc_now(span, at.node(), NODE_LEN as u64).await?;
        let mut words = [0; NODE_SLOTS];
        words[0] = last & !META;
        words[1] = entry & !META;
        let link = Slot::Link(node).over(last);
        let mut batch = span.batch();
        batch.write_words(node, &words);
        let linked = batch.cas(at, last, link);
        let done = batch.post().await?.old(linked) == last;
        mark!("level 3: link");
        if !done {
            pin.session().discard(node, NODE_LEN as u64);
        }
        Ok(done)
    }
}
