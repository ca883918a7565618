//! Where everything is in a leaf, and the ranges to READ.

use super::entry::Key;
use crate::tree::node;
use smallvec::SmallVec;
use std::ops::Range;

/// Words of the header.
pub(super) const HEADER_WORDS: usize = 8;
/// Words of an entry.
pub(super) const ENTRY_WORDS: usize = 3;
/// The lock word of the header.
pub(super) const LOCK: usize = 0;
/// The header's word of the right sibling: the commit word of splits and merges.
pub(super) const SIBLING: usize = 1;
/// The first word of the high key reference; two words of the low key reference follow.
pub(super) const HIGH: usize = 2;
/// The first word of the low key reference.
pub(super) const LOW: usize = 4;
/// The header's own check.
pub(super) const HEADER_CHECK: usize = 6;
/// The hints word.
pub(super) const HINTS: usize = 7;
/// Bytes of an entry.
pub const ENTRY_LEN: usize = ENTRY_WORDS * 8;
/// Bytes of the header.
pub const HEADER_LEN: usize = HEADER_WORDS * 8;
/// Offset of the lock word in bytes.
pub const LOCK_OFFSET: usize = LOCK * 8;
/// Offset of the hints word in bytes.
pub const HINTS_OFFSET: usize = HINTS * 8;
/// Offset of the right sibling's word in bytes.
pub const SIBLING_OFFSET: usize = SIBLING * 8;
/// The smallest and the largest span.
pub const SPANS: std::ops::RangeInclusive<usize> = 8..=512;
/// The smallest and the largest neighbourhood: an entry's hop bitmap has 16 bits.
pub const NEIGHBOURHOODS: std::ops::RangeInclusive<usize> = 2..=16;

const _: () = assert!(HEADER_LEN.is_multiple_of(64) && HINTS + 1 == HEADER_WORDS && HIGH + 4 == HEADER_CHECK);
/// Inner nodes begin with the same words: the skeleton reads lock, sibling and fence keys of either.
const _: () = assert!(SIBLING == node::SIBLING && HIGH == node::HIGH && LOW == node::LOW);
const _: () = assert!(HEADER_CHECK == node::CHECKSUM);

/// Byte ranges of a node to READ: one, or two where the entries wrap around.
pub type Ranges = SmallVec<[Range<usize>; 2]>;

/// The shape of an index's leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    span: usize,
    neighbourhood: usize,
    hash_seed: u64,
}

impl Layout {
    /// The shape with the fewest entries.
    pub const SMALLEST: Layout = Layout { span: *SPANS.start(), neighbourhood: *NEIGHBOURHOODS.start(), hash_seed: 0 };

    /// Describes leaves of `span` entries with neighbourhoods of `neighbourhood` entries, of an index that hashes its
    /// keys with `hash_seed`. `None` if a number is out of [`SPANS`] or [`NEIGHBOURHOODS`].
    pub fn new(span: usize, neighbourhood: usize, hash_seed: u64) -> Option<Layout> {
        let sound = SPANS.contains(&span) && NEIGHBOURHOODS.contains(&neighbourhood) && neighbourhood <= span;
        sound.then_some(Layout { span, neighbourhood, hash_seed })
    }
    /// Returns the number of entries.
    pub const fn span(self) -> usize {
        self.span
    }
    /// Returns the number of entries of a neighbourhood.
    pub const fn neighbourhood(self) -> usize {
        self.neighbourhood
    }
    /// Returns the seed of key hashes.
    pub const fn hash_seed(self) -> u64 {
        self.hash_seed
    }
    /// Returns the number of groups, which is the number of metadata replicas.
    pub const fn groups(self) -> usize {
        self.span.div_ceil(self.neighbourhood)
    }
    /// Returns the words of a node.
    pub const fn words(self) -> usize {
        HEADER_WORDS + self.groups() + self.span * ENTRY_WORDS
    }
    /// Returns the bytes of a node, without padding.
    pub const fn node_len(self) -> usize {
        self.words() * 8
    }
    /// Returns the offset in bytes of an entry's first word.
    pub const fn entry_offset(self, position: usize) -> usize {
        self.entry_word(position) * 8
    }
    /// Returns the offset in bytes of a group's metadata replica.
    pub const fn replica_offset(self, group: usize) -> usize {
        self.replica_word(group) * 8
    }

    pub(super) const fn entry_word(self, position: usize) -> usize {
        HEADER_WORDS + position * ENTRY_WORDS + position / self.neighbourhood + 1
    }
    pub(super) const fn state_word(self, position: usize) -> usize {
        self.entry_word(position) + 2
    }
    pub(super) const fn replica_word(self, group: usize) -> usize {
        HEADER_WORDS + group * (self.neighbourhood * ENTRY_WORDS + 1)
    }

