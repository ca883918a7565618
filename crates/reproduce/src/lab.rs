//! Runs of several kinds of index on one simulated cluster, and their cost.

use crate::report::{Error, Watch};
use farindex::IndexConfig;
use farindex_bench::driver::charged::Charge;
use farindex_bench::driver::cluster::{Cluster, Grown};
use farindex_bench::record::{Identity, KindRow};
use farindex_bench::workload::{Distribution, SizeRange, ValueSize, Zipf};
use farindex_bench::{Plan, Row, Workload};
use farindex_sim::Preset;
use serde::Serialize;

/// A cluster, and what all runs on it have in common.
pub(super) struct Lab<'a> {
    pub(super) preset: Preset,
    /// Clients that run on one compute node; there are as many of those as it takes.
    pub(super) per_node: usize,
    pub(super) key_size: usize,
    pub(super) value_size: usize,
    /// Entries that scans ask for.
    pub(super) scan_length: SizeRange,
    pub(super) seed: u64,
    pub(super) watch: Watch<'a>,
}

/// What YCSB's scans ask for.
pub(super) const SCANS: SizeRange = SizeRange { min: 1, max: 100 };

/// One run.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) config: IndexConfig,
    pub(super) workload: String,
    pub(super) distribution: Option<Distribution>,
    /// Keys that are loaded before, or, for `ycsb-load`, whose load is measured.
    pub(super) keys: u64,
    pub(super) ops: Option<u64>,
    /// Operations between load and measurement.
    pub(super) warmup: u64,
    pub(super) clients: usize,
    /// Do inserts look? See [`Cluster::blind`].
    pub(super) blind: bool,
    pub(super) coalesce: bool,
    /// Is each compute node the owner of a part of the keys, and works on no others?
    pub(super) divided: bool,
    /// What each operation costs in addition.
    pub(super) charge: Charge,
    /// Skew of the Zipfian distributions.
    pub(super) theta: f64,
}

impl Run {
    /// Loads so many keys, and measures that.
    pub(super) fn load(config: IndexConfig, keys: u64, clients: usize) -> Self {
        // SepHash's paper inserts without looking; RACE cannot.
        let blind = matches!(config, IndexConfig::SepHash(_));
        let workload = "ycsb-load".to_owned();
        Run {
            config,
            workload,
            distribution: None,
            keys,
            ops: None,
            warmup: 0,
            clients,
            blind,
            coalesce: false,
            divided: false,
            charge: Charge::default(),
            theta: Zipf::THETA,
        }
    }
    /// The same, and then so many operations of a workload, which are measured.
    pub(super) fn then(self, workload: &str, ops: u64) -> Self {
        Run { workload: workload.to_owned(), ops: Some(ops), ..self }
    }
}

/// What a run has come to. Costs are means for one operation, whatever clients do between operations included.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Measured {
    pub(super) index: String,
    pub(super) clients: usize,
    pub(super) ops: u64,
    /// Operations in a virtual second.
    pub(super) ops_per_s: f64,
    pub(super) p50_ns: u64,
    pub(super) p99_ns: u64,
    pub(super) mean_ns: f64,
    pub(super) round_trips: f64,
    /// Those of them that only dereferenced key-value blocks.
    pub(super) block_round_trips: f64,
    pub(super) verbs: f64,
    pub(super) reads: f64,
    pub(super) writes: f64,
    pub(super) cas: f64,
    pub(super) faa: f64,
    pub(super) calls: f64,
    pub(super) bytes_read: f64,
    pub(super) bytes_written: f64,
    /// Shares of what the memory nodes' NICs can do: messages, atomics, bytes of the busier direction.
    pub(super) messages_used: f64,
    pub(super) atomics_used: f64,
    pub(super) bytes_used: f64,
    /// For each memory node, the share of the time in which the busiest server of its NIC was at work.
    pub(super) nics: Vec<f64>,
    /// Of the whole run, load included.
    pub(super) merges: u64,
    pub(super) splits: u64,
    pub(super) merge_seconds: f64,
    pub(super) split_seconds: f64,
}

impl Measured {
    fn of(row: &Row, nics: Vec<f64>, grown: Grown, lab: &Lab<'_>) -> Self {
        let mut sum = KindRow::default();
        for kind in row.kinds.values() {
            let count = kind.count as f64 / row.ops.max(1) as f64;
            sum.round_trips += kind.round_trips * count;
            sum.block_round_trips += kind.block_round_trips * count;
            sum.reads += kind.reads * count;
            sum.writes += kind.writes * count;
            sum.cas += kind.cas * count;
            sum.faa += kind.faa * count;
            sum.calls += kind.calls * count;
            sum.bytes_read += kind.bytes_read * count;
            sum.bytes_written += kind.bytes_written * count;
        }
        let verbs = sum.reads + sum.writes + sum.cas + sum.faa;
        let each = row.throughput_ops_per_s / lab.preset.memory_nodes as f64;
        let seconds = |ps: u64| ps as f64 / 1e12;
        let bytes = sum.bytes_read.max(sum.bytes_written) + verbs * lab.preset.header_bytes as f64;
        Measured {
            index: row.index.clone(),
            clients: row.clients,
            ops: row.ops,
            ops_per_s: row.throughput_ops_per_s,
            p50_ns: row.latency_ns.p50,
            p99_ns: row.latency_ns.p99,
            mean_ns: row.latency_ns.mean,
            round_trips: sum.round_trips,
            block_round_trips: sum.block_round_trips,
            verbs,
            reads: sum.reads,
            writes: sum.writes,
            cas: sum.cas,
            faa: sum.faa,
            calls: sum.calls,
            bytes_read: sum.bytes_read,
            bytes_written: sum.bytes_written,
            messages_used: each * verbs * seconds(lab.preset.message_ps),
            atomics_used: each * (sum.cas + sum.faa) * seconds(lab.preset.atomic_ps),
            bytes_used: each * bytes * seconds(lab.preset.byte_ps),
            nics,
            merges: grown.merges.count,
            splits: grown.splits.count,
            merge_seconds: grown.merges.took.as_secs_f64(),
            split_seconds: grown.splits.took.as_secs_f64(),
        }
    }

