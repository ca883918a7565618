//! `farindex sim`.

pub(crate) mod sweep;

use crate::bench::history::{HistoryReport, Judged};
use crate::bench::{Watch, Work, check_limits};
use crate::exit::{self, Failure};
use crate::kind::{Settings, kinds};
use crate::output::{Json, note};
use clap::builder::PossibleValuesParser;
use farindex::IndexConfig;
use farindex_bench::driver::cluster::{self, Cluster};
use farindex_bench::history::Recorded;
use farindex_bench::record::{Identity, table};
use farindex_bench::size::parse_count;
use farindex_bench::{Control, Plan, Row, Workload};
use farindex_sim::Preset;
use std::fs::File;
use std::path::Path;
use sweep::Sweep;

/// Predict what an index would deliver on a cluster: the benchmark on a simulated one, in virtual time
///
/// Without arguments: 10,000 keys, 5,000 operations to warm up and 50,000 measured, YCSB A, on SHARD's cluster as its
/// paper describes it, one client on each core. The same index code and the same driver run as in `farindex bench`, and
/// every answer is verified. NICs, links and cores are simulated with the parameters of a preset. Where a paper does
/// not give one, an assumption is used, and the output lists it. Seconds and latencies are virtual; the same seed gives
/// the same output, byte for byte.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Parameters of the cluster: linear-probing, shard, sephash, chime or dex, each from the paper of that name
    #[arg(long, value_name = "NAME", default_value = "shard", value_parser = preset)]
    preset: Preset,
    /// Which index
    #[arg(long, default_value = IndexConfig::default().kind(), value_parser = PossibleValuesParser::new(kinds()))]
    index: String,
    #[command(flatten)]
    settings: Settings,
    /// Compute nodes [default: the preset's]
    #[arg(long, value_name = "N", value_parser = number)]
    compute_nodes: Option<usize>,
    /// Memory nodes [default: the preset's]
    #[arg(long, value_name = "N", value_parser = number)]
    memory_nodes: Option<usize>,
    /// Cores that run clients, on all compute nodes together [default: one for each client, as far as the preset has
    /// them]
    #[arg(long, value_name = "T", value_parser = number)]
    threads: Option<usize>,
    #[command(flatten)]
    work: Work,
    /// Operations of one compute node on one key share their verbs: the local lock table
    #[arg(long)]
    coalesce: bool,
    /// Run once for each of these: clients, threads, compute-nodes or memory-nodes, such as clients=1,2,4,8
    #[arg(long, value_name = "WHAT=N,N,...")]
    sweep: Option<Sweep>,
    /// With --sweep: write OUT.csv, OUT.svg and OUT.html
    #[arg(long, value_name = "OUT", requires = "sweep", default_value = "farindex-sweep")]
    out: std::path::PathBuf,
    /// Record the outcome of every operation of every phase, to this file (docs/history-format.md), and check it: exit
    /// code 1 unless it is linearizable. Virtual time does not change by it
    #[arg(long, value_name = "FILE", conflicts_with = "sweep")]
    history: Option<std::path::PathBuf>,
    /// The history ends after this many operations; each takes about 250 bytes of memory, and its key and value (of a
    /// value beyond 32 bytes, a hash)
    #[arg(long, value_name = "N", requires = "history", default_value = "1M", value_parser = parse_count)]
    history_ops: u64,
    /// Show a progress bar even if standard error is no terminal
    #[arg(long, overrides_with = "no_progress")]
    progress: bool,
    /// Show no progress bar
    #[arg(long)]
    no_progress: bool,
    #[command(flatten)]
    json: Json,
}

fn preset(name: &str) -> Result<Preset, String> {
    let names = || Preset::all().map(|preset| preset.name).join(", ");
    Preset::named(name).ok_or_else(|| format!("there is no preset {name:?}; there are {}", names()))
}

fn number(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("it takes at least one".to_owned()),
        Ok(number) => Ok(number),
        Err(_) => Err(format!("{text:?} is no number")),
    }
}

/// A cluster with more compute nodes than this says more about the memory of this machine.
const COMPUTE_NODES: usize = 1000;

/// One run, decided.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) cluster: Cluster,
    pub(crate) plan: Plan,
}

/// Numbers that a sweep changes.
#[derive(Debug, Clone, Copy, Default)]
struct Numbers {
    clients: Option<usize>,
    threads: Option<usize>,
    compute_nodes: Option<usize>,
    memory_nodes: Option<usize>,
}

