//! Takeover under the adversary: two counters under one lock, and clients that crash or expire anywhere.
//!
//! A holder of the lock adds one to both counters, in two batches. A new holder after a takeover sets the second
//! counter to the first. If two clients ever hold the lock at the same time, or an evicted client still changes
//! something, additions are lost.

use farindex_fabric::{FabricError, OpKind, Span};
use farindex_pool::faults::{Fault, plant};
use farindex_pool::{Claim, Client, HeldLock, Intent, Lock, Pool, PoolError, PoolOptions, Session, clients};
use farindex_sim::{Config, CrashOutcome, ODDS, Outcome, Sim, SimRng, Swarm};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Seeds that each fault is given.
const LIMIT: u64 = 2000;

#[derive(Default)]
struct Counts {
    begun: Cell<u64>,
    done: Cell<u64>,
    claimed: Cell<u64>,
    evicted: Cell<u64>,
}

fn add_one(cell: &Cell<u64>) {
    cell.set(cell.get() + 1);
}

fn is_eviction(error: &PoolError) -> bool {
    matches!(error, PoolError::LeaseLost | PoolError::Fabric(FabricError::Revoked))
}

/// The lock, and the two counters behind it.
fn lock(pool: &Pool) -> Lock {
    let node = pool.nodes().last().expect("a node");
    Lock { at: pool.geometry(node).chunk(node, 0), mask: u64::MAX }
}

async fn counters(span: &Span, lock: Lock) -> Result<(u64, u64), PoolError> {
    let words = span.read(lock.at.add(8), 16).await?;
    Ok((words.words()[0], words.words()[1]))
}

async fn recover_locked(span: &Span, held: HeldLock<'_>) -> Result<(), PoolError> {
    let (first, second) = counters(span, held.lock()).await?;
    let mut batch = span.batch();
    if first != second {
        batch.write_words(held.lock().at.add(16), &[first]);
    }
    held.release_by_cas(&mut batch, 0);
    batch.post().await?;
    held.cleared();
    Ok(())
}

async fn try_take<'s>(session: &'s Session, span: &Span, lock: Lock) -> Result<Option<HeldLock<'s>>, PoolError> {
    let cell = session.intent_cell(lock.at.node()).await?;
    let mut batch = span.batch();
    let intent = Intent { index: 1, lock, what: [0; 4] };
    let attempt = cell.try_lock(&mut batch, &intent, 0, session.client().slot() + 1);
    let mut done = batch.post().await?;
    match attempt.outcome(&mut done) {
        Ok(held) => Ok(Some(held)),
        Err(lost) => lost.clear(span).await.map(|_| None),
    }
}

/// Claims the lock after each `patience` attempts to take it.
async fn add(session: &Session, counts: &Counts, lock: Lock, patience: u64) -> Result<(), PoolError> {
    let span = session.span(OpKind::Update);
    let mut tries = 0;
    let held = loop {
        if let Some(held) = try_take(session, &span, lock).await? {
            break held;
        }
        tries += 1;
        session.endpoint().sleep(Duration::from_micros(20 << tries.min(6))).await;
        if tries % patience == 0
            && let Claim::Taken(taken) = session.claim(&span, lock, None, 1, [1; 4]).await?
        {
            add_one(&counts.claimed);
            recover_locked(&span, taken.into_held()).await?;
        }
    };
    let (first, second) = counters(&span, lock).await?;
    add_one(&counts.begun);
    let mut batch = span.batch();
    batch.write_words(lock.at.add(8), &[first + 1]);
    batch.post().await?;
    let mut batch = span.batch();
    batch.write_words(lock.at.add(16), &[second + 1]);
    held.release_by_cas(&mut batch, 0);
    batch.post().await?;
    held.cleared();
    add_one(&counts.done);
    Ok(())
}

async fn run_client(
    pool: Pool,
    me: farindex_sim::Client,
    counts: Rc<Counts>,
    adds: u64,
    delay: u64,
) -> Result<(), PoolError> {
    let endpoint = me.connect();
    endpoint.sleep(Duration::from_nanos(delay)).await;
    let client = Client::register(&pool, me.identity(), &endpoint).await?;
    let session = client.session(me.connect());
    for _ in 0..adds {
        client.tick(&endpoint).await?;
        add(&session, &counts, lock(&pool), 8).await?;
    }
    drop(session);
    client.close(&endpoint).await
}

