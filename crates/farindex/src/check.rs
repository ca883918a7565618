//! Checking a whole pool.

use crate::Error;
use crate::salvage;
use farindex_fabric::{OpKind, Span};
use farindex_index::AnyIndex;
use farindex_index::audit::Damage;
use farindex_index::{IndexAudit, IndexError};
use farindex_pool::audit::{Audit, AuditReport};
use farindex_pool::leaks::Leaks;
use farindex_pool::reclaim::Reclaimed;
use farindex_pool::{PoolError, Session, catalog, clients};
use std::rc::Rc;

/// What a check found.
#[derive(Debug, Clone, Default)]
pub struct CheckReport {
    /// Each index, with its name.
    pub indexes: Vec<(String, IndexAudit)>,
    /// The pool itself.
    pub pool: AuditReport,
    /// Steps that crashed clients have left unfinished, in words. Clients that need what they have locked finish them
    /// or undo them, and so does a repair.
    pub unfinished: Vec<String>,
    /// An index was being dropped, so not all of its memory was visited.
    pub(crate) missed: bool,
}

impl CheckReport {
    /// Everything that is wrong, in words. What crashed clients have left behind is not wrong.
    pub fn problems(&self) -> impl Iterator<Item = String> + '_ {
        let of_indexes = self
            .indexes
            .iter()
            .flat_map(|(name, audit)| audit.problems.iter().map(move |problem| format!("index {name:?}: {problem}")));
        of_indexes.chain(self.pool.problems.iter().cloned())
    }
    /// Is nothing wrong?
    pub fn is_sound(&self) -> bool {
        self.problems().next().is_none()
    }
    /// What crashed clients have left behind, in words: leaked memory and unfinished steps. It is given back, and they
    /// are finished, when a client opens the pool and finds itself alone, or by
    /// [`Session::repair`](crate::Session::repair).
    pub fn left_behind(&self) -> impl Iterator<Item = String> + '_ {
        self.pool.leak().into_iter().chain(self.unfinished.iter().cloned())
    }
}

/// What a repair has recovered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Clients that had crashed, or whose leases had expired, and that were evicted.
    pub evicted: u64,
    /// Indexes whose dropping was finished.
    pub drops: u64,
    /// Places in indexes that crashed clients had left locked, or half changed.
    pub recovered: u64,
    /// Memory that crashed clients had allocated but not yet linked, and that is free again; nothing while other
    /// clients are registered, or while an index is not sound.
    pub reclaimed: Reclaimed,
}

/// Recovers what crashed clients left unfinished in the whole pool. Takes slightly longer than one lease period.
pub(crate) async fn repair(session: &Rc<Session>) -> Result<Repaired, Error> {
    let evicted = session.client().wait_and_evict_expired(session.endpoint()).await?;
    recover(session, evicted).await
}

/// The same, if crashed clients have left something and no other client is there. Only those that are proved gone are
/// evicted, so it waits for nobody.
pub(crate) async fn repair_if_alone(session: &Rc<Session>) -> Result<Option<Repaired>, Error> {
    let span = session.span(OpKind::Maintenance);
    let leaks = Leaks::read(&span).await?;
    let mut others = clients(session.pool(), &span).await?;
    others.retain(|other| other.slot != session.client().slot());
    if others.iter().any(|other| other.gone != Some(true)) || others.is_empty() && !leaks.reclaimable() {
        return Ok(None);
    }
    let evicted = session.client().evict_expired(session.endpoint()).await?;
    Ok(Some(recover(session, evicted).await?))
}

/// Walks of one check, at most, where a walk itself finishes what other clients have left to the next one.
const MOST_WALKS: u32 = 4;

/// Finishes what evicted clients have left unfinished, and gives back what they had in hand.
async fn recover(session: &Rc<Session>, evicted: u64) -> Result<Repaired, Error> {
    let span = session.span(OpKind::Maintenance);
    let mut repaired = Repaired { evicted, ..Repaired::default() };
    salvage::drop_copies(session).await?;
    repaired.drops = AnyIndex::finish_drops(session).await?;
    let audit = Audit::begin(session, &span).await?;
    for info in catalog::list(session.pool(), &span).await? {
        // The check that follows says what is wrong with an index that cannot be opened.
        let Ok(index) = AnyIndex::open_info(session, &info).await else { continue };
        match index.recover().await {
            Ok(recovered) => repaired.recovered += recovered,
            // Another client drops it.
            Err(IndexError::Dropped) => {}
            // So it does of one that is damaged: a lock that is held by nobody is damage as well.
            Err(IndexError::Locked { .. }) if audit.undisturbed(session, &span).await? => {}
            Err(error) => drop(Damage::of(error, info.root)?),
        }
    }
    // The repairs may have retired what they replaced.
    session.drain().await?;
    repaired.reclaimed = reclaim(session).await?;
    Ok(repaired)
}

/// Frees memory that crashed clients had allocated but not linked, if every index is sound and no other client is
/// registered.
pub(crate) async fn reclaim(session: &Rc<Session>) -> Result<Reclaimed, Error> {
    let span = session.span(OpKind::Maintenance);
    let leaks = Leaks::read(&span).await?;
    let (audit, report) = walk_unchanged(session, &span).await?;
    let mut reclaimed = Reclaimed::default();
    if report.is_sound() && !report.missed {
        session.flush().await?;
        reclaimed = audit.reclaim(session, &span).await?;
    }
    if reclaimed.alone {
        leaks.clear(&span).await?;
    } else if !report.is_sound() && leaks.any() {
        leaks.mark_unreclaimable(&span).await?;
    }
    Ok(reclaimed)
}

