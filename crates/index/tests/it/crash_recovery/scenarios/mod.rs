//! Scenarios that no seed produces, set up by hand: frozen slots although no client splits, and locks that a working
//! client holds where another one recovers what a crashed client left.

mod damage;
mod full;
mod halfway;
mod walks;

use crate::crash_recovery::kinds::{CrashTested, keys_at};
use crate::crash_recovery::run::{join, make};
use farindex_fabric::{OpKind, RemotePtr};
use farindex_index::shard::bucket::{LOCK_SLOT, Level};
use farindex_index::shard::geometry::RootState;
use farindex_index::shard::slot::{META, Slot, Stamp, freeze};
use farindex_index::{IndexAudit, IndexError, Lifecycle, PointIndex, PoolIndex, Shard};
use farindex_pool::audit::Audit;
use farindex_pool::{Client, Intent, IntentCell, Lock, Pool, PoolOptions, Session, intent};
use farindex_sim::{Config as SimConfig, CrashOutcome, Sim, Swarm};
use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const LEASE: Duration = Duration::from_millis(50);

fn world() -> (Sim, Pool) {
    let config = SimConfig { node_len: 4 << 20, swarm: Some(Swarm::calm()), ..SimConfig::default() };
    let sim = Sim::new(0, config).expect("a world");
    let (harness, fabric) = (sim.harness(), sim.fabric());
    let options = PoolOptions { client_slots: 6, lease: LEASE, chunk_size: Some(16 << 10), ..PoolOptions::unseeded() };
    let pool = sim.block_on(async move { Pool::create(fabric, &harness.connect(), &options).await });
    let pool = pool.expect("done").expect("a pool");
    (sim, pool)
}

/// Runs what one client does, while nothing else is done but what was spawned before.
fn run<T: 'static>(
    sim: &Sim,
    me: &farindex_sim::Client,
    body: impl Future<Output = Result<T, IndexError>> + 'static,
) -> T {
    let done = Rc::new(Cell::new(false));
    let ended = Rc::clone(&done);
    let result = sim.spawn(me, async move {
        let result = body.await;
        ended.set(true);
        result
    });
    for _ in 0..1000 {
        if done.get() {
            break;
        }
        assert!(sim.run_for(LEASE).is_done());
    }
    result.take().expect("done").unwrap_or_else(|error| panic!("{error}"))
}

/// Keeps a client's lease for good.
fn keep(sim: &Sim, me: &farindex_sim::Client, client: &Arc<Client>) {
    let (client, endpoint) = (Arc::clone(client), me.connect());
    sim.spawn(me, async move {
        while client.tick(&endpoint).await.is_ok() {
            endpoint.sleep(LEASE / 10).await;
        }
    });
}

/// A client that joins, and keeps its lease for good.
fn staying(sim: &Sim, pool: &Pool, me: &farindex_sim::Client) -> Rc<Session> {
    let (pool, me_too) = (pool.clone(), me.clone());
    let (client, session) = run(sim, me, async move { join(&pool, &me_too).await });
    keep(sim, me, &client);
    session
}

/// Runs what a client does that is alone in a world.
fn alone(body: impl AsyncFnOnce(Rc<Session>) -> Result<(), IndexError> + 'static) {
    let (sim, pool) = world();
    let me = sim.client();
    run(&sim, &me.clone(), async move {
        let (_client, session) = join(&pool, &me).await?;
        body(session).await
    });
}

async fn word(session: &Session, at: RemotePtr) -> Result<u64, IndexError> {
    Ok(session.span(OpKind::Other).read(at, 8).await?.words()[0])
}

/// Freezes an entry, or bars a slot, as a client that splits a bucket does.
async fn hold_still(session: &Session, at: RemotePtr) -> Result<(), IndexError> {
    let old = word(session, at).await?;
    let new = match Slot::decode(old) {
        Slot::Live(_) => freeze(old),
        Slot::Fresh(of, stamp) => Slot::Barrier(of, stamp).over(old),
        other => panic!("{other:?}"),
    };
    assert_eq!(session.span(OpKind::Other).cas(at, old, new).await?, old);
    Ok(())
}

async fn audited(index: &Shard) -> Result<IndexAudit, IndexError> {
    index.audit(&mut Audit::default(), true).await
}

