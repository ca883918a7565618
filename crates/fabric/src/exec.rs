//! The executor of one worker thread.
//!
//! Invariants: a task is polled on the thread that made the executor, and only when it was woken; between polls the
//! driver is asked for progress: completions on real fabrics, virtual time in a simulator. The same index code runs on
//! both, unchanged. Tasks run in the order in which they were woken, so a run is as deterministic as its driver.

use async_task::Runnable;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// What an executor turns to when nothing can run.
pub trait Driver {
    /// Moves the outside world on a little; returns whether anything happened.
    fn progress(&self) -> bool;
}

/// A spawned coroutine. Await it for its result; dropping it cancels it, `detach` lets it go on alone.
pub type Task<T> = async_task::Task<T>;

#[derive(Default)]
struct Queue(Mutex<VecDeque<Runnable>>);

impl Queue {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Runnable>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Runs the coroutines of one worker thread.
pub struct Executor {
    queue: Arc<Queue>,
    /// What is being run, kept for its allocation.
    running: RefCell<VecDeque<Runnable>>,
    flag: Arc<Flag>,
    waker: Waker,
}

impl Default for Executor {
    fn default() -> Self {
        Self::new()
    }
}

impl Executor {
    /// An executor without tasks.
    pub fn new() -> Self {
        let flag = Arc::new(Flag(AtomicBool::new(true)));
        let waker = Waker::from(Arc::clone(&flag));
        Executor { queue: Arc::default(), running: RefCell::default(), flag, waker }
    }

    /// Starts a coroutine. It first runs inside [`block_on`](Self::block_on) or [`run_ready`](Self::run_ready).
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> Task<T> {
        let queue = Arc::clone(&self.queue);
        let schedule = move |runnable| queue.lock().push_back(runnable);
        let (runnable, task) = async_task::spawn_local(future, schedule);
        runnable.schedule();
        task
    }

    /// Polls every task that has been woken, once each; returns how many.
    pub fn run_ready(&self) -> usize {
        // One lock for all of them. A task that drives this executor itself finds an empty deque here, which does as well.
        let mut running = self.running.take();
        std::mem::swap(&mut *self.queue.lock(), &mut running);
        let ready = running.len();
        while let Some(runnable) = running.pop_front() {
            runnable.run();
        }
        self.running.replace(running);
        ready
    }

    /// Runs until `future` completes, asking `driver` for progress whenever nothing can run.
    pub fn block_on<T>(&self, driver: &dyn Driver, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let mut context = Context::from_waker(&self.waker);
        let mut idle: u32 = 0;
        self.flag.0.store(true, Ordering::Release);
        loop {
            if self.flag.0.swap(false, Ordering::Acquire)
                && let Poll::Ready(value) = future.as_mut().poll(&mut context)
            {
                return value;
            }
            let busy = self.run_ready() > 0 || self.flag.0.load(Ordering::Acquire);
            if driver.progress() || busy {
                idle = 0;
            } else {
                idle = idle.saturating_add(1);
                match idle {
                    0..=64 => std::hint::spin_loop(),
                    _ => std::thread::yield_now(),
                }
            }
        }
    }
}

impl Drop for Executor {
    /// Woken tasks and the queue hold each other: without this, what tasks own (endpoints, say) would live for ever.
    fn drop(&mut self) {
        // Not under the lock: dropping a task may wake another.
        while let Some(runnable) = { self.queue.lock().pop_front() } {
            drop(runnable);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    struct Nothing;
    impl Driver for Nothing {
        fn progress(&self) -> bool {
            false
        }
    }

    #[test]
    fn tasks_run_in_the_order_they_were_woken() {
        let executor = Executor::new();
        let order = Rc::new(RefCell::new(Vec::new()));
        let tasks: Vec<_> = (0..3)
            .map(|i| {
                let order = Rc::clone(&order);
                executor.spawn(async move { order.borrow_mut().push(i) })
            })
            .collect();
        executor.block_on(&Nothing, async {
            for task in tasks {
                task.await;
            }
        });
        assert_eq!(*order.borrow(), [0, 1, 2]);
    }

    #[test]
    fn what_a_task_owns_goes_with_the_executor() {
        let owned = Rc::new(());
        let executor = Executor::new();
        let task = Rc::clone(&owned);
        executor.spawn(async move { drop(task) }).detach();
        drop(executor);
        assert_eq!(Rc::strong_count(&owned), 1);
    }

    #[test]
    fn a_wake_from_another_thread_is_heard() {
        let executor = Executor::new();
        let (tx, rx) = std::sync::mpsc::channel::<Waker>();
        let thread = std::thread::spawn(move || rx.recv().expect("a waker").wake());
        let asked = Cell::new(false);
        executor.block_on(
            &Nothing,
            std::future::poll_fn(|cx| {
                if asked.replace(true) {
                    return Poll::Ready(());
                }
                tx.send(cx.waker().clone()).expect("the thread listens");
                Poll::Pending
            }),
        );
        thread.join().expect("no panic");
    }
}
