//! Handles: operations of tokio tasks are carried out once, answered always, and leave nothing behind.

use farindex::{Error, Handle, IndexError, Insert, Pool, PoolError, Remove, RemoveIf, Replace, Update, Upsert};
use farindex_fabric::memory::Delivery;
use farindex_fabric::{Fabric, FabricError, MemoryFabric, NodeId, OpKind};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// Fails to compile where the type is not for any thread.
fn for_any_thread<T: Clone + Send + Sync + 'static>(_: &T) {}
fn send<T: Send>(future: T) -> T {
    future
}

fn memory() -> Arc<MemoryFabric> {
    Arc::new(MemoryFabric::new(1, 64 << 20).expect("memory").with_delivery(Delivery::Deferred))
}

/// A pool with an empty index whose verbs do not complete at once, as on a network.
fn pool() -> Pool {
    let pool = Pool::builder().create_on(memory()).expect("a pool");
    pool.session().and_then(|session| session.index("demo").create()).expect("an index");
    pool
}

fn assert_sound(pool: &Pool) -> u64 {
    let report = pool.session().and_then(|session| session.check()).expect("a check");
    assert_eq!(report.problems().collect::<Vec<_>>(), Vec::<String>::new());
    report.indexes[0].1.entries
}

/// Blocks on a future without any runtime.
fn wait_for<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        std::thread::park();
    }
}

#[test]
fn a_handle_and_its_futures_are_for_any_thread_and_any_runtime() {
    let pool = pool();
    let handle = Handle::open(&pool, "demo").expect("a handle");
    for_any_thread(&handle);
    assert_eq!(handle.name(), "demo");
    assert_eq!(wait_for(send(handle.insert("a", "1"))), Ok(Insert::Inserted));
    assert_eq!(wait_for(send(handle.insert("a", "2"))), Ok(Insert::Exists));
    assert_eq!(wait_for(send(handle.get("a"))), Ok(Some(b"1".to_vec())));
    assert_eq!(wait_for(send(handle.update("b", "2"))), Ok(Update::Absent));
    assert_eq!(wait_for(send(handle.upsert_with_outcome("b", "2"))), Ok(Upsert::Inserted));
    assert!(wait_for(send(handle.upsert("b", "3"))).is_ok());
    assert_eq!(wait_for(send(handle.contains("b"))), Ok(true));
    assert_eq!(wait_for(send(handle.contains("c"))), Ok(false));
    let values = wait_for(send(handle.get_many(["a", "c", "b"])));
    assert_eq!(values, Ok(vec![Some(b"1".to_vec()), None, Some(b"3".to_vec())]));
    assert_eq!(wait_for(send(handle.replace("b", "2", "4"))), Ok(Replace::Differs));
    assert_eq!(wait_for(send(handle.replace("b", "3", "4"))), Ok(Replace::Replaced));
    assert_eq!(wait_for(send(handle.replace("c", "", "4"))), Ok(Replace::Absent));
    assert_eq!(wait_for(send(handle.remove_if("b", "3"))), Ok(RemoveIf::Differs));
    assert_eq!(wait_for(send(handle.remove_if("b", "4"))), Ok(RemoveIf::Removed));
    assert_eq!(wait_for(send(handle.remove_if("b", "4"))), Ok(RemoveIf::Absent));
    assert_eq!(wait_for(send(handle.insert("b", "5"))), Ok(Insert::Inserted));
    assert_eq!(wait_for(send(handle.remove("a"))), Ok(Remove::Removed));
    assert_eq!(wait_for(send(handle.remove("a"))), Ok(Remove::Absent));
    // One after the other, in this order.
    let outcomes = wait_for(send(handle.upsert_many([("d", "1"), ("b", "6"), ("d", "2")]))).expect("a worker");
    assert_eq!(outcomes, [Ok(Upsert::Inserted), Ok(Upsert::Updated), Ok(Upsert::Updated)]);
    assert_eq!(wait_for(send(handle.get("d"))), Ok(Some(b"2".to_vec())));
    assert_eq!(wait_for(send(handle.remove("d"))), Ok(Remove::Removed));
    drop(handle);
    assert_eq!(assert_sound(&pool), 1);
}

