//! An inner node as a compute node keeps it: its separators in order.
//!
//! Invariants: the first separator is the node's low key (of a dead node the separators may be gone); separators ascend; a
//! child's range ends where the next one begins, and the last one's where the node's does.

use super::fence::{Fence, INLINE, Key, prefix};
use super::node::{Header, Node};
use crate::IndexError;
use crate::maintenance::fetch_blocks;
use crate::marks::mark;
use farindex_fabric::{RemotePtr, Span};
use std::cmp::Ordering;

/// On which side of a key a descent ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// At the node that the key belongs to.
    At,
    /// At the node that the keys just below it belong to.
    Below,
}

/// A separator: 16 bytes, or more for a long key.
#[derive(Debug, Clone, Copy)]
struct Entry {
    prefix: u64,
    /// Child in 48 bits, length of the key in 8 (`LONG`: in `long`), place in `long` in 8.
    child: u64,
}

const LONG: u64 = 0xFF;

impl Entry {
    fn len(self) -> usize {
        (self.child >> 48 & 0xFF) as usize
    }
    fn long(self, long: &[Box<[u8]>]) -> Option<&[u8]> {
        (self.child >> 48 & 0xFF == LONG).then(|| long.get((self.child >> 56) as usize).map_or(&[][..], |key| key))
    }
}

/// An inner node.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) at: RemotePtr,
    pub(super) level: u8,
    pub(super) dead: bool,
    pub(super) sibling: RemotePtr,
    pub(super) low: Box<[u8]>,
    /// `None` at the end of the level.
    pub(super) high: Option<Box<[u8]>>,
    entries: Box<[Entry]>,
    long: Box<[Box<[u8]>]>,
}

impl Inner {
    /// Decodes a node that is sound, and READs its long keys for that. Of a dead one perhaps its low key alone. `None` if it is
    /// no inner node.
    pub(super) async fn of(span: &Span, node: &Node) -> Result<Option<Inner>, IndexError> {
        let whole = Inner::whole(span, node).await?;
        if whole.is_some() || !node.is_dead() {
            return Ok(whole);
        }
        // Its separators are its left neighbour's by now, or nobody's, and the blocks of their keys may be something else.
        mark!("tree: dead inner node has no separators any more");
        let low = node.low();
        let key = match low.block() {
            None => low.key().map(|key| key.to_vec()),
            Some(place) => match fetch_blocks(span, &[place]).await?.pop() {
                Some(Ok(block)) if low.is(block.key()) => Some(block.key().to_vec()),
                _ => None,
            },
        };
        Ok(key.and_then(|low| Inner::dead(node, low)))
    }
    async fn whole(span: &Span, node: &Node) -> Result<Option<Inner>, IndexError> {
        let long = long_keys(node);
        let mut keys = Vec::new();
        if !long.is_empty() {
            for block in fetch_blocks(span, &long).await? {
                let Ok(block) = block else { return Ok(None) };
                keys.push(block.key().to_vec().into_boxed_slice());
            }
        }
        Ok(Inner::decode(node, keys.into_iter()))
    }

