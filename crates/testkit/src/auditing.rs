//! Audits of the whole pool while clients come and go, as `farindex pool check` makes them.
//!
//! Invariants: one client more audits the pool, and another one only comes and goes. One audit is aimed: it ends only after the
//! last of the others has begun to leave.
//! An audit that says that it was alone is wrong if a client was registered at some moment between the return of
//! [`Audit::begin`] and the call by which the audit ends. A client counts from when its registration has returned
//! until it begins to leave; one that has crashed or was evicted does not count at all, because its slot may be free.

use crate::commanding::Effect;
use crate::naming;
use crate::worker::{Shared, is_eviction};
use farindex_fabric::{Endpoint, OpKind};
use farindex_index::{AnyIndex, IndexError};
use farindex_pool::audit::Audit;
use farindex_pool::{Client, Pool, PoolError, Session, catalog};
use farindex_sim::{ODDS, SimRng};
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// Numbers of the two clients, which no other client has.
const AUDITOR: u64 = 90;
const VISITOR: u64 = 91;
/// The longest pauses: before an audit, and of the client that only comes and goes. As exponents of nanoseconds.
const PAUSE: u32 = 22;
const SHORT_PAUSE: u32 = 12;
/// For how long an aimed audit waits until the last client has left.
const LEAVING: Duration = Duration::from_millis(2);
/// Audits at any moments, before the one that is aimed.
const AUDITS: u64 = 3;

/// How far a client has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Coming,
    Registered,
    /// It leaves, or has left.
    Leaving,
}

struct Member {
    me: farindex_sim::Client,
    stage: Stage,
}

impl Member {
    /// May its slot be free although it has not left?
    fn is_lost(&self) -> bool {
        self.me.has_crashed() || self.me.is_revoked()
    }
}

/// The clients that audits may meet.
#[derive(Default)]
pub(crate) struct Auditing {
    members: RefCell<Vec<Member>>,
    /// Members, in the order in which they have registered.
    registered: RefCell<Vec<usize>>,
    audits: Cell<u64>,
    alone: Cell<u64>,
}

impl Auditing {
    /// Audits that have ended, and those of them that were alone.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.audits.get(), self.alone.get())
    }
    /// A client that is about to register. Returns its place in the list.
    pub(crate) fn expect(&self, me: &farindex_sim::Client) -> usize {
        let mut members = self.members.borrow_mut();
        members.push(Member { me: me.clone(), stage: Stage::Coming });
        members.len() - 1
    }
    pub(crate) fn has_registered(&self, member: usize) {
        self.members.borrow_mut()[member].stage = Stage::Registered;
        self.registered.borrow_mut().push(member);
    }
    pub(crate) fn leaves(&self, member: usize) {
        self.members.borrow_mut()[member].stage = Stage::Leaving;
    }

    /// Members that have not left, are not lost, and are registered or may still register.
    fn left(&self) -> usize {
        let members = self.members.borrow();
        members.iter().filter(|member| member.stage != Stage::Leaving && !member.is_lost()).count()
    }
    fn present(&self) -> Vec<usize> {
        let members = self.members.borrow();
        (0..members.len()).filter(|member| members[*member].stage == Stage::Registered).collect()
    }
    /// Is there a client, of those that are not lost, that was `present` when an audit began, or has registered since?
    fn has_disturbed(&self, present: &[usize], registered_before: usize, registered_now: usize) -> bool {
        let (members, registered) = (self.members.borrow(), self.registered.borrow());
        let since = registered.get(registered_before..registered_now).unwrap_or_default();
        present.iter().chain(since).any(|member| !members[*member].is_lost())
    }
}

/// Does something, and lets the client keep its lease meanwhile.
async fn with_heartbeats<T>(
    client: &Client,
    endpoint: &Endpoint,
    pause: Duration,
    work: impl Future<Output = Result<T, IndexError>>,
) -> Result<T, IndexError> {
    let beats = async {
        loop {
            client.tick(endpoint).await?;
            endpoint.sleep(pause).await;
        }
    };
    let (mut work, mut beats) = (pin!(work), pin!(beats));
    poll_fn(|cx| {
        if let Poll::Ready(done) = work.as_mut().poll(cx) {
            return Poll::Ready(done);
        }
        let beaten: Poll<Result<(), PoolError>> = beats.as_mut().poll(cx);
        beaten.map(|ended| Err(ended.err().unwrap_or(PoolError::LeaseLost).into()))
    })
    .await
}

