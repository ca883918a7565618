//! The path cache of DEX under loom: every interleaving of two threads that look, swizzle, cool, evict and take out, up to a
//! number of preemptions. The sources are the same as in the library; `sync` gives them loom's types.
//!
//! `LOOM_MAX_PREEMPTIONS=8 cargo test --release -p farindex-index --test path_cache` tries more of them than 4.

#[path = "../src/tree/path_cache/check.rs"]
mod check;
#[path = "../src/tree/path_cache/cooling.rs"]
mod cooling;
#[path = "../src/tree/path_cache/evict.rs"]
mod evict;
#[path = "../src/tree/path_cache/frame.rs"]
mod frame;
#[allow(dead_code, reason = "the library uses more of it")]
#[path = "../src/tree/path_cache/table.rs"]
mod table;

/// Loom's types under the names of the library's.
mod sync {
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
    use std::ops::Deref;
    use std::sync::Arc;

    pub(super) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(super) fn new(value: T) -> Self {
            Mutex(loom::sync::Mutex::new(value))
        }
        pub(super) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
            self.0.lock().expect("no panic under it")
        }
    }

    pub(super) struct Slot<T>(Mutex<Option<Arc<T>>>);

    impl<T> Slot<T> {
        pub(super) fn empty() -> Self {
            Slot(Mutex::new(None))
        }
        pub(super) fn load(&self) -> Loaded<T> {
            Loaded(self.0.lock().clone())
        }
        pub(super) fn store(&self, value: Option<Arc<T>>) {
            let old = std::mem::replace(&mut *self.0.lock(), value);
            drop(old);
        }
        pub(super) fn take(&self) -> Option<Arc<T>> {
            self.0.lock().take()
        }
    }

    pub(super) struct Loaded<T>(Option<Arc<T>>);

    impl<T> Deref for Loaded<T> {
        type Target = Option<Arc<T>>;
        fn deref(&self) -> &Option<Arc<T>> {
            &self.0
        }
    }

    pub(super) fn loaded<T>(value: Arc<T>) -> Loaded<T> {
        Loaded(Some(value))
    }
}

mod hooks {
    macro_rules! mark {
        ($name:literal) => {};
    }
    pub(super) use mark;

    #[allow(dead_code)]
    #[derive(Debug, Clone, Copy)]
    pub(super) enum Fault {
        ParentEvictedFirst,
        NoIoFlag,
        LeftSwizzled,
        DirtyEvicted,
    }
    pub(super) fn planted(_: Fault) -> bool {
        false
    }
}

use check::check;
use frame::{Content, Frame};
use loom::sync::atomic::AtomicU32;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use table::{Look, Table};

struct Toy {
    level: u8,
    children: Vec<u64>,
}

impl Content for Toy {
    fn heap_bytes(&self) -> u64 {
        0
    }
    fn level(&self) -> u8 {
        self.level
    }
    fn children(&self) -> usize {
        self.children.len()
    }
    fn child(&self, i: usize) -> u64 {
        self.children[i]
    }
}

const ROOT: u64 = 64;
const LEAF: u64 = 128;
const OTHER: u64 = 192;

fn root() -> Toy {
    Toy { level: 1, children: vec![LEAF, OTHER] }
}
fn leaf() -> Toy {
    Toy { level: 0, children: Vec::new() }
}

/// A table in which the nodes have buckets of their own, and a cooling map with one.
fn table() -> (Arc<Table<Toy>>, u64) {
    let table = Table::new(ROOT, 1 << 20, (64, 1));
    let own = table.budget.used();
    (Arc::new(table), own)
}
/// The same with the root and a leaf in it, which is swizzled.
fn filled() -> (Arc<Table<Toy>>, u64) {
    let (table, own) = table();
    assert!(table.put(ROOT, root(), None) && table.put(LEAF, leaf(), Some(ROOT)));
    assert!(look_up(&table).is_some());
    (table, own)
}
/// Descends to the leaf as a lookup does.
fn look_up(table: &Table<Toy>) -> Option<Arc<Frame<Toy>>> {
    let root = table.root()?;
    let child = table.child((*root).as_ref()?, 0)?;
    (*child).clone()
}

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(4));
    builder.check(body);
}

/// Runs two threads, and then checks the invariants.
fn both(
    (table, own): (Arc<Table<Toy>>, u64),
    one: impl FnOnce(&Table<Toy>) + 'static,
    two: impl FnOnce(&Table<Toy>) + 'static,
) -> Arc<Table<Toy>> {
    let of_one = Arc::clone(&table);
    let thread = loom::thread::spawn(move || one(&of_one));
    two(&table);
    thread.join().expect("the other thread");
    assert_eq!(check(&table, own), Ok(()));
    table
}

