//! The executor: a waiting thread costs no processor time, wakes in time, and never waits for what cannot come.

use farindex_fabric::memory::Delivery;
use farindex_fabric::transport::{Completions, Post};
use farindex_fabric::{
    Capabilities, Chain, Endpoint, Executor, Fabric, FabricError, MemoryFabric, NodeId, OpKind, RemotePtr, Task,
    Traffic, Transport,
};
use rustix::time::{ClockId, clock_gettime};
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

fn endpoint(delivery: Delivery) -> Endpoint {
    let fabric = MemoryFabric::new(1, 4096).expect("memory").with_delivery(delivery);
    fabric.connect(&fabric.new_identity()).expect("a connection")
}

/// Processor time of this thread.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Runs a body that must not go on for ever; returns the message if it panicked.
fn within_seconds(body: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let (send, outcome) = mpsc::channel();
    std::thread::spawn(move || {
        let ended = catch_unwind(AssertUnwindSafe(body)).map_err(|panic| {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
        });
        let _ = send.send(ended);
    });
    outcome.recv_timeout(Duration::from_secs(20)).expect("it goes on for ever")
}

/// Pending once, and woken by another thread after `pause`.
async fn woken_by_another_thread(pause: Duration) {
    let asked = Cell::new(false);
    poll_fn(|cx| {
        if asked.replace(true) {
            return Poll::Ready(());
        }
        let waker: Waker = cx.waker().clone();
        std::thread::spawn(move || {
            std::thread::sleep(pause);
            waker.wake();
        });
        Poll::Pending
    })
    .await;
}

#[test]
fn a_sleep_costs_no_processor_time_and_ends_in_time() {
    let endpoint = endpoint(Delivery::Deferred);
    let executor = Executor::new();
    let (began, before) = (Instant::now(), cpu());
    executor.block_on(&endpoint, endpoint.sleep(Duration::from_millis(300)));
    assert!(began.elapsed() >= Duration::from_millis(300));
    assert!(cpu() - before < Duration::from_millis(30), "{:?} of processor time", cpu() - before);
    // The earliest of several timers counts, and what another one sleeps for does not.
    let task = executor.spawn({
        let endpoint = endpoint.clone();
        async move { endpoint.sleep(Duration::from_secs(600)).await }
    });
    let began = Instant::now();
    executor.block_on(&endpoint, endpoint.sleep(Duration::from_millis(20)));
    assert!((Duration::from_millis(20)..Duration::from_secs(60)).contains(&began.elapsed()));
    drop(task);
}

#[test]
fn waiting_for_another_thread_costs_no_processor_time() {
    let endpoint = endpoint(Delivery::Immediate);
    let executor = Executor::new();
    let before = cpu();
    executor.block_on(&endpoint, woken_by_another_thread(Duration::from_millis(300)));
    // The same in a task: another list of what was woken.
    let task = executor.spawn(woken_by_another_thread(Duration::from_millis(300)));
    executor.block_on(&endpoint, task);
    assert!(cpu() - before < Duration::from_millis(30), "{:?} of processor time", cpu() - before);
}

/// A wake-up that comes just when the thread parks is not lost: two threads hand a turn to each other.
#[test]
fn no_wake_up_is_lost_to_parking() {
    #[derive(Default)]
    struct Turn(std::sync::Mutex<(u64, Option<Waker>)>);
    impl Turn {
        async fn take(&self, of: u64) {
            poll_fn(|cx| {
                let mut turn = self.0.lock().expect("not poisoned");
                if turn.0 % 2 == of {
                    return Poll::Ready(());
                }
                turn.1 = Some(cx.waker().clone());
                Poll::Pending
            })
            .await;
            let waker = {
                let mut turn = self.0.lock().expect("not poisoned");
                turn.0 += 1;
                turn.1.take()
            };
            waker.into_iter().for_each(Waker::wake);
        }
    }
    const ROUNDS: u64 = 3_000;
    let ended = within_seconds(|| {
        let turn = std::sync::Arc::new(Turn::default());
        let play = |of: u64| {
            let turn = std::sync::Arc::clone(&turn);
            move || {
                let (executor, endpoint) = (Executor::new(), endpoint(Delivery::Immediate));
                for round in 0..ROUNDS {
                    // Long enough now and then for the other side to park.
                    if round % 64 == of {
                        std::thread::sleep(Duration::from_micros(200 + round % 7 * 100));
                    }
                    let turn = std::sync::Arc::clone(&turn);
                    match round % 2 {
                        0 => executor.block_on(&endpoint, turn.take(of)),
                        _ => executor.block_on(&endpoint, executor.spawn(async move { turn.take(of).await })),
                    }
                }
            }
        };
        let other = std::thread::spawn(play(1));
        play(0)();
        other.join().expect("no panic");
        assert_eq!(turn.0.lock().expect("not poisoned").0, 2 * ROUNDS);
    });
    assert_eq!(ended, Ok(()));
}