/// An audit that has seen everything.
struct Walked {
    audit: Audit,
    /// Who was there when it began, and how many had registered by then.
    present: Vec<usize>,
    before: usize,
    /// It has found no problem in an index.
    is_sound: bool,
}

/// A client that audits the pool.
pub(crate) struct Auditor {
    pub(crate) shared: Rc<Shared>,
    pub(crate) pool: Pool,
    pub(crate) me: farindex_sim::Client,
    pub(crate) rng: SimRng,
}

impl Auditor {
    /// Audits the pool a few times, then while the last other client leaves, and at last when all others have gone.
    pub(crate) async fn run(mut self) {
        let endpoint = self.me.connect();
        if let Err(error) = self.all(&endpoint).await
            && !(self.shared.crashes && is_eviction(&error))
        {
            self.shared.fail(format!("client {AUDITOR}, which audits the pool: {error}"));
        }
    }

    async fn all(&mut self, endpoint: &Endpoint) -> Result<(), IndexError> {
        for _ in 0..self.rng.within(0, AUDITS) {
            endpoint.sleep(Duration::from_nanos(self.rng.tail(PAUSE))).await;
            self.visit(endpoint, false).await?;
        }
        self.wait_until_left(endpoint, 1).await;
        self.visit(endpoint, true).await?;
        self.wait_until_left(endpoint, 0).await;
        self.visit(endpoint, false).await
    }

    /// Waits until so many others are left at most.
    async fn wait_until_left(&self, endpoint: &Endpoint, most: usize) {
        // A look costs no verb, but time.
        let pause = (self.pool.lease() / 500).min(Duration::from_micros(20));
        while self.shared.auditing.left() > most {
            endpoint.sleep(pause).await;
        }
    }

    /// Registers, audits the pool, and leaves.
    async fn visit(&mut self, endpoint: &Endpoint, is_aimed: bool) -> Result<(), IndexError> {
        let client = Client::register(&self.pool, self.me.identity(), endpoint).await?;
        // A second endpoint for heartbeats: a session waits for its own verbs.
        let beats = self.me.connect();
        let pause = (self.pool.lease() / 100).min(Duration::from_millis(1));
        let audited = with_heartbeats(&client, &beats, pause, async {
            let session = Rc::new(client.session(endpoint.clone()));
            self.audit(&session, is_aimed).await?;
            endpoint.settle().await;
            Ok(())
        })
        .await;
        beats.settle().await;
        audited?;
        client.close(endpoint).await?;
        Ok(())
    }

    /// One audit, and what is wrong with it. If it is aimed, the last of the others leaves meanwhile.
    async fn audit(&mut self, session: &Rc<Session>, is_aimed: bool) -> Result<(), IndexError> {
        let shared = Rc::clone(&self.shared);
        let reclaims = self.rng.chance(ODDS / 2);
        let span = session.span(OpKind::Maintenance);
        let mut indexes = Vec::new();
        for which in shared.indexes() {
            indexes.extend(shared.open_if_there(session, which).await?.map(|index| (which, index)));
        }
        let begun: Vec<_> =
            indexes.iter().map(|(which, _)| shared.commanding.begin(*which, AUDITOR, Effect::Takes)).collect();
        let walked = self.walk(session, &indexes, reclaims).await;
        let Some(Walked { audit, present, before, is_sound }) = self.tolerate(walked)? else { return Ok(()) };
        // Their handles keep memory.
        drop(indexes);
        if is_aimed {
            self.wait_until_left(session.endpoint(), 0).await;
            // The last one leaves now, which takes some round trips and perhaps epochs.
            session.endpoint().sleep(LEAVING + Duration::from_nanos(self.rng.tail(PAUSE))).await;
        }
        let now = shared.auditing.registered.borrow().len();
        // Of an index that is not sound, the audit may have missed objects.
        let (alone, wrong) = if reclaims && is_sound {
            let reclaimed = audit.reclaim(session, &span).await?;
            let bytes = reclaimed.bytes;
            (reclaimed.alone, (bytes > 0).then(|| format!("{bytes} bytes were lost although no client has crashed")))
        } else {
            let report = audit.settle(session, &span).await?;
            let wrong = report.problems.first().cloned().or_else(|| report.leak());
            (report.alone, wrong)
        };
        if alone && shared.auditing.has_disturbed(&present, before, now) {
            shared
                .fail("pool: an audit says that it was alone, and another client was registered meanwhile".to_owned());
        }
        if let Some(wrong) = wrong.filter(|_| !shared.leaves_unfinished()) {
            shared.fail(format!("pool, an audit among others: {wrong}"));
        }
        begun.into_iter().for_each(|begun| shared.commanding.end(begun));
        shared.auditing.audits.set(shared.auditing.audits.get() + 1);
        shared.auditing.alone.set(shared.auditing.alone.get() + u64::from(alone));
        Ok(())
    }

