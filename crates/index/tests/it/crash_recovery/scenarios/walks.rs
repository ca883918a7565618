//! Walks through SHARD while the table grows, while entries move, and with locks that working or crashed clients hold.

use super::{LEASE, alone, audited, begin_to_grow, run, staying, take, word, world};
use crate::crash_recovery::kinds::CrashTested;
use crate::crash_recovery::run::make;
use farindex_fabric::{OpKind, RemotePtr};
use farindex_index::audit::Damage;
use farindex_index::shard::bucket::Level;
use farindex_index::shard::geometry::BYTES_PER_BUCKET;
use farindex_index::shard::slot::{Slot, freeze};
use farindex_index::{IndexError, Lifecycle, PointIndex, PoolIndex, Shard, Value};
use farindex_pool::audit::Audit;
use farindex_pool::{Session, intent};
use farindex_sim::CrashOutcome;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

/// A table of `2^bits` buckets, with so many entries.
async fn filled(session: &std::rc::Rc<Session>, name: &str, bits: u64, keys: u32) -> Result<Shard, IndexError> {
    let index: Shard = make(session, name, bits).await?;
    index.swell(-(1 << 20));
    for key in 0..keys {
        index.insert(&key.to_le_bytes(), b"value").await?;
    }
    Ok(index)
}

/// A slot of bucket 0 with an entry, in each level.
async fn firsts(index: &Shard) -> Result<[RemotePtr; 3], IndexError> {
    let geometry = index.tables()[0].geometry();
    let third = word(index.session(), geometry.third(0)).await?;
    let Slot::Link(node) = Slot::decode(third) else { panic!("{:?}", Slot::decode(third)) };
    Ok([geometry.bucket(Level::One, 0).add(16), geometry.bucket(Level::Two, 0).add(16), node.add(16)])
}

/// The table grows, and all of its buckets are split, while a walk has read a part of the first segment: what it has
/// not read by then moves to a segment that was not there when it began.
#[test]
fn a_walk_goes_on_into_segments_that_have_come_since() {
    const KEYS: u32 = 1000;
    alone(async move |session| {
        // Four steps of a walk.
        let index = filled(&session, "old", 6, KEYS).await?;
        let mut visited = BTreeSet::new();
        let mut grown = false;
        let each = async |key: &[u8], _: Value| {
            assert!(visited.insert(key.to_vec()), "key {key:?} is visited twice");
            if !std::mem::replace(&mut grown, true) {
                index.enlarge(&session).await?;
                for key in 0..KEYS {
                    index.get(&key.to_le_bytes()).await?;
                }
            }
            Ok(())
        };
        let seen = index.visit(each, &mut Damage::fail).await?;
        assert_eq!((visited.len(), seen), (KEYS as usize, u64::from(KEYS)));
        Ok(())
    });
}

/// An entry that moves counts as one. While its split is due, and nobody has begun it, that is in order; in level 3,
/// and in buckets that are split, it is not, and recovery makes it live again; so does a walk over all keys, as a
/// lookup would.
#[test]
fn a_walk_visits_frozen_entries_and_recovers_abandoned_ones() {
    const KEYS: u64 = 90;
    alone(async move |session| {
        let span = session.span(OpKind::Other);
        for grown in [false, true] {
            let index = filled(&session, &format!("{grown}"), 0, KEYS as u32).await?;
            if grown {
                index.enlarge(&session).await?;
            }
            for (level, at) in (1..).zip(firsts(&index).await?) {
                let due = grown && level < 3;
                let old = word(&session, at).await?;
                assert_eq!(span.cas(at, old, freeze(old)).await?, old);
                let report = audited(&index).await?;
                assert_eq!(report.entries, KEYS, "level {level}");
                assert_eq!(report.problems.len(), usize::from(!due), "level {level}: {:?}", report.problems);
                // While other clients work, it counts once wherever it is visited.
                let report = index.audit(&mut Audit::default(), false).await?;
                assert_eq!((report.entries, report.problems), (KEYS, vec![]), "level {level}");
                assert_eq!(index.recover().await?, u64::from(!due), "level {level}");
                if due {
                    assert_eq!(word(&session, at).await?, freeze(old), "it waits for the split");
                    assert_eq!(span.cas(at, freeze(old), old).await?, freeze(old));
                }
                let report = audited(&index).await?;
                assert_eq!(
                    (report.entries, report.problems, index.recover().await?),
                    (KEYS, vec![], 0),
                    "level {level}"
                );
                if !due {
                    // A walk over all keys splits what is due in level 2, so the next round would find nothing due.
                    assert_eq!(span.cas(at, old, freeze(old)).await?, old);
                    let visited = index.visit(async |_, _| Ok(()), &mut Damage::fail).await?;
                    assert_eq!((visited, audited(&index).await?.problems), (KEYS, vec![]), "level {level}");
                }
            }
        }
        Ok(())
    });
}

