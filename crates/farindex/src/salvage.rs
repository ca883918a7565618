//! Keeping what can be read of damaged indexes, and dropping the rest.
//!
//! A damaged index is copied entry by entry into a new one of the same kind and settings, which then takes its name
//! ([`catalog::replace`]). So it works for every kind in the same way, and whatever becomes of the client that does it,
//! the name leads to the damaged index or to the whole copy. The damaged index's memory goes back like that of crashed
//! clients: `Audit::reclaim`.
//!
//! Invariants: nothing is dropped while another client is registered; nothing is copied while the allocator's own
//! account of the pool does not add up, because the copy could be put over what it is made from.

use crate::{Error, check};
use farindex_fabric::OpKind;
use farindex_index::audit::Damage;
use farindex_index::{AnyIndex, IndexConfig};
use farindex_index::{IndexError, PointIndex, Value};
use farindex_pool::audit::Audit;
use farindex_pool::{PoolError, Session, catalog};
use std::rc::Rc;

/// Damaged places that are reported in words.
const IN_WORDS: usize = 20;

/// What became of one damaged index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Salvaged {
    /// Its name.
    pub name: String,
    /// What was kept and dropped; or why the index is as it was.
    pub outcome: Result<Kept, Error>,
}

/// What was kept of a damaged index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kept {
    /// Entries that were kept.
    pub entries: u64,
    /// Places that could not be read, and that are gone. How many entries they held, nothing tells.
    pub places: u64,
    /// The first of them.
    pub dropped: Vec<Damage>,
}

/// Replaces every index that is not sound by a copy of what can be read of it. An index of which nothing can be read,
/// not even its roots, is left as it is.
pub(crate) async fn drop_damaged(session: &Rc<Session>) -> Result<Vec<Salvaged>, Error> {
    let span = session.span(OpKind::Maintenance);
    session.flush().await?;
    let audit = Audit::begin(session, &span).await?;
    let mut account = Audit::begin(session, &span).await?;
    let report = check::walk(session, &mut account, true).await?;
    let damaged: Vec<_> =
        report.indexes.iter().filter(|(_, audit)| !audit.problems.is_empty()).map(|(name, _)| name).collect();
    if damaged.is_empty() {
        return Ok(Vec::new());
    }
    alone(session, &audit).await?;
    let account = account.settle(session, &span).await?;
    // Memory that a walk cannot reach because of damage looks leaked. That is no problem here: it is not handed out.
    let broken = account.problems.into_iter().next();
    let mut all = Vec::new();
    for name in damaged {
        let outcome = replace(session, name, &audit, broken.as_deref()).await;
        let outcome = outcome.map_err(|error| Error::NotReplaced { name: name.clone(), why: Box::new(error) });
        all.push(Salvaged { name: name.clone(), outcome });
    }
    AnyIndex::finish_drops(session).await?;
    session.drain().await?;
    check::reclaim(session).await?;
    Ok(all)
}

async fn alone(session: &Session, audit: &Audit) -> Result<(), PoolError> {
    match audit.undisturbed(session, &session.span(OpKind::Maintenance)).await? {
        true => Ok(()),
        false => Err(PoolError::NotAlone("to replace damaged indexes")),
    }
}

/// Drops copies that a client has left which crashed while it made them.
pub(crate) async fn drop_copies(session: &Rc<Session>) -> Result<(), Error> {
    let span = session.span(OpKind::Maintenance);
    for info in catalog::list(session.pool(), &span).await? {
        if catalog::is_copy(&info.name) && !info.dropping {
            catalog::begin_drop(session, &span, &info).await?;
        }
    }
    Ok(())
}

/// Copies what can be read of an index, and gives its name to the copy.
async fn replace(session: &Rc<Session>, name: &str, audit: &Audit, broken: Option<&str>) -> Result<Kept, Error> {
    let span = session.span(OpKind::Maintenance);
    let info = catalog::find(session.pool(), &span, name).await?;
    let old = AnyIndex::open_info(session, &info).await?;
    let corrupt = |what: String| PoolError::Corrupt { at: info.root, what };
    if let Some(problem) = broken {
        return Err(corrupt(format!("the pool's own account of its memory does not add up: {problem}")).into());
    }
    let config = IndexConfig::of_info(&info).ok_or_else(|| corrupt("its settings make no sense".to_owned()))?;
    let copy = catalog::copy_name(&info);
    let replacing = async {
        let kept = copied(session, &old, &copy, &config).await?;
        let new = catalog::find(session.pool(), &span, &copy).await?;
        catalog::replace(session, &span, &info, &new, async || alone(session, audit).await).await?;
        Ok::<_, IndexError>(kept)
    };
    match replacing.await {
        Ok(kept) => Ok(kept),
        // After a failed verb the copy may have the name, or get it later (N7): the next repair drops the one that has not.
        Err(error @ IndexError::Fabric(_)) => Err(error.into()),
        Err(error) => {
            undo(session, &copy).await?;
            Err(error.into())
        }
    }
}

