//! The catalog: named indexes.
//!
//! Invariants: an entry is reserved before it is written. Its state becomes "ready" after all other bytes are
//! written (one batch, G4), a checksum covers those bytes, and the state says whose they are. States change by CAS alone, from
//! a state that says for which index: so a change that lands late changes nothing of another index. Names are added and
//! removed under one lock. A `uid` is never given to a second index. If several ready entries have one name, the
//! entry with the largest `uid` has the name.

mod locked;
pub(crate) mod reservation;

use crate::layout::{
    CATALOG_ENTRIES, CATALOG_ENTRY_LEN, CatalogEntry, ENTRY_DROPPING, ENTRY_EMPTY, ENTRY_READY, HOME, MAX_CONFIG_LEN,
    MAX_NAME, MAX_UID, entry_state, first_word, header, header_word, reserved_for,
};
use crate::session::Session;
use crate::{Pool, PoolError};
use farindex_fabric::{RemotePtr, Span, cold};
use locked::locked;
use reservation::Reservation;
use std::time::Duration;
use zerocopy::FromBytes;

/// What the catalog stores about an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexInfo {
    /// Its name.
    pub name: String,
    /// Number of the index. No other index of this pool ever has the same.
    pub uid: u64,
    /// Number of its kind.
    pub kind: u32,
    /// Version of the kind's format.
    pub version: u32,
    /// Address of the kind's roots.
    pub root: RemotePtr,
    /// Version of the settings' encoding.
    pub config_version: u32,
    /// The kind's own settings: 0 to [`MAX_CONFIG_LEN`] bytes.
    pub config: Box<[u8]>,
    /// Seed of the key hash: every client hashes this index's keys with it.
    pub seed: u64,
    /// True if the index is being dropped, or if another index has taken its name.
    pub dropping: bool,
    /// Number of its entry.
    entry: u64,
}

impl IndexInfo {
    /// The settings, if they are encoded in this version.
    pub fn config_of(&self, version: u32) -> Result<&[u8], PoolError> {
        if self.config_version == version {
            return Ok(&self.config);
        }
        let (name, found) = (self.name.clone(), self.config_version);
        Err(PoolError::ConfigVersion { name, found, expected: version })
    }
}

/// Number and versions of a kind of index, for a new entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KindTag {
    /// Number of the kind.
    pub kind: u32,
    /// Version of the kind's format.
    pub version: u32,
    /// Version of the settings' encoding.
    pub config_version: u32,
}

/// Checks that the catalog can hold a name.
pub fn check_name(name: &str) -> Result<(), PoolError> {
    let fits = !name.is_empty() && name.len() <= MAX_NAME;
    if fits && !name.chars().any(char::is_control) {
        return Ok(());
    }
    Err(PoolError::BadName(format!(
        "{name:?} is not a valid index name: it takes 1 to {MAX_NAME} bytes without control characters"
    )))
}

/// What a READ of the catalog returns.
struct Catalog {
    indexes: Vec<IndexInfo>,
    /// The entries that are reserved, or whose reservation was given up, and their states.
    reserved: Vec<(u64, u64)>,
    /// An error for the first invalid entry.
    damaged: Option<PoolError>,
}

impl Catalog {
    /// Reads it once.
    async fn read_once(pool: &Pool, span: &Span) -> Result<Self, PoolError> {
        let buf = span.read(pool.geometry(HOME).entry(0), (CATALOG_ENTRIES * CATALOG_ENTRY_LEN) as usize).await?;
        let entries = <[CatalogEntry]>::ref_from_bytes(buf.bytes()).unwrap_or_default();
        let mut found = Catalog { indexes: Vec::new(), reserved: Vec::new(), damaged: None };
        for (i, entry) in (0..).zip(entries).filter(|(_, entry)| entry.state != ENTRY_EMPTY) {
            if reserved_for(entry.state).is_some() {
                found.reserved.push((i, entry.state));
                continue;
            }
            match parse(i, entry) {
                Ok(info) => found.indexes.push(info),
                Err(what) => {
                    let at = pool.geometry(HOME).entry(i);
                    found.damaged = found.damaged.or(Some(PoolError::Corrupt { at, what: what.to_owned() }));
                }
            }
        }
        mark_superseded(&mut found.indexes);
        Ok(found)
    }

    /// Reads it until every entry is valid, five times at most: an entry that changes during the READ may be torn (N2). If an
    /// entry stays invalid, the result has its error.
    async fn read(pool: &Pool, span: &Span) -> Result<Self, PoolError> {
        let mut pause = Duration::from_micros(20);
        loop {
            let found = Self::read_once(pool, span).await?;
            if found.damaged.is_none() || pause > Duration::from_millis(5) {
                return Ok(found);
            }
            span.endpoint().sleep(pause).await;
            pause *= 4;
        }
    }

