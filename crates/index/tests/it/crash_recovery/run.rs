//! One run: a client crashes or does not, another one works on, and the pool is audited.

use crate::crash_recovery::kinds::{CrashTested, Kind, MANY, Stage};
use farindex_check::{ClientLog, Limits, Recorder, Stamps, Verdict, check};
use farindex_fabric::{FabricError, OpKind};
use farindex_index::IndexError;
use farindex_index::Lifecycle;
use farindex_pool::audit::Audit;
use farindex_pool::{Client, Pool, PoolError, PoolOptions, Session, catalog, marks};
use farindex_sim::{Config as SimConfig, CrashOutcome, Sim, Swarm};
use farindex_testkit::worker::{call_of, carry_out};
use farindex_testkit::workload::Op;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const LEASE: Duration = Duration::from_millis(50);

/// What became of it.
pub(crate) struct Ran {
    /// Did the client crash?
    pub(crate) crashed: bool,
    /// Verbs of what it was at, if it lived.
    pub(crate) verbs: u64,
    /// Bytes that are reachable after recovery.
    pub(crate) live_bytes: u64,
    /// Drops that others finished.
    pub(crate) drops: u64,
    /// Paths that ran while it was at it.
    pub(crate) marks: marks::Marks,
}

/// What is done to a client at some point of its run. One type, since what takes it is compiled for every kind of index.
type Steering = Box<dyn Fn(&farindex_sim::Client)>;

/// What all in a run share.
pub(crate) struct Shared<I: CrashTested> {
    kind: Kind<I::Place>,
    pub(crate) stage: Rc<Stage>,
    pub(crate) recorder: Recorder,
    stamps: Rc<Stamps>,
    /// The survivor, while its lease is to be kept.
    kept: Rc<RefCell<Option<Arc<Client>>>>,
    over: Rc<Cell<bool>>,
}

impl<I: CrashTested> Clone for Shared<I> {
    fn clone(&self) -> Self {
        let Shared { kind, stage, recorder, stamps, kept, over } = self;
        Shared {
            kind: *kind,
            stage: Rc::clone(stage),
            recorder: recorder.clone(),
            stamps: Rc::clone(stamps),
            kept: Rc::clone(kept),
            over: Rc::clone(over),
        }
    }
}

/// The survivor needs its lease no more.
struct Over(Rc<Cell<bool>>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.set(true);
    }
}

pub(crate) async fn join(pool: &Pool, me: &farindex_sim::Client) -> Result<(Arc<Client>, Rc<Session>), IndexError> {
    let endpoint = me.connect();
    let client = Client::register(pool, me.identity(), &endpoint).await?;
    let session = Rc::new(client.session(endpoint));
    Ok((client, session))
}

async fn fill<I: CrashTested>(index: &I) -> Result<(), IndexError> {
    for key in 0..20u32 {
        index.upsert(&key.to_le_bytes(), b"value").await?;
    }
    Ok(())
}

pub(crate) async fn make<I: CrashTested>(
    session: &Rc<Session>,
    name: &str,
    initial_bits: u64,
) -> Result<I, IndexError> {
    I::create(session, name, &I::config(initial_bits)).await
}

impl<I: CrashTested> Shared<I> {
    pub(crate) fn new(kind: Kind<I::Place>) -> Self {
        Shared {
            kind,
            stage: Rc::new(I::stage(kind)),
            recorder: Recorder::new(),
            stamps: Rc::new(Stamps::new()),
            kept: Rc::default(),
            over: Rc::default(),
        }
    }

    /// Makes a pool in this world, and the index ready in it.
    pub(crate) fn begin(&self, sim: &Sim, lease: Duration) -> Pool {
        let (harness, fabric) = (sim.harness(), sim.fabric());
        let options = PoolOptions { client_slots: 6, lease, chunk_size: Some(16 << 10), ..PoolOptions::unseeded() };
        let made = sim.block_on(async move { Pool::create(fabric, &harness.connect(), &options).await });
        let pool = made.expect("done").expect("a pool");
        sim.block_on(self.clone().prepare(pool.clone(), sim.harness())).expect("done").expect("prepared");
        pool
    }

