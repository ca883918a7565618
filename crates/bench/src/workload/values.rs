//! Values that prove themselves.
//!
//! Invariants: a value is a function of its key's number and of a nonce drawn for the write, and says so in its own
//! bytes; it does not depend on the seed, so processes verify each other's.
//!
//! | Bytes | Layout | What passes unnoticed |
//! |---|---|---|
//! | 0 | nothing | everything; only presence is verified |
//! | 1 | 8 bits of check over the key | 1 in 256 values of other keys; versions look alike |
//! | 2 to 7 | 8-bit nonce, then check bits over key and nonce | 1 in 2^(8 (n - 1)) |
//! | 8 | 24-bit nonce, 40 bits of check over key and nonce | 1 in 2^40 |
//! | more | that word, then words that are each a bijection of it | as for 8; mixing two versions by whole words, never |
//!
//! Where sizes vary, the length is a function of the first word as well, so a value that was cut is found out. (Between
//! sizes that both lie below 8 a cut is found by the check bits alone.)

use super::{below, mix64};
use std::fmt;

const CHECK_BITS: u32 = 40;

/// A range of lengths or numbers, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeRange {
    /// The smallest.
    pub min: usize,
    /// The largest.
    pub max: usize,
}

/// How long values are, in bytes.
pub type ValueSize = SizeRange;

impl SizeRange {
    /// One size alone.
    pub const fn fixed(size: usize) -> Self {
        SizeRange { min: size, max: size }
    }
    /// Returns the size for a uniform 64-bit draw; every size of the range is equally likely.
    #[inline]
    pub const fn draw(self, draw: u64) -> usize {
        let SizeRange { min, max } = self;
        // An inverted range is refused by the plan.
        min + below(draw, max.saturating_sub(min) as u64 + 1) as usize
    }
}

impl fmt::Display for SizeRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.min == self.max {
            true => write!(f, "{}", self.min),
            false => write!(f, "{}..{}", self.min, self.max),
        }
    }
}

/// What is wrong with a value that an index returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueFault {
    /// Not of a length that any value has, or not of the length that its first word asks for.
    Length {
        /// What came.
        got: usize,
    },
    /// The check does not match: the value of another key, or no value at all.
    Foreign,
    /// The first word is this key's, a later one is not: two versions mixed.
    Torn {
        /// First byte of the first word that does not belong.
        at: usize,
    },
}

impl fmt::Display for ValueFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValueFault::Length { got } => write!(f, "a value of {got} bytes, a length that was never written"),
            ValueFault::Foreign => write!(f, "a value that was never written under this key"),
            ValueFault::Torn { at } => write!(f, "a value torn at byte {at}"),
        }
    }
}

/// Makes and verifies values.
#[derive(Debug, Clone, Copy)]
pub struct Values {
    size: ValueSize,
}

impl Values {
    /// Values of these sizes.
    pub fn new(size: ValueSize) -> Self {
        Values { size: ValueSize { min: size.min.min(size.max), max: size.max } }
    }
    /// The longest, which is how long the buffer for [`fill`](Self::fill) must be.
    pub fn longest(self) -> usize {
        self.size.max
    }

