//! The catalog: named indexes.
//!
//! Invariants: an entry is written whole before its state says ready (one batch, G4), and carries a checksum; names are
//! added and removed under one lock word, whose holder is named by an intent; a `uid` is never given to another index; of several
//! ready entries of one name the one with the largest `uid` has it.

use crate::client::first_word;
use crate::layout::{
    CATALOG_ENTRIES, CATALOG_ENTRY_LEN, CONFIG_LEN, CatalogEntry, ENTRY_DROPPING, ENTRY_EMPTY, ENTRY_READY, HOME,
    MAX_NAME, header, header_word,
};
use crate::session::Session;
use crate::takeover::held;
use crate::{Claim, HeldLock, Intent, Lock, LockTimeout, Pool, PoolError};
use farindex_fabric::{Batch, RemotePtr, Span};
use std::time::Duration;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// What the catalog says of an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexInfo {
    /// Its name.
    pub name: String,
    /// Unlike that of any other index of this pool, ever.
    pub uid: u64,
    /// Number of its kind.
    pub kind: u32,
    /// Version of the kind's format.
    pub version: u32,
    /// Where the kind keeps its roots.
    pub root: RemotePtr,
    /// The kind's own settings.
    pub config: [u8; CONFIG_LEN],
    /// Seed of the key hash: every client hashes this index's keys with it.
    pub seed: u64,
    /// Is it being dropped, or has another index taken its name?
    pub dropping: bool,
    /// Number of its entry.
    entry: u64,
}

/// Is this a name that the catalog can hold?
pub fn check_name(name: &str) -> Result<(), PoolError> {
    let fits = !name.is_empty() && name.len() <= MAX_NAME;
    if fits && !name.chars().any(char::is_control) {
        return Ok(());
    }
    Err(PoolError::BadName(format!(
        "{name:?} is no name for an index: it takes 1 to {MAX_NAME} bytes without control characters"
    )))
}

/// What one look at the catalog shows: the indexes, and the first entry that makes no sense.
async fn look(pool: &Pool, span: &Span) -> Result<(Vec<IndexInfo>, Option<PoolError>), PoolError> {
    let buf = span.read(pool.geometry(HOME).entry(0), (CATALOG_ENTRIES * CATALOG_ENTRY_LEN) as usize).await?;
    let entries = <[CatalogEntry]>::ref_from_bytes(buf.bytes()).unwrap_or_default();
    let mut found = Vec::new();
    let mut damaged = None;
    for (i, entry) in (0..).zip(entries).filter(|(_, entry)| entry.state != ENTRY_EMPTY) {
        match parse(i, entry) {
            Ok(info) => found.push(info),
            Err(what) => {
                let at = pool.geometry(HOME).entry(i);
                damaged = damaged.or(Some(PoolError::Corrupt { at, what: what.to_owned() }));
            }
        }
    }
    mark_superseded(&mut found);
    Ok((found, damaged))
}

/// What the names of indexes begin with that are copies in the making ([`replace`]).
const COPY: &str = "\u{b7}copy ";

/// A name for a copy of an index, which takes its place in the end.
pub fn copy_name(info: &IndexInfo) -> String {
    format!("{COPY}{}", info.uid)
}

/// Is this the name of a copy that has not taken the place of another index?
pub fn is_copy(name: &str) -> bool {
    name.strip_prefix(COPY).is_some_and(|uid| uid.parse::<u64>().is_ok())
}

/// Does this entry name the same index as another one that counts more? See [`replace`].
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
    if !matches!(entry.state, ENTRY_READY | ENTRY_DROPPING) {
        return Err("a catalog entry has an unknown state");
    }
    let name = usize::try_from(entry.name_len).ok().and_then(|len| entry.name.get(..len));
    let name = name.and_then(|name| std::str::from_utf8(name).ok()).ok_or("a catalog entry has no readable name")?;
    Ok(IndexInfo {
        name: name.to_owned(),
        uid: entry.uid,
        kind: entry.kind,
        version: entry.version,
        root: RemotePtr::from_bits(entry.root),
        config: entry.config,
        seed: entry.seed,
        dropping: entry.state == ENTRY_DROPPING,
        entry: i,
    })
}

/// Looks until every entry makes sense, or one goes on making none: an entry that changes while it is read looks torn
/// (N2).
async fn look_twice(pool: &Pool, span: &Span) -> Result<(Vec<IndexInfo>, Option<PoolError>), PoolError> {
    let mut pause = Duration::from_micros(20);
    loop {
        let (found, damaged) = look(pool, span).await?;
        if damaged.is_none() || pause > Duration::from_millis(5) {
            return Ok((found, damaged));
        }
        span.endpoint().sleep(pause).await;
        pause *= 4;
    }
}

