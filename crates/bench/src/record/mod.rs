//! One row for each run, for machines (JSON) and for people (a table).
//!
//! Invariants: a row says everything that is needed to run it again; names and meanings of fields change only with the
//! changelog; verbs are means for one operation of their kind, over the measured phase alone; what was not measured is
//! `null`, not 0.

mod host;
mod table;

pub use host::Host;
pub use table::{labelled, table};

use crate::driver::{Latency, Outcome};
use crate::workload::Op;
use farindex_fabric::{Meter, OpKind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What was measured, as the caller names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Kind of index, or baseline.
    pub index: String,
    /// Fabric, as the user wrote it.
    pub fabric: String,
}

/// Latencies, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LatencyNs {
    /// Median.
    pub p50: u64,
    /// 99 of 100 are not slower.
    pub p99: u64,
    /// 999 of 1000 are not slower.
    pub p999: u64,
    /// Mean.
    pub mean: f64,
    /// The slowest.
    pub max: u64,
    /// How many operations were timed.
    pub samples: u64,
}

impl From<&Latency> for LatencyNs {
    fn from(latency: &Latency) -> Self {
        LatencyNs {
            p50: latency.quantile_ns(0.5),
            p99: latency.quantile_ns(0.99),
            p999: latency.quantile_ns(0.999),
            mean: round(latency.mean_ns(), 1),
            max: latency.max_ns(),
            samples: latency.samples(),
        }
    }
}

/// One kind of operation as the clients saw it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OperationRow {
    /// Operations.
    pub count: u64,
    /// Entries that all scans together returned; absent for other operations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entries: Option<u64>,
    /// Their latencies.
    pub latency_ns: LatencyNs,
}

/// One kind of operation as the fabric saw it: means for one operation.
///
/// The kinds are the fabric's: gets of present and absent keys are one, and a read-modify-write is a get and an update.
/// `maintenance` is what no single operation pays for; its means are for one step of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct KindRow {
    /// Operations that the clients asked for, or, of kinds that they cannot ask for, steps that the meter counted.
    pub count: u64,
    /// Waits on the critical path.
    pub round_trips: f64,
    /// Those of them that only dereferenced key-value blocks.
    pub block_round_trips: f64,
    /// READs.
    pub reads: f64,
    /// Those READs that fetched key-value blocks.
    pub block_reads: f64,
    /// WRITEs.
    pub writes: f64,
    /// Compare-and-swaps.
    pub cas: f64,
    /// Fetch-and-adds.
    pub faa: f64,
    /// Messages to memory nodes' CPUs.
    pub calls: f64,
    /// Bytes read.
    pub bytes_read: f64,
    /// Bytes written.
    pub bytes_written: f64,
    /// Batches posted.
    pub batches: f64,
}

impl KindRow {
    /// A mean by name, as `farindex_fabric`'s meter names it.
    pub fn mean(&self, name: &str) -> Option<f64> {
        Some(match name {
            "round_trips" => self.round_trips,
            "block_round_trips" => self.block_round_trips,
            "reads" => self.reads,
            "block_reads" => self.block_reads,
            "writes" => self.writes,
            "cas" => self.cas,
            "faa" => self.faa,
            "calls" => self.calls,
            "bytes_read" => self.bytes_read,
            "bytes_written" => self.bytes_written,
            "batches" => self.batches,
            _ => return None,
        })
    }
}

