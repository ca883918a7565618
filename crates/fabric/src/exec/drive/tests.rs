//! A runtime with the fewest features drives executors here: it polls a task only when the task's own waker was called.

use super::*;
use crate::memory::Delivery;
use crate::transport::{Capabilities, Completions, Post, Transport};
use crate::{Chain, Endpoint, Fabric, FabricError, MemoryFabric, NodeId, OpKind, RemotePtr};
use std::cell::Cell;
use std::pin::Pin;
use std::thread::Thread;

/// Wakes one task of the runtime.
struct Flag {
    woken: AtomicBool,
    thread: Thread,
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}

type LocalTask<'a> = (Arc<Flag>, Option<Pin<Box<dyn Future<Output = ()> + 'a>>>);

/// Runs tasks until one of them has completed; fails if that takes longer than 20 seconds.
struct Runtime<'a> {
    tasks: Vec<LocalTask<'a>>,
    /// Polls, by task.
    polls: Vec<u32>,
}

impl<'a> Runtime<'a> {
    fn new() -> Self {
        Runtime { tasks: Vec::new(), polls: Vec::new() }
    }
    fn spawn(&mut self, future: impl Future<Output = ()> + 'a) {
        let flag = Arc::new(Flag { woken: AtomicBool::new(true), thread: std::thread::current() });
        self.tasks.push((flag, Some(Box::pin(future))));
        self.polls.push(0);
    }
    fn run(&mut self, until: usize) {
        let began = Instant::now();
        loop {
            let mut any = false;
            for ((flag, task), polls) in self.tasks.iter_mut().zip(&mut self.polls) {
                let Some(future) = task.as_mut().filter(|_| flag.woken.swap(false, Ordering::SeqCst)) else { continue };
                any = true;
                *polls += 1;
                if future.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(flag)))).is_ready() {
                    *task = None;
                }
            }
            if self.tasks[until].1.is_none() {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(20), "a task was never woken");
            if !any {
                std::thread::park_timeout(Duration::from_secs(1));
            }
        }
    }
}

fn deferred() -> Endpoint {
    let fabric = MemoryFabric::new(1, 4096).expect("memory").with_delivery(Delivery::Deferred);
    fabric.connect(&fabric.new_identity()).expect("a connection")
}

fn word() -> RemotePtr {
    RemotePtr::new(NodeId::new(0), 64)
}

async fn add(endpoint: &Endpoint, count: u64) {
    for i in 0..count {
        assert_eq!(endpoint.span(OpKind::Other).faa(word(), 1).await, Ok(i));
    }
}

/// Never answers.
struct Silent(Instant);

impl Transport for Silent {
    fn post(&mut self, _: u64, _: Chain) -> Post {
        Post::Pending
    }
    fn progress(&mut self, _: &mut dyn Completions) -> bool {
        false
    }
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }
    fn name(&self) -> &'static str {
        "silent"
    }
}

#[test]
fn run_until_carries_out_the_verbs_of_its_future_and_of_spawned_tasks() {
    let (executor, endpoint) = (Executor::new(), deferred());
    let mut runtime = Runtime::new();
    runtime.spawn(executor.run_until(&endpoint, async {
        let task = executor.spawn({
            let endpoint = endpoint.clone();
            async move { add(&endpoint, 1000).await }
        });
        task.await;
        assert_eq!(endpoint.span(OpKind::Other).read(word(), 8).await.map(|buf| buf.words()[0]), Ok(1000));
    }));
    runtime.run(0);
}

#[test]
fn a_driver_completes_the_verbs_of_other_tasks_of_its_runtime() {
    let (executor, endpoint) = (Executor::new(), deferred());
    let mut runtime = Runtime::new();
    runtime.spawn(async {
        add(&endpoint, 10).await;
        // The driver has nothing to do by the end of this.
        endpoint.sleep(Duration::from_millis(30)).await;
        assert_eq!(endpoint.span(OpKind::Other).faa(word(), 1).await, Ok(10));
    });
    runtime.spawn(executor.run_until(&endpoint, std::future::pending()));
    runtime.run(0);
    assert!(runtime.polls[0] < 20, "{} polls of a task that waited 12 times", runtime.polls[0]);
}

