//! A walk that comes to a bucket whose lock a living client holds, while others try to take the lock.

use farindex_fabric::{OpKind, RemotePtr};
use farindex_index::audit::Damage;
use farindex_index::shard::Config;
use farindex_index::shard::bucket::Level;
use farindex_index::shard::slot::META;
use farindex_index::{IndexError, Insert, Lifecycle, PointIndex, PoolIndex, Shard};
use farindex_pool::faults::{Fault, plant};
use farindex_pool::{Client, Intent, Lock, Pool, PoolOptions, Session};
use farindex_sim::{Config as SimConfig, Sim, Swarm};
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

const LEASE: Duration = Duration::from_millis(20);
/// The lock is held for so long.
const HELD: Duration = LEASE.saturating_mul(12);

async fn join(pool: &Pool, me: &farindex_sim::Client) -> Result<Rc<Session>, IndexError> {
    let endpoint = me.connect();
    let client = Client::register(pool, me.identity(), &endpoint).await?;
    Ok(Rc::new(client.session(endpoint)))
}

/// Where the lock is, after this client has opened the index.
async fn open(session: &Rc<Session>) -> Result<(Shard, Lock), IndexError> {
    let index = Shard::open(session, "held").await?;
    let at: RemotePtr = index.tables()[0].geometry().bucket(Level::One, 0);
    Ok((index, Lock { at, mask: META }))
}

/// Tries to take the lock until some time, as an insert does; holds it once it has got it, and releases it at the end.
async fn take(pool: Pool, me: farindex_sim::Client, until: Duration) -> Result<(), IndexError> {
    let session = join(&pool, &me).await?;
    let (index, lock) = open(&session).await?;
    let (endpoint, span) = (session.endpoint(), session.span(OpKind::Other));
    let mut held = None;
    while endpoint.now() < until {
        if held.is_none() {
            let free = span.read(lock.at, 8).await?.words()[0] & !META;
            let cell = session.intent_cell(lock.at.node()).await?;
            let mut batch = span.batch();
            cell.declare(&mut batch, &Intent { index: index.uid(), lock, what: [2, 0, 0, 1] });
            let taken = batch.cas(lock.at, free, free | META);
            if batch.post().await?.old(taken) == free {
                held = Some(cell);
            } else {
                let mut batch = span.batch();
                cell.clear(&mut batch);
                batch.post().await?;
                cell.cleared();
            }
        }
        session.client().tick(endpoint).await?;
        endpoint.sleep(LEASE / if held.is_some() { 100 } else { 5000 }).await;
    }
    if let Some(cell) = held {
        let mut batch = span.batch();
        batch.faa(lock.at, META);
        cell.clear(&mut batch);
        batch.post().await?;
        cell.cleared();
    }
    Ok(())
}

/// What became of a walk.
struct Walked {
    took: Duration,
    damaged: Vec<String>,
    ended: Result<(), IndexError>,
}

/// Walks when the lock is held, past what it finds damaged or until there is any. Returns how long that took, what it has found
/// damaged, and how it has ended.
async fn walk(pool: Pool, me: farindex_sim::Client, passes: bool) -> Result<Walked, IndexError> {
    let session = join(&pool, &me).await?;
    let (index, _) = open(&session).await?;
    let endpoint = session.endpoint();
    endpoint.sleep(LEASE / 4).await;
    let (began, damaged) = (endpoint.now(), RefCell::new(Vec::new()));
    let each = async |_: &[u8], _: farindex_index::Value| Ok(());
    let mut note = |damage: Damage| {
        damaged.borrow_mut().push(damage.what.clone());
        if passes { Ok(()) } else { damage.fail() }
    };
    let mut walk = pin!(index.visit(each, &mut note));
    let mut heartbeats = pin!(async {
        loop {
            session.client().tick(endpoint).await?;
            endpoint.sleep(LEASE / 8).await;
        }
    });
    let ended = poll_fn(|cx| match heartbeats.as_mut().poll(cx) {
        Poll::Ready(failed) => Poll::Ready(failed),
        Poll::Pending => walk.as_mut().poll(cx).map(|walked| walked.map(|_| ())),
    })
    .await;
    Ok(Walked { took: endpoint.now() - began, damaged: damaged.take(), ended })
}

/// A walk that meets a bucket whose lock is held while others try to take it.
fn walk_among_others(passes: bool) -> Walked {
    let config = SimConfig { node_len: 4 << 20, swarm: Some(Swarm::calm()), ..SimConfig::default() };
    let sim = Sim::new(0, config).expect("a world");
    let (harness, fabric) = (sim.harness(), sim.fabric());
    let options = PoolOptions { chunk_size: Some(16 << 10), lease: LEASE, ..PoolOptions::unseeded() };
    let made = sim.block_on(async move { Pool::create(fabric, &harness.connect(), &options).await });
    let pool = made.expect("done").expect("a pool");
    let [first, holder, one, other, walker] = std::array::from_fn(|_| sim.client());
    let (at, me) = (pool.clone(), first.clone());
    sim.spawn(&first, async move {
        let session = join(&at, &me).await.expect("a session");
        let index = Shard::create(&session, "held", &Config { initial_bits: 0, ..Config::default() }).await;
        assert_eq!(index.expect("an index").insert(b"key", b"value").await, Ok(Insert::Inserted));
    });
    sim.run().assert_done();
    for client in [&holder, &one, &other] {
        sim.spawn(client, take(pool.clone(), client.clone(), sim.now() + HELD));
    }
    let walked = sim.spawn(&walker, walk(pool, walker.clone(), passes));
    sim.run().assert_done();
    walked.take().expect("it runs").expect("it ends")
}

/// Each attempt to take the lock declares an intent, so the intents that name the lock change all the time. The one of its holder
/// stays: the walk gives the bucket up after two leases, and does not wait for as long as it is held.
#[test]
fn a_walk_gives_up_a_bucket_that_is_held_for_long_while_others_try_to_lock_it() {
    let Walked { took, damaged, ended } = walk_among_others(true);
    assert!(matches!(&damaged[..], [what] if what.contains("stays locked")), "{damaged:?}");
    assert!(LEASE * 2 < took && took < LEASE * 4, "{took:?}");
    ended.expect("it goes on behind the bucket");
    plant(&[Fault::TriersHold]);
    let Walked { took, .. } = walk_among_others(true);
    plant(&[]);
    assert!(took > HELD / 2, "the test must detect the planted fault: {took:?}");
}

/// The lock is in the way, and nothing is corrupted.
#[test]
fn a_walk_that_ends_at_a_lock_names_its_holder() {
    let Walked { ended, .. } = walk_among_others(false);
    assert!(matches!(&ended, Err(IndexError::Locked { holder, .. }) if holder.starts_with("client ")), "{ended:?}");
}
