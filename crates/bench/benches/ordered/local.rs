//! Ordered maps of local memory that the far ones are compared with.

use crossbeam_skiplist::SkipMap;
use farindex_bench::baseline::WordMap;
use std::cell::Cell;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The B+ tree of the crate `scc`.
#[derive(Default)]
pub(crate) struct TreeIndex(scc::TreeIndex<u64, AtomicU64>);

impl WordMap for TreeIndex {
    fn get(&self, key: u64) -> Option<u64> {
        self.0.peek_with(&key, |_, value| value.load(Relaxed))
    }
    fn insert(&self, key: u64, value: u64) -> bool {
        self.0.insert_sync(key, AtomicU64::new(value)).is_ok()
    }
    fn update(&self, key: u64, value: u64) -> bool {
        self.0.peek_with(&key, |_, slot| slot.store(value, Relaxed)).is_some()
    }
    fn ascend(&self, from: u64, mut each: impl FnMut(u64, u64) -> bool) {
        let guard = scc::Guard::new();
        let _ = self.0.range(from.., &guard).all(|(key, value)| each(*key, value.load(Relaxed)));
    }
}

/// The skip list of the crate `crossbeam-skiplist`.
#[derive(Default)]
pub(crate) struct SkipList(SkipMap<u64, AtomicU64>);

impl WordMap for SkipList {
    fn get(&self, key: u64) -> Option<u64> {
        self.0.get(&key).map(|entry| entry.value().load(Relaxed))
    }
    fn insert(&self, key: u64, value: u64) -> bool {
        let absent = Cell::new(true);
        self.0.compare_insert(key, AtomicU64::new(value), |_| {
            absent.set(false);
            false
        });
        absent.get()
    }
    fn update(&self, key: u64, value: u64) -> bool {
        self.0.get(&key).map(|entry| entry.value().store(value, Relaxed)).is_some()
    }
    fn ascend(&self, from: u64, mut each: impl FnMut(u64, u64) -> bool) {
        let _ = self.0.range(from..).all(|entry| each(*entry.key(), entry.value().load(Relaxed)));
    }
}
