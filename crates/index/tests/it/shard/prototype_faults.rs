//! The faults of SHARD's released prototype, one test each: here they must not be.

use farindex_fabric::memory::Delivery;
use farindex_fabric::{Endpoint, Executor, Fabric, MemoryFabric, OpKind};
use farindex_index::block::UNIT;
use farindex_index::keyhash::KeyHash;
use farindex_index::{Insert, Lifecycle, PointIndex, PoolIndex, Remove, Shard, Update, Upsert, shard};
use farindex_pool::{Client, Pool, PoolOptions};
use farindex_testkit::suite::{Model, audit, colliding, compare, step};
use farindex_testkit::world::{World, bytes, join_all};
use std::rc::Rc;
use std::sync::Arc;

/// The smallest table.
fn smallest() -> shard::Config {
    shard::Config { initial_bits: 0, ..Default::default() }
}

/// A test body on one node of memory, with one client.
fn alone(len: u64, config: shard::Config, body: impl AsyncFnOnce(&Shard) + 'static) {
    World::memory(1, len, Delivery::Immediate).run(async move |ctx| {
        let member = ctx.join(&ctx.pool(&PoolOptions::default()).await).await;
        let index = Shard::create(&member.session, "faults", &config).await.unwrap();
        body(&index).await;
        let (_, report) = audit(&member, &[("faults", &index)]).await;
        assert_eq!(report.lost, 0);
    });
}

/// A table that never grows by itself.
fn fixed(bits: u64) -> shard::Config {
    shard::Config { initial_bits: bits, threshold: 1.0, ..smallest() }
}

/// Runs a body in several threads, each with its own handle on one index.
fn in_threads(len: u64, config: shard::Config, threads: u64, body: impl AsyncFn(u64, &Shard) + Sync) {
    let fabric: Arc<dyn Fabric> = Arc::new(MemoryFabric::new(1, len).unwrap());
    let run = |client: &Arc<Client>, work: &dyn Fn(&Executor, &Endpoint, Rc<farindex_pool::Session>)| {
        let endpoint = fabric.connect(client.identity()).unwrap();
        work(&Executor::new(), &endpoint, Rc::new(client.session(endpoint.clone())));
    };
    let identity = fabric.new_identity();
    let endpoint = fabric.connect(&identity).unwrap();
    let executor = Executor::new();
    let pool = executor.block_on(&endpoint, Pool::create(Arc::clone(&fabric), &endpoint, &PoolOptions::unseeded()));
    let pool = pool.unwrap();
    let client = executor.block_on(&endpoint, Client::register(&pool, identity, &endpoint)).unwrap();
    run(&client, &|executor, endpoint, session| {
        drop(executor.block_on(endpoint, Shard::create(&session, "faults", &config)).unwrap());
    });
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (body, client, run) = (&body, &client, &run);
            scope.spawn(move || {
                run(client, &|executor, endpoint, session| {
                    executor.block_on(endpoint, async {
                        let index = Shard::open(&session, "faults").await.unwrap();
                        body(thread, &index).await;
                    });
                });
            });
        }
    });
    run(&client, &|executor, endpoint, session| {
        executor.block_on(endpoint, async {
            let index = Shard::open(&session, "faults").await.unwrap();
            let span = session.span(OpKind::Other);
            let mut audit = farindex_pool::audit::Audit::begin(&session, &span).await.unwrap();
            let report = index.audit(&mut audit, true).await.unwrap();
            assert_eq!(report.problems, Vec::<String>::new());
        });
    });
}

/// Level-2 lookups read the wrong bucket, so overflowed keys were not found.
#[test]
fn overflowed_keys_are_found() {
    alone(16 << 20, fixed(1), async |index| {
        let keys = colliding(6, None, 300);
        for key in &keys {
            assert_eq!(index.insert(key, key).await, Ok(Insert::Inserted));
        }
        let mut audit = farindex_pool::audit::Audit::default();
        let report = index.audit(&mut audit, true).await.unwrap();
        let levels = ["level1_entries", "level2_entries", "level3_entries"].map(|level| report.figure(level));
        assert!(levels.iter().all(|entries| *entries > 0), "{levels:?}");
        for key in &keys {
            assert_eq!(index.get(key).await.unwrap().as_deref(), Some(key.as_slice()));
            assert_eq!(index.update(key, b"new").await, Ok(Update::Updated));
            assert_eq!(index.get(key).await.unwrap().as_deref(), Some(&b"new"[..]));
        }
        // Those of level 1 go first, so that the others are alone.
        for (i, key) in keys.iter().enumerate() {
            assert_eq!(index.remove(key).await, Ok(Remove::Removed));
            for rest in &keys[i + 1..] {
                if rest[0] % 16 == 0 {
                    assert!(index.get(rest).await.unwrap().is_some());
                }
            }
        }
    });
}

