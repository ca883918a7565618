//! Where SepHash's widths end: depth, rounds of depth information, fingerprints that many entries share, a full pool.

use farindex_fabric::memory::Delivery;
use farindex_index::keyhash::KeyHash;
use farindex_index::sephash::layout::{fp_of, fp2_of};
use farindex_index::sephash::{Config, TableKind};
use farindex_index::{IndexAudit, IndexError, Insert, PointIndex, PoolIndex, Remove, SepHash};
use farindex_pool::audit::Audit;
use farindex_pool::{PoolError, PoolOptions};
use farindex_testkit::world::{Ctx, Member, World};

const SMALL: u64 = 64;

async fn audit(member: &Member, index: &SepHash) -> IndexAudit {
    let mut audit = Audit::begin(&member.session, &member.span()).await.unwrap();
    let report = index.audit(&mut audit, true).await.unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    report
}

async fn fill(index: &SepHash, keys: &[Vec<u8>]) {
    for (i, key) in keys.iter().enumerate() {
        assert_eq!(index.insert(key, &i.to_le_bytes()).await, Ok(Insert::Inserted), "key {i}");
    }
}

async fn expect(index: &SepHash, keys: &[Vec<u8>]) {
    for (i, key) in keys.iter().enumerate() {
        let found = index.get(key).await.unwrap();
        assert_eq!(found.as_deref(), Some(i.to_le_bytes().as_slice()), "key {i}");
        assert_eq!(index.insert(key, b"").await, Ok(Insert::Exists));
    }
}

async fn with_index(ctx: Ctx, config: Config, body: impl AsyncFnOnce(&Member, &SepHash)) {
    let pool = ctx.pool(&PoolOptions::default()).await;
    let member = ctx.join(&pool).await;
    let index = SepHash::create(&member.session, "limits", &config).await.unwrap();
    body(&member, &index).await;
}

fn keys_where(count: usize, fits: impl Fn(KeyHash) -> bool) -> Vec<Vec<u8>> {
    let keys = (0_u64..).map(|i| i.to_le_bytes().to_vec());
    keys.filter(|key| fits(KeyHash::unseeded(key))).take(count).collect()
}

/// A count in a byte wraps at 256; and so does whatever predicts by it.
#[test]
fn more_than_255_entries_share_a_fingerprint() {
    for table in [TableKind::Points, TableKind::Naive] {
        World::memory(1, 64 << 20, Delivery::Immediate).run(async move |ctx: Ctx| {
            let config = Config { initial_depth: 0, table, ..Config::default() };
            with_index(ctx, config, async |member, index| {
                let mut keys = keys_where(700, |hash| fp_of(hash) == 0x5A);
                // Among them some that share the second one as well.
                let same_fingerprint = fp2_of(KeyHash::unseeded(&keys[0]));
                keys.extend(keys_where(4, |hash| fp_of(hash) == 0x5B && fp2_of(hash) == same_fingerprint));
                keys.extend(keys_where(300, |hash| fp_of(hash) != 0x5A && fp_of(hash) != 0x5B));
                fill(index, &keys).await;
                expect(index, &keys).await;
                for key in keys.iter().step_by(2) {
                    assert_eq!(index.remove(key).await, Ok(Remove::Removed));
                }
                for (i, key) in keys.iter().enumerate() {
                    assert_eq!(index.get(key).await.unwrap().is_some(), i % 2 == 1);
                }
                assert_eq!(audit(member, index).await.entries, keys.len() as u64 / 2);
            })
            .await;
        });
    }
}