    /// Decodes a node that is sound, given its long keys as [`long_keys`] lists them. `None` if it is no inner node.
    fn decode(node: &Node, mut keys: impl Iterator<Item = Box<[u8]>>) -> Option<Self> {
        let level = node.level();
        let mut fetch = |fence: Fence| match fence.key() {
            Some(key) => Some(key.to_vec().into_boxed_slice()),
            None => keys.next(),
        };
        let low = fetch(node.low())?;
        let high = if node.high().is_infinite() { None } else { Some(fetch(node.high())?) };
        let (mut entries, mut long) = (Vec::with_capacity(node.count()), Vec::new());
        for slot in node.used() {
            let separator = node.separator(slot);
            if separator.child_level() + 1 != level {
                return None;
            }
            let child = separator.child().to_slot()?;
            let key = fetch(separator)?;
            let len = if separator.block().is_some() { LONG } else { key.len() as u64 };
            let place = long.len() as u64;
            entries.push(Entry { prefix: prefix(&key), child: place << 56 | len << 48 | child });
            if len == LONG {
                long.push(key);
            } else {
                // The place means nothing.
                entries.last_mut()?.child &= (1 << 56) - 1;
            }
        }
        entries.sort_unstable_by(|a, b| compare(*a, &long, &key_of(*b, &long)));
        let node = Inner {
            at: node.at,
            level,
            dead: node.is_dead(),
            sibling: node.sibling(),
            low,
            high,
            entries: entries.into(),
            long: long.into(),
        };
        let begins = node.entries.first().is_some_and(|_| node.key(0).as_slice() == &*node.low);
        (level > 0 && begins).then_some(node)
    }

    /// A dead node of which the low key alone is known. It has no children.
    fn dead(node: &Node, low: Vec<u8>) -> Option<Self> {
        let (entries, long) = (Box::default(), Box::default());
        let (at, level, sibling) = (node.at, node.level(), node.sibling());
        (level > 0).then(|| Inner { at, level, dead: true, sibling, low: low.into(), high: None, entries, long })
    }

    /// Bytes of local memory.
    pub(super) fn bytes(&self) -> u64 {
        let keys = self.low.len() + self.high.as_ref().map_or(0, |high| high.len());
        let long: usize = self.long.iter().map(|key| size_of_val(key) + key.len()).sum();
        (size_of::<Self>() + size_of_val(&*self.entries) + keys + long) as u64
    }
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
    pub(super) fn child(&self, i: usize) -> RemotePtr {
        self.entries.get(i).map_or(RemotePtr::NULL, |entry| RemotePtr::from_slot(entry.child & ((1 << 48) - 1)))
    }
    /// Low key of a child.
    pub(super) fn key(&self, i: usize) -> Key {
        self.entries.get(i).map(|entry| key_of(*entry, &self.long)).unwrap_or_default()
    }
    /// High key of a child; `None` if it is infinite.
    pub(super) fn high_of(&self, i: usize) -> Option<Key> {
        if i + 1 < self.len() { Some(self.key(i + 1)) } else { self.high.as_deref().map(Key::from_slice) }
    }
    /// Returns the position of the child to descend to.
    pub(super) fn find(&self, key: &[u8], side: Side) -> usize {
        let wanted = prefix(key);
        let first = self.entries.partition_point(|entry| entry.prefix < wanted);
        let rest = self.entries.get(first..).unwrap_or_default();
        // Where no entry has the key's own prefix, numbers alone have decided.
        let more = match rest.first() {
            Some(entry) if entry.prefix == wanted => {
                rest.partition_point(|entry| match compare(*entry, &self.long, key) {
                    Ordering::Less => true,
                    Ordering::Equal => side == Side::At,
                    Ordering::Greater => false,
                })
            }
            _ => 0,
        };
        (first + more).saturating_sub(1)
    }
    /// Does the key lie below the node's range?
    pub(super) fn is_above(&self, key: &[u8], side: Side) -> bool {
        // See `Map::number_of` of DEX: a comparison with no bytes is slow.
        let low = if self.low.is_empty() { 0.cmp(&key.len()) } else { (*self.low).cmp(key) };
        match low {
            Ordering::Less => false,
            Ordering::Equal => side == Side::Below && !key.is_empty(),
            Ordering::Greater => true,
        }
    }
    /// Does the key lie beyond the node's range?
    pub(super) fn is_below(&self, key: &[u8], side: Side) -> bool {
        self.high.as_deref().is_some_and(|high| match high.cmp(key) {
            Ordering::Less => true,
            Ordering::Equal => side == Side::At,
            Ordering::Greater => false,
        })
    }
}

