//! What a check of one index reports.

use crate::IndexError;
use farindex_fabric::{FabricError, RemotePtr};
use farindex_pool::PoolError;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Display;

/// One index, checked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct IndexAudit {
    /// Entries.
    pub entries: u64,
    /// How often it has grown.
    pub resizes: u64,
    /// Bytes of everything but key-value blocks.
    pub index_bytes: u64,
    /// Bytes of key-value blocks.
    pub block_bytes: u64,
    /// What else its kind counts, by name; each kind says what it means.
    #[serde(flatten)]
    pub figures: BTreeMap<&'static str, u64>,
    /// What is wrong, in words. Empty for a sound index.
    pub problems: Vec<String>,
}

impl IndexAudit {
    /// One of the kind's own figures; 0 if it has none of that name.
    pub fn figure(&self, name: &str) -> u64 {
        self.figures.get(name).copied().unwrap_or_default()
    }
    pub(crate) fn count(&mut self, name: &'static str, by: u64) {
        *self.figures.entry(name).or_default() += by;
    }
}

/// Part of an index that a walk cannot read: a block, a bucket, a segment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Damage {
    /// Where it lies.
    pub at: RemotePtr,
    /// What is wrong, with the place in the index that leads there.
    pub what: String,
}

/// Decides what a walk does about damage: an error ends the walk, `Ok` goes on behind it.
pub type OnDamage<'a> = &'a mut dyn FnMut(Damage) -> Result<(), IndexError>;

impl Damage {
    /// The damage that made an operation fail which came by `at`. Every other error comes back.
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
    /// The same damage, with the place in front.
    #[must_use]
    pub fn within(self, place: impl Display) -> Self {
        Damage { at: self.at, what: format!("{place}: {}", self.what) }
    }
    /// Ends the walk: an [`OnDamage`] for those who want all entries or an error.
    pub fn fail(self) -> Result<(), IndexError> {
        Err(PoolError::Corrupt { at: self.at, what: self.what }.into())
    }
}

/// Where a verb was to go that the fabric has refused before it posted anything, in words that follow "points to"; `None` if it
/// failed for another reason.
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

/// Collects problems: the first ones in words, the others as a number.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    spelled_out: Vec<String>,
    more: u64,
}

impl Problems {
    const SPELLED_OUT: usize = 50;

    pub(crate) fn add(&mut self, what: String) {
        if self.spelled_out.len() < Self::SPELLED_OUT {
            self.spelled_out.push(what);
        } else {
            self.more += 1;
        }
    }

    pub(crate) fn into_vec(mut self) -> Vec<String> {
        if self.more > 0 {
            self.spelled_out.push(format!("and {} more", self.more));
        }
        self.spelled_out
    }
}