/// What is in flight is polled for: that a thread may park must not cost a verb any latency.
#[test]
fn verbs_in_flight_are_not_parked_on() {
    let endpoint = endpoint(Delivery::Deferred);
    let executor = Executor::new();
    let word = RemotePtr::new(NodeId::new(0), 64);
    let began = Instant::now();
    executor.block_on(&endpoint, async {
        let span = endpoint.span(OpKind::Other);
        for _ in 0..100_000 {
            span.read(word, 8).await.expect("a READ");
        }
    });
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[test]
fn a_nested_block_on_of_the_same_executor_is_refused_at_once() {
    let ended = within_seconds(|| {
        let endpoint = endpoint(Delivery::Deferred);
        let executor = Rc::new(Executor::new());
        let nested = || {
            let (executor, endpoint) = (Rc::clone(&executor), endpoint.clone());
            async move {
                let span = endpoint.span(OpKind::Other);
                executor.block_on(&endpoint, span.read(RemotePtr::new(NodeId::new(0), 64), 8)).map(drop)
            }
        };
        let tasks = [executor.spawn(nested()), executor.spawn(nested())];
        executor.block_on(&endpoint, async {
            for task in tasks {
                task.await.expect("a READ");
            }
        });
    });
    let message = ended.expect_err("it was not refused");
    assert!(message.contains("inside of a coroutine of the same session"), "{message}");
}

#[test]
fn an_executor_is_usable_after_a_refusal_and_inside_of_another_one() {
    let endpoint = endpoint(Delivery::Deferred);
    let executor = Executor::new();
    let pause = || endpoint.sleep(Duration::from_micros(1));
    let refused = catch_unwind(AssertUnwindSafe(|| {
        executor.block_on(&endpoint, async { executor.block_on(&endpoint, pause()) });
    }));
    assert!(refused.is_err());
    executor.block_on(&endpoint, pause());
    executor.block_on(&endpoint, async {
        pause().await;
        Executor::new().block_on(&endpoint, pause());
        pause().await;
    });
}

#[test]
fn awaiting_the_task_of_another_executor_is_refused_at_once() {
    let ended = within_seconds(|| {
        let endpoint = endpoint(Delivery::Deferred);
        let (first, second) = (Executor::new(), Executor::new());
        let task = first.spawn(endpoint.sleep(Duration::from_micros(1)));
        second.block_on(&endpoint, task);
    });
    let message = ended.expect_err("it was not refused");
    assert!(message.contains("belongs to another session"), "{message}");
    // The same where the other executor waits below, and cannot go on.
    let ended = within_seconds(|| {
        let endpoint = endpoint(Delivery::Deferred);
        let (first, second) = (Executor::new(), Executor::new());
        let task = first.spawn(endpoint.sleep(Duration::from_micros(1)));
        first.block_on(&endpoint, async { second.block_on(&endpoint, task) });
    });
    let message = ended.expect_err("it was not refused");
    assert!(message.contains("belongs to another session"), "{message}");
}

#[test]
fn a_task_that_is_finished_can_be_awaited_anywhere() {
    let endpoint = endpoint(Delivery::Immediate);
    let (first, second) = (Executor::new(), Executor::new());
    let task = first.spawn(async { 7 });
    first.run_ready();
    drop(first);
    assert_eq!(second.block_on(&endpoint, task), 7);
}

#[test]
fn awaiting_a_task_whose_session_is_gone_says_so() {
    let waits_for_ever: Rc<RefCell<Option<Waker>>> = Rc::default();
    let message = |task: Task<()>| {
        let endpoint = endpoint(Delivery::Immediate);
        let panic = catch_unwind(AssertUnwindSafe(|| Executor::new().block_on(&endpoint, task))).expect_err("a panic");
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
    };
    let executor = Executor::new();
    let woken = executor.spawn(async {});
    let asleep = executor.spawn({
        let waits_for_ever = Rc::clone(&waits_for_ever);
        poll_fn(move |cx| {
            *waits_for_ever.borrow_mut() = Some(cx.waker().clone());
            Poll::<()>::Pending
        })
    });
    executor.run_ready();
    let queued = executor.spawn(async {});
    drop(woken);
    drop(executor);
    assert!(message(queued).contains("session is gone"));
    assert!(message(asleep).contains("session is gone"));
}

/// A fabric that collects what is posted, and answers it when it was sent.
#[derive(Default)]
struct Collects {
    collected: Vec<(u64, Chain)>,
    sent: Vec<(u64, Chain)>,
    /// How many batches each message held.
    messages: Rc<RefCell<Vec<usize>>>,
}

impl Transport for Collects {
    fn post(&mut self, id: u64, chain: Chain) -> Post {
        self.collected.push((id, chain));
        Post::Pending
    }
    fn flush(&mut self) {
        if !self.collected.is_empty() {
            self.messages.borrow_mut().push(self.collected.len());
            self.sent.append(&mut self.collected);
        }
    }
    fn collects(&self) -> bool {
        !self.collected.is_empty()
    }
    fn progress(&mut self, completions: &mut dyn Completions) -> bool {
        self.flush();
        let any = !self.sent.is_empty();
        self.sent.drain(..).for_each(|(id, chain)| completions.complete(id, chain, Ok(())));
        any
    }
    fn traffic(&self) -> Traffic {
        Traffic { messages: self.messages.borrow().len() as u64, ..Traffic::default() }
    }
    fn now(&self) -> Duration {
        Duration::ZERO
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }
    fn name(&self) -> &'static str {
        "collects"
    }
}