#[test]
fn two_operations_read_a_missing_node_once() {
    model(|| {
        let (table, own) = table();
        let reads = Arc::new(AtomicU32::new(0));
        let operation = |reads: Arc<AtomicU32>| {
            move |table: &Table<Toy>| loop {
                match table.look(ROOT) {
                    Look::Found(_) => return,
                    Look::Busy(wait) => loom::future::block_on(wait),
                    Look::Free(_flag) => {
                        reads.fetch_add(1, Ordering::SeqCst);
                        assert!(table.put(ROOT, root(), None));
                    }
                }
            }
        };
        both((table, own), operation(Arc::clone(&reads)), operation(Arc::clone(&reads)));
        assert_eq!(reads.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn an_operation_that_is_cancelled_leaves_no_flag() {
    model(|| {
        let operation = |table: &Table<Toy>| {
            if let Look::Busy(wait) = table.look(ROOT) {
                loom::future::block_on(wait);
            }
        };
        let table = both(table(), operation, operation);
        assert!(table.busy(ROOT).is_none() && table.frames().is_empty());
    });
}

#[test]
fn a_cooling_leaf_is_evicted_or_found() {
    model(|| {
        let evict = |table: &Table<Toy>| {
            let frame = table.get(LEAF).expect("a leaf");
            table.cool(&frame, false);
            drop(frame);
            if let Some(oldest) = table.cooling.pop(0) {
                table.evict(oldest);
            }
        };
        let found = Arc::new(AtomicU32::new(0));
        let of_reader = Arc::clone(&found);
        let table = both(filled(), evict, move |table| {
            of_reader.store(look_up(table).is_some().into(), Ordering::SeqCst);
        });
        assert!(found.load(Ordering::SeqCst) == 1 || !table.has(LEAF));
    });
}

#[test]
fn a_parent_is_not_cooled_while_a_child_is_swizzled_in_it() {
    model(|| {
        let (table, own) = table();
        assert!(table.put(ROOT, root(), None) && table.put(LEAF, leaf(), Some(ROOT)));
        let cool = |table: &Table<Toy>| {
            let root = table.get(ROOT).expect("the root");
            table.cool(&root, false);
        };
        both((table, own), cool, |table| drop(look_up(table)));
    });
}

#[test]
fn a_leaf_that_was_taken_out_is_not_found_afterwards() {
    model(|| {
        // It is in the table, and not swizzled yet: the reader swizzles it, or does not find it.
        let (table, own) = table();
        assert!(table.put(ROOT, root(), None) && table.put(LEAF, leaf(), Some(ROOT)));
        let write = |table: &Table<Toy>| {
            assert!(table.remove(LEAF));
            assert!(look_up(table).is_none(), "found after it was taken out");
        };
        let table = both((table, own), write, |table| drop(look_up(table)));
        assert!(look_up(&table).is_none());
    });
}

#[test]
fn a_leaf_is_taken_out_while_another_copy_is_admitted() {
    model(|| {
        let take_out = |table: &Table<Toy>| assert!(table.remove(LEAF));
        both(filled(), take_out, |table| _ = table.put(LEAF, leaf(), Some(ROOT)));
    });
}

#[test]
fn a_leaf_is_looked_for_while_its_parent_is_replaced() {
    model(|| {
        let replace = |table: &Table<Toy>| {
            let changed = Toy { level: 1, children: vec![LEAF] };
            assert!(table.put(ROOT, changed, None));
        };
        let table = both(filled(), replace, |table| assert!(look_up(table).is_some()));
        assert!(look_up(&table).is_some());
    });
}

#[test]
fn a_leaf_is_taken_out_while_its_parent_is_replaced() {
    model(|| {
        let replace = |table: &Table<Toy>| {
            let changed = Toy { level: 1, children: vec![OTHER, LEAF] };
            assert!(table.put(ROOT, changed, None));
        };
        let take_out = |table: &Table<Toy>| {
            assert!(table.remove(LEAF));
            assert!(look_up(table).is_none(), "found after it was taken out");
        };
        both(filled(), replace, take_out);
    });
}

#[test]
fn a_parent_becomes_old_while_a_child_is_swizzled() {
    model(|| {
        let (table, own) = table();
        assert!(table.put(ROOT, root(), None) && table.put(LEAF, leaf(), Some(ROOT)));
        both((table, own), |table| table.invalidate(ROOT), |table| drop(look_up(table)));
    });
}