    /// It, if every entry is valid.
    fn whole(self) -> Result<Self, PoolError> {
        match self.damaged {
            None => Ok(self),
            Some(error) => Err(error),
        }
    }
}

/// Prefix of the names of unfinished copies ([`replace`]).
const COPY: &str = "\u{b7}copy ";

/// Returns the name under which a copy of an index is made, before the copy replaces the index.
pub fn copy_name(info: &IndexInfo) -> String {
    format!("{COPY}{}", info.uid)
}

/// Returns whether this is the name of a copy that has not replaced its index yet.
pub fn is_copy(name: &str) -> bool {
    name.strip_prefix(COPY).is_some_and(|uid| uid.parse::<u64>().is_ok())
}

/// Marks the entries that another entry supersedes as dropping: see [`replace`].
fn mark_superseded(found: &mut [IndexInfo]) {
    let ready: Vec<_> = found.iter().filter(|info| !info.dropping).cloned().collect();
    for info in found {
        let newer = |other: &IndexInfo| other.name == info.name && other.uid > info.uid;
        let moved = |other: &IndexInfo| other.uid == info.uid && is_copy(&info.name) && !is_copy(&other.name);
        info.dropping |= ready.iter().any(|other| newer(other) || moved(other));
    }
}

fn parse(i: u64, entry: &CatalogEntry) -> Result<IndexInfo, &'static str> {
    if entry.checksum != entry.expected_checksum() {
        return Err("a catalog entry has a wrong checksum");
    }
    let dropping = entry.state == entry_state(entry.uid, ENTRY_DROPPING);
    if !dropping && entry.state != entry_state(entry.uid, ENTRY_READY) {
        return Err("a catalog entry has an unknown state, or that of another index");
    }
    let name = entry.name().and_then(|name| std::str::from_utf8(name).ok());
    let name = name.ok_or("a catalog entry has no readable name")?;
    let config = entry.config().ok_or("the settings in a catalog entry are longer than their room")?;
    Ok(IndexInfo {
        name: name.to_owned(),
        uid: entry.uid,
        kind: entry.kind,
        version: entry.version,
        root: RemotePtr::from_bits(entry.root),
        config_version: entry.config_version,
        config: config.into(),
        seed: entry.seed,
        dropping,
        entry: i,
    })
}

/// Returns every index of the pool.
pub async fn list(pool: &Pool, span: &Span) -> Result<Vec<IndexInfo>, PoolError> {
    cold(list_inner(pool, span)).await
}

async fn list_inner(pool: &Pool, span: &Span) -> Result<Vec<IndexInfo>, PoolError> {
    Ok(Catalog::read(pool, span).await?.whole()?.indexes)
}

/// Finds the index of this name. A damaged entry of another index does not matter.
pub async fn find(pool: &Pool, span: &Span, name: &str) -> Result<IndexInfo, PoolError> {
    cold(find_inner(pool, span, name)).await
}

async fn find_inner(pool: &Pool, span: &Span, name: &str) -> Result<IndexInfo, PoolError> {
    let mut found = Catalog::read(pool, span).await?;
    let of_name = |found: &Catalog, dropping| {
        found.indexes.iter().find(|info| info.name == name && info.dropping == dropping).cloned()
    };
    if of_name(&found, false).is_none() && of_name(&found, true).is_some() {
        // A replacement during the READ may show the new state of one entry and the old state of another (N2).
        found = Catalog::read(pool, span).await?;
    }
    of_name(&found, false).ok_or_else(|| found.damaged.unwrap_or_else(|| PoolError::NoSuchIndex(name.to_owned())))
}

/// Draws the number of a new index. `largest` is the largest number in the catalog, read before: numbers are drawn in
/// ascending order, so a drawn number that is not larger, or larger than any, comes from a damaged counter, and is an error.
pub async fn new_uid(span: &Span, largest: u64) -> Result<u64, PoolError> {
    let at = header_word(HOME, header::LAST_UID);
    let last = span.faa(at, 1).await?;
    match last.checked_add(1).filter(|uid| *uid > largest && *uid <= MAX_UID) {
        Some(uid) => Ok(uid),
        None => Err(PoolError::Corrupt { at, what: format!("the last index has number {last}, after {largest}") }),
    }
}

/// Adds an index whose memory is ready, and derives its seed. `config` holds at most [`MAX_CONFIG_LEN`] bytes. Fails,
/// and changes nothing, if the name is taken.
pub async fn add(
    session: &Session,
    span: &Span,
    name: &str,
    uid: u64,
    KindTag { kind, version, config_version }: KindTag,
    root: RemotePtr,
    config: &[u8],
) -> Result<IndexInfo, PoolError> {
    check_name(name)?;
    if config.len() > MAX_CONFIG_LEN {
        return Err(PoolError::ConfigTooLong { name: name.to_owned(), len: config.len(), most: MAX_CONFIG_LEN });
    }
    let pool = session.pool();
    cold(locked(session, span, async || {
        let is_new = |all: &[IndexInfo]| match all.iter().any(|info| info.name == name && !info.dropping) {
            true => Err(PoolError::IndexExists(name.to_owned())),
            false => Ok(()),
        };
        let reserved = Reservation::take(session, span, uid, is_new).await?;
        let info = IndexInfo {
            name: name.to_owned(),
            uid,
            kind,
            version,
            root,
            config_version,
            config: config.into(),
            seed: pool.superblock(HOME).seed_of(uid),
            dropping: false,
            entry: reserved.entry(),
        };
        reserved.publish(span, &info).await?;
        Ok(info)
    }))
    .await
}

