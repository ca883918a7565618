//! How many slots a lookup reads (section 3.3).
//!
//! Linear probing has filled a share `load` of the `M` slots of a table. Each slot belongs to a *block*: a run of `n -
//! 1` filled slots and the empty slot behind them. In a large table `n` has the Borel distribution,
//!
//! ```text
//! b(n) = e^(-load n) (load n)^(n-1) / n!
//! ```
//!
//! and Knuth's `M^-N g(M, N, k)` of formula 7 tends to `(1 - load) b(k + 1)`. Every distribution here is a sum of such
//! terms:
//!
//! | Lookup | reads more than `k` slots with probability |
//! |---|---|
//! | [`of_misses`](Probes::of_misses): from a uniformly random slot to the first empty one | sum of `(j-k+1) (1-load) b(j+1)` over `j >= k` |
//! | [`of_hits`](Probes::of_hits): from a present key's home to the key | sum of `(j-k+1) b(j+1)/(j+1)` over `j >= k` |
//! | [`of_all_matches`](Probes::of_all_matches): from a present key's home to the first empty slot | sum over `i >= k` of `(1-load) (Pr[n1+n2 > i] - Pr[n1 > i])` |
//!
//! Invariants: survival probabilities do not grow with `k`; the first one is 1.

/// Largest load that the limit forms take. In a fuller table, clusters are as long as the table.
pub const MAX_LOAD: f64 = 0.995;
/// Largest part of a probability that truncation may omit.
const TRUNCATION: f64 = 1e-15;

/// Distribution of the number of slots that a lookup reads.
#[derive(Debug, Clone, PartialEq)]
pub struct Probes {
    /// Entry `k` is the probability that the first `k` slots do not end the lookup, `1 - C_k`. It is zero behind the
    /// end.
    survival: Vec<f64>,
}

/// Returns the Borel probabilities `b(1), b(2), ...` up to where the rest is below the truncation error.
fn borel(load: f64) -> Vec<f64> {
    if load == 0.0 {
        return vec![1.0];
    }
    // b(n+1)/b(n) = load e^-load (1 + 1/n)^(n-1), which is below its limit r = load e^(1-load) < 1. So the terms behind
    // b(n) sum to less than b(n) / (1-r), and with weights 1, 2, 3, ... to less than b(n) / (1-r)^2.
    let slack = -(load.ln() + 1.0 - load).exp_m1();
    let mut terms = vec![(-load).exp()];
    let mut term = terms[0];
    loop {
        let n = terms.len() as f64;
        if term * (n / slack + 1.0 / (slack * slack)) < TRUNCATION {
            return terms;
        }
        term *= (load.ln() - load + (n - 1.0) * (1.0 / n).ln_1p()).exp();
        terms.push(term);
    }
}

/// Replaces each term by the sum of all terms from it on. Adds the smallest first, and all are positive: nothing
/// cancels.
fn suffix_sums(terms: &mut [f64]) {
    let mut sum = 0.0;
    for term in terms.iter_mut().rev() {
        sum += *term;
        *term = sum;
    }
}

impl Probes {
    /// Makes the distribution from the probabilities `g(k)` that a slot's block has `k` filled slots: `P_k` is their
    /// suffix sum, and `1 - C_k` is the suffix sum of `P_k`.
    fn from_blocks(mut terms: Vec<f64>) -> Self {
        suffix_sums(&mut terms);
        suffix_sums(&mut terms);
        Self::from_survival(terms)
    }

    fn from_survival(mut survival: Vec<f64>) -> Self {
        // 1, up to rounding errors.
        let all = survival.first().copied().unwrap_or(1.0);
        survival.iter_mut().for_each(|probability| *probability /= all);
        Probes { survival }
    }

    fn is_load(load: f64) -> bool {
        (0.0..=MAX_LOAD).contains(&load)
    }

    /// Returns the distribution for lookups of absent keys: from a uniformly random slot to the first empty one
    /// (formulas 6 to 9, in the limit of a large table). `None` unless `0 <= load <= MAX_LOAD`.
    pub fn of_misses(load: f64) -> Option<Self> {
        let blocks = || borel(load).into_iter().map(|b| (1.0 - load) * b).collect();
        Self::is_load(load).then(|| Self::from_blocks(blocks()))
    }

