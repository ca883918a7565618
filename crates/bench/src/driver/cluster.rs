//! An index on a simulated cluster, as the driver measures it.
//!
//! Each compute node is one process: one client of the pool, whose lease a heartbeat renews, and one lock table if
//! operations are coalesced. Each worker is a CPU of its own there, with a session and a handle of the index.

use super::blind::Blind;
use super::charged::{Charge, Charged};
use super::{Control, Outcome, Plan, Simulated, Worker, simulate};
use crate::BenchError;
use crate::history::{Recorded, Recording};
use farindex::{AnyIndex, Coalescer, IndexConfig, IndexError, PoolOptions};
use farindex_fabric::{Endpoint, OpKind};
use farindex_index::growth::{Growth, Steps};
use farindex_pool::{Client, Pool, PoolError, Session};
use farindex_sim::{Config, Preset, Sim};
use std::cell::{Cell, RefCell};
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Why a simulation has no outcome.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It ended in a deadlock or a livelock.
    #[error("the simulation ended in a {0}")]
    Stuck(String),
    /// Its history cannot be given out.
    #[error("{0}")]
    History(String),
    /// The library failed.
    #[error(transparent)]
    Farindex(#[from] farindex::Error),
    /// The driver failed.
    #[error(transparent)]
    Bench(#[from] BenchError),
}

/// A simulated cluster and what runs on it.
#[derive(Debug, Clone)]
pub struct Cluster {
    /// Figures of its NICs, links and CPUs.
    pub preset: Preset,
    /// Compute nodes, each one client of the pool.
    pub compute_nodes: usize,
    /// Memory nodes.
    pub memory_nodes: usize,
    /// Bytes of each memory node.
    pub node_len: u64,
    /// Kind and settings of the index.
    pub config: IndexConfig,
    /// Does each compute node have a lock table?
    pub coalesce: bool,
    /// Are inserts blind, that is, upserts? A kind whose upserts check for the key checks all the same.
    pub blind: bool,
    /// What each operation costs in addition.
    pub charge: Charge,
    /// Count what is completed in each span of this length.
    pub series: Option<Duration>,
    /// Record the history of the clients' operations, up to so many.
    pub history: Option<u64>,
}

/// What was measured, and the course of it.
pub struct Simulation {
    /// What the driver measured.
    pub outcome: Outcome,
    /// Operations over time, if that was asked for.
    pub series: Series,
    /// How often a worker has read the root of a table, over the whole run.
    pub synchronizations: u64,
    /// Of the whole run, where the kind counts them.
    pub grown: Grown,
    /// The history, if that was asked for.
    pub recorded: Option<Recorded>,
}

/// What all workers together have merged and split.
#[derive(Debug, Clone, Copy, Default)]
pub struct Grown {
    /// Merges, of a kind that merges.
    pub merges: Steps,
    /// Splits.
    pub splits: Steps,
}

/// Operations completed in each span of virtual time, and when the table was seen to have grown.
#[derive(Debug, Clone, Default)]
pub struct Series {
    /// Length of a span.
    pub width: Duration,
    /// When the first span begins.
    pub begins: Duration,
    /// Operations of each span.
    pub counts: Vec<u64>,
    /// When a worker saw that a table had grown.
    pub grown: Vec<Duration>,
    versions: u64,
}

impl Series {
    fn count(&mut self, now: Duration) {
        if self.counts.is_empty() {
            self.begins = now;
        }
        let at = now.saturating_sub(self.begins).as_nanos() / self.width.as_nanos().max(1);
        let at = usize::try_from(at).unwrap_or(usize::MAX).min(1 << 20);
        if self.counts.len() <= at {
            self.counts.resize(at + 1, 0);
        }
        if let Some(count) = self.counts.get_mut(at) {
            *count += 1;
        }
    }
    fn observe(&mut self, now: Duration, versions: u64) {
        if versions > self.versions {
            if self.versions > 0 {
                self.grown.push(now.saturating_sub(self.begins));
            }
            self.versions = versions;
        }
    }
}

/// One compute node.
struct Process {
    client: Arc<Client>,
    coalescer: Option<Arc<Coalescer>>,
    /// A handle with which it owns its part of the keys, as long as the run lasts.
    _owner: Option<AnyIndex>,
}

/// The index under measurement.
struct ClusterIndex {
    processes: Vec<Process>,
    series: Option<Rc<RefCell<Series>>>,
    synchronizations: Rc<Cell<u64>>,
    grown: Rc<Cell<Grown>>,
    blind: bool,
    charge: Charge,
    memory_nodes: usize,
}

const NAME: &str = "sim";

/// Pause between two heartbeats of a client, as on real fabrics.
const HEARTBEAT: Duration = Duration::from_millis(10);

/// One worker's part.
pub struct ClusterWorker {
    // Dropped before the session it lives in.
    index: Charged<Blind<AnyIndex>>,
    part: usize,
    forgets: bool,
    session: Rc<Session>,
    series: Option<Rc<RefCell<Series>>>,
    synchronizations: Rc<Cell<u64>>,
    grown: Rc<Cell<Grown>>,
}

impl Simulated for ClusterIndex {
    type Worker = ClusterWorker;
    async fn worker(&self, thread: usize, client: &farindex_sim::Client) -> Result<ClusterWorker, String> {
        let part = thread % self.processes.len().max(1);
        let process = self.processes.get(part).ok_or("a cluster without compute nodes")?;
        let session = Rc::new(process.client.session(client.connect()));
        let mut index = AnyIndex::open(&session, NAME).await.map_err(|error| error.to_string())?;
        if let Some(table) = &process.coalescer {
            index = index.coalesced(table);
        }
        let endpoint = session.endpoint().clone();
        let index = Charged::new(Blind::new(index, self.blind), self.charge, endpoint, self.memory_nodes);
        let (synchronizations, grown) = (Rc::clone(&self.synchronizations), Rc::clone(&self.grown));
        let forgets = self.charge.forgets;
        Ok(ClusterWorker { index, part, forgets, session, series: self.series.clone(), synchronizations, grown })
    }
}

/// How often this handle has looked whether the index has grown, where its kind counts that.
fn synchronizations(index: &AnyIndex) -> u64 {
    match index {
        AnyIndex::Shard(index) => index.inner().tables().iter().map(|table| table.synchronizations()).sum(),
        _ => 0,
    }
}

/// What this handle has merged and split.
fn grown(index: &AnyIndex, sum: &mut Grown) {
    let mut add = |growth: &Growth| {
        sum.merges += growth.merges();
        sum.splits += growth.splits();
    };
    match index {
        AnyIndex::SepHash(index) => index.inner().tables().iter().for_each(|table| add(table.growth())),
        AnyIndex::Race(index) => index.inner().tables().iter().for_each(|table| add(table.growth())),
        _ => {}
    }
}

impl Worker for ClusterWorker {
    type Index = Charged<Blind<AnyIndex>>;
    fn part(&self) -> usize {
        self.part
    }
    fn index(&self) -> &Charged<Blind<AnyIndex>> {
        &self.index
    }
    fn endpoint(&self) -> Option<&Endpoint> {
        Some(self.session.endpoint())
    }
    fn now(&self) -> Duration {
        self.session.endpoint().now()
    }
    fn clock_is_free(&self) -> bool {
        true
    }
    async fn wait(&self, turns: u32) {
        // Virtual time passes only while a coroutine sleeps; a long wait need not be checked every microsecond.
        self.session.endpoint().sleep(Duration::from_micros(if turns < 200 { 1 } else { 20 })).await;
    }
    fn between(&self) {
        if self.forgets {
            match self.index.inner().inner() {
                AnyIndex::Sherman(index) => index.inner().forget(),
                AnyIndex::Chime(index) => index.inner().forget(),
                AnyIndex::Dex(index) => index.inner().forget(),
                _ => {}
            }
        }
        let Some(series) = &self.series else { return };
        let (now, mut series) = (self.now(), series.borrow_mut());
        series.observe(now, self.index.inner().inner().statistics().resizes + 1);
        series.count(now);
    }
    async fn far_bytes(&self) -> Option<u64> {
        self.session.flush().await.ok()?;
        let usage = farindex::usage(self.session.pool(), &self.session.span(OpKind::Other)).await.ok()?;
        Some(usage.iter().map(|node| node.used_bytes).sum())
    }
    async fn close(&self) -> Result<(), String> {
        self.synchronizations.set(self.synchronizations.get() + synchronizations(self.index.inner().inner()));
        let mut sum = self.grown.get();
        grown(self.index.inner().inner(), &mut sum);
        self.grown.set(sum);
        self.session.flush().await.map_err(|error| error.to_string())
    }
}

/// Makes the pool and the index; every compute node joins, and owns its part of the keys if the plan divides them.
async fn prepare(
    (cluster, plan): (&Cluster, &Plan),
    fabric: Arc<farindex_sim::SimFabric>,
    harness: Endpoint,
    heartbeats: &[(farindex_sim::Client, Endpoint)],
) -> Result<Vec<Process>, IndexError> {
    let options = PoolOptions { client_slots: heartbeats.len() as u64 + 2, ..PoolOptions::unseeded() };
    let pool = Pool::create(fabric, &harness, &options).await?;
    let mut processes = Vec::new();
    for (heartbeat, endpoint) in heartbeats {
        let client = Client::register(&pool, heartbeat.identity(), endpoint).await?;
        let coalescer = cluster.coalesce.then(Arc::default);
        processes.push(Process { client, coalescer, _owner: None });
    }
    if let (Some(first), Some((_, endpoint))) = (processes.first(), heartbeats.first()) {
        let session = Rc::new(first.client.session(endpoint.clone()));
        AnyIndex::create(&session, NAME, &cluster.config).await?;
    }
    if plan.parts > 1 && matches!(cluster.config, IndexConfig::Dex(_)) {
        for (part, (process, (_, endpoint))) in processes.iter_mut().zip(heartbeats).enumerate() {
            let session = Rc::new(process.client.session(endpoint.clone()));
            let index = AnyIndex::open(&session, NAME).await?;
            let (low, high) = plan.key_space().bounds(part, plan.parts, plan.loaded());
            let high = high.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            index.own((Bound::Included(&low), high)).await?;
            process._owner = Some(index);
        }
    }
    Ok(processes)
}

/// Renews a client's lease and publishes what has quiesced, until it is over.
async fn keep(client: Arc<Client>, endpoint: Endpoint, over: Rc<Cell<bool>>) {
    while !over.get() {
        // A lost lease is reported by the client's next operation; any other failure may pass.
        let _: Result<(), PoolError> = client.tick(&endpoint).await;
        endpoint.sleep(HEARTBEAT).await;
    }
}

/// Builds the cluster and runs the plan on it.
pub fn run(cluster: &Cluster, plan: &Plan, control: &Control<'_>) -> Result<Simulation, Error> {
    let config = Config {
        nodes: cluster.memory_nodes,
        node_len: cluster.node_len,
        model: Some(cluster.preset.clone()),
        // A long run is no livelock; Ctrl-C ends it earlier.
        max_steps: u64::MAX,
        max_time: Duration::MAX,
        ..Config::default()
    };
    let stuck = |what: String| Error::Stuck(what);
    let sim = Rc::new(Sim::new(plan.seed, config).map_err(farindex::Error::from)?);
    sim.set_call_handler(farindex_index::call_table().into_handler());
    // Its memory nodes are behind NICs.
    sim.set_late_calls();
    // Connections belong to whose coroutine makes them: these are made before any runs.
    let heartbeats: Vec<_> = (0..cluster.compute_nodes)
        .map(|node| {
            let heartbeat = sim.client_on(node);
            let endpoint = heartbeat.connect();
            (heartbeat, endpoint)
        })
        .collect();
    let prepared = {
        let (cluster, plan) = (cluster.clone(), plan.clone());
        let (fabric, harness) = (sim.fabric(), sim.harness().connect());
        let heartbeats = heartbeats.clone();
        sim.block_on(async move { prepare((&cluster, &plan), fabric, harness, &heartbeats).await })
    };
    let processes = prepared.map_err(|outcome| stuck(outcome.to_string()))?.map_err(farindex::Error::from)?;
    let over = Rc::new(Cell::new(false));
    for (process, (heartbeat, endpoint)) in processes.iter().zip(&heartbeats) {
        sim.spawn(heartbeat, keep(Arc::clone(&process.client), endpoint.clone(), Rc::clone(&over)));
    }
    let series = cluster.series.map(|width| Rc::new(RefCell::new(Series { width, ..Series::default() })));
    let synchronizations = Rc::new(Cell::new(0));
    let grown = Rc::new(Cell::new(Grown::default()));
    let index = Rc::new(ClusterIndex {
        processes,
        series: series.clone(),
        synchronizations: Rc::clone(&synchronizations),
        grown: Rc::clone(&grown),
        blind: cluster.blind,
        charge: cluster.charge,
        memory_nodes: cluster.memory_nodes,
    });
    let recording = cluster.history.map(|most| Rc::new(Recording::new(Rc::clone(&index), most)));
    let outcome = match &recording {
        Some(recording) => simulate(&sim, cluster.compute_nodes, recording, plan, control),
        None => simulate(&sim, cluster.compute_nodes, &index, plan, control),
    };
    over.set(true);
    let outcome = outcome?;
    // What is still in flight must let go of its log.
    drop(sim);
    let recorded = recording.map(|recording| recording.finish()).transpose();
    let recorded = recorded.map_err(|error| Error::History(error.to_string()))?;
    let series = series.map(|series| series.borrow().clone()).unwrap_or_default();
    let (synchronizations, grown) = (synchronizations.get(), grown.get());
    Ok(Simulation { outcome, series, synchronizations, grown, recorded })
}
