//! What the queue of a handle holds.

use crate::{AnyIndex, Error};
use farindex_index::{IndexError, Value};
use futures_channel::oneshot;
use futures_util::future::LocalBoxFuture;
use std::rc::Rc;

/// An operation on the index of a worker thread.
pub(super) trait Operation<T>: AsyncFnOnce(&AnyIndex) -> Result<T, IndexError> + Send + 'static {}

impl<T, F: AsyncFnOnce(&AnyIndex) -> Result<T, IndexError> + Send + 'static> Operation<T> for F {}

/// Starts an operation.
type Start = dyn FnOnce(Rc<AnyIndex>) -> LocalBoxFuture<'static, ()> + Send;

/// A request of a future to a worker.
pub(super) enum Request {
    /// One key, which a worker looks up together with others.
    Lookup(Lookup),
    /// Any other operation.
    Operation(Box<Start>),
}

impl Request {
    /// An operation, and where its result goes. It is skipped if its future is gone when it could start.
    pub(super) fn operation<T: Send + 'static>(
        operation: impl Operation<T>,
        reply: oneshot::Sender<Result<T, Error>>,
    ) -> Self {
        Request::Operation(Box::new(move |index| {
            Box::pin(async move {
                if !reply.is_canceled() {
                    let result = operation(&index).await;
                    // No receiver: the future was dropped meanwhile.
                    let _: Result<(), _> = reply.send(result.map_err(Error::from));
                }
            })
        }))
    }
}

/// A key to look up.
pub(super) struct Lookup {
    pub(super) key: Vec<u8>,
    pub(super) answer: Answer,
}

/// Where the result of a lookup goes, and what of it.
pub(super) enum Answer {
    Value(oneshot::Sender<Result<Option<Vec<u8>>, Error>>),
    Presence(oneshot::Sender<Result<bool, Error>>),
}

impl Lookup {
    /// Is the future gone?
    pub(super) fn is_canceled(&self) -> bool {
        match &self.answer {
            Answer::Value(reply) => reply.is_canceled(),
            Answer::Presence(reply) => reply.is_canceled(),
        }
    }

    pub(super) fn finish(self, found: Result<Option<Value>, IndexError>) {
        let found = found.map_err(Error::from);
        match self.answer {
            Answer::Value(reply) => drop(reply.send(found.map(|value| value.map(|value| value.to_vec())))),
            Answer::Presence(reply) => drop(reply.send(found.map(|value| value.is_some()))),
        }
    }
}
