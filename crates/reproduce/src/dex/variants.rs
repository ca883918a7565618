//! What is compared: Sherman, Sherman whose keys are divided, and DEX.

use super::Args;
use super::paper::{CACHE, SCAN, SIZES, WORKLOADS};
use crate::chime::kinds;
use crate::lab::{Lab, Measured, Run};
use crate::report::{Error, Watch};
use farindex::IndexConfig;
use farindex_bench::driver::charged::Charge;
use farindex_bench::workload::{Distribution, SizeRange, Zipf};
use farindex_sim::Preset;
use serde_json::{Value, json};
use std::time::Duration;

/// An index, and how its clients use it.
#[derive(Debug, Clone)]
pub(super) struct Variant {
    pub(super) name: String,
    kind: &'static str,
    changes: Value,
    /// Is it one of those whose keys are divided among compute nodes?
    pub(super) divided: bool,
    /// READs of the leaf's lock word for each operation.
    lock_reads: u32,
    /// Does it forget its copies of nodes after each operation?
    forgets: bool,
}

/// The least cache that DEX takes.
pub(super) const LEAST_CACHE: u64 = 4 << 10;
/// The least cache that a kind takes.
fn least_cache(kind: &str) -> u64 {
    if kind == "dex" { LEAST_CACHE } else { 64 << 10 }
}

impl Variant {
    pub(super) fn new(name: &str, kind: &'static str, changes: Value) -> Self {
        Variant { name: name.to_owned(), kind, changes, divided: kind == "dex", lock_reads: 0, forgets: false }
    }
    /// The same, by another name.
    pub(super) fn named(self, name: &str) -> Self {
        Variant { name: name.to_owned(), ..self }
    }
    /// The same, without a cache.
    pub(super) fn forgetting(self) -> Self {
        Variant { forgets: true, ..self }
    }
    /// Sherman with so many READs for each operation: one of the leaf, and others of its lock word.
    fn sherman(reads: u32) -> Self {
        let name = if reads == 1 { "Sherman".to_owned() } else { format!("Sherman, {reads} READs") };
        Variant { lock_reads: reads.saturating_sub(1), ..Variant::new(&name, "sherman", json!({})) }
    }
    pub(super) fn p_sherman() -> Self {
        Variant::new("P-Sherman", "dex", json!({ "leaf_admission": 0, "offload": "never" }))
    }
    /// Is it what the paper calls Sherman? That one has three READs.
    pub(super) fn is_papers_sherman(&self) -> bool {
        self.kind == "sherman" && self.lock_reads == 2
    }

    /// Its settings, with a cache of so many bytes for each compute node.
    pub(super) fn config(&self, cache_bytes: u64) -> Result<IndexConfig, Error> {
        let mut changes = self.changes.clone();
        let cache_bytes = if self.forgets { 0 } else { cache_bytes };
        changes["cache_bytes"] = cache_bytes.max(least_cache(self.kind)).into();
        kinds::config(self.kind, &changes)
    }
}

/// What was asked for: `sherman` (once for each number of READs), `p-sherman`, `dex`, or `dex:SETTING=VALUE`.
pub(super) fn wanted(args: &Args) -> Result<Vec<Variant>, Error> {
    let mut variants = Vec::new();
    for name in &args.kinds {
        match name.split_once(':').unwrap_or((name, "")) {
            ("sherman", "") => variants.extend(args.sherman_reads.iter().map(|reads| Variant::sherman(*reads))),
            ("p-sherman", "") => variants.push(Variant::p_sherman()),
            ("dex", "") => variants.push(Variant::new("DEX", "dex", json!({}))),
            ("dex", change) => {
                let Some((setting, value)) = change.split_once('=') else {
                    return Err(Error::Usage(format!("{name:?}: write dex:setting=value")));
                };
                let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
                variants.push(Variant::new(&format!("DEX, {change}"), "dex", json!({ setting: value })));
            }
            _ => return Err(Error::Usage(format!("{name:?}: there are sherman, p-sherman, dex, dex:setting=value"))),
        }
    }
    // An unknown setting is an error before anything runs.
    variants.iter().try_for_each(|variant| variant.config(1 << 20).map(drop))?;
    Ok(variants)
}

