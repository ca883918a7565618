//! The intent cells of a client on one node: which of them are taken, and who waits for one. Its threads share this.
//!
//! Invariants:
//!
//! * A cell belongs to one operation at a time.
//! * A cell whose intent was not cleared is not taken until the intent is cleared (I3). Who returns such a cell says so
//!   first and makes the cell free second; who takes a cell looks whether anyone has said so after it has taken it. So one
//!   of the two sees the other.
//! * While an operation waits, no later one takes a cell. If there is a cell that can be taken, no operation waits for long:
//!   who returns a cell first makes it free and then looks whether anyone waits; who waits first says so and then looks
//!   for a free cell.
//! * A cell that was given to a waiting operation is taken. If the operation is cancelled before it has fetched the cell,
//!   the cell goes on to the next.

use crate::sync::{AtomicU64, Mutex, Ordering};
use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

/// The intent cells of one client on one node: a bit for each cell.
#[derive(Default)]
pub(crate) struct NodeCells {
    /// Number of cells, 64 at most.
    number: u64,
    /// An operation has the cell.
    taken: AtomicU64,
    /// The cell has an intent that was not cleared: of a cancelled operation, or of a former owner of the slot.
    uncleared: AtomicU64,
    /// The subset of `uncleared` that operations of this client declared and did not abandon.
    own_uncleared: AtomicU64,
    /// Operations that wait and were given no cell yet.
    waiting: AtomicU64,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    last: u64,
    /// Number and waker of each operation that waits, the first one in front.
    waiting: VecDeque<(u64, Waker)>,
    /// Number and cell of operations that were given a cell and have yet to fetch it.
    served: Vec<(u64, u64)>,
}

impl NodeCells {
    /// So many cells, all of them free.
    pub(crate) fn new(number: u64) -> Self {
        NodeCells { number: number.min(64), ..NodeCells::default() }
    }

    /// A bit for each cell.
    pub(crate) fn all(&self) -> u64 {
        u64::MAX.checked_shr(64 - self.number as u32).unwrap_or_default()
    }

    /// Takes a cell; `None` if there is none, or if other operations wait for one.
    pub(crate) fn take(&self) -> Option<u64> {
        if self.waiting.load(Ordering::SeqCst) == 0 { self.take_any() } else { None }
    }

    fn take_any(&self) -> Option<u64> {
        loop {
            let uncleared = self.uncleared.load(Ordering::SeqCst);
            let pick = |taken: u64| u64::from((!(taken | uncleared)).trailing_zeros());
            let taken = self.taken.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |taken| {
                let cell = pick(taken);
                (cell < self.number).then(|| taken | 1 << cell)
            });
            let cell = pick(taken.ok()?);
            if self.uncleared.load(Ordering::SeqCst) >> cell & 1 == 0 {
                return Some(cell);
            }
            // Another thread has returned it, with an intent that was not cleared, since this one has looked.
            self.taken.fetch_and(!(1 << cell), Ordering::SeqCst);
        }
    }

    /// Returns a cell, whose intent may not have been cleared, or may have been abandoned.
    pub(crate) fn give_back(&self, cell: u64, uncleared: bool, abandoned: bool) {
        self.own_uncleared.fetch_or(u64::from(uncleared && !abandoned) << cell, Ordering::SeqCst);
        self.uncleared.fetch_or(u64::from(uncleared) << cell, Ordering::SeqCst);
        self.taken.fetch_and(!(1 << cell), Ordering::SeqCst);
        self.serve();
    }

    /// Excludes all cells, until it is known which of them have an intent of a former owner.
    pub(crate) fn exclude_all(&self) {
        self.uncleared.store(self.all(), Ordering::SeqCst);
    }

    /// The cells that no operation has and that were left with an intent: a bit for each.
    pub(crate) fn left_uncleared(&self) -> u64 {
        self.uncleared.load(Ordering::SeqCst) & !self.taken.load(Ordering::SeqCst)
    }

    /// Notes that the intents of these cells have been cleared.
    pub(crate) fn clear(&self, cells: u64) {
        self.own_uncleared.fetch_and(!cells, Ordering::SeqCst);
        self.uncleared.fetch_and(!cells, Ordering::SeqCst);
        self.serve();
    }

    /// Returns whether any operation has a cell.
    pub(crate) fn any_taken(&self) -> bool {
        self.taken.load(Ordering::SeqCst) != 0
    }

    /// Returns whether an ended operation of this client left an intent that was neither cleared nor abandoned.
    pub(crate) fn any_own_uncleared(&self) -> bool {
        self.own_uncleared.load(Ordering::SeqCst) != 0
    }

    /// Gives the cells that can be taken to the operations that wait.
    fn serve(&self) {
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut wakers = Vec::new();
        {
            let mut queue = self.queue.lock();
            while !queue.waiting.is_empty()
                && let Some(cell) = self.take_any()
                && let Some((number, waker)) = queue.waiting.pop_front()
            {
                self.waiting.fetch_sub(1, Ordering::SeqCst);
                queue.served.push((number, cell));
                wakers.push(waker);
            }
        }
        // Not under the lock: what is woken may ask for a cell at once.
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Joins the queue, or replaces the waker.
    fn wait(&self, number: &mut Option<u64>, waker: &Waker) {
        let mut queue = self.queue.lock();
        match *number {
            Some(mine) => {
                if let Some((_, old)) = queue.waiting.iter_mut().find(|(number, _)| *number == mine) {
                    old.clone_from(waker);
                }
            }
            None => {
                queue.last += 1;
                let mine = queue.last;
                *number = Some(mine);
                queue.waiting.push_back((mine, waker.clone()));
                self.waiting.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    /// Fetches the cell that an operation was given.
    fn fetch(&self, mine: u64) -> Option<u64> {
        let mut queue = self.queue.lock();
        let at = queue.served.iter().position(|(number, _)| *number == mine)?;
        Some(queue.served.swap_remove(at).1)
    }

    /// Leaves the queue. Returns the cell that the operation was given meanwhile.
    fn leave(&self, mine: u64) -> Option<u64> {
        let mut queue = self.queue.lock();
        if let Some(at) = queue.waiting.iter().position(|(number, _)| *number == mine) {
            queue.waiting.remove(at);
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
        let at = queue.served.iter().position(|(number, _)| *number == mine)?;
        Some(queue.served.swap_remove(at).1)
    }
}

/// The place of one operation in the queue for a cell. Dropping it gives the place up, and the cell that it has not
/// fetched.
pub(crate) struct CellWait<'c> {
    cells: &'c NodeCells,
    /// Its number, once it has been polled, until it has its cell.
    number: Option<u64>,
}

impl<'c> CellWait<'c> {
    /// An operation that is about to wait.
    pub(crate) fn new(cells: &'c NodeCells) -> Self {
        CellWait { cells, number: None }
    }

    /// Returns the cell once there is one for this operation.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<u64> {
        self.cells.wait(&mut self.number, cx.waker());
        self.cells.serve();
        match self.number.and_then(|mine| self.cells.fetch(mine)) {
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
        if let Some(cell) = self.number.and_then(|mine| self.cells.leave(mine)) {
            self.cells.give_back(cell, false, false);
        }
    }
}