/// A client that has lost the lock of a bucket after freezing slots crashes before it can undo that. A walk does; and
/// it leaves alone what belongs to a split that is due.
#[test]
fn a_walk_unfreezes_slots_that_no_split_needs() {
    alone(async move |session| {
        let span = session.span(OpKind::Other);
        for (level, keys, still) in [(Level::One, 40u32, [3, 0, 40]), (Level::Two, 70, [1, 0, 6])] {
            let index: Shard = make(&session, &format!("{level:?}"), 0).await?;
            index.swell(-(1 << 20));
            for key in 0..keys {
                index.insert(&key.to_le_bytes(), &key.to_be_bytes()).await?;
            }
            let at = index.tables()[0].geometry().bucket(level, 0);
            for slot in still {
                hold_still(&session, at.add(slot * 8)).await?;
            }
            let problems = audited(&index).await?.problems;
            assert_eq!(problems.len(), still.len(), "{problems:?}");
            assert_eq!(index.recover().await?, 1);
            assert_eq!((audited(&index).await?.problems, index.recover().await?), (vec![], 0));
            assert_eq!(word(&session, at.add(LOCK_SLOT as u64 * 8)).await? & META, 0);
            assert_eq!(intent::intents(&session, &span, at.node()).await?.len(), 0);
            for key in 0..keys {
                assert_eq!(index.get(&key.to_le_bytes()).await?.as_deref(), Some(&key.to_be_bytes()[..]));
            }
            // It can be filled.
            assert_eq!(index.insert(b"one more", b"").await?, farindex_index::Insert::Inserted);
            assert_eq!(audited(&index).await?.problems, [""; 0]);
        }
        Ok(())
    });
}

/// The same, without a walk: a client that needs one of these slots waits a little, and then recovers all of them.
#[test]
fn what_stands_still_for_no_split_is_made_live_by_who_needs_it() {
    for (level, keys, still, get) in [
        // A barrier holds up inserts; a frozen entry the operations on its key; in a bucket that is full, all inserts.
        (Level::One, 40, 40, false),
        (Level::One, 40, 3, true),
        (Level::One, 64, 3, false),
        (Level::Two, 70, 6, false),
        (Level::Two, 70, 2, true),
    ] {
        alone(async move |session| {
            let span = session.span(OpKind::Other);
            let index: Shard = make(&session, "old", 0).await?;
            index.swell(-(1 << 20));
            for key in 0..keys {
                index.insert(&u32::to_le_bytes(key), b"value").await?;
            }
            let at = index.tables()[0].geometry().bucket(level, 0);
            hold_still(&session, at.add(still * 8)).await?;
            if get {
                for key in 0..keys {
                    assert!(index.get(&u32::to_le_bytes(key)).await?.is_some(), "{level:?}: {key}");
                }
            } else {
                assert_eq!(index.insert(b"one more", b"").await?, farindex_index::Insert::Inserted);
            }
            assert_eq!(audited(&index).await?.problems, [""; 0], "{level:?}, slot {still}");
            assert_eq!(intent::intents(&session, &span, at.node()).await?.len(), 0);
            Ok(())
        });
    }
}

/// Declares a step at a bucket, and takes its lock.
async fn take<'s>(session: &'s Session, index: u64, at: RemotePtr) -> Result<IntentCell<'s>, IndexError> {
    let cell = session.intent_cell(at.node()).await?;
    let span = session.span(OpKind::Other);
    let old = word(session, at).await?;
    let mut batch = span.batch();
    cell.declare(&mut batch, &Intent { index, lock: Lock { at, mask: META }, what: [2, 0, 0, 1] });
    let won = batch.cas(at, old, old | META);
    assert_eq!((batch.post().await?.old(won), old & META), (old, 0));
    Ok(cell)
}

async fn release(session: &Session, cell: &IntentCell<'_>, at: RemotePtr) -> Result<(), IndexError> {
    let span = session.span(OpKind::Other);
    let mut batch = span.batch();
    batch.faa(at, META);
    cell.clear(&mut batch);
    batch.post().await?;
    cell.cleared();
    Ok(())
}

/// Takes the lock over a table's growth.
async fn begin_to_grow<'s>(index: &Shard, session: &'s Session) -> Result<IntentCell<'s>, IndexError> {
    let root = index.tables()[0].root();
    let cell = session.intent_cell(root.node()).await?;
    let span = session.span(OpKind::Other);
    let old = word(session, root).await?;
    let mut batch = span.batch();
    let lock = Lock { at: root, mask: RootState::RESIZER };
    cell.declare(&mut batch, &Intent { index: index.uid(), lock, what: [5, 0, 0, 0] });
    let won = batch.cas(root, old, RootState(old).resized_by(session.client().slot()).0);
    assert_eq!(batch.post().await?.old(won), old);
    Ok(cell)
}

