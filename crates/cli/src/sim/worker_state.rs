//! An index on a simulated cluster, as the driver measures it.
//!
//! Each compute node is one process: one client of the pool, whose lease a keeper renews, and one lock table if operations
//! are coalesced. Each worker is a CPU of its own there, with a session and a handle of the index.

use super::blind::Blind;
use crate::exit::{self, Failure};
use farindex::{AnyIndex, Coalescer, IndexConfig, IndexError, PoolOptions};
use farindex_bench::history::{Recorded, Recording};
use farindex_bench::{Control, Outcome, Plan, Simulated, Worker, simulate};
use farindex_fabric::{Endpoint, OpKind};
use farindex_index::growth::{Growth, Steps};
use farindex_pool::{Client, Pool, PoolError, Session};
use farindex_sim::{Config, Preset, Sim};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// What is simulated.
#[derive(Debug, Clone)]
pub(crate) struct Cluster {
    pub(crate) preset: Preset,
    pub(crate) compute_nodes: usize,
    pub(crate) memory_nodes: usize,
    /// Bytes of each memory node.
    pub(crate) node_len: u64,
    pub(crate) config: IndexConfig,
    pub(crate) coalesce: bool,
    /// Do inserts not look whether the key is there? A kind whose upserts look all the same goes on to look.
    pub(crate) blind: bool,
    /// Count what is completed in each span of this length.
    pub(crate) series: Option<Duration>,
    /// Record what the clients are told, up to so many operations.
    pub(crate) history: Option<u64>,
}

/// What was measured, and the course of it.
pub(crate) struct Simulation {
    pub(crate) outcome: Outcome,
    pub(crate) series: Series,
    /// How often a worker has read the root of a table, over the whole run.
    pub(crate) synchronizations: u64,
    /// Of the whole run, where the kind counts them.
    pub(crate) grown: Grown,
    pub(crate) recorded: Option<Recorded>,
}

/// What all workers together have merged and split.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Grown {
    pub(crate) merges: Steps,
    pub(crate) splits: Steps,
}

