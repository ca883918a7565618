//! The hints word: the vacancy bitmap.
//!
//! A bit stands for one entry, or, if the span is greater than 64, for as many as it takes, as evenly as possible: entry
//! `p` has bit `p * bits / span`. A set bit means that one of its entries is vacant. The word is apart from the lock, so
//! that a crash of the lock's holder does not lose it, and there is no argmax in it: the fence keys of the header decide
//! to which node of a half-split a key belongs.
//!
//! Hints choose what an insert READs. Nothing that an operation decides depends on them: a crash may leave them as they
//! were before the operation.

use super::entry::Item;
use super::image::{Image, Words};
use super::layout::Layout;
use std::ops::Range;

const VACANCY_BITS: usize = 64;

/// The hints word of a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hints(u64);

/// Returns the bits of the vacancy bitmap that a layout uses.
fn bits(layout: Layout) -> usize {
    layout.span().min(VACANCY_BITS)
}

impl Hints {
    /// Interprets a word.
    pub const fn from_bits(bits: u64) -> Hints {
        Hints(bits)
    }
    /// Returns the word.
    pub const fn bits(self) -> u64 {
        self.0
    }
    /// Returns the positions that share a bit with this one.
    pub fn covered(layout: Layout, position: usize) -> Range<usize> {
        let (span, bits) = (layout.span(), bits(layout));
        let bit = position * bits / span;
        (bit * span).div_ceil(bits)..((bit + 1) * span).div_ceil(bits)
    }
    /// May the entry, or one that shares its bit, be vacant?
    pub fn may_be_vacant(self, layout: Layout, position: usize) -> bool {
        self.0 >> (position * bits(layout) / layout.span()) & 1 == 1
    }
    fn with_vacancy(self, layout: Layout, position: usize, vacant: bool) -> Hints {
        let bit = 1 << (position * bits(layout) / layout.span());
        Hints(if vacant { self.0 | bit } else { self.0 & !bit })
    }
    /// The hints after the entry has changed, as far as the image knows the entries that share its bit. An unknown one
    /// counts as vacant.
    pub(super) fn after_change(self, image: &Image, position: usize) -> Hints {
        let layout = image.layout();
        let vacant = |at| image.entry(at).is_none_or(|entry| !entry.state.occupied());
        self.with_vacancy(layout, position, Hints::covered(layout, position).any(vacant))
    }
    /// Derives the hints from what the entries hold.
    pub fn of(layout: Layout, items: &[Option<Item>]) -> Hints {
        let mut hints = Hints(0);
        for (position, _) in items.iter().enumerate().filter(|(_, item)| item.is_none()) {
            hints = hints.with_vacancy(layout, position, true);
        }
        hints
    }

    /// Returns the entries that an insert must READ: the first position, which is the key's home, and their number.
    /// They are the neighbourhood, all of which must be searched for the key, and the hop range: up to the first
    /// vacancy, with the entries that share its bit. Every entry that may have to hop, and the home of every such
    /// entry, lies between the key's home and that vacancy.
    pub fn insert_range(self, layout: Layout, home: usize) -> (usize, usize) {
        let least = layout.neighbourhood();
        let vacancy = (0..layout.span()).find(|d| self.may_be_vacant(layout, layout.behind(home, *d)));
        let Some(first) = vacancy else { return (home, layout.span()) };
        let at = layout.behind(home, first);
        let end = first + Hints::covered(layout, at).end - at;
        (home, end.max(least).min(layout.span()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::chime::leaf::layout::SPANS;

    #[test]
    fn vacancy_bits_cover_every_entry_as_evenly_as_possible() {
        for span in SPANS {
            let layout = Layout::new(span, 8, 0).expect("a layout");
            let mut at = 0;
            let mut sizes = Vec::new();
            while at < span {
                let covered = Hints::covered(layout, at);
                assert_eq!(covered.start, at, "span {span}");
                assert!(covered.clone().all(|position| Hints::covered(layout, position) == covered));
                sizes.push(covered.len());
                at = covered.end;
            }
            assert_eq!((at, sizes.len()), (span, span.min(VACANCY_BITS)));
            let (least, most) = (sizes.iter().min().copied(), sizes.iter().max().copied());
            assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 1), "span {span}: {sizes:?}");
        }
    }

    #[test]
    fn insert_reads_up_to_the_first_vacancy() {
        let layout = Layout::new(512, 8, 0).expect("a layout");
        let hints = Hints::from_bits(0);
        assert_eq!(hints.insert_range(layout, 3), (3, 512));
        let hints = hints.with_vacancy(layout, 100, true);
        let covered = Hints::covered(layout, 100);
        assert_eq!(hints.insert_range(layout, 90), (90, covered.end - 90));
        assert_eq!(hints.insert_range(layout, 101), (101, 8.max(covered.end - 101)));
        assert!(!hints.may_be_vacant(layout, covered.end) && hints.may_be_vacant(layout, covered.start));
    }
}
