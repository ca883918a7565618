//! The heartbeat of a client: a thread of its own, because the threads of the process may be busy elsewhere.
//!
//! It renews the lease, and publishes that sessions without operations in flight have quiesced, so that an idle process
//! neither loses its lease nor delays the reclamation of memory.

use farindex_fabric::{Endpoint, Executor, Fabric, FabricError, Identity};
use farindex_pool::Client;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often the thread reads the epoch, unless the lease is so short that it must be more often.
const EVERY: Duration = Duration::from_millis(10);

pub(crate) struct Heartbeat {
    thread: Mutex<Option<JoinHandle<()>>>,
    stop: Arc<std::sync::atomic::AtomicBool>,
}

impl Heartbeat {
    pub(crate) fn start(fabric: Arc<dyn Fabric>, identity: Identity, client: Arc<Client>) -> Result<Self, FabricError> {
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let every = EVERY.min(client.pool().lease() / 8).max(Duration::from_micros(200));
        let run = move || {
            let Ok(endpoint) = fabric.connect(&identity) else { return };
            let executor = Executor::new();
            while !stopped.load(std::sync::atomic::Ordering::Acquire) {
                // A lost lease is reported by the client's next operation; any other failure may pass.
                let _: Result<(), _> = executor.block_on(&endpoint, client.tick(&endpoint));
                if client.is_lost() {
                    return;
                }
                std::thread::park_timeout(every);
            }
        };
        let spawned = std::thread::Builder::new().name("farindex-heartbeat".to_owned()).spawn(run);
        let thread =
            spawned.map_err(|error| FabricError::Settings(format!("cannot start the heartbeat thread: {error}")))?;
        Ok(Heartbeat { thread: Mutex::new(Some(thread)), stop })
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, std::sync::atomic::Ordering::Release);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            thread.thread().unpark();
            // A thread that panicked has printed its message already.
            let _: Result<(), _> = thread.join();
        }
    }
}

/// Runs one future on a connection of its own.
pub(crate) fn once<T>(
    fabric: &Arc<dyn Fabric>,
    identity: &Identity,
    body: impl AsyncFnOnce(&Endpoint) -> T,
) -> Result<T, FabricError> {
    let endpoint = fabric.connect(identity)?;
    Ok(Executor::new().block_on(&endpoint, body(&endpoint)))
}
