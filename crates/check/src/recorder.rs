//! Records a history while many threads run operations.
//!
//! Invariants:
//!
//! 1. a log belongs to one client and is written without a lock; logs are merged when they are dropped;
//! 2. [`Recorder::finish`] returns a history only when no log is open, so that the history contains every operation
//!    that took effect. Without a completed write, the check of a correct store would report a violation;
//! 3. an operation that was invoked and neither completed nor cancelled is pending, for example if its thread ended.
//!
//! Scans are recorded like point operations: invoke [`Call::scan`], then complete with [`Outcome::Pairs`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::history::{Call, History, HistoryError, Operation, Outcome, Response};

/// Collects the logs of all clients into one history. Clones are cheap and collect into the same history.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    operations: Vec<Operation>,
    open_logs: usize,
    /// Groups of all clients.
    groups: u64,
}

/// Locks the shared state. A panic cannot leave it half changed, because each change is a single step, so poison is
/// ignored.
fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Recorder {
    /// Creates an empty recorder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens a log for a client. A client may have several logs, one for each of its threads.
    pub fn client(&self, client: u64) -> ClientLog {
        lock(&self.shared).open_logs += 1;
        ClientLog { client, operations: Vec::new(), shared: Arc::clone(&self.shared) }
    }

    /// Returns the history of all logs, ordered by invocation, and empties the recorder. Fails while a log is open.
    pub fn finish(&self) -> Result<History, HistoryError> {
        let mut shared = lock(&self.shared);
        if shared.open_logs > 0 {
            return Err(HistoryError::OpenLogs(shared.open_logs));
        }
        let mut operations = std::mem::take(&mut shared.operations);
        drop(shared);
        // Stable: the operations of a group keep their order.
        operations.sort_by_key(|operation| (operation.invoked, operation.client));
        History::new(operations)
    }
}

/// The log of one client. Dropping it passes its operations to the recorder.
#[derive(Debug)]
pub struct ClientLog {
    client: u64,
    /// `None` is a cancelled operation; it keeps its place so that tickets stay valid.
    operations: Vec<Option<Operation>>,
    shared: Arc<Mutex<Shared>>,
}

/// Identifies an operation in flight in one [`ClientLog`]. Dropping it leaves the operation pending.
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

    /// Records an invocation. Take the stamp *before* any part of the operation can take effect.
    pub fn invoke(&mut self, call: Call, at: u64) -> Ticket {
        self.push(call, at, None)
    }

    /// Records the invocation of one call with many operations that take effect in this order: a group.
    pub fn invoke_in_order(&mut self, calls: impl IntoIterator<Item = Call>, at: u64) -> Vec<Ticket> {
        let group = {
            let mut shared = lock(&self.shared);
            shared.groups += 1;
            shared.groups
        };
        calls.into_iter().map(|call| self.push(call, at, Some(group))).collect()
    }

    fn push(&mut self, call: Call, at: u64, group: Option<u64>) -> Ticket {
        let index = self.operations.len();
        let operation = Operation { client: self.client, call, invoked: at, response: None, group };
        self.operations.push(Some(operation));
        Ticket { index }
    }

    /// Records the outcome. Take the stamp *after* the operation's last effect. The ticket must be of this log; a
    /// ticket that names no operation of it is ignored.
    pub fn complete(&mut self, ticket: Ticket, at: u64, outcome: Outcome) {
        if let Some(Some(operation)) = self.operations.get_mut(ticket.index) {
            operation.response = Some(Response { at, outcome });
        }
    }

    /// Removes an operation that certainly had no effect and returned no result: it was refused, or failed without
    /// effect.
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
    fn recorder_merges_the_logs_of_many_threads() {
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
    fn groups_differ_between_calls_and_keep_their_order() {
        let recorder = Recorder::new();
        let (mut one, mut other) = (recorder.client(1), recorder.client(1));
        for log in [&mut one, &mut other] {
            let _pending = log.invoke_in_order([get(b"a"), get(b"b"), get(b"c")], 5);
        }
        let _pending = one.invoke(get(b"d"), 6);
        drop((one, other));
        let history = recorder.finish().unwrap();
        let groups: Vec<_> = history.operations().iter().map(|operation| operation.group).collect();
        assert_eq!(groups, [Some(1), Some(1), Some(1), Some(2), Some(2), Some(2), None]);
        let keys: Vec<_> = history.operations().iter().filter_map(|operation| operation.call.key()).collect();
        assert_eq!(keys, [b"a", b"b", b"c", b"a", b"b", b"c", b"d"]);
    }

    #[test]
    fn recorder_refuses_open_logs_keeps_pending_and_drops_cancelled_operations() {
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