/// Sizes are those of segments, nodes of level 3 and blocks; every figure is there, be it 0.
#[test]
fn an_audit_adds_up() {
    alone(async move |session| {
        let empty = audited(&filled(&session, "empty", 0, 0).await?).await?;
        assert_eq!((empty.entries, empty.block_bytes, empty.resizes), (0, 0, 0));
        assert_eq!(empty.index_bytes, BYTES_PER_BUCKET, "of a segment of one");
        let index = filled(&session, "full", 0, 90).await?;
        let before = audited(&index).await?;
        assert_eq!(before.figures.keys().collect::<Vec<_>>(), empty.figures.keys().collect::<Vec<_>>());
        assert_eq!(before.block_bytes, 90 * 64, "a header, a key and a value of 9 bytes together, in units");
        assert_eq!((before.index_bytes - empty.index_bytes) % 64, 0, "nodes of level 3");
        assert!((2..=10).contains(&((before.index_bytes - empty.index_bytes) / 64)), "{}", before.index_bytes);
        index.enlarge(&session).await?;
        let after = audited(&index).await?;
        assert_eq!(after.index_bytes - before.index_bytes, empty.index_bytes, "a segment as large as all before");
        let figures =
            ["buckets", "buckets_to_split"].map(|figure| [&empty, &before, &after].map(|it| it.figure(figure)));
        assert_eq!(figures, [[2, 2, 2], [0, 0, 2]]);
        assert_eq!((after.resizes, after.block_bytes), (1, before.block_bytes));
        Ok(())
    });
}

/// A slot may point to what was a block once: it decodes, but its memory is no block's.
#[test]
fn a_block_in_free_memory_is_told_of() {
    alone(async move |session| {
        let span = session.span(OpKind::Other);
        let index = filled(&session, "old", 0, 10).await?;
        let at = index.tables()[0].geometry().bucket(Level::One, 0);
        let old = word(&session, at).await?;
        let Slot::Live(entry) = Slot::decode(old) else { panic!("{:?}", Slot::decode(old)) };
        let free = RemotePtr::new(at.node(), 3 << 20);
        let block = span.read(entry.ptr, 64).await?;
        let mut batch = span.batch();
        batch.write_words(free, block.words());
        let moved = Slot::Live(farindex_index::shard::slot::Entry { ptr: free, ..entry });
        batch.write_words(at, &[moved.over(old)]);
        batch.post().await?;
        let problems = audited(&index).await?.problems;
        assert!(matches!(&problems[..], [one] if one.contains("used as Unused")), "{problems:?}");
        Ok(())
    });
}

