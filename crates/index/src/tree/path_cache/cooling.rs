//! The cooling map: which nodes may be evicted, in buckets of six in the order in which they came (5.2 of the paper).

use super::sync::Mutex;

/// Slots of a bucket: what a cache line has room for, with a mutex.
pub(super) const SLOTS: usize = 6;

/// Addresses; zeros at the end are no addresses.
type Bucket = [u64; SLOTS];

pub(super) struct CoolingMap {
    buckets: Box<[Mutex<Bucket>]>,
}

impl CoolingMap {
    /// Makes a map for so many nodes, or a few more.
    pub(super) fn new(nodes: usize) -> Self {
        CoolingMap { buckets: (0..nodes.div_ceil(SLOTS).max(1)).map(|_| Mutex::new([0; SLOTS])).collect() }
    }
    pub(super) fn bytes(&self) -> u64 {
        (self.buckets.len() * size_of::<Mutex<Bucket>>()) as u64
    }
    fn bucket(&self, at: u64) -> &Mutex<Bucket> {
        // Other bits than those of the mapping table.
        let place = super::table::spread(at) as u32 as usize % self.buckets.len();
        &self.buckets[place]
    }
    /// Adds a node; returns the oldest one of its bucket if that was full.
    pub(super) fn push(&self, at: u64) -> Option<u64> {
        let mut bucket = self.bucket(at).lock();
        if let Some(vacant) = bucket.iter_mut().find(|slot| **slot == 0) {
            *vacant = at;
            return None;
        }
        let oldest = bucket[0];
        bucket.rotate_left(1);
        bucket[SLOTS - 1] = at;
        Some(oldest)
    }
    /// Takes a node out, if it is there.
    pub(super) fn remove(&self, at: u64) -> bool {
        let mut bucket = self.bucket(at).lock();
        let Some(place) = bucket.iter().position(|slot| *slot == at) else { return false };
        bucket[place] = 0;
        bucket[place..].rotate_left(1);
        true
    }
    /// Takes the oldest node of the first bucket that has one, from a position on.
    pub(super) fn pop(&self, from: u64) -> Option<u64> {
        let all = self.buckets.len();
        (0..all).find_map(|i| {
            let mut bucket = self.buckets[(from as usize).wrapping_add(i) % all].lock();
            let oldest = std::mem::take(&mut bucket[0]);
            bucket.rotate_left(1);
            (oldest != 0).then_some(oldest)
        })
    }
    /// All nodes in it.
    #[cfg(test)]
    pub(super) fn nodes(&self) -> Vec<u64> {
        self.buckets.iter().flat_map(|bucket| *bucket.lock()).filter(|at| *at != 0).collect()
    }
}
