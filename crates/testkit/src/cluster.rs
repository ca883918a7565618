//! One run: clients on a simulated cluster, and the report.

use crate::auditing::{Auditing, Auditor, register_and_leave};
use crate::budget::{Budget, Costs};
use crate::cancelling::Given;
use crate::commanding::Commanding;
use crate::dropping::Dropping;
use crate::ending::recover_and_audit;
use crate::hasty::{Haste, cut_short};
use crate::index_under_test::{IndexUnderTest, NAMES};
use crate::naming::Naming;
use crate::node::Node;
use crate::stalling::Stalling;
use crate::swarm::Features;
use crate::verdict;
use crate::waits::{Queues, Waits};
use crate::worker::{PRELOADING, Shared, Which, Worker};
use crate::workload::{Op, Shape, Workload};
use crate::{SeedReport, Setup, Stuck, leaders, lease_oracle};
use farindex_check::{Recorder, Stamps};
use farindex_fabric::{Endpoint, Fabric};
use farindex_index::{AnyIndex, IndexConfig, IndexError, KINDS};
use farindex_pool::{Client, Pool, PoolOptions, Session};
use farindex_sim::{Config, CrashOutcome, ODDS, Outcome as Ended, Sim, SimRng, Swarm};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Streams of draws: the simulator takes the first ones.
const SETTINGS: u64 = 1000;
pub(crate) const WORKERS: u64 = 2000;
const STALLS: u64 = 4000;
const TWINS: u64 = 5000;
const EDGES: u64 = 15_000;
const REFILLING: u64 = 6000;
pub(crate) const PAIR: u64 = 7000;
const HOLDING: u64 = 8000;
const AUDITING: u64 = 10_000;
const HASTE: u64 = 11_000;
const BURSTS: u64 = 12_000;
const SLOW_BURSTS: u64 = 12_001;
const LEADERS: u64 = 13_000;
const MIDST: u64 = 14_000;
/// The client that is held up, where one is.
const HOLDER: u64 = 2;
/// With a lease of less, verbs and sleeps may take as long as the lease.
pub(crate) const SHORT_LEASE: Duration = Duration::from_millis(1000);

/// With a lease of less, a verb may take as long as a drop waits for those that are slow.
const BRIEF: Duration = Duration::from_millis(10);

pub(crate) async fn session_of(client: &Arc<Client>, endpoint: &Endpoint) -> Rc<Session> {
    Rc::new(client.session(endpoint.clone()))
}

/// Creates the pool and the indexes, and inserts the keys that are present from the beginning.
async fn prepare(
    index_config: IndexConfig,
    shared: Rc<Shared>,
    fabric: Arc<dyn Fabric>,
    harness: farindex_sim::Client,
    options: PoolOptions,
    mut rng: SimRng,
) -> Result<Pool, IndexError> {
    let endpoint = harness.connect();
    let pool = Pool::create(fabric, &endpoint, &options).await?;
    let client = Client::register(&pool, harness.identity(), &endpoint).await?;
    let session = session_of(&client, &endpoint).await;
    let mut indexes = Vec::new();
    for which in shared.indexes() {
        indexes.push((which, Rc::new(AnyIndex::create(&session, NAMES[which as usize], &index_config).await?)));
    }
    for (which, index) in indexes {
        rng = preload(&shared, which, index, &endpoint, rng).await?;
    }
    // The same identity audits everything in the end, so nothing of it may be in flight.
    endpoint.settle().await;
    drop(session);
    client.close(&endpoint).await?;
    Ok(pool)
}