/// Every index of the pool.
pub async fn list(pool: &Pool, span: &Span) -> Result<Vec<IndexInfo>, PoolError> {
    let (found, damaged) = look_twice(pool, span).await?;
    damaged.map_or(Ok(found), Err)
}

/// The index of this name. Another index's damaged entry does not keep it from being found.
pub async fn find(pool: &Pool, span: &Span, name: &str) -> Result<IndexInfo, PoolError> {
    let (mut found, mut damaged) = look_twice(pool, span).await?;
    let of_name = |found: &[IndexInfo], dropping| {
        found.iter().find(|info| info.name == name && info.dropping == dropping).cloned()
    };
    if of_name(&found, false).is_none() && of_name(&found, true).is_some() {
        // It was perhaps replaced during the READ, which may bring the new state of one entry and the old one of another (N2).
        (found, damaged) = look_twice(pool, span).await?;
    }
    of_name(&found, false).ok_or_else(|| damaged.unwrap_or_else(|| PoolError::NoSuchIndex(name.to_owned())))
}

/// The lock over the catalog's names.
const LOCK: Lock = Lock { at: header_word(HOME, header::CATALOG_LOCK), mask: u64::MAX };

/// Takes the catalog's lock, runs `body`, and releases it, whatever came of it. What somebody has done under the lock before
/// he died is whole or not there, so taking it over takes nothing more.
async fn locked<T>(
    session: &Session,
    span: &Span,
    body: impl AsyncFnOnce() -> Result<T, PoolError>,
) -> Result<T, PoolError> {
    let (client, endpoint) = (session.client(), session.endpoint());
    let mine = client.slot() + 1;
    let lease = session.pool().lease();
    let intent = Intent { index: 0, lock: LOCK, what: [0; 4] };
    let mut lock_timeout = LockTimeout::default();
    let until = endpoint.now() + lease * 2;
    let mut pause = Duration::from_micros(50);
    let (_inside, held) = loop {
        if let Some(inside) = client.enter_catalog() {
            let cell = session.intent_cell(HOME).await?;
            let mut batch = span.batch();
            let attempt = cell.try_lock(&mut batch, &intent, 0, mine);
            let mut done = batch.post().await?;
            let cell = match attempt.outcome(&mut done) {
                Ok(held) => break (inside, held),
                Err(lost) => lost.clear(span).await?,
            };
            match session.claim(span, LOCK, None, 0, intent.what).await? {
                Claim::Taken(taken) => break (inside, taken.into_held()),
                // None of this client's operations is inside: one was cancelled.
                Claim::Busy { own: true, .. } => {
                    let mut batch = span.batch();
                    cell.declare(&mut batch, &intent);
                    let word = batch.read(LOCK.at, 8);
                    let word = first_word(&batch.post().await?.buf(word));
                    break (inside, HeldLock::new(Some(cell), LOCK, word));
                }
                Claim::Busy { names, .. } if lock_timeout.held_for(names, endpoint.now()) > lease * 2 => {
                    return Err(held(session, span, LOCK, "the catalog").await?);
                }
                _ => {}
            }
        } else if endpoint.now() > until {
            let what = "the catalog".to_owned();
            return Err(PoolError::Held { what, holder: "another operation of this client".to_owned() });
        }
        endpoint.sleep(pause).await;
        pause = (pause * 2).min(lease / 16).max(Duration::from_micros(50));
    };
    let result = body().await;
    let mut batch = span.batch();
    held.release_by_cas(&mut batch, 0);
    batch.post().await?;
    result
}

/// A number for a new index, unlike any other's. It must be larger than `largest`, the largest that was read in the
/// catalog before: numbers are drawn in ascending order, so any other answer comes from a damaged counter.
pub async fn new_uid(span: &Span, largest: u64) -> Result<u64, PoolError> {
    let at = header_word(HOME, header::LAST_UID);
    let last = span.faa(at, 1).await?;
    match last.checked_add(1).filter(|uid| *uid > largest) {
        Some(uid) => Ok(uid),
        None => Err(PoolError::Corrupt { at, what: format!("the last index has number {last}, after {largest}") }),
    }
}

