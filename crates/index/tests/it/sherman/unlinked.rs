//! A client crashes while it splits nodes whose memory has belonged to nodes before. Another client still has copies of
//! the parents of that time: what it writes is there for all (B2).

use crate::crash_recovery::join;
use farindex_fabric::OpKind;
use farindex_index::tree::faults::{Fault, plant};
use farindex_index::{Chime, IndexError, Lifecycle, PoolIndex, Remove, Sherman, Upsert, chime, sherman};
use farindex_pool::audit::Audit;
use farindex_pool::{Client, Pool, PoolOptions, Session};
use farindex_sim::{Config as SimConfig, CrashOutcome, Sim, Swarm};
use farindex_testkit::is_thorough;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const LEASE: Duration = Duration::from_millis(50);
const KEYS: u64 = 60;
const ROUNDS: usize = 3;

/// How far the clients have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Begun,
    Filled,
    /// The bystander has copies of all inner nodes.
    Copied,
    Recovered,
    /// The bystander has written.
    Written,
}

/// In which orders the writer removes and inserts: they decide which memory is used for what the second time.
#[derive(Debug, Clone, Copy)]
struct Orders {
    remove_descending: bool,
    fill_descending: bool,
}

const ORDERS: [Orders; 4] = [
    Orders { remove_descending: false, fill_descending: false },
    Orders { remove_descending: true, fill_descending: false },
    Orders { remove_descending: false, fill_descending: true },
    Orders { remove_descending: true, fill_descending: true },
];

fn keys(descending: bool) -> impl Iterator<Item = u64> {
    (0..KEYS).map(move |i| if descending { KEYS - 1 - i } else { i })
}

/// Removes all keys, and gives the memory of their nodes back.
async fn empty<I: PoolIndex>(
    index: &I,
    client: &Arc<Client>,
    session: &Rc<Session>,
    descending: bool,
) -> Result<(), IndexError> {
    for i in keys(descending) {
        assert_eq!(index.remove(&i.to_be_bytes()).await?, Remove::Removed);
    }
    for _ in 0..8 {
        client.tick(session.endpoint()).await?;
        session.endpoint().sleep(LEASE / 4).await;
    }
    Ok(session.maintain().await?)
}

#[derive(Clone)]
struct Shared {
    pool: Pool,
    phase: Rc<Cell<Phase>>,
    /// Verbs of the writer while it splits again: the first one, and behind the last one.
    verbs: Rc<Cell<(u64, u64)>>,
}

impl Shared {
    async fn wait_for(&self, phase: Phase, client: &Arc<Client>, session: &Rc<Session>) -> Result<(), IndexError> {
        while self.phase.get() < phase {
            client.tick(session.endpoint()).await?;
            session.endpoint().sleep(LEASE / 10).await;
        }
        Ok(())
    }

    /// Fills a tree, empties it, so that its nodes are free again, and fills it once more; crashes meanwhile.
    async fn writer<I: PoolIndex>(
        self,
        me: farindex_sim::Client,
        config: I::Config,
        (orders, crash): (Orders, Option<u64>),
    ) -> Result<(), IndexError> {
        let (client, session) = join(&self.pool, &me).await?;
        let index = I::create(&session, "tree", &config).await?;
        // Until memory that was never used is used up.
        for _ in 0..ROUNDS {
            for i in keys(false) {
                index.upsert(&i.to_be_bytes(), b"the first").await?;
            }
            empty(&index, &client, &session, false).await?;
        }
        for i in keys(false) {
            index.upsert(&i.to_be_bytes(), b"the first").await?;
        }
        self.phase.set(Phase::Filled);
        self.wait_for(Phase::Copied, &client, &session).await?;
        empty(&index, &client, &session, orders.remove_descending).await?;
        let first = me.verbs();
        if let Some(verb) = crash {
            me.crash_at(first + verb, CrashOutcome::Prefix);
        }
        for i in keys(orders.fill_descending) {
            index.upsert(&i.to_be_bytes(), b"the second").await?;
        }
        me.crash_at(u64::MAX, CrashOutcome::Lost);
        self.verbs.set((first, me.verbs()));
        session.endpoint().settle().await;
        drop((index, session));
        Ok(client.close(&me.connect()).await?)
    }

    async fn bystander<I: PoolIndex>(self, me: farindex_sim::Client, first: u64) -> Result<(), IndexError> {
        let (client, session) = join(&self.pool, &me).await?;
        self.wait_for(Phase::Filled, &client, &session).await?;
        let index = I::open(&session, "tree").await?;
        for i in 0..KEYS {
            assert!(index.get(&i.to_be_bytes()).await?.is_some());
        }
        self.phase.set(Phase::Copied);
        self.wait_for(Phase::Recovered, &client, &session).await?;
        // The first write goes by the old copies; later ones may know better.
        for i in (first..KEYS).chain(0..first) {
            let wrote = index.upsert(&i.to_be_bytes(), b"the third").await?;
            assert!(matches!(wrote, Upsert::Inserted | Upsert::Updated));
        }
        self.phase.set(Phase::Written);
        session.endpoint().settle().await;
        drop((index, session));
        Ok(client.close(&me.connect()).await?)
    }

