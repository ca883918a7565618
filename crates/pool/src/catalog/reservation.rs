//! Reservations: an entry of the catalog belongs to one creation before that writes to it.
//!
//! ```text
//! READ the catalog        the name is free; reservations of others, which were left: CAS each to "given up", READ again
//! CAS   state             empty -> reserved for the uid
//! WRITE the other bytes
//! CAS   state             reserved for the uid -> ready; in one batch with the WRITE (G4)
//! ```
//!
//! Invariants: only the creator that has reserved an entry writes its bytes, at most once. A creation may leave its
//! reservation: because a verb has failed, it was cancelled, or its client has crashed. The next creation gives it up before it
//! looks for its own name again: then the name that was to be there never appears. The entry stays as it is for as long as
//! that WRITE may land (N5, N7): [`free_left`] makes it empty when no verb of its creator can land any more.

use super::{Catalog, IndexInfo};
use crate::faults::{Fault, planted};
use crate::layout::{
    CATALOG_ENTRIES, CatalogEntry, ENTRY_EMPTY, ENTRY_READY, HOME, entry_state, given_up_state, reserved_for,
    reserved_state,
};
use crate::session::Session;
use crate::{PoolError, mark};
use farindex_fabric::{RemotePtr, Span};
use zerocopy::{FromZeros, IntoBytes};

/// An entry that is reserved for the index `uid`. The caller has the catalog's lock.
#[must_use = "the entry is of no use until it is published or withdrawn"]
pub(super) struct Reservation<'s> {
    session: &'s Session,
    entry: u64,
    uid: u64,
}

impl<'s> Reservation<'s> {
    /// Reserves an empty entry. `check` is asked what is in the catalog without reservations of others.
    pub(super) async fn take(
        session: &'s Session,
        span: &Span,
        uid: u64,
        check: impl Fn(&[IndexInfo]) -> Result<(), PoolError>,
    ) -> Result<Self, PoolError> {
        let geometry = session.pool().geometry(HOME);
        // An entry or a reservation that was there when this one was tried is never tried again.
        for _ in 0..=2 * CATALOG_ENTRIES {
            let found = Catalog::read(session.pool(), span).await?.whole()?;
            let mut batch = span.batch();
            let mut left = 0;
            for (entry, state) in &found.reserved {
                let given_up = reserved_for(*state).map_or(*state, given_up_state);
                if given_up != *state && !planted(Fault::KeepsReservations) {
                    batch.cas(geometry.entry(*entry), *state, given_up);
                    left += 1;
                }
            }
            if left > 0 {
                mark!("catalog: reservation given up");
                batch.post().await?;
                continue;
            }
            check(&found.indexes)?;
            let entry = found.free_entry()?;
            if span.cas(geometry.entry(entry), ENTRY_EMPTY, reserved_state(uid)).await? == ENTRY_EMPTY {
                return Ok(Reservation { session, entry, uid });
            }
        }
        Err(PoolError::CatalogFull(CATALOG_ENTRIES as usize))
    }

    /// Number of the entry.
    pub(super) fn entry(&self) -> u64 {
        self.entry
    }
    fn at(&self) -> RemotePtr {
        self.session.pool().geometry(HOME).entry(self.entry)
    }

    /// Writes the entry, and makes the index exist.
    pub(super) async fn publish(self, span: &Span, info: &IndexInfo) -> Result<(), PoolError> {
        let mut entry = CatalogEntry::new_zeroed();
        entry.uid = info.uid;
        entry.kind = info.kind;
        entry.version = info.version;
        entry.root = info.root.to_bits();
        entry.name_len = info.name.len() as u32;
        entry.name.iter_mut().zip(info.name.as_bytes()).for_each(|(to, byte)| *to = *byte);
        entry.config_version = info.config_version;
        entry.config_len = info.config.len() as u32;
        entry.config.iter_mut().zip(&info.config).for_each(|(to, byte)| *to = *byte);
        entry.seed = info.seed;
        entry.checksum = entry.expected_checksum();
        let mut batch = span.batch();
        batch.write(self.at().add(8), span.endpoint().buf_from(&entry.as_bytes()[8..]));
        let ready = batch.cas(self.at(), reserved_state(self.uid), entry_state(self.uid, ENTRY_READY));
        let was_reserved = batch.post().await?.old(ready) == reserved_state(self.uid);
        self.check(was_reserved)
    }

    /// Makes the entry empty again.
    pub(super) async fn withdraw(self, span: &Span) -> Result<(), PoolError> {
        let was_reserved =
            span.cas(self.at(), reserved_state(self.uid), ENTRY_EMPTY).await? == reserved_state(self.uid);
        self.check(was_reserved)
    }

    /// Reservations are given up under the lock alone.
    fn check(&self, was_reserved: bool) -> Result<(), PoolError> {
        let what = "a reserved catalog entry has changed under the catalog's lock".to_owned();
        was_reserved.then_some(()).ok_or_else(|| PoolError::Corrupt { at: self.at(), what })
    }
}

impl Catalog {
    fn free_entry(&self) -> Result<u64, PoolError> {
        let taken = |i: u64| {
            self.indexes.iter().any(|info| info.entry == i) || self.reserved.iter().any(|(entry, _)| *entry == i)
        };
        (0..CATALOG_ENTRIES).find(|i| !taken(*i)).ok_or(PoolError::CatalogFull(CATALOG_ENTRIES as usize))
    }
}

/// The entries that were reserved at some moment, for [`free_left`].
pub(crate) struct Left(Vec<(u64, u64)>);

/// READs which entries are reserved, or were and have been given up.
pub(crate) async fn left(session: &Session, span: &Span) -> Result<Left, PoolError> {
    Ok(Left(Catalog::read(session.pool(), span).await?.reserved))
}

/// Makes the entries empty again that were `left`. The caller knows that since before `left` was READ no other client has been
/// registered, and that no verb of this client may land any more: so nothing that their creators have posted does.
pub(crate) async fn free_left(session: &Session, span: &Span, Left(left): Left) -> Result<(), PoolError> {
    for (entry, state) in left {
        span.cas(session.pool().geometry(HOME).entry(entry), state, ENTRY_EMPTY).await?;
    }
    Ok(())
}
