//! Leaves as they were read: whole, or in part under their lock.

use super::leaf::{self, Image, Item, Layout, Pieces, Ranges, Scan, SiblingWord, Words, scan};
use crate::IndexError;
use crate::tree::fence::Fence;
use crate::tree::hand_over::HandsOver;
use crate::tree::node::{DEAD, Header, SIBLING};
use crate::tree::skeleton::Unread;
use farindex_fabric::{Buf, RemotePtr};
use farindex_pool::Pin;

/// The state of a leaf with this range and this right sibling.
pub(super) fn state((tag, at): (u64, RemotePtr), sibling: RemotePtr, (low, high): (Fence, Fence)) -> leaf::Node {
    leaf::Node {
        tag,
        address: at.to_bits(),
        sibling: sibling.to_slot().unwrap_or_default(),
        low: [low.word, low.tag],
        high: [high.word, high.tag],
    }
}

/// Has the leaf that begins with these words been merged into its left neighbour?
pub(super) fn is_retired(words: &[u64]) -> bool {
    words.first() == Some(&DEAD) && words.get(SIBLING).is_some_and(|word| SiblingWord::from_bits(*word).dead())
}

/// A whole leaf, of one state.
pub(in crate::tree) struct Whole {
    pub(super) at: RemotePtr,
    pub(super) layout: Layout,
    pub(super) buf: Buf,
    pub(super) items: Vec<(usize, Item)>,
}

impl Header for Whole {
    fn at(&self) -> RemotePtr {
        self.at
    }
    fn word(&self, index: usize) -> u64 {
        self.buf.words().get(index).copied().unwrap_or_default()
    }
}

impl Whole {
    /// Verifies the words of a leaf that were read in one READ. `why` says what lies there if there is no header.
    pub(super) fn verify(
        (tag, at): (u64, RemotePtr),
        layout: Layout,
        buf: Buf,
        why: impl FnOnce(u64) -> Unread,
    ) -> Result<Whole, Unread> {
        let words = buf.words();
        if is_retired(words) {
            return Err(Unread::Dead);
        }
        let pieces = Pieces::new(layout, (0, words), None);
        let items = leaf::Node::read(&pieces, tag, at.to_bits()).map(|node| scan(&pieces, &node.expected()));
        match items {
            Some(Scan::Items(items)) => Ok(Whole { at, layout, buf, items }),
            Some(_) if words.first() == Some(&DEAD) => Err(Unread::Dead),
            _ => Err(why(words.first().copied().unwrap_or_default())),
        }
    }
}

/// A leaf under its lock, as far as it was read: its header and some entries.
pub(in crate::tree) struct Held {
    pub(super) at: RemotePtr,
    pub(super) image: Image,
    /// What the header says.
    pub(super) node: leaf::Node,
}

impl Header for Held {
    fn at(&self) -> RemotePtr {
        self.at
    }
    fn word(&self, index: usize) -> u64 {
        self.image.word(index).unwrap_or_default()
    }
}

/// READs ranges of a locked leaf.
pub(super) async fn read_more(pin: &Pin<'_>, leaf: &mut Held, ranges: &Ranges) -> Result<(), IndexError> {
    let mut batch = pin.span().batch();
    let posted = leaf.post_reads(&mut batch, ranges.clone());
    leaf.add_reads(posted, &mut batch.post().await?);
    Ok(())
}

/// A leaf under its lock whose header is no leaf's.
pub(super) fn unverified(at: RemotePtr, image: Image) -> Held {
    let none = [0; 2];
    Held { at, image, node: leaf::Node { tag: 0, address: 0, sibling: 0, low: none, high: none } }
}
