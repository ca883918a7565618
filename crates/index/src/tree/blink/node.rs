//! Nodes: a fixed header that a lock and a pointer fill, and immutable contents.
//!
//! Invariants: contents never change once a header points to them; each change of a node writes new contents, then the
//! pointer, then retires the old contents. So a reader that is pinned reads contents of one moment, however the READ is
//! torn (N2), and a writer that crashes leaves a whole node. A node's level and low key never change. A node's high key
//! is the low key of its right sibling.
//!
//! ```text
//! header   word 0  lock: 0 is free, 1 is held
//!          word 1  63      48 47                                 0
//!                  | units   | contents, as a 48-bit pointer     |   units of 64 bytes, at most 65535
//! root     word 2  index tag; inverted once the index is dropped
//! contents a key-value block with an empty key; its hash is the index tag's, its value the node in the postcard format
//! ```

use super::BLink;
use crate::IndexError;
use crate::block::{self, UNIT};
use crate::keyhash::KeyHash;
use crate::maintenance::{astray, fetch_blocks};
use farindex_fabric::{Buf, Endpoint, RemotePtr, Span};
use farindex_pool::{Lock, PoolError};
use serde::{Deserialize, Serialize};

/// Bytes of a node's header, and of the root's.
pub(super) const HEADER_LEN: u64 = 64;
/// Value of a lock word that is held.
pub(super) const LOCKED: u64 = 1;
/// Offset of the pointer to the contents.
pub(super) const CONTENTS: u64 = 8;
/// Offset of the root's index tag.
pub(super) const TAG: u64 = 16;

/// A tree of this height has more nodes than a pool has bytes.
const MAX_LEVEL: u32 = 64;
const UNITS_SHIFT: u32 = 48;
const MAX_UNITS: u64 = u16::MAX as u64;

/// Entry of a node: in a leaf a key and its block, in an inner node the low key of a child and the child's header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) key: Vec<u8>,
    at: u64,
    /// Bytes of the block; 0 for a child.
    pub(super) len: u64,
}

impl Entry {
    pub(super) fn new(key: &[u8], at: RemotePtr, len: u64) -> Self {
        Entry { key: key.to_vec(), at: at.to_bits(), len }
    }
    pub(super) fn at(&self) -> RemotePtr {
        RemotePtr::from_bits(self.at)
    }
}

/// What a node holds at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Contents {
    /// 0 for a leaf.
    pub(super) level: u32,
    /// Least key that belongs to the node.
    pub(super) low: Vec<u8>,
    /// The right sibling, under its low key; `None` if the node is the last of its level.
    pub(super) right: Option<Entry>,
    /// In ascending order of their keys.
    pub(super) entries: Vec<Entry>,
}

impl Contents {
    /// An empty leaf for all keys.
    pub(super) fn empty() -> Self {
        Contents { level: 0, low: Vec::new(), right: None, entries: Vec::new() }
    }
    /// Does the key belong to this node, and not to one further right?
    pub(super) fn covers(&self, key: &[u8]) -> bool {
        self.right.as_ref().is_none_or(|right| key < right.key.as_slice())
    }
    /// Finds the entry of a key, or where it would be.
    pub(super) fn find(&self, key: &[u8]) -> Result<usize, usize> {
        self.entries.binary_search_by(|entry| entry.key.as_slice().cmp(key))
    }
    /// Returns the child that a key belongs to, and the child's upper bound as this node knows it.
    pub(super) fn child(&self, key: &[u8]) -> Option<(&Entry, Option<&[u8]>)> {
        let next = self.entries.partition_point(|entry| entry.key.as_slice() <= key);
        let bound = self.entries.get(next).or(self.right.as_ref()).map(|entry| entry.key.as_slice());
        Some((self.entries.get(next.checked_sub(1)?)?, bound))
    }
    fn is_sound(&self) -> bool {
        let inner = self.level > 0;
        let ascending = self.entries.windows(2).all(|pair| pair[0].key < pair[1].key);
        let above = self.entries.first().is_none_or(|first| first.key >= self.low);
        let below = self.entries.last().is_none_or(|last| self.covers(&last.key));
        let complete = !inner || self.entries.first().is_some_and(|first| first.key == self.low);
        self.level <= MAX_LEVEL && ascending && above && below && complete && self.covers(&self.low)
    }
}

