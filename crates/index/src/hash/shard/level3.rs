//! Level 3: one slot for each level-1 bucket, and then nodes of 8 slots.
//!
//! Invariants: who adds an entry holds the lock of the level-1 bucket, so additions are alone; updates and removals are
//! CASes as everywhere. When an occupied slot has to make room for a link, its entry is first copied into the new node;
//! then one CAS replaces it by the link, so at every moment the entry is in exactly one place that a reader comes by. A
//! node is never taken out while its index lives.
//!
//! ```text
//! slot   live | dead | unwritten | link -> node | slot | slot | ... | slot 7: live or link -> ...
//! ```

use super::slot::{META, Pattern, Slot};
use crate::IndexError;
use crate::marks::mark;
use farindex_fabric::{RemotePtr, Span};
use farindex_pool::{Pin, PoolError};

/// Slots of a node.
pub(super) const NODE_SLOTS: usize = 8;
/// Bytes of a node.
pub(super) const NODE_LEN: usize = NODE_SLOTS * 8;
/// A chain longer than this is a circle.
const MAX_NODES: usize = 1 << 20;

/// The slots that one level-1 bucket has in level 3, in the order in which a lookup comes by.
pub(super) struct Chain3 {
    /// Addresses and words; links are left out, except that the last word of a full chain stays.
    slots: Vec<(RemotePtr, u64)>,
    /// The nodes.
    pub nodes: Vec<RemotePtr>,
}

impl Chain3 {
    /// Follows the chain from its first slot, whose word has been read.
    pub(super) async fn read(span: &Span, at: RemotePtr, word: u64) -> Result<Self, IndexError> {
        let mut chain = Chain3 { slots: Vec::new(), nodes: Vec::new() };
        if word & !META == 0 {
            chain.slots.push((at, word));
            return Ok(chain);
        }
        let (mut at, mut word) = (at, word);
        while let Slot::Link(node) = Slot::decode(word) {
            if chain.nodes.len() >= MAX_NODES {
                let what = "a chain of level 3 runs in a circle".to_owned();
                return Err(PoolError::Corrupt { at, what }.into());
            }
            chain.nodes.push(node);
            let words = span.read(node, NODE_LEN).await?;
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
    /// Is an entry with this fingerprint being moved, or may it have been, for a client that expects this version? The
    /// chain has no version of its own: what a split takes out of it leaves dead slots of the next one behind.
    pub(super) fn is_moving(&self, fp: u64, version: u64) -> bool {
        self.slots().any(|(_, slot)| match slot {
            Slot::Frozen(frozen, _) => frozen == fp,
            Slot::Dead(of, _) => of > version,
            _ => false,
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

    /// Adds an entry; the caller holds the lock. `false` if another client's update came in between: read again.
    pub(super) async fn add(&self, pin: &Pin<'_>, entry: u64) -> Result<bool, IndexError> {
        let span = pin.span();
        for &(at, word) in &self.slots {
            let free = match Slot::decode(word) {
                Slot::Unwritten => true,
                Slot::Dead(_, stamp) => stamp.graced(pin.epoch()),
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
