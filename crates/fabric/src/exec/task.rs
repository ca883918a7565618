//! The handle of a spawned coroutine.
//!
//! Invariant: a future that awaits a task is driven together with it, or panics. A task only runs while its executor
//! does; an executor that blocks on the task of another one of its thread would wait for ever.

use super::Shared;
use async_task::FallibleTask;
use std::cell::Cell;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::ptr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

thread_local! {
    /// The executor whose futures this thread is polling; of several inside each other, the innermost one.
    static DRIVEN: Cell<*const Shared> = const { Cell::new(ptr::null()) };
}

/// Does an executor poll futures on this thread now? Then it asks its driver to [`flush`](super::Driver::flush) soon.
pub(crate) fn is_running() -> bool {
    !DRIVEN.get().is_null()
}

/// Makes an executor the one that drives, until this is dropped.
pub(super) struct Driven(*const Shared);

impl Shared {
    pub(super) fn driven(self: &Arc<Self>) -> Driven {
        Driven(DRIVEN.replace(Arc::as_ptr(self)))
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        DRIVEN.set(self.0);
    }
}

/// A spawned coroutine. Await it for its result; dropping it cancels it, [`detach`](Self::detach) lets it go on alone.
///
/// It is awaited by coroutines of its own executor (of its own session), and stays on their thread.
///
/// # Panics
///
/// Awaiting it panics if it is not finished and another executor awaits it, which does not drive it; if its executor
/// (its session) is gone; and if it has panicked itself.
#[must_use = "dropping a task cancels it"]
pub struct Task<T> {
    task: FallibleTask<T, Arc<Shared>>,
    home: Arc<Shared>,
    /// Its executor stays on its thread, and so do futures that wait for it.
    _here: PhantomData<Rc<()>>,
}

impl<T> Task<T> {
    pub(super) fn new(task: async_task::Task<T, Arc<Shared>>, home: Arc<Shared>) -> Self {
        Task { task: task.fallible(), home, _here: PhantomData }
    }
    /// Lets it go on alone.
    pub fn detach(self) {
        self.task.detach();
    }
    /// Has it completed, or been cancelled?
    pub fn is_finished(&self) -> bool {
        self.task.is_finished()
    }
}

impl<T> Future for Task<T> {
    type Output = T;

    #[track_caller]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match Pin::new(&mut self.task).poll(cx) {
            Poll::Ready(Some(result)) => Poll::Ready(result),
            Poll::Ready(None) => {
                panic!("this task has no result: its session is gone, it has panicked, or its result was taken before")
            }
            Poll::Pending => {
                assert!(
                    !self.home.gone.load(Ordering::Relaxed),
                    "this task's session is gone: nothing will ever run it"
                );
                let driven = DRIVEN.get();
                assert!(
                    driven.is_null() || ptr::eq(driven, Arc::as_ptr(&self.home)),
                    "this task belongs to another session, which does not run here: await it inside that session's block_on"
                );
                Poll::Pending
            }
        }
    }
}
