//! A client that waits with nothing in flight costs no processor time; its verbs take no longer for that.

use crate::nodes::{have_ucx, serve};
use farindex_fabric::{Executor, Fabric, NodeId, OpKind, RemotePtr};
use farindex_ucx::Poll;
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::future::poll_fn;
use std::time::{Duration, Instant};

/// Processor time of this thread.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn an_idle_client_parks_between_its_verbs() {
    if !have_ucx() {
        return;
    }
    let served = serve(1, 1 << 16, Poll::Adaptive);
    let endpoint = served.fabric.connect(&served.fabric.new_identity()).unwrap();
    let executor = Executor::new();
    let word = RemotePtr::new(NodeId::new(0), 64);
    let add = || executor.block_on(&endpoint, async { endpoint.span(OpKind::Other).faa(word, 1).await });
    assert_eq!(add(), Ok(0));
    let before = cpu();
    executor.block_on(&endpoint, endpoint.sleep(Duration::from_millis(300)));
    assert!(cpu() - before < Duration::from_millis(30), "asleep: {:?} of processor time", cpu() - before);
    // Its connection is as it was.
    assert_eq!(add(), Ok(1));
    let (before, asked) = (cpu(), Cell::new(false));
    executor.block_on(
        &endpoint,
        poll_fn(|cx| {
            if asked.replace(true) {
                return std::task::Poll::Ready(());
            }
            let waker = cx.waker().clone();
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(300));
                waker.wake();
            });
            std::task::Poll::Pending
        }),
    );
    assert!(cpu() - before < Duration::from_millis(30), "waiting: {:?} of processor time", cpu() - before);
    let began = Instant::now();
    assert_eq!(add(), Ok(2));
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}
