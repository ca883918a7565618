//! Names come and go in the catalog: clients create, find, list, open and drop indexes of a few names at the same time.
//!
//! Invariants: a name has a history of its own, in which a creation is an insert, a drop a removal, and a search a get, so the
//! checker decides whether the catalog is right. A name is there from when its index has been created until it is marked as being
//! dropped. A drop that fails or is given up later stays open. Nobody writes to these indexes. Clients finish the drops of
//! others, as a repair does, whether their clients are at work or not. In the end the last client drops what is left, ahead
//! of all audits.

use crate::worker::{LAST, Shared, Worker};
use crate::workload::Op;
use farindex_check::{Call, Outcome, Recorder};
use farindex_fabric::{Endpoint, OpKind};
use farindex_index::{AnyIndex, IndexConfig, IndexError, PointIndex};
use farindex_pool::{PoolError, Session, catalog};
use farindex_sim::ODDS;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// So few that clients meet.
const NAMES: [&str; 4] = ["one that comes and goes", "another one", "a third one", "a fourth one"];
/// What the history says of a name that is there.
const THERE: &[u8] = b"there";

/// What a client asks of the catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asks {
    Create,
    Drop,
    /// It opens the index that it finds.
    Open,
    List,
}

impl Asks {
    fn call(self, name: &str) -> Call {
        let key = name.as_bytes().to_vec();
        match self {
            Asks::Create => Call::Insert { key, value: THERE.to_vec() },
            Asks::Drop => Call::Remove { key },
            Asks::Open | Asks::List => Call::Get { key },
        }
    }

    /// Does it.
    async fn carry_out(self, session: &Rc<Session>, name: &str, config: &IndexConfig) -> Result<Outcome, IndexError> {
        let seen = |is_there: bool| Outcome::Value(is_there.then(|| THERE.to_vec()));
        let done = match self {
            Asks::Create => AnyIndex::create(session, name, config).await.map(|_| Outcome::Inserted),
            Asks::Drop => AnyIndex::drop_named(session, name).await.map(|()| Outcome::Removed),
            Asks::Open => match AnyIndex::open(session, name).await {
                // It may have been dropped since.
                Ok(index) => match index.get(b"never there").await {
                    Ok(Some(value)) => Ok(Outcome::Value(Some(value.to_vec()))),
                    Ok(None) | Err(IndexError::Dropped) => Ok(seen(true)),
                    Err(error) => Err(error),
                },
                Err(error) => Err(error),
            },
            Asks::List => {
                let list = catalog::list(session.pool(), &session.span(OpKind::Other)).await?;
                Ok(seen(list.iter().any(|info| info.name == name && !info.dropping)))
            }
        };
        match (self, done) {
            (Asks::Create, Err(IndexError::Pool(PoolError::IndexExists(_)))) => Ok(Outcome::Exists),
            (asks, Err(IndexError::Dropped | IndexError::Pool(PoolError::NoSuchIndex(_)))) => Ok(match asks {
                // It was created, and another client has dropped it since.
                Asks::Create => Outcome::Inserted,
                Asks::Drop => Outcome::Absent,
                Asks::Open | Asks::List => seen(false),
            }),
            (_, done) => done,
        }
    }
}

/// Is this a name of an index that comes and goes?
pub(crate) fn comes_and_goes(name: &str) -> bool {
    NAMES.contains(&name)
}

/// The names of a run.
pub(crate) struct Naming {
    odds: u32,
    config: IndexConfig,
    recorder: Recorder,
    asked: Cell<u64>,
}

impl Naming {
    /// With these odds ahead of an operation.
    pub(crate) fn new(odds: u32, config: IndexConfig) -> Self {
        Naming { odds, config, recorder: Recorder::new(), asked: Cell::new(0) }
    }
    /// The history, and how many times a client has asked; `None` if there are no such indexes.
    pub(crate) fn recorded(&self) -> Option<(&Recorder, u64)> {
        (self.odds > 0).then_some((&self.recorder, self.asked.get()))
    }
}