    /// Asserts that the recorded outcomes are linearizable. No client records any more.
    pub(crate) fn judge(self, context: &str) {
        let history = self.recorder.finish().expect("no log is open");
        let report = check(&history, &Limits::default());
        assert_eq!(report.verdict, Verdict::Ok, "{context}: {report}");
    }

    /// Runs an operation and records it.
    pub(crate) async fn run(
        &self,
        log: &mut ClientLog,
        (session, index): (&Session, &I),
        op: Op,
        key: &str,
        value: &str,
    ) -> Result<(), IndexError> {
        self.run_expecting(log, (session, index), op, key, ("", value)).await
    }

    /// Runs an operation that may expect a value, and records it.
    pub(crate) async fn run_expecting(
        &self,
        log: &mut ClientLog,
        (session, index): (&Session, &I),
        op: Op,
        key: &str,
        (expected, value): (&str, &str),
    ) -> Result<(), IndexError> {
        let now = || self.stamps.at(session.endpoint().now().as_nanos() as u64);
        let (key, values) = (key.as_bytes(), (expected.as_bytes(), value.as_bytes()));
        let ticket = log.invoke(call_of(op, key, values), now());
        let outcome = carry_out(index, op, key, values).await?;
        log.complete(ticket, now(), outcome);
        Ok(())
    }

    /// Makes the index ready.
    async fn prepare(self, pool: Pool, me: farindex_sim::Client) -> Result<(), IndexError> {
        let (client, session) = join(&pool, &me).await?;
        let index: I = make(&session, "old", self.stage.initial_bits).await?;
        fill::<I>(&make(&session, "other", 1).await?).await?;
        let mut log = self.recorder.client(0);
        let to = (&*session, &index);
        let keys = &self.stage.keys;
        index.swell(-MANY);
        for key in keys {
            self.run(&mut log, to, Op::Insert, key, self.stage.first()).await?;
        }
        for key in keys.iter().take(self.stage.removed) {
            self.run(&mut log, to, Op::Remove, key, "").await?;
        }
        for key in keys.iter().rev().take(self.stage.updated) {
            self.run(&mut log, to, Op::Update, key, "changed").await?;
        }
        for turn in 0..self.stage.grows + self.stage.behind {
            index.enlarge(&session).await?;
            if turn + 1 < self.stage.grows {
                index.move_parts(&session, u64::MAX, keys).await?;
            }
        }
        index.move_parts(&session, self.stage.moved, &[]).await?;
        // What was removed may be used again, and every operation knows of the growth.
        for _ in 0..self.stage.epochs {
            client.tick(session.endpoint()).await?;
        }
        session.maintain().await?;
        session.endpoint().settle().await;
        drop((index, session));
        Ok(client.close(&me.connect()).await?)
    }

