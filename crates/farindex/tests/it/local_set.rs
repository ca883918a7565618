//! A session in the thread of a tokio runtime.

use farindex::{Index, PointIndex, Pool, Session};
use farindex_fabric::MemoryFabric;
use farindex_fabric::memory::Delivery;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

/// An index whose verbs do not complete at once, as on a network.
fn opened() -> (Session, Index) {
    let fabric = MemoryFabric::new(1, 64 << 20).expect("memory").with_delivery(Delivery::Deferred);
    let pool = Pool::builder().create_on(Arc::new(fabric)).expect("a pool");
    let session = pool.session().expect("a session");
    let index = session.index("demo").create().expect("an index");
    (session, index)
}

fn run_local<T>(body: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    LocalSet::new()
        .block_on(&runtime, async { timeout(Duration::from_secs(20), body).await.expect("it goes on for ever") })
}

#[test]
fn operations_complete_in_local_tasks_while_the_session_is_driven() {
    let (session, index) = opened();
    let index = index.async_handle();
    run_local(async {
        let driver = spawn_local(session.drive());
        let tasks: Vec<_> = (0..64u64)
            .map(|task| {
                let (index, session) = (index.clone(), session.clone());
                spawn_local(async move {
                    for i in 0..50u64 {
                        let key = (task * 50 + i).to_le_bytes();
                        index.upsert(&key, &key).await.expect("an upsert");
                        if i % 10 == 0 {
                            sleep(Duration::from_millis(1)).await;
                        }
                        // A coroutine of the session, awaited by a task of the runtime.
                        let index = index.clone();
                        let found = session.spawn(async move { index.get(&key).await }).await.expect("a get");
                        assert_eq!(found.as_deref(), Some(&key[..]));
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no panic");
        }
        driver.abort();
    });
    // The session works as before without the runtime.
    assert_eq!(
        session.block_on(index.get(&7u64.to_le_bytes())).expect("a get").as_deref(),
        Some(&7u64.to_le_bytes()[..])
    );
}

/// What the documentation says of futures that nothing drives.
#[test]
fn an_undriven_operation_waits_until_the_session_is_driven() {
    let (session, index) = opened();
    let index = index.async_handle();
    run_local(async {
        let mut get = std::pin::pin!(index.get(b"key"));
        assert!(timeout(Duration::from_millis(50), get.as_mut()).await.is_err(), "something drives it");
        let driver = spawn_local(session.drive());
        assert_eq!(get.await, Ok(None));
        driver.abort();
    });
}

#[test]
fn run_until_needs_no_local_set_and_lookups_can_be_dropped() {
    let (session, index) = opened();
    let index = index.async_handle();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        for i in 0..300u64 {
            let key = i.to_le_bytes();
            session.run_until(index.upsert(&key, &key)).await.expect("an upsert");
            // Nothing drives the first lookup, and it is dropped with a verb in flight.
            tokio::select! {
                biased;
                found = index.get(&key) => panic!("{found:?} without a driver"),
                () = std::future::ready(()) => {}
            }
            assert_eq!(session.run_until(index.get(&key)).await.expect("a get").as_deref(), Some(&key[..]));
        }
        // Several at once: one of them drives, and the turn passes on when it ends.
        let (first, second) = (1u64.to_le_bytes(), 2u64.to_le_bytes());
        let (first, second) = tokio::join!(
            session.run_until(index.get(&first)),
            session.run_until(async {
                let found = index.get(&second).await;
                sleep(Duration::from_millis(5)).await;
                index.get(&second).await.and(found)
            })
        );
        assert!(first.expect("a get").is_some() && second.expect("a get").is_some());
    });
    drop(index);
    let report = session.check().expect("a check");
    assert_eq!(report.problems().collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn a_blocking_method_inside_of_run_until_is_refused_at_once() {
    let (session, index) = opened();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let blocked =
        std::panic::AssertUnwindSafe(|| runtime.block_on(session.run_until(async { index.get("key").is_ok() })));
    assert!(std::panic::catch_unwind(blocked).is_err(), "it was not refused");
    assert_eq!(runtime.block_on(session.run_until(index.async_handle().get(b"key"))), Ok(None));
}

#[test]
fn a_driven_session_costs_no_processor_time_while_idle() {
    #[cfg(target_os = "linux")]
    fn cpu() -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }
    #[cfg(not(target_os = "linux"))]
    fn cpu() -> Duration {
        Duration::ZERO
    }
    let (session, index) = opened();
    let index = index.async_handle();
    run_local(async {
        let driver = spawn_local(session.drive());
        assert_eq!(index.get(b"key").await, Ok(None));
        let before = cpu();
        sleep(Duration::from_millis(300)).await;
        let spent = cpu() - before;
        assert!(spent < Duration::from_millis(30), "{spent:?} of processor time");
        assert_eq!(index.get(b"key").await, Ok(None));
        driver.abort();
    });
}
