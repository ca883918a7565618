//! The endpoint on a connection that answers late, twice, or never.

use farindex_fabric::transport::{Completions, Post};
use farindex_fabric::{
    Capabilities, Chain, Driver, Endpoint, Executor, Fabric, FabricError, MemoryFabric, NodeId, OpKind, RemotePtr,
    Transport, VerbKind,
};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// What the test controls: the clock, the batches that were posted, and the answers.
#[derive(Default)]
struct ManualState {
    now: Cell<Duration>,
    alarms: RefCell<Vec<Duration>>,
    posted: RefCell<Vec<(u64, Chain)>>,
    answers: RefCell<Vec<(u64, Chain)>>,
    /// Batches that fail.
    failures: RefCell<Vec<u64>>,
    /// Number of the latest connection to each node.
    connections: Cell<u64>,
}

struct ManualTransport(Rc<ManualState>);

impl Transport for ManualTransport {
    fn post(&mut self, id: u64, chain: Chain) -> Post {
        self.0.posted.borrow_mut().push((id, chain));
        Post::Pending
    }
    fn progress(&mut self, completions: &mut dyn Completions) -> bool {
        let answers = std::mem::take(&mut *self.0.answers.borrow_mut());
        let failures = std::mem::take(&mut *self.0.failures.borrow_mut());
        let any = !answers.is_empty() || !failures.is_empty();
        let lost = || Box::new(FabricError::Unreachable { node: WORD.node(), reason: "lost".to_owned() });
        failures.into_iter().for_each(|id| completions.complete(id, Chain::new(), Err(lost())));
        answers.into_iter().for_each(|(id, chain)| completions.complete(id, chain, Ok(())));
        any
    }
    fn now(&self) -> Duration {
        self.0.now.get()
    }
    fn wake_at(&mut self, at: Duration) {
        self.0.alarms.borrow_mut().push(at);
    }
    fn connections(&self, _: NodeId) -> u64 {
        self.0.connections.get()
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }
    fn name(&self) -> &'static str {
        "manual"
    }
}

fn manual_endpoint() -> (Rc<ManualState>, Endpoint) {
    let state = Rc::new(ManualState::default());
    let endpoint = Endpoint::new(Box::new(ManualTransport(Rc::clone(&state))));
    (state, endpoint)
}

const WORD: RemotePtr = RemotePtr::new(NodeId::new(3), 64);

/// Answers a FAA that was posted.
fn answer(state: &ManualState, saw: u64) -> u64 {
    let (id, mut chain) = state.posted.borrow_mut().remove(0);
    for verb in &mut chain {
        if let VerbKind::Faa { old, .. } = &mut verb.kind {
            *old = saw;
        }
    }
    state.answers.borrow_mut().push((id, chain));
    id
}

#[test]
fn a_completion_after_its_deadline_is_dropped() {
    let (state, endpoint) = manual_endpoint();
    endpoint.set_deadline(Duration::from_secs(2));
    let span = endpoint.span(OpKind::Other);
    let late = span.faa(WORD, 1);
    assert_eq!(*state.alarms.borrow(), [Duration::from_secs(2)], "virtual time must not pass the deadline by");
    state.now.set(Duration::from_secs(2));
    let silence = FabricError::Deadline { node: NodeId::new(3), after: Duration::from_secs(2) };
    assert_eq!(Executor::new().block_on(&endpoint, late), Err(silence));

    // Its place is used again, and then the first answer comes in.
    let fresh = span.faa(WORD, 1);
    answer(&state, 77);
    endpoint.progress();
    assert_eq!(endpoint.strays(), 1);
    answer(&state, 78);
    assert_eq!(Executor::new().block_on(&endpoint, fresh), Ok(78));
    assert_eq!(endpoint.strays(), 1);
}

#[test]
fn a_second_completion_changes_nothing_and_is_counted() {
    let (state, endpoint) = manual_endpoint();
    let span = endpoint.span(OpKind::Other);
    let once = span.faa(WORD, 1);
    let id = answer(&state, 5);
    state.answers.borrow_mut().push((id, Chain::new()));
    assert_eq!(Executor::new().block_on(&endpoint, once), Ok(5));
    state.answers.borrow_mut().push((id, Chain::new()));
    drop(span.faa(WORD, 1));
    endpoint.progress();
    assert_eq!(endpoint.strays(), 2);
}

/// Holds a value until all has landed, and returns whether that is still held.
fn held_until_settled(endpoint: &Endpoint) -> impl Fn() -> bool + use<> {
    let held: Rc<()> = Rc::new(());
    let watched = Rc::downgrade(&held);
    endpoint.hold_until_settled(held);
    move || watched.strong_count() > 0
}

