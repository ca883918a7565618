//! The intent cells of a client under loom: every interleaving of two threads that take, return and wait for cells. The
//! source is the same as in the library; `sync` gives it loom's types.

#[allow(dead_code, reason = "the library uses more of it")]
#[path = "../src/client/node_cells.rs"]
mod node_cells;

/// Loom's types under the names of the library's.
mod sync {
    pub(crate) use loom::sync::atomic::Ordering;
    use loom::sync::atomic::fence;

    /// A word that is used with sequentially consistent accesses alone. Loom takes such an access for one that acquires and
    /// releases, but knows sequentially consistent fences.
    #[derive(Default)]
    pub(crate) struct AtomicU64(loom::sync::atomic::AtomicU64);

    impl AtomicU64 {
        fn ordered<T>(&self, order: Ordering, access: impl FnOnce(&loom::sync::atomic::AtomicU64) -> T) -> T {
            assert_eq!(order, Ordering::SeqCst);
            fence(order);
            let result = access(&self.0);
            fence(order);
            result
        }
        pub(crate) fn load(&self, order: Ordering) -> u64 {
            self.ordered(order, |word| word.load(order))
        }
        pub(crate) fn store(&self, value: u64, order: Ordering) {
            self.ordered(order, |word| word.store(value, order));
        }
        pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
            self.ordered(order, |word| word.fetch_add(value, order))
        }
        pub(crate) fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
            self.ordered(order, |word| word.fetch_sub(value, order))
        }
        pub(crate) fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
            self.ordered(order, |word| word.fetch_or(value, order))
        }
        pub(crate) fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
            self.ordered(order, |word| word.fetch_and(value, order))
        }
        pub(crate) fn fetch_update(
            &self,
            order: Ordering,
            failed: Ordering,
            update: impl FnMut(u64) -> Option<u64>,
        ) -> Result<u64, u64> {
            self.ordered(order, |word| word.fetch_update(order, failed, update))
        }
    }

    #[derive(Default)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
            self.0.lock().expect("no panic under it")
        }
    }
}

use node_cells::{CellWait, NodeCells};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(4));
    builder.check(body);
}

/// So many cells, the first of which is taken, and another thread.
fn with_a_taken_cell(
    number: u64,
    other: impl FnOnce(&NodeCells) + 'static,
    own: impl FnOnce(&NodeCells),
) -> Arc<NodeCells> {
    let cells = Arc::new(NodeCells::new(number));
    assert_eq!(cells.take(), Some(0));
    let shared = Arc::clone(&cells);
    let thread = loom::thread::spawn(move || other(&shared));
    own(&cells);
    thread.join().expect("the other thread");
    cells
}

#[test]
fn a_cell_with_an_uncleared_intent_is_not_taken() {
    model(|| {
        let returns = |cells: &NodeCells| cells.give_back(0, true, false);
        let cells = with_a_taken_cell(1, returns, |cells| assert_eq!(cells.take(), None));
        assert_eq!((cells.left_uncleared(), cells.any_own_uncleared()), (1, true));
        cells.clear(0);
        assert_eq!((cells.left_uncleared(), cells.any_own_uncleared()), (1, true), "nothing was cleared");
        cells.clear(1);
        assert_eq!((cells.left_uncleared(), cells.any_own_uncleared()), (0, false));
        assert_eq!(cells.take(), Some(0));
    });
}

#[test]
fn one_that_waits_gets_the_cell_that_is_returned() {
    model(|| {
        let returns = |cells: &NodeCells| cells.give_back(0, false, false);
        let cells = with_a_taken_cell(1, returns, |cells| {
            let mut wait = CellWait::new(cells);
            assert_eq!(loom::future::block_on(poll_fn(|cx| wait.poll(cx))), 0);
            assert_eq!(cells.take(), None);
        });
        cells.give_back(0, false, false);
        assert_eq!(cells.take(), Some(0), "nobody waits any more");
    });
}

#[test]
fn a_cell_is_not_lost_with_one_that_waits_no_longer() {
    model(|| {
        let returns = |cells: &NodeCells| cells.give_back(0, false, false);
        let cells = with_a_taken_cell(1, returns, |cells| {
            let mut wait = CellWait::new(cells);
            if let Poll::Ready(cell) = wait.poll(&mut Context::from_waker(Waker::noop())) {
                cells.give_back(cell, false, false);
            }
        });
        assert_eq!(cells.take(), Some(0));
    });
}

#[test]
fn two_operations_never_have_one_cell() {
    model(|| {
        let take = |cells: &NodeCells| {
            if let Some(cell) = cells.take() {
                assert_eq!(cell, 1);
                cells.give_back(cell, false, false);
            }
        };
        let cells = with_a_taken_cell(2, take, take);
        assert_eq!((cells.take(), cells.take()), (Some(1), None));
    });
}