async fn undo(session: &Rc<Session>, copy: &str) -> Result<(), Error> {
    match AnyIndex::drop_named(session, copy).await {
        Ok(()) | Err(IndexError::Pool(PoolError::NoSuchIndex(_))) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

async fn copied(session: &Rc<Session>, old: &AnyIndex, name: &str, config: &IndexConfig) -> Result<Kept, IndexError> {
    let new = AnyIndex::create(session, name, config).await?;
    let mut kept = Kept::default();
    let mut dropped = |damage| {
        kept.places += 1;
        if kept.dropped.len() < IN_WORDS {
            kept.dropped.push(damage);
        }
        Ok(())
    };
    let keep = async |key: &[u8], value: Value| new.insert(key, &value).await.map(drop);
    kept.entries = old.visit(keep, &mut dropped).await?;
    Ok(kept)
}

/// Is this a name that [`catalog::replace`] gives, and nobody else may?
pub(crate) fn check_name(name: &str) -> Result<(), PoolError> {
    match catalog::is_copy(name) {
        true => Err(PoolError::BadName(format!("{name:?} is a name that `pool check --repair --drop-damaged` gives"))),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use crate::{AnyIndex, IndexConfig, Pool, PoolError, Session};
    use farindex_fabric::{OpKind, RemotePtr};
    use farindex_pool::catalog;
    use farindex_pool::layout::{ENTRY_READY, HOME, entry_state};
    use std::time::Duration;

    const KEYS: u64 = 500;

    fn session() -> Session {
        // A repair waits until the leases of crashed clients have expired.
        let pool = Pool::builder().lease(Duration::from_secs(1)).create("memory:32MiB").unwrap();
        let session = pool.session().unwrap();
        let index = session.create_index("words", IndexConfig::default()).unwrap();
        (0..KEYS).for_each(|key| _ = index.insert(key.to_le_bytes(), "old").unwrap());
        session
    }

    /// The index, all its entries, and a sound pool; nothing else.
    fn judge(session: &Session, value: &str) {
        let names: Vec<_> = session.indexes().unwrap().into_iter().map(|info| info.name).collect();
        assert_eq!(names, ["words"]);
        let index = session.open_index("words").unwrap();
        for key in 0..KEYS {
            assert_eq!(index.get(key.to_le_bytes()).unwrap().as_deref(), Some(value.as_bytes()));
        }
        drop(index);
        let report = session.check().unwrap();
        assert_eq!(report.problems().collect::<Vec<_>>(), Vec::<String>::new());
        assert!(report.pool.alone);
    }

    fn copy(session: &Session, entries: u64) -> (catalog::IndexInfo, catalog::IndexInfo) {
        let raw = session.raw();
        let old = session.indexes().unwrap().remove(0);
        let name = catalog::copy_name(&old);
        session.block_on(async {
            let copy = AnyIndex::create(raw, &name, &IndexConfig::default()).await.unwrap();
            for key in 0..entries {
                farindex_index::PointIndex::insert(&copy, &key.to_le_bytes(), b"new").await.unwrap();
            }
            let span = raw.span(OpKind::Other);
            let copy = catalog::find(raw.pool(), &span, &name).await.unwrap();
            (old, copy)
        })
    }

    #[test]
    fn a_repair_drops_a_copy_that_a_crashed_client_has_left() {
        let session = session();
        copy(&session, KEYS / 2);
        assert_eq!(session.indexes().unwrap().len(), 2);
        let repaired = session.repair().unwrap();
        assert!(repaired.drops == 1 && repaired.reclaimed.bytes > 0, "{repaired:?}");
        judge(&session, "old");
        let name = catalog::copy_name(&session.indexes().unwrap()[0]);
        let refused = session.create_index(&name, IndexConfig::default()).map(drop);
        assert!(matches!(refused, Err(crate::Error::Pool(PoolError::BadName(_)))), "{refused:?}");
    }

    /// The client has crashed when the name led to the copy, and the two other entries were as before.
    #[test]
    fn a_repair_finishes_a_replacement_that_a_crashed_client_has_begun() {
        let session = session();
        let (old, copy) = copy(&session, KEYS);
        let raw = session.raw();
        session.block_on(async {
            let span = raw.span(OpKind::Other);
            catalog::replace(raw, &span, &old, &copy, async || Ok(())).await.unwrap();
            // They were the first two entries of the catalog.
            for (entry, info) in [&old, &copy].into_iter().enumerate() {
                let at: RemotePtr = raw.pool().geometry(HOME).entry(entry as u64);
                let ready = entry_state(info.uid, ENTRY_READY);
                span.write(at, raw.endpoint().buf_from_words(&[ready])).await.unwrap();
            }
        });
        let listed = session.indexes().unwrap();
        let live: Vec<_> = listed.iter().filter(|info| !info.dropping).map(|info| (&*info.name, info.uid)).collect();
        assert_eq!((listed.len(), live), (3, vec![("words", copy.uid)]));
        assert_eq!(session.repair().unwrap().drops, 2);
        judge(&session, "new");
    }

    #[test]
    fn nothing_is_replaced_where_nothing_is_damaged() {
        let session = session();
        assert_eq!(session.drop_damaged().unwrap(), Vec::new());
        judge(&session, "old");
    }
}