/// The workloads that were asked for, or else the usual ones: the paper's names, and mixes of operations.
pub(super) fn workloads(
    args: &Args,
    usual: &[(&'static str, &'static str)],
) -> Result<Vec<(&'static str, &'static str)>, Error> {
    if args.workloads.is_empty() {
        return Ok(usual.to_vec());
    }
    let find = |name: &String| {
        let known = WORKLOADS.into_iter().find(|(known, _)| known == name);
        known.ok_or_else(|| {
            Error::Usage(format!("no workload {name:?}: there are {}", WORKLOADS.map(|(name, _)| name).join(", ")))
        })
    };
    args.workloads.iter().map(find).collect()
}

/// One point of a figure.
#[derive(Debug, Clone)]
pub(super) struct Point<'p> {
    pub(super) workload: &'p str,
    pub(super) clients: usize,
    pub(super) keys: u64,
    /// Skew; `None`: uniform.
    pub(super) theta: Option<f64>,
    /// Cache of a compute node, in percent of the data.
    pub(super) cache: f64,
    /// Threads of a memory node that answer calls; `None`: as many as in the paper.
    pub(super) memory_threads: Option<usize>,
}

impl<'p> Point<'p> {
    /// With the paper's skew and cache.
    pub(super) fn usual(workload: &'p str, clients: usize, keys: u64) -> Self {
        Point { workload, clients, keys, theta: Some(Zipf::THETA), cache: CACHE, memory_threads: None }
    }
    /// Bytes of cache: a percentage of the bytes of keys and values.
    pub(super) fn cache_bytes(&self) -> u64 {
        (self.cache / 100.0 * (self.keys * (SIZES.0 + SIZES.1) as u64) as f64) as u64
    }
}

/// Measures a variant at a point.
pub(super) fn measure(args: &Args, watch: Watch<'_>, variant: &Variant, point: &Point<'_>) -> Result<Measured, Error> {
    let preset = Preset::dex();
    let preset = Preset { call_cores: point.memory_threads.unwrap_or(preset.call_cores), ..preset };
    let lab = Lab {
        per_node: preset.clients_per_node,
        preset,
        key_size: SIZES.0,
        value_size: SIZES.1,
        scan_length: SizeRange::fixed(SCAN),
        seed: args.seed,
        watch,
    };
    let scans = point.workload.contains("scan");
    let ops = args.ops.unwrap_or(point.keys) / if scans { 8 } else { 1 };
    let run = Run::load(variant.config(point.cache_bytes())?, point.keys, point.clients);
    let distribution = if point.theta.is_some() { Distribution::ScrambledZipfian } else { Distribution::Uniform };
    lab.run(&Run {
        distribution: Some(distribution),
        theta: point.theta.unwrap_or(Zipf::THETA),
        warmup: ops / 2,
        divided: variant.divided,
        coalesce: args.coalesce,
        charge: Charge {
            local: Duration::from_nanos(args.local_ns),
            lock_reads: variant.lock_reads,
            forgets: variant.forgets,
        },
        ..run.then(point.workload, ops.max(1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_are_named_on_the_command_line() {
        let args = Args::example(&["--table", "2", "--index", "sherman,p-sherman,dex,dex:leaf_admission=100"]);
        let variants = wanted(&args).expect("variants");
        let names: Vec<_> = variants.iter().map(|variant| variant.name.as_str()).collect();
        assert_eq!(names, ["Sherman", "Sherman, 3 READs", "P-Sherman", "DEX", "DEX, leaf_admission=100"]);
        let divided: Vec<_> = variants.iter().map(|variant| variant.divided).collect();
        assert_eq!(divided, [false, false, true, true, true]);
        for wrong in ["smart", "dex:spam=1", "dex:spam"] {
            assert!(wanted(&Args::example(&["--table", "2", "--index", wrong])).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_variant_without_a_cache_has_the_least_one() {
        let IndexConfig::Dex(config) = Variant::p_sherman().forgetting().config(1 << 20).expect("settings") else {
            panic!("DEX without leaves in the cache")
        };
        assert_eq!(config.cache_bytes, LEAST_CACHE);
    }

    #[test]
    fn the_cache_is_a_share_of_the_data() {
        let point = Point::usual("get=100", 1, 200_000_000);
        assert_eq!(point.cache_bytes(), 256_000_000);
    }
}
