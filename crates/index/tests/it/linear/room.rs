//! What is moved always finds an empty slot, however many keys come in ahead of it.

use farindex_fabric::OpKind;
use farindex_index::linear::Config;
use farindex_index::slotted::geometry::LOCKED;
use farindex_index::{IndexError, Insert, Lifecycle, Linear, PointIndex, PoolIndex, Remove};
use farindex_pool::{Client, Pool, PoolOptions, Session, marks};
use farindex_sim::{Config as SimConfig, Sim, Swarm};
use farindex_testkit::alone::assert_sound;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Slots of the table, keys that are put in at first, and those of them that are removed again.
const SLOTS: u64 = 64;
const FIRST: u64 = 45;
const REMOVED: u64 = 30;
/// The empty slots of this table, and those of the next one that what is left will not need.
const WELCOME: u64 = (SLOTS - FIRST) + REMOVED;

fn key(i: u64) -> Vec<u8> {
    format!("key {i}").into_bytes()
}

async fn join(pool: &Pool, me: &farindex_sim::Client) -> Result<Rc<Session>, IndexError> {
    let endpoint = me.connect();
    let client = Client::register(pool, me.identity(), &endpoint).await?;
    Ok(Rc::new(client.session(endpoint)))
}

/// A table of one region that is about to be moved to one as large, with its lock held although no client moves it; and
/// the same as a client knows it that reads the root rarely.
async fn hold(pool: Pool, me: farindex_sim::Client) -> Result<(Linear, Linear), IndexError> {
    let session = join(&pool, &me).await?;
    let config = Config { slots: SLOTS, threshold: 0.95, alpha: 100.0, ..Config::default() };
    let index = Linear::create(&session, "held", &config).await?;
    for i in 0..FIRST {
        assert_eq!(index.insert(&key(i), b"first").await?, Insert::Inserted);
    }
    for i in 0..REMOVED {
        assert_eq!(index.remove(&key(i)).await?, Remove::Removed);
    }
    let other = Rc::new(session.client().session(me.connect()));
    let stale = Linear::open(&other, "held").await?;
    for _ in 0..50 {
        assert!(stale.get(&key(FIRST - 1)).await?.is_some());
    }
    let table = &index.tables()[0];
    table.note(0, 0, SLOTS as i64);
    let pin = session.pin(session.span(OpKind::Maintenance))?;
    table.grow(&pin, index.uid(), false).await?;
    let geometry = table.geometry();
    assert_eq!(geometry.next.map(|next| next.slots()), Some(SLOTS));
    let lock = geometry.current.lock(0).at;
    assert_eq!(pin.span().cas(lock, 0, LOCKED).await?, 0);
    drop(pin);
    Ok((index, stale))
}

/// Puts in more than there is room for.
async fn overfill(pool: Pool, me: farindex_sim::Client, done: Rc<Cell<u64>>) -> Result<(), IndexError> {
    let session = join(&pool, &me).await?;
    let index = Linear::open(&session, "held").await?;
    for i in 0..2 * SLOTS {
        assert_eq!(index.insert(&key(FIRST + i), b"later").await?, Insert::Inserted);
        done.set(done.get() + 1);
    }
    for i in 0..FIRST + 2 * SLOTS {
        assert_eq!(index.get(&key(i)).await?.is_some(), i >= REMOVED, "{i}");
    }
    assert_sound(&session, &index).await;
    Ok(())
}

#[test]
fn early_inserts_leave_room_for_moved_entries() {
    let config = SimConfig { node_len: 8 << 20, swarm: Some(Swarm::calm()), ..SimConfig::default() };
    let sim = Sim::new(0, config).expect("a world");
    let (harness, fabric) = (sim.harness(), sim.fabric());
    let options = PoolOptions { chunk_size: Some(16 << 10), ..PoolOptions::unseeded() };
    let made = sim.block_on(async move { Pool::create(fabric, &harness.connect(), &options).await });
    let pool = made.expect("done").expect("a pool");
    let (index, stale) = sim.block_on(hold(pool.clone(), sim.harness())).expect("done").expect("held");
    marks::take();
    let done = Rc::new(Cell::new(0));
    let (first, second) = (sim.client(), sim.client());
    let filled = sim.spawn(&first, overfill(pool, first.clone(), Rc::clone(&done)));
    let released = {
        let endpoint = second.connect();
        let lock = index.tables()[0].geometry().current.lock(0).at;
        sim.spawn(&second, async move {
            endpoint.sleep(Duration::from_millis(20)).await;
            let early = done.get();
            // The old table has neither an empty slot nor a sealed one, and the latest keys are in the next
            // (docs/bugs/064).
            assert!(stale.tables()[0].geometry().next.is_none(), "a handle that knows of the growth proves nothing");
            for i in (REMOVED..FIRST + early).rev() {
                assert_eq!(stale.get(&key(i)).await.map(|value| value.is_some()), Ok(true), "key {i}");
            }
            endpoint.span(OpKind::Other).cas(lock, LOCKED, 0).await.map(|_| early)
        })
    };
    sim.run().assert_done();
    assert_eq!(released.take().expect("done"), Ok(WELCOME), "more would leave no room, fewer would waste it");
    filled.take().expect("done").expect("no insert fails");
    assert!(marks::take().contains_key("linear put: no room yet"));
}
