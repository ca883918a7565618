//! One run: clients on a simulated cluster, and what became of it.

use crate::index_under_test::{Access, IndexUnderTest, NAME};
use crate::workload::{Op, Workload};
use crate::{SeedReport, Setup, Stuck};
use farindex_check::{Call, ClientLog, Limits, Outcome, Recorder, Stamps, Verdict, check};
use farindex_fabric::{Endpoint, Fabric, FabricError, OpKind};
use farindex_index::{IndexAudit, IndexError, Insert, PointIndex, PoolIndex, Remove, Update, Upsert};
use farindex_pool::audit::{Audit, AuditReport};
use farindex_pool::{Client, Pool, PoolError, PoolOptions, Session, catalog};
use farindex_sim::{Config, CrashOutcome, ODDS, Outcome as Ended, Sim, SimRng, Swarm};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Streams of draws: the simulator takes the first ones.
const SETTINGS: u64 = 1000;
const WORKERS: u64 = 2000;
/// Whoever looks when all is over.
const LAST: u64 = 999;
/// With a lease of less, verbs and sleeps may take as long as that.
const HASTY: Duration = Duration::from_millis(1000);

/// What all coroutines share.
struct Shared {
    workload: Workload,
    recorder: Recorder,
    stamps: Stamps,
    failures: RefCell<Vec<String>>,
    /// Do removals need memory?
    removes_by_writing: bool,
    /// Operations that the pool had no room for.
    refused: Cell<u64>,
    /// May clients lose their leases?
    kills: bool,
    /// Is the lease so short that the living may hold a lock for longer?
    hasty: bool,
    lease: Duration,
    /// Odds that a get asks for many keys at once.
    many: u32,
    /// Gets of many keys.
    batched: Cell<u64>,
    /// Operations that ended because their client had lost its lease.
    evicted: Cell<u64>,
}

/// Has this client lost its lease?
fn is_eviction(error: &IndexError) -> bool {
    matches!(error, IndexError::Fabric(FabricError::Revoked) | IndexError::Pool(PoolError::LeaseLost))
}

impl Shared {
    fn fail(&self, what: String) {
        self.failures.borrow_mut().push(what);
    }
    fn stamp(&self, endpoint: &Endpoint) -> u64 {
        self.stamps.at(endpoint.now().as_nanos() as u64)
    }
}

/// One coroutine's hands.
struct Worker<I> {
    shared: Rc<Shared>,
    index: Rc<I>,
    endpoint: Endpoint,
    log: ClientLog,
    rng: SimRng,
    name: u64,
    written: u64,
}

impl<I: PointIndex> Worker<I> {
    /// Runs one operation; `false` if the client has lost its lease.
    async fn run(&mut self, op: Op, key: &[u8]) -> bool {
        self.written += 1;
        let value = self.shared.workload.value(&mut self.rng, self.name, self.written);
        let call = {
            let key = key.to_vec();
            match op {
                Op::Get => Call::Get { key },
                Op::Insert => Call::Insert { key, value: value.clone() },
                Op::Update => Call::Update { key, value: value.clone() },
                Op::Upsert => Call::Upsert { key, value: value.clone() },
                Op::Remove => Call::Remove { key },
            }
        };
        let ticket = self.log.invoke(call, self.shared.stamp(&self.endpoint));
        let index = &self.index;
        let outcome = match op {
            Op::Get => index.get(key).await.map(|value| Outcome::Value(value.map(|value| value.to_vec()))),
            Op::Insert => index.insert(key, &value).await.map(|done| match done {
                Insert::Inserted => Outcome::Inserted,
                Insert::Exists => Outcome::Exists,
            }),
            Op::Update => index.update(key, &value).await.map(|done| match done {
                Update::Updated => Outcome::Updated,
                Update::Absent => Outcome::Absent,
            }),
            Op::Upsert => index.upsert(key, &value).await.map(|done| match done {
                Upsert::Inserted => Outcome::Inserted,
                Upsert::Updated => Outcome::Updated,
                Upsert::Written => Outcome::Written,
            }),
            Op::Remove => index.remove(key).await.map(|done| match done {
                Remove::Removed => Outcome::Removed,
                Remove::Absent => Outcome::Absent,
            }),
        };
        match outcome {
            Ok(outcome) => self.log.complete(ticket, self.shared.stamp(&self.endpoint), outcome),
            // Only what needs memory may fail for want of it.
            Err(IndexError::Pool(PoolError::Full { .. }))
                if op != Op::Get && (op != Op::Remove || self.shared.removes_by_writing) =>
            {
                self.log.cancel(ticket);
                self.shared.refused.set(self.shared.refused.get() + 1);
            }
            // It may have taken effect or not, for ever: it stays open in the history.
            Err(error) if self.shared.kills && is_eviction(&error) => {
                self.shared.evicted.set(self.shared.evicted.get() + 1);
                return false;
            }
            Err(IndexError::Locked { .. }) if self.shared.hasty && self.name != LAST => {}
            Err(error) => self.shared.fail(format!("{op:?} of {}: {error}", key.escape_ascii())),
        }
        true
    }

