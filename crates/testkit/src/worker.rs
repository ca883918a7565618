//! The operations of one coroutine: drawn, carried out, recorded.

use crate::auditing::Auditing;
use crate::budget::Costs;
use crate::cancelling::Given;
use crate::cluster::session_of;
use crate::commanding::{Commanding, Effect};
use crate::dropping::Dropping;
use crate::index_under_test::IndexUnderTest;
use crate::naming::Naming;
use crate::stalling::Stalling;
use crate::waits::Waits;
use crate::workload::{Op, Workload};
use farindex_check::{Call, ClientLog, Outcome, Recorder, Stamps, Ticket};
use farindex_fabric::{Endpoint, FabricError, OpKind};
use farindex_index::coalesce::{Coalescer, Fault};
use farindex_index::{
    AnyIndex, IndexError, Insert, OrderedIndex, PointIndex, Remove, RemoveIf, Replace, Update, Upsert, Value,
};
use farindex_pool::{PoolError, Session};
use farindex_sim::{ODDS, SimRng};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Name of the worker that checks the index after all others have ended.
pub(crate) const LAST: u64 = 999;

/// Which index of a run: usually there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    One,
    /// The second one of the same kind, with the same keys.
    Other,
}

/// State that all coroutines of a run share.
pub(crate) struct Shared {
    pub(crate) workload: Workload,
    /// One for each index.
    pub(crate) recorders: [Recorder; 2],
    /// Are there two indexes?
    pub(crate) pair: bool,
    pub(crate) stamps: Stamps,
    pub(crate) failures: RefCell<Vec<String>>,
    /// Do removals need memory?
    pub(crate) removes_by_writing: bool,
    /// Do lookups fail where writes do?
    pub(crate) lookups_own: bool,
    /// May a lookup take a lock?
    pub(crate) lookups_lock: bool,
    /// Clients that have written everything back.
    pub(crate) closed: RefCell<BTreeSet<u64>>,
    /// Operations that the pool had no room for.
    pub(crate) refused: Cell<u64>,
    /// May clients lose their leases?
    pub(crate) crashes: bool,
    /// Is the lease so short that a client at work may hold a lock for longer?
    pub(crate) short_lease: bool,
    pub(crate) lease: Duration,
    /// Odds that a get asks for many keys at once.
    pub(crate) many: u32,
    /// Are keys ordered, so that some gets become scans?
    pub(crate) ordered: bool,
    /// Gets of many keys.
    pub(crate) batched: Cell<u64>,
    /// Odds that an upsert is one of several keys.
    pub(crate) upserts_together: u32,
    /// Upserts of several keys.
    pub(crate) written_together: Cell<u64>,
    pub(crate) scans: Cell<u64>,
    /// Operations that ended because their client had lost its lease.
    pub(crate) evicted: Cell<u64>,
    /// Odds that a change expects a value.
    pub(crate) guarded: u32,
    /// Changes that found the expected value.
    pub(crate) replaced: Cell<u64>,
    /// Odds that a get is a walk instead.
    pub(crate) walking: u32,
    /// Walks that have ended.
    pub(crate) walks: Cell<u64>,
    /// Walks that found a crashed client's lock in their way.
    pub(crate) blocked: Cell<u64>,
    /// What operations cost, in quiet runs.
    pub(crate) costs: Option<Costs>,
    /// Clients that are stalled.
    pub(crate) stalling: Stalling,
    /// Odds that a client opens the index again before an operation.
    pub(crate) reopening: u32,
    /// Odds that a coroutine goes on with another session before an operation.
    pub(crate) sessions: u32,
    /// What the memory is filled with in the end, if it is.
    pub(crate) refilling: Option<SimRng>,
    /// Looks whether the pool was full although memory was free.
    pub(crate) refilled: Cell<u64>,
    /// Judges how long operations wait.
    pub(crate) waits: Waits,
    /// Do clients go without leaving the pool?
    pub(crate) vanishing: bool,
    /// Odds that a get is a recovery of the whole index instead.
    pub(crate) recovering: u32,
    /// Odds that an operation is given up before it has completed.
    pub(crate) cancelling: u32,
    /// Are indexes dropped, in the end at the latest?
    pub(crate) dropping: bool,
    /// Does the first coroutine that is done drop its index?
    pub(crate) dropping_among_others: bool,
    /// Does a coroutine drop its index in the midst of its operations?
    pub(crate) sudden: bool,
    /// May batches fail?
    pub(crate) failing: bool,
    /// What is given up is given up while it is in flight, and may take effect much later.
    pub(crate) lagging: bool,
    /// How far the drop of each index has come.
    pub(crate) drops: [Cell<Dropping>; 2],
    /// Who may own what.
    pub(crate) commanding: Commanding,
    /// Indexes that come and go in the catalog.
    pub(crate) naming: Naming,
    /// Who is registered.
    pub(crate) auditing: Auditing,
    /// Clients that have given a write up, and when.
    pub(crate) gave_up: RefCell<BTreeMap<u64, Duration>>,
    /// Operations that were to be given up.
    pub(crate) cancelled: Cell<u64>,
    /// May clients leave in haste?
    pub(crate) hasty: bool,
    /// Do walks stop between two verbs?
    pub(crate) pausing: bool,
    /// What walks amid bursts of changes are drawn from, in the end, if there are any.
    pub(crate) bursting: Option<SimRng>,
    /// The same for walks whose batches take as long as a burst.
    pub(crate) slow_bursting: Option<SimRng>,
    pub(crate) bursts: Cell<u64>,
    /// Such pauses.
    pub(crate) pauses: Cell<u64>,
    /// Is the memory of an index judged whose entries come and go?
    pub(crate) turnover: bool,
    pub(crate) turnovers: Cell<u64>,
    /// Recoveries among the operations.
    pub(crate) recoveries: Cell<u64>,
    /// What leaders of groups that are given up in the end are drawn from, if there are any.
    pub(crate) leading: Option<SimRng>,
    pub(crate) leaders: Cell<u64>,
    /// With a lock table for each client: the fault that the tables have.
    pub(crate) coalescing: Option<Fault>,
    /// By client slot and generation: one table for all coroutines of a client. The next client in a slot needs a new
    /// one, because the lanes of the old one belong to coroutines that a crash has ended.
    pub(crate) tables: RefCell<BTreeMap<(u64, u64), Arc<Coalescer>>>,
}