#[test]
fn what_exceeds_its_deadline_may_land_until_the_transport_has_ended_it() {
    for fails in [false, true] {
        let (state, endpoint) = manual_endpoint();
        endpoint.set_deadline(Duration::from_secs(2));
        let span = endpoint.span(OpKind::Other);
        let late = span.faa(WORD, 1);
        state.now.set(Duration::from_secs(2));
        assert!(Executor::new().block_on(&endpoint, late).is_err());
        assert!(!endpoint.is_settled() && !endpoint.has_landed(0));
        let is_held = held_until_settled(&endpoint);
        state.connections.set(1);
        endpoint.progress();
        assert!(is_held(), "a later connection says nothing about what the transport still has");
        if fails {
            let (id, _) = state.posted.borrow_mut().remove(0);
            state.failures.borrow_mut().push(id);
            endpoint.progress();
            assert!(is_held() && !endpoint.is_settled());
            state.connections.set(2);
        } else {
            answer(&state, 77);
        }
        endpoint.progress();
        assert!(endpoint.is_settled() && !is_held(), "fails: {fails}");
        assert_eq!((endpoint.strays(), endpoint.failed()), (1, u64::from(fails)));
    }
}

#[test]
fn what_has_failed_may_land_until_there_is_a_later_connection() {
    let (state, endpoint) = manual_endpoint();
    let span = endpoint.span(OpKind::Other);
    let fail = |posted| {
        let (id, _) = state.posted.borrow_mut().remove(0);
        state.failures.borrow_mut().push(id);
        let failed: Result<u64, FabricError> = Executor::new().block_on(&endpoint, posted);
        assert!(failed.is_err());
    };
    assert!(endpoint.has_landed(0));
    fail(span.faa(WORD, 1));
    assert!(!endpoint.has_landed(0) && endpoint.has_landed(1) && !endpoint.is_settled());
    let first = held_until_settled(&endpoint);
    state.connections.set(1);
    fail(span.faa(WORD, 1));
    endpoint.progress();
    assert!(!first() && !endpoint.is_settled(), "the second one has failed over the later connection");
    let second = held_until_settled(&endpoint);
    state.connections.set(2);
    assert!(second() && endpoint.is_settled() && !second());
    // READs change nothing.
    let posted = span.read(WORD, 8);
    let (id, _) = state.posted.borrow_mut().remove(0);
    state.failures.borrow_mut().push(id);
    assert!(Executor::new().block_on(&endpoint, posted).is_err());
    assert!(endpoint.has_landed(2) && endpoint.is_settled());
}

#[test]
fn what_was_given_up_may_land_until_it_has_ended() {
    let (state, endpoint) = manual_endpoint();
    let span = endpoint.span(OpKind::Other);
    drop(span.read(WORD, 8));
    assert!(endpoint.is_settled(), "a READ changes nothing");
    drop(span.faa(WORD, 1));
    let is_held = held_until_settled(&endpoint);
    state.posted.borrow_mut().remove(0);
    assert!(is_held() && !endpoint.is_settled());
    answer(&state, 1);
    endpoint.progress();
    assert!(!is_held() && endpoint.is_settled());
    // With its endpoint, nobody learns of its end.
    drop(span.faa(WORD, 1));
    let is_held = held_until_settled(&endpoint);
    drop((span, endpoint));
    assert!(is_held());
}

#[test]
fn a_lowered_deadline_holds_for_what_is_in_flight() {
    let (state, endpoint) = manual_endpoint();
    let span = endpoint.span(OpKind::Other);
    let early = span.faa(WORD, 1);
    state.now.set(Duration::from_millis(1));
    endpoint.set_deadline(Duration::from_millis(10));
    assert!(state.alarms.borrow().contains(&Duration::from_millis(10)));
    let late = span.faa(WORD, 1);
    state.now.set(Duration::from_millis(10));
    assert!(Executor::new().block_on(&endpoint, early).is_err());
    assert!(!endpoint.progress(), "the second is not due yet");
    state.now.set(Duration::from_millis(11));
    assert!(Executor::new().block_on(&endpoint, late).is_err());
}

#[test]
fn a_refused_batch_is_neither_posted_nor_counted() {
    let (state, endpoint) = manual_endpoint();
    let span = endpoint.span(OpKind::Other);
    let huge = Executor::new().block_on(&endpoint, span.read(WORD, usize::MAX - 7)).map(drop);
    assert!(matches!(huge, Err(FabricError::TooLong { .. })), "{huge:?}");
    let mut batch = span.batch();
    batch.faa(WORD.add(4), 1);
    batch.post_detached();
    span.batch().post_detached();
    assert!(state.posted.borrow().is_empty());
    assert_eq!(span.cost(), farindex_fabric::Counters::default());
    assert_eq!(WORD.add(u64::MAX).node(), WORD.node());
}