    /// Asks for this key and others at once, each an operation of its own; `false` if the client has lost its lease.
    async fn look_up_many(&mut self, key: Vec<u8>) -> bool {
        self.shared.batched.set(self.shared.batched.get() + 1);
        let mut keys = vec![key];
        for _ in 0..self.rng.within(1, 12) {
            keys.push(self.shared.workload.next(&mut self.rng).1);
        }
        let now = self.shared.stamp(&self.endpoint);
        let tickets: Vec<_> = keys.iter().map(|key| self.log.invoke(Call::Get { key: key.clone() }, now)).collect();
        let asked: Vec<_> = keys.iter().map(Vec::as_slice).collect();
        match self.index.get_many(&asked).await {
            Ok(values) if values.len() == keys.len() => {
                let now = self.shared.stamp(&self.endpoint);
                for (ticket, value) in tickets.into_iter().zip(values) {
                    self.log.complete(ticket, now, Outcome::Value(value.map(|value| value.to_vec())));
                }
            }
            Ok(values) => self.shared.fail(format!("{} answers for {} keys", values.len(), keys.len())),
            Err(error) if self.shared.kills && is_eviction(&error) => {
                self.shared.evicted.set(self.shared.evicted.get() + 1);
                return false;
            }
            Err(IndexError::Locked { .. }) if self.shared.hasty => {}
            Err(error) => self.shared.fail(format!("get of {} keys: {error}", keys.len())),
        }
        true
    }

    async fn work(mut self, operations: u64, pause: u32, perturb: impl Fn(&I, &mut SimRng)) {
        for _ in 0..operations {
            perturb(&self.index, &mut self.rng);
            if self.rng.chance(ODDS / 3) {
                let pause = Duration::from_nanos(self.rng.tail(pause));
                self.endpoint.sleep(pause).await;
            }
            let (op, key) = self.shared.workload.next(&mut self.rng);
            let many = op == Op::Get && self.shared.many > 0 && self.rng.chance(self.shared.many);
            let goes_on = if many { self.look_up_many(key).await } else { self.run(op, &key).await };
            if !goes_on {
                return;
            }
        }
        // What it has posted and not waited for.
        self.endpoint.settle().await;
    }
}

async fn session_of(client: &Arc<Client>, endpoint: &Endpoint) -> Rc<Session> {
    Rc::new(client.session(endpoint.clone()))
}

/// The kind of index that is on trial.
type Index<A> = <<A as Access>::IndexUnderTest as IndexUnderTest>::Index;

/// Pool, index, and the keys that are there from the beginning.
async fn prepare<A: Access>(
    access: A,
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
    let index = Index::<A>::create(&session, NAME, &access.index_under_test().config()).await?;
    let index = Rc::new(index);
    let keys = shared.workload.preload(&mut rng);
    let log = shared.recorder.client(0);
    let mut worker = Worker { shared, index, endpoint: endpoint.clone(), log, rng, name: 0, written: 0 };
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
    drop(worker);
    // This identity looks after everything in the end, so it must leave as one who owes nothing.
    endpoint.settle().await;
    drop(session);
    client.close(&endpoint).await?;
    Ok(pool)
}

/// A client: joins, starts its coroutines, keeps its lease, leaves when they are done.
struct Node<A: Access> {
    access: A,
    shared: Rc<Shared>,
    pool: Pool,
    me: farindex_sim::Client,
    number: u64,
    rng: SimRng,
    setup: Setup,
}