/// Has this client lost its lease?
pub(crate) fn is_eviction(error: &IndexError) -> bool {
    matches!(error, IndexError::Fabric(FabricError::Revoked) | IndexError::Pool(PoolError::LeaseLost))
}

impl Shared {
    pub(crate) fn fail(&self, what: String) {
        self.failures.borrow_mut().push(what);
    }
    pub(crate) fn stamp(&self, endpoint: &Endpoint) -> u64 {
        self.stamps.at(endpoint.now().as_nanos() as u64)
    }

    /// The indexes of the run.
    pub(crate) fn indexes(&self) -> impl Iterator<Item = Which> + use<> {
        let other = self.pair.then_some(Which::Other);
        std::iter::once(Which::One).chain(other)
    }
    pub(crate) fn recorder(&self, which: Which) -> &Recorder {
        &self.recorders[which as usize]
    }
    /// May operations be dropped before they have completed?
    pub(crate) fn gives_up(&self) -> bool {
        self.cancelling > 0 || self.hasty || self.failing
    }
    /// May locks and memory be left that nobody releases?
    pub(crate) fn leaves_unfinished(&self) -> bool {
        self.crashes || self.gives_up()
    }
    /// May a client that lives keep a lock for longer than others wait for it?
    pub(crate) fn holders_linger(&self) -> bool {
        self.crashes && self.short_lease || self.waits.has_holder() || self.gives_up()
    }

    /// The bytes of a value, which it must be equal to by every means of comparison, and to no others.
    pub(crate) fn bytes_of(&self, value: &Value) -> Vec<u8> {
        let bytes = value.to_vec();
        let same: &[u8] = &bytes;
        let longer = [same, b"."].concat();
        let (copies, other) = ([value.clone(), Value::from(same)], Value::from(longer.as_slice()));
        let equal = *value == same && *value == &bytes && copies.iter().all(|copy| value == copy);
        let unequal = *value != longer.as_slice() && *value != other;
        if !equal || !unequal || value.as_ref() != same {
            self.fail(format!("the value {value:?} does not compare as its bytes do"));
        }
        bytes
    }
}

/// The name of the worker that inserts the keys that are there from the beginning.
pub(crate) const PRELOADING: u64 = 0;

