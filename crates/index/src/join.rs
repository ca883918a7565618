//! Runs several futures of one operation concurrently.

use farindex_fabric::{Cold, cold};
use std::future::{Future, poll_fn};
use std::task::Poll;

/// Polls all futures in turn until all have completed, or one has failed. Returns the results in the order of the
/// futures.
pub async fn try_join_all<'a, T, E, F: Future<Output = Result<T, E>> + 'a>(
    futures: impl Iterator<Item = F>,
) -> Result<Vec<T>, E> {
    let mut open: Vec<(Option<T>, Cold<'_, _>)> = futures.map(|future| (None, cold(future))).collect();
    poll_fn(|cx| {
        let mut waits = false;
        for (done, future) in open.iter_mut().filter(|(done, _)| done.is_none()) {
            match future.as_mut().poll(cx) {
                Poll::Ready(Ok(value)) => *done = Some(value),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => waits = true,
            }
        }
        if waits { Poll::Pending } else { Poll::Ready(Ok(())) }
    })
    .await?;
    Ok(open.into_iter().filter_map(|(done, _)| done).collect())
}