impl Args {
    fn resolve(&self, numbers: Numbers) -> Result<Run, Failure> {
        let preset = &self.preset;
        let compute_nodes = numbers.compute_nodes.or(self.compute_nodes).unwrap_or(preset.compute_nodes);
        let memory_nodes = numbers.memory_nodes.or(self.memory_nodes).unwrap_or(preset.memory_nodes);
        if compute_nodes > COMPUTE_NODES {
            return Err(Failure::usage(format!("{compute_nodes} compute nodes: it takes at most {COMPUTE_NODES}")));
        }
        let max = farindex_fabric::ptr::MAX_NODES;
        if memory_nodes > max {
            return Err(Failure::usage(format!("{memory_nodes} memory nodes: it takes at most {max}")));
        }
        let cores = compute_nodes * preset.clients_per_node;
        let clients = numbers.clients.or(self.work.clients).unwrap_or(cores);
        let threads = numbers.threads.or(self.threads).unwrap_or(cores.min(clients));
        let workload: Workload = "ycsb-a".parse().map_err(|why: String| Failure::new(exit::BUG, why))?;
        let usual = Plan { keys: 10_000, warmup: 5_000, ops: Some(50_000), clients, ..Plan::new(workload) };
        let mut plan = self.work.change(&usual, Some(threads));
        plan.clients = clients;
        plan.check()?;
        check_limits(&self.index, &plan)?;
        let size = self.work.size.unwrap_or_else(|| plan.pool_bytes());
        // Every worker has chunks of its own on each memory node.
        let node_len = (size / memory_nodes as u64 + ((threads as u64) << 20)).next_multiple_of(4096);
        let cluster = Cluster {
            preset: preset.clone(),
            compute_nodes,
            memory_nodes,
            node_len: self.work.size.map_or(node_len, |size| size.next_multiple_of(4096)),
            config: self.settings.of(&self.index)?,
            coalesce: self.coalesce,
            blind: false,
            charge: Default::default(),
            series: None,
            history: self.history.as_ref().map(|_| self.history_ops),
        };
        Ok(Run { cluster, plan })
    }
}

/// What machines get: a row of `bench`, and what was simulated.
#[derive(Debug, serde::Serialize)]
pub(crate) struct SimRow {
    #[serde(flatten)]
    pub(crate) row: Row,
    /// Length of the measured phase in virtual time; `seconds` says the same.
    virtual_seconds: f64,
    preset: &'static str,
    compute_nodes: usize,
    memory_nodes: usize,
    coalesce: bool,
    /// Figures of the preset that no paper gives.
    assumptions: Vec<String>,
    /// What became of the history, if one was wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<HistoryReport>,
}

fn assumptions(preset: &Preset) -> Vec<String> {
    preset.assumptions.iter().map(|(field, why)| format!("{field}: {why}")).collect()
}

pub(crate) fn measure(run: &Run, control: &Control<'_>) -> Result<(SimRow, Option<Recorded>), Failure> {
    let Run { cluster, plan } = run;
    let simulation = cluster::run(cluster, plan, control)?;
    let row =
        Row::new(Identity { index: cluster.config.kind().to_owned(), fabric: "sim".to_owned() }, &simulation.outcome);
    let row = SimRow {
        virtual_seconds: row.seconds,
        row,
        preset: cluster.preset.name,
        compute_nodes: cluster.compute_nodes,
        memory_nodes: cluster.memory_nodes,
        coalesce: cluster.coalesce,
        assumptions: assumptions(&cluster.preset),
        history: None,
    };
    Ok((row, simulation.recorded))
}

/// The same, with the history written to a file.
fn record(run: &Run, path: &Path, watch: &Watch) -> Result<SimRow, Failure> {
    // A file that cannot be written is found out before the run.
    let file = File::create(path).map_err(|error| Failure::file(path.display(), "cannot be written", &error))?;
    let (row, recorded) = watch.show(|control| measure(run, control))?;
    let judged = if watch.stopped() { Judged::Not } else { Judged::Whole };
    let history = recorded.map(|recorded| HistoryReport::of(path, file, &recorded, judged)).transpose()?;
    Ok(SimRow { history, ..row })
}

fn sound(row: &SimRow) -> bool {
    row.row.wrong_answers == 0 && row.row.errors == 0 && row.history.as_ref().is_none_or(HistoryReport::holds)
}

fn text(row: &SimRow) -> String {
    let mut text = format!(
        "predicted for {} compute nodes and {} memory nodes of {:?}; {:.6} virtual seconds\n\n{}",
        row.compute_nodes,
        row.memory_nodes,
        row.preset,
        row.virtual_seconds,
        table(std::slice::from_ref(&row.row)),
    );
    if let Some(history) = &row.history {
        text += &format!("\n{history}");
    }
    text += "\nassumed, as no paper gives it:\n";
    row.assumptions.iter().for_each(|assumption| text += &format!("  {assumption}\n"));
    text
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    let wanted = match (args.progress, args.no_progress) {
        (_, true) => Some(false),
        (true, false) => Some(true),
        (false, false) => None,
    };
    if let Some(sweep) = &args.sweep {
        return sweep::run(args, sweep, wanted);
    }
    let run = args.resolve(Numbers::default())?;
    let watch = Watch::new(wanted)?;
    let row = match &args.history {
        Some(path) => record(&run, path, &watch)?,
        None => watch.show(|control| measure(&run, control))?.0,
    };
    args.json.give(&row, || text(&row))?;
    if watch.stopped() {
        return Ok(exit::INTERRUPTED);
    }
    if row.row.error_kinds.iter().any(|fault| fault.kind.contains("Full")) {
        note("error: the memory nodes were too small for this run: give them more by --size, or fewer keys");
    }
    Ok(if sound(&row) { exit::OK } else { exit::NO })
}