/// One coroutine's state.
pub(crate) struct Worker {
    pub(crate) shared: Rc<Shared>,
    /// The index that it works on.
    pub(crate) which: Which,
    pub(crate) index: Rc<AnyIndex>,
    pub(crate) endpoint: Endpoint,
    pub(crate) log: ClientLog,
    pub(crate) rng: SimRng,
    pub(crate) name: u64,
    pub(crate) written: u64,
    /// For workers that open the index again.
    pub(crate) session: Option<Rc<Session>>,
    /// By key: the value that it has read or written last, if operations expect values.
    pub(crate) last: BTreeMap<Vec<u8>, Vec<u8>>,
    /// What it has given up.
    pub(crate) given: Given,
}

impl Worker {
    /// Runs one operation; `false` if the client has lost its lease.
    pub(crate) async fn run(&mut self, op: Op, key: &[u8]) -> bool {
        let value = self.value();
        let expected = self.last.get(key).cloned().unwrap_or_else(|| b"never written".to_vec());
        let values = (expected.as_slice(), value.as_slice());
        let ticket = self.log.invoke(call_of(op, key, values), self.shared.stamp(&self.endpoint));
        let before = self.shared.costs.as_ref().map(|_| self.endpoint.meter());
        let began = self.endpoint.now();
        let is_gone = self.shared.drop_of(self.which) == Dropping::Done;
        let polls = self.patience(op);
        if polls < u64::MAX && op == Op::Get && self.sets_aside() && self.rng.chance(ODDS / 2) {
            return self.get_aside(key, ticket, polls).await;
        }
        let operation = async {
            match op {
                // Its value is looked at closely.
                Op::Get => {
                    let value = self.index.get(key).await?;
                    Ok(Outcome::Value(value.map(|value| self.shared.bytes_of(&value))))
                }
                op => carry_out(&*self.index, op, key, values).await,
            }
        };
        let Some(result) = Self::with_patience(polls, self.shared.lagging, operation).await else { return true };
        self.waited(began, || format!("{op:?} of {}", key.escape_ascii()));
        if is_gone && result.is_ok() {
            self.shared.fail(format!("{op:?} of {} succeeds, and the index was dropped", key.escape_ascii()));
        }
        // What the pool does meanwhile is not part of its cost, and the keys of the beginning warm the caches.
        if let (Some(costs), Some(before), Some(session)) = (&self.shared.costs, before, &self.session) {
            let kinds = OpKind::ALL.into_iter().filter(|kind| *kind != OpKind::Maintenance);
            let now = self.endpoint.meter();
            let round_trips = kinds.map(|kind| now.of(kind).round_trips - before.of(kind).round_trips).sum();
            costs.add(op, round_trips, session.client().epoch());
        }
        self.finish(op, key, &value, ticket, result)
    }

    /// Draws a value to write.
    fn value(&mut self) -> Vec<u8> {
        self.written += 1;
        let value = self.shared.workload.value(&mut self.rng, self.name, self.written);
        if self.shared.guarded > 0 && self.rng.chance(ODDS / 8) {
            // One that other writes have, too: a key may change and have the same value again.
            return vec![b'a' + self.rng.below(2) as u8];
        }
        value
    }

    /// Records how an operation has ended; `false` if the client has lost its lease.
    pub(crate) fn finish(
        &mut self,
        op: Op,
        key: &[u8],
        value: &[u8],
        ticket: Ticket,
        result: Result<Outcome, IndexError>,
    ) -> bool {
        match result {
            Ok(outcome) => {
                self.remember(key, value, op, &outcome);
                self.log.complete(ticket, self.shared.stamp(&self.endpoint), outcome);
                true
            }
            // Only what needs memory may fail because there is none.
            Err(IndexError::Pool(PoolError::Full { .. }))
                if self.shared.lookups_own || op != Op::Get && (!op.removes() || self.shared.removes_by_writing) =>
            {
                self.log.cancel(ticket);
                self.refused();
                true
            }
            // Where writes do not ask for what others own; it has had no effect.
            Err(IndexError::NotOwner { .. }) if op != Op::Get || self.shared.lookups_own => {
                self.log.cancel(ticket);
                self.refused();
                true
            }
            Err(error) => self.failed(error, || format!("{op:?} of {}", key.escape_ascii())),
        }
    }

    /// Counts an operation that was refused. It may have asked for ownership before.
    fn refused(&self) {
        self.shared.refused.set(self.shared.refused.get() + 1);
        self.shared.commanding.leave_open(self.which, self.client());
    }

