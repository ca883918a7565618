//! What an index must bring along to be put on trial.

use farindex_index::{HashIndex, IndexAudit, IndexError};
use farindex_pool::Session;
use farindex_pool::audit::Audit;
use farindex_sim::Dice;
use std::future::Future;
use std::rc::Rc;

/// A kind of index with settings drawn from a seed.
pub trait Subject: Clone + 'static {
    /// The index.
    type Index: HashIndex + 'static;

    /// Settings for one seed.
    fn draw(&self, dice: &mut Dice) -> Self;
    /// The settings in words.
    fn describe(&self) -> String;
    /// Makes the index.
    fn create(&self, session: &Rc<Session>) -> impl Future<Output = Result<Self::Index, IndexError>>;
    /// Opens what [`create`](Self::create) made.
    fn open(&self, session: &Rc<Session>) -> impl Future<Output = Result<Self::Index, IndexError>>;
    /// Walks it while nobody else is at work.
    fn audit(&self, index: &Self::Index, audit: &mut Audit) -> impl Future<Output = Result<IndexAudit, IndexError>>;
    /// Puts right what dead clients have left.
    fn mend(&self, _index: &Self::Index) -> impl Future<Output = Result<u64, IndexError>> {
        async { Ok(0) }
    }
    /// Does something that a client may do at any time and that brings rare paths about: pushes a table towards growth,
    /// forgets a cache.
    fn shake(&self, _index: &Self::Index, _dice: &mut Dice) {}
    /// May keys with these hash bits be told to be close together? A workload's hot keys share the low `bits` of their
    /// hashes, which for most hash tables means one bucket for the first `bits` doublings.
    fn crowd_bits(&self, dice: &mut Dice) -> u32;
}
