//! The table itself: cost, dropped futures, memory.

use super::toy::Toy;
use farindex_fabric::memory::Delivery;
use farindex_fabric::{Endpoint, Executor, Fabric, MemoryFabric, OpKind};
use farindex_index::coalesce::{Coalesced, Coalescer};
use farindex_index::{IndexError, Insert, PointIndex, Update, Upsert};
use farindex_testkit::until_in_flight;
use farindex_testkit::world::join_all;
use std::sync::Arc;
use std::time::Instant;

fn toy(delivery: Delivery) -> (Endpoint, Arc<Coalescer>, Coalesced<Toy>) {
    let fabric = MemoryFabric::new(1, 1 << 16).unwrap().with_delivery(delivery);
    let endpoint = fabric.connect(&fabric.new_identity()).unwrap();
    let table = Arc::new(Coalescer::default());
    (endpoint.clone(), Arc::clone(&table), Coalesced::new(Toy(endpoint), table, 1))
}

/// Followers cost no verb: of a hundred at once, the first goes alone and the others together.
#[test]
fn followers_cost_nothing() {
    let (endpoint, table, index) = toy(Delivery::Deferred);
    Executor::new().block_on(&endpoint, async {
        let wrote = join_all((0..100u32).map(|i| {
            let index = &index;
            async move { index.upsert(b"k", &i.to_le_bytes()).await.unwrap() }
        }));
        let wrote = wrote.await;
        assert_eq!(wrote[0], Upsert::Inserted);
        assert!(wrote[1..].iter().all(|wrote| *wrote == Upsert::Updated));
        let cost = *endpoint.meter().of(OpKind::Upsert);
        assert_eq!((cost.ops, cost.cas, cost.reads, cost.round_trips), (2, 2, 2, 4));
        let got = join_all((0..100).map(|_| index.get(b"k"))).await;
        assert!(got.iter().all(|got| got.as_ref().unwrap().as_deref() == Some(&99u32.to_le_bytes()[..])));
        let cost = *endpoint.meter().of(OpKind::Get);
        assert_eq!((cost.ops, cost.reads, cost.round_trips), (2, 2, 2));
    });
    assert_eq!(table.busy_keys(), 0);
}

/// Many keys are one batch, in which a key that is asked for twice counts once; where another operation is at a key,
/// its next get answers.
#[test]
fn gets_of_many_keys_share_a_batch() {
    let (endpoint, table, index) = toy(Delivery::Deferred);
    Executor::new().block_on(&endpoint, async {
        for key in 0..50u8 {
            index.upsert(&[key], &[key, 1]).await.unwrap();
        }
        let gets = |before: farindex_fabric::OpStats| {
            let now = *endpoint.meter().of(OpKind::Get);
            (now.batches - before.batches, now.reads - before.reads)
        };
        let names: Vec<[u8; 1]> = (0..60).chain(40..45).map(|key| [key]).collect();
        let keys: Vec<&[u8]> = names.iter().map(|key| &key[..]).collect();
        let check = |values: Result<Vec<Option<farindex_index::Value>>, IndexError>| {
            let expected = keys.iter().map(|key| (key[0] < 50).then(|| vec![key[0], 1]));
            let values = values.unwrap();
            assert!(values.iter().map(|value| value.as_deref().map(<[u8]>::to_vec)).eq(expected));
        };
        let before = *endpoint.meter().of(OpKind::Get);
        check(index.get_many(&keys).await);
        assert_eq!(gets(before), (1, 60));
        // Of three at once, the first READs for itself, and the second for the third, key by key.
        let before = *endpoint.meter().of(OpKind::Get);
        join_all((0..3).map(|_| index.get_many(&keys))).await.into_iter().for_each(check);
        assert_eq!(gets(before), (61, 120));
        let long = index.get_many(&[b"a", b"kk", b"b"]).await;
        assert_eq!(long.map(drop), Err(IndexError::KeyTooLong { len: 2, max: 1 }));
    });
    assert_eq!(table.busy_keys(), 0);
}

#[test]
fn what_is_too_long_is_refused_before_it_joins() {
    let (endpoint, table, index) = toy(Delivery::Deferred);
    Executor::new().block_on(&endpoint, async {
        let long = IndexError::ValueTooLong { len: 8, max: 7 };
        let both = join_all([&[1u8; 3][..], &[2; 8], &[3; 2]].map(|value| index.upsert(b"k", value))).await;
        assert_eq!(both, [Ok(Upsert::Inserted), Err(long), Ok(Upsert::Updated)]);
        assert_eq!(index.get(b"kk").await, Err(IndexError::KeyTooLong { len: 2, max: 1 }));
    });
    assert_eq!(table.busy_keys(), 0);
}

