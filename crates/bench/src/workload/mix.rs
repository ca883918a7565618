//! Operations, mixes of them, and the workloads that have names.

use super::Distribution;
use std::fmt;
use std::str::FromStr;

/// What a client does to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(usize)]
pub enum Op {
    /// Looks up a key of the key space.
    Get,
    /// Looks up a key that no client ever inserts.
    GetAbsent,
    /// Inserts a key: a new one, or, where the mix also removes, any of the key space.
    Insert,
    /// Updates a key.
    Update,
    /// Upserts a key.
    Upsert,
    /// Removes a key.
    Remove,
    /// Looks a key up and then updates it (two operations of the index; not atomic, as in YCSB).
    Rmw,
    /// Scans from a key of the key space upwards, for as many entries as a draw says.
    Scan,
}

impl Op {
    /// Number of operations.
    pub const COUNT: usize = 8;
    /// All operations, in order.
    pub const ALL: [Op; Op::COUNT] =
        [Op::Get, Op::GetAbsent, Op::Insert, Op::Update, Op::Upsert, Op::Remove, Op::Rmw, Op::Scan];

    /// Lower-case name, as mixes and records use it.
    pub const fn name(self) -> &'static str {
        match self {
            Op::Get => "get",
            Op::GetAbsent => "get_absent",
            Op::Insert => "insert",
            Op::Update => "update",
            Op::Upsert => "upsert",
            Op::Remove => "remove",
            Op::Rmw => "rmw",
            Op::Scan => "scan",
        }
    }
}

/// How often each operation comes up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mix {
    percent: [f64; Op::COUNT],
    /// Of a 32-bit draw: the first operation whose limit is above it is chosen.
    limits: [u64; Op::COUNT],
}

impl Mix {
    /// A mix from percentages, which add up to 100.
    pub fn new(parts: &[(Op, f64)]) -> Result<Self, String> {
        let mut percent = [0.0; Op::COUNT];
        for &(op, share) in parts {
            if !(0.0..=100.0).contains(&share) {
                return Err(format!("{} = {share}: a percentage lies between 0 and 100", op.name()));
            }
            percent[op as usize] += share;
        }
        let sum: f64 = percent.iter().sum();
        if (sum - 100.0).abs() > 1e-6 {
            return Err(format!("the percentages of a mix add up to 100, not {sum}"));
        }
        Ok(Self::of(percent))
    }

    fn of(percent: [f64; Op::COUNT]) -> Self {
        let mut limits = [0; Op::COUNT];
        let mut sum = 0.0;
        for (limit, share) in limits.iter_mut().zip(percent) {
            sum += share;
            *limit = (sum / 100.0 * (1u64 << 32) as f64).round() as u64;
        }
        // Rounding must not leave a draw without an operation, nor give it to one that the mix does not have.
        let last = percent.iter().rposition(|&share| share > 0.0).unwrap_or_default();
        limits[last..].fill(1 << 32);
        Mix { percent, limits }
    }

    /// One operation alone.
    pub fn single(op: Op) -> Self {
        let mut percent = [0.0; Op::COUNT];
        percent[op as usize] = 100.0;
        Self::of(percent)
    }
    fn two(first: Op, share: f64, second: Op) -> Self {
        let mut percent = [0.0; Op::COUNT];
        percent[first as usize] = share;
        percent[second as usize] = 100.0 - share;
        Self::of(percent)
    }

    /// Its share, in percent.
    pub fn percent(&self, op: Op) -> f64 {
        self.percent[op as usize]
    }
    /// Does it come up at all?
    pub fn has(&self, op: Op) -> bool {
        self.percent(op) > 0.0
    }
    /// The operation for a draw, of which the low 32 bits are used.
    #[inline]
    pub fn choose(&self, draw: u64) -> Op {
        let draw = draw & 0xffff_ffff;
        let mut at = 0;
        while at + 1 < Op::COUNT && draw >= self.limits[at] {
            at += 1;
        }
        Op::ALL[at]
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        for op in Op::ALL.into_iter().filter(|&op| self.has(op)) {
            write!(f, "{comma}{}={}", op.name(), self.percent(op))?;
            comma = ",";
        }
        Ok(())
    }
}

/// A mix with its name, and the distribution that goes with it.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// `ycsb-a`, or the mix itself.
    pub name: String,
    /// What is done.
    pub mix: Mix,
    /// On which keys, unless the user wants others.
    pub distribution: Distribution,
    /// Are the keys loaded before, or is loading them what is measured?
    pub preload: bool,
}

