//! FPTable: predicts where the entries of a fingerprint begin in a MainSegment (4.4.2).
//!
//! With `E` entries and `avr = E / 256`, entries of fingerprint `i` are predicted to begin at `avr * i + delta`
//! (formula 1). A *record point* sets `delta` again. 32 record points are inline; further ones overflow.
//!
//! Invariants: a prediction is a hint, and the READ of the predicted entries shows whether it is complete: entries are
//! sorted, so it is complete if it begins with a smaller fingerprint or at the beginning, and ends with a larger one or
//! at the end. A table that was built for the MainSegment never predicts too short a range.
//!
//! In the paper a record point is set where the prediction would be off by half of `avr` (formula 2), with the delta of
//! that place. Here a record point covers as many fingerprints as one delta can approximate. The *tolerance*, which a
//! READ adds on both sides, is as small as the number of record points allows (deviation 10 of
//! docs/protocols/sephash.md). A delta is a signed byte, in units of `q`.

use super::layout::FINGERPRINTS;
use std::ops::Range;

/// Number of inline record points.
pub const INLINE_POINTS: usize = 32;
/// Largest number of record points, including those that overflow.
pub const MAX_POINTS: usize = 48;
/// Words of a table in far memory.
pub const TABLE_WORDS: usize = 2 + MAX_POINTS * 2 / 8;
/// Steps of the binary search for the smallest width.
const HALVINGS: u32 = 12;
/// MainSegments of at most this many entries are read whole.
const SMALL: usize = 24;

/// An FPTable.
#[derive(Debug, Clone, PartialEq)]
pub enum FpTable {
    /// Record points.
    Points(Points),
    /// The naive table, a baseline: where each fingerprint begins.
    Starts(Box<[u32]>),
}

/// Record points of one MainSegment.
#[derive(Debug, Clone, PartialEq)]
pub struct Points {
    len: u32,
    quantum: f32,
    tolerance: f32,
    /// The first fingerprint of each record point, and its delta in quanta.
    points: Vec<(u8, i8)>,
}

impl Points {
    /// Builds the table of a MainSegment where entries of fingerprint `i` begin at `starts[i]`; `starts[256]` is the
    /// end.
    pub fn build(starts: &[u32]) -> Self {
        let len = starts.get(FINGERPRINTS).copied().unwrap_or_default();
        if len as usize <= SMALL {
            return Points { len, quantum: 1.0, tolerance: 0.0, points: Vec::new() };
        }
        let average = len as f32 / FINGERPRINTS as f32;
        let place = |(i, start): (usize, &u32)| *start as f32 - average * i as f32;
        let off: Vec<f32> = starts.iter().take(FINGERPRINTS).enumerate().map(place).collect();
        let farthest = off.iter().fold(0.0, |far: f32, off| far.max(off.abs()));
        let quantum = (farthest / 127.0).max(0.125);
        // At the largest width one record point is enough; at the smallest there are too many.
        let (mut narrow, mut wide) = (0.0, 2.0 * farthest + 1.0);
        let mut points = runs(&off, wide, quantum);
        for _ in 0..HALVINGS {
            let width = f32::midpoint(narrow, wide);
            let finer = runs(&off, width, quantum);
            if finer.len() > MAX_POINTS {
                narrow = width;
            } else {
                (wide, points) = (width, finer);
            }
        }
        let mut built = Points { len, quantum, tolerance: 0.0, points };
        let far = |(i, start): (usize, &u32)| (*start as f32 - built.start(i)).abs();
        let farthest = starts.iter().take(FINGERPRINTS).enumerate().map(far).fold(0.0, f32::max);
        // Slightly more, so that the adjacent entry is fetched too, and for rounding errors.
        built.tolerance = farthest * 1.0001 + 0.01;
        built
    }

    /// Guesses the table of a MainSegment that has grown to `len` entries since, or whose table is unknown.
    pub fn guess(older: Option<&Points>, len: usize) -> Self {
        let scale = |older: &Points| len as f32 / (older.len.max(1)) as f32;
        match older.filter(|older| older.len > 0 && scale(older) < 1.5 && scale(older) > 0.7) {
            Some(older) => Points {
                len: len as u32,
                quantum: older.quantum * scale(older),
                // New entries move a place by at most two standard deviations, in 95% of all cases.
                tolerance: older.tolerance * scale(older) + (len as f32 - older.len as f32).abs().sqrt(),
                points: older.points.clone(),
            },
            None => Points { len: len as u32, quantum: 1.0, tolerance: (len as f32).sqrt() * 1.5, points: Vec::new() },
        }
    }

