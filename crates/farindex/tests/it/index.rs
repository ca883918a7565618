//! The blocking methods of an index, and the builders.

use farindex::{
    Entry, Error, IndexConfig, IndexError, KINDS, PointIndex, Pool, PoolError, RemoveIf, Replace, Session, dex, linear,
};
use farindex_fabric::{Fabric, MemoryFabric};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

fn session() -> Session {
    Pool::in_memory(32 << 20).expect("a pool").session().expect("a session")
}

#[test]
fn index_iterates_over_every_entry_of_every_kind_once() {
    let session = session();
    for kind in KINDS {
        let config = IndexConfig::of_kind(kind.name).expect("a kind");
        let index = session.create_index(kind.name, config).expect("an index");
        assert_eq!((index.kind(), index.name(), index.is_ordered()), (kind.name, kind.name, kind.ordered));
        let model: BTreeMap<Vec<u8>, Vec<u8>> =
            (0..500u64).map(|i| (i.to_be_bytes().to_vec(), vec![i as u8; i as usize % 40])).collect();
        for (key, value) in &model {
            index.insert(key, value).expect("an insert");
        }
        let entries = index.iter().map(|entry| entry.map(|Entry { key, value }| (key.to_vec(), value.to_vec())));
        let mut walked: Vec<_> = entries.collect::<Result<_, _>>().expect("a walk");
        if !kind.ordered {
            walked.sort_unstable();
        }
        assert_eq!(walked, model.clone().into_iter().collect::<Vec<_>>(), "{}", kind.name);
        let keys: Vec<_> = model.keys().rev().chain([&b"absent".to_vec()]).cloned().collect();
        let values = index.get_many(&keys).expect("values");
        for (key, value) in keys.iter().zip(values) {
            assert_eq!(value.as_deref(), model.get(key).map(Vec::as_slice));
            assert_eq!(index.contains(key), Ok(model.contains_key(key)));
        }
        assert_eq!(index.contains_many(&keys), Ok(keys.iter().map(|key| model.contains_key(key)).collect()));
        // Until it breaks, which may be in the middle of a batch.
        for stop in [0, 130, 499] {
            let mut seen = Vec::new();
            let broke = index.get_each(&keys, |at, value| {
                seen.push((at, value.map(|value| value.to_vec())));
                if at == stop { ControlFlow::Break(at) } else { ControlFlow::Continue(()) }
            });
            assert_eq!(broke, Ok(Some(stop)));
            assert!(seen.into_iter().eq(keys.iter().map(|key| model.get(key).cloned()).enumerate().take(stop + 1)));
        }
    }
}

/// Alone and among others, looked up and written.
#[test]
fn a_key_beyond_the_limit_is_refused() {
    let session = session();
    for (kind, coalesce) in KINDS.iter().flat_map(|kind| [(kind.name, false), (kind.name, true)]) {
        let name = format!("{kind}-{coalesce}");
        session.create_index(&name, IndexConfig::of_kind(kind).expect("a kind")).expect("an index");
        let index = session.index(&name).coalesce(coalesce).open().expect("an index");
        let long = vec![b'k'; index.limits().key + 1];
        let keys = [b"a", &long[..]];
        for refused in [
            index.get(&long).map(drop),
            index.contains(&long).map(drop),
            index.get_many(keys).map(drop),
            index.contains_many(&keys).map(drop),
            index.insert(&long, "v").map(drop),
            index.upsert(&long, "v").map(drop),
            index.update(&long, "v").map(drop),
            index.remove(&long).map(drop),
            index.replace(&long, "v", "w").map(drop),
            index.remove_if(&long, "v").map(drop),
        ] {
            assert!(matches!(refused, Err(Error::Index(IndexError::KeyTooLong { .. }))), "{name}: {refused:?}");
        }
    }
}

/// After an error nothing more begins, and what has begun ends.
#[test]
fn many_operations_run_together_until_one_fails() {
    let session = session();
    let index = session.index("demo").create().expect("an index");
    let writer = index.async_handle();
    let long = vec![b'k'; index.limits().key + 1];
    let (mut begun, mut ended) = (0, 0);
    let keys: Vec<_> = (0..1000).map(|i| if i == 300 { long.clone() } else { format!("{i}").into_bytes() }).collect();
    let operations = keys.iter().inspect(|_| begun += 1).map(|key| writer.upsert(key, b"v"));
    let failed = session.run_all(operations, |_| ended += 1);
    assert!(matches!(failed, Err(Error::Index(IndexError::KeyTooLong { .. }))), "{failed:?}");
    assert!((301..301 + 128).contains(&begun) && ended == begun - 1, "{begun} begun, {ended} ended");
    let present = index.contains_many(&keys[..begun].iter().filter(|key| **key != long).collect::<Vec<_>>());
    assert_eq!(present, Ok(vec![true; ended]));
    assert_eq!(session.run_all(keys[400..].iter().map(|key| writer.remove(key)), |_| ()), Ok(()));
}