    /// Share of the clients' time that went into merges and splits.
    pub(super) fn resizing(&self) -> f64 {
        let all = self.mean_ns * 1e-9 * self.ops as f64;
        if all > 0.0 { (self.merge_seconds + self.split_seconds) / all } else { 0.0 }
    }

    pub(super) fn over(&self, other: &Measured) -> f64 {
        self.ops_per_s / other.ops_per_s
    }

    /// What it costs, in one line.
    pub(super) fn cost(&self) -> String {
        format!(
            "{:.2} round trips, {:.2} verbs ({:.2} CAS), {:.0} + {:.0} bytes read and written for each; {:.0} % of the memory NIC's \
             messages, {:.0} % of its atomics, {:.0} % of its bytes; the NICs at work: {}",
            self.round_trips,
            self.verbs,
            self.cas,
            self.bytes_read,
            self.bytes_written,
            self.messages_used * 100.0,
            self.atomics_used * 100.0,
            self.bytes_used * 100.0,
            match self.nics.as_slice() {
                [] => "too short a run".to_owned(),
                nics => nics.iter().map(|share| format!("{:.0} %", share * 100.0)).collect::<Vec<_>>().join(", "),
            }
        )
    }
}

impl Lab<'_> {
    /// Runs it.
    pub(super) fn run(&self, run: &Run) -> Result<Measured, Error> {
        let workload: Workload = run.workload.parse().map_err(|why: String| Error::Bug(why))?;
        let (keys, clients) = (run.keys, run.clients);
        let compute_nodes = clients.div_ceil(self.per_node).max(1);
        let plan = Plan {
            keys,
            clients,
            threads: clients,
            ops: run.ops,
            warmup: run.warmup,
            distribution: run.distribution,
            key_size: self.key_size,
            value_size: ValueSize::fixed(self.value_size),
            scan_length: self.scan_length,
            theta: run.theta,
            parts: if run.divided { compute_nodes } else { 1 },
            seed: self.seed,
            audit: false,
            ..Plan::new(workload)
        };
        plan.check()?;
        let memory_nodes = self.preset.memory_nodes;
        // Every worker has chunks of its own of many sizes on each memory node; what is not used costs nothing.
        let node_len = plan.pool_bytes() * 2 / memory_nodes as u64 + ((clients as u64) << 22);
        let cluster = Cluster {
            preset: self.preset.clone(),
            compute_nodes,
            memory_nodes,
            node_len: node_len.next_multiple_of(4096),
            config: run.config,
            coalesce: run.coalesce,
            blind: run.blind,
            charge: run.charge,
            series: None,
            history: None,
        };
        let simulation = self.watch.simulate(&cluster, &plan)?;
        let outcome = &simulation.outcome;
        let row = Row::new(Identity { index: run.config.kind().to_owned(), fabric: "sim".to_owned() }, outcome);
        match row.wrong_answers + row.errors {
            0 => Ok(Measured::of(&row, outcome.measured.nics.clone(), simulation.grown, self)),
            _ => Err(Error::Wrong(format!("{}: {} {}", row.workload, outcome.wrong, outcome.errors))),
        }
    }

    /// Runs all of them.
    pub(super) fn run_all(&self, runs: impl IntoIterator<Item = Run>) -> Result<Vec<Measured>, Error> {
        runs.into_iter().map(|run| self.run(&run)).collect()
    }
}

/// A line for each run, with a name.
pub(super) fn table(runs: &[(String, &Measured)]) -> String {
    let width = runs.iter().map(|(name, _)| name.chars().count()).max().unwrap_or_default().max(34);
    let mut text = format!(
        "  {:width$} {:>9} {:>9} {:>9} {:>7} {:>7} {:>8}\n",
        "", "M ops/s", "p50 us", "p99 us", "trips", "verbs", "bytes"
    );
    for (name, run) in runs {
        let (p50, p99) = (run.p50_ns as f64 / 1e3, run.p99_ns as f64 / 1e3);
        let bytes = run.bytes_read + run.bytes_written;
        text += &format!(
            "  {name:width$} {:>9.3} {p50:>9.2} {p99:>9.2} {:>7.2} {:>7.2} {bytes:>8.0}\n",
            run.ops_per_s / 1e6,
            run.round_trips,
            run.verbs
        );
    }
    text
}
