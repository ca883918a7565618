//! Calibration: the measured performance of a pool's fabric, stored in node 0's header.
//!
//! Invariants: one WRITE stores all words with a checksum, so a torn or foreign record counts as absent. Only costs
//! depend on it.

use crate::layout::{HOME, header, header_word};
use crate::{PoolError, Session};
use farindex_fabric::Span;
use zerocopy::IntoBytes;

/// A measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Calibration {
    /// Latency of one small READ, in nanoseconds.
    pub read_ns: f64,
    /// Small READs per second of one compute node.
    pub reads_per_s: f64,
    /// Bytes per second of one compute node.
    pub bytes_per_s: f64,
    /// Whether the coroutines of a thread are faster together if READs are fetched ahead while others run: see
    /// [`Endpoint::set_interleaving`](farindex_fabric::Endpoint::set_interleaving).
    pub interleaving: bool,
}

const WORDS: usize = 5;

impl Calibration {
    /// Returns whether all figures are positive and finite.
    pub fn is_sound(&self) -> bool {
        [self.read_ns, self.reads_per_s, self.bytes_per_s].iter().all(|figure| figure.is_finite() && *figure > 0.0)
    }
    fn words(&self) -> [u64; WORDS] {
        let [read, rate, bandwidth] = [self.read_ns, self.reads_per_s, self.bytes_per_s].map(f64::to_bits);
        let figures = [read, rate, bandwidth, u64::from(self.interleaving)];
        [read, rate, bandwidth, figures[3], xxhash_rust::xxh3::xxh3_64(figures.as_bytes())]
    }

    /// READs the pool's calibration; `None` if there is none.
    pub async fn load(span: &Span) -> Result<Option<Self>, PoolError> {
        let buf = span.read(header_word(HOME, header::CALIBRATION), WORDS * 8).await?;
        let &[read, rate, bandwidth, interleaving, _] = buf.words() else { return Ok(None) };
        let [read_ns, reads_per_s, bytes_per_s] = [read, rate, bandwidth].map(f64::from_bits);
        let found = Calibration { read_ns, reads_per_s, bytes_per_s, interleaving: interleaving == 1 };
        Ok((found.is_sound() && found.words() == *buf.words()).then_some(found))
    }

    /// Stores it in the pool, and replaces an earlier one.
    pub async fn store(&self, session: &Session, span: &Span) -> Result<(), PoolError> {
        let words = session.endpoint().buf_from_words(&self.words());
        Ok(span.write(header_word(HOME, header::CALIBRATION), words).await?)
    }
}
