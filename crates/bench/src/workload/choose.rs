//! Which key of the key space comes next.

use super::{Scramble, Stream, Zipf, below};
use std::fmt;
use std::str::FromStr;

/// How keys are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distribution {
    /// Every key alike, new ones too once their insert was acknowledged.
    Uniform,
    /// Zipfian over the keys of the key space as loaded, hot keys spread over it by a bijection ([`Scramble`]).
    ScrambledZipfian,
    /// Zipfian over the keys as loaded, the first key the hottest.
    Zipfian,
    /// Zipfian by age: the key whose insert was acknowledged last is the hottest. The skew is that of a key space of
    /// the loaded size, however much is inserted meanwhile.
    Latest,
    /// One after the other, round and round.
    Sequential,
}

impl Distribution {
    /// All of them.
    pub const ALL: [Distribution; 5] = [
        Distribution::Uniform,
        Distribution::ScrambledZipfian,
        Distribution::Zipfian,
        Distribution::Latest,
        Distribution::Sequential,
    ];
    /// Name, as users write it.
    pub const fn name(self) -> &'static str {
        match self {
            Distribution::Uniform => "uniform",
            Distribution::ScrambledZipfian => "scrambled-zipfian",
            Distribution::Zipfian => "zipfian",
            Distribution::Latest => "latest",
            Distribution::Sequential => "sequential",
        }
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Distribution {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Distribution::ALL.into_iter().find(|distribution| distribution.name() == text).ok_or_else(|| {
            let names = Distribution::ALL.map(Distribution::name);
            format!("no distribution {text:?}; there are {}", names.join(", "))
        })
    }
}

/// Chooses keys.
#[derive(Debug, Clone)]
pub struct Chooser {
    distribution: Distribution,
    zipf: Zipf,
    scramble: Scramble,
}

impl Chooser {
    /// For a key space that has `keys` keys when the measurement begins.
    pub fn new(distribution: Distribution, keys: u64, theta: f64) -> Self {
        let skewed = !matches!(distribution, Distribution::Uniform | Distribution::Sequential);
        let ranks = if skewed { keys } else { 1 };
        Chooser { distribution, zipf: Zipf::new(ranks, theta), scramble: Scramble::new(keys) }
    }

    /// The number of the key for operation `ordinal` of the run. `known` is how many keys there are by now, at least as
    /// many as at the beginning.
    #[inline]
    pub fn choose(&self, stream: &mut Stream, known: u64, ordinal: u64) -> u64 {
        match self.distribution {
            Distribution::Uniform => below(stream.key(), known),
            Distribution::ScrambledZipfian => self.scramble.apply(self.zipf.rank(stream.key())),
            Distribution::Zipfian => self.zipf.rank(stream.key()),
            Distribution::Latest => known.saturating_sub(1).saturating_sub(self.zipf.rank(stream.key())),
            Distribution::Sequential => ordinal % known.max(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Mix, Op, Workload};

    fn counts(distribution: Distribution, keys: u64, draws: u64) -> Vec<u64> {
        let chooser = Chooser::new(distribution, keys, Zipf::THETA);
        let mut stream = Stream::new(42, 1, 0);
        let mut counts = vec![0; keys as usize];
        for ordinal in 0..draws {
            counts[chooser.choose(&mut stream, keys, ordinal) as usize] += 1;
        }
        counts
    }

    /// The statistic, and its number of degrees of freedom; their difference has a deviation of sqrt(2 freedom).
    fn chi_square(counts: &[u64], want: f64) -> (f64, f64) {
        let sum = counts.iter().map(|&count| (count as f64 - want).powi(2) / want).sum();
        (sum, counts.len() as f64 - 1.0)
    }

    #[test]
    fn uniform_is_uniform() {
        let (chi, freedom) = chi_square(&counts(Distribution::Uniform, 1000, 1_000_000), 1000.0);
        assert!((chi - freedom).abs() < 5.0 * (2.0 * freedom).sqrt(), "{chi} against {freedom}");
    }

    #[test]
    fn sequential_takes_turns() {
        assert!(counts(Distribution::Sequential, 1000, 5000).iter().all(|&count| count == 5));
    }

    #[test]
    fn the_three_zipfians_differ_only_in_where_the_heat_is() {
        const KEYS: u64 = 10_000;
        let plain = counts(Distribution::Zipfian, KEYS, 300_000);
        let mut latest = counts(Distribution::Latest, KEYS, 300_000);
        let scrambled = counts(Distribution::ScrambledZipfian, KEYS, 300_000);
        latest.reverse();
        assert_eq!(plain, latest);
        let scramble = Scramble::new(KEYS);
        assert!((0..KEYS).all(|rank| plain[rank as usize] == scrambled[scramble.apply(rank) as usize]));
        assert!(plain[0] > plain[5000] * 100);
    }

    #[test]
    fn the_operation_is_no_function_of_the_key() {
        // A table of operation against hot key. Where the two are independent, the statistic is near its degrees of
        // freedom; with one generator for both, it is thousands.
        let mix: Mix = "get=50,update=50".parse::<Workload>().unwrap().mix;
        let chooser = Chooser::new(Distribution::Zipfian, 50, Zipf::THETA);
        let mut table = [[0f64; 50]; 2];
        for number in 0..400 {
            let mut stream = Stream::new(3, 2, number);
            for ordinal in 0..1000 {
                let row = usize::from(mix.choose(stream.op()) == Op::Update);
                table[row][chooser.choose(&mut stream, 50, ordinal) as usize] += 1.0;
            }
        }
        let total: f64 = table.iter().flatten().sum();
        let mut chi = 0.0;
        for row in &table {
            for (column, got) in row.iter().enumerate() {
                let want = row.iter().sum::<f64>() * (table[0][column] + table[1][column]) / total;
                chi += (got - want).powi(2) / want;
            }
        }
        assert!(chi < 49.0 + 5.0 * (2.0f64 * 49.0).sqrt(), "{chi} with 49 degrees of freedom");
    }
}