/// Inserts the keys that an index has from the beginning. Returns what is left of the draws.
async fn preload(
    shared: &Rc<Shared>,
    which: Which,
    index: Rc<AnyIndex>,
    endpoint: &Endpoint,
    mut rng: SimRng,
) -> Result<SimRng, IndexError> {
    let keys = shared.workload.preload(&mut rng);
    let mut worker = Worker {
        shared: Rc::clone(shared),
        which,
        index,
        endpoint: endpoint.clone(),
        log: shared.recorder(which).client(0),
        rng,
        name: PRELOADING,
        // The values of two indexes differ.
        written: which as u64 * 10_000,
        session: None,
        last: BTreeMap::new(),
        given: Given::default(),
    };
    let mut removed = Vec::new();
    for key in keys {
        worker.run(Op::Insert, &key).await;
        // Holes, for recycling.
        if worker.rng.chance(ODDS / 16) {
            worker.run(Op::Remove, &key).await;
            removed.push(key);
        }
    }
    for key in removed {
        if worker.rng.chance(ODDS / 2) {
            worker.run(Op::Upsert, &key).await;
        }
    }
    // Otherwise the heartbeats of the client that closes would write back what only a cache has, and then post verbs that nobody
    // waits for.
    worker.index.flush().await?;
    Ok(worker.rng.clone())
}

/// Moves this thread's counts of rare paths into a report.
#[cfg(feature = "marks")]
fn count_marks(report: &mut SeedReport) {
    for (mark, count) in farindex_pool::marks::take() {
        *report.marks.entry(mark.to_owned()).or_default() += count;
    }
}
#[cfg(not(feature = "marks"))]
fn count_marks(_: &mut SeedReport) {}

/// Describes how a run ended that did not finish, and counts it as a deadlock or a livelock.
fn stuck(report: &mut SeedReport, ended: &Ended, doing: &str) -> String {
    report.stuck = match ended {
        Ended::Done => None,
        Ended::Deadlock(_) => Some(Stuck::Deadlock),
        Ended::Livelock(_) | Ended::Timeout(_) => Some(Stuck::Livelock),
    };
    format!("{doing}{ended}")
}

/// Runs one seed: a simulated cluster, clients that work on the index, a history, a verdict.
pub fn run_seed(seed: u64, setup: &Setup, index_under_test: &dyn IndexUnderTest) -> SeedReport {
    // What an earlier seed left uncounted is not this one's.
    count_marks(&mut SeedReport::default());
    let mut report = SeedReport { seed, ..SeedReport::default() };
    #[cfg(feature = "marks")]
    farindex_pool::ledger::open();
    if let Err(what) = try_seed(seed, setup, index_under_test, &mut report) {
        report.failures.push(what);
    }
    count_marks(&mut report);
    #[cfg(feature = "marks")]
    close_ledger(&mut report);
    report
}

/// What the ledger of pins has found: memory that was reused too early.
#[cfg(feature = "marks")]
fn close_ledger(report: &mut SeedReport) {
    let (freed, problems) = farindex_pool::ledger::close();
    report.failures.extend(problems.into_iter().map(|problem| format!("pool: {problem}")));
    if freed > 0 {
        report.marks.insert("pool: retired objects freed".to_owned(), freed);
    }
}

/// What the ledger of pins asks the simulation for.
#[cfg(feature = "marks")]
struct InSim(farindex_sim::InFlight);

#[cfg(feature = "marks")]
impl farindex_pool::ledger::Flights for InSim {
    fn now(&self) -> Duration {
        self.0.now()
    }
    fn may_change(&self, at: farindex_fabric::RemotePtr, bytes: u64, posted_by: Duration) -> Option<String> {
        self.0.may_change(at, bytes, posted_by).map(|landing| landing.to_string())
    }
    fn reader(&self, at: farindex_fabric::RemotePtr) -> Option<String> {
        self.0.reader(at).map(|client| format!("client {client}"))
    }
    fn forget_readers(&self, at: farindex_fabric::RemotePtr, bytes: u64) {
        self.0.forget_readers(at, bytes);
    }
}

