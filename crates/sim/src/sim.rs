//! The simulation: polls coroutines and carries out events in turns.
//!
//! Invariants: time advances only when no coroutine can run. An endpoint is polled only when an event of its own has
//! occurred. A run ends when every client that has not crashed has finished, or reports why it cannot.

use crate::client::{Client, ClientTask};
use crate::fabric::{Shared, SimFabric};
use crate::landing::InFlight;
use crate::model::{Cluster, NicWork, Preset};
use crate::queue::EventKind;
use crate::report::{ClientStatus, Outcome, Report, Stats};
use crate::rng::SimRng;
use crate::swarm::Swarm;
use crate::watch::{Revocation, Watch, note_store};
use crate::world::{Handler, Mode, World};
use farindex_fabric::call::{self, CallHandler, RegionView};
use farindex_fabric::{Cold, Driver, Executor, FabricError, NodeId, RemotePtr, Task, cold};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Rounds of polling after which time advances although coroutines keep waking themselves.
const ROUNDS_WITHOUT_TIME: u32 = 256;

/// Events without effect on a client that are carried out between two checks of the run's limits.
const EVENTS_AT_ONCE: u32 = 1024;

/// Settings of a simulation.
#[derive(Debug, Clone)]
pub struct Config {
    /// Number of memory nodes.
    pub nodes: usize,
    /// Bytes of each memory node.
    pub node_len: u64,
    /// The adversary's settings; `None` draws them from the seed.
    pub swarm: Option<Swarm>,
    /// Odds that a batch fails although nothing is wrong (N7), in addition to the swarm. It is never drawn from the
    /// seed, because it fails clients that treat every error as fatal.
    pub errors: u32,
    /// Figures of a cluster: selects model mode instead of the adversary.
    pub model: Option<Preset>,
    /// Limit of steps (events and rounds of polling) of one run; a run that reaches it counts as a livelock.
    pub max_steps: u64,
    /// Limit of virtual time of one run.
    pub max_time: Duration,
    /// The fabric supports masked compare-and-swap.
    pub masked_cas: bool,
    /// The fabric reports whether a client has crashed; otherwise only leases detect it.
    pub reports_crashes: bool,
    /// Number of log entries that are kept for reports.
    pub log: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            nodes: 1,
            node_len: 1 << 20,
            swarm: None,
            errors: 0,
            model: None,
            max_steps: 20_000_000,
            max_time: Duration::from_secs(3600),
            masked_cas: false,
            reports_crashes: false,
            log: 0,
        }
    }
}

/// A simulated cluster in one thread.
pub struct Sim {
    shared: Rc<Shared>,
    executor: Executor,
    tasks: RefCell<Vec<Task<()>>>,
    harness: Client,
    config: Config,
    drawn: Option<Swarm>,
    idle: Cell<bool>,
}

/// The result of a spawned coroutine.
pub struct Spawned<T>(Rc<RefCell<Option<T>>>);

impl<T> Spawned<T> {
    /// Takes the result. `None` if the coroutine has not finished, if its client crashed, and after the first call.
    pub fn take(&self) -> Option<T> {
        self.0.borrow_mut().take()
    }
}

impl Sim {
    /// Creates a simulation of this seed.
    pub fn new(seed: u64, config: Config) -> Result<Sim, FabricError> {
        let max = farindex_fabric::ptr::MAX_NODES;
        if config.nodes == 0 || config.nodes > max {
            return Err(FabricError::Settings(format!("{} memory nodes: it takes 1 to {max}", config.nodes)));
        }
        let max = farindex_fabric::ptr::MAX_NODE_LEN;
        if config.node_len == 0 || config.node_len > max || !config.node_len.is_multiple_of(8) {
            let len = config.node_len;
            return Err(FabricError::Settings(format!("{len} bytes a node: it takes a multiple of 8, at most {max}")));
        }
        let mut drawn = None;
        let mode = match &config.model {
            Some(preset) => Mode::Model(Box::new(Cluster::new(preset.clone(), config.nodes))),
            None => {
                let swarm = config.swarm.clone().unwrap_or_else(|| Swarm::draw(&mut SimRng::new(seed, 0)));
                let swarm = Swarm { error: config.errors.max(swarm.error), ..swarm };
                drawn = Some(swarm.clone());
                Mode::Adversary(swarm)
            }
        };
        let mut world = World::new(seed, mode, config.nodes, config.node_len);
        world.capabilities.masked_cas = config.masked_cas;
        world.reports_crashes = config.reports_crashes;
        world.log.kept = config.log;
        world.add_client(0);
        let shared = Shared::new(world);
        let harness = Client::new(Rc::clone(&shared), 0);
        Ok(Sim {
            shared,
            executor: Executor::new(),
            tasks: RefCell::default(),
            harness,
            config,
            drawn,
            idle: Cell::new(false),
        })
    }

