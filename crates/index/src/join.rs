//! Runs several futures of one operation concurrently.

use farindex_fabric::{Cold, cold};
use std::future::{Future, poll_fn};
use std::task::Poll;

/// Polls all futures in turn until all have completed. Returns the results in the order of the futures, or the first error.
/// After an error it waits for the others: one that is dropped in the middle of a step leaves what that step has taken.
pub async fn try_join_all<'a, T, E, F: Future<Output = Result<T, E>> + 'a>(
    futures: impl Iterator<Item = F>,
) -> Result<Vec<T>, E> {
    let mut open: Vec<(Option<Result<T, E>>, Cold<'_, _>)> = futures.map(|future| (None, cold(future))).collect();
    poll_fn(|cx| {
        let mut waits = false;
        for (done, future) in open.iter_mut().filter(|(done, _)| done.is_none()) {
            match future.as_mut().poll(cx) {
                Poll::Ready(result) => *done = Some(result),
                Poll::Pending => waits = true,
            }
        }
        if waits { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    open.into_iter().filter_map(|(done, _)| done).collect()
}
