//! Displacements where a crashed client holds a lock, or where the pool is full.

use farindex_fabric::OpKind;
use farindex_index::cuckoo::Config;
use farindex_index::cuckoo::places::first_slots;
use farindex_index::keyhash::KeyHash;
use farindex_index::slotted::geometry::{LOCKED, REGION, Segment};
use farindex_index::{Cuckoo, IndexError, Insert, Lifecycle, PointIndex, PoolIndex, Update};
use farindex_pool::{Client, Intent, Pool, PoolOptions, Session, marks};
use farindex_sim::{Config as SimConfig, CrashOutcome, Sim, Swarm};
use farindex_testkit::alone::assert_sound;
use std::rc::Rc;
use std::time::Duration;

const LEASE: Duration = Duration::from_millis(50);
/// The region whose lock is held, of two.
const HELD: u64 = 1;

fn places(name: &str, table: &Segment) -> [u64; 3] {
    first_slots(KeyHash::unseeded(name.as_bytes()), table, 1)
}

/// The first name for which this holds.
fn name(holds: impl Fn(&str) -> bool) -> String {
    (0..).map(|i: u32| i.to_string()).find(|name| holds(name)).expect("there is always one")
}

/// A key, and others that are inserted first: then all of its slots are in use, and only the entry at its second place,
/// in the region that is held, can move. Its own lock is another one.
fn beset(table: &Segment) -> (String, Vec<String>) {
    let all_differ = |key: &str, first: &str, second: &str| {
        let [_, b, c] = places(first, table);
        let taken: Vec<u64> = places(key, table).into_iter().chain([b, c]).collect();
        let goes = places(second, table)[1];
        (0..5).all(|i| !taken[..i].contains(&taken[i])) && !taken.contains(&goes)
    };
    let at = |slot: u64| name(move |name| places(name, table)[0] == slot);
    let key = name(|name| {
        let [a, b, _] = places(name, table);
        a / REGION != HELD && b / REGION == HELD && all_differ(name, &at(a), &at(b))
    });
    let [a, b, c] = places(&key, table).map(at);
    let [_, d, e] = places(&a, table);
    (key, vec![at(d), at(e), a, b, c])
}

async fn join(pool: &Pool, me: &farindex_sim::Client) -> Result<Rc<Session>, IndexError> {
    let endpoint = me.connect();
    let client = Client::register(pool, me.identity(), &endpoint).await?;
    Ok(Rc::new(client.session(endpoint)))
}

/// Makes a table with these keys.
async fn make(session: &Rc<Session>, keys: impl FnOnce(&Segment) -> Vec<String>) -> Result<Cuckoo, IndexError> {
    make_with(session, 8, b"", keys).await
}

/// Makes a table whose slots have `width` bytes, with these keys and this value.
async fn make_with(
    session: &Rc<Session>,
    width: usize,
    value: &[u8],
    keys: impl FnOnce(&Segment) -> Vec<String>,
) -> Result<Cuckoo, IndexError> {
    let config = Config { slots: 2 * REGION, width, associativity: 1, threshold: 0.98, ..Config::default() };
    let index = Cuckoo::create(session, "held", &config).await?;
    for key in keys(&index.tables()[0].geometry().current) {
        assert_eq!(index.insert(key.as_bytes(), value).await?, Insert::Inserted);
    }
    Ok(index)
}

/// Makes a table with these keys, takes the lock, and crashes.
async fn crash_with_the_lock(
    pool: Pool,
    me: farindex_sim::Client,
    keys: impl FnOnce(&Segment) -> Vec<String>,
) -> Result<(), IndexError> {
    let session = join(&pool, &me).await?;
    let index = make(&session, keys).await?;
    let table = index.tables()[0].geometry().current;
    let lock = table.lock(HELD);
    let cell = session.intent_cell(lock.at.node()).await?;
    let span = session.span(OpKind::Other);
    let mut batch = span.batch();
    cell.declare(&mut batch, &Intent { index: index.uid(), lock, what: [0; 4] });
    let taken = batch.cas(lock.at, 0, LOCKED);
    assert_eq!(batch.post().await?.old(taken), 0);
    me.crash(CrashOutcome::Landed);
    session.endpoint().sleep(LEASE).await;
    Ok(())
}

/// Inserts one more key, and says how many verbs that took.
async fn insert(pool: Pool, me: farindex_sim::Client, key: impl FnOnce(&Segment) -> String) -> Result<u64, IndexError> {
    let session = join(&pool, &me).await?;
    let index = Cuckoo::open(&session, "held").await?;
    let key = key(&index.tables()[0].geometry().current);
    let before = me.verbs();
    assert_eq!(index.insert(key.as_bytes(), b"").await?, Insert::Inserted);
    let verbs = me.verbs() - before;
    assert_eq!(index.resizes(), 0);
    assert_sound(&session, &index).await;
    Ok(verbs)
}

/// Inserts the key that needs a displacement, and crashes at this verb of it.
async fn crash_displacing(pool: Pool, me: farindex_sim::Client, verb: u64) -> Result<(), IndexError> {
    let session = join(&pool, &me).await?;
    let index = make(&session, |table| beset(table).1).await?;
    let key = beset(&index.tables()[0].geometry().current).0;
    me.crash_at(me.verbs() + verb, CrashOutcome::Landed);
    assert_eq!(index.insert(key.as_bytes(), b"").await?, Insert::Inserted);
    me.crash_at(u64::MAX, CrashOutcome::Lost);
    Ok(())
}