impl<A: Access> Node<A> {
    async fn live(mut self, spawn: impl Fn(Worker<A::Handle>, u64, u32, Rc<Cell<u64>>)) {
        if let Err(error) = self.try_live(spawn).await
            && !(self.shared.kills && is_eviction(&error))
        {
            self.shared.fail(format!("client {}: {error}", self.number));
        }
    }

    async fn try_live(&mut self, spawn: impl Fn(Worker<A::Handle>, u64, u32, Rc<Cell<u64>>)) -> Result<(), IndexError> {
        let endpoint = self.me.connect();
        if self.shared.kills && self.number > 1 && self.rng.chance(ODDS / 2) {
            // Somebody may be dead by then.
            let pause = self.rng.tail(27);
            endpoint.sleep(Duration::from_nanos(pause)).await;
        }
        let client = Client::register(&self.pool, self.me.identity(), &endpoint).await?;
        let working = Rc::new(Cell::new(0));
        let coroutines = self.rng.within(self.setup.coroutines.0, self.setup.coroutines.1);
        let one_session = self.rng.chance(ODDS * 2 / 3);
        let pause = self.rng.within(8, 20) as u32;
        let mut hand: Option<(Rc<A::Handle>, Endpoint)> = None;
        for coroutine in 0..coroutines {
            if hand.is_none() || !one_session {
                let endpoint = self.me.connect();
                let session = session_of(&client, &endpoint).await;
                hand = Some((Rc::new(self.access.open(&session).await?), endpoint));
            }
            let Some((index, endpoint)) = hand.clone() else { continue };
            let name = self.number * 10 + coroutine;
            let worker = Worker {
                shared: Rc::clone(&self.shared),
                index,
                endpoint,
                log: self.shared.recorder.client(self.number),
                rng: SimRng::new(self.me_seed(), WORKERS + name),
                name,
                written: 0,
            };
            let operations = self.rng.within(self.setup.operations.0, self.setup.operations.1);
            working.set(working.get() + 1);
            spawn(worker, operations, pause, Rc::clone(&working));
        }
        drop(hand);
        let beat = self.rng.within(10, 19) as u32;
        while working.get() > 0 {
            client.tick(&endpoint).await?;
            let pause = Duration::from_nanos(1000 + self.rng.tail(beat));
            // Where deaths are waited out, a keeper that ticks much more often only costs time.
            let least = if self.shared.kills { self.pool.lease() / 500 } else { Duration::ZERO };
            endpoint.sleep(pause.max(least)).await;
        }
        client.close(&endpoint).await?;
        Ok(())
    }

    fn me_seed(&mut self) -> u64 {
        self.rng.word()
    }
}

async fn walk<A: Access>(
    index: &Index<A>,
    pool: &Pool,
    session: &Session,
    audit: &mut Audit,
) -> Result<IndexAudit, IndexError> {
    let report = index.audit(audit, true).await?;
    for info in catalog::list(pool, &session.span(OpKind::Other)).await? {
        audit.reach(info.root, pool.nodes().len() as u64 * 8, "a list of roots");
    }
    Ok(report)
}