impl Workload {
    /// Every named workload, with a line about it.
    ///
    /// The mixes of YCSB are those of its core workloads. (SHARD's paper gives B as 90 % reads; YCSB's 95 % is what
    /// `ycsb-b` means here, and the other is the mix `get=90,update=10`.)
    pub const NAMES: [(&'static str, &'static str); 16] = [
        ("ycsb-load", "insert every key of the key space once, into an empty index"),
        ("ycsb-a", "50 % get, 50 % update"),
        ("ycsb-b", "95 % get, 5 % update"),
        ("ycsb-c", "100 % get"),
        ("ycsb-d", "95 % get of the latest, 5 % insert of new keys"),
        ("ycsb-e", "95 % scan of 1 to 100 entries, 5 % insert of new keys; takes an ordered index"),
        ("ycsb-f", "50 % get, 50 % read-modify-write"),
        ("churn", "40 % update, 30 % remove, 30 % insert over one key space"),
        ("get", "get of present keys"),
        ("get-absent", "get of absent keys"),
        ("insert", "insert of new keys"),
        ("update", "update of present keys"),
        ("upsert", "upsert of present keys"),
        ("remove", "remove of present keys, each once"),
        ("rmw", "get, then update of the same key"),
        ("scan", "scan from present keys; takes an ordered index"),
    ];
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let zipf = Distribution::ScrambledZipfian;
        let (mix, distribution) = match text {
            "ycsb-load" | "load" => (Mix::single(Op::Insert), Distribution::Sequential),
            "ycsb-a" => (Mix::two(Op::Get, 50.0, Op::Update), zipf),
            "ycsb-b" => (Mix::two(Op::Get, 95.0, Op::Update), zipf),
            "ycsb-c" => (Mix::single(Op::Get), zipf),
            "ycsb-d" => (Mix::two(Op::Get, 95.0, Op::Insert), Distribution::Latest),
            "ycsb-e" => (Mix::two(Op::Scan, 95.0, Op::Insert), zipf),
            "ycsb-f" => (Mix::two(Op::Get, 50.0, Op::Rmw), zipf),
            "churn" => {
                let parts = [(Op::Update, 40.0), (Op::Remove, 30.0), (Op::Insert, 30.0)];
                (Mix::new(&parts)?, Distribution::Uniform)
            }
            "get" => (Mix::single(Op::Get), Distribution::Uniform),
            "get-absent" => (Mix::single(Op::GetAbsent), Distribution::Uniform),
            "insert" => (Mix::single(Op::Insert), Distribution::Uniform),
            "update" => (Mix::single(Op::Update), Distribution::Uniform),
            "upsert" => (Mix::single(Op::Upsert), Distribution::Uniform),
            "remove" => (Mix::single(Op::Remove), Distribution::Sequential),
            "rmw" => (Mix::single(Op::Rmw), Distribution::Uniform),
            "scan" => (Mix::single(Op::Scan), Distribution::Uniform),
            mix if mix.contains('=') => (parse_mix(mix)?, Distribution::Uniform),
            other => {
                let names: Vec<_> = Workload::NAMES.iter().map(|(name, _)| *name).collect();
                return Err(format!(
                    "no workload {other:?}; there are {}, and mixes such as get=90,update=10",
                    names.join(", ")
                ));
            }
        };
        let (name, preload) = match text {
            "load" | "ycsb-load" => ("ycsb-load", false),
            other => (other, true),
        };
        Ok(Workload { name: name.to_owned(), mix, distribution, preload })
    }
}

fn parse_mix(text: &str) -> Result<Mix, String> {
    let mut parts = Vec::new();
    for part in text.split(',') {
        let (name, share) =
            part.split_once('=').ok_or_else(|| format!("{part:?} in a mix: write operation=percent"))?;
        let name = name.trim().replace('-', "_");
        let op = Op::ALL.into_iter().find(|op| op.name() == name).ok_or_else(|| {
            let names = Op::ALL.map(Op::name);
            format!("no operation {name:?} in a mix; there are {}", names.join(", "))
        })?;
        let share = share.trim().trim_end_matches('%').trim_end();
        let share = share.parse::<f64>().map_err(|_| format!("{share:?} in a mix is no percentage"))?;
        parts.push((op, share));
    }
    Mix::new(&parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Stream;

    #[test]
    fn every_named_workload_exists() {
        for (name, _) in Workload::NAMES {
            let workload: Workload = name.parse().unwrap();
            assert_eq!(workload.name, name);
        }
        let b: Workload = "ycsb-b".parse().unwrap();
        assert_eq!(b.mix.to_string(), "get=95,update=5");
        let e: Workload = "ycsb-e".parse().unwrap();
        assert_eq!((e.mix.to_string().as_str(), e.distribution), ("insert=5,scan=95", Distribution::ScrambledZipfian));
        let churn: Workload = "churn".parse().unwrap();
        assert_eq!(churn.mix.to_string(), "insert=30,update=40,remove=30");
    }

    #[test]
    fn bad_workloads_say_what_is_wrong() {
        for (text, want) in [
            ("ycsb-z", "no workload \"ycsb-z\""),
            ("get=90", "add up to 100, not 90"),
            ("get=90,put=10", "no operation \"put\""),
            ("get=x,update=10", "\"x\" in a mix is no percentage"),
            ("get=110,update=-10", "between 0 and 100"),
            ("get=NaN,update=10", "between 0 and 100"),
            ("get=50,update", "write operation=percent"),
        ] {
            let error = text.parse::<Workload>().unwrap_err();
            assert!(error.contains(want), "{text}: {error}");
        }
    }

    #[test]
    fn operations_come_up_as_often_as_asked() {
        let mix = "get=50,insert=5,update=25,remove=0,rmw=15,scan=5".parse::<Workload>().unwrap().mix;
        let mut stream = Stream::new(1, 0, 0);
        let mut counts = [0f64; Op::COUNT];
        const DRAWS: u32 = 400_000;
        for _ in 0..DRAWS {
            counts[mix.choose(stream.op()) as usize] += 1.0;
        }
        for op in Op::ALL {
            let want = mix.percent(op) / 100.0 * f64::from(DRAWS);
            let got = counts[op as usize];
            assert!((got - want).abs() <= 5.0 * want.sqrt(), "{}: {got} instead of {want}", op.name());
        }
        assert_eq!(mix.choose(u64::MAX), Op::Scan);
    }
}