/// An operation that returns before its verbs have ended leaves with them the guard that protects what they touch.
#[test]
fn a_held_value_is_dropped_with_its_batch_and_never_after_a_failure() {
    let (state, endpoint) = manual_endpoint();
    endpoint.set_deadline(Duration::from_secs(2));
    let held = Rc::new(());
    let post = || {
        let span = endpoint.span(OpKind::Other);
        let mut batch = span.batch();
        batch.faa(WORD, 1);
        batch.post_holding(Box::new(Rc::clone(&held)));
        assert_eq!((span.cost().detached, span.cost().round_trips), (1, 0));
    };
    post();
    endpoint.progress();
    assert_eq!((endpoint.trailing(), Rc::strong_count(&held)), (1, 2));
    answer(&state, 7);
    endpoint.progress();
    assert_eq!((endpoint.trailing(), Rc::strong_count(&held)), (0, 1));
    // Nothing was posted, so nothing is held.
    endpoint.span(OpKind::Other).batch().post_holding(Box::new(Rc::clone(&held)));
    assert_eq!(Rc::strong_count(&held), 1);
    // It may land still (N7).
    post();
    state.now.set(Duration::from_secs(2));
    endpoint.progress();
    assert_eq!((endpoint.trailing(), Rc::strong_count(&held)), (0, 2));
    post();
    drop(endpoint);
    assert_eq!(Rc::strong_count(&held), 3);
}

/// Verbs of the memory fabric complete at once, so a coroutine could keep its thread for ever. A sleeper may hold what
/// all others wait for, and must run.
#[test]
fn a_busy_coroutine_yields_to_a_sleeper() {
    let fabric = MemoryFabric::new(1, 4096).expect("memory");
    let endpoint = fabric.connect(&fabric.new_identity()).expect("a connection");
    let executor = Executor::new();
    let awake = Rc::new(Cell::new(false));
    let sleeper = executor.spawn({
        let (endpoint, awake) = (endpoint.clone(), Rc::clone(&awake));
        async move {
            endpoint.sleep(Duration::from_millis(1)).await;
            awake.set(true);
        }
    });
    let seen = executor.block_on(&endpoint, async {
        let span = endpoint.span(OpKind::Get);
        let word = RemotePtr::new(NodeId::new(0), 64);
        for _ in 0..20_000_000_u64 {
            if awake.get() {
                return true;
            }
            span.read(word, 8).await.expect("a READ");
        }
        false
    });
    assert!(seen, "the sleeper was never woken");
    executor.block_on(&endpoint, sleeper);
}

/// Where others wait for their turn, an operation goes on: it may hold a pin, for which all reclamation waits. They run when it
/// has ended.
#[test]
fn others_have_their_turn_between_operations() {
    let fabric = MemoryFabric::new(1, 4096).expect("memory");
    let endpoint = fabric.connect(&fabric.new_identity()).expect("a connection");
    let executor = Executor::new();
    let turns = Rc::new(Cell::new(0));
    // Somebody sleeps, but is not due.
    let sleeper = executor.spawn({
        let endpoint = endpoint.clone();
        async move { endpoint.sleep(Duration::from_secs(1000)).await }
    });
    let other = executor.spawn({
        let turns = Rc::clone(&turns);
        async move {
            for _ in 0..3 {
                turns.set(turns.get() + 1);
                farindex_fabric::yield_now().await;
            }
        }
    });
    executor.block_on(&endpoint, async {
        farindex_fabric::yield_now().await;
        assert_eq!(turns.get(), 1);
        let span = endpoint.span(OpKind::Get);
        let read = async |verbs: u32| {
            for _ in 0..verbs {
                span.read(RemotePtr::new(NodeId::new(0), 64), 8).await.expect("a READ");
            }
        };
        endpoint.let_others_run().await;
        assert_eq!(turns.get(), 1, "nobody has waited for long");
        read(1000).await;
        assert_eq!(turns.get(), 1, "an operation was interrupted, and nobody's sleep is over");
        endpoint.let_others_run().await;
        assert_eq!(turns.get(), 2);
        read(10_000).await;
        assert!(turns.get() > 2, "an operation without an end keeps its thread for ever");
    });
    executor.block_on(&endpoint, other);
    drop(sleeper);
}
