//! One worker as a thread of this process, with an executor of its own.

use super::shared::Shared;
use super::worker::{self, Context, Coroutine, Report};
use super::{Bench, Worker};
use crate::BenchError;
use farindex_fabric::{Driver, Executor};
use std::any::Any;
use std::rc::Rc;
use std::sync::Arc;

/// Ends the run for the others when its thread unwinds.
struct Alarm<'a>(&'a Shared);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abort();
        }
    }
}

/// Drives nothing: for what is local.
struct Idle;

impl Driver for Idle {
    fn progress(&self) -> bool {
        false
    }
}

pub(crate) fn panic_message(payload: Box<dyn Any + Send>) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".to_owned())
}

pub(crate) fn run<B: Bench>(bench: &B, thread: usize, shared: &Arc<Shared>) -> Result<Report, BenchError> {
    let _alarm = Alarm(shared);
    let executor = Executor::new();
    let failure = |message| {
        shared.abort();
        BenchError::Worker { thread, message }
    };
    let worker = bench.worker(thread, &executor).map_err(failure)?;
    let context = Rc::new(Context::new(shared, worker));
    let driver: &dyn Driver = match context.worker.endpoint() {
        Some(endpoint) => endpoint,
        None => &Idle,
    };
    let spawn = |coroutine: Coroutine| executor.spawn(coroutine).detach();
    executor.block_on(driver, worker::run(Rc::clone(&context), thread, spawn)).map_err(failure)
}
