//! Local queues for locks in far memory: operations of one compute node that want the same lock wait for each other here,
//! and take the lock one after the other, or hand it over without releasing it.
//!
//! This module knows nothing of verbs: a lock is an address, and what is handed over with it is `T`. The protocol is in
//! `docs/protocols/tree.md`, section "Handing a lock over".
//!
//! Invariants:
//!
//! * **H1** At most one operation of a table has the [`Turn`] at an address. It alone tries to take the lock, holds it, or
//!   releases it. An operation has one turn at most, and gives it up before it waits for another one.
//! * **H2** When a turn ends, the operation that has waited for the longest gets it. An operation that stops waiting, or is
//!   dropped, leaves the queue; if it had the turn already, that turn ends.
//! * **H3** A lock is handed over [`MOST`] times in a row at most. Then it is released, and other compute nodes may take it.

use farindex_fabric::RemotePtr;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// How often a lock is handed over before it is released.
pub(super) const MOST: u32 = 4;

const SHARDS: usize = 64;

/// The queues of a compute node.
pub(super) struct LockTable<T> {
    shards: Box<[Mutex<Vec<Queue<T>>>]>,
}

/// The queue at an address: it exists while an operation has the turn there.
struct Queue<T> {
    at: RemotePtr,
    next: u64,
    waiting: VecDeque<Waiter>,
    /// A turn for the operation of this number, which has not been polled since.
    granted: Option<(u64, Grant<T>)>,
}

struct Waiter {
    number: u64,
    wish: usize,
    waker: Option<Waker>,
}

struct Grant<T> {
    streak: u32,
    held: Option<T>,
}

/// What an operation does that wants a lock.
pub(super) enum Arrival<'t, T> {
    /// No other operation of this compute node wants the lock.
    Turn(Turn<'t, T>),
    Wait(Waiting<'t, T>),
}

impl<T> Default for LockTable<T> {
    fn default() -> Self {
        LockTable { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

impl<T> LockTable<T> {
    fn shard(&self, at: RemotePtr) -> MutexGuard<'_, Vec<Queue<T>>> {
        let shard = (at.to_bits() >> 6).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58;
        // No code panics while it holds a mutex of this module.
        self.shards[shard as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for the turn at an address. The `wish` is for the operation before, which may hand over what it asks for.
    pub(super) fn arrive(&self, at: RemotePtr, wish: usize) -> Arrival<'_, T> {
        let mut shard = self.shard(at);
        if let Some(queue) = shard.iter_mut().find(|queue| queue.at == at) {
            let number = queue.next;
            queue.next += 1;
            queue.waiting.push_back(Waiter { number, wish, waker: None });
            return Arrival::Wait(Waiting { table: self, at, number: Some(number) });
        }
        shard.push(Queue { at, next: 0, waiting: VecDeque::new(), granted: None });
        Arrival::Turn(Turn { table: self, at, streak: 0 })
    }

    /// Returns the number of addresses at which an operation has the turn.
    #[cfg(test)]
    fn busy(&self) -> usize {
        (0..SHARDS).map(|i| self.shards[i].lock().unwrap_or_else(PoisonError::into_inner).len()).sum()
    }

    /// Gives the turn at `at` to the first operation that waits; returns what was to be handed over if none does. Then the
    /// turn ends unless the caller `keeps` it.
    fn pass(&self, at: RemotePtr, grant: Grant<T>, keeps: bool) -> Result<(), Option<T>> {
        let mut shard = self.shard(at);
        let Some(i) = shard.iter().position(|queue| queue.at == at) else { return Err(grant.held) };
        let Some(Waiter { number, waker, .. }) = shard[i].waiting.pop_front() else {
            if !keeps {
                shard.swap_remove(i);
            }
            return Err(grant.held);
        };
        shard[i].granted = Some((number, grant));
        drop(shard);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }
}

/// The right to take the lock at an address, and to hold it. The next operation gets it when it is dropped.
pub(super) struct Turn<'t, T> {
    table: &'t LockTable<T>,
    at: RemotePtr,
    /// How often the lock has been handed over since it was taken.
    streak: u32,
}

impl<T> Turn<'_, T> {
    pub(super) fn at(&self) -> RemotePtr {
        self.at
    }
    /// The wish of the operation to which the lock should be handed over: that has waited for the longest, if the lock may
    /// be handed over once more (H3). It may leave before it gets the lock.
    pub(super) fn next_wish(&self) -> Option<usize> {
        let shard = self.table.shard(self.at);
        let queue = shard.iter().find(|queue| queue.at == self.at && self.streak < MOST)?;
        Some(queue.waiting.front()?.wish)
    }
    /// Ends the turn and hands the lock over with it; gives both back if no operation waits.
    pub(super) fn hand_over(self, held: T) -> Result<(), (Self, T)> {
        let grant = Grant { streak: self.streak + 1, held: Some(held) };
        match self.table.pass(self.at, grant, true) {
            Err(Some(held)) => Err((self, held)),
            Ok(()) | Err(None) => {
                std::mem::forget(self);
                Ok(())
            }
        }
    }
}

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        let _ = self.table.pass(self.at, Grant { streak: 0, held: None }, false);
    }
}

/// A place in a queue.
pub(super) struct Waiting<'t, T> {
    table: &'t LockTable<T>,
    at: RemotePtr,
    /// `None` once it has left the queue.
    number: Option<u64>,
}