    /// The fabric, for code that prepares a run. A connection that is made while a client's coroutine runs belongs to
    /// that client. Other connections belong to the harness, which never crashes, until a client uses them.
    pub fn fabric(&self) -> Arc<SimFabric> {
        Arc::new(SimFabric::new(&self.shared, 0))
    }
    /// Sets the handler with which memory nodes answer calls. Call this before [`fabric`](Self::fabric): a fabric
    /// copies the capabilities.
    pub fn set_handler(&self, handler: Box<Handler>) {
        let mut world = self.shared.world.borrow_mut();
        world.handler = Some(handler);
        world.capabilities.call = true;
        world.capabilities.cpu_atomic = true;
    }
    /// Lets WRITEs reach a memory node's CPU late, as through a NIC: a handler may see what was there before a WRITE that
    /// has completed, until a READ, CAS or FAA has been carried out on the node. In model mode no WRITE is late, but the
    /// fabric promises as little. Call this before [`fabric`](Self::fabric).
    pub fn set_late_calls(&self) {
        let mut world = self.shared.world.borrow_mut();
        world.late_calls = matches!(world.mode, Mode::Adversary(_));
        world.capabilities.cpu_atomic = false;
    }
    /// Lets memory nodes answer calls by a handler that every fabric takes.
    pub fn set_call_handler(&self, handler: Arc<CallHandler>) {
        self.set_handler(Box::new(move |node, words, request| {
            let view = RegionView::exclusive(node, words);
            (call::answer(&*handler, &view, request), view.work())
        }));
    }

    /// Adds a client. In model mode it has a compute node of its own.
    pub fn client(&self) -> Client {
        let host = self.shared.world.borrow().clients.len() - 1;
        self.client_on(host)
    }
    /// Adds a client on a compute node, whose NIC it shares with the other clients there (model mode).
    pub fn client_on(&self, compute_node: usize) -> Client {
        let id = self.shared.world.borrow_mut().add_client(compute_node);
        Client::new(Rc::clone(&self.shared), id)
    }
    /// The harness: a client that never crashes, freezes or fails, for preparing a run and inspecting its result.
    pub fn harness(&self) -> Client {
        self.harness.clone()
    }

