//! Splits and merges.

use super::entry::{Item, Seed};
use super::header::{Node, SiblingWord};
use super::hints::Hints;
use super::image::{Image, Words};
use super::insert::{Insert, insert};
use super::layout::{HEADER_WORDS, HINTS, LOCK, Layout, SIBLING};
use super::plan::{Plan, Write};
use super::recover::rewrite;

/// A split of a leaf, in the order of its steps (S1).
#[derive(Debug, Clone)]
pub struct Split {
    /// To the right node: its header, with a lock word that nobody can take.
    pub header: Write,
    /// To the left node: all entries under the new seed, those that move as well; and then its header, whose sibling word
    /// commits the split.
    pub commit: Vec<Write>,
    /// To the right node: its entries.
    pub entries: Write,
    /// To the left node: its entries without those that have moved.
    pub rest: Plan,
    /// The right node, whole.
    pub right: Image,
}

/// The lock word of a node that cannot be locked.
const DEAD_LOCK: u64 = crate::tree::node::DEAD;

/// Splits a leaf: entries of which `moves` is true go to the same positions of a new right node.
///
/// `left` is the left node's state after the split: its right sibling is `right`, and its high key is the low key of
/// `right`. `None` if the image is not whole.
pub fn split(image: &mut Image, left: &Node, right: &Node, moves: impl Fn(usize, &Item) -> bool) -> Option<Split> {
    let layout = image.layout();
    image.whole()?;
    let all = image.items()?;
    let mut stay = all.clone();
    let mut go = vec![None; layout.span()];
    for (position, (stays, goes)) in stay.iter_mut().zip(&mut go).enumerate() {
        if stays.is_some_and(|item| moves(position, &item)) {
            *goes = stays.take();
        }
    }
    let mut new = Image::new(layout);
    new.set(LOCK, DEAD_LOCK);
    new.fill(&go, right);
    let body = HEADER_WORDS..layout.words();
    image.fill(&all, left);
    let resealed = image.write(body.clone())?;
    let hints = image.fill(&stay, left);
    Some(Split {
        header: new.write(0..HEADER_WORDS)?,
        commit: vec![resealed, image.write(SIBLING..HEADER_WORDS)?],
        entries: new.write(body.clone())?,
        rest: Plan { writes: vec![image.write(body)?], hints },
        right: new,
    })
}

/// A merge of a right node into its left neighbour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absorb {
    /// Puts copies of the right node's items into the left node, in which no reader looks for them yet.
    pub copies: Plan,
    /// Gives the left node the right node's range.
    pub commit: Plan,
}

/// Merges a right node's items into a whole image of its left neighbour, whose state is `before` and then `after`.
/// `None` if the image is not whole, or if the items do not fit; the image is then as it was.
///
/// The left node is locked, and the right one frozen. Order: `copies`; when they have completed, [`retire`] of the right
/// node; when that has completed, `commit`; then the left node's lock is released (S2).
pub fn absorb(image: &mut Image, before: &Node, after: &Node, items: &[Item]) -> Option<Absorb> {
    let layout = image.layout();
    image.whole()?;
    let mut merged = image.clone();
    let (seed, hints): (Seed, Hints) = (before.seed(), image.hints()?);
    let mut copies = Plan { writes: Vec::new(), hints };
    for item in items {
        // Keys of two leaves are never equal, though their hashes may be.
        let others: Vec<usize> = if item.key.inline { Vec::new() } else { (0..layout.span()).collect() };
        let Insert::Done { plan, .. } = insert(&mut merged, seed, copies.hints, *item, &others) else { return None };
        copies.then(plan);
    }
    let items = merged.items()?;
    let commit = rewrite(&mut merged, &items, after);
    *image = merged;
    Some(Absorb { copies, commit })
}

/// What makes a right node dead that was merged into its left neighbour: the dead bit in the header, which commits the
/// merge, and then dead replicas, and entries that no seed accepts. `sibling` is the right node's own right sibling: it
/// stays, so that the state of the left node can be derived after a crash.
pub fn retire(layout: Layout, sibling: u64) -> Plan {
    let word = SiblingWord::new(sibling, true).bits();
    let mut words = vec![0; layout.words()];
    for group in 0..layout.groups() {
        words[layout.replica_word(group)] = word;
    }
    // The references to the low and high key stay: their blocks are freed with the node.
    let body = layout.replica_word(0);
    let writes = vec![
        Write { offset: SIBLING * 8, words: vec![word] },
        Write { offset: body * 8, words: words.split_off(body) },
    ];
    const { assert!(SIBLING < HINTS) };
    Plan { writes, hints: Hints::from_bits(0) }
}
