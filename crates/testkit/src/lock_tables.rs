//! Lock tables in front of the indexes of a run: one for each client.
//!
//! Invariant: a table has an entry for a key only while an operation on it has begun and has not ended, however it ends. So when a
//! client has no operation left, its table is empty.

use crate::index_under_test::NAMES;
use crate::worker::{Shared, Which};
use farindex_index::coalesce::Coalescer;
use farindex_index::{AnyIndex, IndexError};
use farindex_pool::{Client, Session};
use std::rc::Rc;
use std::sync::Arc;

impl Shared {
    /// Opens an index, behind its client's lock table if there is one.
    pub(crate) async fn open(&self, session: &Rc<Session>, which: Which) -> Result<AnyIndex, IndexError> {
        let index = AnyIndex::open(session, NAMES[which as usize]).await?;
        let Some(fault) = self.coalescing else { return Ok(index) };
        let mut tables = self.tables.borrow_mut();
        let table = tables.entry(registration(session.client())).or_insert_with(|| Arc::new(Coalescer::new(fault)));
        Ok(index.coalesced(table))
    }

    /// What is wrong with the lock table of a client that has no operation left.
    pub(crate) fn judge_lock_table(&self, client: &Client) -> Option<String> {
        let busy = self.tables.borrow().get(&registration(client))?.busy_keys();
        let slot = client.slot();
        (busy > 0)
            .then(|| format!("the lock table of client {slot} has {busy} keys, and none of its operations is left"))
    }
}

/// Who has a lock table.
fn registration(client: &Client) -> (u64, u64) {
    (client.slot(), client.generation())
}
