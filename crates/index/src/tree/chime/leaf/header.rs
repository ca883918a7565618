//! A leaf's header, and what identifies a state of a leaf.

use super::entry::Seed;
use super::image::Words;
use super::layout::{HEADER_CHECK, HIGH, LOW, SIBLING};
use crate::tree::fence::Fence;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const DEAD: u32 = 63;
const SIBLING_BITS: u64 = (1 << 48) - 1;

/// The word of the right sibling, in the header and in each metadata replica: 48 bits of its address, and in bit 63
/// whether the leaf is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SiblingWord(u64);

impl SiblingWord {
    /// Of a leaf with this right sibling (48 bits; 0 for none).
    pub const fn new(sibling: u64, dead: bool) -> SiblingWord {
        SiblingWord(sibling & SIBLING_BITS | (dead as u64) << DEAD)
    }
    /// Reads the header's word; `None` if it is not known.
    pub fn read(words: &impl Words) -> Option<SiblingWord> {
        words.word(SIBLING).map(SiblingWord)
    }
    /// Interprets a word.
    pub const fn from_bits(bits: u64) -> SiblingWord {
        SiblingWord(bits)
    }
    /// Returns the word.
    pub const fn bits(self) -> u64 {
        self.0
    }
    /// Returns the 48 bits of the right sibling's address.
    pub const fn sibling(self) -> u64 {
        self.0 & SIBLING_BITS
    }
    /// Has the leaf been merged into its left neighbour?
    pub const fn dead(self) -> bool {
        self.0 >> DEAD == 1
    }
}

/// A state of a leaf, as far as it identifies what belongs there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// The index tag.
    pub tag: u64,
    /// The leaf's own address.
    pub address: u64,
    /// The right sibling (48 bits; 0 for none).
    pub sibling: u64,
    /// The reference to the low key, in the tree's format.
    pub low: [u64; 2],
    /// The reference to the high key.
    pub high: [u64; 2],
}

impl Node {
    /// Computes the seed of the entries' checks. A leaf has another seed after a split, after a merge, and when its
    /// memory belongs to another node.
    pub fn seed(&self) -> Seed {
        let [low, high] = [self.low, self.high].map(|[word, tag]| Fence { word, tag }.identity());
        let words = [self.address, self.sibling, low[0], low[1], high[0], high[1]];
        let mut bytes = [0; 48];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        Seed(xxh3_64_with_seed(&bytes, self.tag))
    }
    /// Is this the same state, wherever the blocks of long fence keys lie?
    pub fn is(&self, other: &Node) -> bool {
        self.seed() == other.seed()
    }
    /// Returns the word of the right sibling while the leaf is alive.
    pub const fn sibling_word(&self) -> SiblingWord {
        SiblingWord::new(self.sibling, false)
    }
    /// Returns what a reader expects.
    pub fn expected(&self) -> Expected {
        Expected { seed: self.seed(), sibling: self.sibling_word() }
    }
    /// The header's words from the high key on: the two references, and the header's check.
    pub(super) fn tail(&self) -> [u64; 5] {
        let mut references = [0; 32];
        let words = [self.low[0], self.high[0], self.seed().0, 0];
        references.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        [self.high[0], self.high[1], self.low[0], self.low[1], xxh3_64(&references)]
    }
    /// Reads the header of the leaf at `address`; `None` if a word is not known, or if the header is torn, dead or
    /// another node's.
    pub fn read(words: &impl Words, tag: u64, address: u64) -> Option<Node> {
        let sibling = SiblingWord::read(words)?;
        let reference = |at| Some([words.word(at)?, words.word(at + 1)?]);
        let (low, high) = (reference(LOW)?, reference(HIGH)?);
        let node = Node { tag, address, sibling: sibling.sibling(), low, high };
        let sound = sibling == node.sibling_word() && words.word(HEADER_CHECK)? == node.tail()[HEADER_CHECK - HIGH];
        sound.then_some(node)
    }
    /// Identifies the state to which a leaf is to be recovered: that of its sibling word, which commits splits and
    /// merges. `high` is the low key of that sibling, or what the tree has for none: a crash may have left the old high
    /// key. The low key never changes. `None` if a word is not known.
    pub fn after_crash(words: &impl Words, tag: u64, address: u64, high: [u64; 2]) -> Option<Node> {
        let low = [words.word(LOW)?, words.word(LOW + 1)?];
        Some(Node { tag, address, sibling: SiblingWord::read(words)?.sibling(), low, high })
    }
}

/// What a reader expects of a leaf, from the parent that led there, or from the leaf's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    /// The seed of the checks.
    pub seed: Seed,
    /// The word of the right sibling.
    pub sibling: SiblingWord,
}
