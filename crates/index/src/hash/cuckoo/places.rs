//! The places of a key: three buckets of a table, and their order.
//!
//! Each place is a fraction of 1, computed from the key's hash; its bucket in a table of `n` buckets is that fraction
//! of `n`. So the entries of a bucket move to two buckets of a table that is twice as large, and an entry that moves
//! keeps its place.
//!
//! Invariants: a key's places are in three different buckets of any table. An entry moves forward only, in the order of
//! [`spots`].

use super::Table;
use crate::keyhash::KeyHash;
use crate::slotted::geometry::{REGION, Segment, place};
use farindex_fabric::RemotePtr;
use smallvec::SmallVec;

/// Number of places of a key.
pub const WAYS: usize = 3;
/// Maximum number of slots of a bucket.
pub const MAX_ASSOCIATIVITY: usize = 4;

const SIXTEENTH: u64 = 1 << 60;
// Places that are a sixteenth of the table apart are in different buckets, if the table has at least sixteen buckets.
const _: () = assert!(REGION as usize / MAX_ASSOCIATIVITY >= 16);

/// Returns a key's places as fractions of 2^64: the second is 2/16 to 8/16 behind the first, the third 9/16 to 15/16.
fn fractions(hash: KeyHash) -> [u64; WAYS] {
    let part = |seed: u64, of: u64| ((u128::from(hash.rehash(seed)) * u128::from(of)) >> 64) as u64;
    let first = place(hash);
    let second = 2 * SIXTEENTH + part(0xA076_1D64_78BD_642F, 6 * SIXTEENTH);
    let third = 9 * SIXTEENTH + part(0xE703_7ED1_A0B4_28DB, 6 * SIXTEENTH);
    [first, first.wrapping_add(second), first.wrapping_add(third)]
}

/// Returns the first slots of the key's buckets, by place.
pub fn first_slots(hash: KeyHash, segment: &Segment, associativity: u64) -> [u64; WAYS] {
    let buckets = u128::from(segment.slots() / associativity);
    fractions(hash).map(|fraction| ((u128::from(fraction) * buckets) >> 64) as u64 * associativity)
}

/// Returns the key's place to which this slot belongs.
pub fn place_of(hash: KeyHash, segment: &Segment, associativity: u64, slot: u64) -> Option<usize> {
    let bucket = slot - slot % associativity;
    first_slots(hash, segment, associativity).iter().position(|first| *first == bucket)
}

/// One place of a key in one table: a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spot {
    /// The table.
    pub segment: Segment,
    /// Number of the key's place.
    pub place: usize,
    /// The bucket's first slot.
    pub first: u64,
    /// Whether this worker knows of a newer table.
    pub older: bool,
}

impl Spot {
    /// Returns its address.
    pub fn at(&self) -> RemotePtr {
        self.segment.slot(self.first)
    }
    /// Returns its region.
    pub fn region(&self) -> u64 {
        self.first / REGION
    }
}

/// All spots of a key, in the order in which its entry moves: by place, and for each place first the table, then the
/// next table.
pub type Spots = SmallVec<[Spot; 2 * WAYS]>;

/// Returns the [`Spots`] of a key.
pub fn spots(table: &Table, hash: KeyHash) -> Spots {
    let geometry = table.geometry();
    let by_segment: SmallVec<[_; 2]> =
        geometry.segments().map(|segment| (segment, first_slots(hash, &segment, table.own.associativity))).collect();
    let newest = by_segment.len() - 1;
    let mut spots = Spots::new();
    for place in 0..WAYS {
        for (i, (segment, firsts)) in by_segment.iter().enumerate() {
            spots.push(Spot { segment: *segment, place, first: firsts[place], older: i < newest });
        }
    }
    spots
}

#[cfg(test)]
mod tests {
    use super::*;
    use farindex_fabric::NodeId;

    #[test]
    fn places_are_distinct_and_kept_when_the_table_grows() {
        for associativity in [1, 4] {
            for regions in [1, 2, 5] {
                let of = |regions, generation| Segment {
                    generation,
                    start: RemotePtr::new(NodeId::new(0), 64),
                    regions,
                    width: 8,
                };
                let (small, large) = (of(regions, 0), of(regions * 2, 1));
                let mut used = vec![0; small.slots() as usize];
                for i in 0..20_000u64 {
                    let hash = KeyHash::unseeded(&i.to_le_bytes());
                    let [a, b, c] = first_slots(hash, &small, associativity);
                    assert!(a != b && b != c && a != c, "{a} {b} {c}");
                    let larger = first_slots(hash, &large, associativity);
                    for (place, (first, grown)) in [a, b, c].into_iter().zip(larger).enumerate() {
                        used[first as usize] += 1;
                        assert_eq!(grown / associativity / 2, first / associativity);
                        assert_eq!(place_of(hash, &small, associativity, first + associativity - 1), Some(place));
                    }
                }
                let mean = 60_000 / (small.slots() / associativity);
                let counts = used.iter().step_by(associativity as usize);
                assert!(counts.clone().all(|n| *n > mean / 2 && *n < mean * 2), "{used:?}");
            }
        }
    }
}
