//! What a run reports: its outcome, the status of each client, the last log entries, counters, and a hash of all steps.

use farindex_fabric::{RemotePtr, Verb, VerbKind};
use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

/// How a run ended.
#[derive(Debug, Clone)]
#[must_use = "a deadlock or livelock is a finding"]
pub enum Outcome {
    /// Every coroutine of every client that has not crashed has finished.
    Done,
    /// Coroutines wait, and no event is left.
    Deadlock(Report),
    /// The limit of steps is reached: some client retries endlessly.
    Livelock(Report),
    /// The limit of virtual time is reached.
    Timeout(Report),
}

impl Outcome {
    /// Returns whether every coroutine finished.
    pub fn is_done(&self) -> bool {
        matches!(self, Outcome::Done)
    }
    /// Fails the test with a report unless every coroutine finished.
    ///
    /// # Panics
    /// If a coroutine did not finish.
    #[track_caller]
    pub fn assert_done(&self) {
        assert!(self.is_done(), "{self}");
    }
    /// The outcome's name.
    pub fn name(&self) -> &'static str {
        match self {
            Outcome::Done => "done",
            Outcome::Deadlock(_) => "deadlock",
            Outcome::Livelock(_) => "livelock",
            Outcome::Timeout(_) => "timeout",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Done => f.write_str("done"),
            Outcome::Deadlock(report) | Outcome::Livelock(report) | Outcome::Timeout(report) => {
                write!(f, "{} {report}", self.name())
            }
        }
    }
}

/// The state of a run that did not finish.
#[derive(Debug, Clone)]
pub struct Report {
    /// The seed that repeats the run.
    pub seed: u64,
    /// Virtual time.
    pub at: Duration,
    /// The status of every client.
    pub clients: Vec<ClientStatus>,
    /// The last log entries, as many as [`Config::log`](crate::Config::log) asked for.
    pub log: Vec<Entry>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "of seed {} at {:?}", self.seed, self.at)?;
        self.log.iter().try_for_each(|entry| writeln!(f, "  {entry}"))?;
        self.clients.iter().try_for_each(|client| writeln!(f, "  {client}"))
    }
}

/// The status of one client.
#[derive(Debug, Clone)]
pub struct ClientStatus {
    /// The client's number.
    pub client: u32,
    /// "running", "frozen" or "crashed".
    pub state: &'static str,
    /// Coroutines that have not finished.
    pub open_tasks: u64,
    /// Batches that have not completed.
    pub in_flight: u64,
    /// Batches posted so far.
    pub batches: u64,
    /// Verbs posted so far.
    pub verbs: u64,
    /// The verb posted last, and its target.
    pub last: Option<(&'static str, RemotePtr)>,
    /// Time since that verb was posted.
    pub since: Duration,
}

impl fmt::Display for ClientStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ClientStatus { client, state, open_tasks, in_flight, batches, verbs, last, since } = self;
        write!(f, "client {client}: {state}, {open_tasks} coroutines, {in_flight} of {batches} batches in flight, ")?;
        match last {
            Some((verb, ptr)) => write!(f, "last of {verbs} verbs {verb} {ptr} {since:?} ago"),
            None => f.write_str("no verbs"),
        }
    }
}

/// One entry of the log.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Virtual time.
    pub at: Duration,
    /// The client that the event concerns.
    pub client: u32,
    /// What happened.
    pub what: LogEvent,
}

