//! The table: which operation runs on a key, which wait, and which is next.
//!
//! Invariants: an entry exists exactly while an operation runs or waits on its key. A lane with a waiting operation has
//! a running or elected one. A waiter is in exactly one state: in its lane's queue, elected, in the group of one
//! [`Lead`], or settled. The queue and the election change under the shard's mutex only. A waiter's own mutex is locked
//! inside the shard's mutex, never the other way round. Wakers are called and dropped outside of both mutexes where it
//! matters.

use super::Fault;
use super::fold::{Outcome, Plan, What, outcomes};
use crate::keyhash::KeyHash;
use crate::marks::mark;
use crate::{IndexError, Value};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

const SHARDS: usize = 256;
/// Number of entries for which an empty shard keeps memory.
const KEPT: usize = 16;

/// The running and waiting operations of one compute node, by key. The node's threads share it; see [the
/// module](super).
pub struct Coalescer {
    shards: Box<[Shard]>,
    /// Random, so that keys cannot be chosen to fill one shard.
    seed: u64,
    fault: Fault,
}

/// Aligned so that two mutexes never share a cache line, nor a pair of lines.
#[derive(Default)]
#[repr(align(128))]
struct Shard(Mutex<Vec<Entry>>);

struct Entry {
    hash: u64,
    uid: u64,
    key: SmallVec<[u8; 32]>,
    lanes: [Queue; 2],
}

#[derive(Default)]
struct Queue {
    /// An operation runs, or is elected.
    taken: bool,
    waiting: VecDeque<Arc<Waiter>>,
}

impl Queue {
    /// Puts a group back in its order of arrival. A waiter whose future was dropped meanwhile must not be elected.
    fn wait_again(&mut self, group: &[Arc<Waiter>]) {
        for waiter in group.iter().rev().filter(|waiter| waiter.waits()) {
            self.waiting.push_front(Arc::clone(waiter));
        }
    }
}

/// Gets and writes of one key use separate lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    Gets,
    Writes,
}

/// A key of an index.
#[derive(Clone, Copy)]
pub(super) struct Key<'a> {
    uid: u64,
    hash: u64,
    bytes: &'a [u8],
}

impl Key<'_> {
    fn is(&self, entry: &Entry) -> bool {
        self.hash == entry.hash && self.uid == entry.uid && self.bytes == entry.key.as_slice()
    }
}

/// The outcome of a group for one member, which may be on another thread.
#[derive(Debug, Clone)]
pub(super) enum Answer {
    Got(Result<Option<Arc<[u8]>>, IndexError>),
    Wrote(Result<Outcome, IndexError>),
}

struct Waiter {
    /// `None` for a get, and for a write that expects a value: that joins no group.
    write: Option<(What, Arc<[u8]>)>,
    state: Mutex<State>,
}

enum State {
    Waiting(Option<Waker>),
    Elected,
    Answered(Answer),
    /// Its future was dropped, or has returned its answer.
    Gone,
}

