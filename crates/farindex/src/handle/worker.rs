//! A worker thread of a handle: one session, and a loop that takes requests and runs them.

use super::request::{Lookup, Request};
use crate::{AnyIndex, Error, Pool};
use async_channel::{Receiver, TryRecvError};
use farindex_fabric::FabricError;
use farindex_index::{IndexError, Limits, PointIndex};
use farindex_pool::PoolError;
use futures_util::StreamExt;
use futures_util::future::{LocalBoxFuture, join_all};
use futures_util::stream::FuturesUnordered;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::task::Poll;

/// What a worker thread needs to start.
pub(super) struct Worker {
    pub(super) pool: Pool,
    pub(super) name: Arc<str>,
    pub(super) coalesce: bool,
    pub(super) queue: Receiver<Request>,
    pub(super) batch: usize,
}

/// If the thread panics, closes the handle: waiting and later futures get an error. Requests in the queue are dropped,
/// which their futures notice.
struct CloseOnPanic<'w>(&'w Receiver<Request>);

impl Drop for CloseOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.close();
            while let Ok(request) = self.0.try_recv() {
                drop(request);
            }
        }
    }
}

impl Worker {
    /// Opens session and index, reports the result, and serves requests until the handle is closed.
    pub(super) fn run(self, ready: &mpsc::Sender<Result<Limits, Error>>) {
        let _: Result<(), _> = catch_unwind(AssertUnwindSafe(|| {
            let _guard = CloseOnPanic(&self.queue);
            let opened = self.pool.session().and_then(|session| {
                let index = session.index(&self.name).coalesce(self.coalesce).open()?.async_handle();
                Ok((session, index))
            });
            match opened {
                Err(error) => drop(ready.send(Err(error))),
                Ok((session, index)) => {
                    if ready.send(Ok(index.limits())).is_ok() {
                        session.block_on(self.serve(&index));
                    }
                }
            }
        }));
    }

    /// Takes every request that has arrived, up to the bound of operations in flight, and runs them. Lookups that are
    /// taken together share batches of verbs. Ends when the queue is closed, no request is left in it, and none is in
    /// flight.
    async fn serve(&self, index: &Rc<AnyIndex>) {
        let queue = &self.queue;
        // Each returns how many operations it was.
        let mut running: FuturesUnordered<LocalBoxFuture<'_, usize>> = FuturesUnordered::new();
        let (mut in_flight, mut open) = (0, true);
        let mut next = pin!(None);
        poll_fn(|cx| {
            let (mut taken, mut lookups) = (0, Vec::new());
            while open && in_flight + taken < self.batch {
                let request = match queue.try_recv() {
                    Ok(request) => request,
                    Err(TryRecvError::Closed) => {
                        open = false;
                        break;
                    }
                    Err(TryRecvError::Empty) => {
                        if next.is_none() {
                            next.set(Some(queue.recv()));
                        }
                        let Some(Poll::Ready(request)) = next.as_mut().as_pin_mut().map(|next| next.poll(cx)) else {
                            break;
                        };
                        next.set(None);
                        let Ok(request) = request else { continue };
                        request
                    }
                };
                taken += 1;
                match request {
                    Request::Lookup(lookup) => lookups.push(lookup),
                    Request::Operation(start) => {
                        let operation = start(Rc::clone(index));
                        running.push(Box::pin(async move {
                            operation.await;
                            1
                        }));
                    }
                }
            }
            in_flight += taken;
            if in_flight >= self.batch {
                // Another worker is notified of the next request.
                next.set(None);
            }
            if !lookups.is_empty() {
                running.push(Box::pin(look_up(index, lookups)));
            }
            let mut ended = 0;
            while let Poll::Ready(Some(operations)) = running.poll_next_unpin(cx) {
                ended += operations;
            }
            in_flight -= ended;
            if !open && in_flight == 0 {
                return Poll::Ready(());
            }
            if taken + ended > 0 {
                // More may have arrived. But first the session makes progress with verbs and timers.
                cx.waker().wake_by_ref();
            }
            Poll::Pending
        })
        .await;
    }
}

/// Looks keys up together; returns how many requests that was. If the lookup of all fails, each is looked up alone, so
/// that what is wrong with one entry or one memory node fails only those it concerns.
async fn look_up(index: &AnyIndex, lookups: Vec<Lookup>) -> usize {
    let requests = lookups.len();
    let lookups: Vec<_> = lookups.into_iter().filter(|lookup| !lookup.is_canceled()).collect();
    let keys: Vec<&[u8]> = lookups.iter().map(|lookup| lookup.key.as_slice()).collect();
    let values: Vec<_> = match (&keys[..], index) {
        ([], _) => Vec::new(),
        ([key], index) => vec![index.get(key).await],
        (keys, index) => match index.get_many(keys).await {
            Ok(values) => values.into_iter().map(Ok).collect(),
            Err(error) if is_final(&error) => keys.iter().map(|_| Err(error.clone())).collect(),
            Err(_) => join_all(keys.iter().map(|key| index.get(key))).await,
        },
    };
    for (lookup, found) in lookups.into_iter().zip(values) {
        lookup.finish(found);
    }
    requests
}

/// Will every later operation of this client fail as well?
fn is_final(error: &IndexError) -> bool {
    matches!(error, IndexError::Pool(PoolError::LeaseLost) | IndexError::Fabric(FabricError::Revoked))
}

#[cfg(test)]
mod tests;
