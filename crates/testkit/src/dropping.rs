//! Indexes are dropped: while others work on them, or in the end.
//!
//! Invariants: the first coroutine that has carried out all of its operations drops its index, so nothing is drawn for that;
//! a sudden drop is drawn ahead of each operation, where a run has them. The last client drops what is left. Before a drop has
//! begun, no operation may say that the index has been dropped. When it has completed, nobody finds the index any more, and
//! no operation on it that begins then succeeds. All of its memory is free in the end: by the drop, or, where its client did not
//! live to end it or has given it up, by the last client's reclamation.

use crate::index_under_test::NAMES;
use crate::worker::{Shared, Which, Worker};
use farindex_fabric::OpKind;
use farindex_index::audit::Damage;
use farindex_index::{AnyIndex, IndexError, PointIndex};
use farindex_pool::audit::Audit;
use farindex_pool::{PoolError, Session, catalog};
use farindex_sim::ODDS;
use std::rc::Rc;

/// How far the drop of an index has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Dropping {
    /// Nobody has begun one.
    #[default]
    No,
    /// A client has begun one. If that client crashes, it stays so.
    Begun,
    Done,
}

impl Shared {
    pub(crate) fn drop_of(&self, which: Which) -> Dropping {
        self.drops[which as usize].get()
    }
    /// Does this error say that an index has been dropped, of which that is true?
    pub(crate) fn says_dropped(&self, which: Which, error: &IndexError) -> bool {
        let said = matches!(error, IndexError::Dropped | IndexError::Pool(PoolError::NoSuchIndex(_)));
        said && self.drop_of(which) != Dropping::No
    }
    /// Has a client begun a drop that nobody has ended?
    pub(crate) fn has_unfinished_drop(&self) -> bool {
        self.indexes().any(|which| self.drop_of(which) == Dropping::Begun)
    }

    /// Opens an index, unless it has been dropped.
    pub(crate) async fn open_if_there(
        &self,
        session: &Rc<Session>,
        which: Which,
    ) -> Result<Option<Rc<AnyIndex>>, IndexError> {
        let is_gone = self.drop_of(which) == Dropping::Done;
        match self.open(session, which).await {
            Ok(_) if is_gone => {
                self.fail(format!("the index {} was dropped, and can be opened", NAMES[which as usize]));
                Ok(None)
            }
            Ok(index) => Ok(Some(Rc::new(index))),
            Err(error) if self.says_dropped(which, &error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Worker {
    /// Is the index to be dropped now, although other operations were to follow? One in 48, and most often in the midst of another
    /// client's batch. Half of those that drop are stalled themselves.
    pub(crate) fn drops_suddenly(&mut self) -> bool {
        if !self.shared.sudden || self.shared.drop_of(self.which) != Dropping::No {
            return false;
        }
        let odds = if self.shared.stalling.is_any_stalled() { ODDS / 4 } else { ODDS / 48 };
        let drops = self.rng.chance(odds);
        if drops && self.rng.chance(ODDS / 2) {
            self.shared.stalling.drops(self.name / 10, &mut self.rng);
        }
        drops
    }

    /// After how many polls its drop of the index is given up, if it is: where operations are given up, half of those in the midst of
    /// the run.
    fn patience_of_drop(&mut self) -> u64 {
        let gives_up = self.shared.sudden && self.shared.cancelling > 0 && self.rng.chance(ODDS / 2);
        if !gives_up || self.shared.drop_of(self.which) != Dropping::No || !self.gives_a_write_up() {
            return u64::MAX;
        }
        self.shared.cancelled.set(self.shared.cancelled.get() + 1);
        let order = self.rng.within(0, 8);
        self.rng.below(1 << order)
    }

    /// Drops the index, if that is due and nobody has done it.
    pub(crate) async fn drop_index(&mut self) {
        let polls = self.patience_of_drop();
        let Some(session) = self.session.as_ref().filter(|_| self.shared.dropping_among_others) else { return };
        let drop = &self.shared.drops[self.which as usize];
        if drop.get() != Dropping::No {
            return;
        }
        drop.set(Dropping::Begun);
        let dropping = || AnyIndex::drop_named(session, NAMES[self.which as usize]);
        let dropped = match Self::with_patience(polls, self.shared.lagging, dropping()).await {
            Some(dropped) => dropped,
            None if self.rng.chance(ODDS / 2) => dropping().await,
            None => return,
        };
        let me = format!("client {} ", session.client().slot());
        match dropped {
            Ok(()) => drop.set(Dropping::Done),
            // What one of its own operations has left in the catalog is in nobody's way.
            Err(IndexError::Pool(PoolError::Held { what, holder }))
                if holder.starts_with(&me) && !holder.contains(" or ") =>
            {
                self.shared.fail(format!("dropping the index: {what} is held by this client itself, {holder}"));
            }
            // The operations of a client that is held up, or that waits for clients that have crashed, take longer.
            Err(IndexError::Pool(PoolError::Held { .. }))
                if self.shared.leaves_unfinished() || self.shared.holders_linger() => {}
            Err(error) => _ = self.failed(error, || "dropping the index".to_owned()),
        }
    }
}

/// Drops all indexes that are there, when no other client is there, and judges whether all of their memory is free.
pub(crate) async fn drop_all(
    shared: &Shared,
    session: &Rc<Session>,
    indexes: Vec<(Which, Rc<AnyIndex>)>,
) -> Result<(), IndexError> {
    for (which, index) in indexes {
        // Each of these handles learns of the drop by its first operation after it.
        let of_many = shared.open(session, which).await?;
        let of_walk = shared.open(session, which).await?;
        AnyIndex::drop_named(session, NAMES[which as usize]).await?;
        shared.drops[which as usize].set(Dropping::Done);
        let key = shared.workload.keys().next().cloned().unwrap_or_default();
        let each = async |_: &[u8], _| Ok(());
        let outcomes = [
            ("a get", index.get(&key).await.map(drop)),
            ("a get of many keys", of_many.get_many(&[&key, b"another key"]).await.map(drop)),
            ("a walk", of_walk.visit(each, &mut Damage::fail).await.map(drop)),
        ];
        for (name, outcome) in outcomes {
            if outcome != Err(IndexError::Dropped) {
                shared.fail(format!("{name} of a client that had the index open before its drop: {outcome:?}"));
            }
        }
    }
    if let Some(info) = catalog::list(session.pool(), &session.span(OpKind::Other)).await?.first() {
        shared.fail(format!("the catalog has {} after its drop", info.name));
    }
    session.drain().await?;
    let audit = Audit::begin(session, &session.span(OpKind::Other)).await?;
    let report = audit.settle(session, &session.span(OpKind::Maintenance)).await?;
    for what in report.problems.iter().cloned().chain(report.leak()) {
        shared.fail(format!("pool, after the drop of all indexes: {what}"));
    }
    Ok(())
}