/// A full bucket dropped the insert and returned success.
#[test]
fn a_full_bucket_drops_nothing() {
    alone(16 << 20, fixed(0), async |index| {
        for i in 0..1000u64 {
            assert_eq!(index.insert(&i.to_le_bytes(), &i.to_be_bytes()).await, Ok(Insert::Inserted));
            assert_eq!(index.insert(&i.to_le_bytes(), b"").await, Ok(Insert::Exists));
        }
        for i in 0..1000u64 {
            assert_eq!(index.get(&i.to_le_bytes()).await.unwrap().as_deref(), Some(&i.to_be_bytes()[..]));
        }
    });
}

/// A removal always reported "not found".
#[test]
fn a_removal_tells_the_truth() {
    alone(16 << 20, fixed(0), async |index| {
        for i in 0..200u64 {
            assert_eq!(index.remove(&i.to_le_bytes()).await, Ok(Remove::Absent));
            index.insert(&i.to_le_bytes(), b"v").await.unwrap();
        }
        for i in 0..200u64 {
            assert_eq!(index.remove(&i.to_le_bytes()).await, Ok(Remove::Removed));
            assert_eq!(index.remove(&i.to_le_bytes()).await, Ok(Remove::Absent));
            assert_eq!(index.get(&i.to_le_bytes()).await, Ok(None));
            assert_eq!(index.update(&i.to_le_bytes(), b"").await, Ok(Update::Absent));
        }
    });
}

/// A resize waited for every task of every client.
#[test]
fn who_reads_idles_or_has_finished_does_not_hold_up_growth() {
    World::memory(1, 32 << 20, Delivery::Deferred).run(async |ctx| {
        let pool = ctx.pool(&PoolOptions::default()).await;
        let (writer, reader) = (ctx.join(&pool).await, ctx.join(&pool).await);
        let (idle, finished) = (ctx.join(&pool).await, ctx.join(&pool).await);
        let index = Shard::create(&writer.session, "a", &smallest()).await.unwrap();
        let mut open = Vec::new();
        for member in [&reader, &idle, &finished] {
            open.push(Shard::open(&member.session, "a").await.unwrap());
        }
        let gone = open.pop().unwrap();
        for i in 0..30u64 {
            gone.insert(&i.to_le_bytes(), b"old").await.unwrap();
        }
        drop(gone);
        finished.close().await;
        // An operation that is never done, in the midst of its verbs.
        let stuck = idle.session.pin(idle.session.span(OpKind::Other)).unwrap();
        for i in 0..4000u64 {
            let expected = if i < 30 { Upsert::Updated } else { Upsert::Inserted };
            assert_eq!(index.upsert(&i.to_le_bytes(), b"v").await, Ok(expected));
            // The reader never writes, and never extends its lease.
            assert_eq!(open[0].get(&(i / 2).to_le_bytes()).await.unwrap().as_deref(), Some(&b"v"[..]));
        }
        assert!(index.resizes() >= 6, "{}", index.resizes());
        drop(stuck);
        // A client that slept through all of it finds everything.
        for i in 0..4000u64 {
            assert_eq!(open[1].get(&i.to_le_bytes()).await.unwrap().as_deref(), Some(&b"v"[..]));
        }
    });
}

/// Keys were C strings, and compared over the query's length only.
#[test]
fn keys_with_nul_bytes_and_keys_that_begin_alike() {
    alone(16 << 20, smallest(), async |index| {
        let mut model = Model::new();
        let long = vec![0u8; 300];
        let mut keys: Vec<Vec<u8>> = (0..300).map(|len| long[..len].to_vec()).collect();
        keys.extend((0..200).map(|at| {
            let mut key = vec![0u8; 200];
            key[at] = 1;
            key
        }));
        keys.extend(["a", "a\0", "a\0b", "a\0c", "\0a", "ab", "abc"].map(|key| key.as_bytes().to_vec()));
        for what in [0, 1, 0, 2, 0, 3, 0] {
            for (i, key) in keys.iter().enumerate() {
                step(index, &mut model, what, key, &bytes(i % 50, what)).await;
            }
        }
        compare(index, &model).await;
        for key in keys.iter().step_by(2) {
            step(index, &mut model, 4, key, b"").await;
        }
        compare(index, &model).await;
    });
}

