//! The batches of one endpoint that are in flight.
//!
//! Invariants: a batch ends once, by its completion or by its deadline, whichever is first; what comes in for it later
//! is recognised and counted, and its results are dropped, even when its place has been used again. What a batch holds
//! is dropped when nothing of it can land any more: with its end, or, if it has failed, with the [doubt](crate::doubts)
//! about it.

use crate::doubts::{Doubts, Nodes, hold_once};
use crate::{Chain, FabricError, NodeId};
use std::any::Any;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

/// Why a batch failed, if it did. Behind a pointer so that success moves no room for it about.
pub(crate) type Failure = Option<Box<FabricError>>;

/// What a future learns of its batch.
pub(crate) enum Landing {
    /// It is in flight. The waker is not needed any more: dropping it may run foreign code, so the caller does it.
    Waits(Option<Waker>),
    /// It has ended: its verbs, and why it failed.
    Ended(Chain, Failure),
    /// Its result was taken before.
    Taken,
}

/// State of a batch that did not complete at once.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Free,
    /// It is in flight. Its future may have been polled.
    Waiting,
    Done,
    /// It is in flight, and no future waits for it: its result is dropped, and then what it holds.
    Unwatched,
}

/// A batch that did not complete at once, in fields of their own: nothing is moved or dropped that is not there.
#[derive(Default)]
struct Flight {
    generation: u32,
    state: State,
    /// While it waits: whom to wake.
    waker: Option<Waker>,
    /// When it is done.
    chain: Chain,
    failure: Failure,
    /// While it is unwatched.
    held: Option<Box<dyn Any>>,
    /// The nodes whose memory it changes.
    changes: Nodes,
    /// Its future was dropped while it was in flight, or it is late; and it changes memory.
    abandoned: bool,
    /// What else it holds then.
    also: Vec<Rc<dyn Any>>,
    /// It has failed by its deadline, and the transport still has it.
    late: bool,
}

impl Flight {
    fn holds(&self) -> bool {
        self.held.is_some() || !self.also.is_empty()
    }
}

/// What a batch has held.
pub(crate) type Released = (Option<Box<dyn Any>>, Vec<Rc<dyn Any>>);

/// All batches in flight of one endpoint. A batch's number is (generation, place).
#[derive(Default)]
pub(crate) struct Inflight {
    places: Vec<Flight>,
    free: Vec<u32>,
    /// Each, and the node of its first verb; in the order of posting, ended ones included.
    by_age: VecDeque<(u64, NodeId)>,
    /// When they were posted: a time, and how many one after the other have it. Those that follow have none yet: they get that
    /// of the next look at the clock.
    dates: VecDeque<(Duration, usize)>,
    undated: usize,
    strays: u64,
    /// Batches so far.
    opened: u64,
    /// Values that ended batches held: dropping them may run foreign code, so the endpoint does it.
    released: Vec<Released>,
    /// Batches in flight that hold something.
    holding: usize,
    /// Batches whose futures were dropped, or that are late, and that change memory.
    abandoned: usize,
    /// Batches that have failed and may land yet.
    doubts: Doubts,
    /// When the transport will wake the endpoint, for the deadline of its oldest batch.
    armed: Option<Duration>,
}

