//! The MainSegment: entries sorted by fingerprint, written once.
//!
//! Invariants: the WRITE of a MainSegment has completed before anything names it, and a MainSegment never changes. Its
//! entries ascend by fingerprint. Its head holds the FPTable of its entries.

use super::TableKind;
use super::fptable::{FpTable, Points, TABLE_WORDS, starts};
use super::layout::{Entry, FINGERPRINTS, GROUP, GROUP_WORDS, fp2_in, main_word, main_words};
use farindex_fabric::{Buf, Endpoint};
use std::ops::Range;

/// An entry and its second fingerprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item {
    /// The entry.
    pub entry: Entry,
    /// The second fingerprint.
    pub fp2: u8,
}

/// Bytes before the entries.
pub const fn head_len(kind: TableKind) -> usize {
    match kind {
        TableKind::Naive => (FINGERPRINTS * 4 + 8).next_multiple_of(64),
        TableKind::Points | TableKind::Off => (TABLE_WORDS * 8).next_multiple_of(64),
    }
}

/// Bytes of a MainSegment with `len` entries.
pub const fn bytes(kind: TableKind, len: usize) -> u64 {
    (head_len(kind) + main_words(len) * 8) as u64
}

/// Builds the FPTable of sorted items.
pub fn table_of(kind: TableKind, items: &[Item]) -> FpTable {
    let starts = starts(items.iter().map(|item| item.entry.fp));
    match kind {
        TableKind::Naive => FpTable::Starts(starts.into()),
        TableKind::Points | TableKind::Off => FpTable::Points(Points::build(&starts)),
    }
}

/// Encodes a MainSegment of `items`, which are sorted by fingerprint.
pub fn encode(endpoint: &Endpoint, kind: TableKind, table: &FpTable, items: &[Item]) -> Buf {
    let mut buf = endpoint.buf(bytes(kind, items.len()) as usize);
    let (head, groups) = buf.words_mut().split_at_mut(head_len(kind) / 8);
    head.fill(0);
    match table {
        FpTable::Points(points) => head[..TABLE_WORDS].copy_from_slice(&points.encode()),
        FpTable::Starts(starts) => {
            for (i, start) in starts.iter().enumerate() {
                head[i / 2] |= u64::from(*start) << (i % 2 * 32);
            }
        }
    }
    for (group, items) in groups.chunks_mut(GROUP_WORDS).zip(items.chunks(GROUP)) {
        let mut fp2s = [0; 8];
        for (i, item) in items.iter().enumerate() {
            // The sign has no meaning in a MainSegment.
            group[i] = item.entry.encode(1);
            fp2s[i] = item.fp2;
        }
        if let Some(last) = group.get_mut(items.len()) {
            *last = u64::from_le_bytes(fp2s);
        }
    }
    buf
}

/// Decodes the FPTable from a head that was READ.
pub fn decode_table(kind: TableKind, head: &[u64], len: usize) -> Option<FpTable> {
    match kind {
        TableKind::Points | TableKind::Off => Points::decode(head, len).map(FpTable::Points),
        TableKind::Naive => {
            let word = |i: usize| head.get(i / 2).map(|word| (word >> (i % 2 * 32)) as u32);
            let starts: Option<Box<[u32]>> = (0..=FINGERPRINTS).map(word).collect();
            let starts = starts?;
            let sane = starts.is_sorted() && starts.last().is_some_and(|end| *end as usize == len);
            sane.then_some(FpTable::Starts(starts))
        }
    }
}

/// Returns the number of entries that the head of a MainSegment states.
pub fn len_in(kind: TableKind, head: &[u64]) -> usize {
    let at = match kind {
        TableKind::Points | TableKind::Off => 0,
        TableKind::Naive => FINGERPRINTS / 2,
    };
    head.get(at).map_or(0, |word| *word as u32 as usize)
}

/// Returns the READ of these entries: its byte offset in the MainSegment, its length in bytes, and the entries that it
/// covers.
pub fn read_of(kind: TableKind, range: &Range<usize>, len: usize) -> (u64, usize, Range<usize>) {
    let first = range.start.min(len);
    // The second fingerprints of a group lie behind its entries.
    let end = range.end.next_multiple_of(GROUP).min(len).max(first);
    let from = main_word(first) + first % GROUP;
    ((head_len(kind) + from * 8) as u64, (main_words(end) - from) * 8, first..end)
}

/// Decodes the items that such a READ covers.
pub fn items(words: &[u64], brings: Range<usize>) -> impl Iterator<Item = Item> {
    let mut rest = words;
    (brings.start / GROUP..brings.end.div_ceil(GROUP)).flat_map(move |group| {
        let first = brings.start.saturating_sub(group * GROUP);
        let count = (brings.end - group * GROUP).min(GROUP) - first;
        let (words, behind) = rest.split_at_checked(count + 1).unwrap_or((rest, &[]));
        rest = behind;
        let (fp2s, entries) = words.split_last().map_or((0, &[][..]), |(last, entries)| (*last, entries));
        let item = move |(i, word): (usize, &u64)| Item { entry: Entry::decode(*word), fp2: fp2_in(fp2s, first + i) };
        entries.iter().enumerate().map(item)
    })
}

/// Returns the byte offset of an entry's word in its MainSegment.
pub const fn offset_of(kind: TableKind, i: usize) -> u64 {
    (head_len(kind) + (main_word(i) + i % GROUP) * 8) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use farindex_fabric::{Fabric, MemoryFabric, NodeId, RemotePtr};

    #[test]
    fn encoded_items_are_read_back_in_any_range() {
        let fabric = MemoryFabric::new(1, 1 << 16).unwrap();
        let endpoint = fabric.connect(&fabric.new_identity()).unwrap();
        for kind in [TableKind::Points, TableKind::Naive] {
            for len in [0, 1, 7, 8, 9, 113, 500] {
                let item = |i: usize| Item {
                    entry: Entry {
                        dep: (i % 16) as u8,
                        len: (i % 8) as u64,
                        fp: (i * 256 / len.max(1)) as u8,
                        ptr: RemotePtr::new(NodeId::new(0), 64 * i as u64 + 64),
                    },
                    fp2: (i * 7) as u8,
                };
                let all: Vec<Item> = (0..len).map(item).collect();
                let table = table_of(kind, &all);
                let buf = encode(&endpoint, kind, &table, &all);
                assert_eq!(buf.len() as u64, bytes(kind, len));
                assert_eq!(decode_table(kind, buf.words(), len), Some(table));
                assert_eq!(decode_table(kind, buf.words(), len + 1), None);
                assert_eq!(len_in(kind, buf.words()), len);
                for range in [0..len, len / 3..len / 2, len / 2..len / 2 + 1, len..len] {
                    let (at, read, brings) = read_of(kind, &range, len);
                    let words = &buf.words()[at as usize / 8..(at as usize + read) / 8];
                    let got: Vec<Item> = items(words, brings.clone()).collect();
                    assert_eq!(got, all[brings.clone()]);
                    assert!(
                        range.is_empty() || range.end > len || brings.start <= range.start && range.end <= brings.end
                    );
                    for i in brings {
                        let word = buf.words()[offset_of(kind, i) as usize / 8];
                        assert_eq!(Entry::decode(word), all[i].entry);
                    }
                }
            }
        }
    }
}
