//! What the queue of a handle holds.

use crate::index::{SHARED, borrowed};
use crate::{AnyIndex, Error, Insert, Remove, RemoveIf, Replace, Update, Upsert};
use farindex_index::{IndexError, OrderedIndex, PointIndex, Value};
use futures_channel::oneshot;
use futures_util::future::LocalBoxFuture;
use std::ops::Bound;
use std::rc::Rc;

/// Starts an operation.
type Start = dyn FnOnce(Rc<AnyIndex>) -> LocalBoxFuture<'static, ()> + Send;

/// A request of a future to a worker.
pub(super) enum Request {
    /// One key, which a worker looks up together with others.
    Lookup(Lookup),
    /// Any other operation.
    Operation(Box<Start>),
}

/// A request, and where its result arrives.
pub(super) type Asked<T> = (Request, oneshot::Receiver<Result<T, Error>>);

// The functions below have no type parameters: what runs an operation is compiled here, and not in each program that
// calls a method of the handle.

pub(super) fn get(key: Vec<u8>) -> Asked<Option<Vec<u8>>> {
    let (reply, answer) = oneshot::channel();
    (Request::Lookup(Lookup { key, reply: Reply::Value(reply) }), answer)
}
pub(super) fn contains(key: Vec<u8>) -> Asked<bool> {
    let (reply, answer) = oneshot::channel();
    (Request::Lookup(Lookup { key, reply: Reply::Presence(reply) }), answer)
}
pub(super) fn get_many(keys: Vec<Vec<u8>>) -> Asked<Vec<Option<Vec<u8>>>> {
    each(keys, |value| value.map(|value| value.to_vec()))
}
pub(super) fn contains_many(keys: Vec<Vec<u8>>) -> Asked<Vec<bool>> {
    each(keys, |value| value.is_some())
}
/// What `answer` makes of the value of each key. Values of one batch are held at once.
fn each<T: Send + 'static>(keys: Vec<Vec<u8>>, answer: fn(Option<Value>) -> T) -> Asked<Vec<T>> {
    operation(async move |index| {
        let mut answers = Vec::with_capacity(keys.len());
        for keys in keys.chunks(SHARED) {
            let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            answers.extend(index.get_many(&keys).await?.into_iter().map(answer));
        }
        Ok(answers)
    })
}
pub(super) fn insert(key: Vec<u8>, value: Vec<u8>) -> Asked<Insert> {
    operation(async move |index| index.insert(&key, &value).await)
}
pub(super) fn update(key: Vec<u8>, value: Vec<u8>) -> Asked<Update> {
    operation(async move |index| index.update(&key, &value).await)
}
pub(super) fn upsert(key: Vec<u8>, value: Vec<u8>) -> Asked<Upsert> {
    operation(async move |index| index.upsert(&key, &value).await)
}
pub(super) fn upsert_many(pairs: Vec<(Vec<u8>, Vec<u8>)>) -> Asked<Vec<Result<Upsert, Error>>> {
    operation(async move |index| {
        let pairs: Vec<(&[u8], &[u8])> = pairs.iter().map(|(key, value)| (&**key, &**value)).collect();
        Ok(index.upsert_many(&pairs).await.into_iter().map(|outcome| Ok(outcome?)).collect())
    })
}
pub(super) fn upsert_with_outcome(key: Vec<u8>, value: Vec<u8>) -> Asked<Upsert> {
    operation(async move |index| index.upsert_with_outcome(&key, &value).await)
}
pub(super) fn remove(key: Vec<u8>) -> Asked<Remove> {
    operation(async move |index| index.remove(&key).await)
}
pub(super) fn replace(key: Vec<u8>, expected: Vec<u8>, value: Vec<u8>) -> Asked<Replace> {
    operation(async move |index| index.replace(&key, &expected, &value).await)
}
pub(super) fn remove_if(key: Vec<u8>, expected: Vec<u8>) -> Asked<RemoveIf> {
    operation(async move |index| index.remove_if(&key, &expected).await)
}
/// The two ends of a scan.
pub(super) type OwnedBounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

pub(super) fn scan((from, to): OwnedBounds, limit: usize) -> Asked<Vec<(Vec<u8>, Vec<u8>)>> {
    operation(async move |index| {
        let entries = index.scan(borrowed(&from, &to), limit).await?;
        Ok(entries.into_iter().map(|entry| (entry.key.to_vec(), entry.value.to_vec())).collect())
    })
}

/// Any operation on the index of a worker. It is skipped if its future is gone when it could start.
pub(super) fn operation<T: Send + 'static>(
    operation: impl AsyncFnOnce(&AnyIndex) -> Result<T, IndexError> + Send + 'static,
) -> Asked<T> {
    let (reply, answer) = oneshot::channel();
    let start = move |index: Rc<AnyIndex>| -> LocalBoxFuture<'static, ()> {
        Box::pin(async move {
            if !reply.is_canceled() {
                let result = operation(&index).await;
                // No receiver: the future was dropped meanwhile.
                let _: Result<(), _> = reply.send(result.map_err(Error::from));
            }
        })
    };
    (Request::Operation(Box::new(start)), answer)
}

/// A key to look up.
pub(super) struct Lookup {
    pub(super) key: Vec<u8>,
    reply: Reply,
}

/// Where the result of a lookup goes, and what of it.
enum Reply {
    Value(oneshot::Sender<Result<Option<Vec<u8>>, Error>>),
    Presence(oneshot::Sender<Result<bool, Error>>),
}

impl Lookup {
    /// Is the future gone?
    pub(super) fn is_canceled(&self) -> bool {
        match &self.reply {
            Reply::Value(reply) => reply.is_canceled(),
            Reply::Presence(reply) => reply.is_canceled(),
        }
    }

    pub(super) fn finish(self, found: Result<Option<Value>, IndexError>) {
        let found = found.map_err(Error::from);
        match self.reply {
            Reply::Value(reply) => drop(reply.send(found.map(|value| value.map(|value| value.to_vec())))),
            Reply::Presence(reply) => drop(reply.send(found.map(|value| value.is_some()))),
        }
    }
}