    /// Runs the operation of the client that crashes; `arm` decides where.
    async fn crashing_client(
        self,
        pool: Pool,
        me: farindex_sim::Client,
        arm: Steering,
        disarm: Steering,
    ) -> Result<(), IndexError> {
        if self.kind == Kind::Register {
            arm(&me);
        }
        let (client, session) = join(&pool, &me).await?;
        let mut log = self.recorder.client(1);
        match self.kind {
            Kind::On(op, _) => {
                let index = I::open(&session, "old").await?;
                if self.stage.resizes {
                    index.swell(2 * MANY);
                }
                arm(&me);
                let value = format!("second{}", ".".repeat(self.stage.padded));
                let values = (self.stage.value(), value.as_str());
                self.run_expecting(&mut log, (&session, &index), op, &self.stage.key, values).await?;
            }
            Kind::Open => {
                arm(&me);
                drop(I::open(&session, "old").await?);
            }
            Kind::Create => {
                arm(&me);
                fill::<I>(&make(&session, "new", 1).await?).await?;
            }
            Kind::Drop => {
                arm(&me);
                I::drop_index(&session, "old").await?;
            }
            Kind::Recover(_) => {
                let index = I::open(&session, "old").await?;
                arm(&me);
                client.wait_and_evict_expired(session.endpoint()).await?;
                index.recover().await?;
            }
            Kind::Register => {}
            Kind::Tick => {
                arm(&me);
                for _ in 0..3 {
                    client.tick(session.endpoint()).await?;
                }
            }
            Kind::Close => {
                let index = I::open(&session, "old").await?;
                for i in 0..10 {
                    self.run(&mut log, (&session, &index), Op::Upsert, &self.stage.key, &format!("second {i}")).await?;
                }
                drop(index);
                arm(&me);
            }
        }
        if self.kind != Kind::Close {
            disarm(&me);
        }
        session.endpoint().settle().await;
        drop((log, session));
        client.close(&me.connect()).await?;
        if self.kind == Kind::Close {
            disarm(&me);
        }
        Ok(())
    }

    /// Runs another client that uses everything that the crashed one may have held.
    async fn survivor(self, pool: Pool, me: farindex_sim::Client, at_once: bool) -> Result<(), IndexError> {
        let over = Over(Rc::clone(&self.over));
        let (client, session) = join(&pool, &me).await?;
        self.kept.replace(Some(Arc::clone(&client)));
        fill(&I::open(&session, "other").await?).await?;
        fill::<I>(&make(&session, "another", 1).await?).await?;
        if self.kind != Kind::Drop {
            let index = I::open(&session, "old").await?;
            index.swell(-4 * MANY);
            let mut log = self.recorder.client(2);
            let keys = &self.stage.keys;
            // Its own key, its neighbours, and what belongs to the same bucket and is new.
            for (op, key, value) in [
                (Op::Get, self.stage.key.as_str(), ""),
                (Op::Update, keys[0].as_str(), "third"),
                (Op::Upsert, keys[keys.len() / 2].as_str(), "fourth"),
                (Op::Insert, self.stage.key.as_str(), "fifth"),
                (Op::Remove, keys[1].as_str(), ""),
                (Op::Update, self.stage.key.as_str(), "sixth"),
                (Op::Remove, self.stage.key.as_str(), ""),
                (Op::Get, self.stage.key.as_str(), ""),
                (Op::Upsert, self.stage.key.as_str(), "seventh"),
                (Op::Replace, self.stage.key.as_str(), "eighth"),
                (Op::RemoveIf, keys[0].as_str(), ""),
            ] {
                let expected = if op == Op::Replace { "seventh" } else { "third" };
                self.run_expecting(&mut log, (&session, &index), op, key, (expected, value)).await?;
            }
            if !at_once {
                for key in keys {
                    self.run(&mut log, (&session, &index), Op::Get, key, "").await?;
                }
            }
            if self.stage.resizes {
                self.grow(&mut log, &session, &index).await?;
            }
        }
        session.endpoint().settle().await;
        drop((over, session));
        Ok(client.close(&me.connect()).await?)
    }

    /// Keeps the survivor's lease.
    async fn keep(self, me: farindex_sim::Client) {
        let endpoint = me.connect();
        while !self.over.get() {
            let client = self.kept.borrow().clone();
            if let Some(client) = client
                && client.tick(&endpoint).await.is_err()
            {
                break;
            }
            endpoint.sleep(LEASE / 10).await;
        }
    }

    /// Makes sure that the table has grown once, even if the client that resized it crashed.
    async fn grow(&self, log: &mut ClientLog, session: &Session, index: &I) -> Result<(), IndexError> {
        let to = (session, index);
        for turn in 0.. {
            self.run(log, to, Op::Get, &self.stage.key, "").await?;
            if index.statistics().resizes > 0 {
                break;
            }
            index.swell(8 * MANY);
            self.run(log, to, Op::Insert, &format!("grows {turn}"), "").await?;
            index.swell(-8 * MANY);
            self.run(log, to, Op::Remove, &format!("grows {turn}"), "").await?;
            session.endpoint().sleep(LEASE / 6).await;
        }
        Ok(())
    }