    /// Like [`of_misses`](Self::of_misses) for a table of exactly `slots` slots of which `filled` are filled. `None`
    /// unless one is empty. Time and memory are in proportion to the longest cluster that counts.
    pub fn of_misses_exactly(slots: u64, filled: u64) -> Option<Self> {
        if filled >= slots {
            return None;
        }
        let (m, n) = (slots as f64, filled as f64);
        // g(M,N,0) / M^N; each further term follows by a ratio, which needs no large number.
        let mut term = if filled == 0 { 1.0 } else { (m - 1.0 - n) / m * ((n - 1.0) * (-1.0 / m).ln_1p()).exp() };
        if slots == filled + 1 {
            // With one empty slot, all distances are equally likely.
            let survival = (0..slots).map(|k| (m - k as f64) / m).collect();
            return Some(Probes { survival });
        }
        let mut terms = vec![term];
        for k in 0..filled {
            if term < f64::MIN_POSITIVE && k as f64 > n / (m - n) {
                break;
            }
            let k = k as f64;
            let rest = m - k - 1.0;
            let ratio = ((n - k) / rest).ln() + k * (1.0 / (k + 1.0)).ln_1p() + (n - k - 2.0) * (-1.0 / rest).ln_1p();
            term *= ratio.exp();
            terms.push(term);
        }
        Some(Self::from_blocks(terms))
    }

    /// Returns the distribution for lookups of present keys that end at the key. A key's home is in a cluster more
    /// often than a random slot, but the key need not be at the cluster's end. A key lies where the first empty slot
    /// was when it was inserted. So this is the average of [`of_misses`](Self::of_misses) over all loads up to this
    /// one; the integral of `(1-x) b(j+1)` has a closed form.
    pub fn of_hits(load: f64) -> Option<Self> {
        let blocks = || (1..).zip(borel(load)).map(|(n, b)| b / f64::from(n)).collect();
        Self::is_load(load).then(|| Self::from_blocks(blocks()))
    }

    /// Returns the distribution for lookups of present keys that continue to the first empty slot, because they return
    /// all matching records. The paper's experiments do so.
    ///
    /// Any key may be regarded as the last one inserted: it went to the first empty slot, and one whole block follows.
    /// The sum of two blocks has the Borel-Tanner distribution, `2 (n-1) / (load n) b(n)`.
    pub fn of_all_matches(load: f64) -> Option<Self> {
        if !Self::is_load(load) {
            return None;
        }
        if load == 0.0 {
            return Some(Probes { survival: vec![1.0, 1.0] });
        }
        let mut one = borel(load);
        let mut two: Vec<_> =
            (1..).zip(&one).map(|(n, b)| 2.0 * f64::from(n - 1) / (load * f64::from(n)) * b).collect();
        suffix_sums(&mut one);
        suffix_sums(&mut two);
        // Entry i is now Pr[n >= i + 1], which is Pr[n > i].
        let mut ends: Vec<_> = one.iter().zip(&two).map(|(one, two)| (1.0 - load) * (two - one).max(0.0)).collect();
        suffix_sums(&mut ends);
        Some(Self::from_survival(ends))
    }

    /// Returns the distribution for a mixture of lookups: a share `hits` of present keys, the rest of absent keys.
    /// `None` unless `load` is a load and `hits` is between 0 and 1.
    pub fn of_mixture(load: f64, hits: f64) -> Option<Self> {
        let (present, absent) = (Self::of_hits(load)?, Self::of_misses(load)?);
        (0.0..=1.0).contains(&hits).then(|| {
            let len = present.survival.len().max(absent.survival.len());
            let survival = (0..len as u64).map(|k| hits * present.beyond(k) + (1.0 - hits) * absent.beyond(k));
            Probes { survival: survival.collect() }
        })
    }

    /// Returns the distribution for a lookup that begins `distance` slots before a cluster of `len` filled slots
    /// (formula 10). With `distance` 0 the lookup begins in a cluster of which `len` slots are left.
    #[must_use]
    pub fn near_cluster(&self, distance: u64, len: u64) -> Self {
        let within = (0..=distance).map(|k| self.beyond(k));
        let inside = (0..len).map(|_| self.beyond(distance));
        Probes { survival: within.chain(inside).collect() }
    }