/// A recovering walk waits for working clients, but not for ever; what crashed clients left counts once.
#[test]
fn a_recovering_walk_waits_for_working_clients_and_counts_repairs() {
    for growth in [false, true] {
        for crashes in [false, true] {
            let (sim, pool) = world();
            let [holder, walker] = [(); 2].map(|()| sim.client());
            let joined = |me: &farindex_sim::Client| staying(&sim, &pool, me);
            let (theirs, mine) = (joined(&holder), joined(&walker));
            let lock = run(&sim, &holder, async move {
                let index = filled(&theirs, "old", 1, 10).await?;
                let bucket = index.tables()[0].geometry().bucket(Level::One, 1);
                let (cell, at) = match growth {
                    true => (begin_to_grow(&index, &theirs).await?, index.tables()[0].root()),
                    false => (take(&theirs, index.uid(), bucket).await?, bucket),
                };
                std::mem::forget(cell);
                std::mem::forget(index);
                Ok(at)
            });
            if crashes {
                holder.crash(CrashOutcome::Landed);
            }
            let outcome = run(&sim, &walker, async move {
                if crashes {
                    // Its lease runs out first.
                    mine.endpoint().sleep(LEASE * 2).await;
                    mine.client().wait_and_evict_expired(mine.endpoint()).await?;
                }
                let index = Shard::open(&mine, "old").await?;
                let outcome = index.recover().await;
                if outcome.is_ok() {
                    let intents = intent::intents(&mine, &mine.span(OpKind::Other), lock.node()).await?;
                    assert_eq!(
                        (intents.len(), audited(&index).await?.problems, index.recover().await?),
                        (0, vec![], 0)
                    );
                    index.enlarge(&mine).await?;
                }
                Ok(outcome)
            });
            match (&outcome, crashes) {
                (Ok(1), true) => {}
                (Err(IndexError::Locked { at, waited_ms, holder }), false) => {
                    assert_eq!((*at, holder.as_str()), (lock, "client 0 (process 0)"), "growth: {growth}");
                    let waited = Duration::from_millis(*waited_ms);
                    assert!((LEASE * 2..LEASE * 3).contains(&waited), "growth: {growth}, {waited:?}");
                }
                _ => panic!("growth: {growth}, crashes: {crashes}: {outcome:?}"),
            }
        }
    }
}

/// Walks while a client loads the table, which grows from two buckets on, and changes what it has loaded: `kill` is
/// when it crashes.
fn walk_with_a_loader(kill: Option<Duration>) {
    const KEYS: u32 = 2500;
    let (sim, pool) = world();
    let [loader, walker] = [(); 2].map(|()| sim.client());
    let (theirs, mine) = (staying(&sim, &pool, &loader), staying(&sim, &pool, &walker));
    let index: Shard = run(&sim, &walker, async move { make(&mine, "old", 1).await });
    // Keys whose insert has begun, and has ended.
    let [begun, ended] = [(); 2].map(|()| Rc::new(Cell::new(0u32)));
    let (begins, ends) = (Rc::clone(&begun), Rc::clone(&ended));
    sim.spawn(&loader, async move {
        let index = Shard::open(&theirs, "old").await?;
        for key in 0..KEYS {
            begins.set(key + 1);
            index.insert(&key.to_le_bytes(), &[key, 0].map(u32::to_le_bytes).concat()).await?;
            ends.set(key + 1);
            let other = key / 2;
            index.upsert(&other.to_le_bytes(), &[other, key].map(u32::to_le_bytes).concat()).await?;
        }
        Ok::<_, IndexError>(())
    });
    if let Some(after) = kill {
        sim.run_for(after).assert_done();
        loader.crash(CrashOutcome::Landed);
    }
    run(&sim, &walker, async move {
        loop {
            let before = ended.get();
            let mut visited = BTreeSet::new();
            let each = async |key: &[u8], value: Value| {
                assert_eq!(&value[..4], key, "another key's value");
                assert!(visited.insert(key.to_vec()), "{kill:?}: key {key:?} is visited twice");
                Ok(())
            };
            index.visit(each, &mut Damage::fail).await?;
            assert!(
                (0..before).all(|key| visited.contains(&key.to_le_bytes()[..])),
                "{kill:?}: a key of {before} is missed"
            );
            assert!(visited.len() <= begun.get() as usize);
            let before = ended.get();
            let entries = index.audit(&mut Audit::default(), false).await?.entries;
            let known = u64::from(before)..=u64::from(begun.get());
            assert!(known.contains(&entries), "{kill:?}: {entries} entries, not {known:?}");
            if kill.is_some() || ended.get() == KEYS {
                return Ok(());
            }
        }
    });
}