/// An event in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogEvent {
    /// A batch was posted, with its first verb.
    Posted(&'static str, RemotePtr, usize),
    /// A READ, or a piece of one, was carried out: number of words, first word.
    Read(RemotePtr, usize, u64),
    /// A WRITE, or a piece of one, was carried out: number of words, first word.
    Write(RemotePtr, usize, u64),
    /// A CAS was carried out: expected, new, found.
    Cas(RemotePtr, u64, u64, u64),
    /// A fetch-and-add was carried out: addend, found.
    Faa(RemotePtr, u64, u64),
    /// A racing atomic stored its word.
    Stored(RemotePtr, u64),
    /// A memory node answered a call.
    Called(RemotePtr),
    /// A client was revoked on a node.
    Revoked(RemotePtr, u64),
    /// A batch completed: true if it succeeded.
    Completed(bool),
    /// The rest of a batch was dropped.
    Dropped,
    /// The client crashed.
    Crashed,
    /// The client stopped running.
    Frozen,
    /// The client runs again.
    Resumed,
    /// The batch just posted waits ahead of its verb of this number, counted from 0.
    Stalled(u32),
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>14.3} us client {} ", self.at.as_nanos() as f64 / 1000.0, self.client)?;
        match self.what {
            LogEvent::Posted(verb, ptr, len) => write!(f, "posts {len} verbs from {verb} {ptr}"),
            LogEvent::Read(ptr, words, first) => write!(f, "READ {ptr} {words} words, first {first:#x}"),
            LogEvent::Write(ptr, words, first) => write!(f, "WRITE {ptr} {words} words, first {first:#x}"),
            LogEvent::Cas(ptr, expect, new, old) => {
                let verdict = if expect == old { "stored" } else { "failed" };
                write!(f, "CAS {ptr} {expect:#x} -> {new:#x}, found {old:#x}: {verdict}")
            }
            LogEvent::Faa(ptr, add, old) => write!(f, "FAA {ptr} + {add:#x}, found {old:#x}"),
            LogEvent::Stored(ptr, value) => write!(f, "atomic stores {value:#x} at {ptr}"),
            LogEvent::Called(ptr) => write!(f, "CALL {}", ptr.node()),
            LogEvent::Revoked(ptr, token) => write!(f, "REVOKE {token} on {}", ptr.node()),
            LogEvent::Completed(ok) => write!(f, "completion, {}", if ok { "ok" } else { "error" }),
            LogEvent::Dropped => f.write_str("the rest of a batch is dropped"),
            LogEvent::Crashed => f.write_str("crashes"),
            LogEvent::Frozen => f.write_str("freezes"),
            LogEvent::Resumed => f.write_str("resumes"),
            LogEvent::Stalled(verb) => write!(f, "is stalled ahead of verb {verb} of this batch"),
        }
    }
}

/// The last log entries of a run.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) kept: usize,
    entries: VecDeque<Entry>,
}

impl Log {
    pub(crate) fn add(&mut self, now: u64, client: u32, what: LogEvent) {
        if self.kept == 0 {
            return;
        }
        if self.entries.len() == self.kept {
            self.entries.pop_front();
        }
        self.entries.push_back(Entry { at: Duration::from_nanos(now), client, what });
    }
    pub(crate) fn to_vec(&self) -> Vec<Entry> {
        self.entries.iter().copied().collect()
    }
}

/// Counters of what the adversary did. A test that provokes a situation checks here whether it occurred.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Events carried out.
    pub events: u64,
    /// Batches posted.
    pub batches: u64,
    /// Verbs posted.
    pub verbs: u64,
    /// Parts of batches that were late (N1, N5).
    pub late: u64,
    /// Parts of batches that no coroutine awaited and that were delayed, perhaps beyond every deadline (N5).
    pub forgotten: u64,
    /// READs and WRITEs that took effect in pieces (N2).
    pub torn: u64,
    /// WRITEs that took effect before a READ or atomic ahead of them (N3).
    pub overtakes: u64,
    /// Plain WRITEs that an atomic overwrote without having read them (N6).
    pub lost_writes: u64,
    /// Clients that crashed.
    pub crashes: u64,
    /// Parts of batches that a crash left incomplete (N7).
    pub cut: u64,
    /// Parts of batches that took effect late because their coroutine had given them up.
    pub lagging: u64,
    /// Parts of batches that took effect late, after their client's crash (N7).
    pub lingering: u64,
    /// Parts of batches that a revocation stopped (G6).
    pub revoked: u64,
    /// Batches that failed although nothing was wrong (N7).
    pub errors: u64,
}

/// A hash over all steps of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trace(u64);

impl Trace {
    pub(crate) fn new(seed: u64) -> Self {
        Trace(seed ^ 0xcbf2_9ce4_8422_2325)
    }
    pub(crate) fn mix(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9fb2_1c65_1e98_df25);
        self.0 = mixed ^ mixed >> 29;
    }
    pub(crate) fn value(self) -> u64 {
        self.0
    }
}

/// The verb's name in logs and reports.
pub(crate) fn verb_name(verb: &Verb) -> &'static str {
    match verb.kind {
        VerbKind::Read(_) => "READ",
        VerbKind::Write(_) => "WRITE",
        VerbKind::Cas { .. } => "CAS",
        VerbKind::Faa { .. } => "FAA",
        VerbKind::MaskedCas { .. } => "MASKED CAS",
        VerbKind::Call { .. } => "CALL",
        VerbKind::Revoke(_) => "REVOKE",
    }
}
