//! What a session refuses at once, because it would wait for ever, and what it allows.

use farindex::{IndexConfig, PointIndex, Pool, Session};
use farindex_fabric::MemoryFabric;
use farindex_fabric::memory::Delivery;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// A pool whose verbs do not complete at once, as on a network.
fn pool() -> Pool {
    let fabric = MemoryFabric::new(1, 32 << 20).expect("memory").with_delivery(Delivery::Deferred);
    Pool::builder().create_on(Arc::new(fabric)).expect("a pool")
}

/// Runs a body that must not go on for ever; its panic's message, if it panicked.
fn within_seconds(body: impl FnOnce() + Send + 'static) -> Option<String> {
    let (report, reported) = mpsc::channel();
    std::thread::spawn(move || {
        let panic = catch_unwind(AssertUnwindSafe(body)).err().map(|panic| {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
        });
        let _ = report.send(panic);
    });
    reported.recv_timeout(Duration::from_secs(20)).expect("it goes on for ever")
}

fn filled(session: &Session) -> farindex::Index {
    let index = session.create_index("demo", IndexConfig::default()).expect("an index");
    for i in 0..20u64 {
        index.upsert(i.to_le_bytes(), b"value").expect("an upsert");
    }
    index
}

#[test]
fn blocking_methods_in_two_coroutines_are_refused_at_once() {
    let panic = within_seconds(|| {
        let session = pool().session().expect("a session");
        let index = filled(&session);
        let tasks: Vec<_> = (0..2u64)
            .map(|i| {
                let index = index.clone();
                session.spawn(async move { index.get(i.to_le_bytes()).expect("a get") })
            })
            .collect();
        session.block_on(async {
            for task in tasks {
                assert!(task.await.is_some());
            }
        });
    });
    let message = panic.expect("it was not refused");
    assert!(message.contains("Index::async_handle"), "{message}");
}

#[test]
fn the_task_of_another_session_is_refused_at_once() {
    let panic = within_seconds(|| {
        let pool = pool();
        let (first, second) = (pool.session().expect("a session"), pool.session().expect("a session"));
        let index = filled(&first).async_handle();
        let task = first.spawn(async move { index.get(&1u64.to_le_bytes()).await.map(|found| found.is_some()) });
        assert_eq!(second.block_on(task), Ok(true));
    });
    let message = panic.expect("it was not refused");
    assert!(message.contains("belongs to another session"), "{message}");
}

#[test]
fn the_task_of_a_session_that_is_gone_is_refused_at_once() {
    let panic = within_seconds(|| {
        let pool = pool();
        let (first, second) = (pool.session().expect("a session"), pool.session().expect("a session"));
        let task = first.spawn(async { 7 });
        drop(first);
        second.block_on(task);
    });
    let message = panic.expect("it was not refused");
    assert!(message.contains("session is gone"), "{message}");
}

#[test]
fn the_callback_of_a_walk_may_use_its_session() {
    let panic = within_seconds(|| {
        let session = pool().session().expect("a session");
        let index = filled(&session);
        let (mut seen, mut left) = (0, 0);
        let walked = index.for_each(|key, value| {
            assert_eq!(index.get(key).expect("a get").as_deref(), Some(value));
            index.remove(key).expect("a removal");
            seen += 1;
            if seen == 15 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert_eq!((walked, seen), (Ok(15), 15));
        let walked = index.for_each(|_, _| {
            left += 1;
            ControlFlow::Continue(())
        });
        assert_eq!((walked, left), (Ok(5), 5));
    });
    assert_eq!(panic, None);
}
