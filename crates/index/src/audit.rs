//! What a check of one index reports.

use serde::Serialize;

/// One index, checked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct IndexAudit {
    /// Entries by level.
    pub entries: [u64; 3],
    /// Slots of level 1 in all segments.
    pub slots: u64,
    /// Buckets of levels 1 and 2 that are in use.
    pub buckets: u64,
    /// Buckets that have yet to be split off from their parents.
    pub buckets_to_split: u64,
    /// Slots that are neither free nor in use.
    pub dead: u64,
    /// How often the table has been resized.
    pub resizes: u64,
    /// Bytes of segments and nodes.
    pub index_bytes: u64,
    /// Bytes of key-value blocks.
    pub block_bytes: u64,
    /// What is wrong, in words. Empty for a sound index.
    pub problems: Vec<String>,
}

impl IndexAudit {
    /// Entries of all levels.
    pub fn total(&self) -> u64 {
        self.entries.iter().sum()
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
