//! What an index must bring along to be put on trial.

use farindex_index::coalesce::Fault;
use farindex_index::{Coalesced, Coalescer, IndexError, Lifecycle, PointIndex, PoolIndex};
use farindex_pool::Session;
use farindex_sim::SimRng;
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

/// A kind of index with settings drawn from a seed.
pub trait IndexUnderTest: Clone + 'static {
    /// The index.
    type Index: PoolIndex;

    /// Settings for one seed.
    fn draw(&self, rng: &mut SimRng) -> Self;
    /// The settings.
    fn config(&self) -> <Self::Index as PoolIndex>::Config;
    /// Does something that a client may do at any time and that brings rare paths about: pushes a table towards growth,
    /// forgets a cache.
    fn perturb(&self, _index: &Self::Index, _dice: &mut SimRng) {}
    /// Does a removal need memory, and fail for want of it?
    fn removes_by_writing(&self) -> bool {
        false
    }
    /// May keys with these hash bits be told to be close together? A workload's hot keys share the low `bits` of their
    /// hashes, which for most hash tables means one bucket for the first `bits` doublings.
    fn colliding_bits(&self, rng: &mut SimRng) -> u32;
}

/// How clients get at the index: as its kind made it, or behind something of theirs.
pub trait Access: Clone + 'static {
    /// The kind.
    type IndexUnderTest: IndexUnderTest;
    /// What clients work on.
    type Handle: PointIndex + 'static;

    /// The same for one seed.
    fn draw(&self, rng: &mut SimRng) -> Self;
    /// The kind with its settings.
    fn index_under_test(&self) -> &Self::IndexUnderTest;
    /// In words.
    fn describe(&self) -> String;
    /// Opens the index.
    fn open(&self, session: &Rc<Session>) -> impl Future<Output = Result<Self::Handle, IndexError>>;
    /// The index as its kind made it.
    fn plain<'a>(&self, handle: &'a Self::Handle) -> &'a <Self::IndexUnderTest as IndexUnderTest>::Index;
}

/// What every index on trial is called.
pub(crate) const NAME: &str = "tried";

impl<S: IndexUnderTest> Access for S {
    type IndexUnderTest = S;
    type Handle = S::Index;

    fn draw(&self, rng: &mut SimRng) -> Self {
        IndexUnderTest::draw(self, rng)
    }
    fn index_under_test(&self) -> &S {
        self
    }
    fn describe(&self) -> String {
        format!("{:?}", self.config())
    }
    async fn open(&self, session: &Rc<Session>) -> Result<S::Index, IndexError> {
        S::Index::open(session, NAME).await
    }
    fn plain<'a>(&self, handle: &'a S::Index) -> &'a S::Index {
        handle
    }
}

/// A client's slot and generation.
type Registration = (u64, u64);

/// An index behind a local lock table for each client.
#[derive(Clone)]
pub struct Coalescing<S> {
    index_under_test: S,
    fault: Fault,
    /// By registration: one table for all coroutines of a client. The next client in a slot needs a new
    /// one, because the lanes of the old one belong to coroutines that a crash has ended.
    tables: Arc<Mutex<BTreeMap<Registration, Arc<Coalescer>>>>,
}

impl<S: IndexUnderTest> Coalescing<S> {
    /// With a fault of the table, or none.
    pub fn new(index_under_test: S, fault: Fault) -> Self {
        Coalescing { index_under_test, fault, tables: Arc::default() }
    }
}

impl<S: IndexUnderTest> Access for Coalescing<S> {
    type IndexUnderTest = S;
    type Handle = Coalesced<S::Index>;

    fn draw(&self, rng: &mut SimRng) -> Self {
        // Tables of its own for each seed.
        Self::new(IndexUnderTest::draw(&self.index_under_test, rng), self.fault)
    }
    fn index_under_test(&self) -> &S {
        &self.index_under_test
    }
    fn describe(&self) -> String {
        format!("{:?}, coalesced with fault {:?}", self.index_under_test.config(), self.fault)
    }
    async fn open(&self, session: &Rc<Session>) -> Result<Self::Handle, IndexError> {
        let index = S::Index::open(session, NAME).await?;
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        let registration = (session.client().slot(), session.client().generation());
        let table = tables.entry(registration).or_insert_with(|| Arc::new(Coalescer::new(self.fault)));
        let uid = index.uid();
        Ok(Coalesced::new(index, Arc::clone(table), uid))
    }
    fn plain<'a>(&self, handle: &'a Self::Handle) -> &'a S::Index {
        handle.inner()
    }
}