    /// Notes which value a key has by an operation's outcome.
    fn remember(&mut self, key: &[u8], value: &[u8], op: Op, outcome: &Outcome) {
        if self.shared.guarded == 0 {
            return;
        }
        if matches!(op, Op::Replace | Op::RemoveIf) && matches!(outcome, Outcome::Replaced | Outcome::Removed) {
            self.shared.replaced.set(self.shared.replaced.get() + 1);
        }
        let now = match outcome {
            Outcome::Value(value) => value.as_deref(),
            Outcome::Inserted | Outcome::Updated | Outcome::Written | Outcome::Replaced => Some(value),
            _ => None,
        };
        match now {
            Some(value) => _ = self.last.insert(key.to_vec(), value.to_vec()),
            None => _ = self.last.remove(key),
        }
    }

    /// Makes an operation one that expects a value, if that is drawn. Reads the value first, unless it is known; now and
    /// then it is known, and wrong. `None` if the client has lost its lease.
    async fn guard(&mut self, op: Op, key: &[u8]) -> Option<Op> {
        if self.shared.guarded == 0 || op.guarded() == op || !self.rng.chance(self.shared.guarded) {
            return Some(op);
        }
        let is_known = self.last.contains_key(key) && self.rng.chance(ODDS / 2);
        if !is_known && self.rng.chance(ODDS * 15 / 16) && !self.run(Op::Get, key).await {
            return None;
        }
        Some(op.guarded())
    }

    /// Handles an operation that failed; `false` if the client has lost its lease. Then the operation may have taken
    /// effect or not, for ever: it stays open in the history.
    pub(crate) fn failed(&self, error: IndexError, doing: impl FnOnce() -> String) -> bool {
        self.shared.commanding.leave_open(self.which, self.client());
        match error {
            error if self.shared.crashes && is_eviction(&error) => {
                self.shared.evicted.set(self.shared.evicted.get() + 1);
                return false;
            }
            error if self.shared.says_dropped(self.which, &error) => return false,
            // What it has posted may take effect or not, or later. Its client goes soon, as one does that has given a write up.
            IndexError::Fabric(error) if self.shared.failing && error != FabricError::Revoked => {
                self.gives_a_write_up();
            }
            // Each operation that has failed may have left an intent cell that cannot be used any more.
            IndexError::Pool(PoolError::Held { holder, .. })
                if self.shared.failing && holder == "its own operations" => {}
            // The lookups of a scan, or of many keys.
            IndexError::Pool(PoolError::Full { .. }) | IndexError::NotOwner { .. } if self.shared.lookups_own => {
                self.shared.refused.set(self.shared.refused.get() + 1);
            }
            // The operation that was to answer it was given up.
            IndexError::Interrupted if self.shared.gives_up() && self.shared.coalescing.is_some() => {}
            IndexError::Locked { .. } if self.shared.holders_linger() && self.name != LAST => {}
            error => self.shared.fail(format!("{}: {error}", doing())),
        }
        true
    }

    /// Gets this key and others at once, each an operation of its own; `false` if the client has lost its lease.
    async fn get_many(&mut self, key: Vec<u8>) -> bool {
        self.shared.batched.set(self.shared.batched.get() + 1);
        let mut keys = vec![key];
        for _ in 0..self.rng.within(1, 12) {
            keys.push(self.shared.workload.next(&mut self.rng).1);
        }
        let now = self.shared.stamp(&self.endpoint);
        let tickets: Vec<_> = keys.iter().map(|key| self.log.invoke(Call::Get { key: key.clone() }, now)).collect();
        let asked: Vec<_> = keys.iter().map(Vec::as_slice).collect();
        let polls = self.patience(Op::Get);
        let Some(answered) = Self::with_patience(polls, self.shared.lagging, self.index.get_many(&asked)).await else {
            return true;
        };
        match answered {
            Ok(values) if values.len() == keys.len() => {
                let now = self.shared.stamp(&self.endpoint);
                for (ticket, value) in tickets.into_iter().zip(values) {
                    let value = value.map(|value| self.shared.bytes_of(&value));
                    self.log.complete(ticket, now, Outcome::Value(value));
                }
            }
            Ok(values) => self.shared.fail(format!("{} answers for {} keys", values.len(), keys.len())),
            Err(error) => return self.failed(error, || format!("get of {} keys", keys.len())),
        }
        true
    }