impl Inflight {
    #[inline]
    pub(crate) fn open(&mut self, changes: Nodes) -> u64 {
        self.opened += 1;
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(Flight::default());
            self.places.len() as u32 - 1
        });
        let flight = &mut self.places[place as usize];
        (flight.state, flight.changes, flight.abandoned, flight.late) = (State::Waiting, changes, false, false);
        u64::from(flight.generation) << 32 | u64::from(place)
    }
    #[inline]
    fn get(&mut self, id: u64) -> Option<&mut Flight> {
        let flight = self.places.get_mut(id as u32 as usize)?;
        (u64::from(flight.generation) == id >> 32).then_some(flight)
    }
    /// Makes place for another batch. What this one has left was taken before: nothing is dropped here.
    #[inline]
    pub(crate) fn close(&mut self, id: u64) {
        if let Some(flight) = self.get(id) {
            flight.state = State::Free;
            flight.generation = flight.generation.wrapping_add(1);
            self.free.push(id as u32);
        }
    }
    /// Records that a batch was posted. Batches are posted in the order of their times. Without a time it gets that of
    /// the next call of [`expire`](Self::expire).
    #[inline]
    pub(crate) fn posted(&mut self, id: u64, node: NodeId, at: Option<Duration>) {
        self.by_age.push_back((id, node));
        self.undated += 1;
        if let Some(at) = at {
            self.date(at);
        }
    }
    fn date(&mut self, now: Duration) {
        if self.undated > 0 {
            let count = std::mem::take(&mut self.undated);
            match self.dates.back_mut().filter(|(at, _)| *at == now) {
                Some((_, dated)) => *dated += count,
                None => self.dates.push_back((now, count)),
            }
        }
    }
    fn pop_oldest(&mut self) {
        self.by_age.pop_front();
        if let Some((_, count)) = self.dates.front_mut() {
            *count -= 1;
            if *count == 0 {
                self.dates.pop_front();
            }
        }
    }
    /// When the oldest batch was posted, if it has a time.
    fn oldest(&self) -> Option<Duration> {
        self.dates.front().map(|(at, _)| *at)
    }
    /// Should the transport be asked for a wake-up at `due`? One at a time is enough: the next is asked for when it has
    /// passed. Asking for each batch would leave a fabric in virtual time with many stale requests.
    pub(crate) fn arm(&mut self, now: Duration, due: Duration) -> bool {
        let needed = self.armed.is_none_or(|at| at <= now || due < at);
        if needed {
            self.armed = Some(due);
        }
        needed
    }
    /// Returns the next wake-up to ask the transport for, if one is needed.
    pub(crate) fn rearm(&mut self, now: Duration, deadline: Duration) -> Option<Duration> {
        let due = self.oldest()?.saturating_add(deadline);
        self.arm(now, due).then_some(due)
    }
    /// Is no batch in flight? (Ended ones may be counted for a while.)
    pub(crate) fn is_empty(&self) -> bool {
        self.by_age.is_empty()
    }
    /// Does a transport have batches whose end matters?
    pub(crate) fn expects_completions(&self) -> bool {
        !self.is_empty() || self.has_abandoned()
    }
    /// The times at which the batches in flight were posted.
    pub(crate) fn posting_times(&self) -> impl Iterator<Item = Duration> + '_ {
        self.dates.iter().map(|(at, _)| *at)
    }
    /// Number of batches so far, ended ones included.
    pub(crate) fn opened(&self) -> u64 {
        self.opened
    }
    /// Number of completions that came for no batch in flight: late, or a second time.
    pub(crate) fn strays(&self) -> u64 {
        self.strays
    }

    /// Records the result of a batch; returns the waker of the future that waits for it.
    #[inline]
    pub(crate) fn settle(&mut self, id: u64, chain: Chain, failure: Failure) -> Option<Waker> {
        match self.get(id) {
            Some(flight) if flight.state == State::Waiting => {
                flight.state = State::Done;
                flight.chain = chain;
                let failed = failure.is_some();
                flight.failure = failure;
                let (changes, waker) = (flight.changes, flight.waker.take());
                if failed && !changes.is_empty() {
                    self.doubts.add(changes, Vec::new(), None);
                }
                waker
            }
            _ => {
                self.settle_unwatched(id, failure);
                None
            }
        }
    }

    /// Records the result of a batch for which no future waits, or that has ended already.
    #[inline(never)]
    fn settle_unwatched(&mut self, id: u64, failure: Failure) {
        let Some(flight) = self.get(id).filter(|flight| flight.late || flight.state == State::Unwatched) else {
            self.strays += 1;
            return;
        };
        let (changes, state) = (flight.changes, flight.state);
        let (late, abandoned) = (std::mem::take(&mut flight.late), std::mem::take(&mut flight.abandoned));
        let (held, also) = (flight.held.take(), std::mem::take(&mut flight.also));
        let holds = held.is_some() || !also.is_empty();
        self.strays += u64::from(late);
        self.holding -= usize::from(holds && !late);
        self.abandoned -= usize::from(abandoned);
        match failure {
            // Its verbs may land later, unnoticed (N7).
            Some(_) if !changes.is_empty() => self.doubts.add(changes, also, held),
            _ if holds => self.released.push((held, also)),
            _ => {}
        }
        // Its future may not have asked yet what became of it.
        if state == State::Unwatched {
            self.close(id);
        }
    }

    /// Fails the batches that are older than `deadline`; returns whether there were any, and the wakers of their
    /// futures. The transport still has them: until it has ended them, they count as abandoned.
    pub(crate) fn expire(&mut self, now: Duration, deadline: Duration) -> (bool, Vec<Waker>) {
        let (mut any, mut woken) = (false, Vec::new());
        self.date(now);
        while let (Some(&(id, node)), Some(posted)) = (self.by_age.front(), self.oldest()) {
            let waiting = self.get(id).is_some_and(|flight| matches!(flight.state, State::Waiting | State::Unwatched));
            if waiting && posted.saturating_add(deadline) > now {
                break;
            }
            self.pop_oldest();
            if waiting {
                any = true;
                woken.extend(self.expire_one(id, FabricError::Deadline { node, after: deadline }));
            }
        }
        (any, woken)
    }

    fn expire_one(&mut self, id: u64, error: FabricError) -> Option<Waker> {
        let flight = self.get(id)?;
        flight.late = true;
        if flight.state == State::Waiting {
            flight.state = State::Done;
            flight.failure = Some(Box::new(error));
            flight.abandoned = !flight.changes.is_empty();
            let (abandoned, waker) = (flight.abandoned, flight.waker.take());
            self.abandoned += usize::from(abandoned);
            return waker;
        }
        let (holds, abandoned) = (flight.holds(), flight.abandoned);
        // Nobody waits for what it holds any more.
        self.holding -= usize::from(holds);
        if !holds && !abandoned {
            self.close(id);
        }
        None
    }

    /// Returns the result of a batch, once.
    #[inline]
    pub(crate) fn poll(&mut self, id: u64, cx: &Context<'_>) -> Landing {
        let Some(flight) = self.get(id) else { return Landing::Taken };
        match flight.state {
            State::Waiting => {
                let same = flight.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
                Landing::Waits(if same { None } else { flight.waker.replace(cx.waker().clone()) })
            }
            State::Done => {
                let (chain, failure) = (std::mem::take(&mut flight.chain), flight.failure.take());
                self.close_or_leave(id);
                Landing::Ended(chain, failure)
            }
            State::Free | State::Unwatched => Landing::Taken,
        }
    }

    /// Lets a batch without a future hold a value until the batch ends. If it has ended already, the value is returned.
    pub(crate) fn hold(&mut self, id: u64, held: Box<dyn Any>) -> Option<Box<dyn Any>> {
        match self.get(id) {
            Some(flight) if flight.state == State::Waiting => {
                flight.state = State::Unwatched;
                flight.held = Some(held);
                self.holding += 1;
                None
            }
            Some(flight) if flight.state == State::Done && flight.failure.is_none() => {
                self.drop_result(id);
                Some(held)
            }
            // It has failed, so it may land yet (N7).
            Some(flight) if flight.state == State::Done && flight.late => {
                flight.held = Some(held);
                self.drop_result(id);
                None
            }
            _ => {
                self.drop_result(id);
                self.doubts.hold_boxed(held)
            }
        }
    }
    /// Holds a value until nothing can land any more of the batches in flight whose futures were dropped, and of those that have
    /// failed.
    pub(crate) fn hold_until_landed(&mut self, held: &Rc<dyn Any>) {
        for flight in self.places.iter_mut().filter(|flight| flight.abandoned) {
            self.holding += usize::from(!flight.holds() && !flight.late);
            hold_once(&mut flight.also, held);
        }
        self.doubts.hold(held);
    }
    /// Does a transport still have batches that change memory, and whose futures were dropped or have failed by the deadline?
    #[inline]
    pub(crate) fn has_abandoned(&self) -> bool {
        self.abandoned > 0
    }
    /// Batches that have failed and may land yet.
    #[inline]
    pub(crate) fn doubts(&mut self) -> &mut Doubts {
        &mut self.doubts
    }
    /// Number of batches so far that change memory and have failed.
    #[inline]
    pub(crate) fn failed(&self) -> u64 {
        self.doubts.failed()
    }
    /// May one of them land yet?
    #[inline]
    pub(crate) fn has_doubts(&self) -> bool {
        !self.doubts.is_empty()
    }
    fn drop_result(&mut self, id: u64) {
        if let Some(flight) = self.get(id) {
            (flight.chain, flight.failure) = (Chain::new(), None);
            self.close_or_leave(id);
        }
    }
    /// Its result was taken. If the transport still has it, its place stays until that has ended it.
    #[inline]
    fn close_or_leave(&mut self, id: u64) {
        match self.get(id).filter(|flight| flight.late) {
            Some(flight) => flight.state = State::Unwatched,
            None => self.close(id),
        }
    }
    /// Batches in flight that hold something.
    pub(crate) fn holding(&self) -> usize {
        self.holding
    }
    /// Takes the values that ended batches held.
    pub(crate) fn take_released(&mut self) -> Vec<Released> {
        std::mem::take(&mut self.released)
    }

    /// No future waits for the batch any more. `abandoned`: one would have. The caller drops the waker.
    pub(crate) fn forget(&mut self, id: u64, abandoned: bool) -> Option<Waker> {
        let flight = self.get(id)?;
        match flight.state {
            State::Waiting => {
                flight.state = State::Unwatched;
                flight.abandoned = abandoned && !flight.changes.is_empty();
                let (abandoned, waker) = (flight.abandoned, flight.waker.take());
                self.abandoned += usize::from(abandoned);
                waker
            }
            State::Done => {
                self.drop_result(id);
                None
            }
            State::Free | State::Unwatched => None,
        }
    }
}

impl Drop for Inflight {
    fn drop(&mut self) {
        // These verbs may land later, unnoticed: what they hold is never dropped.
        for flight in &mut self.places {
            std::mem::forget((flight.held.take(), std::mem::take(&mut flight.also)));
        }
    }
}