fn try_seed(
    seed: u64,
    setup: &Setup,
    index_under_test: &dyn IndexUnderTest,
    report: &mut SeedReport,
) -> Result<(), String> {
    let (features, setup) = match setup.swarm {
        true => Features::draw(seed, setup),
        false => (Features::default(), setup.clone()),
    };
    // Where acknowledged changes are written back later, they are lost if a lock in their way stays held.
    let loses = index_under_test.may_lose().is_some();
    let kept = Setup { holding: false, cancelling: 0, hasty: false, failing: 0, ..setup.clone() };
    let kept = Setup { dropping: false, sudden: false, naming: 0, ..kept };
    let setup = &if loses { kept } else { setup };
    let mut rng = SimRng::new(seed, SETTINGS);
    let usual = index_under_test.config();
    let index_under_test: Rc<dyn IndexUnderTest> = index_under_test.draw(&mut rng).into();
    let index_config = match (setup.quiet, setup.smallest) {
        (true, _) => usual,
        (_, true) => index_under_test.smallest(),
        _ => index_under_test.config(),
    };
    let colliding_bits = index_under_test.colliding_bits(&mut rng);
    let mut workload = Workload::draw(&mut rng, setup, colliding_bits);
    if setup.edges {
        workload = workload.at_an_edge(&mut SimRng::new(seed, EDGES), setup.short);
    }
    if setup.twins {
        workload = workload.with_twins(&mut SimRng::new(seed, TWINS));
    }
    if setup.churn {
        workload = workload.churning();
    }
    if setup.longest_value > 0 {
        workload = workload.padded(setup.longest_value);
    }
    if setup.quiet {
        workload = workload.quiet();
    }
    let shape = match index_under_test.shape(&mut rng) {
        Shape::Plain if setup.short => Shape::Short,
        shape => shape,
    };
    let workload = workload.shaped(shape);
    let nodes = if rng.chance(ODDS / 8) { 2 } else { 1 };
    let nodes = setup.nodes.map_or(nodes, |nodes| nodes as usize);
    let pair = u64::from(setup.pair) + 1;
    let freezing = rng.pick(&[0, 0, ODDS / 256, ODDS / 32]).unwrap_or(0);
    let freezing_for = rng.within(12, 24) as u32;
    let (freezing, freezing_for) = setup.freezes.unwrap_or((freezing, freezing_for));
    let coalescing = setup.coalescing.map(|fault| format!(", coalesced with fault {fault:?}")).unwrap_or_default();
    let described = workload.describe();
    report.settings =
        format!("{index_config:?}{coalescing}; {described}; {nodes} nodes, freezes {freezing}/{freezing_for}");
    let tight = rng.chance(setup.tight);
    let swarm = rng.chance(setup.tearing).then(|| tearing(&mut rng));
    let swarm = if setup.quiet { Some(Swarm::calm()) } else { swarm };
    let config = Config {
        nodes,
        swarm,
        node_len: if tight { (rng.within(30, 60) << 13) * pair } else { setup.node_len * pair },
        // Who waits for another client READs a word again and again.
        max_steps: setup.max_steps * if setup.lease < SHORT_LEASE { 3 } else { 1 },
        max_time: setup.max_time,
        log: setup.log,
        reports_crashes: setup.has_crashes() && rng.chance(ODDS / 3),
        ..Config::default()
    };
    let lease = match setup.has_crashes() {
        true => Duration::from_millis(rng.pick(setup.crash_leases).unwrap_or(1000)),
        false => setup.lease,
    };
    report.settings += &format!(", lease {lease:?}");
    if setup.swarm {
        report.settings += &format!(", {features}");
    }
    let sim = Rc::new(Sim::new(seed, config).map_err(|error| error.to_string())?);
    #[cfg(feature = "marks")]
    {
        // Clients keep copies of nodes of trees, whose pointers lead to what is there by now.
        let is_tree = farindex_index::KINDS.iter().any(|kind| kind.ordered && kind.name == index_config.kind());
        sim.in_flight().watch_readers(is_tree);
        farindex_pool::ledger::ask(Box::new(InSim(sim.in_flight())));
    }
    if index_under_test.has_calls() || setup.smallest || setup.quiet {
        sim.set_call_handler(farindex_index::call_table().into_handler());
        if rng.chance(ODDS / 2) {
            sim.set_late_calls();
            report.settings += ", WRITEs reach CPUs late";
        }
    }
    // Where lookups need ownership, operations also wait for what others are about to own.
    let is_judged = !setup.has_crashes() && lease <= SHORT_LEASE && !loses;
    let waits =
        Waits::new(lease, Queues::of(setup, index_under_test.is_divided()), is_judged, setup.holding.then_some(HOLDER));
    let shared = Rc::new(Shared {
        workload,
        recorders: [Recorder::new(), Recorder::new()],
        pair: setup.pair,
        stamps: Stamps::new(),
        failures: RefCell::default(),
        removes_by_writing: index_under_test.removes_by_writing(),
        lookups_own: index_under_test.may_lose().is_some(),
        lookups_lock: index_under_test.lookups_lock(),
        closed: RefCell::default(),
        refused: Cell::new(0),
        crashes: setup.has_crashes() || lease < SHORT_LEASE,
        short_lease: lease < SHORT_LEASE,
        lease,
        many: setup.many,
        upserts_together: setup.upserts_together,
        written_together: Cell::new(0),
        ordered: KINDS.iter().any(|kind| kind.name == index_config.kind() && kind.ordered),
        walking: setup.walking,
        guarded: setup.guarded,
        replaced: Cell::new(0),
        walks: Cell::new(0),
        blocked: Cell::new(0),
        // Behind the lock table, writes report outcomes that they would not look for otherwise.
        costs: Budget::of(index_config.kind()).filter(|_| setup.quiet && setup.coalescing.is_none()).map(Costs::new),
        stalling: Stalling::new(setup.has_crashes().then_some(lease)),
        reopening: if setup.joining { ODDS / 6 } else { 0 },
        sessions: setup.sessions,
        batched: Cell::new(0),
        scans: Cell::new(0),
        evicted: Cell::new(0),
        refilling: setup.refilling.then(|| SimRng::new(seed, REFILLING)),
        refilled: Cell::new(0),
        waits,
        vanishing: setup.vanishes(),
        recovering: setup.recovering,
        cancelling: setup.cancelling,
        hasty: setup.hasty,
        pausing: setup.pausing,
        pauses: Cell::new(0),
        bursting: (setup.pausing && lease >= BRIEF)
            .then(|| SimRng::new(seed, BURSTS))
            .filter(|rng| rng.clone().chance(ODDS / 4)),
        slow_bursting: (setup.slow && lease >= BRIEF).then(|| SimRng::new(seed, SLOW_BURSTS)),
        bursts: Cell::new(0),
        turnover: setup.turnover && lease >= BRIEF,
        turnovers: Cell::new(0),
        dropping: setup.dropping,
        dropping_among_others: setup.dropping && index_under_test.is_dropped_among_others(),
        sudden: setup.sudden,
        failing: setup.failing > 0,
        lagging: setup.lagging.0 > 0,
        drops: Default::default(),
        commanding: Commanding::new(if index_under_test.is_divided() { setup.commanding } else { 0 }),
        naming: Naming::new(setup.naming, index_config),
        auditing: Auditing::default(),
        gave_up: RefCell::default(),
        cancelled: Cell::new(0),
        recoveries: Cell::new(0),
        leading: (setup.cancelling > 0 && setup.coalescing.is_some() && leaders::leave_no_lock(index_config.kind()))
            .then(|| SimRng::new(seed, LEADERS)),
        leaders: Cell::new(0),
        coalescing: setup.coalescing,
        tables: RefCell::default(),
    });
    let outcome =
        drive(&sim, setup, (&index_under_test, &index_config), &shared, rng, (freezing, freezing_for), report);
    let stats = sim.stats();
    report.verbs = stats.verbs;
    report.events = stats.events;
    report.crashes = stats.crashes;
    report.log = sim.log();
    if outcome.is_err() {
        report.settings += &format!("; {:?}", sim.swarm());
    }
    report.failures.append(&mut shared.failures.borrow_mut());
    report.marks.insert("refused: pool full".to_owned(), shared.refused.get());
    report.marks.insert("clients: crashed".to_owned(), stats.crashes);
    report.marks.insert("operations: gets of many keys".to_owned(), shared.batched.get());
    report.marks.insert("operations: upserts of many keys".to_owned(), shared.written_together.get());
    report.marks.insert("operations: scans".to_owned(), shared.scans.get());
    report.marks.insert("operations: expected values that were there".to_owned(), shared.replaced.get());
    report.marks.insert("operations: ended by eviction".to_owned(), shared.evicted.get());
    report.marks.insert("operations: walks".to_owned(), shared.walks.get());
    report.marks.insert("operations: walks that a crashed client's lock has blocked".to_owned(), shared.blocked.get());
    report.marks.insert("operations: given up".to_owned(), shared.cancelled.get());
    report.marks.insert("operations: recoveries".to_owned(), shared.recoveries.get());
    report.marks.insert("operations: pauses of walks".to_owned(), shared.pauses.get());
    report.marks.insert("operations: walks amid bursts of changes".to_owned(), shared.bursts.get());
    report.marks.insert("lock tables: whose leaders were given up in the end".to_owned(), shared.leaders.get());
    report.marks.insert("indexes: whose entries came and went".to_owned(), shared.turnovers.get());
    report.marks.insert("operations: lists of partitions".to_owned(), shared.commanding.lists());
    report.marks.insert("operations: ranges that a list must call own".to_owned(), shared.commanding.judged());
    let (audits, alone) = shared.auditing.counts();
    report.marks.insert("pool: audits while clients come and go".to_owned(), audits);
    report.marks.insert("pool: such audits that were alone".to_owned(), alone);
    let dropped = shared.indexes().filter(|which| shared.drop_of(*which) == Dropping::Done).count();
    report.marks.insert("indexes: dropped".to_owned(), dropped as u64);
    report.marks.insert("clients: stalled".to_owned(), shared.stalling.begun());
    report.marks.insert("pool: fillings that left no free chunk".to_owned(), shared.refilled.get());
    if let Some(costs) = &shared.costs {
        let (operations, kept, most) = costs.counts();
        report.marks.insert("budget: operations".to_owned(), operations);
        report.marks.insert("budget: operations that keep to it".to_owned(), kept);
        report.marks.insert(format!("budget: an operation of {most} round trips"), 1);
        report.failures.extend(costs.judge());
    }
    report.marks.extend(features.names().map(|name| (name, 1)));
    report.marks.retain(|_, count| *count > 0);
    // Coroutines that still wait hold their logs.
    drop(sim);
    for which in shared.indexes() {
        verdict::judge(&shared, shared.recorder(which), index_under_test.may_lose(), report);
    }
    if let Some((recorder, asked)) = shared.naming.recorded() {
        report.marks.insert("indexes: that come and go".to_owned(), asked);
        verdict::judge(&shared, recorder, None, report);
    }
    outcome
}

