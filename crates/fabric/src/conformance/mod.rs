//! One suite for every fabric: each promise of the [contract](crate::contract) as cases that detect a fabric which
//! breaks it.
//!
//! Invariants: the suite asks for nothing that the contract does not promise (the [`stepping`] fabric, which uses every
//! liberty of N1-N3, passes); for each promise there is a flawed fabric that fails, and a test
//! that says so; a violation names the clause.
//!
//! A fabric's tests describe it as a [`FabricUnderTest`] and call [`check`]:
//!
//! ```
//! use farindex_fabric::conformance::{FabricUnderTest, check};
//! use farindex_fabric::{Fabric, FabricError, MemoryFabric};
//! use std::sync::Arc;
//!
//! struct Memory;
//! impl FabricUnderTest for Memory {
//!     fn fabric(&self, nodes: usize, len: u64) -> Result<Arc<dyn Fabric>, FabricError> {
//!         Ok(Arc::new(MemoryFabric::new(nodes, len)?))
//!     }
//!     fn rounds(&self) -> u64 {
//!         20
//!     }
//! }
//! check(&Memory).unwrap();
//! ```
//!
//! Clients are [`Script`]s: a body that gets a connected endpoint and runs to its end, concurrently with the others. A
//! fabric of threads gives each its thread ([`on_threads`], the default); a simulated one runs them as coroutines
//! ([`on_one_thread`]).

mod atomics;
mod order;
mod revoke;
pub mod stepping;
mod verbs;

use crate::{Driver, Endpoint, Executor, Fabric, FabricError, Identity, NodeId, OpKind, RemotePtr, Span};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

/// The clause that a case checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Clause {
    /// Every posted verb completes exactly once.
    G1,
    /// Words are whole.
    G2,
    /// CAS and FAA are atomic.
    G3,
    /// Order within a batch.
    G4,
    /// What has completed is seen.
    G5,
    /// A revoked client has no more effect.
    G6,
    /// Posting, sizes, metering, clock: what endpoint and fabric promise together beyond G1-G6.
    Verbs,
}

/// A fabric under test.
pub trait FabricUnderTest {
    /// A fresh fabric of `nodes` memory nodes, each of at least `len` bytes that were never written. If it has the verb
    /// CALL, its memory nodes answer by [`CallTable::builtin`](crate::CallTable::builtin).
    fn fabric(&self, nodes: usize, len: u64) -> Result<Arc<dyn Fabric>, FabricError>;
    /// Runs all scripts at once, each with an endpoint of its identity, until all have ended.
    fn run(&self, fabric: &Arc<dyn Fabric>, scripts: Vec<Script>) -> Vec<Verdict> {
        on_threads(&**fabric, scripts)
    }
    /// How often a case repeats what races.
    fn rounds(&self) -> u64 {
        if cfg!(miri) { 10 } else { 1000 }
    }
    /// How long a batch may take, on the fabric's clock. A node that takes longer counts as silent.
    fn patience(&self) -> Duration {
        Duration::from_secs(if cfg!(miri) { 3600 } else { 20 })
    }
    /// Are bounds checked before any verb of a batch takes effect? Where the memory node checks them, N7 applies
    /// instead.
    fn checks_beforehand(&self) -> bool {
        true
    }
    /// The same as [`fabric`](Self::fabric), but one memory node never answers; `None` if that cannot be arranged.
    fn silent_fabric(&self, nodes: usize, len: u64, silent: NodeId) -> Option<Arc<dyn Fabric>> {
        let _ = (nodes, len, silent);
        None
    }
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    clause: Option<Clause>,
    what: String,
    /// Only the consequence of another client's failure.
    secondary: bool,
}

impl Failure {
    /// A failure of what the case stands for.
    pub fn new(what: impl Into<String>) -> Self {
        Failure { clause: None, what: what.into(), secondary: false }
    }
}

impl From<FabricError> for Failure {
    fn from(error: FabricError) -> Self {
        let clause = matches!(error, FabricError::Deadline { .. }).then_some(Clause::G1);
        Failure { clause, what: format!("unexpected error: {error}"), secondary: false }
    }
}

