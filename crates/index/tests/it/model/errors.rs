//! What an index refuses, and that it is intact afterwards.

use farindex_fabric::memory::Delivery;
use farindex_index::block::{MAX_KEY, MAX_VALUE};
use farindex_index::{IndexError, Lifecycle, PointIndex, PoolIndex, Remove, Shard};
use farindex_pool::audit::AuditReport;
use farindex_pool::{PoolError, PoolOptions, catalog};
use farindex_testkit::suite::{Model, audit, compare, step};
use farindex_testkit::world::{World, bytes};

/// The smallest table.
fn smallest() -> farindex_index::shard::Config {
    farindex_index::shard::Config { initial_bits: 0, ..Default::default() }
}

#[test]
fn keys_and_values_that_are_too_long() {
    World::memory(1, 64 << 20, Delivery::Immediate).run(async |ctx| {
        let member = ctx.join(&ctx.pool(&PoolOptions::default()).await).await;
        let index = Shard::create(&member.session, "a", &smallest()).await.unwrap();
        let (key, value) = (vec![7; MAX_KEY + 1], vec![7; MAX_VALUE + 1]);
        let long = IndexError::KeyTooLong { len: MAX_KEY + 1, max: MAX_KEY };
        assert_eq!(index.get(&key).await.map(drop), Err(long.clone()));
        assert_eq!(index.insert(&key, b"").await.map(drop), Err(long.clone()));
        assert_eq!(index.update(&key, b"").await.map(drop), Err(long.clone()));
        assert_eq!(index.upsert(&key, b"").await.map(drop), Err(long.clone()));
        assert_eq!(index.remove(&key).await.map(drop), Err(long.clone()));
        assert_eq!(index.get_many(&[b"k", &key]).await.map(drop), Err(long));
        let long = IndexError::ValueTooLong { len: MAX_VALUE + 1, max: MAX_VALUE };
        assert_eq!(index.insert(b"k", &value).await.map(drop), Err(long.clone()));
        assert_eq!(index.update(b"k", &value).await.map(drop), Err(long.clone()));
        assert_eq!(index.upsert(b"k", &value).await.map(drop), Err(long));
        assert_eq!(index.get(b"k").await, Ok(None));
        // The longest ones.
        let (key, value) = (&key[1..], &value[1..]);
        index.insert(key, value).await.unwrap();
        assert!(index.get(key).await.unwrap().as_deref() == Some(value));
        let (_, report) = audit(&member, &[("a", &index)]).await;
        assert_eq!(report.lost, 0);
    });
}

#[test]
fn names_and_kinds() {
    World::memory(1, 16 << 20, Delivery::Immediate).run(async |ctx| {
        let member = ctx.join(&ctx.pool(&PoolOptions::default()).await).await;
        let session = &member.session;
        let index = Shard::create(session, "a", &smallest()).await.unwrap();
        let taken = Shard::create(session, "a", &smallest()).await.map(drop);
        assert_eq!(taken, Err(IndexError::Pool(PoolError::IndexExists("a".to_owned()))));
        assert!(matches!(Shard::open(session, "b").await.map(drop), Err(IndexError::Pool(PoolError::NoSuchIndex(_)))));
        assert!(Shard::drop_index(session, "b").await.is_err());
        let mut info = catalog::find(session.pool(), &member.span(), "a").await.unwrap();
        info.kind = 77;
        let wrong = Shard::open_info(session, &info).await.map(drop);
        assert!(matches!(wrong, Err(IndexError::Pool(PoolError::WrongKind { .. }))), "{wrong:?}");
        info.kind = farindex_index::shard::KIND;
        info.version = 99;
        let wrong = Shard::open_info(session, &info).await.map(drop);
        assert!(matches!(wrong, Err(IndexError::Pool(PoolError::IndexVersion { .. }))), "{wrong:?}");
        for config in [
            farindex_index::shard::Config { initial_bits: 21, ..smallest() },
            farindex_index::shard::Config { threshold: 0.0, ..smallest() },
            farindex_index::shard::Config { threshold: f64::NAN, ..smallest() },
            farindex_index::shard::Config { alpha: -1.0, ..smallest() },
        ] {
            let made = Shard::create(session, "c", &config).await.map(drop);
            assert!(matches!(made, Err(IndexError::BadConfig(_))), "{made:?}");
        }
        // A drop makes room for another of the same name, which is another index.
        Shard::drop_index(session, "a").await.unwrap();
        let again = Shard::create(session, "a", &smallest()).await.unwrap();
        let info = catalog::find(session.pool(), &member.span(), "a").await.unwrap();
        assert_eq!((again.uid(), info.uid > index.uid()), (info.uid, true));
        again.insert(b"k", b"v").await.unwrap();
        assert_eq!(index.get(b"k").await, Err(IndexError::Dropped));
        assert_eq!(index.remove(b"k").await, Err(IndexError::Dropped));
        let (_, report) = audit(&member, &[("a", &again)]).await;
        assert_eq!(report.lost, 0);
    });
}

