//! RACE: the limit of its depth, old copies of the directory, duplicates and lost keys as published.

use farindex_fabric::memory::Delivery;
use farindex_index::PoolIndex;
use farindex_index::race::{Config, Variant};
use farindex_index::{IndexError, Insert, Lifecycle, PointIndex, Race};
use farindex_pool::PoolOptions;
use farindex_pool::audit::Audit;
use farindex_testkit::world::{World, join_all};

fn key(i: u64) -> [u8; 8] {
    i.to_le_bytes()
}

/// A segment of the greatest depth that is full is an error, of that insert alone; everything else goes on.
#[test]
fn the_depth_has_a_limit() {
    World::memory(1, 16 << 20, Delivery::Immediate).run(async |ctx: farindex_testkit::world::Ctx| {
        let pool = ctx.pool(&PoolOptions::default()).await;
        let member = ctx.join(&pool).await;
        let config = Config { initial_depth: 1, groups: 1, max_depth: 3, ..Config::default() };
        let index = Race::create(&member.session, "shallow", &config).await.unwrap();
        let mut refused = 0;
        for i in 0..400 {
            match index.insert(&key(i), b"value").await {
                Ok(Insert::Inserted) => {}
                Err(IndexError::TooDeep { depth: 3 }) => refused += 1,
                other => panic!("{other:?}"),
            }
        }
        // Eight segments of 24 slots.
        assert_eq!((refused, index.resizes()), (400 - 8 * 24, 2));
        let present = join_all((0..400).map(async |i| index.get(&key(i)).await.unwrap().is_some() as u64)).await;
        assert_eq!(present.iter().sum::<u64>(), 8 * 24);
        let gone = (0..400).find(|i| present[*i as usize] == 1).unwrap();
        assert_eq!(index.insert(&key(gone), b"").await, Ok(Insert::Exists));
        index.remove(&key(gone)).await.unwrap();
        assert_eq!(index.insert(&key(gone), b"").await, Ok(Insert::Inserted));
        let mut audit = Audit::begin(&member.session, &member.span()).await.unwrap();
        let report = index.audit(&mut audit, true).await.unwrap();
        assert_eq!((report.entries, report.figure("depth")), (8 * 24, 3));
        assert_eq!(report.problems, [""; 0]);
        drop(index);
        member.close().await;
    });
}

/// A client whose copy of the directory is empty, or as old as the index, finds everything, and learns on the way.
#[test]
fn an_old_copy_of_the_directory_costs_round_trips_alone() {
    World::memory(1, 16 << 20, Delivery::Deferred).run(async |ctx: farindex_testkit::world::Ctx| {
        let pool = ctx.pool(&PoolOptions::default()).await;
        let (one, two) = (ctx.join(&pool).await, ctx.join(&pool).await);
        let config = Config { initial_depth: 1, groups: 1, ..Config::default() };
        let here = Race::create(&one.session, "old", &config).await.unwrap();
        let there = Race::open(&two.session, "old").await.unwrap();
        assert_eq!(there.get(&key(0)).await, Ok(None));
        for i in 0..2000 {
            assert_eq!(here.insert(&key(i), &key(i)).await, Ok(Insert::Inserted));
        }
        assert!(here.resizes() >= 6 && there.resizes() == 0);
        for i in 0..2000 {
            assert_eq!(there.get(&key(i)).await.unwrap().as_deref(), Some(&key(i)[..]));
            assert_eq!(there.get(&key(i + 2000)).await, Ok(None));
            if i % 100 == 0 {
                there.tables()[0].directory().mirror().forget();
            }
        }
        assert!(there.resizes() >= 6);
        drop((here, there));
        two.close_while_ticking(&[&one]).await;
    });
}

/// What SHARD's Figure 5 shows: what finds no slot in the child is lost, and repaired is not.
#[test]
fn the_published_split_loses_keys_and_the_repaired_one_none() {
    for (variant, loses) in [(Variant::Published, true), (Variant::Repaired, false)] {
        World::memory(1, 64 << 20, Delivery::Deferred).run(async move |ctx: farindex_testkit::world::Ctx| {
            let pool = ctx.pool(&PoolOptions::default()).await;
            let member = ctx.join(&pool).await;
            let config = Config { initial_depth: 1, groups: 1, variant, ..Config::default() };
            let index = Race::create(&member.session, "figure", &config).await.unwrap();
            let insert = async |worker: u64| {
                for i in 0..400 {
                    assert_eq!(index.insert(&key(worker << 32 | i), b"").await, Ok(Insert::Inserted));
                }
            };
            join_all((0..16).map(insert)).await;
            let mut missing = 0;
            for worker in 0..16 {
                for i in 0..400 {
                    missing += u64::from(index.get(&key(worker << 32 | i)).await.unwrap().is_none());
                }
            }
            println!("{variant:?}: {missing} of 6400 keys are missing");
            assert_eq!(missing > 0, loses);
            drop(index);
            member.close().await;
        });
    }
}
