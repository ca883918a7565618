//! Audits of one index, and damage that walks report.

use crate::IndexError;
use crate::keyhash::KeyHash;
use farindex_fabric::{FabricError, NodeId, RemotePtr, Span};
use farindex_pool::audit::Audit;
use farindex_pool::{PoolError, Session};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Display;

/// Result of the audit of one index.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct IndexAudit {
    /// Number of entries.
    pub entries: u64,
    /// Number of resizes.
    pub resizes: u64,
    /// Bytes of everything but key-value blocks.
    pub index_bytes: u64,
    /// Bytes of key-value blocks.
    pub block_bytes: u64,
    /// Figures of the index's kind, by name; each kind documents its own.
    #[serde(flatten)]
    pub figures: BTreeMap<&'static str, u64>,
    /// Problems in words. Empty for a sound index.
    pub problems: Vec<String>,
}

impl IndexAudit {
    /// Returns one of the kind's own figures; 0 if there is none of that name.
    pub fn figure(&self, name: &str) -> u64 {
        self.figures.get(name).copied().unwrap_or_default()
    }
    pub(crate) fn count(&mut self, name: &'static str, by: u64) {
        *self.figures.entry(name).or_default() += by;
    }
}

/// A part of an index that a walk cannot read: a block, a bucket or a segment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Damage {
    /// Its address.
    pub at: RemotePtr,
    /// What is wrong, with the place in the index whose pointer leads there.
    pub what: String,
}

/// Decides what a walk does about damage: an error ends the walk; after `Ok` the walk continues behind the damage.
pub type OnDamage<'a> = &'a mut dyn FnMut(Damage) -> Result<(), IndexError>;

impl Damage {
    /// Converts the error of an operation that read `at` to the damage that caused it. Returns every other error.
    pub fn of(error: IndexError, at: RemotePtr) -> Result<Self, IndexError> {
        match error {
            IndexError::Pool(PoolError::Corrupt { at, what }) => Ok(Damage { at, what }),
            IndexError::Fabric(refused) => match leads_nowhere(&refused) {
                Some(what) => Ok(Damage { at, what: format!("a pointer leads to {what}") }),
                None => Err(refused.into()),
            },
            other => Err(other),
        }
    }
    /// Prefixes the description with the place.
    #[must_use]
    pub fn within(self, place: impl Display) -> Self {
        Damage { at: self.at, what: format!("{place}: {}", self.what) }
    }
    /// Ends the walk: an [`OnDamage`] for callers that need all entries or an error.
    pub fn fail(self) -> Result<(), IndexError> {
        Err(PoolError::Corrupt { at: self.at, what: self.what }.into())
    }
}

/// If the fabric has refused a verb because of its address, before it posted anything: that address, in words that
/// follow "points to". `None` if the verb failed for another reason.
pub(crate) fn leads_nowhere(error: &FabricError) -> Option<String> {
    match error {
        FabricError::NoSuchNode(node) => Some(format!("memory node {node}, which does not exist")),
        FabricError::OutOfBounds { ptr, region, .. } => {
            Some(format!("{ptr}, which lies beyond the {region} bytes of its memory node"))
        }
        FabricError::Misaligned { ptr, .. } => Some(format!("{ptr}, where no object begins")),
        FabricError::TooLong { ptr, len } => Some(format!("{len} bytes at {ptr}, and no object is so long")),
        _ => None,
    }
}

/// State of an audit of one index: what the walk has found so far.
pub(crate) struct Findings<'a> {
    pub(crate) session: &'a Session,
    /// Is no other client at work? Then an unfinished structure is a problem.
    pub(crate) alone: bool,
    pub(crate) audit: &'a mut Audit,
    pub(crate) report: IndexAudit,
    problems: Vec<String>,
    /// Problems beyond those in words.
    more_problems: u64,
    /// Keys and the slots of their entries.
    keys: Vec<(KeyId, RemotePtr)>,
}

/// Identifies a key: two hashes, of 54 and 64 bits.
pub(crate) type KeyId = (u64, u64);

/// Returns what identifies a key with this hash.
pub(crate) fn key_id(hash: KeyHash, key: &[u8]) -> KeyId {
    (hash.bits(), xxhash_rust::xxh3::xxh3_64_with_seed(key, 1))
}

impl<'a> Findings<'a> {
    /// Problems that are reported in words; of further ones only their number is.
    const PROBLEMS: usize = 50;

    /// Begins an audit. The report has each of `figures`, at zero.
    pub(crate) fn new(session: &'a Session, audit: &'a mut Audit, alone: bool, figures: &[&'static str]) -> Self {
        let mut report = IndexAudit::default();
        figures.iter().for_each(|name| report.count(name, 0));
        Findings { session, alone, audit, report, problems: Vec::new(), more_problems: 0, keys: Vec::new() }
    }

    pub(crate) fn problem(&mut self, what: String) {
        // What was not read may lead to other objects.
        self.audit.expect_missed_objects();
        if self.problems.len() < Self::PROBLEMS {
            self.problems.push(what);
        } else {
            self.more_problems += 1;
        }
    }

    /// Adds damage as a problem: an [`OnDamage`] that continues the walk.
    pub(crate) fn damage(&mut self, damage: Damage) -> Result<(), IndexError> {
        self.problem(format!("{}, at {}", damage.what, damage.at));
        Ok(())
    }

    /// Adds to one of the kind's own figures.
    pub(crate) fn count(&mut self, name: &'static str, by: u64) {
        self.report.count(name, by);
    }

    /// Checks that the table of a memory node has its root there.
    pub(crate) fn check_root(&mut self, root: RemotePtr, node: NodeId) {
        if root.node() != node {
            self.problem(format!("the table of memory node {node} has its root at {root}"));
        }
    }

    /// Records an object of the index itself.
    pub(crate) fn reach(&mut self, at: RemotePtr, bytes: u64, what: &str) {
        self.report.index_bytes += bytes;
        self.audit.reach(at, bytes, what);
    }

    /// Records the key-value block of the entry that `entry` names, and checks that the block is allocated.
    pub(crate) async fn reach_block(
        &mut self,
        span: &Span,
        entry: impl Display,
        ptr: RemotePtr,
        bytes: u64,
    ) -> Result<(), IndexError> {
        if let Some(what) = Audit::dangling(self.session, span, ptr, bytes).await? {
            self.problem(format!("{entry} points to {ptr}, but {what}"));
        }
        self.report.block_bytes += bytes;
        self.audit.reach(ptr, bytes, "a block");
        Ok(())
    }

    /// Notes a key and the slot of its entry. If no other client is at work, a second entry of the key is a problem.
    pub(crate) fn key(&mut self, hash: KeyHash, key: &[u8], slot: RemotePtr) {
        if self.alone {
            self.keys.push((key_id(hash, key), slot));
        }
    }

    /// Ends the audit: looks for keys that have two entries, and returns the report.
    pub(crate) fn finish(mut self) -> IndexAudit {
        let mut keys = std::mem::take(&mut self.keys);
        keys.sort_unstable();
        for pair in keys.windows(2) {
            let [(one, first), (two, second)] = pair else { continue };
            if one == two {
                self.problem(format!("the slots at {first} and {second} have the same key"));
                self.report.entries -= 1;
            }
        }
        if self.more_problems > 0 {
            self.problems.push(format!("and {} more", self.more_problems));
        }
        self.report.problems = self.problems;
        self.report
    }
}