fn key_of(entry: Entry, long: &[Box<[u8]>]) -> Key {
    match entry.long(long) {
        Some(key) => Key::from_slice(key),
        None => Key::from_slice(&entry.prefix.to_be_bytes()[..entry.len().min(INLINE)]),
    }
}

/// Compares a separator with a key.
fn compare(entry: Entry, long: &[Box<[u8]>], key: &[u8]) -> Ordering {
    entry.prefix.cmp(&prefix(key)).then_with(|| match entry.long(long) {
        Some(own) => own.cmp(key),
        // Both are zero behind the shorter one, as far as the prefix goes.
        None => entry.len().cmp(&key.len()),
    })
}

/// The blocks of a node's long keys, in the order in which [`Inner::decode`] takes them.
fn long_keys(node: &Node) -> Vec<(RemotePtr, u64)> {
    let fences = [node.low(), node.high()].into_iter().chain(node.used().map(|slot| node.separator(slot)));
    fences.filter_map(Fence::block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block;
    use crate::keyhash::KeyHash;
    use crate::tree::node::{DEAD, Layout};
    use farindex_fabric::{Endpoint, Executor, Fabric, MemoryFabric, NodeId, OpKind};

    const TAG: u64 = 77;
    const LOW: &[u8] = b"a low key of more than eight bytes";
    const OTHER: &[u8] = b"another key that does not fit either";

    fn at(offset: u64) -> RemotePtr {
        RemotePtr::new(NodeId::new(0), offset)
    }

    /// A node of level 1 with two children, whose low keys lie in these blocks.
    fn node(endpoint: &Endpoint, blocks: [RemotePtr; 2]) -> Node {
        let (layout, [low, other]) = (Layout::new(4), [Fence::new(LOW, blocks[0]), Fence::new(OTHER, blocks[1])]);
        let mut node = Node::new(at(4096), layout, endpoint.buf(layout.len()), (TAG, 1), low);
        for (slot, separator) in [low.separator(at(8192), 0), other.separator(at(8704), 0)].into_iter().enumerate() {
            node.fill(slot, (separator.word, separator.tag));
            node.set_used(slot, true);
        }
        node
    }

    /// The left neighbour has the separators of a dead node, and may free the blocks of their keys (docs/bugs/186).
    #[test]
    fn dead_node_without_its_separators_keeps_its_low_key() {
        let fabric = MemoryFabric::new(1, 1 << 14).expect("memory");
        let endpoint = fabric.connect(&fabric.new_identity()).expect("a connection");
        let (blocks, span) = ([at(1024), at(2048)], endpoint.span(OpKind::Other));
        let read = |node: &Node| {
            Executor::new().block_on(&endpoint, Inner::of(&span, node)).expect("READs").map(|inner| {
                assert_eq!((inner.level, inner.at), (1, at(4096)));
                (inner.low.to_vec(), inner.len(), inner.dead)
            })
        };
        let (alive, mut dead) = (node(&endpoint, blocks), node(&endpoint, blocks));
        dead.set(0, DEAD);
        Executor::new().block_on(&endpoint, async {
            for (ptr, key) in blocks.into_iter().zip([LOW, OTHER]) {
                span.write(ptr, block::encode(&endpoint, KeyHash::unseeded(key), key, &[])).await.expect("written");
            }
        });
        assert_eq!([&alive, &dead].map(read), [Some((LOW.to_vec(), 2, false)), Some((LOW.to_vec(), 2, true))]);
        Executor::new().block_on(&endpoint, async {
            span.write(blocks[1], endpoint.buf_from_words(&[0; 8])).await.expect("written");
        });
        assert_eq!([&alive, &dead].map(read), [None, Some((LOW.to_vec(), 0, true))]);
        Executor::new().block_on(&endpoint, async {
            span.write(blocks[0], endpoint.buf_from_words(&[0; 8])).await.expect("written");
        });
        assert_eq!([&alive, &dead].map(read), [None, None]);
    }
}