/// Full, intact; and after removals as good as new, over and over.
#[test]
fn a_full_pool_leaves_the_index_intact() {
    World::memory(1, 4 << 20, Delivery::Immediate).run(async |ctx| {
        let member = ctx.join(&ctx.pool(&PoolOptions::default()).await).await;
        let index = Shard::create(&member.session, "a", &smallest()).await.unwrap();
        let mut model = Model::new();
        let mut sizes = Vec::new();
        for round in 0..4u64 {
            let full = loop {
                let key = format!("{round} {}", model.len()).into_bytes();
                let value = bytes(700, model.len() as u64);
                match index.insert(&key, &value).await {
                    Ok(_) => model.insert(key, value),
                    Err(error) => break error,
                };
            };
            assert!(matches!(full, IndexError::Pool(PoolError::Full { .. })), "{full}");
            sizes.push(model.len());
            compare(&index, &model).await;
            // What needs no memory works.
            let keys: Vec<_> = model.keys().cloned().collect();
            for key in keys.iter().step_by(2) {
                assert_eq!(index.remove(key).await, Ok(Remove::Removed));
                model.remove(key);
            }
            for key in keys.iter().skip(1).step_by(2) {
                // Of the same size: blocks of another would need a chunk that is empty.
                step(&index, &mut model, 2, key, &bytes(690, round)).await;
            }
            compare(&index, &model).await;
            for key in keys {
                step(&index, &mut model, 4, &key, b"").await;
            }
        }
        assert!(sizes.iter().all(|size| size * 10 > sizes[0] * 9), "it holds less and less: {sizes:?}");
        let (_, report) = audit(&member, &[("a", &index)]).await;
        assert_eq!(report.lost, 0);
    });
}

#[test]
fn a_pool_without_room_for_a_table() {
    World::memory(1, 4 << 20, Delivery::Immediate).run(async |ctx| {
        let member = ctx.join(&ctx.pool(&PoolOptions::default()).await).await;
        let config = farindex_index::shard::Config { initial_bits: 16, ..smallest() };
        let made = Shard::create(&member.session, "a", &config).await.map(drop);
        assert!(matches!(made, Err(IndexError::Pool(PoolError::Full { .. }))), "{made:?}");
        let (_, report) = audit::<Shard>(&member, &[]).await;
        assert_eq!((report.lost, report.nodes[0].live_bytes), (0, 0));
    });
}