async fn final_state(pool: Pool, me: farindex_sim::Client) -> Result<(u64, u64, usize), PoolError> {
    let endpoint = me.connect();
    let client = Client::register(&pool, me.identity(), &endpoint).await?;
    let session = client.session(endpoint.clone());
    client.wait_and_evict_expired(&endpoint).await?;
    let (lock, span) = (lock(&pool), session.span(OpKind::Other));
    match session.claim(&span, lock, None, 1, [2; 4]).await? {
        Claim::Free => {}
        Claim::Taken(taken) => recover_locked(&span, taken.into_held()).await?,
        _ => return Err(PoolError::BadName("the lock is held, and no client is registered".to_owned())),
    }
    let (first, second) = counters(&span, lock).await?;
    Ok((first, second, clients(&pool, &span).await?.len()))
}

fn run(seed: u64) -> Result<Rc<Counts>, String> {
    let mut rng = SimRng::new(seed, 77);
    let reports_crashes = rng.chance(ODDS / 2);
    let max_time = Duration::from_secs(1000);
    let nodes = rng.within(1, 2) as usize;
    let config = Config { nodes, node_len: 512 << 10, reports_crashes, max_time, ..Config::default() };
    let sim = Sim::new(seed, config).map_err(|error| error.to_string())?;
    let lease = Duration::from_millis(rng.pick(&[1, 5, 50, 500]).unwrap_or(50));
    let (harness, fabric) = (sim.harness(), sim.fabric());
    let made = sim.block_on(async move {
        let options = PoolOptions { client_slots: 4, lease, chunk_size: Some(16 << 10), ..PoolOptions::default() };
        Pool::create(fabric, &harness.connect(), &options).await
    });
    let pool = made.map_err(|outcome| outcome.to_string())?.map_err(|error| error.to_string())?;
    let counts = Rc::new(Counts::default());
    let mut runs = Vec::new();
    for number in 0..rng.within(2, 6) {
        let me = sim.client();
        me.freeze_odds(rng.pick(&[0, ODDS / 64]).unwrap_or(0), 26);
        if number > 0 && rng.chance(ODDS * 2 / 3) {
            let crash_outcome = rng
                .pick(&[CrashOutcome::Lost, CrashOutcome::Landed, CrashOutcome::Prefix, CrashOutcome::Drawn])
                .unwrap_or(CrashOutcome::Drawn);
            me.crash_at(rng.within(1, 150), crash_outcome);
        }
        let delay = rng.tail(24);
        let run = run_client(pool.clone(), me.clone(), Rc::clone(&counts), rng.within(1, 12), delay);
        runs.push(sim.spawn(&me, run));
    }
    match sim.run() {
        Outcome::Done => {}
        outcome => return Err(outcome.to_string()),
    }
    sim.settle();
    for run in runs {
        match run.take() {
            Some(Err(error)) if is_eviction(&error) => add_one(&counts.evicted),
            // Four slots for up to six clients, and crashed clients keep theirs for a lease.
            Some(Err(PoolError::NoClientSlot(_))) => {}
            Some(Err(error)) => return Err(error.to_string()),
            Some(Ok(())) | None => {}
        }
    }
    let state = sim.block_on(final_state(pool, sim.harness())).map_err(|outcome| outcome.to_string())?;
    let (first, second, registered) = state.map_err(|error| error.to_string())?;
    let (done, begun) = (counts.done.get(), counts.begun.get());
    if first != second || !(done..=begun).contains(&first) || registered != 1 {
        return Err(format!("{first} and {second} after {done} of {begun} additions; {registered} clients"));
    }
    Ok(counts)
}

fn seeds(usual: u64) -> std::ops::Range<u64> {
    let asked = std::env::var("FARINDEX_SEEDS").ok();
    let parsed = asked.as_deref().and_then(|asked| {
        let (low, high) = asked.split_once("..")?;
        Some(low.parse().ok()?..high.parse().ok()?)
    });
    parsed.unwrap_or(0..usual)
}

#[test]
fn takeover_loses_no_addition_under_the_adversary() {
    let (mut claimed, mut evicted, mut done) = (0, 0, 0);
    for seed in seeds(400) {
        let counts = run(seed).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        claimed += counts.claimed.get();
        evicted += counts.evicted.get();
        done += counts.done.get();
    }
    println!("{done} additions, {claimed} locks claimed, {evicted} live clients evicted");
    assert!(claimed > 0 && evicted > 0, "{claimed} locks claimed, {evicted} live clients evicted");
}

/// Declares an intent for the lock three times, and never takes it.
async fn declare_and_fail(pool: Pool, me: farindex_sim::Client) -> Result<(), PoolError> {
    let endpoint = me.connect();
    let client = Client::register(&pool, me.identity(), &endpoint).await?;
    let session = client.session(endpoint);
    let (span, lock) = (session.span(OpKind::Other), lock(&pool));
    for _ in 0..3 {
        let cell = session.intent_cell(lock.at.node()).await?;
        let mut batch = span.batch();
        cell.declare(&mut batch, &Intent { index: 1, lock, what: [0; 4] });
        batch.cas(lock.at, u64::MAX, 0);
        batch.post().await?;
        std::mem::forget(cell);
    }
    std::mem::forget(session);
    Ok(())
}