    /// Returns the probability that the first `slots` slots do not end the lookup: `1 - C_k`.
    pub fn beyond(&self, slots: u64) -> f64 {
        usize::try_from(slots).ok().and_then(|k| self.survival.get(k)).copied().unwrap_or(0.0)
    }
    /// Returns the probability that the first `slots` slots end the lookup: `C_k`.
    pub fn within(&self, slots: u64) -> f64 {
        1.0 - self.beyond(slots)
    }
    /// Returns the largest number of slots that a lookup reads, up to the truncation.
    pub fn longest(&self) -> u64 {
        self.survival.len() as u64
    }
    /// Returns `E[X(R)]`: the expected number of READs of `read` slots each (formula 4, which is the sum of `1 - C_iR`
    /// over all `i`). Infinite for READs of no slot.
    pub fn requests(&self, read: u64) -> f64 {
        let Ok(step) = usize::try_from(read) else { return 1.0 };
        if step == 0 {
            return f64::INFINITY;
        }
        self.survival.iter().step_by(step).sum()
    }
    /// Returns the expected number of slots that a lookup reads.
    pub fn mean(&self) -> f64 {
        self.requests(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOADS: [f64; 8] = [0.0, 0.1, 0.25, 0.5, 0.65, 0.8, 0.95, 0.99];

    fn close(a: f64, b: f64, relative: f64) {
        assert!((a - b).abs() <= relative * b.abs().max(1e-300), "{a} is not {b}");
    }

    /// Knuth, 6.4: an absent key takes (1 + 1/(1-a)^2)/2 probes, a present key (1 + 1/(1-a))/2.
    #[test]
    fn means_are_knuths() {
        for load in LOADS {
            let free = 1.0 - load;
            close(Probes::of_misses(load).unwrap().mean(), (1.0 + 1.0 / (free * free)) / 2.0, 1e-9);
            close(Probes::of_hits(load).unwrap().mean(), (1.0 + 1.0 / free) / 2.0, 1e-9);
            let whole = (1.0 + 1.0 / (free * free)) / 2.0 + 1.0 / free;
            close(Probes::of_all_matches(load).unwrap().mean(), whole, 1e-9);
        }
    }

    /// Counts every sequence of homes of small tables: formula 7 without an approximation.
    #[test]
    fn exact_distribution_matches_an_enumeration_of_small_tables() {
        for (slots, filled) in [(1u64, 0u64), (4, 3), (5, 2), (6, 4), (6, 5), (7, 0), (7, 5)] {
            let exact = Probes::of_misses_exactly(slots, filled).unwrap();
            let mut survivors = vec![0u64; slots as usize + 2];
            for number in 0..slots.pow(filled as u32) {
                let mut table = vec![false; slots as usize];
                let mut rest = number;
                for _ in 0..filled {
                    let mut slot = rest % slots;
                    rest /= slots;
                    while table[slot as usize] {
                        slot = (slot + 1) % slots;
                    }
                    table[slot as usize] = true;
                }
                for start in 0..slots {
                    let run = (0..slots).take_while(|i| table[((start + i) % slots) as usize]).count();
                    (0..=run).for_each(|k| survivors[k] += 1);
                }
            }
            let all = survivors[0] as f64;
            for (k, count) in survivors.iter().enumerate() {
                let expected = *count as f64 / all;
                assert!((exact.beyond(k as u64) - expected).abs() < 1e-12, "{slots} {filled} {k}");
            }
        }
    }

    /// The limit differs from the exact form by a term of the order of 1/M.
    #[test]
    fn exact_distribution_of_a_large_table_is_close_to_the_limit() {
        for (load, bits) in [(0.25, 20), (0.5, 20), (0.8, 20), (0.95, 24)] {
            let slots = 1u64 << bits;
            let filled = (slots as f64 * load) as u64;
            let exact = Probes::of_misses_exactly(slots, filled).unwrap();
            let limit = Probes::of_misses(filled as f64 / slots as f64).unwrap();
            for read in [1, 4, 23, 100, 1000] {
                close(exact.requests(read), limit.requests(read), 1e-3);
            }
        }
    }

    #[test]
    fn survival_probabilities_never_increase() {
        for load in LOADS {
            for probes in [
                Probes::of_misses(load),
                Probes::of_hits(load),
                Probes::of_all_matches(load),
                Probes::of_mixture(load, 0.7),
            ] {
                let probes = probes.unwrap();
                assert_eq!(probes.beyond(0), 1.0);
                for k in 0..probes.longest() {
                    assert!(probes.beyond(k + 1) <= probes.beyond(k) && probes.beyond(k) >= 0.0, "{load} {k}");
                }
            }
        }
    }

    #[test]
    fn distributions_refuse_loads_out_of_range() {
        for load in [-0.1, 1.0, f64::NAN, f64::INFINITY] {
            assert!(Probes::of_misses(load).is_none() && Probes::of_hits(load).is_none());
            assert!(Probes::of_all_matches(load).is_none() && Probes::of_mixture(load, 0.5).is_none());
        }
        assert!(Probes::of_mixture(0.5, 1.5).is_none() && Probes::of_misses_exactly(4, 4).is_none());
    }

    /// Formula 10.
    #[test]
    fn lookups_end_behind_a_known_cluster() {
        let probes = Probes::of_misses(0.65).unwrap();
        let known = probes.near_cluster(4, 10);
        assert_eq!(known.beyond(4), probes.beyond(4));
        assert_eq!(known.beyond(14), probes.beyond(4));
        assert_eq!(known.beyond(15), 0.0);
        assert_eq!(known.requests(15), 1.0);
        assert_eq!(probes.near_cluster(0, 3).requests(4), 1.0);
        assert_eq!(probes.near_cluster(0, 3).requests(3), 2.0);
    }
}