    /// After all clients have left: recovers, brings the index into one state whatever has happened, and audits the
    /// account. Returns the bytes that are reachable, and how many drops it had to finish.
    async fn try_recover_lock(self, pool: Pool, me: farindex_sim::Client) -> Result<(u64, u64), IndexError> {
        let (client, session) = join(&pool, &me).await?;
        client.wait_and_evict_expired(session.endpoint()).await?;
        let drops = I::finish_drops(&session).await?;
        let span = session.span(OpKind::Maintenance);
        for info in catalog::list(&pool, &span).await? {
            I::open_info(&session, &info).await?.recover().await?;
        }
        session.drain().await?;
        // Nothing is wrong now, and nothing is lost once it has been reclaimed.
        let mut audit = Audit::begin(&session, &span).await?;
        assert_eq!(reach_all::<I>(&session, &mut audit).await?, [""; 0]);
        assert!(audit.reclaim(&session, &span).await?.alone);
        account::<I>(&session).await?;
        self.level_out(&session).await?;
        let mut log = self.recorder.client(3);
        // What it has unlinked itself is to be free.
        for _ in 0..6 {
            session.maintain().await?;
        }
        let mut audit = Audit::begin(&session, &span).await?;
        reach_all::<I>(&session, &mut audit).await?;
        assert!(audit.reclaim(&session, &span).await?.alone);
        if self.kind != Kind::Drop {
            let index = I::open(&session, "old").await?;
            for key in self.stage.keys.iter().chain([&self.stage.key]) {
                self.run(&mut log, (&session, &index), Op::Get, key, "").await?;
            }
        }
        Ok((account::<I>(&session).await?, drops))
    }

    /// Brings runs with and without a crash to the same state.
    async fn level_out(&self, session: &Rc<Session>) -> Result<(), IndexError> {
        let span = session.span(OpKind::Maintenance);
        let has = async |name: &str| {
            let all = catalog::list(session.pool(), &span).await?;
            Ok::<_, IndexError>(all.iter().any(|info| info.name == name))
        };
        match self.kind {
            Kind::Create if has("new").await? => fill(&I::open(session, "new").await?).await?,
            Kind::Create => fill::<I>(&make(session, "new", 1).await?).await?,
            Kind::Drop if has("old").await? => I::drop_index(session, "old").await?,
            // The name can be used again.
            Kind::Drop => {
                make::<I>(session, "old", 1).await?;
                I::drop_index(session, "old").await?;
            }
            _ => {
                let index = I::open(session, "old").await?;
                let mut log = self.recorder.client(4);
                for key in self.stage.keys.iter().chain([&self.stage.key]) {
                    self.run(&mut log, (session, &index), Op::Upsert, key, "last").await?;
                }
            }
        }
        for name in ["other", "another"] {
            fill(&I::open(session, name).await?).await?;
        }
        for info in catalog::list(session.pool(), &span).await? {
            I::open_info(session, &info).await?.level_out(session).await?;
        }
        Ok(())
    }
}

async fn reach_all<I: CrashTested>(session: &Rc<Session>, audit: &mut Audit) -> Result<Vec<String>, IndexError> {
    let span = session.span(OpKind::Maintenance);
    let mut problems = Vec::new();
    for info in catalog::list(session.pool(), &span).await? {
        let index = I::open_info(session, &info).await?;
        problems.extend(index.audit(audit, true).await?.problems);
        audit.reach(info.root, session.pool().nodes().len() as u64 * 8, "a list of roots");
    }
    Ok(problems)
}