/// Decides when a client crashes: while it takes or releases a lock, at a verb of its first operations, or at any.
fn schedule_crash(me: &farindex_sim::Client, rng: &mut SimRng) {
    let crash_outcome = [
        CrashOutcome::Lost,
        CrashOutcome::Landed,
        CrashOutcome::Prefix,
        CrashOutcome::Prefix,
        CrashOutcome::Drawn,
        CrashOutcome::Drawn,
    ];
    let crash_outcome = rng.pick(&crash_outcome).unwrap_or(CrashOutcome::Drawn);
    let order = rng.within(0, 4);
    if rng.chance(ODDS * 2 / 3) {
        me.crash_in_batch(rng.within(1, 1 << order), crash_outcome);
    } else if rng.chance(ODDS / 2) {
        me.crash_at(rng.within(10, 10 + (32 << order)), crash_outcome);
    } else {
        me.crash_odds(farindex_sim::once_in(32 << order));
    }
}

/// Most clients crash while they split, merge, move or displace something instead: what these write is many verbs.
fn schedule_crash_in_the_midst(me: &farindex_sim::Client, rng: &mut SimRng) {
    let verbs = rng.pick(&[4, 6, 8, 12, 20]).unwrap_or(4);
    let outcome = rng.pick(&[CrashOutcome::Landed, CrashOutcome::Prefix, CrashOutcome::Prefix, CrashOutcome::Drawn]);
    if rng.chance(ODDS * 3 / 4) {
        let order = rng.within(0, 4);
        me.crash_odds(0);
        me.crash_in_long_batch(rng.within(1, 1 << order), verbs, outcome.unwrap_or(CrashOutcome::Prefix));
    }
}