/// Splits beyond 4, 8 and 12 take the next four bits of the hash out of the blocks; what was split by stale ones would
/// lie where no lookup comes by.
#[test]
fn splits_go_through_three_rounds_of_depth_information() {
    World::memory(1, 64 << 20, Delivery::Immediate).run(async |ctx: Ctx| {
        let config = Config { cur_bytes: SMALL, ratio: 1, initial_depth: 0, ..Config::default() };
        with_index(ctx, config, async |member, index| {
            // All on one path of the directory, so that it becomes deep soon.
            let keys = keys_where(400, |hash| hash.bits() & 0x3FF == 0x2B5);
            fill(index, &keys).await;
            expect(index, &keys).await;
            let report = audit(member, index).await;
            assert!(report.resizes > 12, "{report:?}");
            assert_eq!(report.entries, 400);
        })
        .await;
    });
}

/// At the greatest depth a segment is not split: its MainSegment grows.
#[test]
fn the_depth_ends_and_segments_grow() {
    World::memory(1, 64 << 20, Delivery::Immediate).run(async |ctx: Ctx| {
        let config = Config { cur_bytes: SMALL, ratio: 1, initial_depth: 1, max_depth: 3, ..Config::default() };
        with_index(ctx, config, async |member, index| {
            let keys = keys_where(2000, |_| true);
            fill(index, &keys).await;
            expect(index, &keys).await;
            let report = audit(member, index).await;
            assert_eq!((report.resizes, report.figure("segments"), report.entries), (2, 8, 2000));
        })
        .await;
    });
    let bad = Config { max_depth: 37, ..Config::default() };
    World::memory(1, 8 << 20, Delivery::Immediate).run(async move |ctx: Ctx| {
        let pool = ctx.pool(&PoolOptions::default()).await;
        let member = ctx.join(&pool).await;
        let made = SepHash::create(&member.session, "deep", &bad).await.map(drop);
        assert!(matches!(made, Err(IndexError::BadConfig(_))));
    });
}

/// A pool that is full refuses writes by an error, and everything that was written is there.
#[test]
fn a_full_pool_refuses_and_keeps_what_it_has() {
    World::memory(1, 1 << 20, Delivery::Immediate).run(async |ctx: Ctx| {
        let options = PoolOptions { chunk_size: Some(16 << 10), client_slots: 8, ..PoolOptions::default() };
        let pool = ctx.pool(&options).await;
        let member = ctx.join(&pool).await;
        let config = Config { cur_bytes: 256, ratio: 2, initial_depth: 0, ..Config::default() };
        let index = SepHash::create(&member.session, "full", &config).await.unwrap();
        let keys = keys_where(20_000, |_| true);
        let mut kept = 0;
        for (i, key) in keys.iter().enumerate() {
            match index.insert(key, &i.to_le_bytes()).await {
                Ok(outcome) => assert_eq!((outcome, kept), (Insert::Inserted, i)),
                Err(IndexError::Pool(PoolError::Full { .. })) => break,
                Err(error) => panic!("{error}"),
            }
            kept += 1;
        }
        assert!((1000..19_000).contains(&kept), "{kept}");
        for (i, key) in keys.iter().enumerate().take(kept + 10) {
            let found = index.get(key).await.unwrap();
            assert_eq!(found.as_deref(), (i < kept).then_some(i.to_le_bytes().as_slice()));
        }
        assert_eq!(audit(&member, &index).await.entries, kept as u64);
    });
}

/// The same few keys for ever: memory stays bounded.
#[test]
fn churn_takes_no_more_memory() {
    World::memory(1, 4 << 20, Delivery::Immediate).run(async |ctx: Ctx| {
        let config = Config { cur_bytes: 128, ratio: 2, initial_depth: 0, ..Config::default() };
        with_index(ctx, config, async |member, index| {
            let keys = keys_where(200, |_| true);
            for round in 0..300_u64 {
                for key in &keys {
                    match round % 3 {
                        0 => assert!(index.upsert(key, &[7; 200]).await.is_ok()),
                        1 => assert!(index.update(key, &round.to_le_bytes()).await.is_ok()),
                        _ => assert_eq!(index.remove(key).await, Ok(Remove::Removed)),
                    }
                }
            }
            assert_eq!(audit(member, index).await.entries, 0);
        })
        .await;
    });
}
