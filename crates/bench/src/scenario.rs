//! Runs as data files.
//!
//! A scenario says what to run and what to expect of it; the expectations are checked after the run. They are counts
//! and ratios, which a slower machine does not change, rather than times. An unknown field is an error that names it.
//!
//! ```
//! use farindex_bench::Scenario;
//!
//! let scenario = Scenario::parse("example.toml", r#"
//!     about = "reads alone"
//!     workload = "ycsb-c"
//!     keys = "100K"
//!     ops = "1M"
//!     clients = 8
//!
//!     [expect]
//!     wrong_answers = 0
//!     round_trips.get.max = 2.05
//!     block_round_trips.get = 1
//! "#)?;
//! assert_eq!(scenario.plan.ops, Some(1_000_000));
//! # Ok::<(), farindex_bench::BenchError>(())
//! ```

use crate::driver::Plan;
use crate::record::Row;
use crate::size::{parse_count, parse_duration};
use crate::workload::{KeyOrder, Mix, Op, SizeRange, ValueSize, Workload};
use crate::{BenchError, Distribution};
use farindex_fabric::OpKind;
use serde::{Deserialize, Deserializer, de};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

/// A run, and what is expected of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// Name: that of the file without its ending.
    pub name: String,
    /// What it is for, in a line.
    pub about: String,
    /// Kind of index, if the scenario wants a certain one.
    pub index: Option<String>,
    /// Fabric, if the scenario wants a certain one.
    pub fabric: Option<String>,
    /// What to run.
    pub plan: Plan,
    /// What to expect.
    pub expect: Expect,
}

/// Bounds on what a row says. Each is a number, or a table with `min`, `max` or both.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Expect {
    /// Wrong answers; none, unless said otherwise.
    pub wrong_answers: Option<Bound>,
    /// Failed operations; none, unless said otherwise.
    pub errors: Option<Bound>,
    /// Keys present at the end.
    pub entries: Option<Bound>,
    /// Mean number of entries that a scan returned.
    pub entries_per_scan: Option<Bound>,
    /// Throughput as a share of the raw reference's.
    pub efficiency: Option<Bound>,
    /// Far memory for each key.
    pub far_bytes_per_entry: Option<Bound>,
    /// Far memory at the end of the measured phase over that at its beginning.
    pub far_bytes_growth: Option<Bound>,
    /// What the compute node caches.
    pub cache_bytes: Option<Bound>,
    /// By kind of operation, as are all below: waits on the critical path.
    pub round_trips: Kinds,
    /// Those that only dereferenced key-value blocks.
    pub block_round_trips: Kinds,
    /// READs.
    pub reads: Kinds,
    /// READs of key-value blocks.
    pub block_reads: Kinds,
    /// WRITEs.
    pub writes: Kinds,
    /// Compare-and-swaps.
    pub cas: Kinds,
    /// Fetch-and-adds.
    pub faa: Kinds,
    /// Bytes read.
    pub bytes_read: Kinds,
    /// Bytes written.
    pub bytes_written: Kinds,
    /// Batches.
    pub batches: Kinds,
}

/// Bounds by kind of operation, as the fabric's meter names kinds.
pub type Kinds = BTreeMap<Kind, Bound>;

/// Name of a kind of operation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct Kind(String);

impl TryFrom<String> for Kind {
    type Error = String;
    fn try_from(name: String) -> Result<Self, String> {
        match OpKind::ALL.iter().any(|kind| kind.name() == name) {
            true => Ok(Kind(name)),
            false => {
                let names = OpKind::ALL.map(OpKind::name);
                Err(format!("no kind of operation {name:?}; there are {}", names.join(", ")))
            }
        }
    }
}

/// From where to where a number may lie.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Bound {
    /// Not below this.
    pub min: Option<f64>,
    /// Not above this.
    pub max: Option<f64>,
}

impl Bound {
    /// Exactly this.
    pub const fn exactly(number: f64) -> Self {
        Bound { min: Some(number), max: Some(number) }
    }
    /// Does it hold?
    pub fn admits(&self, number: f64) -> bool {
        self.min.is_none_or(|min| number >= min) && self.max.is_none_or(|max| number <= max)
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.min, self.max) {
            (Some(min), Some(max)) if min == max => write!(f, "{min}"),
            (Some(min), Some(max)) => write!(f, "{min} to {max}"),
            (Some(min), None) => write!(f, "at least {min}"),
            (None, Some(max)) => write!(f, "at most {max}"),
            (None, None) => write!(f, "anything"),
        }
    }
}

