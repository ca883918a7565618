//! From flags and scenario to one run.

use crate::exit::Failure;
use crate::kind::{Settings, kinds};
use crate::pool_arg::remote;
use crate::serve::PollMode;
use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser};
use farindex::{IndexConfig, KINDS, PoolUrl};
use farindex_bench::scenario::{Expect, Scenario};
use farindex_bench::size::{parse_count, parse_duration};
use farindex_bench::{Distribution, KeyOrder, Op, Plan, SizeRange, ValueSize, Workload};
use farindex_index::block::{MAX_KEY, MAX_VALUE};
use std::path::PathBuf;
use std::time::Duration;

/// What runs where nothing is said: scenarios/quick.toml.
const QUICK: &str = include_str!("../../../../scenarios/quick.toml");

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum IndexKind {
    /// An index of a pool
    Pool(IndexConfig),
    /// SHARD's verbs without SHARD: the fabric's limit
    Raw,
    /// A local concurrent map, for orientation; no far memory
    Dashmap,
    /// A local concurrent ordered map, for orientation; no far memory
    Skiplist,
}

const RAW: &str = "raw";
const DASHMAP: &str = "dashmap";
const SKIPLIST: &str = "skiplist";

impl IndexKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            IndexKind::Pool(config) => config.kind(),
            IndexKind::Raw => RAW,
            IndexKind::Dashmap => DASHMAP,
            IndexKind::Skiplist => SKIPLIST,
        }
    }
    fn possible() -> Vec<PossibleValue> {
        let mut values = kinds();
        values.push(PossibleValue::new(RAW).help("SHARD's verbs without SHARD: the fabric's limit"));
        values.push(PossibleValue::new(DASHMAP).help("a local concurrent map, for orientation; no far memory"));
        values
            .push(PossibleValue::new(SKIPLIST).help("a local concurrent ordered map, for orientation; no far memory"));
        values
    }
    fn of(name: &str, settings: &Settings) -> Result<Self, Failure> {
        match name {
            RAW | DASHMAP | SKIPLIST if !settings.is_empty() => {
                Err(Failure::usage(format!("{name} has no settings to set")))
            }
            RAW => Ok(IndexKind::Raw),
            DASHMAP => Ok(IndexKind::Dashmap),
            SKIPLIST => Ok(IndexKind::Skiplist),
            kind => Ok(IndexKind::Pool(settings.of(kind)?)),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FabricKind {
    /// Memory of this process
    Memory,
    /// A mapped file
    Shm,
    /// A memory node of its own, reached over UCX
    Ucx,
    /// A memory node of its own, reached over RDMA verbs
    Verbs,
}

impl FabricKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            FabricKind::Memory => "memory",
            FabricKind::Shm => "shm",
            FabricKind::Ucx => "ucx",
            FabricKind::Verbs => "verbs",
        }
    }
}

/// What to run. Flags change what the scenario says.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// A scenario file: what to run and what to expect of it [default: a short YCSB A]
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// What to measure [default: shard]
    #[arg(long, value_parser = PossibleValuesParser::new(IndexKind::possible()))]
    index: Option<String>,
    #[command(flatten)]
    settings: Settings,
    /// Where its memory is [default: memory]
    #[arg(long, value_enum)]
    fabric: Option<FabricKind>,
    /// For shm: the file to create, which stays afterwards [default: a file in /dev/shm that is removed]
    #[arg(long, value_name = "FILE")]
    path: Option<PathBuf>,
    /// For ucx: how the memory node that is started for the run waits [default: adaptive]
    #[arg(long, value_enum)]
    poll: Option<PollMode>,
    /// Measure on these memory nodes, which serve already; the pool is made if there is none, and the index "bench" in
    /// it is dropped afterwards unless others share it. No efficiency
    #[arg(long, value_name = "ADDR[,ADDR...]", conflicts_with_all = ["fabric", "path", "poll", "size"])]
    connect: Option<String>,
    /// With --connect: the file whose first token is shown to the memory nodes
    #[arg(long, value_name = "FILE", requires = "connect")]
    token_file: Option<PathBuf>,
    /// Worker threads [default: 1]
    #[arg(long, value_name = "T")]
    threads: Option<usize>,
    #[command(flatten)]
    work: Work,
}