    /// Upserts this key and others in one call, each an operation of its own; `false` if the client has lost its lease.
    async fn upsert_many(&mut self, key: Vec<u8>) -> bool {
        self.shared.written_together.set(self.shared.written_together.get() + 1);
        let mut pairs = vec![(key, self.value())];
        for _ in 0..self.rng.within(1, 12) {
            pairs.push((self.shared.workload.next(&mut self.rng).1, self.value()));
        }
        let now = self.shared.stamp(&self.endpoint);
        let call = |(key, value): &(Vec<u8>, Vec<u8>)| call_of(Op::Upsert, key, (b"", value));
        let tickets = self.log.invoke_in_order(pairs.iter().map(call), now);
        let asked: Vec<(&[u8], &[u8])> = pairs.iter().map(|(key, value)| (key.as_slice(), value.as_slice())).collect();
        let results = self.index.upsert_many(&asked).await;
        if results.len() != pairs.len() {
            self.shared.fail(format!("{} outcomes of {} upserts", results.len(), pairs.len()));
        }
        let mut goes_on = true;
        for (((key, value), ticket), result) in pairs.iter().zip(tickets).zip(results) {
            goes_on &= self.finish(Op::Upsert, key, value, ticket, result.map(outcome_of_upsert));
        }
        goes_on
    }

    /// Draws the bounds and the limit of a scan near this key, and scans.
    async fn scan_near(&mut self, key: Vec<u8>) -> bool {
        let other = self.shared.workload.next(&mut self.rng).1;
        let rng = &mut self.rng;
        let mut bound = |key: Vec<u8>| match rng.below(5) {
            0 => Bound::Unbounded,
            1 | 2 => Bound::Included(key),
            _ => Bound::Excluded(key),
        };
        // One scan in four has its bounds as they are drawn: most of those are inverted or empty.
        let (low, high) = if key <= other { (key, other) } else { (other, key) };
        let (from, to) = (bound(low), bound(high));
        let (from, to) = if self.rng.chance(ODDS / 4) { (to, from) } else { (from, to) };
        let limit = self.rng.pick(&[None, None, Some(0), Some(1), Some(2), Some(7), Some(30)]).unwrap_or_default();
        self.scan(from, to, limit).await
    }

    /// Scans; `false` if the client has lost its lease.
    pub(crate) async fn scan(&mut self, from: Bound<Vec<u8>>, to: Bound<Vec<u8>>, limit: Option<u64>) -> bool {
        self.shared.scans.set(self.shared.scans.get() + 1);
        let call = Call::Scan { from: from.clone(), to: to.clone(), limit };
        let ticket = self.log.invoke(call, self.shared.stamp(&self.endpoint));
        let bounds = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
        let most = limit.map_or(usize::MAX, |limit| limit as usize);
        let polls = self.patience(Op::Get);
        let Some(scanned) = Self::with_patience(polls, self.shared.lagging, self.index.scan(bounds, most)).await else {
            return true;
        };
        match scanned {
            Ok(entries) => {
                let pairs =
                    entries.iter().map(|entry| (entry.key.to_vec(), self.shared.bytes_of(&entry.value))).collect();
                self.log.complete(ticket, self.shared.stamp(&self.endpoint), Outcome::Pairs(pairs));
                true
            }
            Err(error) => self.failed(error, || format!("scan of {from:?} to {to:?}")),
        }
    }

    /// Reads every key of the workload, and for ordered kinds all at once in order.
    pub(crate) async fn read_all(&mut self) {
        let shared = Rc::clone(&self.shared);
        for key in shared.workload.keys() {
            self.run(Op::Get, key).await;
        }
        if shared.ordered {
            self.scan(Bound::Unbounded, Bound::Unbounded, None).await;
        }
    }

    /// Opens the index again, if that is drawn, perhaps in a new session: whatever its handle has cached is gone. `false` if the
    /// client has lost its lease.
    async fn reopen(&mut self) -> bool {
        let is_drawn = |odds, rng: &mut SimRng| odds > 0 && rng.chance(odds);
        let replaces = is_drawn(self.shared.sessions, &mut self.rng);
        if !is_drawn(self.shared.reopening, &mut self.rng) && !replaces {
            return true;
        }
        let Some(session) = self.session.clone() else { return true };
        let session = match replaces {
            true => session_of(session.client(), &self.endpoint).await,
            false => session,
        };
        match self.shared.open(&session, self.which).await {
            Ok(index) => self.index = Rc::new(index),
            Err(error) => return self.failed(error, || "opening the index again".to_owned()),
        }
        // The old one is closed, unless another coroutine has it.
        self.session = Some(session);
        true
    }