impl<'de> Deserialize<'de> for Bound {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Ends {
            min: Option<f64>,
            max: Option<f64>,
        }
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Bound;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, or a table with min, max or both")
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Bound, E> {
                Ok(Bound::exactly(number as f64))
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Bound, E> {
                Ok(Bound::exactly(number as f64))
            }
            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Bound, E> {
                Ok(Bound::exactly(number))
            }
            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Bound, A::Error> {
                let Ends { min, max } = Ends::deserialize(de::value::MapAccessDeserializer::new(map))?;
                match (min, max) {
                    (None, None) => Err(de::Error::custom("an expectation without min or max")),
                    (Some(min), Some(max)) if min > max => Err(de::Error::custom("min is above max")),
                    _ => Ok(Bound { min, max }),
                }
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// One expectation, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// What it is about, such as `round_trips.get`.
    pub what: String,
    /// What was expected.
    pub bound: Bound,
    /// What came; `None` if it was not measured, which is a failure.
    pub got: Option<f64>,
}

impl Finding {
    /// Does it hold?
    pub fn holds(&self) -> bool {
        self.got.is_some_and(|got| self.bound.admits(got))
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.holds() { "pass" } else { "FAIL" };
        write!(f, "{verdict}  {}: expected {}, got ", self.what, self.bound)?;
        match self.got {
            Some(got) => write!(f, "{got}"),
            None => write!(f, "nothing: it was not measured"),
        }
    }
}

impl Expect {
    /// Holds a row against the expectations. A run that was interrupted fails on that alone.
    pub fn check(&self, row: &Row) -> Vec<Finding> {
        let zero = Some(Bound::exactly(0.0));
        let growth = row.far_bytes.zip(row.far_bytes_before).map(|(after, before)| after as f64 / before.max(1) as f64);
        let scalars = [
            ("interrupted", zero, Some(f64::from(u8::from(row.interrupted)))),
            ("wrong_answers", self.wrong_answers.or(zero), Some(row.wrong_answers as f64)),
            ("errors", self.errors.or(zero), Some(row.errors as f64)),
            ("entries", self.entries, Some(row.entries as f64)),
            ("entries_per_scan", self.entries_per_scan, row.entries_per_scan()),
            ("efficiency", self.efficiency, row.efficiency),
            ("far_bytes_per_entry", self.far_bytes_per_entry, row.far_bytes_per_entry),
            ("far_bytes_growth", self.far_bytes_growth, growth),
            ("cache_bytes", self.cache_bytes, Some(row.cache_bytes as f64)),
        ];
        let scalars = scalars
            .into_iter()
            .filter_map(|(what, bound, got)| bound.map(|bound| Finding { what: what.to_owned(), bound, got }));
        let kinds = [
            ("round_trips", &self.round_trips),
            ("block_round_trips", &self.block_round_trips),
            ("reads", &self.reads),
            ("block_reads", &self.block_reads),
            ("writes", &self.writes),
            ("cas", &self.cas),
            ("faa", &self.faa),
            ("bytes_read", &self.bytes_read),
            ("bytes_written", &self.bytes_written),
            ("batches", &self.batches),
        ];
        let kinds = kinds.into_iter().flat_map(|(name, bounds)| {
            bounds.iter().map(move |(Kind(kind), &bound)| {
                let got = row.kinds.get(kind).and_then(|row| row.mean(name));
                Finding { what: format!("{name}.{kind}"), bound, got }
            })
        });
        scalars.chain(kinds).collect()
    }
}

/// A number, or text with a suffix.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Count(u64);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Count;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number, or text such as \"10M\" or \"64Ki\"")
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Count, E> {
                u64::try_from(number).map(Count).map_err(|_| E::custom(format!("{number} is below 0")))
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Count, E> {
                Ok(Count(number))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Count, E> {
                parse_count(text).map(Count).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// What has a name or a form of its own, as text.
#[derive(Debug, Clone, PartialEq)]
struct Text<T>(T);

impl<'de, T: FromStr<Err = String>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Text).map_err(de::Error::custom)
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Time(Duration);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_duration(&text).map(Time).map_err(de::Error::custom)
    }
}

impl FromStr for SizeRange {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let size = |text: &str| parse_count(text).map(|size| usize::try_from(size).unwrap_or(usize::MAX));
        match text.split_once("..") {
            Some((min, max)) => Ok(SizeRange { min: size(min)?, max: size(max)? }),
            None => size(text).map(SizeRange::fixed),
        }
    }
}

impl<'de> Deserialize<'de> for SizeRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = SizeRange;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, or text such as \"1Ki\" or \"8..64\"")
            }
            fn visit_i64<E: de::Error>(self, size: i64) -> Result<SizeRange, E> {
                usize::try_from(size).map(SizeRange::fixed).map_err(|_| E::custom(format!("{size} is below 0")))
            }
            fn visit_u64<E: de::Error>(self, size: u64) -> Result<SizeRange, E> {
                Ok(SizeRange::fixed(usize::try_from(size).unwrap_or(usize::MAX)))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<SizeRange, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// The file as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    about: String,
    workload: Option<Text<Workload>>,
    mix: Option<BTreeMap<String, f64>>,
    index: Option<String>,
    fabric: Option<String>,
    keys: Option<Count>,
    loaded: Option<Count>,
    load: Option<bool>,
    key_size: Option<Count>,
    key_order: Option<Text<KeyOrder>>,
    value_size: Option<ValueSize>,
    scan_length: Option<SizeRange>,
    distribution: Option<Text<Distribution>>,
    theta: Option<f64>,
    threads: Option<Count>,
    clients: Option<Count>,
    warmup: Option<Count>,
    ops: Option<Count>,
    duration: Option<Time>,
    seed: Option<Count>,
    audit: Option<bool>,
    alone: Option<bool>,
    #[serde(default)]
    expect: Expect,
}