/// The work itself.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Work {
    /// ycsb-load, ycsb-a to ycsb-f, churn, get, get-absent, insert, update, upsert, remove, rmw, scan, or a mix such as
    /// get=90,update=10 (percent). ycsb-e and other mixes with scan take an ordered index
    #[arg(long, value_parser = |text: &str| text.parse::<Workload>())]
    workload: Option<Workload>,
    /// Keys of the key space, such as 100K or 10M
    #[arg(long, value_name = "N", value_parser = parse_count)]
    keys: Option<u64>,
    /// Operations to measure; as many as there are keys where each is used once
    #[arg(long, value_name = "N", value_parser = parse_count)]
    ops: Option<u64>,
    /// Operations before the measurement
    #[arg(long, value_name = "N", value_parser = parse_count)]
    warmup: Option<u64>,
    /// End the measured phase after this time, such as 500ms, 10s or 2min
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    duration: Option<Duration>,
    /// Clients (coroutines) on all threads together
    #[arg(long, value_name = "C")]
    pub(crate) clients: Option<usize>,
    /// Keys that a client asks for in one call (get_many), in a workload of gets alone; each is an operation [default: 1]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    many: Option<u64>,
    /// Bytes of a key, at least 8 [default: 8]
    #[arg(long, value_name = "B", value_parser = parse_count)]
    key_size: Option<u64>,
    /// Order of the keys: hashed, or ordered by their numbers [default: hashed]
    #[arg(long, value_name = "ORDER", value_parser = |text: &str| text.parse::<KeyOrder>())]
    key_order: Option<KeyOrder>,
    /// Entries that a scan asks for: a number, or a range from which it is drawn [default: 1..100]
    #[arg(long, value_name = "N", value_parser = |text: &str| text.parse::<SizeRange>())]
    scan_length: Option<SizeRange>,
    /// Bytes of a value: 64, 1Ki, or a range such as 8..256 [default: 8]
    #[arg(long, value_name = "B", value_parser = |text: &str| text.parse::<ValueSize>())]
    value_size: Option<ValueSize>,
    /// How keys are chosen: uniform, scrambled-zipfian, zipfian, latest, sequential [default: the workload's]
    #[arg(long, value_name = "D", value_parser = |text: &str| text.parse::<Distribution>())]
    distribution: Option<Distribution>,
    /// Everything is drawn from this number [default: 1]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Bytes of the pool, such as 2GiB [default: enough for the keys and what is inserted]
    #[arg(long, value_name = "BYTES", value_parser = crate::pool_arg::parse_size)]
    pub(crate) size: Option<u64>,
}

/// One run, decided.
pub(crate) struct Run {
    pub(crate) about: String,
    pub(crate) index: IndexKind,
    pub(crate) fabric: FabricKind,
    pub(crate) path: Option<PathBuf>,
    pub(crate) poll: PollMode,
    /// The memory nodes to use, which are there already.
    pub(crate) connect: Option<PoolUrl>,
    pub(crate) plan: Plan,
    pub(crate) size: u64,
    /// What the scenario expects; `None` once flags have changed what is run.
    pub(crate) expect: Option<Expect>,
}

/// A name that a scenario gives, if it is one of these.
fn named(
    what: &str,
    name: Option<String>,
    scenario: &str,
    possible: &[PossibleValue],
) -> Result<Option<String>, Failure> {
    let Some(name) = name else { return Ok(None) };
    let names: Vec<_> = possible.iter().map(PossibleValue::get_name).collect();
    if names.contains(&name.as_str()) {
        return Ok(Some(name));
    }
    Err(Failure::usage(format!("{scenario}: {what} = {name:?}: there are {}", names.join(", "))))
}