/// Blocks were at most 960 bytes.
#[test]
fn values_longer_than_a_slot_can_say() {
    alone(64 << 20, smallest(), async |index| {
        let mut model = Model::new();
        let around = (14 * UNIT - 30..16 * UNIT + 30).step_by(3);
        let lens: Vec<usize> = around.chain([64 << 10, (64 << 10) - 24, 1 << 20, (1 << 20) + 1, 3 << 20]).collect();
        for (i, len) in lens.iter().enumerate() {
            for what in [1, 0, 2, 0, 3, 0] {
                step(index, &mut model, what, &i.to_le_bytes(), &bytes(*len, what)).await;
            }
        }
        // Long becomes short becomes long.
        for (i, len) in lens.iter().rev().enumerate() {
            step(index, &mut model, 2, &i.to_le_bytes(), &bytes(*len, 7)).await;
        }
        compare(index, &model).await;
    });
}

/// At most 8 resizes; and a one-bit epoch, so that after two resizes clean and dirty coincided.
#[test]
fn more_than_eight_resizes() {
    alone(64 << 20, shard::Config { threshold: 0.05, ..smallest() }, async |index| {
        let mut model = Model::new();
        let mut i = 0u64;
        while index.resizes() < 12 {
            step(index, &mut model, 1, &i.to_le_bytes(), &i.to_be_bytes()).await;
            i += 1;
        }
        compare(index, &model).await;
    });
}

/// A client that has slept through many resizes reads buckets of every age: the multi-version case.
#[test]
fn buckets_that_are_many_versions_behind() {
    World::memory(1, 64 << 20, Delivery::Deferred).run(async |ctx| {
        let pool = ctx.pool(&PoolOptions::default()).await;
        let member = ctx.join(&pool).await;
        let config = shard::Config { threshold: 0.05, ..smallest() };
        let index = Shard::create(&member.session, "a", &config).await.unwrap();
        let sleeper = ctx.join(&pool).await;
        let mut model = Model::new();
        let mut asleep = Vec::new();
        let mut i = 0u64;
        for version in 0..9 {
            while index.resizes() < version {
                step(&index, &mut model, 1, &i.to_le_bytes(), &i.to_be_bytes()).await;
                i += 1;
                // It keeps its lease; it just does nothing.
                sleeper.client.tick(&sleeper.endpoint).await.unwrap();
            }
            asleep.push(Shard::open(&sleeper.session, "a").await.unwrap());
        }
        for (version, handle) in asleep.iter().enumerate() {
            for key in (version as u64..i + 20).step_by(9) {
                for what in [0, 2, 4, 1, 0] {
                    step(handle, &mut model, what, &key.to_le_bytes(), &bytes(9, key)).await;
                }
            }
        }
        compare(&index, &model).await;
        drop(asleep);
        sleeper.close_while_ticking(&[&member]).await;
        audit(&member, &[("a", &index)]).await;
    });
}

/// Key 0, value 0 or the largest key were sentinels.
#[test]
fn no_key_and_no_value_is_reserved() {
    alone(16 << 20, smallest(), async |index| {
        let mut model = Model::new();
        let special = |len: usize| [vec![0; len], vec![0xFF; len]];
        let keys: Vec<Vec<u8>> = [0, 1, 2, 4, 7, 8, 9, 16, 48, 64].into_iter().flat_map(special).collect();
        for key in &keys {
            for value in &keys {
                for what in [3, 0, 4, 0, 1, 0, 2, 0] {
                    step(index, &mut model, what, key, value).await;
                }
            }
        }
        compare(index, &model).await;
    });
}

/// Nothing was freed by updates and removals.
#[test]
fn memory_comes_back_from_updates_and_removals() {
    alone(6 << 20, smallest(), async |index| {
        let value = |i: u64| bytes(1000 + (i % 7) as usize * 100, i);
        // 300 MB through 6 MB.
        for round in 0..100u64 {
            for key in 0..500u64 {
                match (round + key) % 3 {
                    0 => drop(index.remove(&key.to_le_bytes()).await.unwrap()),
                    1 => drop(index.upsert(&key.to_le_bytes(), &value(round)).await.unwrap()),
                    _ => drop(index.update(&key.to_le_bytes(), &value(key)).await.unwrap()),
                }
            }
        }
    });
}