impl Waiter {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
    fn waits(&self) -> bool {
        matches!(*self.state(), State::Waiting(_))
    }
    /// Settles a waiting operation; returns its waker.
    fn becomes(&self, next: State) -> Option<Waker> {
        let mut state = self.state();
        match &mut *state {
            State::Waiting(waker) => {
                let waker = waker.take();
                *state = next;
                waker
            }
            _ => None,
        }
    }
    fn answer(&self, answer: Answer) {
        if let Some(waker) = self.becomes(State::Answered(answer)) {
            waker.wake();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics while it holds a mutex of this module.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What an arriving operation does.
pub(super) enum Arrival<'a> {
    /// No other operation is on the key: it runs.
    Lead(Lead<'a>),
    /// It waits.
    Wait(Wait<'a>),
}

impl Default for Coalescer {
    fn default() -> Self {
        Self::new(Fault::None)
    }
}

impl Coalescer {
    /// Makes an empty table.
    pub fn new(fault: Fault) -> Self {
        let seed = RandomState::new().hash_one(());
        Coalescer { shards: (0..SHARDS).map(|_| Shard::default()).collect(), seed, fault }
    }
    /// Returns the bytes that it uses: its capacity, and the values of waiting writes.
    pub fn bytes(&self) -> u64 {
        let of_entry = |entry: &Entry| {
            let key = if entry.key.spilled() { entry.key.capacity() } else { 0 };
            let waiting = entry.lanes.iter().flat_map(|queue| &queue.waiting);
            let values = waiting.map(|waiter| waiter.write.as_ref().map_or(0, |(_, value)| value.len()));
            let queues = entry.lanes.iter().map(|queue| queue.waiting.capacity() * size_of::<Arc<Waiter>>());
            key + values.map(|len| len + size_of::<Waiter>()).sum::<usize>() + queues.sum::<usize>()
        };
        let of_shard = |shard: &Shard| {
            let entries = lock(&shard.0);
            size_of::<Shard>() + entries.capacity() * size_of::<Entry>() + entries.iter().map(of_entry).sum::<usize>()
        };
        (size_of::<Self>() + self.shards.iter().map(of_shard).sum::<usize>()) as u64
    }
    /// Returns the number of keys on which an operation runs or waits.
    pub fn busy_keys(&self) -> usize {
        self.shards.iter().map(|shard| lock(&shard.0).len()).sum()
    }

    /// Identifies a key of an index.
    pub(super) fn key<'a>(&self, uid: u64, bytes: &'a [u8]) -> Key<'a> {
        let uid = if self.fault == Fault::MixedIndexes { 0 } else { uid };
        Key { uid, hash: KeyHash::of(bytes, self.seed).bits(), bytes }
    }

    fn shard(&self, key: &Key<'_>) -> MutexGuard<'_, Vec<Entry>> {
        let number = (key.hash ^ key.uid.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20) as usize % SHARDS;
        lock(&self.shards[number].0)
    }

    pub(super) fn arrive<'a>(&'a self, lane: Lane, key: Key<'a>, write: Option<(What, &[u8])>) -> Arrival<'a> {
        let mut shard = self.shard(&key);
        let lead =
            |elected| Lead { place: Place { table: self, lane, key }, group: Vec::new(), elected, posted: false };
        let Some(entry) = shard.iter_mut().find(|entry| key.is(entry)) else {
            let mut lanes = [Queue::default(), Queue::default()];
            lanes[lane as usize].taken = true;
            shard.push(Entry { hash: key.hash, uid: key.uid, key: SmallVec::from_slice(key.bytes), lanes });
            return Arrival::Lead(lead(false));
        };
        let queue = &mut entry.lanes[lane as usize];
        if !std::mem::replace(&mut queue.taken, true) {
            return Arrival::Lead(lead(false));
        }
        let write = write.map(|(what, value)| (what, Arc::from(value)));
        let waiter = Arc::new(Waiter { write, state: Mutex::new(State::Waiting(None)) });
        queue.waiting.push_back(Arc::clone(&waiter));
        Arrival::Wait(Wait { place: Place { table: self, lane, key }, waiter })
    }
}

/// A lane of a key.
#[derive(Clone, Copy)]
struct Place<'a> {
    table: &'a Coalescer,
    lane: Lane,
    key: Key<'a>,
}

impl Place<'_> {
    /// Runs `work` on the queue, under the shard's mutex.
    fn with<T>(&self, work: impl FnOnce(&mut Queue) -> T) -> Option<T> {
        let mut shard = self.table.shard(&self.key);
        let entry = shard.iter_mut().find(|entry| self.key.is(entry))?;
        Some(work(&mut entry.lanes[self.lane as usize]))
    }

    /// Ends the running or elected operation: runs `work` on the queue, then elects the next operation.
    fn leave(&self, work: impl FnOnce(&mut Queue)) {
        let elected = {
            let mut shard = self.table.shard(&self.key);
            let Some(i) = shard.iter().position(|entry| self.key.is(entry)) else { return };
            let queue = &mut shard[i].lanes[self.lane as usize];
            work(queue);
            let next = queue.waiting.pop_front();
            queue.taken = next.is_some();
            let waker = next.and_then(|next| next.becomes(State::Elected));
            if shard[i].lanes.iter().all(|queue| !queue.taken) {
                shard.swap_remove(i);
                if shard.is_empty() && shard.capacity() > KEPT {
                    shard.shrink_to(KEPT);
                }
            }
            waker
        };
        if let Some(waker) = elected {
            waker.wake();
        }
    }
}

/// Future of a waiting operation: it is answered or elected.
pub(super) struct Wait<'a> {
    place: Place<'a>,
    waiter: Arc<Waiter>,
}

/// Result of waiting.
pub(super) enum Waited<'a> {
    /// Another operation has answered it.
    Answered(Answer),
    /// It runs next.
    Elected(Lead<'a>),
}

impl<'a> Future for Wait<'a> {
    type Output = Waited<'a>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Waited<'a>> {
        let mut state = self.waiter.state();
        match &mut *state {
            State::Waiting(Some(waker)) => waker.clone_from(cx.waker()),
            State::Waiting(none) => *none = Some(cx.waker().clone()),
            _ => {
                return match std::mem::replace(&mut *state, State::Gone) {
                    State::Answered(answer) => Poll::Ready(Waited::Answered(answer)),
                    _ => {
                        let place = self.place;
                        Poll::Ready(Waited::Elected(Lead { place, group: Vec::new(), elected: true, posted: false }))
                    }
                };
            }
        }
        Poll::Pending
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let before = self.place.with(|queue| {
            let before = std::mem::replace(&mut *self.waiter.state(), State::Gone);
            if matches!(before, State::Waiting(_)) {
                queue.waiting.retain(|waiter| !Arc::ptr_eq(waiter, &self.waiter));
            }
            before
        });
        // It was elected: elect the next operation in its place.
        if let Some(State::Elected) = before {
            self.place.leave(|_| {});
        }
    }
}