    fn start(&self, fp: usize) -> f32 {
        let at = self.points.partition_point(|(from, _)| usize::from(*from) <= fp);
        let delta = at.checked_sub(1).and_then(|i| self.points.get(i)).map_or(0, |(_, delta)| *delta);
        self.len as f32 / FINGERPRINTS as f32 * fp as f32 + f32::from(delta) * self.quantum
    }

    fn predict(&self, fp: u8) -> Range<usize> {
        let len = self.len as usize;
        if len <= SMALL {
            return 0..len;
        }
        let low = (self.start(usize::from(fp)) - self.tolerance).floor().max(0.0) as usize;
        let high = match fp {
            u8::MAX => len,
            _ => (self.start(usize::from(fp) + 1) + self.tolerance).ceil().max(0.0) as usize,
        };
        let low = low.min(len - 1);
        low..high.clamp(low + 1, len)
    }

    /// Encodes the table as words of far memory.
    pub fn encode(&self) -> [u64; TABLE_WORDS] {
        let mut words = [0; TABLE_WORDS];
        words[0] = u64::from(self.len) | (self.points.len() as u64) << 32;
        words[1] = u64::from(self.quantum.to_bits()) | u64::from(self.tolerance.to_bits()) << 32;
        for (i, (fp, delta)) in self.points.iter().take(MAX_POINTS).enumerate() {
            words[2 + i / 4] |= (u64::from(*fp) | u64::from(*delta as u8) << 8) << (i % 4 * 16);
        }
        words
    }

    /// Decodes words of far memory; `None` if they are no table of `len` entries.
    pub fn decode(words: &[u64], len: usize) -> Option<Self> {
        let &[head, scales, ref points @ ..] = words.get(..TABLE_WORDS)? else { return None };
        let (quantum, tolerance) = (f32::from_bits(scales as u32), f32::from_bits((scales >> 32) as u32));
        let sane = |x: f32| x.is_finite() && (0.0..=1e9).contains(&x);
        let count = (head >> 32) as usize;
        if head as u32 as usize != len || count > MAX_POINTS || !sane(quantum) || !sane(tolerance) {
            return None;
        }
        let point = |i: usize| {
            let bits = points.get(i / 4).copied().unwrap_or_default() >> (i % 4 * 16);
            (bits as u8, (bits >> 8) as u8 as i8)
        };
        Some(Points { len: head as u32, quantum, tolerance, points: (0..count).map(point).collect() })
    }

    /// Number of record points.
    pub fn count(&self) -> usize {
        self.points.len()
    }
    /// Number of record points that overflow.
    pub fn overflow(&self) -> usize {
        self.points.len().saturating_sub(INLINE_POINTS)
    }
}

/// Returns record points such that within each run no two offsets differ by more than `width`; the delta is the middle
/// of the run.
fn runs(off: &[f32], width: f32, quantum: f32) -> Vec<(u8, i8)> {
    let mut points = Vec::new();
    let mut run: Option<(u8, f32, f32)> = None;
    let mut end = |(from, low, high): (u8, f32, f32)| {
        points.push((from, (f32::midpoint(low, high) / quantum).round().clamp(-127.0, 127.0) as i8));
    };
    for (i, off) in (0_u8..=u8::MAX).zip(off) {
        run = Some(match run {
            Some((from, low, high)) if high.max(*off) - low.min(*off) <= width => (from, low.min(*off), high.max(*off)),
            before => {
                before.into_iter().for_each(&mut end);
                (i, *off, *off)
            }
        });
    }
    run.into_iter().for_each(end);
    points
}

