//! How a walk hands out entries, so that the walk of each kind is compiled once, whatever is done with its entries.
//!
//! Invariant: the walk does not go on before the entry that it has handed out has been dealt with.

use crate::{IndexError, Value};
use farindex_fabric::Cold;
use std::cell::RefCell;
use std::future::poll_fn;
use std::task::Poll;

/// What a walk hands out, and the answer to it.
#[derive(Default)]
enum Slot {
    #[default]
    Empty,
    Entry(Vec<u8>, Value),
    Taken,
    Done(Result<(), IndexError>),
}

/// Entries on their way from a walk to who has asked for them. A walk gets a reference, and hands each entry to
/// `hand_out`.
#[derive(Default)]
pub struct Entries(RefCell<Slot>);

impl Entries {
    /// Hands out an entry, and waits until it has been dealt with.
    pub(crate) async fn hand_out(&self, key: Vec<u8>, value: Value) -> Result<(), IndexError> {
        self.0.replace(Slot::Entry(key, value));
        poll_fn(|_| match self.0.take() {
            Slot::Done(done) => Poll::Ready(done),
            slot => {
                self.0.replace(slot);
                Poll::Pending
            }
        })
        .await
    }

    /// Runs a walk that hands its entries to `self`, and calls `each` with each.
    pub(crate) async fn give_to(
        &self,
        mut walk: Cold<'_, Result<u64, IndexError>>,
        mut each: impl AsyncFnMut(&[u8], Value) -> Result<(), IndexError>,
    ) -> Result<u64, IndexError> {
        loop {
            let next = poll_fn(|cx| {
                let ended = walk.as_mut().poll(cx);
                match (ended, self.0.take()) {
                    (Poll::Ready(ended), _) => Poll::Ready(Err(ended)),
                    (Poll::Pending, Slot::Entry(key, value)) => {
                        self.0.replace(Slot::Taken);
                        Poll::Ready(Ok((key, value)))
                    }
                    (Poll::Pending, slot) => {
                        self.0.replace(slot);
                        Poll::Pending
                    }
                }
            });
            let (key, value) = match next.await {
                Ok(entry) => entry,
                Err(ended) => return ended,
            };
            let done = each(&key, value).await;
            self.0.replace(Slot::Done(done));
        }
    }
}