    /// Carries out operations. Returns what is to be dropped, the index first.
    pub(crate) async fn work(
        mut self,
        operations: u64,
        pause: u32,
        perturb: impl Fn(&AnyIndex, &mut SimRng),
        under_test: Rc<dyn IndexUnderTest>,
    ) -> (Rc<AnyIndex>, Endpoint) {
        for _ in 0..operations {
            perturb(&self.index, &mut self.rng);
            if !self.command(&*under_test).await
                || !self.command_and_list().await
                || !self.reopen().await
                || !self.name().await
            {
                return (self.index, self.endpoint);
            }
            if self.rng.chance(ODDS / 3) {
                let pause = Duration::from_nanos(self.rng.tail(pause));
                self.endpoint.sleep(pause).await;
            }
            let (op, key) = self.shared.workload.next(&mut self.rng);
            let begun = self.shared.commanding.begin(self.which, self.client(), Effect::Takes);
            let Some(op) = self.guard(op, &key).await else { return (self.index, self.endpoint) };
            if self.drops_suddenly() {
                break;
            }
            let goes_on = if op == Op::Get && self.shared.recovering > 0 && self.rng.chance(self.shared.recovering) {
                self.recover().await
            } else if op == Op::Get && self.shared.walking > 0 && self.rng.chance(self.shared.walking) {
                self.walk().await
            } else if op == Op::Get && self.shared.many > 0 && self.rng.chance(self.shared.many) {
                self.get_many(key).await
            } else if op == Op::Upsert
                && self.shared.upserts_together > 0
                && self.rng.chance(self.shared.upserts_together)
            {
                self.upsert_many(key).await
            } else if op == Op::Get && self.shared.ordered && self.rng.chance(ODDS / 3) {
                self.scan_near(key).await
            } else {
                self.run(op, &key).await
            };
            if !goes_on {
                return (self.index, self.endpoint);
            }
            self.shared.commanding.end(begun);
            self.shared.stalling.completed(self.name / 10);
            if (self.shared.cancelling > 0 || self.shared.failing) && !self.take_up().await {
                break;
            }
        }
        self.given = Given::default();
        // What it has posted without waiting for it.
        self.endpoint.settle().await;
        if self.command_last().await {
            self.drop_index().await;
        }
        (self.index, self.endpoint)
    }
}

/// Returns an operation in the checker's terms, with the value that it expects and the one that it writes.
pub fn call_of(op: Op, key: &[u8], (expected, value): (&[u8], &[u8])) -> Call {
    let (key, expected, value) = (key.to_vec(), expected.to_vec(), value.to_vec());
    match op {
        Op::Get => Call::Get { key },
        Op::Insert => Call::Insert { key, value },
        Op::Update => Call::Update { key, value },
        Op::Upsert => Call::Upsert { key, value },
        Op::Remove => Call::Remove { key },
        Op::Replace => Call::Replace { key, expected, value },
        Op::RemoveIf => Call::RemoveIf { key, expected },
    }
}

fn outcome_of_upsert(upsert: Upsert) -> Outcome {
    match upsert {
        Upsert::Inserted => Outcome::Inserted,
        Upsert::Updated => Outcome::Updated,
        Upsert::Written => Outcome::Written,
    }
}

/// Carries out one operation, and returns its outcome in the checker's terms.
pub async fn carry_out(
    index: &impl PointIndex,
    op: Op,
    key: &[u8],
    (expected, value): (&[u8], &[u8]),
) -> Result<Outcome, IndexError> {
    Ok(match op {
        Op::Get => Outcome::Value(index.get(key).await?.map(|value| value.to_vec())),
        Op::Insert => match index.insert(key, value).await? {
            Insert::Inserted => Outcome::Inserted,
            Insert::Exists => Outcome::Exists,
        },
        Op::Update => match index.update(key, value).await? {
            Update::Updated => Outcome::Updated,
            Update::Absent => Outcome::Absent,
        },
        Op::Upsert => outcome_of_upsert(index.upsert(key, value).await?),
        Op::Remove => match index.remove(key).await? {
            Remove::Removed => Outcome::Removed,
            Remove::Absent => Outcome::Absent,
        },
        Op::Replace => match index.replace(key, expected, value).await? {
            Replace::Replaced => Outcome::Replaced,
            Replace::Differs => Outcome::Differs,
            Replace::Absent => Outcome::Absent,
        },
        Op::RemoveIf => match index.remove_if(key, expected).await? {
            RemoveIf::Removed => Outcome::Removed,
            RemoveIf::Differs => Outcome::Differs,
            RemoveIf::Absent => Outcome::Absent,
        },
    })
}