/// The right to run on a lane, and the group for which it runs. Dropping it elects the next operation.
pub(super) struct Lead<'a> {
    place: Place<'a>,
    group: Vec<Arc<Waiter>>,
    /// It has waited itself, so others may have joined meanwhile.
    elected: bool,
    /// The remote operation has begun.
    posted: bool,
}

impl Lead<'_> {
    /// Takes every waiting get into the group. Called just before the remote operation.
    pub(super) fn gather_gets(&mut self) {
        self.group.extend(self.place.with(|queue| std::mem::take(&mut queue.waiting)).into_iter().flatten());
    }

    /// Takes the writes that fold with this one into the group, up to one that expects a value. Called just before the
    /// remote operation.
    pub(super) fn plan_writes(&mut self, mine: What) -> Plan {
        let alone = Plan { len: 1, remote: mine.alone(), member: 0 };
        if !self.elected {
            return alone;
        }
        let planned = self.place.with(|queue| {
            let whats = queue.waiting.iter().map_while(|waiter| waiter.write.as_ref()).map(|(what, _)| *what);
            let plan = Plan::of(mine, whats);
            (plan, queue.waiting.drain(..plan.len - 1).collect())
        });
        let Some((plan, group)) = planned else { return alone };
        self.group = group;
        if self.place.table.fault == Fault::DroppedValues { alone } else { plan }
    }

    /// Returns the value of the group's `i`-th member, not counting the leader.
    pub(super) fn value(&self, i: usize) -> Option<Arc<[u8]>> {
        self.group.get(i)?.write.as_ref().map(|(_, value)| Arc::clone(value))
    }

    /// Records that the remote operation may take effect from now on.
    pub(super) fn posts(&mut self) {
        self.posted = true;
    }

    /// Answers the group after its remote get has ended.
    pub(super) fn end_gets(mut self, got: Result<Option<&Value>, &IndexError>) {
        let mut group = std::mem::take(&mut self.group);
        let late = self.place.table.fault == Fault::LateReaders;
        let place = self.place;
        std::mem::forget(self);
        place.leave(|queue| {
            if late {
                group.extend(queue.waiting.drain(..));
            }
        });
        if group.is_empty() {
            return;
        }
        mark!("lock table: get answered for others");
        let answer = Answer::Got(match got {
            Ok(value) => Ok(value.map(|value| Arc::from(&**value))),
            Err(error) => Err(error.clone()),
        });
        for waiter in group {
            waiter.answer(answer.clone());
        }
    }

    /// Dissolves the group after its remote write was refused without effect: the others wait again, each for a write
    /// of its own.
    pub(super) fn disband(&mut self) {
        let group = std::mem::take(&mut self.group);
        if self.place.with(|queue| queue.wait_again(&group)).is_none() {
            group.iter().for_each(|waiter| waiter.answer(Answer::Wrote(Err(IndexError::Interrupted))));
        }
    }

    /// Answers the group after its remote write has ended, which reports whether the key was `present` before. Returns
    /// the leader's outcome.
    pub(super) fn end_writes(mut self, mine: What, present: Result<bool, IndexError>) -> Result<Outcome, IndexError> {
        let group = std::mem::take(&mut self.group);
        let place = self.place;
        std::mem::forget(self);
        place.leave(|_| {});
        let present = match present {
            Ok(present) => present,
            Err(error) => {
                group.iter().for_each(|waiter| waiter.answer(Answer::Wrote(Err(error.clone()))));
                return Err(error);
            }
        };
        let whats = group.iter().filter_map(|waiter| waiter.write.as_ref()).map(|(what, _)| *what);
        let mut reported = outcomes(present, std::iter::once(mine).chain(whats));
        let own = reported.next().ok_or(IndexError::Interrupted);
        for (waiter, outcome) in group.iter().zip(reported) {
            waiter.answer(Answer::Wrote(Ok(outcome)));
        }
        own
    }
}

impl Drop for Lead<'_> {
    /// Runs when the leader's future is dropped.
    fn drop(&mut self) {
        let group = std::mem::take(&mut self.group);
        let repeats = self.place.table.fault == Fault::RepeatedGroup;
        let again = self.place.lane == Lane::Gets || !self.posted || repeats;
        self.place.leave(|queue| {
            if again {
                queue.wait_again(&group);
            }
        });
        if !again && self.place.table.fault != Fault::ForgottenGroup {
            group.iter().for_each(|waiter| waiter.answer(Answer::Wrote(Err(IndexError::Interrupted))));
        }
    }
}