/// Splits verbs into many pieces, as far apart as another client's whole step.
pub(crate) fn tearing(rng: &mut SimRng) -> Swarm {
    Swarm {
        split: ODDS,
        tear: rng.pick(&[ODDS / 4, ODDS / 2, ODDS]).unwrap_or(ODDS),
        pieces: rng.within(2, 20) as u32,
        stall: rng.pick(&[ODDS / 32, ODDS / 8, ODDS / 4]).unwrap_or(0),
        stall_exponent: rng.within(11, 18) as u32,
        gap_ns: rng.pick(&[10, 200, 2000]).unwrap_or(10),
        late: rng.pick(&[0, ODDS / 64]).unwrap_or(0),
        late_exponent: rng.within(11, 20) as u32,
        ..Swarm::draw(rng)
    }
}

/// Second word of the identity of every pool of a seed.
const IDENTITY: u64 = u64::from_be_bytes(*b"farindex");

/// So few intent cells that operations wait for them, and still end: when all of a client's coroutines hold all of their locks
/// but the last, these are left. `None` where a client may leave intents behind: it cannot use the cells of its slot
/// in which there are some, and that may be all of them.
fn few_cells(spare: u64, setup: &Setup, shared: &Shared, index_under_test: &dyn IndexUnderTest) -> Option<u64> {
    let locks = index_under_test.locks().filter(|_| !shared.leaves_unfinished())?;
    Some(setup.coroutines.1 * (locks - 1) + spare)
}