/// Keys of either half of a table that has been split once.
fn keys_of(half: u64) -> impl Iterator<Item = String> {
    keys_at(half, 1).take(5)
}

/// Is a new key put there, and the others found?
async fn fill(session: Rc<Session>, half: u64, new: usize) -> Result<Result<(), IndexError>, IndexError> {
    let index = Shard::open(&session, "old").await?;
    let new = keys_at(half, 1).nth(5 + new).unwrap_or_default();
    if let Err(error) = index.insert(new.as_bytes(), b"new").await {
        return Ok(Err(error));
    }
    for key in keys_of(half).chain([new]) {
        assert!(index.get(key.as_bytes()).await?.is_some());
    }
    Ok(Ok(()))
}

/// A client that takes a bucket over reads the one that its latest split has made. A working client may hold that one
/// for a while and release it. If it holds it for two leases, an error names it.
#[test]
fn a_living_holder_of_the_new_bucket_is_waited_for_but_not_for_ever() {
    for patient in [true, false] {
        let (sim, pool) = world();
        let [maker, crashing, living, new_holder] = [(); 4].map(|()| sim.client());
        let (made, at) = {
            let (pool, me) = (pool.clone(), maker.clone());
            run(&sim, &maker, async move {
                let (client, session) = join(&pool, &me).await?;
                let index: Shard = make(&session, "old", 0).await?;
                for key in keys_of(0).chain(keys_of(1)) {
                    index.insert(key.as_bytes(), b"first").await?;
                }
                index.enlarge(&session).await?;
                // The first client that needs the bucket splits it.
                index.get(b"any key").await?;
                let geometry = index.tables()[0].geometry();
                let at = [0, 1].map(|bucket| geometry.bucket(Level::One, bucket));
                let uid = index.uid();
                drop((index, session));
                client.close(&me.connect()).await?;
                Ok((uid, at))
            })
        };
        let [old, new] = at;
        let joined = |me: &farindex_sim::Client| staying(&sim, &pool, me);
        let (theirs, others, mine) = (joined(&crashing), joined(&living), joined(&new_holder));
        run(&sim, &crashing, async move {
            std::mem::forget(take(&theirs, made, old).await?);
            Ok(())
        });
        crashing.crash(CrashOutcome::Landed);
        let holds = async move {
            let cell = take(&others, made, new).await?;
            others.endpoint().sleep(if patient { LEASE * 5 / 2 } else { LEASE * 6 }).await;
            release(&others, &cell, new).await
        };
        let held = sim.spawn(&living, holds);
        let outcome = run(&sim, &new_holder, fill(Rc::clone(&mine), 0, 0));
        if patient {
            assert_eq!(outcome, Ok(()));
            assert_eq!(held.take(), Some(Ok(())));
            continue;
        }
        assert!(matches!(outcome, Err(IndexError::Locked { at, waited_ms: 100, .. }) if at == new), "{outcome:?}");
        // It lives on; what it had claimed by then is the next one's, its own as well.
        let last = sim.client();
        let session = joined(&last);
        assert_eq!(run(&sim, &last, fill(Rc::clone(&session), 0, 1)), Ok(()));
        assert_eq!(run(&sim, &last, fill(session, 1, 2)), Ok(()));
        assert_eq!(run(&sim, &new_holder, fill(Rc::clone(&mine), 0, 3)), Ok(()));
        let span = mine.span(OpKind::Other);
        assert_eq!(
            run(&sim, &new_holder, async move { Ok(intent::intents(&mine, &span, old.node()).await?.len()) }),
            0
        );
        assert_eq!(held.take(), Some(Ok(())));
    }
}

