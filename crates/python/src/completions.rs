//! How answers of worker threads reach an event loop of asyncio.
//!
//! ```text
//!   event loop's thread                                       worker threads of the library
//!   submit: poll the operation once  --- request --->         far memory
//!   the selector sees the socket     <-- one byte ---         wake: note the operation as ready
//!   deliver: poll what is ready, resolve futures
//! ```
//!
//! Worker threads never attach to the interpreter: they note what is ready and write a byte to a socket that the loop watches, as
//! `loop.call_soon_threadsafe` does itself, once for all answers that the loop has not looked at yet. So no worker waits for
//! the GIL, and the end of the interpreter stops no thread in the middle of its work.
//!
//! Invariants: an operation is polled on the loop's thread alone; it is in `pending` until it has its answer or was forgotten;
//! a wake that comes between the loop's look and its sleep writes a byte, because `deliver` clears `signalled` before it looks.

use crate::failure::Failure;
use crate::fork::Birthplace;
use pyo3::exceptions::PyRuntimeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// Makes the Python object of an answer, on the loop's thread.
pub(crate) type Answer = Box<dyn for<'py> FnOnce(Python<'py>) -> PyResult<Bound<'py, PyAny>> + Send>;

/// An operation of a handle.
pub(crate) type Operation = Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send>>;

/// What worker threads and the loop share.
struct Mailbox {
    ready: Mutex<Vec<u64>>,
    /// Has a byte been written that the loop has not seen?
    signalled: AtomicBool,
    bell: UnixStream,
}

struct Signal {
    id: u64,
    mailbox: Arc<Mailbox>,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        lock(&self.mailbox.ready).push(self.id);
        if !self.mailbox.signalled.swap(true, SeqCst) {
            // It fails only if the loop is gone, or if the socket is full of bytes that the loop has yet to see.
            let _: std::io::Result<usize> = (&self.mailbox.bell).write(&[1]);
        }
    }
}

struct Pending {
    operation: Operation,
    waker: Waker,
    future: Py<PyAny>,
}

#[derive(Default)]
struct Operations {
    next: u64,
    pending: HashMap<u64, Pending>,
}

/// The operations in flight of one event loop.
#[pyclass(frozen, module = "farindex._native")]
pub(crate) struct Completions {
    mailbox: Arc<Mailbox>,
    socket: UnixStream,
    operations: ManuallyDrop<Mutex<Operations>>,
    birthplace: Birthplace,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Completions {
    /// Starts an operation whose answer resolves `future`. Returns its number, or `None` if it has its answer already.
    pub(crate) fn start(&self, future: &Bound<'_, PyAny>, mut operation: Operation) -> PyResult<Option<u64>> {
        if self.birthplace.is_forked() {
            return Err(Failure::forked().into());
        }
        let id = {
            let mut operations = lock(&self.operations);
            operations.next += 1;
            operations.next
        };
        let waker = Waker::from(Arc::new(Signal { id, mailbox: Arc::clone(&self.mailbox) }));
        match operation.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => {
                resolve(future, answer)?;
                Ok(None)
            }
            Poll::Pending => {
                let pending = Pending { operation, waker, future: future.clone().unbind() };
                lock(&self.operations).pending.insert(id, pending);
                Ok(Some(id))
            }
        }
    }
}

/// Gives a future of asyncio its result or its exception, unless it was cancelled.
fn resolve(future: &Bound<'_, PyAny>, answer: Result<Answer, Failure>) -> PyResult<()> {
    let py = future.py();
    if future.call_method0("done")?.is_truthy()? {
        return Ok(());
    }
    match answer.map_err(PyErr::from).and_then(|answer| answer(py)) {
        Ok(value) => future.call_method1("set_result", (value,))?,
        Err(error) => future.call_method1("set_exception", (error.into_value(py),))?,
    };
    Ok(())
}

#[pymethods]
impl Completions {
    #[new]
    fn new() -> PyResult<Self> {
        let open = || {
            let (bell, socket) = UnixStream::pair()?;
            bell.set_nonblocking(true)?;
            socket.set_nonblocking(true)?;
            Ok::<_, std::io::Error>((bell, socket))
        };
        let (bell, socket) = open()?;
        let mailbox = Mailbox { ready: Mutex::default(), signalled: AtomicBool::new(false), bell };
        Ok(Completions {
            mailbox: Arc::new(mailbox),
            socket,
            operations: ManuallyDrop::default(),
            birthplace: Birthplace::here(),
        })
    }
    /// What the loop watches for reading.
    fn fileno(&self) -> i32 {
        self.socket.as_raw_fd()
    }
    /// Resolves the futures of operations that have an answer. The loop calls it when the socket can be read.
    fn deliver(&self, py: Python<'_>) -> PyResult<()> {
        let mut seen = [0; 64];
        loop {
            match (&self.socket).read(&mut seen) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(PyRuntimeError::new_err(error.to_string())),
            }
        }
        self.mailbox.signalled.store(false, SeqCst);
        let ready = std::mem::take(&mut *lock(&self.mailbox.ready));
        let mut failed = Ok(());
        for id in ready {
            // Taken out while it is polled: resolving a future runs Python code, which may start operations.
            let Some(mut pending) = lock(&self.operations).pending.remove(&id) else { continue };
            match pending.operation.as_mut().poll(&mut Context::from_waker(&pending.waker)) {
                // One that cannot be resolved keeps no other from its answer.
                Poll::Ready(answer) => failed = failed.and(resolve(pending.future.bind(py), answer)),
                Poll::Pending => drop(lock(&self.operations).pending.insert(id, pending)),
            }
        }
        failed
    }
    /// Drops an operation whose future was cancelled. If no worker has taken it yet it does not happen, else it runs to its end.
    fn forget(&self, id: u64) {
        let forgotten = lock(&self.operations).pending.remove(&id);
        drop(forgotten);
    }
    /// How many operations have no answer yet.
    fn __len__(&self) -> usize {
        lock(&self.operations).pending.len()
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Ok(operations) = self.operations.try_lock() {
            for pending in operations.pending.values() {
                visit.call(&pending.future)?;
            }
        }
        Ok(())
    }
    fn __clear__(&self) {
        let pending = std::mem::take(&mut lock(&self.operations).pending);
        drop(pending);
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        // In a child process the worker threads do not exist that a dropped handle would wait for: forgotten there.
        if self.birthplace.is_here() {
            let pending = std::mem::take(&mut lock(&self.operations).pending);
            drop(pending);
        }
    }
}