/// Gives the name of `old` to its copy, which was made under [`copy_name`], and marks `old` as being dropped.
///
/// Exactly one of the two has the name at every moment, even if this client crashes: the CAS that decides sets the state
/// of a third entry, which has the name of `old` and the larger uid of `copy`. Fails, and changes
/// nothing, if `old` or `copy` is not in the catalog any more, or if `still` fails, which is called last.
pub async fn replace(
    session: &Session,
    span: &Span,
    old: &IndexInfo,
    copy: &IndexInfo,
    still: impl AsyncFnOnce() -> Result<(), PoolError>,
) -> Result<IndexInfo, PoolError> {
    let pool = session.pool();
    cold(locked(session, span, async || {
        let both_there = |all: &[IndexInfo]| {
            let gone = [old, copy].into_iter().find(|wanted| !all.iter().any(|info| info == *wanted && !info.dropping));
            gone.map_or(Ok(()), |gone| Err(PoolError::NoSuchIndex(gone.name.clone())))
        };
        both_there(&Catalog::read(pool, span).await?.whole()?.indexes)?;
        if copy.uid <= old.uid {
            let what = format!("index {} is a copy of index {}, and has no larger number", copy.uid, old.uid);
            return Err(PoolError::Corrupt { at: pool.geometry(HOME).entry(copy.entry), what });
        }
        let reserved = Reservation::take(session, span, copy.uid, both_there).await?;
        let info = IndexInfo { name: old.name.clone(), entry: reserved.entry(), ..copy.clone() };
        if let Err(error) = still().await {
            reserved.withdraw(span).await?;
            return Err(error);
        }
        // From here on the name belongs to the copy.
        reserved.publish(span, &info).await?;
        // The entries that are now superseded are removed.
        let mut batch = span.batch();
        let [copy_at, old_at] = [copy, old].map(|info| pool.geometry(HOME).entry(info.entry));
        batch.cas(copy_at, entry_state(copy.uid, ENTRY_READY), ENTRY_EMPTY);
        batch.cas(old_at, entry_state(old.uid, ENTRY_READY), entry_state(old.uid, ENTRY_DROPPING));
        batch.post().await?;
        Ok(info)
    }))
    .await
}

/// Checks that an index which was found is still there and not being dropped. For a client that is pinned, its memory
/// then stays until the pin is released: a drop waits for all who were pinned when it began.
pub async fn confirm(session: &Session, span: &Span, info: &IndexInfo) -> Result<(), PoolError> {
    let state = span.read(session.pool().geometry(HOME).entry(info.entry), 8).await?;
    match first_word(&state) == entry_state(info.uid, ENTRY_READY) {
        true => Ok(()),
        false => Err(PoolError::NoSuchIndex(info.name.clone())),
    }
}

/// Marks an index as being dropped: from now on no client can open it. Another index that has its name meanwhile is left
/// alone.
pub async fn begin_drop(session: &Session, span: &Span, info: &IndexInfo) -> Result<IndexInfo, PoolError> {
    cold(locked(session, span, async || {
        let found = find(session.pool(), span, &info.name).await?;
        if found.uid != info.uid {
            return Err(PoolError::NoSuchIndex(info.name.clone()));
        }
        let at = session.pool().geometry(HOME).entry(found.entry);
        let [ready, dropping] = [ENTRY_READY, ENTRY_DROPPING].map(|is| entry_state(found.uid, is));
        match span.cas(at, ready, dropping).await? {
            old if old == ready => Ok(IndexInfo { dropping: true, ..found }),
            // An operation of this client that was given up has dropped it meanwhile.
            _ => Err(PoolError::NoSuchIndex(info.name.clone())),
        }
    }))
    .await
}

/// Removes the entry of a dropped index whose memory has been freed.
pub async fn end_drop(session: &Session, span: &Span, info: &IndexInfo) -> Result<(), PoolError> {
    cold(locked(session, span, async || {
        let at = session.pool().geometry(HOME).entry(info.entry);
        // The state may say "ready" where another entry has taken the name.
        let state = first_word(&span.read(at, 8).await?);
        if [ENTRY_READY, ENTRY_DROPPING].map(|is| entry_state(info.uid, is)).contains(&state) {
            span.cas(at, state, ENTRY_EMPTY).await?;
        }
        Ok(())
    }))
    .await
}