#[test]
fn a_task_is_woken_by_another_thread_while_its_driver_waits() {
    let (executor, endpoint) = (Executor::new(), deferred());
    let mut runtime = Runtime::new();
    let (wakers, received) = std::sync::mpsc::channel::<Waker>();
    let thread = std::thread::spawn(move || {
        for waker in received {
            std::thread::sleep(Duration::from_millis(2));
            waker.wake();
        }
    });
    let task = executor.spawn(async move {
        for _ in 0..50 {
            let mut asked = false;
            poll_fn(|cx| {
                if std::mem::replace(&mut asked, true) {
                    return Poll::Ready(());
                }
                wakers.send(cx.waker().clone()).expect("the thread receives");
                Poll::Pending
            })
            .await;
        }
    });
    runtime.spawn(executor.run_until(&endpoint, task));
    runtime.run(0);
    thread.join().expect("no panic");
    assert!(runtime.polls[0] < 500, "{} polls for 50 wake-ups", runtime.polls[0]);
}

#[test]
fn a_task_that_another_future_spawns_is_run_by_the_driver_that_waits() {
    let (executor, endpoint) = (Executor::new(), deferred());
    let mut runtime = Runtime::new();
    runtime.spawn(executor.run_until(&endpoint, std::future::pending()));
    runtime.spawn(executor.run_until(&endpoint, async {
        // The first one has had its turn: it drives, and has nothing to do.
        executor.spawn(async {}).await;
    }));
    runtime.run(1);
}

#[test]
fn a_deadline_ends_a_verb_without_an_answer_and_the_driver_backs_off() {
    let (executor, endpoint) = (Executor::new(), Endpoint::new(Box::new(Silent(Instant::now()))));
    endpoint.set_deadline(Duration::from_millis(300));
    let mut runtime = Runtime::new();
    let began = Instant::now();
    runtime.spawn(async {
        let result = endpoint.span(OpKind::Other).faa(word(), 1).await;
        assert!(matches!(result, Err(FabricError::Deadline { .. })), "{result:?}");
    });
    runtime.spawn(executor.run_until(&endpoint, std::future::pending()));
    runtime.run(0);
    assert!((Duration::from_millis(300)..Duration::from_secs(5)).contains(&began.elapsed()), "{:?}", began.elapsed());
    // Thousands at most within the first millisecond, and some hundred until the deadline.
    assert!(runtime.polls[1] < 10_000, "{} polls", runtime.polls[1]);
}

#[test]
fn a_driver_with_nothing_in_flight_is_not_polled() {
    let (executor, endpoint) = (Executor::new(), deferred());
    let mut runtime = Runtime::new();
    runtime.spawn(async {
        add(&endpoint, 1).await;
        endpoint.sleep(Duration::from_millis(300)).await;
    });
    runtime.spawn(executor.run_until(&endpoint, std::future::pending()));
    runtime.run(0);
    // A few around the verb, and those within the last 120 microseconds of the sleep.
    assert!(runtime.polls[1] < 5_000, "{} polls", runtime.polls[1]);
}

#[test]
fn another_future_drives_when_the_driver_is_dropped() {
    let (executor, endpoint) = (Executor::new(), deferred());
    let stop = Cell::new(false);
    // Is polled first, so it drives. It is dropped as soon as `stop` is set.
    let mut driver = Some(Box::pin(executor.run_until(&endpoint, std::future::pending::<()>())));
    let mut runtime = Runtime::new();
    runtime.spawn(poll_fn(|cx| {
        if stop.get() {
            driver = None;
        }
        driver.as_mut().map_or(Poll::Ready(()), |driver| driver.as_mut().poll(cx))
    }));
    runtime.spawn(executor.run_until(&endpoint, async {
        add(&endpoint, 5).await;
        stop.set(true);
        for i in 5..10 {
            assert_eq!(endpoint.span(OpKind::Other).faa(word(), 1).await, Ok(i));
        }
        endpoint.sleep(Duration::from_millis(5)).await;
    }));
    runtime.run(1);
    assert!(runtime.tasks[0].1.is_none(), "the first driver is still there");
}

#[test]
fn run_until_inside_of_block_on_leaves_the_driving_to_block_on() {
    let (executor, endpoint) = (Executor::new(), deferred());
    executor.block_on(&endpoint, executor.run_until(&endpoint, add(&endpoint, 10)));
}
