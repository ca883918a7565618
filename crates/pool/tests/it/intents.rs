//! Intents: when they are declared, and which cells an operation may take.

use crate::common::{NODE, Rig};
use farindex_fabric::memory::Delivery;
use farindex_fabric::{Executor, OpKind, RemotePtr};
use farindex_pool::{Intent, Lock, intent};
use std::rc::Rc;

fn intent(lock: u64) -> Intent {
    Intent { index: 5, lock: Lock { at: RemotePtr::new(NODE, lock), mask: 1 }, what: [1, 2, 3, 4] }
}

#[test]
fn intent_is_declared_for_as_long_as_its_lock_is_held() {
    let rig = Rig::new(8);
    let (member, witness) = (rig.join(), rig.join());
    let (session, watching) = (member.session(), witness.session());
    let span = session.span(OpKind::Other);
    let lock = rig.pool.geometry(NODE).chunk(NODE, 0);
    let holders = || {
        let span = watching.span(OpKind::Other);
        let text = witness.run(intent::holders(&watching, &span, lock)).expect("read");
        (text, span.cost().round_trips)
    };
    assert_eq!(holders(), ("an unknown client".to_owned(), 2));
    let cell = member.run(session.intent_cell(NODE)).expect("free");
    for _ in 0..3 {
        let mut batch = span.batch();
        cell.declare(&mut batch, &intent(lock.offset()));
        batch.cas(lock, 0, 1);
        member.run(batch.post()).expect("locked");
        assert_eq!(holders().0, format!("client 0 (process {})", std::process::id()));
        let found = witness.run(intent::intents(&watching, &watching.span(OpKind::Other), NODE)).expect("read");
        assert_eq!(
            found.iter().map(|found| (found.slot, found.intent)).collect::<Vec<_>>(),
            [(0, intent(lock.offset()))]
        );
        let mut batch = span.batch();
        batch.cas(lock, 1, 0);
        cell.clear(&mut batch);
        member.run(batch.post()).expect("released");
        assert_eq!(holders().0, "an unknown client");
    }
}

#[test]
fn late_clearing_cas_does_not_clear_a_later_intent() {
    let rig = Rig::new(8);
    let member = rig.join_with(Delivery::Deferred);
    let session = member.session();
    let span = session.span(OpKind::Other);
    let cell = member.run(session.intent_cell(NODE)).expect("free");
    let mut declared = span.batch();
    cell.declare(&mut declared, &intent(4096));
    member.run(declared.post()).expect("posted");
    let mut late = span.batch();
    cell.clear(&mut late);
    let mut again = span.batch();
    cell.declare(&mut again, &intent(8192));
    member.run(again.post()).expect("posted");
    member.run(late.post()).expect("lands late");
    let found = member.run(intent::intents(&session, &span, NODE)).expect("read");
    assert_eq!(found.iter().map(|found| found.intent).collect::<Vec<_>>(), [intent(8192)]);
}

#[test]
fn intent_cells_run_out_and_become_free_again() {
    let rig = Rig::new(8);
    let member = rig.join();
    let session = member.session();
    let span = session.span(OpKind::Other);
    // One cell is left with its intent: it is not used again until the intent is cleared.
    let left = member.run(session.intent_cell(NODE)).expect("free");
    let mut batch = span.batch();
    left.declare(&mut batch, &intent(4096));
    member.run(batch.post()).expect("posted");
    drop(left);
    let mut cells: Vec<_> = (0..15).map(|_| member.run(session.intent_cell(NODE)).expect("free")).collect();
    assert_eq!(member.run(intent::intents(&session, &span, NODE)).expect("read").len(), 1);
    let error = member.run(session.intent_cell(NODE)).err().expect("all are taken").to_string();
    assert!(error.starts_with("every intent cell of this client on memory node 0 has been locked"), "{error}");
    let executor = Executor::new();
    let waiter = Rc::new(member.session());
    let waiting = executor.spawn({
        let waiter = Rc::clone(&waiter);
        async move { waiter.intent_cell(NODE).await.is_ok() }
    });
    executor.run_ready();
    assert!(!waiting.is_finished());
    cells.pop();
    assert!(executor.block_on(&member.endpoint, waiting));
    cells.push(member.run(session.intent_cell(NODE)).expect("the returned one"));
    // As a late clearing CAS would, or a takeover of the lock.
    let at = rig.pool.geometry(NODE).intent(NODE, 0, 0);
    let word = rig.peek(at, 1)[0];
    rig.poke(at, &[word & !1]);
    member.run(session.intent_cell(NODE)).expect("the one that was left");
    assert!(member.run(session.intent_cell(farindex_fabric::NodeId::new(9))).is_err());
}