/// Short and long values: in a slot, in a leaf, in a block, in a block that is longer than a slot says.
#[test]
fn every_kind_compares_whole_values() {
    let session = session();
    for kind in KINDS {
        let index =
            session.create_index(kind.name, IndexConfig::of_kind(kind.name).expect("a kind")).expect("an index");
        for (number, len) in [0, 1, 3, 8, 20, 200, 5000].into_iter().enumerate() {
            for key in [b"k".to_vec(), number.to_be_bytes().to_vec(), vec![number as u8; 100]] {
                let (old, new) = (vec![1u8; len], [vec![1u8; len], vec![2]].concat());
                let say = |what: &str| format!("{what}, {}, {len} bytes, key of {}", kind.name, key.len());
                assert_eq!(index.replace(&key, &old, &new), Ok(Replace::Absent), "{}", say("absent"));
                assert_eq!(index.remove_if(&key, &old), Ok(RemoveIf::Absent), "{}", say("absent"));
                index.insert(&key, &old).expect("an insert");
                let mut others = vec![new.clone(), [&old[..], &[0]].concat()];
                if let Some((last, rest)) = old.split_last() {
                    others.extend([rest.to_vec(), [rest, &[!*last]].concat()]);
                }
                for other in others {
                    assert_eq!(index.replace(&key, &other, b"x"), Ok(Replace::Differs), "{}", say("another"));
                    assert_eq!(index.remove_if(&key, &other), Ok(RemoveIf::Differs), "{}", say("another"));
                    assert_eq!(index.get(&key).expect("a value").as_deref(), Some(&old[..]), "{}", say("kept"));
                }
                assert_eq!(index.replace(&key, &old, &new), Ok(Replace::Replaced), "{}", say("equal"));
                assert_eq!(index.get(&key).expect("a value").as_deref(), Some(&new[..]), "{}", say("new"));
                assert_eq!(index.replace(&key, &old, &new), Ok(Replace::Differs), "{}", say("old"));
                assert_eq!(index.replace(&key, &new, &old), Ok(Replace::Replaced), "{}", say("back"));
                assert_eq!(index.remove_if(&key, &new), Ok(RemoveIf::Differs), "{}", say("old"));
                assert_eq!(index.remove_if(&key, &old), Ok(RemoveIf::Removed), "{}", say("equal"));
                assert_eq!(index.get(&key), Ok(None), "{}", say("removed"));
            }
        }
        assert_eq!(index.for_each(|_, _| ControlFlow::Continue(())), Ok(0));
        let long = vec![0; index.limits().value + 1];
        index.insert("k", "v").expect("an insert");
        assert_eq!(index.replace("k", &long, "w"), Ok(Replace::Differs));
        assert!(matches!(index.replace("k", "v", &long), Err(Error::Index(IndexError::ValueTooLong { .. }))));
    }
}

/// Each adds one to the same counter, many times, with and without a lock table. No increment is lost.
#[test]
fn increments_of_many_threads_are_all_there() {
    const EACH: u64 = 300;
    for (kind, coalesce) in KINDS.iter().flat_map(|kind| [(kind.name, false), (kind.name, true)]) {
        let pool = Pool::in_memory(64 << 20).expect("a pool");
        let config = IndexConfig::of_kind(kind).expect("a kind");
        let counters = pool.session().and_then(|session| session.create_index("counters", config)).expect("an index");
        counters.insert("counter1", 0u64.to_be_bytes()).expect("an insert");
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let session = pool.session().expect("a session");
                    let index = session.index("counters").coalesce(coalesce).open().expect("an index");
                    for _ in 0..EACH {
                        loop {
                            let seen = index.get("counter1").expect("a get").expect("it is there");
                            let more = seen.first_chunk().map(|seen| u64::from_be_bytes(*seen) + 1).expect("8 bytes");
                            match index.replace("counter1", &seen, more.to_be_bytes()).expect("a replacement") {
                                Replace::Replaced => break,
                                Replace::Differs => {}
                                Replace::Absent => panic!("nobody removes it"),
                            }
                        }
                    }
                });
            }
        });
        let total = counters.get("counter1").expect("a get").expect("it is there");
        assert_eq!(*total, (3 * EACH).to_be_bytes()[..], "{kind}, coalesced: {coalesce}");
    }
}