/// Uses the client's intent cell for another lock.
async fn take_another(session: &Session, lock: Lock) -> Result<(), PoolError> {
    let (span, other) = (session.span(OpKind::Other), Lock { at: lock.at.add(64), ..lock });
    if let Some(held) = try_take(session, &span, other).await? {
        let mut batch = span.batch();
        held.release_by_cas(&mut batch, 0);
        batch.post().await?;
        held.cleared();
    }
    Ok(())
}

/// Crashed clients have left intents that name the lock, and none of them holds it. Live clients take and release it,
/// and try to take it over from each other. Nothing is slow, but the verbs of a batch take effect one by one. If
/// `torn`, so do the parts of a READ, and the clients also take another lock; there are two, so that nobody else names
/// the lock.
fn with_crashed_candidates(seed: u64, torn: bool) -> Result<(), String> {
    let (tear, stall) = if torn { (ODDS, ODDS / 2) } else { (0, ODDS / 8) };
    let (members, adds) = if torn { (2, 100) } else { (4, 10) };
    let swarm = Swarm { split: ODDS, gap_ns: 5000, stall, stall_exponent: 15, tear, pieces: 3, ..Swarm::calm() };
    let config = Config { node_len: 512 << 10, swarm: Some(swarm), reports_crashes: true, ..Config::default() };
    let sim = Sim::new(seed, config).map_err(|error| error.to_string())?;
    let (harness, fabric) = (sim.harness(), sim.fabric());
    let made = sim.block_on(async move {
        let options = PoolOptions {
            client_slots: 8,
            lease: Duration::from_secs(1),
            chunk_size: Some(16 << 10),
            ..PoolOptions::default()
        };
        Pool::create(fabric, &harness.connect(), &options).await
    });
    let pool = made.map_err(|outcome| outcome.to_string())?.map_err(|error| error.to_string())?;
    let victims = [sim.client(), sim.client()];
    let declared = victims.each_ref().map(|me| sim.spawn(me, declare_and_fail(pool.clone(), me.clone())));
    sim.run().assert_done();
    for declared in declared {
        declared.take().expect("it has ended").expect("declared");
    }
    victims.iter().for_each(|me| me.crash(CrashOutcome::Lost));
    let counts = Rc::new(Counts::default());
    let spawned = (0..members).map(|_| {
        let (me, pool, counts) = (sim.client(), pool.clone(), Rc::clone(&counts));
        let actor = me.clone();
        sim.spawn(&me, async move {
            let endpoint = actor.connect();
            let client = Client::register(&pool, actor.identity(), &endpoint).await?;
            let session = client.session(actor.connect());
            for _ in 0..adds {
                client.tick(&endpoint).await?;
                add(&session, &counts, lock(&pool), 1).await?;
                if torn {
                    take_another(&session, lock(&pool)).await?;
                }
            }
            drop(session);
            client.close(&endpoint).await
        })
    });
    let runs: Vec<_> = spawned.collect();
    match sim.run() {
        Outcome::Done => {}
        outcome => return Err(outcome.to_string()),
    }
    for run in runs {
        run.take().expect("it has ended").map_err(|error| error.to_string())?;
    }
    let state = sim.block_on(final_state(pool, sim.harness())).map_err(|outcome| outcome.to_string())?;
    let (first, second, _) = state.map_err(|error| error.to_string())?;
    let all = members * adds;
    match (first, second, counts.claimed.get()) {
        (one, two, 0) if (one, two) == (all, all) => Ok(()),
        (first, second, claimed) => Err(format!("{first} and {second} after {all} additions, {claimed} claims")),
    }
}

/// Runs seeds with a planted fault until one detects it, and the same seeds without the fault.
fn detect(fault: Fault, run: impl Fn(u64) -> Result<(), String>) -> bool {
    plant(&[fault]);
    let detected = (0..LIMIT).find_map(|seed| run(seed).err().map(|what| (seed, what)));
    plant(&[]);
    println!("{fault:?}: {detected:?}");
    let same = detected.as_ref().map_or(0, |(seed, _)| seed + 1);
    for seed in 0..same {
        run(seed).unwrap_or_else(|what| panic!("as shipped, seed {seed}: {what}"));
    }
    detected.is_some()
}