/// Walks until the walk itself has retired nothing or has found a problem, [`MOST_WALKS`] times at most.
async fn walk_unchanged(session: &Rc<Session>, span: &Span) -> Result<(Audit, CheckReport), Error> {
    let mut walks = 0;
    loop {
        let mut audit = Audit::begin(session, span).await?;
        // What others that are at work have not finished is theirs (bug 222). Then nothing is reclaimed, either.
        let alone = audit.undisturbed(session, span).await?;
        let report = walk(session, &mut audit, alone).await?;
        walks += 1;
        if !audit.is_outdated(session) || !report.is_sound() || walks == MOST_WALKS {
            return Ok((audit, report));
        }
        session.drain().await?;
    }
}

pub(crate) async fn check(session: &Rc<Session>) -> Result<CheckReport, Error> {
    let span = session.span(OpKind::Other);
    // What this session holds itself would look lost.
    session.flush().await?;
    let mut alone = true;
    let (mut unfinished, mut walks): (Option<Vec<String>>, _) = (None, 0);
    loop {
        let mut audit = Audit::begin(session, &span).await?;
        alone = alone && audit.undisturbed(session, &span).await?;
        unfinished = unfinished.filter(|_| alone);
        if unfinished.is_some() {
            audit.expect_unfinished_steps();
        }
        let mut report = walk(session, &mut audit, alone && unfinished.is_none()).await?;
        session.flush().await?;
        walks += 1;
        if alone && audit.is_outdated(session) && report.is_sound() && walks < MOST_WALKS {
            session.drain().await?;
            continue;
        }
        // A client that registered during the walk has changed structures, some of them by half: that is no fault, but
        // the walk assumed that there was none.
        let misled = alone && !report.is_sound() && !audit.undisturbed(session, &span).await?;
        if misled {
            (alone, unfinished) = (false, None);
            continue;
        }
        // A client that crashed may have left steps unfinished, as clients at work do. What is wrong even if they are
        // expected is damage.
        if alone && unfinished.is_none() && !report.is_sound() && crashed(session, &span).await? {
            unfinished = Some(report.problems().collect());
            continue;
        }
        let wrong: Vec<_> = report.problems().collect();
        report.unfinished = unfinished.unwrap_or_default();
        report.unfinished.retain(|what| !wrong.contains(what));
        report.pool = audit.settle(session, &span).await?;
        return Ok(report);
    }
}

/// Have clients crashed since the last recovery, or has a recovery failed?
async fn crashed(session: &Session, span: &Span) -> Result<bool, Error> {
    let gone = clients(session.pool(), span).await?.iter().any(|client| client.gone == Some(true));
    Ok(gone || Leaks::read(span).await?.reclaimable())
}

/// Every index that is not being dropped.
pub(crate) async fn walk(session: &Rc<Session>, audit: &mut Audit, alone: bool) -> Result<CheckReport, Error> {
    let span = session.span(OpKind::Other);
    let mut report = CheckReport::default();
    for info in catalog::list(session.pool(), &span).await? {
        if info.dropping {
            report.missed = true;
            continue;
        }
        audit.reach(info.root, session.pool().nodes().len() as u64 * 8, "a list of roots");
        match AnyIndex::open_info(session, &info).await {
            Ok(index) => {
                let found = index.audit(audit, alone).await;
                match found {
                    Err(IndexError::Dropped) => report.missed = true,
                    Ok(found) => report.indexes.push((info.name.clone(), found)),
                    // Damage that ends an audit is what a check looks for.
                    Err(error) => report.indexes.push((info.name.clone(), unsound(Damage::of(error, info.root)?.what))),
                }
            }
            Err(IndexError::Dropped | IndexError::Pool(PoolError::NoSuchIndex(_))) => report.missed = true,
            Err(error) => report.indexes.push((info.name.clone(), unsound(error.to_string()))),
        }
    }
    Ok(report)
}

fn unsound(problem: String) -> IndexAudit {
    IndexAudit { problems: vec![problem], ..IndexAudit::default() }
}

#[cfg(test)]
mod tests {
    use crate::{IndexConfig, Pool};
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn check_raises_no_false_alarm_while_clients_join_and_leave() {
        let pool = Pool::in_memory(32 << 20).unwrap();
        let session = pool.session().unwrap();
        let index = session.create_index("demo", IndexConfig::default()).unwrap();
        for key in 0..2000_u64 {
            index.upsert(key.to_le_bytes(), "x").unwrap();
        }
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut key = 0_u64;
                while !over.load(Ordering::Relaxed) {
                    let pool = Pool::attach(pool.fabric().clone()).unwrap();
                    let index = pool.session().unwrap().open_index("demo").unwrap();
                    for _ in 0..20 {
                        key = (key + 1) % 2000;
                        index.remove(key.to_le_bytes()).unwrap();
                        index.upsert(key.to_le_bytes(), "y").unwrap();
                    }
                    drop((index, pool));
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
            });
            let problems: Vec<_> =
                (0..200).flat_map(|_| session.check().unwrap().problems().collect::<Vec<_>>()).collect();
            over.store(true, Ordering::Relaxed);
            assert_eq!(problems, Vec::<String>::new());
        });
    }
}
