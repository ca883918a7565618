//! What only operations that are not in the public interface can show: a planted panic, and an operation that waits for
//! a signal.

use crate::handle::request::operation;
use crate::{Error, Handle, HandleError, Pool};
use futures_channel::oneshot;
use std::future::Future;
use std::time::Duration;
use tokio::runtime::Runtime;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().expect("a runtime")
}

fn pool() -> Pool {
    let pool = Pool::in_memory(32 << 20).expect("a pool");
    pool.session().and_then(|session| session.index("demo").create()).expect("an index");
    pool
}

/// An operation that waits for a signal, as a task. It has begun when this returns: no later request comes ahead of it.
async fn wait(handle: &Handle) -> (oneshot::Sender<()>, impl Future<Output = Result<(), Error>>) {
    let (signal, received) = oneshot::channel();
    let (begins, begun) = oneshot::channel();
    let handle = handle.clone();
    let waits = operation(async |_| {
        let _ = begins.send(());
        received.await.map_or(Ok(()), Ok)
    });
    let task = tokio::spawn(async move { handle.submit(waits).await });
    begun.await.expect("a worker");
    (signal, async { task.await.expect("no panic") })
}

/// Waits until a condition holds; fails after some seconds.
async fn until(condition: impl Fn() -> bool) {
    for _ in 0..2_000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("it never became true");
}

#[test]
fn a_panic_of_a_worker_fails_waiting_and_later_operations() {
    let (runtime, pool) = (runtime(), pool());
    for threads in [1, 2] {
        let handle = Handle::builder().threads(threads).open(&pool, "demo").expect("a handle");
        let failed: Error = HandleError::WorkerPanicked.into();
        runtime.block_on(async {
            // With one thread, the operation that panics is on the same one.
            let (_signal, waiting) = wait(&handle).await;
            let panicked: Result<(), Error> = handle.submit(operation(async |_| panic!("a planted fault"))).await;
            assert_eq!(panicked, Err(failed.clone()));
            if threads == 1 {
                assert_eq!(waiting.await, Err(failed.clone()));
            }
            until(|| handle.inner.requests.is_closed()).await;
            assert_eq!(handle.get("key").await, Err(failed.clone()));
            assert_eq!(handle.upsert("key", "value").await, Err(failed));
        });
    }
}

#[test]
fn a_full_queue_holds_up_further_operations() {
    let (runtime, pool) = (runtime(), pool());
    let handle = Handle::builder().queue(2).batch(1).open(&pool, "demo").expect("a handle");
    runtime.block_on(async {
        let (signal, first) = wait(&handle).await;
        let tasks: Vec<_> = (0..5u8)
            .map(|i| {
                let handle = handle.clone();
                tokio::spawn(async move { handle.upsert([i], [i]).await })
            })
            .collect();
        until(|| handle.inner.requests.is_full()).await;
        let queued = handle.inner.requests.len();
        let late = tokio::time::timeout(Duration::from_millis(30), handle.get("late")).await;
        assert!(late.is_err() && queued == 2, "{queued} requests in a queue of 2");
        assert!(tasks.iter().all(|task| !task.is_finished()));
        signal.send(()).expect("the first operation waits");
        assert_eq!(first.await, Ok(()));
        for task in tasks {
            task.await.expect("no panic").expect("no error");
        }
        assert_eq!(handle.get_many((0..5u8).map(|i| [i])).await.map(|values| values.len()), Ok(5));
    });
}

#[test]
fn a_request_whose_future_is_gone_is_skipped() {
    let (runtime, pool) = (runtime(), pool());
    let handle = Handle::builder().batch(1).open(&pool, "demo").expect("a handle");
    runtime.block_on(async {
        let (signal, first) = wait(&handle).await;
        for dropped in [true, false] {
            let insert = handle.insert([u8::from(dropped)], "value");
            let mut insert = Box::pin(insert);
            let queued = handle.inner.requests.len();
            let early = std::future::poll_fn(|cx| std::task::Poll::Ready(insert.as_mut().poll(cx).is_ready())).await;
            assert!(!early);
            until(|| handle.inner.requests.len() > queued).await;
            if !dropped {
                signal.send(()).expect("the first operation waits");
                insert.await.expect("no error");
                break;
            }
        }
        assert_eq!(first.await, Ok(()));
        assert_eq!(handle.get_many([[0], [1]]).await, Ok(vec![Some(b"value".to_vec()), None]));
    });
}
