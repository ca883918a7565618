//! Operations that wait for an intent cell get one in the order in which they came, perhaps from another thread.
//!
//! Invariants: a cell that was given to a waiting operation is taken; if the operation is cancelled before it has
//! fetched the cell, the cell goes on to the next. Who returns a cell first makes it free and then looks whether anyone
//! waits; who waits first says so and then looks for a free cell. So one of the two sees the other.

use super::Client;
use farindex_fabric::NodeId;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The operations that wait for a cell of one node, the first one in front.
#[derive(Default)]
pub(super) struct Queue {
    /// Operations in `waiting`.
    length: AtomicU64,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    last: u64,
    /// Number and waker of each operation that has no cell yet.
    queue: VecDeque<(u64, Waker)>,
    /// Numbers of operations that were given a cell and have yet to fetch it.
    served: Vec<(u64, u64)>,
}

impl Queue {
    /// Returns whether no operation waits.
    pub(super) fn is_empty(&self) -> bool {
        self.length.load(Ordering::SeqCst) == 0
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives cells to operations that wait for one, as long as `take` returns one.
    pub(super) fn serve(&self, mut take: impl FnMut() -> Option<u64>) {
        if self.is_empty() {
            return;
        }
        let mut wakers = Vec::new();
        {
            let mut waiting = self.lock();
            while !waiting.queue.is_empty()
                && let Some(cell) = take()
                && let Some((number, waker)) = waiting.queue.pop_front()
            {
                self.length.fetch_sub(1, Ordering::SeqCst);
                waiting.served.push((number, cell));
                wakers.push(waker);
            }
        }
        // Not under the lock: what is woken may ask for a cell at once.
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Joins the queue, or replaces the waker.
    fn wait(&self, number: &mut Option<u64>, waker: &Waker) {
        let mut waiting = self.lock();
        match *number {
            Some(mine) => {
                if let Some((_, old)) = waiting.queue.iter_mut().find(|(number, _)| *number == mine) {
                    old.clone_from(waker);
                }
            }
            None => {
                waiting.last += 1;
                *number = Some(waiting.last);
                let last = waiting.last;
                waiting.queue.push_back((last, waker.clone()));
                self.length.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    /// Fetches the cell that an operation was given.
    fn fetch(&self, mine: u64) -> Option<u64> {
        let mut waiting = self.lock();
        let at = waiting.served.iter().position(|(number, _)| *number == mine)?;
        Some(waiting.served.swap_remove(at).1)
    }

    /// Leaves the queue. Returns the cell that the operation was given meanwhile.
    fn leave(&self, mine: u64) -> Option<u64> {
        let mut waiting = self.lock();
        if let Some(at) = waiting.queue.iter().position(|(number, _)| *number == mine) {
            waiting.queue.remove(at);
            self.length.fetch_sub(1, Ordering::SeqCst);
        }
        drop(waiting);
        self.fetch(mine)
    }
}

/// The place of one operation in the queue for a cell of a node. Dropping it gives the place up, and the cell that it
/// has not fetched.
pub(crate) struct CellWait<'c> {
    client: &'c Arc<Client>,
    node: NodeId,
    /// Its number, once it has been polled, until it has its cell.
    number: Option<u64>,
}

impl<'c> CellWait<'c> {
    /// An operation that is about to wait.
    pub(crate) fn new(client: &'c Arc<Client>, node: NodeId) -> Self {
        CellWait { client, node, number: None }
    }

    fn queue(&self) -> Option<&'c Queue> {
        self.client.intents.get(self.node.index()).map(|cells| &cells.queue)
    }

    /// Returns the cell once there is one for this operation.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<u64> {
        let Some(queue) = self.queue() else { return Poll::Pending };
        queue.wait(&mut self.number, cx.waker());
        self.client.serve_cells(self.node);
        match self.number.and_then(|mine| queue.fetch(mine)) {
            Some(cell) => {
                self.number = None;
                Poll::Ready(cell)
            }
            None => Poll::Pending,
        }
    }
}

impl Drop for CellWait<'_> {
    fn drop(&mut self) {
        let Some((mine, queue)) = self.number.zip(self.queue()) else { return };
        if let Some(cell) = queue.leave(mine) {
            self.client.return_intent_cell(self.node, cell, false, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three operations wait; cells go to them in their order, and the one of an operation that leaves is returned.
    #[test]
    fn cells_are_given_in_the_order_of_asking() {
        let queue = Queue::default();
        let mut numbers = [None; 3];
        for number in &mut numbers {
            queue.wait(number, Waker::noop());
        }
        let mut cells = vec![9, 4];
        queue.serve(|| cells.pop());
        assert_eq!(queue.fetch(3), None);
        assert_eq!(queue.fetch(1), Some(4));
        assert_eq!(queue.leave(2), Some(9), "it was given one and has not fetched it");
        assert!(!queue.is_empty(), "the third one still waits");
        assert_eq!(queue.leave(3), None);
        assert!(queue.is_empty());
        queue.serve(|| panic!("nobody waits"));
    }
}