/// Breaks each rule of a takeover alone: additions are lost, or a client waits for ever. (No seed needs the rule that a
/// slot is freed after the revocation: `eviction_frees_a_slot_only_after_revocation`.)
#[test]
fn takeover_checks_detect_every_planted_fault() {
    assert!(detect(Fault::NoIntent, |seed| run(seed).map(drop)));
    assert!(detect(Fault::LateClear, |seed| run(seed).map(drop)));
    assert!(detect(Fault::NoRevocation, |seed| run(seed).map(drop)));
    assert!(detect(Fault::SingleRead, |seed| with_crashed_candidates(seed, false)));
    assert!(detect(Fault::TornIntents, |seed| with_crashed_candidates(seed, true)));
}

/// A client registers in the slot of one that has crashed, while READs of the slots are torn: they may show its state and the
/// identity of the crashed one (docs/bugs/207).
#[test]
fn client_in_the_slot_of_a_crashed_one_is_not_evicted_in_its_place() {
    let mut torn = 0;
    for seed in seeds(200) {
        let swarm = Swarm {
            split: ODDS,
            tear: ODDS,
            pieces: 16,
            gap_ns: 100,
            stall: ODDS / 8,
            stall_exponent: 17,
            ..Swarm::calm()
        };
        let config = Config { node_len: 512 << 10, swarm: Some(swarm), reports_crashes: true, ..Config::default() };
        let sim = Sim::new(seed, config).expect("a world");
        let (harness, fabric) = (sim.harness(), sim.fabric());
        let made = sim.block_on(async move {
            let options = PoolOptions { client_slots: 2, lease: Duration::from_secs(1), ..PoolOptions::default() };
            Pool::create(fabric, &harness.connect(), &options).await
        });
        let pool = made.expect("ends").expect("a pool");
        let [observer, victim, next] = [sim.client(), sim.client(), sim.client()];
        let registered = async |pool: Pool, me: farindex_sim::Client| {
            let endpoint = me.connect();
            Ok::<_, PoolError>((Client::register(&pool, me.identity(), &endpoint).await?, endpoint))
        };
        let owner = sim.spawn(&victim, registered(pool.clone(), victim.clone()));
        assert!(matches!(sim.run(), Outcome::Done));
        victim.crash(CrashOutcome::Lost);
        let free = Rc::new(Cell::new(false));
        let evicted = sim.spawn(&observer, {
            let (pool, me, free) = (pool.clone(), observer.clone(), Rc::clone(&free));
            async move {
                let (client, endpoint) = registered(pool.clone(), me).await?;
                assert_eq!(client.evict_expired(&endpoint).await?, 1);
                free.set(true);
                let span = endpoint.span(OpKind::Other);
                let mut mixed = 0;
                for _ in 0..40 {
                    mixed += clients(&pool, &span).await?.iter().filter(|other| other.gone == Some(true)).count();
                    assert_eq!(client.evict_expired(&endpoint).await?, 0);
                }
                Ok::<_, PoolError>(mixed)
            }
        });
        let ticked = sim.spawn(&next, {
            let (pool, me) = (pool.clone(), next.clone());
            async move {
                let endpoint = me.connect();
                while !free.get() {
                    endpoint.sleep(Duration::from_micros(1)).await;
                }
                let (client, endpoint) = registered(pool, me).await?;
                for _ in 0..20 {
                    client.tick(&endpoint).await?;
                }
                Ok::<_, PoolError>(())
            }
        });
        assert!(matches!(sim.run(), Outcome::Done));
        torn += evicted.take().expect("ends").unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(ticked.take(), Some(Ok(())), "seed {seed}");
        drop(owner);
    }
    println!("{torn} READs showed a state and an identity that were never together");
    assert!(torn > 0);
}

/// All slots belong to clients that have crashed, and every READ takes twice as long as a lease. See
/// `docs/bugs/240-pool-registration-ends-before-a-lease-was-seen-to-expire.md`.
#[test]
fn client_registers_in_the_slot_of_a_crashed_one_on_a_network_slower_than_the_lease() {
    let lease = Duration::from_millis(1);
    let calm = Swarm { base_ns: lease.as_nanos() as u64, ..Swarm::calm() };
    let config = Config { node_len: 512 << 10, swarm: Some(calm), ..Config::default() };
    let sim = Sim::new(1, config).expect("a world");
    let (harness, fabric) = (sim.harness(), sim.fabric());
    let options = PoolOptions { client_slots: 2, lease, ..PoolOptions::default() };
    let made = sim.block_on(async move { Pool::create(fabric, &harness.connect(), &options).await });
    let pool = made.expect("ends").expect("a pool");
    for crash in [true, true, false] {
        let (me, pool) = (sim.client(), pool.clone());
        let joined = sim.spawn(&me, {
            let me = me.clone();
            async move { Client::register(&pool, me.identity(), &me.connect()).await.map(drop) }
        });
        assert!(matches!(sim.run(), Outcome::Done));
        assert_eq!(joined.take(), Some(Ok(())));
        if crash {
            me.crash(CrashOutcome::Lost);
        }
    }
}
