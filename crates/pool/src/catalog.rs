//! The catalog: named indexes.
//!
//! Invariants: the state of an entry becomes "ready" after all other bytes are written (one batch, G4), a checksum covers
//! those bytes, and the state says whose they are. Names are added and removed under one lock word, and an intent names its
//! holder. A `uid` is never given to a second index. If several ready entries have one name, the entry with the largest `uid`
//! has the name.

use crate::layout::{
    CATALOG_ENTRIES, CATALOG_ENTRY_LEN, CatalogEntry, ENTRY_DROPPING, ENTRY_EMPTY, ENTRY_READY, HOME, MAX_CONFIG_LEN,
    MAX_NAME, MAX_UID, entry_state, first_word, header, header_word,
};
use crate::lock::HeldLock;
use crate::session::Session;
use crate::takeover::held;
use crate::{Claim, Intent, Lock, LockTimeout, Pool, PoolError};
use farindex_fabric::{Batch, RemotePtr, Span, cold};
use std::time::Duration;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

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

/// Reads the catalog once: returns its indexes, and an error for the first invalid entry.
async fn read_once(pool: &Pool, span: &Span) -> Result<(Vec<IndexInfo>, Option<PoolError>), PoolError> {
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

/// Reads the catalog until every entry is valid, five times at most: an entry that changes during the READ may be torn
/// (N2). If an entry stays invalid, returns its error too.
async fn read_stable(pool: &Pool, span: &Span) -> Result<(Vec<IndexInfo>, Option<PoolError>), PoolError> {
    let mut pause = Duration::from_micros(20);
    loop {
        let (found, damaged) = read_once(pool, span).await?;
        if damaged.is_none() || pause > Duration::from_millis(5) {
            return Ok((found, damaged));
        }
        span.endpoint().sleep(pause).await;
        pause *= 4;
    }
}

/// Returns every index of the pool.
pub async fn list(pool: &Pool, span: &Span) -> Result<Vec<IndexInfo>, PoolError> {
    cold(list_inner(pool, span)).await
}

async fn list_inner(pool: &Pool, span: &Span) -> Result<Vec<IndexInfo>, PoolError> {
    let (found, damaged) = read_stable(pool, span).await?;
    damaged.map_or(Ok(found), Err)
}

/// Finds the index of this name. A damaged entry of another index does not matter.
pub async fn find(pool: &Pool, span: &Span, name: &str) -> Result<IndexInfo, PoolError> {
    cold(find_inner(pool, span, name)).await
}

async fn find_inner(pool: &Pool, span: &Span, name: &str) -> Result<IndexInfo, PoolError> {
    let (mut found, mut damaged) = read_stable(pool, span).await?;
    let of_name = |found: &[IndexInfo], dropping| {
        found.iter().find(|info| info.name == name && info.dropping == dropping).cloned()
    };
    if of_name(&found, false).is_none() && of_name(&found, true).is_some() {
        // A replacement during the READ may show the new state of one entry and the old state of another (N2).
        (found, damaged) = read_stable(pool, span).await?;
    }
    of_name(&found, false).ok_or_else(|| damaged.unwrap_or_else(|| PoolError::NoSuchIndex(name.to_owned())))
}

/// The lock of the catalog's names.
const LOCK: Lock = Lock { at: header_word(HOME, header::CATALOG_LOCK), mask: u64::MAX };

/// Takes the catalog's lock, runs `body`, and releases the lock even if `body` fails. Changes under this lock are
/// atomic, so a new holder after a takeover has nothing to recover.
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
                // No operation of this client is in the catalog, so the lock belongs to a cancelled one.
                Claim::Busy { own: true, .. } => {
                    let mut batch = span.batch();
                    cell.declare(&mut batch, &intent);
                    let word = batch.read(LOCK.at, 8);
                    let word = first_word(&batch.post().await?.buf(word));
                    break (inside, HeldLock::new(Some(cell), LOCK, word));
                }
                Claim::Busy { names, .. } => {
                    if lock_timeout.held_for(LOCK.at, 0, names, (endpoint.now(), lease)) > lease * 2 {
                        return Err(held(session, span, LOCK, "the catalog").await?);
                    }
                }
                Claim::Free | Claim::Unsteady => {}
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
    held.cleared();
    result
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
        let all = list(pool, span).await?;
        if all.iter().any(|info| info.name == name && !info.dropping) {
            return Err(PoolError::IndexExists(name.to_owned()));
        }
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
            entry: free_entry(&all)?,
        };
        let mut batch = span.batch();
        write_entry(pool, span, &mut batch, &info);
        batch.post().await?;
        Ok(info)
    }))
    .await
}

fn free_entry(all: &[IndexInfo]) -> Result<u64, PoolError> {
    let free = (0..CATALOG_ENTRIES).find(|i| all.iter().all(|info| info.entry != *i));
    free.ok_or(PoolError::CatalogFull(CATALOG_ENTRIES as usize))
}

/// Adds the WRITEs of an entry that was empty to the batch. The state is written last (G4).
fn write_entry(pool: &Pool, span: &Span, batch: &mut Batch<'_>, info: &IndexInfo) {
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
    let at = pool.geometry(HOME).entry(info.entry);
    batch.write(at.add(8), span.endpoint().buf_from(&entry.as_bytes()[8..]));
    batch.write_words(at, &[entry_state(info.uid, ENTRY_READY)]);
}

/// Gives the name of `old` to its copy, which was made under [`copy_name`], and marks `old` as being dropped.
///
/// Exactly one of the two has the name at every moment, even if this client crashes: the first WRITE with an effect
/// sets the state of a third entry, which has the name of `old` and the larger uid of `copy`. Fails, and changes
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
        let all = list(pool, span).await?;
        for wanted in [old, copy] {
            if !all.iter().any(|info| info == wanted && !info.dropping) {
                return Err(PoolError::NoSuchIndex(wanted.name.clone()));
            }
        }
        if copy.uid <= old.uid {
            let what = format!("index {} is a copy of index {}, and has no larger number", copy.uid, old.uid);
            return Err(PoolError::Corrupt { at: pool.geometry(HOME).entry(copy.entry), what });
        }
        let info = IndexInfo { name: old.name.clone(), entry: free_entry(&all)?, ..copy.clone() };
        still().await?;
        let mut batch = span.batch();
        write_entry(pool, span, &mut batch, &info);
        // From here on the name belongs to the copy. The other two WRITEs remove the entries that are now superseded.
        batch.write_words(pool.geometry(HOME).entry(copy.entry), &[ENTRY_EMPTY]);
        batch.write_words(pool.geometry(HOME).entry(old.entry), &[entry_state(old.uid, ENTRY_DROPPING)]);
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
        let info = found;
        let at = session.pool().geometry(HOME).entry(info.entry);
        span.write(at, session.endpoint().buf_from_words(&[entry_state(info.uid, ENTRY_DROPPING)])).await?;
        Ok(IndexInfo { dropping: true, ..info })
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
            span.write(at, session.endpoint().buf_from_words(&[ENTRY_EMPTY])).await?;
        }
        Ok(())
    }))
    .await
}