/// How a script or a case ended.
pub type Verdict = Result<(), Failure>;

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which one.
    pub clause: Clause,
    /// Name of the case that noticed.
    pub case: &'static str,
    /// What was seen.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is violated ({}): {}", self.clause, self.case, self.what)
    }
}

impl std::error::Error for Violation {}

/// Fails a case unless a condition holds.
macro_rules! ensure {
    ($condition:expr, $($what:tt)+) => {
        if !$condition {
            return Err($crate::conformance::Failure::new(format!($($what)+)));
        }
    };
}
use ensure;

/// One test of the suite.
pub struct Case {
    /// What it is called.
    pub name: &'static str,
    /// The clause that it checks.
    pub clause: Clause,
    test: fn(&Bench<'_>) -> Verdict,
}

macro_rules! cases {
    ($($clause:ident: $module:ident :: { $($name:ident),* $(,)? })*) => {
        /// Every case, in an order in which those that need least come first.
        pub const CASES: &[Case] = &[$($(
            Case { name: stringify!($name), clause: Clause::$clause, test: $module::$name },
        )*)*];
    };
}

cases! {
    G1: verbs::{
        every_batch_completes_once, refused_batches_leave_memory_untouched, silence_becomes_an_error,
        batches_posted_together_are_independent,
    }
    G2: atomics::{ words_are_read_and_written_whole }
    G5: order::{ completed_verbs_are_seen_by_others, completed_verbs_are_seen_by_oneself }
    G3: atomics::{
        faa_loses_nothing, cas_has_one_winner, failed_cas_writes_nothing, reads_see_atomics_whole,
        masked_cas_changes_its_bits_alone,
    }
    G4: order::{
        writes_land_in_posting_order, writes_land_before_later_atomics, later_verbs_see_earlier_writes,
        reads_and_atomics_keep_posting_order, atomics_land_before_later_reads, reads_come_before_later_atomics,
        a_fence_holds_writes_back, a_masked_cas_keeps_its_place_in_a_batch, batches_posted_together_keep_their_order,
    }
    G6: revoke::{
        a_revoked_client_has_no_more_effect, a_revoked_client_has_no_effect_by_calls,
        what_was_posted_before_a_revocation_ends_with_it, a_client_may_revoke_itself,
        a_revocation_affects_no_other_client,
    }
    Verbs: verbs::{
        verbs_are_posted_when_called, dropped_futures_still_run, detached_batches_land, many_batches_in_flight,
        batches_span_nodes, waits_are_metered, sizes_from_nothing_to_a_mebibyte, calls_are_answered_or_refused,
        the_clock_and_its_sleepers, fabrics_describe_themselves,
    }
}

/// Runs the whole suite; the first violation ends it.
pub fn check(subject: &dyn FabricUnderTest) -> Result<(), Violation> {
    CASES.iter().try_for_each(|case| check_case(subject, case))
}

/// Runs one case.
pub fn check_case(subject: &dyn FabricUnderTest, case: &Case) -> Result<(), Violation> {
    (case.test)(&Bench { subject }).map_err(|failure| Violation {
        clause: failure.clause.unwrap_or(case.clause),
        case: case.name,
        what: failure.what,
    })
}

/// What a case starts from.
struct Bench<'s> {
    subject: &'s dyn FabricUnderTest,
}

const NODE_LEN: u64 = 1 << if cfg!(miri) { 13 } else { 18 };

impl<'s> Bench<'s> {
    fn rounds(&self) -> u64 {
        self.subject.rounds()
    }
    fn world(&self, nodes: usize) -> Result<World<'s>, Failure> {
        self.world_of(nodes, NODE_LEN)
    }
    fn world_of(&self, nodes: usize, len: u64) -> Result<World<'s>, Failure> {
        let fabric = self.subject.fabric(nodes, len)?;
        let world = self.world_on(fabric);
        if !world.fabric.capabilities().zeroed {
            world.solo(move |client| async move {
                let span = client.span();
                for node in 0..nodes {
                    let zeros = client.endpoint.buf_from_words(&vec![0; NODE_LEN.min(len) as usize / 8]);
                    span.write(at(node, 0), zeros).await?;
                }
                Ok(())
            })?;
        }
        Ok(world)
    }
    fn world_on(&self, fabric: Arc<dyn Fabric>) -> World<'s> {
        World { subject: self.subject, fabric, failed: Arc::default() }
    }
}