fn collecting() -> (Endpoint, Rc<RefCell<Vec<usize>>>) {
    let messages = Rc::default();
    let transport = Collects { messages: Rc::clone(&messages), ..Collects::default() };
    (Endpoint::new(Box::new(transport)), messages)
}

const WORD: RemotePtr = RemotePtr::new(NodeId::new(0), 64);

async fn faas(endpoint: Endpoint, times: u32) {
    for _ in 0..times {
        endpoint.span(OpKind::Other).faa(WORD, 1).await.expect("an answer");
    }
}

#[test]
fn what_coroutines_post_in_one_round_is_sent_together() {
    let (endpoint, messages) = collecting();
    let executor = Executor::new();
    let run = |tasks: Vec<Task<()>>| {
        executor.block_on(&endpoint, async {
            for task in tasks {
                task.await;
            }
        });
        messages.take()
    };
    assert_eq!(run((0..5).map(|_| executor.spawn(faas(endpoint.clone(), 3))).collect()), [5, 5, 5]);
    // One that is woken by another one of the round posts before the message leaves.
    let (posts, waits) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(None::<Waker>)));
    let (posted, waiting, own) = (Rc::clone(&posts), Rc::clone(&waits), endpoint.clone());
    let woken = executor.spawn(async move {
        poll_fn(|cx| {
            waiting.set(Some(cx.waker().clone()));
            if posted.get() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        faas(own, 1).await;
    });
    let first = executor.spawn({
        let endpoint = endpoint.clone();
        async move {
            let posted = faas(endpoint, 1);
            posts.set(true);
            waits.take().into_iter().for_each(Waker::wake);
            posted.await;
        }
    });
    assert_eq!(run(vec![woken, first]), [2]);
}

#[test]
fn a_coroutine_that_never_waits_does_not_keep_others_verbs_back() {
    let (endpoint, messages) = collecting();
    let executor = Executor::new();
    let rounds = Rc::new(Cell::new(0));
    let counted = Rc::clone(&rounds);
    executor
        .spawn(poll_fn(move |cx| {
            counted.set(counted.get() + 1);
            cx.waker().wake_by_ref();
            Poll::<()>::Pending
        }))
        .detach();
    executor.block_on(&endpoint, faas(endpoint.clone(), 4));
    assert_eq!(messages.borrow()[..], [1; 4]);
    assert_eq!(endpoint.meter().traffic().messages, 4);
    assert!(rounds.get() < 200, "{} rounds for four round trips", rounds.get());
}

#[test]
fn what_nobody_awaits_is_sent_when_the_executor_returns() {
    let (endpoint, messages) = collecting();
    let executor = Executor::new();
    let post = || {
        let span = endpoint.span(OpKind::Other);
        let mut batch = span.batch();
        batch.faa(WORD, 1);
        batch.post_detached();
    };
    executor.block_on(&endpoint, async { post() });
    assert_eq!(messages.take(), [1]);
    // Another runtime polls: the same.
    let mut running = Box::pin(executor.run_until(&endpoint, async { post() }));
    let done = running.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!((done, messages.take()), (Poll::Ready(()), vec![1]));
    let mut waiting = Box::pin(executor.run_until(&endpoint, async {
        post();
        std::future::pending::<()>().await;
    }));
    assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert_eq!(messages.take(), [1]);
    // No executor runs, but one is about to: it has woken its task. When it is dropped, nobody else sends.
    post();
    post();
    assert_eq!(messages.take(), []);
    drop(waiting);
    assert_eq!(messages.take(), [2]);
    // No executor runs.
    post();
    assert_eq!(messages.take(), [1]);
    assert_eq!(endpoint.meter().of(OpKind::Other).detached, 6);
}

#[test]
fn what_tasks_of_another_runtime_post_is_sent_together_while_it_drives() {
    let (endpoint, messages) = collecting();
    let executor = Executor::new();
    let mut driving = Box::pin(executor.run_until(&endpoint, std::future::pending::<()>()));
    let mut tasks: Vec<_> = (0..5).map(|_| Box::pin(faas(endpoint.clone(), 3))).collect();
    let mut context = Context::from_waker(Waker::noop());
    // The first verbs come while nothing drives.
    tasks.retain_mut(|task| task.as_mut().poll(&mut context).is_pending());
    while !tasks.is_empty() {
        assert!(driving.as_mut().poll(&mut context).is_pending());
        tasks.retain_mut(|task| task.as_mut().poll(&mut context).is_pending());
    }
    assert_eq!(messages.take(), [1, 1, 1, 1, 1, 5, 5]);
}

/// With interleaving, the other coroutines run between a READ's posting and its result; a batch that changes something is
/// carried out when it is posted.
#[test]
fn a_read_lets_others_run_first_where_coroutines_interleave() {
    let endpoint = endpoint(Delivery::Immediate);
    let executor = Executor::new();
    let order = Rc::new(RefCell::new(Vec::new()));
    for interleaves in [false, true] {
        endpoint.set_interleaving(interleaves);
        order.borrow_mut().clear();
        let coroutine = |name: u64| {
            let (endpoint, order) = (endpoint.clone(), Rc::clone(&order));
            async move {
                let span = endpoint.span(OpKind::Other);
                span.faa(RemotePtr::new(NodeId::new(0), 8 * name), name).await.expect("an FAA");
                order.borrow_mut().push(name);
                let word = span.read(RemotePtr::new(NodeId::new(0), 8 * name), 8).await.expect("a READ");
                assert_eq!(word.words()[0] % name, 0);
                order.borrow_mut().push(name);
                assert_eq!((span.cost().round_trips, span.cost().abandoned), (2, 0));
            }
        };
        let tasks = [1, 2].map(|name| executor.spawn(coroutine(name)));
        executor.block_on(&endpoint, async {
            for task in tasks {
                task.await;
            }
        });
        let expected = if interleaves { [1, 2, 1, 2] } else { [1, 1, 2, 2] };
        assert_eq!(*order.borrow(), expected);
    }
}

/// A READ that was fetched ahead and whose future is dropped harms nobody.
#[test]
fn a_read_that_was_fetched_ahead_may_be_dropped() {
    let endpoint = endpoint(Delivery::Immediate);
    endpoint.set_interleaving(true);
    let executor = Executor::new();
    executor.block_on(&endpoint, async {
        let span = endpoint.span(OpKind::Other);
        drop(span.read(RemotePtr::new(NodeId::new(0), 0), 64));
        assert_eq!(span.cost().abandoned, 1);
        // Out of bounds is still an error, when it is carried out.
        let beyond = span.read(RemotePtr::new(NodeId::new(0), 1 << 40), 64).await;
        assert!(matches!(beyond, Err(FabricError::OutOfBounds { .. })), "{beyond:?}");
        let none = span.read(RemotePtr::new(NodeId::new(9), 0), 64).await;
        assert!(matches!(none, Err(FabricError::NoSuchNode(_))), "{none:?}");
    });
}