/// Faults of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultRow {
    /// Which kind.
    pub kind: String,
    /// How many.
    pub count: u64,
    /// The first, in words.
    pub first: String,
}

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Kind of index, or baseline.
    pub index: String,
    /// Fabric.
    pub fabric: String,
    /// Name of the workload, or its mix.
    pub workload: String,
    /// The mix.
    pub mix: String,
    /// How keys were chosen.
    pub distribution: String,
    /// Keys of the key space.
    pub keys: u64,
    /// How many of them were loaded before.
    pub loaded: u64,
    /// Keys present at the end.
    pub entries: u64,
    /// Bytes of a key.
    pub key_size: usize,
    /// What the order of keys has to do with the order in which they are inserted: `hashed` or `ordered`.
    pub key_order: String,
    /// Bytes of a value: one number, or a range.
    pub value_size: String,
    /// Entries that a scan asks for; absent where the workload has no scans.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scan_length: Option<String>,
    /// Operations measured.
    pub ops: u64,
    /// Operations before the measurement.
    pub warmup: u64,
    /// Worker threads.
    pub threads: usize,
    /// Clients on all threads together.
    pub clients: usize,
    /// Keys that one call asked for, if they were several: each is an operation, and a latency is that of a call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub many: Option<usize>,
    /// Everything was drawn from this.
    pub seed: u64,
    /// Length of the measured phase.
    pub seconds: f64,
    /// Operations per second.
    pub throughput_ops_per_s: f64,
    /// Throughput as a share of the raw reference's, if that was run.
    pub efficiency: Option<f64>,
    /// Operations per second of the raw reference with so many clients that its messages are full: what the fabric
    /// carries at most of these verbs and bytes. `null` where it was not run, and where no messages are sent.
    #[serde(default)]
    pub ceiling_ops_per_s: Option<f64>,
    /// Of all operations.
    pub latency_ns: LatencyNs,
    /// Far memory for each present key, at the end; `null` if the index cannot tell.
    pub far_bytes_per_entry: Option<f64>,
    /// Far memory at the end.
    pub far_bytes: Option<u64>,
    /// The same when the measured phase began.
    pub far_bytes_before: Option<u64>,
    /// What the compute node caches.
    pub cache_bytes: u64,
    /// Messages that clients sent to memory nodes, for one operation. Operations in flight together share them, and so do
    /// verbs of maintenance: the sum over all, divided by the operations. `null` where the fabric sends none.
    #[serde(default)]
    pub messages_per_op: Option<f64>,
    /// Messages that memory nodes answered with, for one operation.
    #[serde(default)]
    pub answers_per_op: Option<f64>,
    /// Doorbells of NICs, for one operation; `null` where there are none.
    #[serde(default)]
    pub doorbells_per_op: Option<f64>,
    /// Wrong answers, in all phases. Not 0 means that the run has failed.
    pub wrong_answers: u64,
    /// Failed operations, in all phases.
    pub errors: u64,
    /// The run was ended early.
    pub interrupted: bool,
    /// By operation, as the clients saw it.
    pub operations: BTreeMap<String, OperationRow>,
    /// By kind of operation, as the fabric saw it; empty where there is no fabric.
    pub kinds: BTreeMap<String, KindRow>,
    /// Wrong answers by kind, with the first of each.
    pub wrong_answer_kinds: Vec<FaultRow>,
    /// Errors by kind, with the first of each.
    pub error_kinds: Vec<FaultRow>,
    /// Where it ran.
    pub host: Host,
}

fn round(number: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (number * scale).round() / scale
}