#[test]
fn tasks_of_a_multi_thread_runtime_read_what_they_have_written() {
    const TASKS: u64 = 64;
    const KEYS: u64 = 40;
    let pool = pool();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    for (threads, queue, batch) in [(1, 1024, 128), (2, 8, 4), (3, 1, 1)] {
        let handle =
            Handle::builder().threads(threads).queue(queue).batch(batch).open(&pool, "demo").expect("a handle");
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let handle = handle.clone();
                runtime.spawn(async move {
                    let keys: Vec<Vec<u8>> = (0..KEYS).map(|i| (task * KEYS + i).to_be_bytes().to_vec()).collect();
                    for (i, key) in keys.iter().enumerate() {
                        handle.upsert(key.clone(), format!("{task} {i} {threads}")).await?;
                        assert_eq!(handle.get(key.clone()).await?, Some(format!("{task} {i} {threads}").into_bytes()));
                    }
                    let values = handle.get_many(keys.iter().cloned()).await?;
                    for (i, value) in values.into_iter().enumerate() {
                        assert_eq!(value, Some(format!("{task} {i} {threads}").into_bytes()));
                    }
                    assert_eq!(handle.remove(&*keys[0]).await?, Remove::Removed);
                    assert!(!handle.contains(&*keys[0]).await?);
                    Ok::<_, Error>(())
                })
            })
            .collect();
        for task in tasks {
            runtime.block_on(task).expect("no panic").expect("no error");
        }
        drop(handle);
        assert_eq!(assert_sound(&pool), TASKS * (KEYS - 1));
    }
}

/// Waits for so many turns of a runtime, or for ever if it is 7.
async fn patience(turns: u64) {
    for _ in 0..turns {
        tokio::task::yield_now().await;
    }
    if turns == 7 {
        std::future::pending().await
    }
}

/// Each operation on a key succeeds in one state only, so what was applied is seen in the number of entries.
#[test]
fn a_dropped_future_takes_effect_once_at_most_and_leaves_the_index_sound() {
    let pool = pool();
    let handle = Handle::builder().queue(4).batch(8).open(&pool, "demo").expect("a handle");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    let outcomes = runtime.block_on(async {
        let tasks: Vec<_> = (0..16u64)
            .map(|task| {
                let handle = handle.clone();
                tokio::spawn(async move {
                    let mut outcomes = BTreeMap::new();
                    for i in 0..200u64 {
                        let key = (task << 32 | i).to_be_bytes();
                        let inserted = tokio::select! {
                            biased;
                            inserted = handle.insert(key, key) => Some(inserted.expect("no error")),
                            () = patience(i % 8) => None,
                        };
                        outcomes.insert(key, inserted);
                    }
                    outcomes
                })
            })
            .collect();
        let mut outcomes = BTreeMap::new();
        for task in tasks {
            outcomes.extend(task.await.expect("no panic"));
        }
        outcomes
    });
    let (mut answered, mut dropped) = (0, 0);
    for (key, inserted) in &outcomes {
        match inserted {
            Some(inserted) => {
                assert_eq!(*inserted, Insert::Inserted, "an operation was applied twice");
                assert_eq!(wait_for(handle.get(*key)), Ok(Some(key.to_vec())));
                answered += 1;
            }
            None => {
                let value = wait_for(handle.get(*key)).expect("no error");
                assert!(value.is_none_or(|value| value == key));
                dropped += 1;
            }
        }
    }
    println!("{answered} answered, {dropped} dropped");
    assert!(answered > 0 && dropped > 0);
    drop(handle);
    assert!(assert_sound(&pool) >= answered);
}