impl Options {
    pub(crate) fn resolve(&self) -> Result<Run, Failure> {
        let scenario = match &self.scenario {
            Some(path) => Scenario::read(path)?,
            None => Scenario::parse("quick.toml", QUICK)?,
        };
        let Scenario { name, about, plan: of_scenario, expect, index, fabric } = scenario;
        let index = self.index.clone().or(named("index", index, &name, &IndexKind::possible())?);
        let index = IndexKind::of(index.as_deref().unwrap_or(IndexConfig::default().kind()), &self.settings)?;
        let fabrics: Vec<_> = FabricKind::value_variants().iter().filter_map(ValueEnum::to_possible_value).collect();
        let fabric = named("fabric", fabric, &name, &fabrics)?.and_then(|name| FabricKind::from_str(&name, false).ok());
        let fabric = self.fabric.or(fabric);
        let plan = self.work.change(&of_scenario, self.threads);
        plan.check()?;
        match index {
            IndexKind::Pool(config) => check_limits(config.kind(), &plan)?,
            IndexKind::Raw | IndexKind::Dashmap => check_order(index.name(), false, &plan)?,
            IndexKind::Skiplist => {}
        }
        let fabric = fabric.unwrap_or(FabricKind::Memory);
        if self.path.is_some() && fabric != FabricKind::Shm {
            return Err(Failure::usage("--path names the file of a shm fabric: add --fabric shm"));
        }
        if self.poll.is_some() && fabric != FabricKind::Ucx {
            return Err(Failure::usage("--poll is how the memory node of the ucx fabric waits: add --fabric ucx"));
        }
        let unchanged = plan == of_scenario && self.work.size.is_none() && self.settings.is_empty();
        Ok(Run {
            about: if unchanged { about } else { String::new() },
            index,
            fabric,
            path: self.path.clone(),
            poll: self.poll.unwrap_or(PollMode::Adaptive),
            connect: self.connect.as_deref().map(|addrs| remote(addrs, self.token_file.as_ref())).transpose()?,
            size: self.work.size.unwrap_or_else(|| plan.pool_bytes()).next_multiple_of(4096),
            plan,
            expect: unchanged.then_some(expect),
        })
    }
}

impl Work {
    /// A plan with what the flags say.
    pub(crate) fn change(&self, plan: &Plan, threads: Option<usize>) -> Plan {
        let mut plan = plan.clone();
        if let Some(workload) = &self.workload {
            plan.workload = workload.clone();
            plan.distribution = None;
            let mix = &plan.workload.mix;
            if !plan.workload.preload || mix.percent(Op::Remove) >= 100.0 {
                // Every key is used once: there are as many operations as keys, and none to spare for a warm-up.
                (plan.ops, plan.warmup) = (None, 0);
            }
        }
        plan.keys = self.keys.unwrap_or(plan.keys);
        plan.ops = self.ops.or(plan.ops);
        plan.warmup = self.warmup.unwrap_or(plan.warmup);
        if self.duration.is_some() {
            plan.duration = self.duration;
            // Only time ends it, unless a number was asked for as well.
            plan.ops = self.ops;
        }
        plan.threads = threads.unwrap_or(plan.threads);
        plan.clients = self.clients.unwrap_or(plan.clients.max(plan.threads));
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        plan.many = self.many.map_or(plan.many, size);
        plan.key_size = self.key_size.map_or(plan.key_size, size);
        plan.key_order = self.key_order.unwrap_or(plan.key_order);
        plan.scan_length = self.scan_length.unwrap_or(plan.scan_length);
        plan.value_size = self.value_size.unwrap_or(plan.value_size);
        plan.distribution = self.distribution.or(plan.distribution);
        plan.seed = self.seed.unwrap_or(plan.seed);
        plan
    }
}

/// Refuses a workload with scans if the index cannot scan.
fn check_order(kind: &str, ordered: bool, plan: &Plan) -> Result<(), Failure> {
    if ordered || !plan.scans() {
        return Ok(());
    }
    let others = KINDS.iter().filter(|kind| kind.ordered).map(|kind| kind.name);
    let others: Vec<_> = others.chain([SKIPLIST]).collect();
    Err(Failure::usage(format!(
        "the workload {} has scans, and the keys of {kind} have no order: choose an ordered --index ({})",
        plan.workload.name,
        others.join(", ")
    )))
}

/// Refuses a plan that an index of this kind cannot carry out: keys or values that are too long, scans of unordered
/// keys.
pub(crate) fn check_limits(kind: &str, plan: &Plan) -> Result<(), Failure> {
    check_order(kind, KINDS.iter().any(|known| known.name == kind && known.ordered), plan)?;
    for (what, size, most) in [("keys", plan.key_size, MAX_KEY), ("values", plan.value_size.max, MAX_VALUE)] {
        if size > most {
            return Err(Failure::usage(format!(
                "{what} of {size} bytes: an index of kind {kind} takes at most {most}"
            )));
        }
    }
    Ok(())
}