/// Adds an index whose memory is ready, and draws its seed. Fails, and changes nothing, if the name is taken.
pub async fn add(
    session: &Session,
    span: &Span,
    name: &str,
    uid: u64,
    (kind, version): (u32, u32),
    root: RemotePtr,
    config: &[u8; CONFIG_LEN],
) -> Result<IndexInfo, PoolError> {
    check_name(name)?;
    let pool = session.pool();
    locked(session, span, async || {
        let all = list(pool, span).await?;
        if all.iter().any(|info| info.name == name && !info.dropping) {
            return Err(PoolError::IndexExists(name.to_owned()));
        }
        let (name, entry, seed) = (name.to_owned(), free_entry(&all)?, pool.superblock(HOME).seed_of(uid));
        let info = IndexInfo { name, uid, kind, version, root, config: *config, seed, dropping: false, entry };
        let mut batch = span.batch();
        write_entry(pool, span, &mut batch, &info);
        batch.post().await?;
        Ok(info)
    })
    .await
}

fn free_entry(all: &[IndexInfo]) -> Result<u64, PoolError> {
    let free = (0..CATALOG_ENTRIES).find(|i| all.iter().all(|info| info.entry != *i));
    free.ok_or(PoolError::CatalogFull(CATALOG_ENTRIES as usize))
}

/// The WRITEs of an entry that was empty: its state comes last (G4).
fn write_entry(pool: &Pool, span: &Span, batch: &mut Batch<'_>, info: &IndexInfo) {
    let mut entry = CatalogEntry::new_zeroed();
    entry.uid = info.uid;
    entry.kind = info.kind;
    entry.version = info.version;
    entry.root = info.root.to_bits();
    entry.name_len = info.name.len() as u64;
    if let Some(name) = entry.name.get_mut(..info.name.len()) {
        name.copy_from_slice(info.name.as_bytes());
    }
    entry.config = info.config;
    entry.seed = info.seed;
    entry.checksum = entry.expected_checksum();
    let at = pool.geometry(HOME).entry(info.entry);
    batch.write(at.add(8), span.endpoint().buf_from(&entry.as_bytes()[8..]));
    batch.write_words(at, &[ENTRY_READY]);
}

/// Gives the name of `old` to the index that was made under the name [`copy_name`], and marks `old` as being dropped. At every moment
/// one of the two has the name, whatever becomes of this client: the first WRITE that changes anything is the state of a third
/// entry, with the name of `old` and the larger uid of `copy`. Fails, and changes nothing, if one of them is not there any more, or
/// if `still` fails, which is asked last.
pub async fn replace(
    session: &Session,
    span: &Span,
    old: &IndexInfo,
    copy: &IndexInfo,
    still: impl AsyncFnOnce() -> Result<(), PoolError>,
) -> Result<IndexInfo, PoolError> {
    let pool = session.pool();
    locked(session, span, async || {
        let all = list(pool, span).await?;
        for wanted in [old, copy] {
            if !all.iter().any(|info| info == wanted && !info.dropping) {
                return Err(PoolError::NoSuchIndex(wanted.name.clone()));
            }
        }
        if copy.uid <= old.uid {
            let what = format!("index {} was made after index {}, and has no larger number", copy.uid, old.uid);
            return Err(PoolError::Corrupt { at: pool.geometry(HOME).entry(copy.entry), what });
        }
        let info = IndexInfo { name: old.name.clone(), entry: free_entry(&all)?, ..copy.clone() };
        still().await?;
        let mut batch = span.batch();
        write_entry(pool, span, &mut batch, &info);
        // From here on the name leads to the copy. The other two WRITEs say the same in a way that needs no comparison.
        batch.write_words(pool.geometry(HOME).entry(copy.entry), &[ENTRY_EMPTY]);
        batch.write_words(pool.geometry(HOME).entry(old.entry), &[ENTRY_DROPPING]);
        batch.post().await?;
        Ok(info)
    })
    .await
}

/// Marks an index as being dropped: from now on nobody can open it.
pub async fn begin_drop(session: &Session, span: &Span, name: &str) -> Result<IndexInfo, PoolError> {
    locked(session, span, async || {
        let info = find(session.pool(), span, name).await?;
        let at = session.pool().geometry(HOME).entry(info.entry);
        span.write(at, session.endpoint().buf_from_words(&[ENTRY_DROPPING])).await?;
        Ok(IndexInfo { dropping: true, ..info })
    })
    .await
}

/// Removes the entry of an index whose memory has been given back.
pub async fn end_drop(session: &Session, span: &Span, info: &IndexInfo) -> Result<(), PoolError> {
    locked(session, span, async || {
        let at = session.pool().geometry(HOME).entry(info.entry);
        let uid = first_word(&span.read(at.add(std::mem::offset_of!(CatalogEntry, uid) as u64), 8).await?);
        if uid == info.uid {
            span.write(at, session.endpoint().buf_from_words(&[ENTRY_EMPTY])).await?;
        }
        Ok(())
    })
    .await
}