/// Word `i` of a node.
fn at(node: usize, i: u64) -> RemotePtr {
    RemotePtr::new(NodeId::new(node as u16), i * 8)
}

/// One fabric, and the clients of one case.
struct World<'s> {
    subject: &'s dyn FabricUnderTest,
    fabric: Arc<dyn Fabric>,
    failed: Arc<AtomicBool>,
}

impl World<'_> {
    /// A client with an identity of its own.
    fn script<F>(&self, body: impl FnOnce(Client) -> F + Send + 'static) -> Script
    where
        F: Future<Output = Verdict> + 'static,
    {
        self.script_of(self.fabric.new_identity(), body)
    }
    fn script_of<F>(&self, identity: Identity, body: impl FnOnce(Client) -> F + Send + 'static) -> Script
    where
        F: Future<Output = Verdict> + 'static,
    {
        let (failed, patience) = (Arc::clone(&self.failed), self.subject.patience());
        let body = move |endpoint: Endpoint| -> Pin<Box<dyn Future<Output = Verdict>>> {
            endpoint.set_deadline(patience);
            let client = Client { endpoint, failed: Arc::clone(&failed), patience };
            let running = body(client);
            Box::pin(async move {
                let verdict = running.await;
                if verdict.is_err() {
                    failed.store(true, Ordering::SeqCst);
                }
                verdict
            })
        };
        Script { identity, body: Box::new(body) }
    }
    fn run(&self, scripts: Vec<Script>) -> Verdict {
        let expected = scripts.len();
        let verdicts = self.subject.run(&self.fabric, scripts);
        ensure!(verdicts.len() == expected, "{} of {expected} scripts have ended", verdicts.len());
        let mut failures: Vec<Failure> = verdicts.into_iter().filter_map(Result::err).collect();
        failures.sort_by_key(|failure| failure.secondary);
        failures.into_iter().next().map_or(Ok(()), Err)
    }
    fn solo<F>(&self, body: impl FnOnce(Client) -> F + Send + 'static) -> Verdict
    where
        F: Future<Output = Verdict> + 'static,
    {
        self.run(vec![self.script(body)])
    }
    /// After the clients are done: do these words hold this?
    fn expect(&self, first: RemotePtr, words: Vec<u64>) -> Verdict {
        self.solo(move |client| async move {
            let got = client.span().read(first, words.len() * 8).await?;
            ensure!(got.words() == words, "{:?} at {first} where {words:?} was expected", got.words());
            Ok(())
        })
    }
}

/// One client of a case: its identity, and what it does once it is connected.
pub struct Script {
    identity: Identity,
    body: Body,
}

type Body = Box<dyn FnOnce(Endpoint) -> Pin<Box<dyn Future<Output = Verdict>>> + Send>;

impl Script {
    /// The client's identity.
    pub fn identity(&self) -> Identity {
        self.identity
    }
    /// What it does.
    pub fn start(self, endpoint: Endpoint) -> Pin<Box<dyn Future<Output = Verdict>>> {
        (self.body)(endpoint)
    }
}

/// Runs each script on a thread of its own. They start together.
pub fn on_threads(fabric: &dyn Fabric, scripts: Vec<Script>) -> Vec<Verdict> {
    let barrier = Barrier::new(scripts.len());
    std::thread::scope(|scope| {
        let start = |script: Script| {
            scope.spawn(|| {
                let endpoint = fabric.connect(&script.identity());
                barrier.wait();
                let endpoint = endpoint?;
                Executor::new().block_on(&endpoint, script.start(endpoint.clone()))
            })
        };
        let threads: Vec<_> = scripts.into_iter().map(start).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Verdict>| {
            thread.join().unwrap_or_else(|_| Err(Failure::new("a client panicked")))
        };
        threads.into_iter().map(join).collect()
    })
}

struct AllEndpoints {
    endpoints: Vec<Endpoint>,
    /// Each look at them moves the fabric's clock, and nothing else does.
    looks_pass_time: bool,
}

impl Driver for AllEndpoints {
    fn progress(&self) -> bool {
        // Never idle where looks pass time: an executor that gives the processor away waits for nothing.
        self.endpoints.iter().fold(self.looks_pass_time, |any, endpoint| endpoint.progress() | any)
    }
    fn flush(&self) {
        self.endpoints.iter().for_each(Driver::flush);
    }
    fn collects(&self) -> bool {
        self.endpoints.iter().any(Driver::collects)
    }
}

/// Runs the scripts as coroutines of one thread.
pub fn on_one_thread(fabric: &dyn Fabric, scripts: Vec<Script>) -> Vec<Verdict> {
    as_coroutines(fabric, scripts, false)
}

fn as_coroutines(fabric: &dyn Fabric, scripts: Vec<Script>, looks_pass_time: bool) -> Vec<Verdict> {
    let executor = Executor::new();
    let connect = |script: Script| Ok((fabric.connect(&script.identity())?, script));
    let connected: Result<Vec<_>, FabricError> = scripts.into_iter().map(connect).collect();
    let connected = match connected {
        Ok(connected) => connected,
        Err(error) => return vec![Err(error.into())],
    };
    let endpoints = connected.iter().map(|(endpoint, _)| endpoint.clone()).collect();
    let all = AllEndpoints { endpoints, looks_pass_time };
    let start = |(endpoint, script): (Endpoint, Script)| executor.spawn(script.start(endpoint));
    let tasks: Vec<_> = connected.into_iter().map(start).collect();
    executor.block_on(&all, async {
        let mut verdicts = Vec::new();
        for task in tasks {
            verdicts.push(task.await);
        }
        verdicts
    })
}

/// A connected client.
struct Client {
    endpoint: Endpoint,
    failed: Arc<AtomicBool>,
    patience: Duration,
}

/// How long a client that waits for another one pauses between two checks.
const POLL_PAUSE: Duration = Duration::from_micros(1);

impl Client {
    fn span(&self) -> Span {
        self.endpoint.span(OpKind::Other)
    }
    /// Waits for a condition outside far memory, or fails when the other side has.
    async fn until(&self, what: &str, mut reached: impl FnMut() -> bool) -> Verdict {
        let begun = self.endpoint.now();
        while !reached() {
            if self.failed.load(Ordering::SeqCst) {
                return Err(Failure { secondary: true, ..Failure::new("another client failed") });
            }
            ensure!(self.endpoint.now() - begun < self.patience, "waited in vain for {what}");
            self.endpoint.sleep(POLL_PAUSE).await;
        }
        Ok(())
    }
    /// Waits until a word has a value.
    async fn until_word(&self, ptr: RemotePtr, value: u64) -> Verdict {
        let begun = self.endpoint.now();
        let span = self.span();
        loop {
            let seen = word(&span, ptr).await?;
            if seen == value {
                return Ok(());
            }
            ensure!(self.endpoint.now() - begun < self.patience, "{ptr} has stayed {seen} and not become {value}");
            self.endpoint.sleep(POLL_PAUSE).await;
        }
    }
}

async fn word(span: &Span, ptr: RemotePtr) -> Result<u64, Failure> {
    let buf = span.read(ptr, 8).await?;
    buf.words().first().copied().ok_or_else(|| Failure::new("a READ of 8 bytes gave none"))
}

/// A number that clients share outside far memory.
#[derive(Clone, Default)]
struct Signal(Arc<AtomicU64>);

impl Signal {
    fn get(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
    fn set(&self, value: u64) {
        self.0.store(value, Ordering::SeqCst);
    }
    fn raise_to(&self, value: u64) {
        self.0.fetch_max(value, Ordering::SeqCst);
    }
    fn raise(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
    async fn reach(&self, client: &Client, value: u64) -> Verdict {
        client.until("another client", || self.get() >= value).await
    }
}