impl Worker {
    /// Asks something of the catalog, if that is drawn; `false` if the client has lost its lease.
    pub(crate) async fn name(&mut self) -> bool {
        let odds = self.shared.naming.odds;
        if odds == 0 || !self.rng.chance(odds) {
            return true;
        }
        let Some(session) = self.session.clone() else { return true };
        let shared = Rc::clone(&self.shared);
        shared.naming.asked.set(shared.naming.asked.get() + 1);
        if self.rng.chance(ODDS / 8) {
            return match finish_drops(&shared, &session).await {
                Err(error) => self.name_failed(error, || "finishing the drops of others".to_owned()),
                Ok(()) => true,
            };
        }
        let asks = self.rng.pick(&[Asks::Create, Asks::Create, Asks::Drop, Asks::Drop, Asks::Open, Asks::List]);
        let (asks, name) = (asks.unwrap_or(Asks::Create), self.rng.pick(&NAMES).unwrap_or(NAMES[0]));
        let polls = match self.patience(if asks == Asks::List { Op::Get } else { Op::Upsert }) {
            u64::MAX => u64::MAX,
            _ => {
                let order = self.rng.within(0, 8);
                self.rng.below(1 << order)
            }
        };
        let mut log = shared.naming.recorder.client(self.client());
        let ticket = log.invoke(asks.call(name), shared.stamp(&self.endpoint));
        let asking = asks.carry_out(&session, name, &shared.naming.config);
        let Some(answer) = Self::with_patience(polls, shared.lagging, asking).await else { return true };
        match answer {
            Ok(outcome) => log.complete(ticket, shared.stamp(&self.endpoint), outcome),
            Err(IndexError::Pool(PoolError::Full { .. })) if asks == Asks::Create => log.cancel(ticket),
            Err(error) => return self.name_failed(error, || format!("{asks:?} {name:?}")),
        }
        true
    }

    /// Handles an error of the catalog; `false` if the client has lost its lease.
    fn name_failed(&self, error: IndexError, doing: impl FnOnce() -> String) -> bool {
        match error {
            IndexError::Pool(PoolError::Held { .. })
                if self.shared.leaves_unfinished() || self.shared.holders_linger() =>
            {
                true
            }
            error => self.failed(error, doing),
        }
    }
}

/// Finishes the drops that have begun. What they drop is not in the catalog any more then.
async fn finish_drops(shared: &Shared, session: &Rc<Session>) -> Result<(), IndexError> {
    let span = session.span(OpKind::Other);
    let mut dropping = catalog::list(session.pool(), &span).await?;
    dropping.retain(|info| info.dropping);
    AnyIndex::finish_drops(session).await?;
    for info in catalog::list(session.pool(), &span).await? {
        if dropping.iter().any(|other| other.uid == info.uid) {
            shared.fail(format!("an index whose drop was finished is in the catalog: {info:?}"));
        }
    }
    Ok(())
}

/// The last client ends the drops of others, looks for each name, and drops what is there.
pub(crate) async fn end(shared: &Shared, session: &Rc<Session>, endpoint: &Endpoint) -> Result<(), IndexError> {
    let Some((recorder, _)) = shared.naming.recorded() else { return Ok(()) };
    AnyIndex::finish_drops(session).await?;
    let list = catalog::list(session.pool(), &session.span(OpKind::Other)).await?;
    if list.iter().map(|info| &info.name).collect::<BTreeSet<_>>().len() < list.len() {
        shared.fail(format!("two indexes have one name: {list:?}"));
    }
    let mut log = recorder.client(LAST);
    for name in NAMES {
        for asks in [Asks::Open, Asks::Drop, Asks::Open] {
            let ticket = log.invoke(asks.call(name), shared.stamp(endpoint));
            let outcome = asks.carry_out(session, name, &shared.naming.config).await?;
            log.complete(ticket, shared.stamp(endpoint), outcome);
        }
    }
    Ok(())
}