/// Nothing waits for ever: an error names the client that holds a bucket for two leases.
#[test]
fn a_living_holder_is_named_after_two_leases() {
    let (sim, pool) = world();
    let [living, waiting] = [(); 2].map(|()| sim.client());
    let me = living.clone();
    let theirs = pool.clone();
    let (client, session, index, at) = run(&sim, &living, async move {
        let (client, session) = join(&theirs, &me).await?;
        let index: Shard = make(&session, "old", 0).await?;
        let at = index.tables()[0].geometry().bucket(Level::One, 0);
        std::mem::forget(take(&session, index.uid(), at).await?);
        Ok((client, session, index, at))
    });
    keep(&sim, &living, &client);
    let me = waiting.clone();
    let (client, mine) = run(&sim, &waiting, async move { join(&pool, &me).await });
    keep(&sim, &waiting, &client);
    let outcome = run(&sim, &waiting, async move {
        let index = Shard::open(&mine, "old").await?;
        Ok(index.insert(b"key", b"value").await)
    });
    let Err(IndexError::Locked { at: reported, waited_ms, holder }) = &outcome else { panic!("{outcome:?}") };
    assert_eq!((*reported, holder.as_str()), (at, "client 0 (process 0)"));
    assert!((100..150).contains(waited_ms), "{waited_ms}");
    drop((session, index));
}

/// A recycling gives a stamp to all dead slots that it may use; what a crash leaves of it counts as recycled, so that
/// the next one comes later. Slots that became dead after it keep their own stamps.
#[test]
fn a_recycling_that_was_cut_short_counts_and_nothing_else_does() {
    let stamp = Stamp::of_pin;
    for (level, recycled, becomes) in [
        (Level::One, stamp(9), [stamp(9), stamp(7), stamp(30)]),
        (Level::One, Stamp::NEVER, [stamp(6), stamp(7), stamp(30)]),
        (Level::Two, stamp(9), [stamp(6), stamp(7), stamp(30)]),
    ] {
        let (sim, pool) = world();
        let [crashing, new_holder] = [(); 2].map(|()| sim.client());
        let (theirs, me) = (pool.clone(), crashing.clone());
        let at = run(&sim, &crashing, async move {
            let (_client, session) = join(&theirs, &me).await?;
            let index: Shard = make(&session, "old", 0).await?;
            let at = index.tables()[0].geometry().bucket(level, 0);
            let span = session.span(OpKind::Other);
            let mut batch = span.batch();
            let slots =
                [Slot::Fresh(0, recycled), Slot::Dead(0, stamp(6)), Slot::Dead(0, stamp(7)), Slot::Dead(0, stamp(30))];
            for (i, slot) in slots.into_iter().enumerate() {
                batch.write_words(at.add(i as u64 * 8), &[slot.encode()]);
            }
            batch.post().await?;
            std::mem::forget(take(&session, index.uid(), at).await?);
            Ok(at)
        });
        crashing.crash(CrashOutcome::Landed);
        let me = new_holder.clone();
        let left = run(&sim, &new_holder, async move {
            let (client, session) = join(&pool, &me).await?;
            client.wait_and_evict_expired(session.endpoint()).await?;
            let index = Shard::open(&session, "old").await?;
            assert!(index.recover().await? > 0);
            let words = session.span(OpKind::Other).read(at, level.bytes()).await?;
            assert_eq!(words.words()[LOCK_SLOT] & META, 0);
            Ok([1, 2, 3].map(|i| Slot::decode(words.words()[i])))
        });
        assert_eq!(left, becomes.map(|stamp| Slot::Dead(0, stamp)), "{level:?}, {recycled:?}");
    }
}

/// No client waits for a resize; but when the resizing client has crashed, the next one that wants to grow takes the
/// lock over.
#[test]
fn a_table_grows_after_its_resizer_has_crashed() {
    let (sim, pool) = world();
    let [crashing, new_holder] = [(); 2].map(|()| sim.client());
    let joined = |me: &farindex_sim::Client| staying(&sim, &pool, me);
    let (theirs, mine) = (joined(&crashing), joined(&new_holder));
    run(&sim, &crashing, async move {
        let index: Shard = make(&theirs, "old", 0).await?;
        std::mem::forget(begin_to_grow(&index, &theirs).await?);
        Ok(())
    });
    crashing.crash(CrashOutcome::Landed);
    let waited = run(&sim, &new_holder, async move {
        let index = Shard::open(&mine, "old").await?;
        index.swell(1 << 20);
        let began = mine.endpoint().now();
        let table = &index.tables()[0];
        while table.geometry().version == 0 {
            table.grow(&mine.pin(mine.span(OpKind::Maintenance))?, index.uid()).await?;
            mine.endpoint().sleep(LEASE / 20).await;
        }
        Ok(mine.endpoint().now() - began)
    });
    assert!((LEASE..LEASE * 2).contains(&waited), "{waited:?}");
}