/// Everybody has left: is everything where it should be?
async fn try_recover_lock<A: Access>(
    access: A,
    shared: Rc<Shared>,
    harness: farindex_sim::Client,
    pool: Pool,
) -> Result<(IndexAudit, AuditReport), IndexError> {
    let endpoint = harness.connect();
    let client = Client::register(&pool, harness.identity(), &endpoint).await?;
    let session = session_of(&client, &endpoint).await;
    let index = Rc::new(access.open(&session).await?);
    if shared.kills {
        client.wait_and_evict_expired(&endpoint).await?;
        access.plain(&index).recover().await?;
        // What is there, in the eyes of a survivor.
        let log = shared.recorder.client(LAST);
        let mut worker = Worker {
            shared: Rc::clone(&shared),
            index: Rc::clone(&index),
            endpoint: endpoint.clone(),
            log,
            rng: SimRng::new(0, WORKERS),
            name: LAST,
            written: 0,
        };
        let Workload { hot, crowd, cold, .. } = &shared.workload;
        for key in hot.iter().chain(crowd).chain(cold) {
            worker.run(Op::Get, key).await;
        }
        drop(worker);
        // What the dead had in their hands, and what mending has replaced.
        session.drain().await?;
        let mut audit = Audit::begin(&session, &session.span(OpKind::Other)).await?;
        walk::<A>(access.plain(&index), &pool, &session, &mut audit).await?;
        let reclaimed = audit.reclaim(&session, &session.span(OpKind::Maintenance)).await?;
        if !reclaimed.alone {
            shared.fail("pool: somebody has not left, so nothing was reclaimed".to_owned());
        }
    }
    let mut audit = Audit::begin(&session, &session.span(OpKind::Other)).await?;
    let report = walk::<A>(access.plain(&index), &pool, &session, &mut audit).await?;
    drop(index);
    let pool_report = audit.settle(&session, &session.span(OpKind::Maintenance)).await?;
    Ok((report, pool_report))
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

/// What went wrong, in words; a run that got stuck is also counted as what it is.
fn stuck(report: &mut SeedReport, ended: &Ended, doing: &str) -> String {
    report.stuck = match ended {
        Ended::Done => None,
        Ended::Deadlock(_) => Some(Stuck::Deadlock),
        Ended::Livelock(_) | Ended::Timeout(_) => Some(Stuck::Livelock),
    };
    format!("{doing}{ended}")
}

/// Puts one seed on trial.
pub fn run_seed<A: Access>(seed: u64, setup: &Setup, access: &A) -> SeedReport {
    // What an earlier seed left uncounted is not this one's.
    count_marks(&mut SeedReport::default());
    let mut report = SeedReport { seed, ..SeedReport::default() };
    if let Err(what) = try_seed(seed, setup, access, &mut report) {
        report.failures.push(what);
    }
    count_marks(&mut report);
    report
}

fn try_seed<A: Access>(seed: u64, setup: &Setup, access: &A, report: &mut SeedReport) -> Result<(), String> {
    let mut rng = SimRng::new(seed, SETTINGS);
    let access = access.draw(&mut rng);
    let colliding_bits = access.index_under_test().colliding_bits(&mut rng);
    let workload = Workload::draw(&mut rng, setup, colliding_bits);
    let nodes = if rng.chance(ODDS / 8) { 2 } else { 1 };
    let freezing = rng.pick(&[0, 0, ODDS / 256, ODDS / 32]).unwrap_or(0);
    let freezing_for = rng.within(12, 24) as u32;
    report.settings =
        format!("{}; {}; {nodes} nodes, freezes {freezing}/{freezing_for}", access.describe(), workload.describe());
    let tight = rng.chance(setup.tight);
    let swarm = rng.chance(setup.tearing).then(|| tearing(&mut rng));
    let config = Config {
        nodes,
        swarm,
        node_len: if tight { rng.within(30, 60) << 13 } else { setup.node_len },
        max_steps: setup.max_steps,
        max_time: setup.max_time,
        log: setup.log,
        reports_crashes: setup.kills() && rng.chance(ODDS / 3),
        ..Config::default()
    };
    let lease = match setup.kills() {
        true => Duration::from_millis(rng.pick(&[5, 40, 200, 1000, 1000, 1000]).unwrap_or(1000)),
        false => setup.lease,
    };
    report.settings += &format!(", lease {lease:?}");
    let sim = Rc::new(Sim::new(seed, config).map_err(|error| error.to_string())?);
    let shared = Rc::new(Shared {
        workload,
        recorder: Recorder::new(),
        stamps: Stamps::new(),
        failures: RefCell::default(),
        removes_by_writing: access.index_under_test().removes_by_writing(),
        refused: Cell::new(0),
        kills: setup.kills(),
        hasty: lease < HASTY,
        lease,
        many: setup.many,
        batched: Cell::new(0),
        evicted: Cell::new(0),
    });
    let outcome = drive(&sim, setup, &access, &shared, rng, (freezing, freezing_for), report);
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
    report.marks.insert("clients: died".to_owned(), stats.crashes);
    report.marks.insert("operations: gets of many keys".to_owned(), shared.batched.get());
    report.marks.insert("operations: ended by eviction".to_owned(), shared.evicted.get());
    report.marks.retain(|_, count| *count > 0);
    // What is still waiting must let go of its log.
    drop(sim);
    judge(&shared, report);
    outcome
}

/// Decides when a client dies: while it takes or releases a lock, at a verb of its first operations, or at any.
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

/// Verbs in many pieces, as far apart as another client's whole step.
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

fn drive<A: Access>(
    sim: &Rc<Sim>,
    setup: &Setup,
    access: &A,
    shared: &Rc<Shared>,
    mut rng: SimRng,
    freezing: (u32, u32),
    report: &mut SeedReport,
) -> Result<(), String> {
    let options =
        PoolOptions { client_slots: 8, lease: shared.lease, chunk_size: Some(16 << 10), ..PoolOptions::unseeded() };
    let preparing = SimRng::new(rng.word(), WORKERS);
    let shaking = rng.pick(&[0, ODDS / 64, ODDS / 16, ODDS / 6]).unwrap_or(0);
    let prepare = prepare(access.clone(), Rc::clone(shared), sim.fabric(), sim.harness(), options, preparing);
    let pool = sim.block_on(prepare).map_err(|ended| stuck(report, &ended, "while preparing: "))?;
    let pool = pool.map_err(|error| format!("while preparing: {error}"))?;
    for number in 1..=rng.within(setup.clients.0, setup.clients.1) {
        let me = sim.client();
        me.freeze_odds(freezing.0, freezing.1);
        if setup.crashes > 0 && number > 1 && rng.chance(setup.crashes) {
            schedule_crash(&me, &mut rng);
        }
        if let Some((verb, crash_outcome)) = setup.crashes_at.filter(|_| number == 2) {
            me.crash_at(verb, crash_outcome);
        }
        let node = Node {
            access: access.clone(),
            shared: Rc::clone(shared),
            pool: pool.clone(),
            me: me.clone(),
            number,
            rng: SimRng::new(rng.word(), WORKERS),
            setup: setup.clone(),
        };
        let weak = Rc::downgrade(sim);
        let access = access.clone();
        let whose = me.clone();
        sim.spawn(
            &me,
            node.live(move |worker, operations, pause, working| {
                let Some(sim) = weak.upgrade() else { return };
                let access = access.clone();
                sim.spawn(&whose, async move {
                    let perturb = |index: &A::Handle, rng: &mut SimRng| {
                        if rng.chance(shaking) {
                            access.index_under_test().perturb(access.plain(index), rng);
                        }
                    };
                    worker.work(operations, pause, perturb).await;
                    working.set(working.get() - 1);
                });
            }),
        );
    }
    let outcome = sim.run();
    if !outcome.is_done() {
        return Err(stuck(report, &outcome, ""));
    }
    sim.settle();
    let looked = sim.block_on(try_recover_lock(access.clone(), Rc::clone(shared), sim.harness(), pool));
    let looked = looked.map_err(|ended| stuck(report, &ended, "while looking: "))?;
    let (index, pool) = looked.map_err(|error| format!("while looking: {error}"))?;
    shared.failures.borrow_mut().extend(index.problems.iter().map(|problem| format!("index: {problem}")));
    shared.failures.borrow_mut().extend(pool.problems.iter().map(|problem| format!("pool: {problem}")));
    shared.failures.borrow_mut().extend(pool.leak().map(|leak| format!("pool: {leak}")));
    if !pool.alone {
        shared.fail("pool: somebody has not left".to_owned());
    }
    for (name, count) in &index.figures {
        report.marks.insert(format!("audit: {name}"), *count);
    }
    report.marks.insert("audit: resizes".to_owned(), index.resizes);
    report.audit = index;
    Ok(())
}

/// The history's verdict.
fn judge(shared: &Shared, report: &mut SeedReport) {
    let history = match shared.recorder.finish() {
        Ok(history) => history,
        Err(error) => return report.failures.push(format!("no history: {error}")),
    };
    report.operations = history.operations().len() as u64;
    let verdict = check(&history, &Limits { steps_per_key: 200_000, ..Limits::default() });
    match verdict.verdict {
        Verdict::Ok => {}
        Verdict::Unknown => report.unknown += 1,
        Verdict::Violation => {
            report.violation = true;
            report.failures.push(verdict.to_string());
        }
    }
    report.history = Some(history);
}
