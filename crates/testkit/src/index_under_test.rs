//! What a kind of index brings along to be tested.

use crate::workload::Shape;
use farindex_index::{AnyIndex, IndexConfig, IndexError};
use farindex_sim::SimRng;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

/// A command under way.
pub type Command<'a> = Pin<Box<dyn Future<Output = Result<(), IndexError>> + 'a>>;

/// A kind of index with settings that are drawn from a seed. The harness knows a kind by this trait alone; operations
/// go through [`AnyIndex`].
pub trait IndexUnderTest: Send + Sync {
    /// Draws the settings for one seed.
    fn draw(&self, rng: &mut SimRng) -> Box<dyn IndexUnderTest>;
    /// Returns the settings.
    fn config(&self) -> IndexConfig;
    /// Returns the settings with which the index grows, splits and overflows soonest.
    fn smallest(&self) -> IndexConfig;
    /// Does something to an open index that a client may do at any time and that leads to rare paths: pushes a table
    /// towards growth, forgets a cache.
    fn perturb(&self, _index: &AnyIndex, _dice: &mut SimRng) {}
    /// What an open index has counted and must not have.
    fn wrong_with(&self, _index: &AnyIndex) -> Option<String> {
        None
    }
    /// Draws a command that a client may give at any time and that takes verbs: to move a partition.
    fn command<'a>(&self, _index: &'a AnyIndex, _dice: &mut SimRng, _key: Vec<u8>) -> Option<Command<'a>> {
        None
    }
    /// Are keys divided among compute nodes, which take ranges by command and list who owns what?
    fn is_divided(&self) -> bool {
        false
    }
    /// Does a removal need memory, and fail if there is none?
    fn removes_by_writing(&self) -> bool {
        false
    }
    /// How many locks an operation holds on one memory node at a time, at most. `None`: it also holds them while it waits for
    /// other clients to answer.
    fn locks(&self) -> Option<u64> {
        Some(1)
    }
    /// Draws what keys and values look like.
    fn shape(&self, _rng: &mut SimRng) -> Shape {
        Shape::Plain
    }
    /// Do memory nodes answer calls?
    fn has_calls(&self) -> bool {
        false
    }
    /// With settings by which a compute node that crashes may lose what it has acknowledged: for how long that may be. Then
    /// lookups need ownership, and fail where writes do.
    fn may_lose(&self) -> Option<Duration> {
        None
    }
    /// May a lookup take a lock? Then it leaves the lock if it is dropped.
    fn lookups_lock(&self) -> bool {
        false
    }
    /// May an index be dropped while others work on it?
    fn is_dropped_among_others(&self) -> bool {
        true
    }
    /// Draws how many low bits of their hashes the hot keys share: for most hash tables that means one bucket for the
    /// first `bits` doublings.
    fn colliding_bits(&self, rng: &mut SimRng) -> u32;
}

/// Name of every index under test.
pub(crate) const NAME: &str = "tried";
/// Its name, and that of the second index where there are two.
pub(crate) const NAMES: [&str; 2] = [NAME, "tried too"];