    /// Walks over everything in the pool. Before it reclaims, it recovers. But a client may crash behind the recovery. So if no
    /// other one is at work, what is unfinished is a problem, and nothing is reclaimed.
    async fn walk(
        &self,
        session: &Rc<Session>,
        indexes: &[(crate::worker::Which, Rc<AnyIndex>)],
        reclaims: bool,
    ) -> Result<Walked, IndexError> {
        if reclaims && self.shared.leaves_unfinished() {
            for (_, index) in indexes {
                index.recover().await?;
            }
            session.drain().await?;
        }
        session.flush().await?;
        let span = session.span(OpKind::Other);
        let mut audit = Audit::begin(session, &span).await?;
        let auditing = &self.shared.auditing;
        let (present, before) = (auditing.present(), auditing.registered.borrow().len());
        let alone = reclaims && audit.undisturbed(session, &span).await?;
        let mut indexes: Vec<_> = indexes.iter().map(|(_, index)| Rc::clone(index)).collect();
        for info in catalog::list(session.pool(), &span).await? {
            audit.reach(info.root, session.pool().nodes().len() as u64 * 8, "a list of roots");
            if info.dropping {
                return Err(IndexError::Dropped);
            }
            if naming::comes_and_goes(&info.name) {
                match AnyIndex::open_info(session, &info).await {
                    Err(IndexError::Pool(PoolError::NoSuchIndex(_))) => return Err(IndexError::Dropped),
                    opened => indexes.push(Rc::new(opened?)),
                }
            }
        }
        let mut is_sound = true;
        for index in &indexes {
            for problem in index.audit(&mut audit, alone).await?.problems {
                is_sound = false;
                // Others that have come meanwhile have unfinished changes.
                let is_judged = !alone || audit.undisturbed(session, &span).await?;
                if is_judged && !self.shared.leaves_unfinished() && !self.shared.holders_linger() {
                    self.shared.fail(format!("an audit of the pool: {problem}"));
                }
            }
        }
        Ok(Walked { audit, present, before, is_sound })
    }

    /// A walk may fail where an index is being dropped, or where locks stay held. `None`: it has.
    fn tolerate<T>(&self, walked: Result<T, IndexError>) -> Result<Option<T>, IndexError> {
        match walked {
            Ok(walked) => Ok(Some(walked)),
            Err(error) if is_eviction(&error) => Err(error),
            Err(IndexError::Dropped) if self.shared.dropping || self.shared.naming.recorded().is_some() => Ok(None),
            Err(_) if self.shared.leaves_unfinished() || self.shared.holders_linger() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Comes and goes, and does nothing else.
pub(crate) async fn register_and_leave(shared: Rc<Shared>, pool: Pool, me: farindex_sim::Client, mut rng: SimRng) {
    let endpoint = me.connect();
    for _ in 0..rng.within(1, 6) {
        endpoint.sleep(Duration::from_nanos(rng.tail(PAUSE))).await;
        let visited = async {
            let client: Arc<Client> = Client::register(&pool, me.identity(), &endpoint).await?;
            let member = shared.auditing.expect(&me);
            shared.auditing.has_registered(member);
            endpoint.sleep(Duration::from_nanos(rng.tail(SHORT_PAUSE))).await;
            shared.auditing.leaves(member);
            client.close(&endpoint).await
        };
        match visited.await.map_err(IndexError::from) {
            Ok(()) => {}
            Err(error) if shared.crashes && is_eviction(&error) => return,
            Err(error) => return shared.fail(format!("client {VISITOR}, which comes and goes: {error}")),
        }
    }
}
