//! The end of a run: all clients have left or crashed, and one more client recovers, reads and audits what is there.
//!
//! Invariants: this client works alone, so whatever an audit finds was left by the others. It reads every key, so that the
//! checker also judges what the run has left.

use crate::bursts;
use crate::cancelling::Given;
use crate::cluster::{WORKERS, session_of};
use crate::dropping;
use crate::leaders;
use crate::naming;
use crate::refilling;
use crate::too_long;
use crate::turnover;
use crate::worker::{LAST, Shared, Which, Worker};
use crate::world::join_all;
use farindex_fabric::{Endpoint, OpKind};
use farindex_index::{AnyIndex, IndexAudit, IndexConfig, IndexError};
use farindex_pool::audit::{Audit, AuditReport};
use farindex_pool::{Client, Pool, PoolError, Session, catalog};
use farindex_sim::SimRng;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Audits the indexes, and reaches every object of the pool. Returns the report of the first, with the problems of all.
async fn walk(
    indexes: &[(Which, Rc<AnyIndex>)],
    pool: &Pool,
    session: &Session,
    audit: &mut Audit,
) -> Result<IndexAudit, IndexError> {
    let mut report: Option<IndexAudit> = None;
    for (_, index) in indexes {
        let next = index.audit(audit, true).await?;
        match &mut report {
            Some(report) => report.problems.extend(next.problems),
            None => report = Some(next),
        }
    }
    for info in catalog::list(pool, &session.span(OpKind::Other)).await? {
        audit.reach(info.root, pool.nodes().len() as u64 * 8, "a list of roots");
    }
    Ok(report.unwrap_or_default())
}

/// Walks of one audit, at most: each may finish what writers have left to the next client.
const WALKS: u32 = 4;

/// Walks until the walk itself has retired nothing or has found a problem, [`WALKS`] times at most.
async fn walk_unchanged(
    indexes: &[(Which, Rc<AnyIndex>)],
    pool: &Pool,
    session: &Session,
) -> Result<(IndexAudit, Audit), IndexError> {
    let mut walks = 0;
    loop {
        let mut audit = Audit::begin(session, &session.span(OpKind::Other)).await?;
        let report = walk(indexes, pool, session, &mut audit).await?;
        walks += 1;
        if !audit.is_outdated(session) || !report.problems.is_empty() || walks == WALKS {
            return Ok((report, audit));
        }
        session.drain().await?;
    }
}

/// Recovers and audits the indexes and the pool after all clients have left or crashed. `walker` has the slow batches, if there are
/// to be any.
pub(crate) async fn recover_and_audit(
    shared: Rc<Shared>,
    (harness, walker): (farindex_sim::Client, Option<(Endpoint, farindex_sim::Client)>),
    pool: Pool,
    index_config: IndexConfig,
) -> Result<(IndexAudit, AuditReport), IndexError> {
    let endpoint = harness.connect();
    let client = Client::register(&pool, harness.identity(), &endpoint).await?;
    let session = session_of(&client, &endpoint).await;
    let mut indexes = Vec::new();
    if shared.has_unfinished_drop() {
        AnyIndex::finish_drops(&session).await?;
    }
    if shared.naming.recorded().is_some() {
        if shared.leaves_unfinished() {
            client.wait_and_evict_expired(&endpoint).await?;
        }
        naming::end(&shared, &session, &endpoint).await?;
    }
    for which in shared.indexes() {
        indexes.extend(shared.open_if_there(&session, which).await?.map(|index| (which, index)));
    }
    if shared.leaves_unfinished() || shared.has_unfinished_drop() {
        client.wait_and_evict_expired(&endpoint).await?;
        for (which, index) in &indexes {
            index.recover().await?;
            last_worker(&shared, *which, index, &endpoint).read_all().await;
        }
        if let (Some(fault), Some(rng)) = (shared.coalescing, shared.leading.clone()) {
            let other = session_of(&client, &harness.connect()).await;
            leaders::judge(&shared, &session, other, &index_config, fault, rng).await?;
        }
        // What crashed clients and writes that were given up had allocated, and what recovery has replaced.
        session.drain().await?;
        let (_, audit) = walk_unchanged(&indexes, &pool, &session).await?;
        let reclaimed = audit.reclaim(&session, &session.span(OpKind::Maintenance)).await?;
        if !reclaimed.alone {
            shared.fail("pool: another client is registered, so nothing was reclaimed".to_owned());
        }
    } else if shared.ordered || shared.pair {
        for (which, index) in &indexes {
            last_worker(&shared, *which, index, &endpoint).read_all().await;
        }
        // A lookup may have finished what a writer left to the next client, and retired what that unlinked.
        session.drain().await?;
    }
    for (_, index) in &indexes {
        too_long::judge(&shared, index).await;
    }
    create_twice(&shared, &session, &index_config).await?;
    if let Some(rng) = shared.bursting.clone() {
        let other = session_of(&client, &harness.connect()).await;
        bursts::judge(&shared, &session, (other, None), &index_config, rng).await?;
        session.drain().await?;
    }
    if let (Some(rng), Some((walks, walker))) = (shared.slow_bursting.clone(), walker) {
        let walks = session_of(&client, &walks).await;
        let other = session_of(&client, &harness.connect()).await;
        bursts::judge(&shared, &walks, (other, Some(walker)), &index_config, rng).await?;
        walks.drain().await?;
    }
    if shared.turnover {
        turnover::judge(&shared, &session, &index_config).await?;
    }
    if let Some(rng) = shared.refilling.clone() {
        let other = session_of(&client, &harness.connect()).await;
        refilling::fill_and_refill(&shared, &session, rng.clone()).await?;
        refilling::lend(&shared, &session, other, rng).await?;
    }
    let (report, audit) = walk_unchanged(&indexes, &pool, &session).await?;
    // Where nothing is dropped, nobody has an index open any more.
    let indexes = shared.dropping.then_some(indexes);
    let pool_report = audit.settle(&session, &session.span(OpKind::Maintenance)).await?;
    if let Some(indexes) = indexes {
        dropping::drop_all(&shared, &session, indexes).await?;
    }
    Ok((report, pool_report))
}

/// Two operations create an index of one name at the same time, and the index is dropped. The audit that follows finds what
/// the one without success has left.
async fn create_twice(shared: &Shared, session: &Rc<Session>, index_config: &IndexConfig) -> Result<(), IndexError> {
    const NAME: &str = "twice";
    let create = || AnyIndex::create(session, NAME, index_config);
    let mut created = 0;
    for outcome in join_all([create(), create()]).await {
        match outcome {
            Ok(_) => created += 1,
            Err(IndexError::Pool(PoolError::IndexExists(_) | PoolError::Full { .. } | PoolError::Held { .. })) => {}
            Err(error) => return Err(error),
        }
    }
    if created > 1 {
        shared.fail("two indexes with one name were created".to_owned());
    }
    if created > 0 {
        AnyIndex::drop_named(session, NAME).await?;
    }
    session.drain().await?;
    Ok(())
}

/// The worker that reads what is there in the end.
fn last_worker(shared: &Rc<Shared>, which: Which, index: &Rc<AnyIndex>, endpoint: &Endpoint) -> Worker {
    Worker {
        shared: Rc::clone(shared),
        which,
        index: Rc::clone(index),
        endpoint: endpoint.clone(),
        log: shared.recorder(which).client(LAST),
        rng: SimRng::new(0, WORKERS),
        name: LAST,
        written: 0,
        session: None,
        last: BTreeMap::new(),
        given: Given::default(),
    }
}
