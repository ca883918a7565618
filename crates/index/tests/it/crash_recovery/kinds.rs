//! Operations that a client may crash in, and what a kind of index brings along for them.

use farindex_index::keyhash::KeyHash;
use farindex_index::{IndexError, PoolIndex};
use farindex_pool::Session;
use farindex_testkit::workload::Op;
use std::fmt::Debug;
use std::panic::RefUnwindSafe;
use std::rc::Rc;

/// More than a table of any size here needs to grow, in the hint that steers growth.
pub(crate) const MANY: i64 = 1 << 20;

/// Every operation on a key.
pub(crate) const EVERY_OP: [Op; 7] =
    [Op::Get, Op::Insert, Op::Update, Op::Upsert, Op::Remove, Op::Replace, Op::RemoveIf];

/// The operation in which the client crashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind<P> {
    /// An operation on one key.
    On(Op, P),
    /// Opens an index.
    Open,
    /// Creates one, and fills it.
    Create,
    /// Drops one.
    Drop,
    /// Evicts crashed clients, and recovers what one left that crashed at this verb of an upsert at
    /// [`CrashTested::RECOVERED`].
    Recover(u64),
    /// Joins the pool.
    Register,
    /// Three ticks.
    Tick,
    /// Leaves, with memory to give back.
    Close,
}

/// How an index is made ready for a kind.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stage {
    /// Size of a new table, as a power of two of its kind's choice.
    pub(crate) initial_bits: u64,
    /// Keys put in at first, in this order; the table does not grow meanwhile.
    pub(crate) keys: Vec<String>,
    /// The key of the operation, which may be among them.
    pub(crate) key: String,
    /// Keys to remove then, from the first on.
    pub(crate) removed: usize,
    /// Keys to change then, from the last on.
    pub(crate) updated: usize,
    /// How often the table grows then. Each time but the last, everything is moved at once.
    pub(crate) grows: u64,
    /// How often it grows behind each other without anything being moved.
    pub(crate) behind: u64,
    /// Epochs that pass then: what was removed or replaced may be used again.
    pub(crate) epochs: u64,
    /// Parts of a table that grows that are moved.
    pub(crate) moved: u64,
    /// Does the operation find that the table is to grow?
    pub(crate) resizes: bool,
    /// Bytes that the operation's value is padded to.
    pub(crate) padded: usize,
    /// Have the values that are put in at first 8 bytes?
    pub(crate) eight: bool,
}

impl Stage {
    /// The value that keys have at first.
    pub(crate) fn first(&self) -> &'static str {
        if self.eight { "first..." } else { "first" }
    }
    /// The value of the operation's key then, if it is there.
    pub(crate) fn value(&self) -> &'static str {
        let changed = self.keys.iter().rev().take(self.updated).any(|key| *key == self.key);
        if changed { "changed" } else { self.first() }
    }
}

/// A kind of index that is tested with crashes.
pub(crate) trait CrashTested: PoolIndex {
    /// What an operation finds, and what else it has to do.
    type Place: Debug + Clone + Copy + PartialEq + Send + Sync + RefUnwindSafe;
    /// What the client was doing whose unfinished steps are to be recovered.
    const RECOVERED: Self::Place;

    /// Everything that a client may be at.
    fn kinds() -> Vec<Kind<Self::Place>>;
    /// How to bring it about.
    fn stage(kind: Kind<Self::Place>) -> Stage;
    /// Marks of the paths that it must take if it lives.
    fn must_pass(kind: Kind<Self::Place>) -> &'static [&'static str];
    /// Verbs that it has at least, in a calm run: with fewer, it would not be what it is meant to be.
    fn budget(kind: Kind<Self::Place>) -> u64;
    /// Settings for a new table of this size, which grows only when the test makes it.
    fn config(initial_bits: u64) -> Self::Config;
    /// Makes it believe in so many entries more than there are.
    fn swell(&self, entries: i64);
    /// Grows once, moves nothing, and believes in what is there.
    async fn enlarge(&self, session: &Rc<Session>) -> Result<(), IndexError>;
    /// Moves so many parts of a table that grows; these keys are in it.
    async fn move_parts(&self, session: &Rc<Session>, parts: u64, keys: &[String]) -> Result<(), IndexError>;
    /// Brings all runs to the same bytes in use, whatever has happened; the values are short.
    async fn level_out(&self, session: &Rc<Session>) -> Result<(), IndexError>;
}

/// Keys whose hashes end in these bits, one after the other.
pub(crate) fn keys_at(bits: u64, mask: u64) -> impl Iterator<Item = String> {
    let names = (0u64..).map(|i| format!("k{i}"));
    names.filter(move |name| KeyHash::unseeded(name.as_bytes()).bits() & mask == bits & mask)
}

/// What a client may be at whatever the kind of index.
pub(crate) fn everywhere<P>(recovered_at: &[u64]) -> Vec<Kind<P>> {
    let mut all = vec![Kind::Open, Kind::Create, Kind::Drop, Kind::Register, Kind::Tick, Kind::Close];
    all.extend(recovered_at.iter().map(|at| Kind::Recover(*at)));
    all
}
