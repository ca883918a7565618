//! The shape of the tree: settings, memory that comes back, damage.

use super::{Tree, with_tree};
use farindex_fabric::memory::Delivery;
use farindex_fabric::{NodeId, OpKind, RemotePtr};
use farindex_index::audit::Damage;
use farindex_index::{AnyIndex, IndexAudit, IndexError, Insert, Lifecycle, OrderedIndex, PointIndex, Remove, Upsert};
use farindex_pool::{PoolError, PoolOptions, marks};
use farindex_testkit::suite::{Model, audit, compare, step};
use farindex_testkit::world::{Member, World, bytes};
use std::future::{Future, poll_fn};
use std::ops::Bound;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

fn key(i: u32) -> Vec<u8> {
    format!("key {i:04}").into_bytes()
}

async fn report(member: &Member, index: &AnyIndex) -> IndexAudit {
    let (mut reports, report) = audit(member, &[("tree", index)]).await;
    assert_eq!(report.lost, 0);
    let report = reports.remove(0);
    assert_eq!((report.figure("missing_separators"), report.figure("dead_nodes")), (0, 0), "{report:?}");
    report
}

/// Nodes that split soonest, the largest, and those between.
pub(crate) fn trees_of_all_spans_hold_their_entries<T: Tree>() {
    for (leaf_span, inner_span) in T::SPANS {
        with_tree::<T>(32 << 20, T::of_spans(*leaf_span, *inner_span), async |member, index| {
            let mut model = Model::new();
            // Inline entries and blocks, in an order that splits everywhere.
            for what in [1, 2, 4, 1] {
                for i in 0..2000u32 {
                    let i = i.wrapping_mul(7919) % 2000;
                    if what != 4 || i % 3 > 0 {
                        step(index, &mut model, what, &key(i), &bytes(if i % 2 == 0 { 8 } else { 9 }, what)).await;
                    }
                }
                compare(index, &model).await;
            }
            let report = report(member, index).await;
            assert_eq!(report.entries, 2000);
        });
    }
}

pub(crate) fn settings_outside_their_limits_are_refused<T: Tree>() {
    World::memory(1, 1 << 20, Delivery::Immediate).run(async |ctx| {
        let member = ctx.join(&ctx.pool(&PoolOptions::default()).await).await;
        for config in T::bad() {
            let created = T::create(&member.session, "tree", &config).await.map(drop);
            assert!(matches!(created, Err(IndexError::BadConfig(_))), "{config:?}: {created:?}");
        }
    });
}

/// Nine of ten keys are removed, in any order: merges keep the others in few leaves, and are not tried much more often than
/// they succeed.
pub(crate) fn removals_merge_leaves_and_try_few_merges_in_vain<T: Tree>() {
    with_tree::<T>(32 << 20, T::default_config(), async |member, index| {
        const KEYS: u64 = 60_000;
        // An order in which no neighbours follow each other.
        let key = |i: u64| (i * 36_779 % KEYS).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
        for i in 0..KEYS {
            assert_eq!(index.insert(&key(i), b"8 bytes.").await, Ok(Insert::Inserted));
        }
        let before = report(member, index).await.figure("nodes");
        marks::take();
        let meter = member.session.endpoint().meter();
        for i in 0..KEYS * 9 / 10 {
            assert_eq!(index.remove(&key(i)).await, Ok(Remove::Removed));
        }
        let more = *(member.session.endpoint().meter() - meter).of(OpKind::Maintenance);
        let merges = marks::take()["tree: nodes were merged"];
        let after = report(member, index).await;
        let each = after.index_bytes as f64 / after.entries as f64;
        println!(
            "{before} nodes, {} afterwards, {each:.1} bytes for each of {} keys",
            after.figure("nodes"),
            after.entries
        );
        println!(
            "{merges} merges; {:.3} round trips for each removal",
            more.total.round_trips as f64 / (KEYS as f64 * 0.9)
        );
        assert!(after.figure("nodes") * 5 < before && merges > 0);
        // A merge with its separator takes 11, and as many as two others are tried in vain.
        assert!(more.total.round_trips < merges * (11 + 2 * 5), "{} round trips", more.total.round_trips);
    });
}

