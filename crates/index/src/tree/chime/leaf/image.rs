//! Images of leaves: words that were read, or computed, of which some may be unknown.

use super::entry::{Entry, Item, State};
use super::header::Node;
use super::hints::Hints;
use super::layout::{HEADER_CHECK, HIGH, HINTS, LOCK, Layout, SIBLING};
use super::plan::Write;

/// Words of a leaf.
pub trait Words {
    /// Returns the leaf's layout.
    fn layout(&self) -> Layout;
    /// Returns a word by its number in the node; `None` if it is not known.
    fn word(&self, index: usize) -> Option<u64>;
    /// Returns an entry; `None` if a word of it is not known.
    fn entry(&self, position: usize) -> Option<Entry> {
        let at = self.layout().entry_word(position);
        let [word0, word1, state] = [self.word(at)?, self.word(at + 1)?, self.word(at + 2)?];
        Some(Entry { word0, word1, state: State::from_bits(state) })
    }
    /// Returns the hints word, if it is known.
    fn hints(&self) -> Option<Hints> {
        self.word(HINTS).map(Hints::from_bits)
    }
}

/// Words as they were read: one piece for each range of a READ. Nothing is copied.
#[derive(Debug, Clone, Copy)]
pub struct Pieces<'a> {
    layout: Layout,
    pieces: [(usize, &'a [u64]); 2],
}

impl<'a> Pieces<'a> {
    /// Of up to two ranges: the offset in the node in bytes, and the words.
    pub fn new(layout: Layout, first: (usize, &'a [u64]), second: Option<(usize, &'a [u64])>) -> Pieces<'a> {
        let pieces = [first, second.unwrap_or_default()].map(|(offset, words)| (offset / 8, words));
        Pieces { layout, pieces }
    }
}

impl Words for Pieces<'_> {
    fn layout(&self) -> Layout {
        self.layout
    }
    fn word(&self, index: usize) -> Option<u64> {
        self.pieces.iter().find_map(|(start, words)| words.get(index.checked_sub(*start)?).copied())
    }
}

/// An image of a leaf that operations change. Words are unknown until they are [added](Self::add).
#[derive(Debug, Clone)]
pub struct Image {
    layout: Layout,
    words: Vec<u64>,
    /// A bit for each word.
    known: Vec<u64>,
}

impl Words for Image {
    fn layout(&self) -> Layout {
        self.layout
    }
    fn word(&self, index: usize) -> Option<u64> {
        let known = self.known.get(index / 64)? >> (index % 64) & 1 == 1;
        known.then(|| self.words.get(index).copied()).flatten()
    }
}

impl Image {
    /// Makes an image of which nothing is known.
    pub fn new(layout: Layout) -> Image {
        let words = layout.words();
        Image { layout, words: vec![0; words], known: vec![0; words.div_ceil(64)] }
    }
    /// Makes an empty leaf. `lock` is its lock word.
    pub fn empty(layout: Layout, node: &Node, lock: u64) -> Image {
        let mut image = Image::new(layout);
        image.set(LOCK, lock);
        image.fill(&vec![None; layout.span()], node);
        image
    }
    /// Adds words that were read at an offset in the node in bytes. Words beyond the node are ignored.
    pub fn add(&mut self, offset: usize, words: &[u64]) {
        words.iter().enumerate().for_each(|(i, word)| self.set(offset / 8 + i, *word));
    }
    /// Returns the words, if all are known.
    pub fn whole(&self) -> Option<&[u64]> {
        (0..self.words.len()).all(|index| self.word(index).is_some()).then_some(&self.words)
    }
    /// Returns what each entry holds; `None` if an entry is not known.
    pub fn items(&self) -> Option<Vec<Option<Item>>> {
        (0..self.layout.span()).map(|position| self.entry(position).map(|entry| entry.item())).collect()
    }

    pub(super) fn set(&mut self, index: usize, word: u64) {
        if let (Some(at), Some(known)) = (self.words.get_mut(index), self.known.get_mut(index / 64)) {
            *at = word;
            *known |= 1 << (index % 64);
        }
    }
    pub(super) fn set_data(&mut self, position: usize, item: Item) {
        let at = self.layout.entry_word(position);
        self.set(at, item.key.word0);
        self.set(at + 1, item.word1);
    }
    pub(super) fn set_state(&mut self, position: usize, state: State) {
        self.set(self.layout.state_word(position), state.bits());
    }
    /// The words of a range as a WRITE; `None` if one is not known.
    pub(super) fn write(&self, range: std::ops::Range<usize>) -> Option<Write> {
        let offset = range.start * 8;
        let words = range.map(|index| self.word(index)).collect::<Option<_>>()?;
        Some(Write { offset, words })
    }
    /// Makes every word but the lock that of a leaf in this state whose entries hold `items`: hints, header, replicas
    /// and states. Data words are set where an entry holds something.
    pub(super) fn fill(&mut self, items: &[Option<Item>], node: &Node) -> Hints {
        let (layout, seed) = (self.layout, node.seed());
        let hints = Hints::of(layout, items);
        self.set(HINTS, hints.bits());
        self.set(SIBLING, node.sibling_word().bits());
        node.tail().into_iter().zip(HIGH..=HEADER_CHECK).for_each(|(word, index)| self.set(index, word));
        for group in 0..layout.groups() {
            self.set(layout.replica_word(group), node.sibling_word().bits());
        }
        let homes = super::recover::home_sets(layout, items);
        for (position, (item, home)) in items.iter().zip(homes).enumerate() {
            if let Some(item) = item {
                self.set_data(position, *item);
            }
            let at = self.layout.entry_word(position);
            // A vacant entry's data words mean nothing, and may be unknown.
            let [word0, word1] = [at, at + 1].map(|index| self.word(index).unwrap_or(0));
            self.set(at, word0);
            self.set(at + 1, word1);
            let state = State::from_bits(0).with_occupancy(*item).with_home(home);
            self.set_state(position, Entry { word0, word1, state }.checked(position, seed).state);
        }
        hints
    }
}
