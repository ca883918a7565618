//! DEX: what it adds to the tree of Sherman. The suites of all kinds test the rest.

mod adversary;
mod budgets;
mod commands;
mod dropped;
mod offload;
mod owners;
mod write_back;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// What comes of an operation that is polled so many times and then given up.
async fn polled<T>(polls: u64, work: impl Future<Output = T>) -> Option<T> {
    let (mut work, mut left) = (pin!(work), polls);
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending if left == 0 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    })
    .await
}