/// Another client has it open while it is dropped; it learns so, and its memory goes back all the same.
#[test]
fn dropped_by_another_client() {
    World::memory(2, 16 << 20, Delivery::Deferred).run(async |ctx| {
        let pool = ctx.pool(&PoolOptions::default()).await;
        let (one, two) = (ctx.join(&pool).await, ctx.join(&pool).await);
        let index = Shard::create(&one.session, "a", &smallest()).await.unwrap();
        for i in 0..500u64 {
            index.insert(&i.to_le_bytes(), &bytes(i as usize, i)).await.unwrap();
        }
        let open = Shard::open(&two.session, "a").await.unwrap();
        assert!(open.get(&3u64.to_le_bytes()).await.unwrap().is_some());
        let working = async {
            // It works all the time, and its lease lives.
            loop {
                two.client.tick(&two.endpoint).await.unwrap();
                match open.upsert(&3u64.to_le_bytes(), b"x").await {
                    Ok(_) => {}
                    Err(error) => return assert_eq!(error, IndexError::Dropped),
                }
            }
        };
        let dropping = async {
            Shard::drop_index(&one.session, "a").await.unwrap();
        };
        let keeping = async {
            working.await;
            for _ in 0..200 {
                two.client.tick(&two.endpoint).await.unwrap();
            }
        };
        let both: [std::pin::Pin<Box<dyn Future<Output = ()> + '_>>; 2] = [Box::pin(keeping), Box::pin(dropping)];
        farindex_testkit::world::join_all(both).await;
        drop((open, index));
        two.close_while_ticking(&[&one]).await;
        let (_, report) = audit::<Shard>(&one, &[]).await;
        assert_eq!(report.nodes.iter().map(|node| node.live_bytes + node.held_bytes).sum::<u64>(), 0, "{report:?}");
    });
}

/// What this worker has added is reported with the first verbs of a later operation: not to memory that has become
/// another index's by then.
#[test]
fn a_handle_of_a_dropped_index_changes_nothing() {
    World::memory(1, 8 << 20, Delivery::Deferred).run(async |ctx| {
        let member = ctx.join(&ctx.pool(&PoolOptions::default()).await).await;
        for several in [1, 8] {
            let session = ctx.session(&member);
            let config = farindex_index::shard::Config { initial_bits: 2, ..smallest() };
            let old = Shard::create(&session, "a", &config).await.unwrap();
            for i in 0..5u64 {
                old.insert(&i.to_le_bytes(), b"old").await.unwrap();
            }
            // Its blocks, not its root, lie where the old root was: those of the same size do.
            let new = Shard::create(&member.session, "b", &config).await.unwrap();
            Shard::drop_index(&member.session, "a").await.unwrap();
            let mut model = Model::new();
            for i in 0..1000u64 {
                step(&new, &mut model, 1, &i.to_le_bytes(), &bytes(480 - (i % 3) as usize * 200, i)).await;
            }
            // All at once: none may rely on what another is about to learn.
            let outcomes = farindex_testkit::world::join_all((0..several).map(|_| old.upsert(b"k", b"v"))).await;
            assert!(outcomes.iter().all(|outcomes| *outcomes == Err(IndexError::Dropped)), "{outcomes:?}");
            for _ in 0..100 {
                assert_eq!(old.get(b"k").await, Err(IndexError::Dropped));
                assert_eq!(old.remove(&1u64.to_le_bytes()).await, Err(IndexError::Dropped));
            }
            compare(&new, &model).await;
            drop((old, session));
            let (_, report) = audit(&member, &[("b", &new)]).await;
            assert_eq!(report.lost, 0);
            Shard::drop_index(&member.session, "b").await.unwrap();
        }
    });
}

/// One of the memory nodes has no room for its table: what was made on the others goes back.
#[test]
fn a_node_without_room_for_a_table() {
    World::memory(2, 4 << 20, Delivery::Immediate).run(async |ctx| {
        let member = ctx.join(&ctx.pool(&PoolOptions::default()).await).await;
        let (session, span) = (&member.session, member.span());
        let last = session.pool().nodes().last().unwrap();
        let mut taken = Vec::new();
        for bytes in [1 << 20, 64 << 10] {
            while let Ok(ptr) = session.alloc(&span, last, bytes).await {
                taken.push((ptr, bytes));
            }
        }
        let config = farindex_index::shard::Config { initial_bits: 8, ..smallest() };
        let made = Shard::create(session, "a", &config).await.map(drop);
        assert!(matches!(made, Err(IndexError::Pool(PoolError::Full { node, .. })) if node == last), "{made:?}");
        for (ptr, bytes) in taken {
            session.free(&span, ptr, bytes).await.unwrap();
        }
        let (_, report) = audit::<Shard>(&member, &[]).await;
        assert_eq!(report.nodes.iter().map(|node| node.live_bytes + node.held_bytes).sum::<u64>(), 0, "{report:?}");
        // The name is free.
        let index = Shard::create(session, "a", &config).await.unwrap();
        let (_, report) = audit(&member, &[("a", &index)]).await;
        assert_eq!(report.lost, 0);
    });
}

/// The list of an index's tables is as long as there are memory nodes: here longer than a cache line.
#[test]
fn more_memory_nodes_than_a_cache_line_has_words() {
    World::memory(17, 1 << 20, Delivery::Immediate).run(async |ctx| {
        let member = ctx.join(&ctx.pool(&PoolOptions::default()).await).await;
        let session = &member.session;
        let first = Shard::create(session, "a", &smallest()).await.unwrap();
        let second = Shard::create(session, "b", &smallest()).await.unwrap();
        let roots = |index: &Shard| index.tables().iter().map(|table| table.root()).collect::<Vec<_>>();
        for (name, index) in [("a", &first), ("b", &second)] {
            assert_eq!(roots(&Shard::open(session, name).await.unwrap()), roots(index), "{name}");
        }
        let held = |report: &AuditReport| report.nodes.iter().map(|node| node.held_bytes).sum::<u64>();
        let (_, report) = audit(&member, &[("a", &first), ("b", &second)]).await;
        assert_eq!((report.lost, held(&report)), (0, 0));
        Shard::drop_index(session, "b").await.unwrap();
        let (_, report) = audit(&member, &[("a", &first)]).await;
        assert_eq!((report.lost, held(&report)), (0, 0));
    });
}
