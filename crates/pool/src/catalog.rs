//! The catalog: named indexes.
//!
//! Invariants: an entry is written whole before its state says ready (one batch, G4), and carries a checksum; names are
//! added and removed under one lock word, whose holder is named in it; an entry's `uid` is never used again.

use crate::client::first_word;
use crate::layout::{
    CATALOG_ENTRIES, CATALOG_ENTRY_LEN, CONFIG_LEN, CatalogEntry, ENTRY_DROPPING, ENTRY_EMPTY, ENTRY_READY, HOME,
    MAX_NAME, header, header_word,
};
use crate::session::Session;
use crate::{Pool, PoolError};
use farindex_fabric::{RemotePtr, Span};
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
    /// Is it being dropped?
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

/// Every index of the pool.
pub async fn list(pool: &Pool, span: &Span) -> Result<Vec<IndexInfo>, PoolError> {
    let buf = span.read(pool.geometry(HOME).entry(0), (CATALOG_ENTRIES * CATALOG_ENTRY_LEN) as usize).await?;
    let entries = <[CatalogEntry]>::ref_from_bytes(buf.bytes()).unwrap_or_default();
    let mut found = Vec::new();
    for (i, entry) in entries.iter().enumerate() {
        if entry.state == ENTRY_EMPTY {
            continue;
        }
        let at = pool.geometry(HOME).entry(i as u64);
        let name = entry.name.get(..entry.name_len as usize).and_then(|name| std::str::from_utf8(name).ok());
        let whole = entry.checksum == entry.expected_checksum() && matches!(entry.state, ENTRY_READY | ENTRY_DROPPING);
        let Some(name) = name.filter(|_| whole) else {
            return Err(PoolError::Corrupt { at, what: "a catalog entry has a wrong checksum".to_owned() });
        };
        found.push(IndexInfo {
            name: name.to_owned(),
            uid: entry.uid,
            kind: entry.kind,
            version: entry.version,
            root: RemotePtr::from_bits(entry.root),
            config: entry.config,
            dropping: entry.state == ENTRY_DROPPING,
            entry: i as u64,
        });
    }
    Ok(found)
}

/// The index of this name.
pub async fn find(pool: &Pool, span: &Span, name: &str) -> Result<IndexInfo, PoolError> {
    // An entry that changes while it is read may look torn (N2): look again before believing it.
    let mut attempt = 0;
    let all = loop {
        match list(pool, span).await {
            Err(PoolError::Corrupt { .. }) if attempt < 3 => attempt += 1,
            other => break other?,
        }
    };
    let found = all.into_iter().find(|info| info.name == name && !info.dropping);
    found.ok_or_else(|| PoolError::NoSuchIndex(name.to_owned()))
}

/// Takes the catalog's lock, runs `body`, and releases it, whatever came of it.
async fn locked<T>(
    session: &Session,
    span: &Span,
    body: impl AsyncFnOnce() -> Result<T, PoolError>,
) -> Result<T, PoolError> {
    let lock = header_word(HOME, header::CATALOG_LOCK);
    let mine = session.client().slot() + 1;
    let until = session.endpoint().now() + session.pool().lease();
    loop {
        let holder = span.cas(lock, 0, mine).await?;
        if holder == 0 {
            break;
        }
        if session.endpoint().now() >= until {
            let slot = holder.wrapping_sub(1);
            let holder = format!("client {slot}");
            return Err(PoolError::Held { what: "the catalog".to_owned(), holder });
        }
        session.endpoint().sleep(Duration::from_micros(200)).await;
    }
    let result = body().await;
    span.cas(lock, mine, 0).await?;
    result
}

/// A number for a new index, unlike any other's.
pub async fn new_uid(span: &Span) -> Result<u64, PoolError> {
    Ok(span.faa(header_word(HOME, header::LAST_UID), 1).await? + 1)
}

/// Adds an index whose memory is ready. Fails, and changes nothing, if the name is taken.
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
        let free = (0..CATALOG_ENTRIES).find(|i| all.iter().all(|info| info.entry != *i));
        let slot = free.ok_or(PoolError::CatalogFull(CATALOG_ENTRIES as usize))?;
        let mut entry = CatalogEntry::new_zeroed();
        entry.uid = uid;
        entry.kind = kind;
        entry.version = version;
        entry.root = root.to_bits();
        entry.name_len = name.len() as u64;
        entry.name[..name.len()].copy_from_slice(name.as_bytes());
        entry.config = *config;
        entry.checksum = entry.expected_checksum();
        let at = pool.geometry(HOME).entry(slot);
        let mut batch = span.batch();
        batch.write(at.add(8), session.endpoint().buf_from(&entry.as_bytes()[8..]));
        batch.write_words(at, &[ENTRY_READY]);
        batch.post().await?;
        let name = name.to_owned();
        Ok(IndexInfo { name, uid, kind, version, root, config: *config, dropping: false, entry: slot })
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
