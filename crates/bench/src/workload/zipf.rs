//! Zipfian ranks without rejection.
//!
//! The method of Gray et al. (Quickly Generating Billion-Record Synthetic Databases, SIGMOD 1994), which YCSB uses as
//! well: one uniform draw gives one rank. Ranks 0 and 1 have exactly the Zipfian probability; the others follow the
//! continuous approximation of the method.

/// Ranks `0..n`, rank `r` with a probability proportional to `(r + 1)^-theta`.
#[derive(Debug, Clone)]
pub struct Zipf {
    n: u64,
    zeta: f64,
    /// Below this, a scaled draw is rank 1 (or 0).
    second: f64,
    alpha: f64,
    eta: f64,
}

impl Zipf {
    /// YCSB's skew.
    pub const THETA: f64 = 0.99;

    /// Ranks `0..n` with skew `theta`, which lies strictly between 0 and 1.
    pub fn new(n: u64, theta: f64) -> Self {
        let n = n.max(1);
        let zeta = zeta(n, theta);
        let zeta_2 = zeta_exact(2.min(n), theta);
        let eta = (1.0 - (2.0 / n as f64).powf(1.0 - theta)) / (1.0 - zeta_2 / zeta);
        // With one or two ranks the first two cases below decide alone, and `eta` is not a number.
        let eta = if eta.is_finite() { eta } else { 0.0 };
        Zipf { n, zeta, second: 1.0 + 0.5f64.powf(theta), alpha: 1.0 / (1.0 - theta), eta }
    }

    /// The rank for a uniform 64-bit draw.
    #[inline]
    pub fn rank(&self, draw: u64) -> u64 {
        let u = (draw >> 11) as f64 * (1.0 / (1u64 << 53) as f64);
        let scaled = u * self.zeta;
        if scaled < 1.0 || self.n == 1 {
            return 0;
        }
        if scaled < self.second {
            return 1;
        }
        let rank = self.n as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.n - 1)
    }

    /// Probability of a rank, in theory.
    pub fn probability(&self, rank: u64) -> f64 {
        ((rank + 1) as f64).powf(1.0 / self.alpha - 1.0) / self.zeta
    }
}

fn zeta_exact(n: u64, theta: f64) -> f64 {
    (1..=n).map(|i| (i as f64).powf(-theta)).sum()
}

/// The sum of `i^-theta` for `i` in `1..=n`: exact for the head, Euler-Maclaurin for the tail, whose error is far below
/// the rounding of the sum. A hundred million keys would otherwise cost seconds.
fn zeta(n: u64, theta: f64) -> f64 {
    const HEAD: u64 = 10_000;
    if n <= HEAD {
        return zeta_exact(n, theta);
    }
    let (m, n) = (HEAD as f64, n as f64);
    let integral = (n.powf(1.0 - theta) - m.powf(1.0 - theta)) / (1.0 - theta);
    let ends = (n.powf(-theta) - m.powf(-theta)) / 2.0;
    let slopes = theta * (m.powf(-theta - 1.0) - n.powf(-theta - 1.0)) / 12.0;
    zeta_exact(HEAD, theta) + integral + ends + slopes
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_xoshiro::Xoshiro256PlusPlus;
    use rand_xoshiro::rand_core::{Rng, SeedableRng};

    #[test]
    fn the_shortened_zeta_equals_the_sum() {
        for n in [10_001, 50_000, 1_000_000] {
            let (short, sum) = (zeta(n, 0.99), zeta_exact(n, 0.99));
            assert!((short - sum).abs() / sum < 1e-12, "{n}: {short} {sum}");
        }
    }

    #[test]
    fn the_head_is_as_frequent_as_in_theory() {
        const DRAWS: u64 = 2_000_000;
        let zipf = Zipf::new(100_000, Zipf::THETA);
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
        let mut counts = vec![0u64; 100_000];
        for _ in 0..DRAWS {
            counts[zipf.rank(rng.next_u64()) as usize] += 1;
        }
        // Ranks 0 and 1 are exact: five standard deviations.
        for rank in 0..2u64 {
            let want = zipf.probability(rank) * DRAWS as f64;
            let got = counts[rank as usize] as f64;
            assert!((got - want).abs() < 5.0 * want.sqrt(), "rank {rank}: {got}, in theory {want}");
        }
        // The others are the method's approximation: within 20 % one by one, the worst being
        // rank 2, within 2 % together.
        for rank in 2..20u64 {
            let want = zipf.probability(rank) * DRAWS as f64;
            let got = counts[rank as usize] as f64;
            assert!((got / want - 1.0).abs() < 0.2, "rank {rank}: {got}, in theory {want}");
        }
        let want: f64 = (0..1000).map(|rank| zipf.probability(rank)).sum();
        let got = counts[..1000].iter().sum::<u64>() as f64 / DRAWS as f64;
        assert!((got / want - 1.0).abs() < 0.02, "the first thousand: {got}, in theory {want}");
    }

    #[test]
    fn tiny_key_spaces_and_the_largest_draw_stay_in_range() {
        for n in 1..6 {
            let zipf = Zipf::new(n, Zipf::THETA);
            for draw in [0, 1, u64::MAX / 2, u64::MAX] {
                assert!(zipf.rank(draw) < n, "{n} {draw}");
            }
        }
    }
}
