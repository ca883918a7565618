//! What is to be written under a lock, in the order in which it is to take effect.

use super::node::{CHECKSUM, HIGH, Header, LOW, Node, SIBLING, USED};
use farindex_fabric::{Batch, Buf, RemotePtr};
use smallvec::SmallVec;

/// Changes of a node under its lock, in the order in which they are to take effect.
#[derive(Default)]
pub(super) struct Edit {
    writes: Vec<(usize, SmallVec<[u64; 4]>)>,
}

impl Edit {
    /// Adds a WRITE of these words of the node, as they are now.
    pub(super) fn put(&mut self, node: &Node, at: usize, len: usize) {
        let words = node.buf.words().get(at..at + len).unwrap_or_default();
        self.writes.push((at, SmallVec::from_slice(words)));
    }
    pub(super) fn put_slot(&mut self, node: &Node, slot: usize) {
        let (at, len) = node.layout.slot_words(slot);
        self.put(node, at, len);
    }
    pub(super) fn put_used(&mut self, node: &Node) {
        self.put(node, USED, node.layout.map());
    }
    pub(super) fn put_inline(&mut self, node: &Node) {
        self.put(node, node.layout.inline(), node.layout.map());
    }
    /// Adds a WRITE of these words.
    pub(super) fn put_words(&mut self, at: usize, words: impl IntoIterator<Item = u64>) {
        self.writes.push((at, words.into_iter().collect()));
    }
    /// Adds the WRITE of the right sibling, which commits a change of the range, and of the high key that follows from it.
    pub(super) fn put_range(&mut self, node: &Node) {
        self.put(node, SIBLING, HIGH + 2 - SIBLING);
    }
    /// Seals the node and adds the WRITE of its checksum, the last one (W2). The bitmap before it may be part of the same
    /// WRITE: in either order, the node is unsound until both are there, and recovery needs the bitmap alone.
    pub(super) fn seal(&mut self, node: &mut Node, tag: u64) {
        node.seal(tag);
        let new_range = self.writes.iter().any(|(at, _)| (SIBLING..LOW).contains(at));
        let versions = if new_range { node.renew_versions() } else { None };
        let used = self.writes.last().is_some_and(|(at, _)| *at == USED);
        if used {
            self.writes.pop();
        }
        self.put(node, CHECKSUM, if used { 1 + node.layout.map() } else { 1 });
        if let Some((front, rear)) = versions {
            self.writes.insert(0, (front, SmallVec::from_slice(&[node.word(front)])));
            self.put(node, rear, 1);
        }
    }
    pub(super) fn post(self, batch: &mut Batch<'_>, at: RemotePtr) {
        for (word, words) in self.writes {
            batch.write_words(at.add(word as u64 * 8), &words);
        }
    }
}

/// WRITEs and CASes of several nodes, in the order in which they are to take effect.
#[derive(Default)]
pub(super) struct Steps(pub(super) Vec<(RemotePtr, One)>);

/// One of them.
pub(super) enum One {
    Buf(Buf),
    Words(SmallVec<[u64; 4]>),
    Revive,
}

impl Steps {
    /// Adds WRITEs of new nodes and blocks.
    pub(super) fn write(&mut self, new: impl IntoIterator<Item = (RemotePtr, Buf)>) {
        self.0.extend(new.into_iter().map(|(at, buf)| (at, One::Buf(buf))));
    }
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// Adds an edit of the node at `at`.
    pub(super) fn edit(&mut self, at: RemotePtr, edit: Edit) {
        self.0.extend(edit.writes.into_iter().map(|(word, words)| (at.add(word as u64 * 8), One::Words(words))));
    }
    /// Adds a CAS that makes a dead node free: a new one, which is linked by now (B2).
    pub(super) fn revive(&mut self, at: RemotePtr) {
        self.0.push((at, One::Revive));
    }
}