impl Row {
    /// The row of a run. `efficiency` is for the caller to add (see [`baseline`](crate::baseline)), and so are
    /// `cache_bytes` and the far bytes where the driver could not ask for them.
    pub fn new(identity: Identity, outcome: &Outcome) -> Self {
        let Outcome { plan, measured, .. } = outcome;
        let faults = |faults: &crate::Faults| {
            let row = |(kind, count, first): (&str, u64, &str)| FaultRow {
                kind: kind.to_owned(),
                count,
                first: first.to_owned(),
            };
            faults.iter().map(row).collect()
        };
        let operation = |op: Op| {
            let count = measured.count(op);
            let entries = (op == Op::Scan).then_some(measured.entries_scanned);
            let row = OperationRow { count, entries, latency_ns: measured.latency(op).into() };
            (count > 0).then(|| (op.name().to_owned(), row))
        };
        let traffic = measured.meter.as_ref().map(Meter::traffic).unwrap_or_default();
        let for_one = |count: u64| (count > 0).then(|| round(count as f64 / measured.ops().max(1) as f64, 4));
        let mut row = Row {
            index: identity.index,
            fabric: identity.fabric,
            workload: plan.workload.name.clone(),
            mix: plan.workload.mix.to_string(),
            distribution: plan.distribution().to_string(),
            keys: plan.keys,
            loaded: plan.loaded(),
            entries: outcome.entries,
            key_size: plan.key_size,
            key_order: plan.key_order.to_string(),
            value_size: plan.value_size.to_string(),
            scan_length: plan.scans().then(|| plan.scan_length.to_string()),
            ops: measured.ops(),
            warmup: plan.warmup,
            threads: plan.threads,
            clients: plan.clients,
            many: (plan.many > 1).then_some(plan.many),
            seed: plan.seed,
            seconds: measured.elapsed.as_secs_f64(),
            throughput_ops_per_s: round(measured.throughput(), 1),
            efficiency: None,
            ceiling_ops_per_s: None,
            latency_ns: (&measured.latency_of_all()).into(),
            far_bytes_per_entry: None,
            far_bytes: outcome.far_bytes.after,
            far_bytes_before: outcome.far_bytes.before,
            cache_bytes: outcome.cache_bytes,
            messages_per_op: for_one(traffic.messages),
            answers_per_op: for_one(traffic.answers),
            doorbells_per_op: for_one(traffic.doorbells),
            wrong_answers: outcome.wrong.total(),
            errors: outcome.errors.total(),
            interrupted: outcome.interrupted,
            operations: Op::ALL.into_iter().filter_map(operation).collect(),
            kinds: measured.meter.as_ref().map(|meter| kinds(meter, |op| measured.count(op))).unwrap_or_default(),
            wrong_answer_kinds: faults(&outcome.wrong),
            error_kinds: faults(&outcome.errors),
            host: Host::here(),
        };
        if let Some(bytes) = row.far_bytes {
            row.set_far_bytes(bytes);
        }
        row
    }

    /// Mean number of entries that a scan returned.
    pub fn entries_per_scan(&self) -> Option<f64> {
        let scans = self.operations.get(Op::Scan.name())?;
        Some(scans.entries? as f64 / scans.count.max(1) as f64)
    }

    /// Far memory in use at the end, where the driver could not ask for it.
    pub fn set_far_bytes(&mut self, bytes: u64) {
        self.far_bytes = Some(bytes);
        self.far_bytes_per_entry = (self.entries > 0).then(|| round(bytes as f64 / self.entries as f64, 2));
    }

    /// As one JSON object.
    pub fn to_json(&self) -> String {
        // Neither a map with keys that are no strings nor a failing writer is involved, which are the only ways to
        // fail.
        serde_json::to_string_pretty(self).unwrap_or_else(|error| format!("{{\"error\": {:?}}}", error.to_string()))
    }
}

/// Means for one operation: a lookup that another one answered costs no verb, but it is an operation all the same.
fn kinds(meter: &Meter, asked: impl Fn(Op) -> u64) -> BTreeMap<String, KindRow> {
    let asked = |kind| match kind {
        OpKind::Get => asked(Op::Get) + asked(Op::GetAbsent) + asked(Op::Rmw),
        OpKind::Insert => asked(Op::Insert),
        OpKind::Update => asked(Op::Update) + asked(Op::Rmw),
        OpKind::Upsert => asked(Op::Upsert),
        OpKind::Remove => asked(Op::Remove),
        OpKind::Scan => asked(Op::Scan),
        _ => 0,
    };
    let row = |kind: OpKind| {
        let stats = meter.of(kind);
        let count = match asked(kind) {
            0 => stats.ops,
            asked => asked,
        };
        let mean = |total: u64| round(total as f64 / count as f64, 4);
        let row = KindRow {
            count,
            round_trips: mean(stats.round_trips),
            block_round_trips: mean(stats.block_round_trips),
            reads: mean(stats.reads),
            block_reads: mean(stats.block_reads),
            writes: mean(stats.writes),
            cas: mean(stats.cas),
            faa: mean(stats.faa),
            calls: mean(stats.calls),
            bytes_read: mean(stats.bytes_read),
            bytes_written: mean(stats.bytes_written),
            batches: mean(stats.batches),
        };
        (count > 0).then(|| (kind.name().to_owned(), row))
    };
    OpKind::ALL.into_iter().filter_map(row).collect()
}

#[cfg(test)]
mod tests;
