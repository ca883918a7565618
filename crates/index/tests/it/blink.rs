//! The B-link tree: what the adversary finds, damage, churn in bounded memory. The suites of all kinds test the rest.

use crate::{adversary, marks};
use farindex_fabric::memory::Delivery;
use farindex_index::audit::Damage;
use farindex_index::tree::blink::{BLink, Config};
use farindex_index::{IndexError, Insert, Lifecycle, OrderedIndex, PointIndex, PoolIndex, Remove};
use farindex_pool::{PoolError, PoolOptions};
use farindex_testkit::Setup;
use farindex_testkit::blink::BLinkUnderTest;
use farindex_testkit::suite::{Model, audit, step};
use farindex_testkit::world::{World, bytes};
use std::ops::Bound;

/// Paths that some of 150 seeds pass.
const COMMON: &[&str] =
    &["blink: lock is held", "blink: moved right", "blink: node was split", "blink: root was split"];

#[test]
fn survives_the_adversary() {
    let totals = adversary::survives(300, &Setup::default(), &BLinkUnderTest::default());
    totals.assert_marks(["operations: scans"]);
    let mut all = marks::of(&["src/tree/blink"]);
    assert!(all.remove("blink: lock of a crashed client was released"));
    marks::assert_passed(&totals, &all, COMMON);
}

/// Clients crash between any two verbs, with verbs in flight; other clients take their locks over.
#[test]
fn survives_crashes() {
    let totals = adversary::survives(300, &Setup::crashing(), &BLinkUnderTest::default());
    marks::assert_passed(&totals, &marks::of(&["src/tree/blink"]), &["blink: lock of a crashed client was released"]);
}

fn key(i: u32) -> Vec<u8> {
    format!("key {i:04}").into_bytes()
}

/// A walk reports damage and goes on behind it; operations on damaged nodes fail, and others do not.
#[test]
fn a_walk_goes_on_behind_damage() {
    const KEYS: u32 = 200;
    World::memory(1, 8 << 20, Delivery::Immediate).run(async |ctx| {
        let member = ctx.join(&ctx.pool(&PoolOptions::default()).await).await;
        let index = BLink::create(&member.session, "damaged", &Config { fanout: 8 }).await.unwrap();
        for i in 0..KEYS {
            assert_eq!(index.insert(&key(i), b"value").await, Ok(Insert::Inserted));
        }
        let span = member.span();
        let all =
            span.read(farindex_fabric::RemotePtr::new(farindex_fabric::NodeId::new(0), 0), 8 << 20).await.unwrap();
        // Blocks of entries begin with a header for a key of 8 bytes and a value of 5.
        let is_block = |line: &[u8]| {
            let lengths = u64::from_le_bytes(line[..8].try_into().unwrap()) & ((1 << 42) - 1);
            lengths == 8 | 5 << 17 && line[16..].starts_with(b"key ")
        };
        let holds_keys = |line: &[u8]| line.windows(4).any(|bytes| bytes == b"key ");
        let (mut damaged, mut unreadable) = (0, 0);
        for (i, line) in all.bytes().chunks(64).enumerate().filter(|(_, line)| holds_keys(line)) {
            if i % 7 != 0 {
                continue;
            }
            let at = farindex_fabric::RemotePtr::new(farindex_fabric::NodeId::new(0), i as u64 * 64 + 24);
            let word = u64::from_le_bytes(line[24..32].try_into().unwrap());
            span.write(at, member.session.endpoint().buf_from_words(&[!word])).await.unwrap();
            let (mut last, mut seen, mut wrong) = (None, 0, Vec::new());
            let each = async |key: &[u8], value: farindex_index::Value| {
                assert!(last.as_deref().is_none_or(|last: &[u8]| last < key) && *value == *b"value");
                last = Some(key.to_vec());
                seen += 1;
                Ok(())
            };
            let mut report = |damage: Damage| {
                wrong.push(damage.what);
                Ok(())
            };
            assert_eq!(index.visit(each, &mut report).await, Ok(seen));
            // Retired contents and blocks are nobody's.
            assert_eq!(wrong.is_empty(), seen == u64::from(KEYS), "{seen} keys, {wrong:?}");
            if !wrong.is_empty() {
                damaged += 1;
                unreadable += u64::from(KEYS) - seen;
                assert!(!is_block(line) || seen == u64::from(KEYS) - 1, "{seen} keys, {wrong:?}");
                let scanned = index.scan((Bound::Unbounded, Bound::Unbounded), usize::MAX).await;
                assert!(matches!(scanned, Err(IndexError::Pool(PoolError::Corrupt { .. }))), "{scanned:?}");
            }
            span.write(at, member.session.endpoint().buf_from_words(&[word])).await.unwrap();
        }
        assert!(damaged > 5 && unreadable > damaged, "{damaged} places, {unreadable} keys");
        let (mut failed, mut found) = (0, 0);
        for i in 0..KEYS {
            match index.get(&key(i)).await {
                Ok(value) => found += u32::from(value.is_some()),
                Err(_) => failed += 1,
            }
        }
        assert_eq!((failed, found), (0, KEYS));
        let report = index.audit(&mut farindex_pool::audit::Audit::default(), true).await.unwrap();
        assert_eq!((report.entries, report.problems), (u64::from(KEYS), Vec::new()));
        drop(index);
        BLink::drop_index(&member.session, "damaged").await.unwrap();
    });
}

/// Keys that are inserted, changed and removed again and again need no more memory than the first time.
#[test]
fn churn_of_one_set_of_keys_runs_in_bounded_memory() {
    World::memory(1, 2 << 20, Delivery::Immediate).run(async |ctx| {
        let member = ctx.join(&ctx.pool(&PoolOptions::default()).await).await;
        let session = &member.session;
        let index =
            farindex_index::AnyIndex::from(BLink::create(session, "churned", &Config { fanout: 4 }).await.unwrap());
        let mut model = Model::new();
        for round in 0..40u64 {
            for what in [1, 2, 4] {
                for i in 0..300 {
                    step(&index, &mut model, what, &key(i), &bytes(300, round)).await;
                }
            }
            assert_eq!(index.remove(&key(0)).await, Ok(Remove::Absent));
        }
        let (reports, report) = audit(&member, &[("churned", &index)]).await;
        assert_eq!((reports[0].entries, report.lost), (0, 0));
        assert_eq!(reports[0].figure("missing_separators"), 0);
    });
}