#[test]
fn iterator_that_is_dropped_early_leaves_the_session_usable() {
    let session = session();
    let index = session.index("demo").create().expect("an index");
    for i in 0..100u64 {
        index.insert(i.to_le_bytes(), "x").expect("an insert");
    }
    let mut iter = index.iter();
    assert!(iter.next().is_some_and(|entry| entry.is_ok()));
    // Between two entries the session is free.
    assert_eq!(index.contains(7u64.to_le_bytes()), Ok(true));
    drop(iter);
    assert_eq!(index.for_each(|_, _| ControlFlow::Continue(())), Ok(100));
    assert_eq!(index.for_each(|_, _| ControlFlow::Break(())), Ok(1));
}

#[test]
fn unordered_index_refuses_scans() {
    let index = session().index("demo").create().expect("an index");
    let refused = Error::Index(IndexError::NotOrdered { kind: "shard" });
    assert_eq!(index.scan("a".."b", 10), Err(refused.clone()));
    assert_eq!(index.range("a"..).next(), Some(Err(refused)));
}

#[test]
fn index_builder_opens_what_exists_and_refuses_another_kind() {
    let session = session();
    let config = linear::Config { width: 16, ..linear::Config::default() };
    let made = session.index("demo").config(config).open_or_create().expect("created");
    made.insert("key", "value").expect("an insert");
    assert_eq!(made.limits().key, farindex::Limits::BLOCK.key);
    let opened = session.index("demo").config(config).coalesce(true).open_or_create().expect("opened");
    assert_eq!(opened.get("key").expect("a get").as_deref(), Some(&b"value"[..]));
    assert!(opened.cache_bytes() > made.cache_bytes(), "the lock table takes memory");
    let other = session.index("demo").config(IndexConfig::default()).open().map(drop);
    assert!(
        matches!(&other, Err(Error::Pool(PoolError::WrongKind { found, wanted, .. })) if found == "linear" && wanted == "shard")
    );
    let again = session.index("demo").create().map(drop);
    assert!(matches!(again, Err(Error::Pool(PoolError::IndexExists(_)))));
}

#[test]
fn pool_builder_refuses_what_makes_no_pool() {
    let builder = Pool::builder;
    assert_eq!(builder().create("shm:/dev/shm/never").map(drop), Err(Error::SizeMissing));
    let given = builder().node_bytes(1 << 20).create("memory:1MiB").map(drop);
    assert!(matches!(given, Err(Error::SizeGiven { .. })), "{given:?}");
    assert_eq!(Pool::open("memory:1MiB").map(drop), Err(Error::NotStored));
    assert!(matches!(builder().create("rdma:host").map(drop), Err(Error::Url { .. })));
    let tiny = builder().client_slots(1).create("memory:1MiB").map(drop);
    assert!(matches!(tiny, Err(Error::Pool(_))), "{tiny:?}");
}

#[test]
fn a_process_takes_a_range_of_another_one_and_gives_it_back() {
    let fabric: Arc<dyn Fabric> = Arc::new(MemoryFabric::new(1, 32 << 20).expect("memory"));
    let pool = Pool::builder().create_on(Arc::clone(&fabric)).expect("a pool");
    let other = Pool::attach(fabric).expect("the pool");
    let index = pool.session().expect("a session").create_index("demo", dex::Config::default()).expect("an index");
    index.insert("key", "value").expect("an insert");
    let taking = other.session().expect("a session").open_index("demo").expect("the index");
    let owners = |index: &farindex::Index| {
        let partitions = index.partitions().expect("partitions");
        partitions.into_iter().map(|part| (part.low, part.owner.map(|_| part.is_own))).collect::<Vec<_>>()
    };
    assert_eq!(owners(&index), [(vec![], Some(true))]);
    // The heartbeat of the first process answers.
    taking.own("k".."l").expect("the range");
    let divided = [(vec![], Some(false)), (b"k".to_vec(), Some(true)), (b"l".to_vec(), Some(false))];
    assert_eq!(owners(&taking), divided);
    taking.give_up::<&str>(..).expect("given back");
    assert_eq!(owners(&taking), [(vec![], Some(false)), (b"k".to_vec(), None), (b"l".to_vec(), Some(false))]);
    assert_eq!(taking.get("key").expect("a get").as_deref(), Some(&b"value"[..]));
    let hash = pool.session().expect("a session").index("hash").create().expect("an index");
    assert_eq!(hash.own("a".."b"), Err(Error::Index(IndexError::NotPartitioned { kind: "shard" })));
}