    /// Returns the keys that do not have what the bystander has written.
    async fn survivor<I: PoolIndex>(
        self,
        me: farindex_sim::Client,
        writer: farindex_sim::Client,
    ) -> Result<Vec<u64>, IndexError> {
        let (client, session) = join(&self.pool, &me).await?;
        self.wait_for(Phase::Copied, &client, &session).await?;
        while !writer.has_crashed() && self.verbs.get().1 == 0 {
            client.tick(session.endpoint()).await?;
            session.endpoint().sleep(LEASE / 10).await;
        }
        let index = I::open(&session, "tree").await?;
        if writer.has_crashed() {
            client.wait_and_evict_expired(session.endpoint()).await?;
            index.recover().await?;
        }
        self.phase.set(Phase::Recovered);
        self.wait_for(Phase::Written, &client, &session).await?;
        let mut lost = Vec::new();
        for i in 0..KEYS {
            if index.get(&i.to_be_bytes()).await?.as_deref() != Some(&b"the third"[..]) {
                lost.push(i);
            }
        }
        let mut audit = Audit::begin(&session, &session.span(OpKind::Maintenance)).await?;
        let report = index.audit(&mut audit, false).await?;
        if lost.is_empty() {
            assert_eq!((report.problems, report.entries), (Vec::new(), KEYS));
        }
        drop((index, session));
        client.close(&me.connect()).await?;
        Ok(lost)
    }
}

/// Returns the verbs of the second filling, if the writer has lived, and the keys that were lost.
fn run<I: PoolIndex>(
    config: &I::Config,
    orders: Orders,
    (crash, first): (Option<u64>, u64),
) -> (Option<u64>, Vec<u64>) {
    let sim = SimConfig { node_len: 4 << 20, swarm: Some(Swarm::calm()), ..SimConfig::default() };
    let sim = Sim::new(0, sim).expect("a world");
    let (harness, fabric) = (sim.harness(), sim.fabric());
    let options = PoolOptions { client_slots: 6, lease: LEASE, chunk_size: Some(16 << 10), ..PoolOptions::unseeded() };
    let pool = sim.block_on(async move { Pool::create(fabric, &harness.connect(), &options).await });
    let pool = pool.expect("done").expect("a pool");
    let shared = Shared { pool, phase: Rc::new(Cell::new(Phase::Begun)), verbs: Rc::default() };
    let (writer, bystander, survivor) = (sim.client(), sim.client(), sim.client());
    let wrote = sim.spawn(&writer, shared.clone().writer::<I>(writer.clone(), *config, (orders, crash)));
    let stood_by = sim.spawn(&bystander, shared.clone().bystander::<I>(bystander.clone(), first));
    let survived = sim.spawn(&survivor, shared.clone().survivor::<I>(survivor.clone(), writer.clone()));
    sim.run().assert_done();
    let context = format!("crash at verb {crash:?}");
    if let Some(wrote) = wrote.take() {
        wrote.unwrap_or_else(|error| panic!("{context}: {error}"));
    }
    stood_by.take().expect("done").unwrap_or_else(|error| panic!("{context}: {error}"));
    let lost = survived.take().expect("done").unwrap_or_else(|error| panic!("{context}: {error}"));
    let (first, last) = shared.verbs.get();
    ((!writer.has_crashed()).then(|| last - first), lost)
}

/// Crashes at these verbs of the second filling, with each of these keys as the first one that the bystander writes;
/// returns whether something was lost.
fn loses<I: PoolIndex>(
    config: &I::Config,
    orders: Orders,
    verbs: impl Iterator<Item = u64>,
    firsts: impl Iterator<Item = u64> + Clone,
) -> bool {
    assert_eq!(run::<I>(config, orders, (None, 0)).1, [0; 0]);
    verbs.into_iter().any(|verb| {
        firsts.clone().any(|first| {
            let lost = run::<I>(config, orders, (Some(verb), first)).1;
            if !lost.is_empty() {
                println!("{orders:?}, crash at verb {verb}, key {first} first: {lost:?} lost");
            }
            !lost.is_empty()
        })
    })
}

fn small() -> sherman::Config {
    sherman::Config { leaf_span: 4, inner_span: 5, cache_bytes: 64 << 10, ..sherman::Config::default() }
}
const CHIME: chime::Config = chime::Config {
    leaf_span: 8,
    neighbourhood: 2,
    inner_span: 5,
    cache_bytes: 64 << 10,
    hand_over: true,
    hotspot_bytes: 4 << 10,
    speculation: chime::Speculation::On,
    vacancy_bitmap: true,
    replicas: true,
};

/// Where a write was lost before new nodes were dead at first: orders, verbs, keys.
fn known() -> (Orders, std::ops::Range<u64>, std::iter::StepBy<std::ops::Range<u64>>) {
    (Orders { remove_descending: true, fill_descending: false }, 60..100, (0..20).step_by(2))
}

#[test]
fn a_node_that_was_never_linked_takes_no_write() {
    let (orders, verbs, firsts) = known();
    assert!(!loses::<Sherman>(&small(), orders, verbs.step_by(3), firsts));
    let step = if is_thorough() { 1 } else { 3 };
    for orders in ORDERS {
        assert!(!loses::<Sherman>(&small(), orders, (1..150).step_by(11 * step), (0..KEYS).step_by(17)));
        assert!(!loses::<Chime>(&CHIME, orders, (1..300).step_by(31 * step), (0..KEYS).step_by(19)));
    }
}

#[test]
fn a_new_node_that_can_be_locked_before_it_is_linked_loses_writes() {
    plant(&[Fault::FreeBeforeLinked]);
    let (orders, verbs, firsts) = known();
    let lost = loses::<Sherman>(&small(), orders, verbs, firsts);
    plant(&[]);
    assert!(lost);
}