/// An index that is dropped and made again, over and over, finds room every time.
#[test]
fn memory_comes_back_from_dropped_indexes() {
    World::memory(1, 8 << 20, Delivery::Immediate).run(async |ctx| {
        let member = ctx.join(&ctx.pool(&PoolOptions::default()).await).await;
        for round in 0..12u64 {
            let index = Shard::create(&member.session, "a", &smallest()).await.unwrap();
            for i in 0..2000u64 {
                index.insert(&i.to_le_bytes(), &bytes(1000, round)).await.unwrap();
            }
            drop(index);
            Shard::drop_index(&member.session, "a").await.unwrap();
        }
        let (_, report) = audit::<Shard>(&member, &[]).await;
        assert_eq!((report.lost, report.nodes[0].live_bytes), (0, 0));
    });
}

/// A repeated CAS overwrote whatever key had taken the slot over in the meantime.
#[test]
fn an_update_never_clobbers_the_key_that_took_over_its_slot() {
    let keys = colliding(8, Some(3), 6);
    assert!(keys.iter().all(|key| KeyHash::unseeded(key).fingerprint() == 3));
    let value = |key: &[u8], i: u64| [key, &i.to_le_bytes()[..]].concat();
    in_threads(16 << 20, fixed(0), 3, async |thread, index| {
        for i in 0..6000u64 {
            let key = &keys[(i.wrapping_mul(7 + thread * 2) % 6) as usize];
            match (thread, i % 4) {
                (0, _) => drop(index.update(key, &value(key, i)).await.unwrap()),
                (_, 0) => drop(index.remove(key).await.unwrap()),
                (_, 1) => drop(index.insert(key, &value(key, i)).await.unwrap()),
                _ => {
                    let got = index.get(key).await.unwrap();
                    assert!(got.is_none_or(|got| got.starts_with(key)), "another key's value");
                }
            }
        }
    });
}

/// A move wrote back what it had read before it took the lock.
#[test]
fn no_insert_is_lost_while_buckets_are_split() {
    let config = shard::Config { threshold: 0.3, ..smallest() };
    in_threads(48 << 20, config, 3, async |thread, index| {
        let key = |i: u64| (i * 3 + thread).to_le_bytes();
        for i in 0..2500u64 {
            assert_eq!(index.insert(&key(i), &key(i)).await, Ok(Insert::Inserted));
            if i % 5 == 0 {
                assert_eq!(index.update(&key(i / 2), &key(i / 2)).await, Ok(Update::Updated));
            }
            let back = i / 3;
            assert_eq!(index.get(&key(back)).await.unwrap().as_deref(), Some(&key(back)[..]), "{thread} {back}");
        }
        for i in 0..2500u64 {
            assert_eq!(index.remove(&key(i)).await, Ok(Remove::Removed), "{thread} {i}");
        }
    });
}

/// Combined writes acknowledged followers and dropped their values: without a local lock table every write is its own.
#[test]
fn writers_of_one_key_all_leave_what_they_were_told() {
    World::memory(1, 16 << 20, Delivery::Deferred).run(async |ctx| {
        let member = ctx.join(&ctx.pool(&PoolOptions::default()).await).await;
        let index = Shard::create(&member.session, "a", &smallest()).await.unwrap();
        for round in 0..200u64 {
            let key = round.to_le_bytes();
            let wrote = join_all((0..8u64).map(|i| {
                let index = &index;
                async move { index.insert(&key, &i.to_le_bytes()).await.unwrap() }
            }));
            let wrote = wrote.await;
            let winners: Vec<u64> = (0..8).filter(|i| wrote[*i as usize] == Insert::Inserted).collect();
            assert_eq!(winners.len(), 1, "{wrote:?}");
            assert_eq!(index.get(&key).await.unwrap().as_deref(), Some(&winners[0].to_le_bytes()[..]));
            let removed = join_all((0..8).map(|_| index.remove(&key))).await;
            assert_eq!(removed.into_iter().filter(|removed| *removed == Ok(Remove::Removed)).count(), 1);
        }
    });
}