/// The account of the pool: nothing is wrong, nothing is lost. Returns the bytes that are reachable.
pub(crate) async fn account<I: CrashTested>(session: &Rc<Session>) -> Result<u64, IndexError> {
    let span = session.span(OpKind::Maintenance);
    let mut audit = Audit::begin(session, &span).await?;
    assert_eq!(reach_all::<I>(session, &mut audit).await?, [""; 0]);
    let report = audit.settle(session, &span).await?;
    assert_eq!((report.problems, report.lost, report.alone), (vec![], 0, true));
    Ok(report.nodes.iter().map(|node| node.live_bytes).sum())
}

/// So slow a network is beyond so short a lease.
fn is_late(error: &IndexError) -> bool {
    matches!(
        error,
        IndexError::Pool(PoolError::LeaseLost) | IndexError::Fabric(FabricError::Revoked) | IndexError::Locked { .. }
    )
}

/// Runs an operation; the client crashes at this verb of it, if it has as many. Seed 0 is calm, and the survivor comes
/// when the crashing client has crashed or left; with others both work at the same time, under the adversary. `None` if
/// a client was too slow for the lease.
pub(crate) fn run<I: CrashTested>(seed: u64, kind: Kind<I::Place>, crash: Option<(u64, CrashOutcome)>) -> Option<Ran> {
    let calm = seed == 0;
    let config = SimConfig {
        node_len: 4 << 20,
        reports_crashes: seed % 2 == 1,
        swarm: calm.then(Swarm::calm),
        ..SimConfig::default()
    };
    let sim = Sim::new(seed, config).expect("a world");
    let shared = Shared::<I>::new(kind);
    let pool = shared.begin(&sim, LEASE);
    if let Kind::Recover(at) = kind {
        let first = sim.client();
        let arm = Box::new(move |me: &farindex_sim::Client| me.crash_at(me.verbs() + at, CrashOutcome::Prefix));
        let crashing = Shared { kind: Kind::On(Op::Upsert, I::RECOVERED), ..shared.clone() };
        sim.spawn(&first, crashing.crashing_client(pool.clone(), first.clone(), arm, Box::new(|_| ())));
        sim.run().assert_done();
        assert!(first.has_crashed(), "what is to be recovered is done by {} verbs", first.verbs());
    }
    marks::take();
    let (crashing, living) = (sim.client(), sim.client());
    let (begun, ended) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let arm = {
        let begun = Rc::clone(&begun);
        move |me: &farindex_sim::Client| {
            begun.set(me.verbs());
            if let Some((verb, crash_outcome)) = crash {
                me.crash_at(me.verbs() + verb, crash_outcome);
            }
        }
    };
    let disarm = {
        let ended = Rc::clone(&ended);
        move |me: &farindex_sim::Client| {
            ended.set(me.verbs());
            me.crash_at(u64::MAX, CrashOutcome::Lost);
        }
    };
    let crashed = sim.spawn(
        &crashing,
        shared.clone().crashing_client(pool.clone(), crashing.clone(), Box::new(arm), Box::new(disarm)),
    );
    if calm {
        sim.run().assert_done();
    }
    let passed = if calm { marks::take() } else { marks::Marks::new() };
    let lived = sim.spawn(&living, shared.clone().survivor(pool.clone(), living.clone(), !calm));
    sim.spawn(&living, shared.clone().keep(living.clone()));
    sim.run().assert_done();
    sim.settle();
    let context = format!("seed {seed}, {kind:?}, {crash:?}");
    for result in [crashed.take(), Some(lived.take().expect("the survivor is running"))].into_iter().flatten() {
        match result {
            Ok(()) => {}
            Err(error) if !calm && is_late(&error) => return None,
            Err(error) => panic!("{context}: {error}"),
        }
    }
    let looked = sim.block_on(shared.clone().try_recover_lock(pool, sim.harness())).expect("done");
    let (live_bytes, drops) = looked.unwrap_or_else(|error| panic!("{context}: {error}"));
    let crashed = crashing.has_crashed();
    drop(sim);
    shared.judge(&context);
    let verbs = ended.get().saturating_sub(begun.get());
    Some(Ran { crashed, verbs, live_bytes, drops, marks: passed })
}