/// A node as it was read.
pub(super) struct Node {
    /// Its header.
    pub(super) at: RemotePtr,
    /// Its lock word.
    pub(super) lock: u64,
    /// Its contents lie here.
    pub(super) place: RemotePtr,
    /// Bytes of the contents.
    pub(super) len: u64,
    pub(super) contents: Contents,
}

/// Lock of the node with this header.
pub(super) const fn lock_of(at: RemotePtr) -> Lock {
    Lock { at, mask: u64::MAX }
}

/// Encodes contents as a block of the index with this tag.
pub(super) fn encode(endpoint: &Endpoint, tag: u64, contents: &Contents) -> Result<Buf, IndexError> {
    let bytes = postcard::to_allocvec(contents)
        .map_err(|error| IndexError::BadConfig(format!("a node that cannot be stored: {error}")))?;
    Ok(block::encode(endpoint, KeyHash::from_bits(tag), &[], &bytes))
}

/// Returns the header's word for contents of so many bytes.
pub(super) fn pointer(place: RemotePtr, len: u64) -> u64 {
    (len / UNIT as u64).min(MAX_UNITS) << UNITS_SHIFT | place.to_slot().unwrap_or_default()
}

fn corrupt(at: RemotePtr, what: impl Into<String>) -> IndexError {
    PoolError::Corrupt { at, what: what.into() }.into()
}

impl BLink {
    /// Reads the root. [`IndexError::Dropped`] if the index is no longer there.
    pub(super) async fn read_root(&self, span: &Span) -> Result<Node, IndexError> {
        let header = span.read(self.root(), TAG as usize + 8).await?;
        let &[lock, word, tag] = header.words() else { return Err(corrupt(self.root(), "the root is not readable")) };
        if tag != self.tag && !(self.dropping.get() && tag == !self.tag) {
            return Err(IndexError::Dropped);
        }
        let root = self.read_contents(span, self.root(), lock, word).await?;
        if !root.contents.low.is_empty() || root.contents.right.is_some() {
            return Err(corrupt(self.root(), "the root does not cover all keys"));
        }
        self.height.set(root.contents.level);
        Ok(root)
    }

    /// Reads the node that an entry of another node points to. Its low key is the entry's.
    pub(super) async fn read_node(&self, span: &Span, entry: &Entry, level: u32) -> Result<Node, IndexError> {
        let at = entry.at();
        if let Some(what) = astray(self.session.pool(), at, HEADER_LEN) {
            return Err(corrupt(at, format!("an entry of a node points to {what}")));
        }
        let header = span.read(at, 16).await?;
        let &[lock, word] = header.words() else { return Err(corrupt(at, "the node is not readable")) };
        let node = self.read_contents(span, at, lock, word).await?;
        match node.contents.level == level && node.contents.low == entry.key {
            true => Ok(node),
            // Every step to the right goes to a larger low key, and every step down to a lower level: no walk is
            // endless.
            false => Err(corrupt(at, "the node is not the one that was pointed to")),
        }
    }

    async fn read_contents(&self, span: &Span, at: RemotePtr, lock: u64, word: u64) -> Result<Node, IndexError> {
        let (place, units) = (RemotePtr::from_slot(word), (word >> UNITS_SHIFT).max(1));
        if let Some(what) = astray(self.session.pool(), place, units * UNIT as u64) {
            return Err(corrupt(at, format!("the node at {at} points to {what}")));
        }
        let Some(Ok(block)) = fetch_blocks(span, &[(place, units)]).await?.pop() else {
            return Err(corrupt(at, format!("the contents at {place} have a wrong checksum")));
        };
        let (header, value) = (block.header, block.into_value());
        let contents = postcard::from_bytes::<Contents>(&value);
        match contents {
            Ok(contents) if contents.is_sound() && header.hash == KeyHash::from_bits(self.tag) => {
                Ok(Node { at, lock, place, len: header.block_len() as u64, contents })
            }
            _ => Err(corrupt(at, format!("the contents at {place} are no node of this index"))),
        }
    }
}