    fn check(number: u64, nonce: u64) -> u64 {
        mix64(number.wrapping_mul(0xd6e8_feb8_6659_fd93) ^ nonce.rotate_right(24)) >> (64 - CHECK_BITS)
    }
    fn length(self, word: u64) -> usize {
        let ValueSize { min, max } = self.size;
        match min == max {
            true => min,
            false => self.size.draw(mix64(word)),
        }
    }
    /// Word `i` of the value that begins with `word`: a bijection of it, because the factor is odd.
    fn later(word: u64, i: u64) -> u64 {
        (word ^ i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }
    fn short(number: u64, nonce: u8, out: &mut [u8]) {
        match out {
            [] => {}
            [only] => *only = Self::check(number, 0) as u8,
            [first, rest @ ..] => {
                *first = nonce;
                let check = Self::check(number, u64::from(nonce)).to_le_bytes();
                // At most six bytes are wanted and five are there: the sixth repeats the first.
                for (i, byte) in rest.iter_mut().enumerate() {
                    *byte = check[i % (CHECK_BITS / 8) as usize];
                }
            }
        }
    }

    /// Writes the value of key `number` for this draw into `buf` and returns it.
    #[inline]
    pub fn fill(self, number: u64, draw: u64, buf: &mut [u8]) -> &[u8] {
        let nonce = draw >> CHECK_BITS;
        let word = nonce << CHECK_BITS | Self::check(number, nonce);
        let len = self.length(word).min(buf.len());
        let out = &mut buf[..len];
        if len < 8 {
            Self::short(number, nonce as u8, out);
            return out;
        }
        let (chunks, tail) = out.as_chunks_mut::<8>();
        for (i, chunk) in chunks.iter_mut().enumerate() {
            *chunk = if i == 0 { word } else { Self::later(word, i as u64) }.to_le_bytes();
        }
        // High bytes, because they depend on every bit of the first word.
        let last = Self::later(word, chunks.len() as u64).to_be_bytes();
        tail.copy_from_slice(&last[..tail.len()]);
        out
    }

    /// Is this a value that was written under key `number`?
    #[inline]
    pub fn verify(self, number: u64, value: &[u8]) -> Result<(), ValueFault> {
        let got = value.len();
        if !(self.size.min..=self.size.max).contains(&got) {
            return Err(ValueFault::Length { got });
        }
        let (chunks, tail) = value.as_chunks::<8>();
        let Some((first, rest)) = chunks.split_first() else {
            let mut want = [0; 8];
            let nonce = value.first().copied().unwrap_or_default();
            Self::short(number, nonce, &mut want[..got]);
            return if want[..got] == *value { Ok(()) } else { Err(ValueFault::Foreign) };
        };
        let word = u64::from_le_bytes(*first);
        if word & ((1 << CHECK_BITS) - 1) != Self::check(number, word >> CHECK_BITS) {
            return Err(ValueFault::Foreign);
        }
        if self.length(word) != got {
            return Err(ValueFault::Length { got });
        }
        // One pass without branches, so that long values cost a multiplication for each word.
        let differs =
            rest.iter().zip(1..).fold(0, |sum, (chunk, i)| sum | (u64::from_le_bytes(*chunk) ^ Self::later(word, i)));
        let last = Self::later(word, chunks.len() as u64).to_be_bytes();
        if differs == 0 && last[..tail.len()] == *tail {
            return Ok(());
        }
        let torn = rest.iter().zip(1..).find(|(chunk, i)| u64::from_le_bytes(**chunk) != Self::later(word, *i));
        Err(ValueFault::Torn { at: torn.map_or(chunks.len() as u64, |(_, i)| i) as usize * 8 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_drawn_uniformly_from_both_ends_on() {
        let range = SizeRange { min: 1, max: 100 };
        let mut stream = crate::workload::Stream::new(5, 0, 0);
        let mut counts = [0u32; 101];
        for _ in 0..200_000 {
            counts[range.draw(stream.value())] += 1;
        }
        assert_eq!(counts[0], 0);
        let chi: f64 = counts[1..].iter().map(|&count| (f64::from(count) - 2000.0).powi(2) / 2000.0).sum();
        assert!((chi - 99.0).abs() < 5.0 * (2.0f64 * 99.0).sqrt(), "{chi} with 99 degrees of freedom");
        assert_eq!((SizeRange::fixed(7).draw(u64::MAX), range.draw(u64::MAX), range.draw(0)), (7, 100, 1));
    }

    fn value(values: Values, number: u64, draw: u64) -> Vec<u8> {
        let mut buf = vec![0; values.longest()];
        values.fill(number, draw, &mut buf).to_vec()
    }

    #[test]
    fn a_value_proves_itself_at_every_size() {
        for (min, max) in (0..70).map(|n| (n, n)).chain([(0, 7), (3, 40), (8, 9), (100, 5000)]) {
            let values = Values::new(ValueSize { min, max });
            for number in 0..50 {
                let value = value(values, number, mix64(number + 1));
                assert_eq!(values.verify(number, &value), Ok(()), "{min}..{max}");
                assert!((min..=max).contains(&value.len()));
            }
        }
    }

    #[test]
    fn varying_sizes_reach_both_ends() {
        let values = Values::new(ValueSize { min: 5, max: 12 });
        let lengths: std::collections::BTreeSet<_> = (0..1000).map(|n| value(values, n, mix64(n)).len()).collect();
        assert_eq!(lengths.into_iter().collect::<Vec<_>>(), (5..=12).collect::<Vec<_>>());
    }

    #[test]
    fn values_of_other_keys_and_torn_and_cut_values_are_found_out() {
        for size in [8, 9, 16, 29, 64, 512] {
            let values = Values::new(ValueSize::fixed(size));
            for n in 0..500 {
                let (one, two) = (value(values, n, mix64(n)), value(values, n, mix64(n + 9_999)));
                assert_eq!(values.verify(n + 1, &one), Err(ValueFault::Foreign));
                assert_eq!(values.verify(n, &one[1..]), Err(ValueFault::Length { got: size - 1 }));
                for cut in (8..size.next_multiple_of(8)).step_by(8) {
                    let torn = [&one[..cut], &two[cut..]].concat();
                    assert!(values.verify(n, &torn).is_err() || torn == one, "{size} cut at {cut}");
                }
            }
        }
        let values = Values::new(ValueSize { min: 8, max: 100 });
        let whole = value(values, 5, 77);
        let caught = (8..whole.len()).filter(|&len| values.verify(5, &whole[..len]).is_err()).count();
        assert_eq!(caught, whole.len() - 8);
    }

    #[test]
    fn short_values_let_through_what_the_table_says() {
        for (size, most) in [(1, 60), (2, 60), (3, 3), (4, 0), (7, 0)] {
            let values = Values::new(ValueSize::fixed(size));
            let passed = (0..10_000).filter(|&n| values.verify(n + 1, &value(values, n, mix64(n))).is_ok()).count();
            assert!(passed <= most, "{size} bytes: {passed} of 10,000 foreign values passed");
        }
    }
}
