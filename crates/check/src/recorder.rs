//! Recording a history while many threads work.
//!
//! Invariants:
//!
//! 1. a log belongs to one client and is written without any lock; logs meet only when they are dropped;
//! 2. [`Recorder::finish`] yields a history only when no log is open, so no operation that took effect is missing from
//!    it: a history that lacks a completed write would accuse a correct store;
//! 3. an operation begun and not ended is pending, which is what it is if its thread died.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::history::{Call, History, HistoryError, Operation, Outcome, Response};

/// Collects the logs of all clients into one history. Cheap to clone; clones collect into the same history.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    operations: Vec<Operation>,
    open_logs: usize,
}

/// A panic elsewhere cannot leave `Shared` half changed (both changes are single pushes), so poison means nothing.
fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Recorder {
    /// An empty recorder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens a log for a client. A client may have several logs, one for each of its threads.
    pub fn client(&self, client: u64) -> ClientLog {
        lock(&self.shared).open_logs += 1;
        ClientLog { client, operations: Vec::new(), shared: Arc::clone(&self.shared) }
    }

    /// The history of all logs, ordered by invocation; the recorder is empty afterwards. Fails while a log is open.
    pub fn finish(&self) -> Result<History, HistoryError> {
        let mut shared = lock(&self.shared);
        if shared.open_logs > 0 {
            return Err(HistoryError::OpenLogs(shared.open_logs));
        }
        let mut operations = std::mem::take(&mut shared.operations);
        drop(shared);
        operations.sort_by_key(|operation| (operation.invoked, operation.client));
        History::new(operations)
    }
}

/// The log of one client. Handed to its recorder when dropped.
#[derive(Debug)]
pub struct ClientLog {
    client: u64,
    /// `None` is an operation that was cancelled; it keeps its place so that tickets stay valid.
    operations: Vec<Option<Operation>>,
    shared: Arc<Mutex<Shared>>,
}

/// Stands for an operation in flight in one [`ClientLog`]. Dropping it leaves the operation pending.
#[derive(Debug)]
#[must_use = "an operation that is not completed stays pending"]
pub struct Ticket {
    index: usize,
}

impl ClientLog {
    /// The client's number.
    pub fn client(&self) -> u64 {
        self.client
    }

    /// Notes an invocation. Stamp it *before* anything of the operation can take effect.
    pub fn invoke(&mut self, call: Call, at: u64) -> Ticket {
        let index = self.operations.len();
        let operation = Operation { client: self.client, call, invoked: at, response: None };
        self.operations.push(Some(operation));
        Ticket { index }
    }

    /// Notes the answer. Stamp it *after* the operation's last effect. A ticket of another log is ignored where it
    /// names nothing here; tickets should never cross logs.
    pub fn complete(&mut self, ticket: Ticket, at: u64, outcome: Outcome) {
        if let Some(Some(operation)) = self.operations.get_mut(ticket.index) {
            operation.response = Some(Response { at, outcome });
        }
    }

    /// Takes an operation back that certainly changed nothing and told nothing: refused, or failed without effect.
    pub fn cancel(&mut self, ticket: Ticket) {
        if let Some(operation) = self.operations.get_mut(ticket.index) {
            *operation = None;
        }
    }
}

impl Drop for ClientLog {
    fn drop(&mut self) {
        let mut shared = lock(&self.shared);
        shared.operations.extend(self.operations.drain(..).flatten());
        shared.open_logs -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Stamps;

    fn get(key: &[u8]) -> Call {
        Call::Get { key: key.to_vec() }
    }

    #[test]
    fn logs_of_many_threads_make_one_history() {
        let recorder = Recorder::new();
        let stamps = Stamps::new();
        std::thread::scope(|scope| {
            for client in 0..4 {
                let mut log = recorder.client(client);
                let stamps = &stamps;
                scope.spawn(move || {
                    for _ in 0..100 {
                        let ticket = log.invoke(get(b"k"), stamps.tick());
                        log.complete(ticket, stamps.tick(), Outcome::Value(None));
                    }
                });
            }
        });
        let history = recorder.finish().unwrap();
        assert_eq!(history.clients().into_iter().collect::<Vec<_>>(), [(0, 100), (1, 100), (2, 100), (3, 100)]);
        assert!(history.operations().is_sorted_by_key(|operation| operation.invoked));
        assert!(history.operations().iter().all(|operation| operation.response.is_some()));
    }

    #[test]
    fn an_open_log_an_abandoned_and_a_cancelled_operation() {
        let recorder = Recorder::new();
        let mut log = recorder.client(7);
        let abandoned = log.invoke(get(b"a"), 1);
        let cancelled = log.invoke(get(b"b"), 2);
        drop(abandoned);
        log.cancel(cancelled);
        assert_eq!(recorder.finish(), Err(HistoryError::OpenLogs(1)));
        drop(log);
        let history = recorder.finish().unwrap();
        assert_eq!(history.operations().len(), 1);
        assert_eq!(history.operations()[0].response, None);
    }
}