/// Changes the entry that was to be displaced, and inserts the key for which it was.
async fn change(pool: Pool, me: farindex_sim::Client) -> Result<(), IndexError> {
    let session = join(&pool, &me).await?;
    let index = Cuckoo::open(&session, "held").await?;
    let (key, others) = beset(&index.tables()[0].geometry().current);
    let displaced = others[3].as_bytes();
    assert_eq!(index.update(displaced, b"x").await?, Update::Updated);
    index.insert(key.as_bytes(), b"").await?;
    assert_eq!(index.get(displaced).await?.as_deref(), Some(&b"x"[..]));
    index.recover().await?;
    assert_sound(&session, &index).await;
    Ok(())
}

/// Inserts a key that takes a displacement of a record that lies in its slot, so that a block is needed, when the only
/// memory left is a block which this client has retired. Returns how long that takes.
async fn displace_in_a_full_pool(pool: Pool, me: farindex_sim::Client) -> Result<Duration, IndexError> {
    const BLOCK: u64 = 64;
    let session = join(&pool, &me).await?;
    let index = make_with(&session, 32, b"ten bytes.", |table| beset(table).1).await?;
    let table = &index.tables()[0];
    let key = beset(&table.geometry().current).0;
    let (span, node) = (session.span(OpKind::Other), table.root().node());
    let mut taken = Vec::new();
    while let Ok(block) = session.alloc_now(&span, node, BLOCK).await {
        taken.push(block);
    }
    let retired = taken.pop().expect("a block");
    session.pin(session.span(OpKind::Other))?.retire(retired, BLOCK);
    let begun = session.endpoint().now();
    assert_eq!(index.insert(key.as_bytes(), b"").await?, Insert::Inserted);
    let took = session.endpoint().now() - begun;
    for block in taken {
        session.free(&span, block, BLOCK).await?;
    }
    assert_sound(&session, &index).await;
    Ok(took)
}

fn world() -> (Sim, Pool) {
    let config = SimConfig { node_len: 4 << 20, swarm: Some(Swarm::calm()), ..SimConfig::default() };
    let sim = Sim::new(0, config).expect("a world");
    let (harness, fabric) = (sim.harness(), sim.fabric());
    let options = PoolOptions { chunk_size: Some(16 << 10), lease: LEASE, ..PoolOptions::unseeded() };
    let made = sim.block_on(async move { Pool::create(fabric, &harness.connect(), &options).await });
    (sim, made.expect("done").expect("a pool"))
}

fn after_a_crash(
    keys: impl FnOnce(&Segment) -> Vec<String> + 'static,
    key: impl FnOnce(&Segment) -> String + 'static,
) -> (u64, marks::Marks) {
    let (sim, pool) = world();
    let (crashing, other) = (sim.client(), sim.client());
    sim.spawn(&crashing, crash_with_the_lock(pool.clone(), crashing.clone(), keys));
    sim.run().assert_done();
    assert!(crashing.has_crashed());
    marks::take();
    let inserted = sim.spawn(&other, insert(pool, other.clone(), key));
    sim.run().assert_done();
    let verbs = inserted.take().expect("it runs").expect("it was inserted");
    (verbs, marks::take())
}

#[test]
fn a_displacement_takes_over_the_lock_of_a_crashed_client() {
    let (verbs, marks) = after_a_crash(|table| beset(table).1, |table| beset(table).0);
    println!("{verbs} verbs, {marks:?}");
    for mark in ["cuckoo put: waits for a region in the way", "cuckoo recovery: region claimed", "cuckoo displace"] {
        assert!(marks.contains_key(mark), "{mark}: {marks:?}");
    }
}

/// While it waits for memory, it does not keep the epoch from advancing (docs/bugs/194).
#[test]
fn a_displacement_in_a_full_pool_does_not_wait_for_its_own_pin() {
    let (sim, pool) = world();
    let client = sim.client();
    marks::take();
    let took = sim.spawn(&client, displace_in_a_full_pool(pool, client.clone()));
    sim.run().assert_done();
    let took = took.take().expect("it runs").expect("it was inserted");
    println!("{took:?}");
    assert!(took < LEASE / 4, "{took:?}");
    assert!(marks::take().contains_key("cuckoo displace"));
}

/// An attempt to take a lock declares an intent, which names the client as a possible holder. So a client that has
/// waited long makes no attempt before the lock is free: in a lease of pauses of a millisecond it takes a READ each,
/// and checks the holder.
#[test]
fn a_client_that_waits_long_only_reads() {
    let in_it = |table: &Segment| name(|name| places(name, table)[0] / REGION == HELD);
    let (verbs, marks) = after_a_crash(|_| Vec::new(), in_it);
    println!("{verbs} verbs, {marks:?}");
    assert!(marks.contains_key("cuckoo recovery: region claimed"), "{marks:?}");
    assert!(marks["cuckoo put: lock lost"] <= 14, "{marks:?}");
}

/// A client crashes at each verb of a displacement. The next client that changes the frozen entry unfreezes it, or
/// removes the old copy.
#[test]
fn an_unfinished_displacement_is_recovered() {
    let mut passed = marks::Marks::new();
    for verb in 1.. {
        let (sim, pool) = world();
        let (crashing, other) = (sim.client(), sim.client());
        sim.spawn(&crashing, crash_displacing(pool.clone(), crashing.clone(), verb));
        sim.run().assert_done();
        if !crashing.has_crashed() {
            break;
        }
        marks::take();
        let changed = sim.spawn(&other, change(pool, other.clone()));
        sim.run().assert_done();
        changed.take().expect("it runs").expect("it was changed");
        passed.extend(marks::take());
    }
    for mark in ["cuckoo recovery: unfrozen", "cuckoo recovery: displaced"] {
        assert!(passed.contains_key(mark), "{mark}: {passed:?}");
    }
}