/// Keys that are inserted, changed and removed again and again need no more memory than the first time: merges give the
/// nodes back.
fn churn<T: Tree>(value_len: usize, leaf_span: usize, inner_span: usize) {
    marks::take();
    with_tree::<T>(2 << 20, T::of_spans(leaf_span, inner_span), async move |member, index| {
        let mut model = Model::new();
        let (mut full, mut empty) = (Vec::new(), Vec::new());
        for round in 0..20u64 {
            for what in [1, 2] {
                for i in 0..1000 {
                    step(index, &mut model, what, &key(i), &bytes(value_len, round)).await;
                }
            }
            full.push(report(member, index).await);
            // Upwards, downwards, and from all sides.
            for i in 0..1000 {
                let i = [i, 999 - i, i * 7919 % 1000][round as usize % 3];
                step(index, &mut model, 4, &key(i), b"").await;
            }
            assert_eq!(index.remove(&key(0)).await, Ok(Remove::Absent));
            empty.push(report(member, index).await);
        }
        let nodes = |reports: &[IndexAudit]| reports.iter().map(|r| r.figure("nodes")).collect::<Vec<_>>();
        println!(
            "spans {leaf_span}/{inner_span}, values of {value_len}: nodes {:?}, then {:?}",
            nodes(&full),
            nodes(&empty)
        );
        assert!(full.iter().all(|report| report.entries == 1000) && empty.iter().all(|report| report.entries == 0));
        assert!(nodes(&full).iter().all(|nodes| *nodes > 1000 / leaf_span as u64));
        assert!(nodes(&empty).iter().all(|nodes| *nodes <= 40), "{:?}", nodes(&empty));
    });
    // A root of five or eight slots is not lowered: when its only child is left, that child has too many children.
    let shrunk = marks::take().get("tree: root has shrunk").copied().unwrap_or_default();
    println!("the root has shrunk {shrunk} times");
    assert!(inner_span != 6 || shrunk > 0);
}

/// A pool without room refuses inserts, and everything else goes on. A separator that there was no room for is added by
/// a later writer.
pub(crate) fn a_full_pool_refuses_inserts_and_keeps_its_entries<T: Tree>() {
    marks::take();
    for more in 0..6 {
        with_tree::<T>(1 << 20, T::of_spans(T::LEAST + more, 5), async |member, index| {
            let mut model = Model::new();
            for round in 0..2 {
                let mut refused = 0;
                for i in 0..40_000u32 {
                    let key = (i.wrapping_mul(7919) % 40_000).to_be_bytes();
                    let key = [&[b'k'; 4], &key[..]].concat();
                    match index.insert(&key, b"8 bytes!").await {
                        Ok(Insert::Inserted) => drop(model.insert(key, b"8 bytes!".to_vec())),
                        Ok(Insert::Exists) => panic!("{} is not there yet", key.escape_ascii()),
                        Err(IndexError::Pool(PoolError::Full { .. })) => refused += 1,
                        Err(error) => panic!("{error}"),
                    }
                    if refused == 20 {
                        break;
                    }
                }
                assert!(
                    refused == 20 && model.len() > 1000,
                    "round {round}: {refused} refused, {} entries",
                    model.len()
                );
                let scanned = index.scan((Bound::Unbounded, Bound::Unbounded), usize::MAX).await.unwrap();
                assert!(scanned.iter().map(|entry| &*entry.key).eq(model.keys().map(Vec::as_slice)));
                for key in std::mem::take(&mut model).keys() {
                    assert_eq!(index.remove(key).await, Ok(Remove::Removed));
                }
            }
            member.session.drain().await.unwrap();
        });
    }
    let left_out = marks::take().get("tree: separator left out").copied().unwrap_or_default();
    println!("{left_out} separators left out");
    assert!(left_out > 0);
}

pub(crate) fn churn_of_inline_entries_runs_in_bounded_memory<T: Tree>() {
    churn::<T>(8, T::LEAST, 5);
    churn::<T>(8, T::LEAST, 8);
    churn::<T>(8, 16, 6);
}

pub(crate) fn churn_of_blocks_runs_in_bounded_memory<T: Tree>() {
    churn::<T>(40, T::LEAST, 5);
    churn::<T>(40, 16, 6);
}