    /// Returns the position that is `distance` entries behind `position`, around the end.
    pub const fn behind(self, position: usize, distance: usize) -> usize {
        (position + distance) % self.span
    }
    /// Returns how many entries `to` is behind `from`, around the end.
    pub const fn distance(self, from: usize, to: usize) -> usize {
        (to + self.span - from) % self.span
    }
    /// Returns the key's home: the first position of its neighbourhood.
    pub fn home(self, key: Key) -> usize {
        self.home_of_hash(key.hash(self.hash_seed))
    }
    pub(super) const fn home_of_hash(self, hash: u64) -> usize {
        ((hash as u128 * self.span as u128) >> 64) as usize
    }
    /// Returns the positions of a neighbourhood.
    pub fn positions(self, home: usize) -> impl Iterator<Item = usize> + Clone {
        (0..self.neighbourhood).map(move |distance| self.behind(home, distance))
    }

    /// Returns the range of one entry, for a speculative READ. It holds no replica.
    pub const fn entry(self, position: usize) -> Range<usize> {
        let at = self.entry_offset(position);
        at..at + ENTRY_LEN
    }
    /// Returns the ranges of a neighbourhood.
    pub fn neighbourhood_ranges(self, home: usize) -> Ranges {
        self.entries(home, self.neighbourhood)
    }
    /// Returns the ranges of `count` entries from `from` on, around the end. At least one metadata replica is in them:
    /// where the entries neither contain nor touch one, the range is extended to the nearest.
    pub fn entries(self, from: usize, count: usize) -> Ranges {
        let from = from % self.span;
        let count = count.clamp(1, self.span);
        let words = |range: Range<usize>| range.start * 8..range.end * 8;
        let (first, last) = (self.first_word(from), from + count - 1);
        if last >= self.span {
            let head = if count == self.span { from } else { count + from - self.span };
            // The head begins with replica 0.
            let head = self.replica_word(0)..self.state_word(head.max(1) - 1) + 1;
            return [words(first..self.words()), words(head)].into_iter().collect();
        }
        let mut range = first..self.state_word(last) + 1;
        let group = from / self.neighbourhood;
        if !from.is_multiple_of(self.neighbourhood) && last / self.neighbourhood == group {
            let before = self.replica_word(group);
            let after = self.replica_word(group + 1);
            if group + 1 < self.groups() && after + 1 - range.end <= range.start - before {
                range.end = after + 1;
            } else {
                range.start = before;
            }
        }
        [words(range)].into_iter().collect()
    }
    /// Returns the range of the whole node.
    pub const fn whole(self) -> Range<usize> {
        0..self.node_len()
    }
    /// An entry's first word, or that of the replica right before it.
    const fn first_word(self, position: usize) -> usize {
        self.entry_word(position) - position.is_multiple_of(self.neighbourhood) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(span: usize, neighbourhood: usize) -> Layout {
        Layout::new(span, neighbourhood, 7).expect("a layout")
    }

    #[test]
    fn offsets_of_a_leaf_do_not_overlap_and_fill_the_node() {
        for span in [8, 9, 15, 64, 100, 512] {
            for h in [2, 3, 8, 16].into_iter().filter(|h| *h <= span) {
                let layout = layout(span, h);
                let mut used = vec![0; layout.words()];
                used[..HEADER_WORDS].fill(1);
                (0..layout.groups()).for_each(|group| used[layout.replica_word(group)] += 1);
                for position in 0..span {
                    let at = layout.entry_word(position);
                    used[at..at + ENTRY_WORDS].iter_mut().for_each(|count| *count += 1);
                    let replica = layout.replica_word(position / h);
                    assert!(replica < at && (position % h != 0 || replica + 1 == at));
                }
                assert!(used.iter().all(|count| *count == 1), "span {span}, neighbourhood {h}");
            }
        }
    }

    #[test]
    fn ranges_hold_their_entries_and_a_replica_and_little_more() {
        for (span, h) in [(8, 2), (8, 8), (13, 4), (64, 8), (65, 16), (512, 16)] {
            let layout = layout(span, h);
            let replicas: Vec<_> = (0..layout.groups()).map(|group| layout.replica_offset(group)).collect();
            for from in 0..span {
                for count in [1, 2, h, h + 3, span - 1, span].into_iter().filter(|count| *count <= span) {
                    let ranges = layout.entries(from, count);
                    assert_eq!(ranges.len(), 1 + usize::from(from + count > span));
                    let holds = |at: usize| ranges.iter().filter(|range| range.contains(&at)).count();
                    for distance in 0..count {
                        let entry = layout.entry(layout.behind(from, distance));
                        assert_eq!((holds(entry.start), holds(entry.end - 8)), (1, 1));
                    }
                    assert!(replicas.iter().any(|at| holds(*at) == 1), "{span} {h} {from} {count} {ranges:?}");
                    let bytes: usize = ranges.iter().map(ExactSizeIterator::len).sum();
                    if count == h && ranges.len() == 1 {
                        assert_eq!(bytes, h * ENTRY_LEN + 8, "{span} {h} {from}");
                    }
                    assert!(ranges.iter().all(|range| range.end <= layout.node_len() && !range.is_empty()));
                    assert!(bytes <= count * ENTRY_LEN + (count / h + 2) * 8 + (h - 1) * ENTRY_LEN);
                }
            }
        }
    }

    #[test]
    fn sizes_of_the_default_leaf() {
        let layout = layout(64, 8);
        assert_eq!((layout.node_len(), layout.groups()), (1664, 8));
        assert_eq!(layout.neighbourhood_ranges(8)[0].len(), 200);
    }
}