impl<'t, T> Waiting<'t, T> {
    /// Waits for the turn; with it comes the lock if that was handed over.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(Turn<'t, T>, Option<T>)> {
        let mut shard = self.table.shard(self.at);
        let queue = shard.iter_mut().find(|queue| queue.at == self.at);
        let waiting =
            queue.and_then(|queue| queue.waiting.iter_mut().find(|waiter| Some(waiter.number) == self.number));
        if let Some(Waiter { waker, .. }) = waiting {
            match waker {
                Some(waker) => waker.clone_from(cx.waker()),
                None => *waker = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        }
        drop(shard);
        self.leave().map_or(Poll::Pending, Poll::Ready)
    }

    /// Leaves the queue; returns the turn if the operation has got it meanwhile.
    pub(super) fn leave(&mut self) -> Option<(Turn<'t, T>, Option<T>)> {
        let number = self.number.take()?;
        let mut shard = self.table.shard(self.at);
        let queue = shard.iter_mut().find(|queue| queue.at == self.at)?;
        if let Some((_, Grant { streak, held })) = queue.granted.take_if(|(of, _)| *of == number) {
            return Some((Turn { table: self.table, at: self.at, streak }, held));
        }
        queue.waiting.retain(|waiter| waiter.number != number);
        None
    }
}

impl<T> Drop for Waiting<'_, T> {
    /// What was handed over is dropped, and the turn ends.
    fn drop(&mut self) {
        drop(self.leave());
    }
}

#[cfg(test)]
mod tests {
    use super::{Arrival, LockTable, MOST, Turn, Waiting};
    use farindex_fabric::{NodeId, RemotePtr};
    use std::task::{Context, Poll, Waker};

    fn at(offset: u64) -> RemotePtr {
        RemotePtr::new(NodeId::new(0), offset)
    }
    fn turn<T>(table: &LockTable<T>, at: RemotePtr) -> Turn<'_, T> {
        match table.arrive(at, 7) {
            Arrival::Turn(turn) => turn,
            Arrival::Wait(_) => panic!("somebody has the turn"),
        }
    }
    fn wait<T>(table: &LockTable<T>, at: RemotePtr) -> Waiting<'_, T> {
        match table.arrive(at, 7) {
            Arrival::Wait(waiting) => waiting,
            Arrival::Turn(_) => panic!("nobody has the turn"),
        }
    }
    fn poll<'t, T>(waiting: &mut Waiting<'t, T>) -> Option<(Turn<'t, T>, Option<T>)> {
        match waiting.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(granted) => Some(granted),
            Poll::Pending => None,
        }
    }

    #[test]
    fn turns_are_in_the_order_of_arrival() {
        let table = LockTable::<u32>::default();
        let first = turn(&table, at(64));
        let (mut second, mut third) = (wait(&table, at(64)), wait(&table, at(64)));
        assert!(poll(&mut second).is_none() && poll(&mut third).is_none());
        drop(first);
        assert!(poll(&mut third).is_none());
        let (first, held) = poll(&mut second).expect("its turn");
        assert_eq!(held, None);
        assert_eq!(first.next_wish(), Some(7));
        assert!(first.hand_over(7).is_ok());
        let (last, held) = poll(&mut third).expect("its turn");
        assert_eq!(held, Some(7));
        let (last, held) = last.hand_over(8).expect_err("nobody waits");
        assert_eq!(held, 8);
        assert_eq!(table.busy(), 1);
        drop(last);
        assert_eq!(table.busy(), 0);
        drop(turn(&table, at(64)));
    }

    #[test]
    fn a_lock_is_released_after_some_hand_overs() {
        let table = LockTable::<()>::default();
        let mut holder = turn(&table, at(64));
        for _ in 0..MOST {
            let mut next = wait(&table, at(64));
            assert_eq!(holder.next_wish(), Some(7));
            assert!(holder.hand_over(()).is_ok());
            holder = poll(&mut next).expect("its turn").0;
        }
        let mut next = wait(&table, at(64));
        assert_eq!(holder.next_wish(), None);
        drop(holder);
        let (next, held) = poll(&mut next).expect("its turn");
        assert_eq!(held, None);
        let _waiting = wait(&table, at(64));
        assert_eq!(next.next_wish(), Some(7));
    }

    #[test]
    fn an_operation_that_is_dropped_passes_its_turn_on() {
        let table = LockTable::<u32>::default();
        let first = turn(&table, at(64));
        let (second, third, mut fourth) = (wait(&table, at(64)), wait(&table, at(64)), wait(&table, at(64)));
        // One that waits, and one that has got the turn and has not been polled.
        drop(second);
        assert!(first.hand_over(7).is_ok());
        drop(third);
        let (last, held) = poll(&mut fourth).expect("its turn");
        assert_eq!(held, None, "what was handed over ended with the one that it was for");
        drop(last);
        assert_eq!(table.busy(), 0);
    }

    #[test]
    fn an_operation_that_leaves_takes_a_lock_that_it_has_got() {
        let table = LockTable::<u32>::default();
        let first = turn(&table, at(64));
        let mut waiting = wait(&table, at(64));
        assert!(first.hand_over(7).is_ok());
        let (turn, held) = waiting.leave().expect("its turn");
        assert_eq!(held, Some(7));
        assert!(waiting.leave().is_none());
        drop((turn, waiting));
        assert_eq!(table.busy(), 0);
    }
}