/// A walk reports damage and goes on behind it; operations on damaged nodes fail, and others do not.
fn walk_goes_on_behind_damage<T: Tree>(value: &'static [u8]) {
    const KEYS: u32 = 200;
    const LEN: u64 = 2 << 20;
    // In virtual time: an unsound node counts as damaged after more than a lease.
    World::calm(1, LEN).run(async move |ctx| {
        let options = PoolOptions { lease: Duration::from_secs(1), ..PoolOptions::default() };
        let member = ctx.join(&ctx.pool(&options).await).await;
        let config = T::of_spans(8, 8);
        let index = T::create(&member.session, "damaged", &config).await.unwrap();
        for i in 0..KEYS {
            assert_eq!(index.upsert(&key(i), value).await, Ok(Upsert::Inserted));
        }
        let span = member.span();
        let mut all = Vec::new();
        for at in (0..LEN).step_by(1 << 16) {
            all.extend_from_slice(span.read(RemotePtr::new(NodeId::new(0), at), 1 << 16).await.unwrap().bytes());
        }
        // Blocks of entries begin with a header for a key of 8 bytes and the value.
        let is_block = |line: &[u8]| {
            let lengths = u64::from_le_bytes(line[..8].try_into().unwrap()) & ((1 << 42) - 1);
            lengths == 8 | (value.len() as u64) << 17 && line[16..].starts_with(b"key ")
        };
        let holds_keys = |line: &[u8]| line.windows(4).any(|bytes| bytes == b"key ");
        let (mut damaged, mut unreadable) = (0, 0);
        for (i, line) in all.chunks(64).enumerate().filter(|(_, line)| holds_keys(line)) {
            if i % 5 != 0 {
                continue;
            }
            let at = RemotePtr::new(NodeId::new(0), i as u64 * 64 + 24);
            let word = u64::from_le_bytes(line[24..32].try_into().unwrap());
            span.write(at, member.session.endpoint().buf_from_words(&[!word])).await.unwrap();
            index.forget();
            let (mut last, mut seen, mut wrong) = (None, 0, Vec::new());
            let each = async |key: &[u8], found: farindex_index::Value| {
                assert!(last.as_deref().is_none_or(|last: &[u8]| last < key) && *found == *value);
                last = Some(key.to_vec());
                seen += 1;
                Ok(())
            };
            let mut report = |damage: Damage| {
                wrong.push(damage.what);
                Ok(())
            };
            assert_eq!(index.visit(each, &mut report).await, Ok(seen));
            // Retired blocks and slots that are not used belong to no entry.
            assert_eq!(wrong.is_empty(), seen == u64::from(KEYS), "{seen} keys, {wrong:?}");
            if !wrong.is_empty() {
                damaged += 1;
                unreadable += u64::from(KEYS) - seen;
                assert!(!is_block(line) || seen == u64::from(KEYS) - 1, "{seen} keys, {wrong:?}");
                index.forget();
                let scanned = index.scan((Bound::Unbounded, Bound::Unbounded), usize::MAX).await;
                assert!(matches!(scanned, Err(IndexError::Pool(PoolError::Corrupt { .. }))), "{scanned:?}");
            }
            span.write(at, member.session.endpoint().buf_from_words(&[word])).await.unwrap();
        }
        println!("{damaged} places damaged, {unreadable} keys unreadable");
        assert!(damaged > 5 && unreadable > damaged, "{damaged} places, {unreadable} keys");
        for i in 0..KEYS {
            assert_eq!(index.get(&key(i)).await.unwrap().as_deref(), Some(value));
        }
        let report = index.audit(&mut farindex_pool::audit::Audit::default(), true).await.unwrap();
        assert_eq!((report.entries, report.problems), (u64::from(KEYS), Vec::new()));
        drop(index);
        T::drop_index(&member.session, "damaged").await.unwrap();
    });
}

pub(crate) fn a_walk_goes_on_behind_damaged_leaves<T: Tree>() {
    walk_goes_on_behind_damage::<T>(b"8 bytes!");
}

pub(crate) fn a_walk_goes_on_behind_damaged_blocks<T: Tree>() {
    walk_goes_on_behind_damage::<T>(b"value");
}

/// A walk over the whole tree stops above the leaves, and all keys but a few are removed meanwhile: the level where it goes on is
/// there no more (docs/bugs/217).
pub(crate) fn walks_end_where_the_root_has_shrunk_meanwhile<T: Tree>() {
    World::calm(1, 32 << 20).run(async |ctx| {
        let member = ctx.join(&ctx.pool(&PoolOptions::default()).await).await;
        let index = AnyIndex::create(&member.session, "tree", &T::any(T::smallest())).await.expect("an index");
        let other = AnyIndex::open(&member.session, "tree").await.expect("the index");
        for polls in 1..12 {
            for i in 0..200 {
                assert!(index.upsert(&key(i), b"value").await.is_ok());
            }
            let mut walk = pin!(other.recover());
            for _ in 0..polls {
                assert!(poll_fn(|cx| Poll::Ready(walk.as_mut().poll(cx))).await.is_pending());
                member.endpoint.sleep(Duration::from_micros(50)).await;
            }
            for i in 5..200 {
                assert_eq!(index.remove(&key(i)).await, Ok(Remove::Removed));
            }
            let mut limit = pin!(member.endpoint.sleep(Duration::from_secs(1)));
            let ended = poll_fn(|cx| match walk.as_mut().poll(cx) {
                Poll::Pending => limit.as_mut().poll(cx).map(|()| None),
                ended => ended.map(Some),
            });
            assert!(matches!(ended.await, Some(Ok(_))), "a walk does not end that has stopped after {polls} polls");
            for i in 0..5 {
                assert!(other.get(&key(i)).await.is_ok_and(|value| value.is_some()));
            }
        }
    });
}
