//! What the clients do: which operations, on which keys, with which values.
//!
//! Invariants: operation, key and value come from three generators that share nothing but the run's seed, so the kind
//! of an operation is never a function of its key; every client draws from one key space; nothing here allocates for an
//! operation.

pub mod choose;
pub mod keys;
pub mod mix;
pub mod scramble;
pub mod stream;
pub mod values;
pub mod zipf;

pub use choose::{Chooser, Distribution};
pub use keys::{ABSENT, KeyOrder, Keys};
pub use mix::{Mix, Op, Workload};
pub use scramble::Scramble;
pub use stream::Stream;
pub use values::{SizeRange, ValueFault, ValueSize, Values};
pub use zipf::Zipf;

/// A bijection of 64-bit words in which every bit of the input reaches every bit of the output (the finalizer of
/// SplitMix64).
pub(crate) const fn mix64(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// The inverse of [`mix64`].
pub(crate) const fn unmix64(word: u64) -> u64 {
    let word = (word ^ (word >> 31) ^ (word >> 62)).wrapping_mul(0x3196_42b2_d24d_8ec3);
    let word = (word ^ (word >> 27) ^ (word >> 54)).wrapping_mul(0x96de_1b17_3f11_9089);
    word ^ (word >> 30) ^ (word >> 60)
}

/// `draw` scaled to `0..n`. Its bias is below `n / 2^64`.
pub(crate) const fn below(draw: u64, n: u64) -> u64 {
    ((draw as u128 * n as u128) >> 64) as u64
}