impl FpTable {
    /// Returns the entries that a lookup of a fingerprint READs first.
    pub fn predict(&self, fp: u8) -> Range<usize> {
        match self {
            FpTable::Points(points) => points.predict(fp),
            FpTable::Starts(starts) => {
                // With the adjacent entries, which prove that the range is complete.
                let at = |i: usize| starts.get(i).map_or(0, |at| *at as usize);
                let (from, to, end) = (at(usize::from(fp)), at(usize::from(fp) + 1), at(FINGERPRINTS));
                from.saturating_sub(1)..to.max(from).saturating_add(1).min(end)
            }
        }
    }

    /// Bytes of its content in a compute node's cache, without the containers.
    pub fn bytes(&self) -> u64 {
        match self {
            // Length, quantum, tolerance and count; two bytes for each point.
            FpTable::Points(points) => 16 + points.points.len() as u64 * 2,
            // One count for each fingerprint: one byte in the paper, whose counts wrap at 256; two here.
            FpTable::Starts(_) => 2 * FINGERPRINTS as u64,
        }
    }
}

/// Returns where the entries of each fingerprint begin: 256 places and the end.
pub fn starts(fps: impl Iterator<Item = u8>) -> Vec<u32> {
    let mut starts = vec![0_u32; FINGERPRINTS + 1];
    for fp in fps {
        starts[usize::from(fp) + 1] += 1;
    }
    for i in 1..=FINGERPRINTS {
        starts[i] += starts[i - 1];
    }
    starts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(counts: impl Fn(u64) -> u64, entries: u64) -> (Vec<u32>, Points) {
        let mut x = 1_u64;
        let fps = (0..entries).map(|i| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            counts(i ^ x >> 33) as u8
        });
        let starts = starts(fps.collect::<Vec<_>>().into_iter());
        let points = Points::build(&starts);
        (starts, points)
    }

    fn assert_covers(starts: &[u32], points: &Points) -> usize {
        let mut total = 0;
        for fp in 0..FINGERPRINTS {
            let range = FpTable::Points(points.clone()).predict(fp as u8);
            let (from, to) = (starts[fp] as usize, starts[fp + 1] as usize);
            let whole = (range.start == 0 || range.start < from)
                && (range.end == starts[FINGERPRINTS] as usize || range.end > to);
            assert!(whole, "{fp}: {range:?} for {from}..{to}");
            total += range.len();
        }
        total / FINGERPRINTS
    }

    #[test]
    fn predictions_cover_all_entries_of_a_fingerprint() {
        for entries in [0, 1, 20, 100, 904, 3000, 7232, 60_000] {
            let (starts, points) = table(|x| x, entries);
            let read = assert_covers(&starts, &points);
            assert!(points.count() <= MAX_POINTS && (entries > SMALL as u64 || points.count() == 0));
            assert!(entries != 7232 || read <= 42, "{read} entries of {entries}");
            assert_eq!(Points::decode(&points.encode(), entries as usize), Some(points.clone()));
            println!("{entries}: {} points, {read} entries to read on average", points.count());
        }
        // One fingerprint of more entries than a byte counts, and a few others.
        for (entries, special) in [(1000, 5), (5000, 255), (300, 0)] {
            let (starts, points) = table(|x| if x % 16 == 0 { x >> 8 } else { special }, entries);
            assert_covers(&starts, &points);
        }
    }

    #[test]
    fn decode_refuses_damaged_tables() {
        let (_, points) = table(|x| x, 500);
        let mut words = points.encode();
        assert_eq!(Points::decode(&words, 501), None);
        words[0] |= 0xFF << 40;
        assert_eq!(Points::decode(&words, 500), None);
        let mut words = points.encode();
        words[1] = u64::MAX;
        assert_eq!(Points::decode(&words, 500), None);
        assert_eq!(Points::decode(&words[..3], 500), None);
    }

    #[test]
    fn guesses_cover_most_fingerprints_of_a_grown_segment() {
        let (_, points) = table(|x| x, 5000);
        let (grown, _) = table(|x| x, 5113);
        let guess = Points::guess(Some(&points), 5113);
        let short = (0..FINGERPRINTS).filter(|fp| {
            let range = guess.predict(*fp as u8);
            range.start > grown[*fp] as usize || range.end < grown[*fp + 1] as usize
        });
        assert!(short.count() < 40);
        assert_eq!(Points::guess(None, 10).predict(9), 0..10);
    }
}