impl File {
    fn workload(&mut self) -> Result<Workload, String> {
        match (self.workload.take(), self.mix.take()) {
            (Some(Text(workload)), None) => Ok(workload),
            (None, Some(mix)) => {
                let mut parts = Vec::new();
                for (name, share) in mix {
                    let op = Op::ALL.into_iter().find(|op| op.name() == name.replace('-', "_"));
                    let names = Op::ALL.map(Op::name).join(", ");
                    parts.push((op.ok_or(format!("mix: no operation {name:?}; there are {names}"))?, share));
                }
                let mix = Mix::new(&parts)?;
                Ok(Workload { name: mix.to_string(), mix, distribution: Distribution::Uniform, preload: true })
            }
            (None, None) => Err("neither a workload nor a mix is given".to_owned()),
            (Some(_), Some(_)) => Err("a workload and a mix are given; choose one".to_owned()),
        }
    }

    fn plan(&mut self) -> Result<Plan, String> {
        let mut plan = Plan::new(self.workload()?);
        let place = |name: &str, count: Option<Count>, place: &mut usize| match count {
            Some(Count(count)) => {
                *place = usize::try_from(count).map_err(|_| format!("{name} = {count} is too large"))?;
                Ok(())
            }
            None => Ok::<(), String>(()),
        };
        place("key_size", self.key_size, &mut plan.key_size)?;
        place("threads", self.threads, &mut plan.threads)?;
        // One client for each thread, unless said otherwise.
        plan.clients = plan.threads;
        place("clients", self.clients, &mut plan.clients)?;
        let number = |count: Option<Count>| count.map(|Count(count)| count);
        plan.keys = number(self.keys).unwrap_or(plan.keys);
        plan.loaded = number(self.loaded);
        plan.load = self.load.unwrap_or(plan.load);
        plan.key_order = self.key_order.as_ref().map_or(plan.key_order, |Text(order)| *order);
        plan.scan_length = self.scan_length.unwrap_or(plan.scan_length);
        plan.value_size = self.value_size.unwrap_or(plan.value_size);
        plan.distribution = self.distribution.as_ref().map(|Text(distribution)| *distribution);
        plan.theta = self.theta.unwrap_or(plan.theta);
        plan.warmup = number(self.warmup).unwrap_or(plan.warmup);
        plan.ops = number(self.ops);
        plan.duration = self.duration.map(|Time(duration)| duration);
        plan.seed = number(self.seed).unwrap_or(plan.seed);
        plan.audit = self.audit.unwrap_or(plan.audit);
        plan.alone = self.alone.unwrap_or(plan.alone);
        plan.check().map_err(|error| error.to_string())?;
        Ok(plan)
    }
}

impl Scenario {
    /// Reads a scenario; `origin` is the file it comes from, or whatever names it in messages.
    pub fn parse(origin: &str, text: &str) -> Result<Self, BenchError> {
        let refuse = |message: String| BenchError::Scenario { origin: origin.to_owned(), message };
        let mut file: File = toml::from_str(text).map_err(|error| refuse(error.to_string().trim_end().to_owned()))?;
        let plan = file.plan().map_err(refuse)?;
        let name = Path::new(origin).file_stem().map_or(origin.into(), |stem| stem.to_string_lossy());
        let File { about, index, fabric, expect, .. } = file;
        Ok(Scenario { name: name.into_owned(), about, index, fabric, plan, expect })
    }

    /// Reads a scenario file.
    pub fn read(path: &Path) -> Result<Self, BenchError> {
        let origin = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => Self::parse(&origin, &text),
            Err(error) => Err(BenchError::Scenario { origin, message: error.to_string() }),
        }
    }
}

#[cfg(test)]
mod tests;
