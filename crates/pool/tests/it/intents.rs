//! Intents: when they are declared, and which cells an operation may take.

use crate::common::{NODE, Rig, small};
use farindex_fabric::memory::Delivery;
use farindex_fabric::{Executor, Fabric, OpKind, RemotePtr};
use farindex_pool::{Intent, Lock, PoolOptions, intent};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

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
        cell.cleared();
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

/// What it waits for was perhaps stopped with it (docs/bugs/237).
#[test]
fn who_was_stopped_while_it_waited_for_an_intent_cell_looks_again() {
    let rig = Rig::with(1, 1 << 20, &PoolOptions { intent_cells: Some(1), ..small() });
    let member = rig.join();
    let session = Rc::new(member.session());
    let cell = member.run(session.intent_cell(NODE)).expect("free");
    let span = session.span(OpKind::Other);
    let mut batch = span.batch();
    cell.declare(&mut batch, &intent(4096));
    member.run(batch.post()).expect("posted");
    drop(cell);
    let executor = Executor::new();
    let waiting = executor.spawn({
        let session = Rc::clone(&session);
        async move { session.intent_cell(NODE).await.map(drop).map_err(|error| error.to_string()) }
    });
    executor.run_ready();
    std::thread::sleep(rig.pool.lease() * 2);
    let at = rig.pool.geometry(NODE).intent(NODE, 0, 0);
    let word = rig.peek(at, 1)[0];
    rig.poke(at, &[word & !1]);
    assert_eq!(executor.block_on(&member.endpoint, waiting), Ok(()));
}

#[test]
fn operations_get_intent_cells_in_the_order_of_asking() {
    let options = PoolOptions { intent_cells: Some(2), ..small() };
    let rig = Rig::with(1, 1 << 20, &options);
    assert_eq!(rig.pool.geometry(NODE).intent_cells, 2);
    let member = rig.join();
    let session = Rc::new(member.session());
    let mut cells: Vec<_> = (0..2).map(|_| member.run(session.intent_cell(NODE)).expect("free")).collect();
    let executor = Executor::new();
    let order = Rc::new(RefCell::new(Vec::new()));
    let mut waiting: Vec<_> = (0..4)
        .map(|i| {
            let (session, order) = (Rc::clone(&session), Rc::clone(&order));
            executor.spawn(async move {
                let cell = session.intent_cell(NODE).await.expect("in its turn");
                order.borrow_mut().push(i);
                drop(cell);
            })
        })
        .collect();
    executor.run_ready();
    // One is cancelled while it waits, one after it was given the cell and before it has fetched it.
    drop(waiting.remove(1));
    cells.pop();
    drop(waiting.remove(0));
    // A newcomer does not overtake those that wait.
    let newcomer = executor.spawn({
        let (session, order) = (Rc::clone(&session), Rc::clone(&order));
        async move {
            session.intent_cell(NODE).await.expect("in its turn");
            order.borrow_mut().push(9);
        }
    });
    executor.block_on(&member.endpoint, async {
        for task in waiting {
            task.await;
        }
        newcomer.await;
    });
    assert_eq!(*order.borrow(), [2, 3, 9]);
    drop(cells);
    for _ in 0..2 {
        std::mem::forget(member.run(session.intent_cell(NODE)).expect("both are free again"));
    }
}

/// Threads of a client share its cells. One that waits hears of a cell that another thread returns.
#[test]
fn threads_wait_for_the_cells_of_their_client() {
    const THREADS: u64 = 3;
    const TIMES: u64 = 300;
    let rig = Rig::with(1, 1 << 20, &PoolOptions { intent_cells: Some(1), lease: LONG, ..small() });
    let member = rig.join();
    let held = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let endpoint = rig.fabric.connect(member.client.identity()).expect("connects");
                let session = member.client.session(endpoint.clone());
                let executor = Executor::new();
                executor.block_on(&endpoint, async {
                    for _ in 0..TIMES {
                        let cell = session.intent_cell(NODE).await.expect("within a lease");
                        assert_eq!(held.fetch_add(1, Ordering::SeqCst), 0, "one operation has the cell");
                        held.fetch_sub(1, Ordering::SeqCst);
                        drop(cell);
                    }
                });
            });
        }
    });
}