/// One index's waiting writes are not another's.
#[test]
fn indexes_do_not_mix() {
    let (endpoint, table, index) = toy(Delivery::Deferred);
    let fabric = MemoryFabric::new(1, 1 << 16).unwrap();
    let elsewhere = fabric.connect(&fabric.new_identity()).unwrap();
    let other = Coalesced::new(Toy(elsewhere), table, 2);
    Executor::new().block_on(&endpoint, async {
        let work = (0..10u8).map(async |i| {
            let of = if i % 2 == 0 { &index } else { &other };
            of.upsert(b"k", &[i]).await.unwrap();
        });
        join_all(work).await;
        assert_eq!(index.get(b"k").await.unwrap().as_deref(), Some(&[8][..]));
        assert_eq!(other.get(b"k").await.unwrap().as_deref(), Some(&[9][..]));
    });
}

/// A future may be dropped in any state: the others complete.
#[test]
fn cancelled_at_every_point() {
    for polls in 0..6 {
        for dropped in 0..6u8 {
            let (endpoint, table, index) = toy(Delivery::Deferred);
            Executor::new().block_on(&endpoint, async {
                let work = (0..6u8).map(async |i| {
                    let patience = if i == dropped { polls } else { u64::MAX };
                    let wrote = until_in_flight(patience, index.upsert(b"k", &[i])).await;
                    let got = until_in_flight(patience, index.get(b"k")).await;
                    let many = until_in_flight(patience, index.get_many(&[b"l", b"k", b"m", b"k"])).await;
                    assert!(many.is_none_or(|many| many.is_ok_and(|many| many.len() == 4)), "{polls} {dropped} {i}");
                    (wrote, got)
                });
                for (i, (wrote, got)) in join_all(work).await.into_iter().enumerate() {
                    let harmless =
                        |error: Option<IndexError>| error.is_none_or(|error| error == IndexError::Interrupted);
                    assert!(harmless(wrote.and_then(Result::err)), "{polls} {dropped} {i}");
                    assert!(got.is_none_or(|got| got.is_ok()), "{polls} {dropped} {i}");
                }
                assert!(index.get(b"k").await.unwrap().is_some());
            });
            assert_eq!(table.busy_keys(), 0);
        }
    }
}

/// A future that is dropped before it was polled again, although it had been elected.
#[test]
fn an_elected_waiter_that_goes_passes_it_on() {
    let (endpoint, table, index) = toy(Delivery::Deferred);
    Executor::new().block_on(&endpoint, async {
        let mut first = Box::pin(index.insert(b"k", b"1"));
        let mut second = Box::pin(index.insert(b"k", b"2"));
        let third = index.insert(b"k", b"3");
        let mut third = Box::pin(third);
        assert!(until_in_flight(0, &mut first).await.is_none());
        assert!(until_in_flight(0, &mut second).await.is_none());
        assert!(until_in_flight(0, &mut third).await.is_none());
        assert_eq!(first.await, Ok(Insert::Inserted));
        drop(second);
        assert_eq!(third.await, Ok(Insert::Exists));
        // The one that runs goes before it has posted: none of its group is hurt.
        assert_eq!(index.update(b"k", b"4").await, Ok(Update::Updated));
    });
    assert_eq!(table.busy_keys(), 0);
}

/// Memory goes with the operations in flight.
#[test]
fn memory_is_bounded() {
    let (endpoint, table, index) = toy(Delivery::Deferred);
    let before = index.cache_bytes();
    Executor::new().block_on(&endpoint, async {
        for round in 0..10u32 {
            join_all((0..=255u8).map(|key| {
                let index = &index;
                async move { index.upsert(&[key], &round.to_le_bytes()).await.unwrap() }
            }))
            .await;
        }
    });
    assert!(table.bytes() < before + 256 * 16 * 256, "{before} {}", table.bytes());
    assert_eq!(table.busy_keys(), 0);
}

/// Prints the cost of an operation that shares nothing. Run with `--ignored --nocapture` in release.
#[test]
#[ignore = "a measurement"]
fn uncontended_cost() {
    let (endpoint, _, index) = toy(Delivery::Immediate);
    const N: u32 = 2_000_000;
    Executor::new().block_on(&endpoint, async {
        index.upsert(b"k", b"v").await.unwrap();
        for _ in 0..3 {
            let start = Instant::now();
            for i in 0..N {
                std::hint::black_box(index.inner().get(&[i as u8]).await.unwrap());
            }
            let bare = start.elapsed() / N;
            let start = Instant::now();
            for i in 0..N {
                std::hint::black_box(index.get(&[i as u8]).await.unwrap());
            }
            let with = start.elapsed() / N;
            println!("get: {bare:?} without the table, {with:?} with it");
        }
    });
}