fn drive(
    sim: &Rc<Sim>,
    setup: &Setup,
    (index_under_test, index_config): (&Rc<dyn IndexUnderTest>, &IndexConfig),
    shared: &Rc<Shared>,
    mut rng: SimRng,
    freezing: (u32, u32),
    report: &mut SeedReport,
) -> Result<(), String> {
    let options = PoolOptions {
        lease: shared.lease,
        intent_cells: setup.spare_cells.and_then(|spare| few_cells(spare, setup, shared, &**index_under_test)),
        chunk_size: Some(16 << 10),
        identity: Some([report.seed | 1 << 63, IDENTITY]),
        ..PoolOptions::unseeded()
    };
    let preparing = SimRng::new(rng.word(), WORKERS);
    let perturbing = rng.pick(&[0, ODDS / 64, ODDS / 16, ODDS / 6]).unwrap_or(0);
    let perturbing = setup.perturbing.unwrap_or(perturbing);
    let clients = rng.within(setup.clients.0, setup.clients.1);
    let client_slots = if setup.vanishes() { clients.max(2) } else { 8 };
    let options = PoolOptions { client_slots, ..options };
    let prepare = prepare(*index_config, Rc::clone(shared), sim.fabric(), sim.harness(), options, preparing);
    let pool = sim.block_on(prepare).map_err(|ended| stuck(report, &ended, "while preparing: "))?;
    let pool = pool.map_err(|error| format!("while preparing: {error}"))?;
    if shared.crashes {
        lease_oracle::watch(sim, &pool);
    }
    let mut stalls = SimRng::new(report.seed, STALLS);
    let mut hastes = Vec::new();
    for number in 1..=clients {
        let me = sim.client();
        if let Some(stall) = setup.stall.filter(|_| number == 2) {
            shared.stalling.once(number, &me, stall);
        } else if setup.stalling && !(setup.holding && number == HOLDER) && (number == 2 || stalls.chance(ODDS / 3)) {
            shared.stalling.repeatedly(number, &me, SimRng::new(stalls.word(), STALLS));
        }
        if setup.holding && number == HOLDER {
            let limit =
                Waits::hold(shared.lease, Queues::of(setup, index_under_test.is_divided()), setup.has_crashes());
            shared.stalling.hold(number, &me, SimRng::new(report.seed, HOLDING), limit);
        } else if setup.sudden {
            shared.stalling.may_drop(number, &me);
        }
        me.freeze_odds(freezing.0, freezing.1);
        if setup.crashes > 0 && number > 1 && rng.chance(setup.crashes) {
            schedule_crash(&me, &mut rng);
            if setup.crashes_in_the_midst {
                schedule_crash_in_the_midst(&me, &mut SimRng::new(report.seed, MIDST + number));
            }
        }
        if let Some((verb, crash_outcome)) = setup.crashes_at.filter(|_| number == 2) {
            me.crash_at(verb, crash_outcome);
        }
        let haste = setup.hasty.then(|| Rc::new(Haste::new(SimRng::new(report.seed, HASTE + number))));
        hastes.extend(haste.clone());
        let node = Node {
            shared: Rc::clone(shared),
            sim: Rc::downgrade(sim),
            pool: pool.clone(),
            me: me.clone(),
            number,
            member: shared.auditing.expect(&me),
            rng: SimRng::new(rng.word(), WORKERS),
            setup: setup.clone(),
            haste: haste.clone(),
        };
        let weak = Rc::downgrade(sim);
        let index_under_test = Rc::clone(index_under_test);
        let whose = me.clone();
        sim.spawn(
            &me,
            node.run(move |worker, operations, pause, working| {
                let Some(sim) = weak.upgrade() else { return };
                let (index_under_test, haste) = (Rc::clone(&index_under_test), haste.clone());
                let shared = Rc::clone(&worker.shared);
                sim.spawn(&whose, async move {
                    let perturb = |index: &AnyIndex, rng: &mut SimRng| {
                        if rng.chance(perturbing) {
                            index_under_test.perturb(index, rng);
                        }
                    };
                    let work = worker.work(operations, pause, perturb, Rc::clone(&index_under_test));
                    let ended = cut_short(haste, work).await;
                    working.set(working.get() - 1);
                    let Some((index, endpoint)) = ended else { return };
                    shared.failures.borrow_mut().extend(index_under_test.wrong_with(&index));
                    // The client may close meanwhile: with its last handle, an index can post verbs that nobody waits for.
                    drop(index);
                    endpoint.settle().await;
                });
            }),
        );
    }
    // They come last, so that the others draw what they draw without them.
    if setup.auditing && !setup.vanishes() {
        let mut rng = SimRng::new(report.seed, AUDITING);
        let (me, visitor) = (sim.client(), sim.client());
        let visits =
            register_and_leave(Rc::clone(shared), pool.clone(), visitor.clone(), SimRng::new(rng.word(), AUDITING));
        let auditor = Auditor { shared: Rc::clone(shared), pool: pool.clone(), me: me.clone(), rng };
        sim.spawn(&me, auditor.run());
        sim.spawn(&visitor, visits);
    }
    let outcome = sim.run();
    let counts = hastes.iter().map(|haste| (haste.given_up(), u64::from(haste.leaves())));
    let (given_up, left) = counts.fold((0, 0), |(a, b), (c, d)| (a + c, b + d));
    report.marks.insert("clients: heartbeats given up".to_owned(), given_up);
    report.marks.insert("clients: left in haste".to_owned(), left);
    report.marks.insert("batches: failed".to_owned(), sim.stats().errors);
    if !outcome.is_done() {
        return Err(stuck(report, &outcome, ""));
    }
    sim.settle();
    shared.failures.borrow_mut().extend(lease_oracle::judge(sim, shared.lease));
    // Connected here: what is connected inside of `block_on` is the harness's.
    let walker = shared.slow_bursting.is_some().then(|| sim.client()).map(|walker| (walker.connect(), walker));
    let ending = recover_and_audit(Rc::clone(shared), (sim.harness(), walker), pool, *index_config);
    let audited = sim.block_on(ending);
    let audited = audited.map_err(|ended| stuck(report, &ended, "while auditing: "))?;
    let (index, pool) = audited.map_err(|error| format!("while auditing: {error}"))?;
    shared.failures.borrow_mut().extend(index.problems.iter().map(|problem| format!("index: {problem}")));
    shared.failures.borrow_mut().extend(pool.problems.iter().map(|problem| format!("pool: {problem}")));
    shared.failures.borrow_mut().extend(pool.leak().map(|leak| format!("pool: {leak}")));
    if !pool.alone {
        shared.fail("pool: another client is still registered".to_owned());
    }
    for (name, count) in &index.figures {
        report.marks.insert(format!("audit: {name}"), *count);
    }
    report.marks.insert("audit: resizes".to_owned(), index.resizes);
    report.audit = index;
    Ok(())
}