    /// Starts a coroutine of a client. It is first polled inside [`run`](Self::run) or [`block_on`](Self::block_on).
    pub fn spawn<T: 'static>(&self, client: &Client, future: impl Future<Output = T> + 'static) -> Spawned<T> {
        self.spawn_boxed(client, cold(future))
    }

    /// The same code for all coroutines of an output.
    #[inline(never)]
    fn spawn_boxed<T: 'static>(&self, client: &Client, future: Cold<'static, T>) -> Spawned<T> {
        let result = Rc::new(RefCell::new(None));
        let task = ClientTask {
            world: Rc::clone(&self.shared.world),
            client: client.id(),
            future,
            result: Rc::clone(&result),
        };
        let mut world = self.shared.world.borrow_mut();
        if !world.has_crashed(client.id()) {
            world.clients[client.id() as usize].open_tasks += 1;
            world.open_tasks += 1;
            drop(world);
            self.tasks.borrow_mut().push(self.executor.spawn(task));
        }
        Spawned(result)
    }

    /// Runs until every coroutine of every client that has not crashed has finished.
    pub fn run(&self) -> Outcome {
        self.drive(&|world| world.open_tasks == 0)
    }
    /// Runs for a span of virtual time, even if every coroutine has finished.
    pub fn run_for(&self, span: Duration) -> Outcome {
        let end = self.world().now.saturating_add(nanos(span));
        self.world().queue.push(end, EventKind::Resume { client: 0 });
        self.drive(&|world| world.now >= end)
    }
    /// Runs until this coroutine of the harness has finished. Other coroutines run meanwhile.
    pub fn block_on<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> Result<T, Outcome> {
        self.block_on_boxed(cold(future))
    }

    /// The same code for all coroutines of an output.
    #[inline(never)]
    fn block_on_boxed<T: 'static>(&self, future: Cold<'static, T>) -> Result<T, Outcome> {
        let spawned = self.spawn_boxed(&self.harness.clone(), future);
        let outcome = self.drive(&|_| spawned.0.borrow().is_some());
        self.tasks.borrow_mut().retain(|task| !task.is_finished());
        spawned.take().ok_or(outcome)
    }
    /// Carries out everything that is in flight without polling a coroutine: late WRITEs, and verbs of crashed clients.
    pub fn settle(&self) {
        while self.world().step() {}
        let mut ready = std::mem::take(&mut self.world().ready);
        self.notify(&mut ready);
    }

    fn drive(&self, done: &dyn Fn(&World) -> bool) -> Outcome {
        let (end, events) = {
            let world = self.world();
            (world.now.saturating_add(nanos(self.config.max_time)), world.stats.events)
        };
        let mut polls = 0u64;
        let mut rounds = 0;
        loop {
            let busy = rounds < ROUNDS_WITHOUT_TIME && self.executor.run_ready() > 0;
            let spent = {
                let world = self.world();
                if done(&world) {
                    return Outcome::Done;
                }
                world.stats.events - events + polls
            };
            if spent > self.config.max_steps {
                return Outcome::Livelock(self.report());
            }
            if busy {
                rounds += 1;
                polls += 1;
                continue;
            }
            let spinning = rounds == ROUNDS_WITHOUT_TIME;
            rounds = 0;
            if !self.progress() && self.idle.get() && !spinning {
                return Outcome::Deadlock(self.report());
            }
            if self.world().now > end {
                return Outcome::Timeout(self.report());
            }
        }
    }

    /// Polls the endpoints of these connections.
    fn notify(&self, ready: &mut Vec<u32>) {
        for conn in ready.drain(..) {
            let endpoint = self.shared.endpoints.borrow().get(conn as usize).cloned();
            if let Some(endpoint) = endpoint {
                endpoint.progress();
            }
        }
    }

    fn world(&self) -> std::cell::RefMut<'_, World> {
        self.shared.world.borrow_mut()
    }

    fn report(&self) -> Report {
        let world = self.world();
        Report {
            seed: world.seed,
            at: Duration::from_nanos(world.now),
            clients: world.statuses(),
            log: world.log.to_vec(),
        }
    }

    /// Virtual time.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.world().now)
    }
    /// The seed.
    pub fn seed(&self) -> u64 {
        self.world().seed
    }
    /// A hash of all steps so far. Two runs with the same steps have the same hash.
    pub fn trace(&self) -> u64 {
        self.world().trace.value()
    }
    /// Counters of what the adversary has done.
    pub fn stats(&self) -> Stats {
        self.world().stats
    }
    /// The adversary's settings; `None` in model mode.
    pub fn swarm(&self) -> Option<&Swarm> {
        self.drawn.as_ref()
    }
    /// The status of every client except the harness.
    pub fn statuses(&self) -> Vec<ClientStatus> {
        self.world().statuses()
    }
    /// The last log entries, one a line, as many as [`Config::log`] asked for.
    pub fn log(&self) -> String {
        self.world().log.to_vec().iter().map(|entry| format!("{entry}\n")).collect()
    }
    /// Reads a word of far memory without a verb; `None` if the address is out of bounds.
    pub fn peek(&self, ptr: RemotePtr) -> Option<u64> {
        let world = self.world();
        world.nodes.get(ptr.node().index())?.words.get((ptr.offset() / 8) as usize).copied()
    }
    /// Sets a word of far memory without a verb. An address out of bounds is ignored.
    pub fn poke(&self, ptr: RemotePtr, value: u64) {
        let (node, at) = (ptr.node().index(), (ptr.offset() / 8) as usize);
        let World { nodes, watching, .. } = &mut *self.world();
        if let Some(word) = nodes.get_mut(node).and_then(|node| node.words.get_mut(at)) {
            *word = value;
            note_store(watching, node, at..at + 1);
        }
    }
    /// How long the NIC of each memory node has been at work, work included that is reserved already; empty unless in model
    /// mode. Where each machine is also a compute node, this is its work for both.
    pub fn memory_nics(&self) -> Vec<NicWork> {
        match &self.world().mode {
            Mode::Model(cluster) => cluster.memory_nics(),
            Mode::Adversary(_) => Vec::new(),
        }
    }
    /// Watches slots in which clients show that they are alive.
    pub fn watch(&self, watch: Watch) {
        self.world().start_watch(watch);
    }
    /// The revocations of clients with a watched slot, so far.
    pub fn revocations(&self) -> Vec<Revocation> {
        self.world().watching.as_ref().map(|watching| watching.revocations.clone()).unwrap_or_default()
    }
    /// The watched slots whose clients were evicted and were not revoked on every memory node.
    pub fn unrevoked(&self) -> Vec<usize> {
        self.world().watching.as_ref().map(|watching| watching.unrevoked.clone()).unwrap_or_default()
    }
    /// A handle that coroutines can hold to fail and restore memory nodes.
    pub fn node_control(&self) -> NodeControl {
        NodeControl { world: Rc::clone(&self.shared.world) }
    }
    /// A handle that tells what is in flight.
    pub fn in_flight(&self) -> InFlight {
        InFlight { world: Rc::clone(&self.shared.world) }
    }
}