#[test]
fn a_walk_visits_each_key_once_while_a_loader_works() {
    walk_with_a_loader(None);
}

#[test]
fn a_walk_meets_each_key_once_after_a_crash_of_the_loader() {
    for i in 1..60 {
        walk_with_a_loader(Some(Duration::from_micros(i * 137)));
    }
}

/// Damage is reported with the place that leads there, and everything else is visited.
#[test]
fn a_walk_names_what_it_cannot_read_and_goes_on() {
    const KEYS: u32 = 90;
    alone(async move |session| {
        let index = filled(&session, "old", 0, KEYS).await?;
        let span = session.span(OpKind::Other);
        let [first, second, third] = firsts(&index).await?;
        let put = async |at: RemotePtr, word: u64| {
            let mut batch = span.batch();
            batch.write_words(at, &[word]);
            batch.post().await.map(drop)
        };
        for (at, name) in [
            (first, "slot 2 of level-1 bucket 0"),
            (second, "slot 2 of level-2 bucket 0"),
            (third, "level 3 of bucket 0"),
        ] {
            let old = word(&session, at).await?;
            let Slot::Live(entry) = Slot::decode(old) else { panic!("{:?}", Slot::decode(old)) };
            let nowhere = |node, offset| {
                Slot::Live(farindex_index::shard::slot::Entry {
                    ptr: RemotePtr::new(farindex_fabric::NodeId::new(node), offset),
                    ..entry
                })
            };
            for (damage, what) in [
                (nowhere(9, entry.ptr.offset()).over(old), "memory node 9, which does not exist"),
                (nowhere(0, 1 << 40).over(old), "where no object can lie"),
                (nowhere(0, 3 << 20).over(old), "where the key-value block has a wrong checksum"),
                (old & !(0xF << 48) | 0xF << 52, "holds 0x"),
            ] {
                put(at, damage).await?;
                let mut reported = Vec::new();
                let mut tell = |damage: Damage| {
                    reported.push(damage.what);
                    Ok(())
                };
                let visited = index.visit(async |_, _| Ok(()), &mut tell).await?;
                assert_eq!(visited, u64::from(KEYS) - 1, "{name}: {what}: {reported:?}");
                assert!(
                    matches!(&reported[..], [one] if one.contains(name) && one.contains(what)),
                    "{name}: {what}: {reported:?}"
                );
                let failed = index.visit(async |_, _| Ok(()), &mut Damage::fail).await;
                assert!(matches!(failed, Err(IndexError::Pool(_))), "{failed:?}");
            }
            put(at, old).await?;
        }
        // The beginning of a bucket is lost: lock, version and six entries.
        let bucket = index.tables()[0].geometry().bucket(Level::One, 0);
        let mut batch = span.batch();
        batch.write_words(bucket, &[0; 8]);
        batch.post().await?;
        let mut reported = Vec::new();
        let mut tell = |damage: Damage| {
            reported.push(damage);
            Ok(())
        };
        assert_eq!(index.visit(async |_, _| Ok(()), &mut tell).await?, u64::from(KEYS) - 8);
        assert!(matches!(&reported[..], [one] if one.at == bucket && one.what.contains("bucket 0")), "{reported:?}");
        assert!(index.visit(async |_, _| Ok(()), &mut Damage::fail).await.is_err());
        Ok(())
    });
}