/// Operations completed in each span of virtual time, and when the table was seen to have grown.
#[derive(Debug, Clone, Default)]
pub(crate) struct Series {
    pub(crate) width: Duration,
    pub(crate) begins: Duration,
    pub(crate) counts: Vec<u64>,
    pub(crate) grown: Vec<Duration>,
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
    fn saw(&mut self, now: Duration, versions: u64) {
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
}

/// The index under measurement.
struct Subject {
    processes: Vec<Process>,
    series: Option<Rc<RefCell<Series>>>,
    synchronizations: Rc<Cell<u64>>,
    grown: Rc<Cell<Grown>>,
    blind: bool,
}

const NAME: &str = "sim";

/// How often a keeper looks after its client, as on real fabrics.
const KEEPER: Duration = Duration::from_millis(10);

/// One worker's part.
pub(crate) struct WorkerState {
    // Dropped before the session it lives in.
    index: Blind<AnyIndex>,
    session: Rc<Session>,
    series: Option<Rc<RefCell<Series>>>,
    synchronizations: Rc<Cell<u64>>,
    grown: Rc<Cell<Grown>>,
}

impl Simulated for Subject {
    type Worker = WorkerState;
    async fn worker(&self, thread: usize, client: &farindex_sim::Client) -> Result<WorkerState, String> {
        let process =
            self.processes.get(thread % self.processes.len().max(1)).ok_or("a cluster without compute nodes")?;
        let session = Rc::new(process.client.session(client.connect()));
        let mut index = AnyIndex::open(&session, NAME).await.map_err(|error| error.to_string())?;
        if let Some(table) = &process.coalescer {
            index = index.coalesced(table);
        }
        let index = Blind::new(index, self.blind);
        let (synchronizations, grown) = (Rc::clone(&self.synchronizations), Rc::clone(&self.grown));
        Ok(WorkerState { index, session, series: self.series.clone(), synchronizations, grown })
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

impl Worker for WorkerState {
    type Index = Blind<AnyIndex>;
    fn index(&self) -> &Blind<AnyIndex> {
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
        // Virtual time passes only if somebody sleeps; a long wait need not be looked at every microsecond.
        self.session.endpoint().sleep(Duration::from_micros(if turns < 200 { 1 } else { 20 })).await;
    }
    fn between(&self) {
        let Some(series) = &self.series else { return };
        let (now, mut series) = (self.now(), series.borrow_mut());
        series.saw(now, self.index.inner().statistics().resizes + 1);
        series.count(now);
    }
    async fn far_bytes(&self) -> Option<u64> {
        self.session.flush().await.ok()?;
        let usage = farindex::usage(self.session.pool(), &self.session.span(OpKind::Other)).await.ok()?;
        Some(usage.iter().map(|node| node.used_bytes).sum())
    }
    async fn close(&self) -> Result<(), String> {
        self.synchronizations.set(self.synchronizations.get() + synchronizations(self.index.inner()));
        let mut sum = self.grown.get();
        grown(self.index.inner(), &mut sum);
        self.grown.set(sum);
        self.session.flush().await.map_err(|error| error.to_string())
    }
}

/// Makes the pool and the index; every compute node joins.
async fn prepare(
    cluster: &Cluster,
    fabric: Arc<farindex_sim::SimFabric>,
    harness: Endpoint,
    keepers: &[(farindex_sim::Client, Endpoint)],
) -> Result<Vec<Process>, IndexError> {
    let options = PoolOptions { client_slots: keepers.len() as u64 + 2, ..PoolOptions::unseeded() };
    let pool = Pool::create(fabric, &harness, &options).await?;
    let mut processes = Vec::new();
    for (heartbeat, endpoint) in keepers {
        let client = Client::register(&pool, heartbeat.identity(), endpoint).await?;
        let coalescer = cluster.coalesce.then(Arc::default);
        processes.push(Process { client, coalescer });
    }
    if let (Some(first), Some((_, endpoint))) = (processes.first(), keepers.first()) {
        let session = Rc::new(first.client.session(endpoint.clone()));
        AnyIndex::create(&session, NAME, &cluster.config).await?;
    }
    Ok(processes)
}

/// Renews a client's lease and publishes what has quiesced, until it is over.
async fn keep(client: Arc<Client>, endpoint: Endpoint, over: Rc<Cell<bool>>) {
    while !over.get() {
        // A lost lease is reported by the client's next operation; any other failure may pass.
        let _: Result<(), PoolError> = client.tick(&endpoint).await;
        endpoint.sleep(KEEPER).await;
    }
}

/// Builds the cluster and runs the plan on it.
pub(crate) fn run(cluster: &Cluster, plan: &Plan, control: &Control<'_>) -> Result<Simulation, Failure> {
    let config = Config {
        nodes: cluster.memory_nodes,
        node_len: cluster.node_len,
        model: Some(cluster.preset.clone()),
        // A long run is no livelock; who wants to end it earlier has Ctrl-C.
        max_steps: u64::MAX,
        max_time: Duration::MAX,
        ..Config::default()
    };
    let stuck = |what: String| Failure::new(exit::BUG, format!("the simulation ended in a {what}"));
    let sim = Rc::new(Sim::new(plan.seed, config).map_err(farindex::Error::from)?);
    // Connections belong to whose coroutine makes them: these are made before any runs.
    let keepers: Vec<_> = (0..cluster.compute_nodes)
        .map(|node| {
            let heartbeat = sim.client_on(node);
            let endpoint = heartbeat.connect();
            (heartbeat, endpoint)
        })
        .collect();
    let prepared = {
        let (cluster, fabric, harness) = (cluster.clone(), sim.fabric(), sim.harness().connect());
        let keepers = keepers.clone();
        sim.block_on(async move { prepare(&cluster, fabric, harness, &keepers).await })
    };
    let processes = prepared.map_err(|outcome| stuck(outcome.to_string()))?.map_err(farindex::Error::from)?;
    let over = Rc::new(Cell::new(false));
    for (process, (heartbeat, endpoint)) in processes.iter().zip(&keepers) {
        sim.spawn(heartbeat, keep(Arc::clone(&process.client), endpoint.clone(), Rc::clone(&over)));
    }
    let series = cluster.series.map(|width| Rc::new(RefCell::new(Series { width, ..Series::default() })));
    let synchronizations = Rc::new(Cell::new(0));
    let grown = Rc::new(Cell::new(Grown::default()));
    let subject = Rc::new(Subject {
        processes,
        series: series.clone(),
        synchronizations: Rc::clone(&synchronizations),
        grown: Rc::clone(&grown),
        blind: cluster.blind,
    });
    let recording = cluster.history.map(|most| Rc::new(Recording::new(Rc::clone(&subject), most)));
    let outcome = match &recording {
        Some(recording) => simulate(&sim, cluster.compute_nodes, recording, plan, control),
        None => simulate(&sim, cluster.compute_nodes, &subject, plan, control),
    };
    over.set(true);
    let outcome = outcome?;
    // What is still in flight must let go of its log.
    drop(sim);
    let recorded = recording.map(|recording| recording.finish()).transpose();
    let recorded = recorded.map_err(|error| Failure::new(exit::BUG, error.to_string()))?;
    let series = series.map(|series| series.borrow().clone()).unwrap_or_default();
    let (synchronizations, grown) = (synchronizations.get(), grown.get());
    Ok(Simulation { outcome, series, synchronizations, grown, recorded })
}