/// Fails and restores memory nodes. Held by coroutines of the harness, which sleep in between.
#[derive(Clone)]
pub struct NodeControl {
    world: Rc<RefCell<World>>,
}

impl NodeControl {
    /// Fails a node: what arrives there is lost. `silent`: its clients get no answer, so only their deadlines end the
    /// wait; otherwise batches fail with [`FabricError::Unreachable`]. `forgets`: its memory is zeroed.
    pub fn fail(&self, node: NodeId, silent: bool, forgets: bool) {
        self.world.borrow_mut().fail_node(node.index(), silent, forgets);
    }
    /// Makes a failed node available again.
    pub fn restore(&self, node: NodeId) {
        self.world.borrow_mut().restore_node(node.index());
    }
    /// Virtual time.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.world.borrow().now)
    }
}

impl Driver for Sim {
    /// Carries out events until one concerns a client, and notifies that client.
    fn progress(&self) -> bool {
        let (stepped, mut ready, wakes) = {
            let mut world = self.world();
            let mut stepped = false;
            for _ in 0..EVENTS_AT_ONCE {
                let event = world.step();
                stepped |= event;
                if !event || !world.ready.is_empty() || !world.wakes.is_empty() || world.pause {
                    break;
                }
            }
            world.pause = false;
            (stepped, std::mem::take(&mut world.ready), std::mem::take(&mut world.wakes))
        };
        self.idle.set(!stepped && ready.is_empty() && wakes.is_empty());
        for waker in wakes {
            waker.wake();
        }
        self.notify(&mut ready);
        let mut world = self.world();
        if world.ready.is_empty() {
            // Keep the allocation.
            world.ready = ready;
        }
        stepped
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let world = self.shared.world.try_borrow();
            if let Ok(world) = world {
                eprintln!("simulation of seed {} at {:?}:", world.seed, Duration::from_nanos(world.now));
                world.log.to_vec().iter().for_each(|entry| eprintln!("  {entry}"));
                world.statuses().iter().for_each(|client| eprintln!("  {client}"));
            }
        }
        if let Ok(mut world) = self.shared.world.try_borrow_mut() {
            world.closed = true;
            world.queue.clear();
        }
        // Coroutines hold endpoints, whose wakers hold coroutines. Cancel all of them, then let the executor drop them.
        self.tasks.borrow_mut().clear();
        while self.executor.run_ready() > 0 {}
        self.shared.endpoints.borrow_mut().clear();
        self.shared.forget();
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