#[test]
fn the_last_clone_to_be_dropped_ends_the_workers() {
    let fabric = memory();
    let pool = Pool::builder().create_on(Arc::clone(&fabric) as Arc<dyn Fabric>).expect("a pool");
    pool.session().and_then(|session| session.index("demo").create()).expect("an index");
    let handle = Handle::builder().threads(3).open(&pool, "demo").expect("a handle");
    let clone = handle.clone();
    drop(pool);
    drop(handle);
    assert_eq!(wait_for(clone.insert("a", "1")), Ok(Insert::Inserted));
    assert!(Arc::strong_count(&fabric) > 1);
    drop(clone);
    // The workers' sessions have the pool, and the pool has the fabric.
    assert_eq!(Arc::strong_count(&fabric), 1);
    // Nothing is left behind either when a handle cannot be opened.
    let pool = Pool::attach(Arc::clone(&fabric) as Arc<dyn Fabric>).expect("the pool");
    let opened = Handle::builder().threads(3).open(&pool, "other").map(drop);
    assert_eq!(opened, Err(Error::Pool(PoolError::NoSuchIndex("other".to_owned()))));
    drop(pool);
    assert_eq!(Arc::strong_count(&fabric), 1);
}

#[test]
fn keys_and_values_beyond_the_limits_are_refused() {
    let pool = pool();
    let handle = Handle::open(&pool, "demo").expect("a handle");
    let limits = handle.limits();
    let (key, value) = (vec![7; limits.key + 1], vec![7; limits.value + 1]);
    let refused = |result: Result<(), Error>| {
        assert!(
            matches!(result, Err(Error::Index(IndexError::KeyTooLong { .. } | IndexError::ValueTooLong { .. }))),
            "{result:?}"
        );
    };
    refused(wait_for(handle.get(key.clone())).map(drop));
    refused(wait_for(handle.get_many([b"a".to_vec(), key.clone()])).map(drop));
    // Each on its own.
    let pairs = [(key.clone(), vec![]), (b"b".to_vec(), b"1".to_vec()), (b"c".to_vec(), value.clone())];
    let [long_key, set, long_value] = &wait_for(handle.upsert_many(pairs)).expect("a worker")[..] else { panic!() };
    assert_eq!(*set, Ok(Upsert::Inserted));
    for outcome in [long_key, long_value] {
        refused(outcome.clone().map(drop));
    }
    refused(wait_for(handle.remove(key)).map(drop));
    refused(wait_for(handle.upsert("a", value)).map(drop));
    assert_eq!(wait_for(handle.get("a")), Ok(None));
}

#[test]
fn every_operation_of_an_evicted_client_is_an_error() {
    let fabric = memory();
    let pool = Pool::builder().create_on(Arc::clone(&fabric) as Arc<dyn Fabric>).expect("a pool");
    let session = pool.session().expect("a session");
    session.index("demo").create().expect("an index");
    let handle = Handle::builder().threads(2).open(&pool, "demo").expect("a handle");
    let identity = *session.raw().client().identity();
    let endpoint = fabric.connect(&fabric.new_identity()).expect("a connection");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    let tasks: Vec<_> = (0..16u64)
        .map(|i| {
            let handle = handle.clone();
            runtime.spawn(async move {
                // All of them end with an error, at some time.
                loop {
                    if let Err(error) = handle.upsert(i.to_be_bytes(), "value").await {
                        return [Err(error), handle.get(i.to_be_bytes()).await, handle.get("other").await];
                    }
                }
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(20));
    let span = endpoint.span(OpKind::Other);
    farindex_fabric::Executor::new().block_on(&endpoint, span.revoke(NodeId::new(0), identity)).expect("revoked");
    for task in tasks {
        for result in runtime.block_on(task).expect("no panic") {
            let evicted =
                matches!(result, Err(Error::Pool(PoolError::LeaseLost) | Error::Fabric(FabricError::Revoked)));
            assert!(evicted, "{result:?}");
        }
    }
}
