//! An index with keys in it, in memory of this process, and compute nodes that read it.

use super::paper::SIZES;
use crate::report::{Error, Watch};
use farindex::{AnyIndex, Index, IndexConfig, Pool, Session};
use farindex_bench::driver::pool_index::PoolIndexBench;
use farindex_bench::workload::{Keys, ValueSize};
use farindex_bench::{Plan, Workload};
use farindex_fabric::OpKind;
use farindex_fabric::meter::Counters;
use farindex_index::IndexAudit;
use farindex_index::tree::Lookups;
use std::sync::Arc;

/// Bytes of a pool, and more for each key: entries of up to 24 bytes in leaves that are half full, and room for what
/// waits for its epoch.
const POOL: u64 = 64 << 20;
const ROOM: u64 = 80;

/// An index with `count` keys.
pub(super) struct Filled {
    subject: PoolIndexBench,
    pub(super) count: u64,
}

impl Filled {
    /// Inserts the keys.
    pub(super) fn new(config: &IndexConfig, count: u64, seed: u64, watch: Watch<'_>) -> Result<Self, Error> {
        let workload: Workload = "ycsb-load".parse().map_err(|why: String| Error::Bug(why))?;
        let (key_size, value_size) = (SIZES.0, ValueSize::fixed(SIZES.1));
        let plan = Plan { keys: count, key_size, value_size, seed, audit: false, ..Plan::new(workload) };
        let bytes = POOL.saturating_add(count.saturating_mul(ROOM)).next_multiple_of(4096);
        let pool = Pool::builder().unseeded().node_bytes(bytes).in_memory(1)?;
        let subject = PoolIndexBench::create(pool, "reproduce", config)?;
        let outcome = watch.run(&subject, &plan)?;
        match outcome.wrong.total() + outcome.errors.total() {
            0 => Ok(Filled { subject, count }),
            _ => Err(Error::Wrong(format!("{} {}", outcome.wrong, outcome.errors))),
        }
    }

    /// Walks the index, which must have every key and no damage.
    pub(super) fn audit(&self) -> Result<IndexAudit, Error> {
        let session = self.subject.pool.session()?;
        let audit = session.open_index(&self.subject.name)?.audit()?;
        if audit.entries != self.count || !audit.problems.is_empty() {
            let what = format!("{} entries after {} inserts; {:?}", audit.entries, self.count, audit.problems);
            return Err(Error::Wrong(what));
        }
        Ok(audit)
    }

    /// A compute node that has read nothing yet.
    pub(super) fn reader(&self) -> Result<Reader, Error> {
        let pool = Pool::attach(Arc::clone(self.subject.pool.fabric()))?;
        let session = pool.session()?;
        let index = session.open_index(&self.subject.name)?;
        Ok(Reader { index, session, count: self.count, next: 0 })
    }
}

/// A compute node: a client of the pool with a cache of its own.
pub(super) struct Reader {
    // Dropped before the session it lives in.
    pub(super) index: Index,
    session: Session,
    count: u64,
    next: u64,
}

/// Every so many keys is looked up to fill a cache: a parent of leaves has some thousand keys below it.
const STRIDE: u64 = 50;

impl Reader {
    /// Some key of the index, another one each time.
    pub(super) fn any_key(&mut self) -> Vec<u8> {
        // Keys are hashed, so any stride is as good.
        self.next = self.next.wrapping_add(7919);
        key(self.next % self.count.max(1))
    }

    /// Looks keys up until the cache has every inner node that a lookup needs.
    pub(super) fn warm_up(&mut self, watch: Watch<'_>) -> Result<(), Error> {
        for i in 0..(self.count / STRIDE).max(1000) {
            if i.is_multiple_of(10_000) {
                watch.check()?;
            }
            self.look_up()?;
        }
        Ok(())
    }

    /// Looks up a key, which has to be there.
    pub(super) fn look_up(&mut self) -> Result<(), Error> {
        let key = self.any_key();
        match self.index.get(&key)? {
            Some(_) => Ok(()),
            None => Err(Error::Wrong(format!("key {key:?} is missing"))),
        }
    }

    /// Hits and misses of the node cache by level, from the parents of leaves up.
    pub(super) fn lookups(&self) -> Vec<Lookups> {
        match &*self.index.async_handle() {
            AnyIndex::Sherman(index) => index.inner().lookups(),
            AnyIndex::Chime(index) => index.inner().lookups(),
            _ => Vec::new(),
        }
    }

    /// Runs one operation, and returns its cost in verbs.
    pub(super) fn cost(
        &mut self,
        kind: OpKind,
        operation: impl FnOnce(&mut Reader) -> Result<(), Error>,
    ) -> Result<Counters, Error> {
        let before = self.session.meter();
        operation(self)?;
        Ok((self.session.meter() - before).of(kind).total)
    }
}

/// The key with this number.
pub(super) fn key(number: u64) -> Vec<u8> {
    let keys = Keys::new(SIZES.0);
    let mut key = vec![0; keys.size()];
    keys.write(number, &mut key);
    key
}
