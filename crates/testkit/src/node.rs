//! A client of a run: registers, starts its coroutines, keeps its lease, leaves when they are done.

use crate::Setup;
use crate::cancelling::Given;
use crate::cluster::{PAIR, SHORT_LEASE, WORKERS, session_of};
use crate::hasty::{ClosingSlot, Haste};
use crate::worker::{Shared, Which, Worker, is_eviction};
use farindex_fabric::{Endpoint, FabricError};
use farindex_index::{AnyIndex, IndexError};
use farindex_pool::{Client, Pool, PoolError, Session};
use farindex_sim::{CrashOutcome, ODDS, Sim, SimRng};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

/// A client that may leave in haste sends so many heartbeats in close succession.
const HASTY_BEATS: u64 = 400;

/// The indexes that a session has opened, those that are there.
type Handles = (Vec<Option<Rc<AnyIndex>>>, Endpoint, Rc<Session>);

/// A client: registers, starts its coroutines, keeps its lease, leaves when they are done.
pub(crate) struct Node {
    pub(crate) shared: Rc<Shared>,
    pub(crate) sim: Weak<Sim>,
    pub(crate) pool: Pool,
    pub(crate) me: farindex_sim::Client,
    pub(crate) number: u64,
    /// Its place in the list of those whom audits of the pool may meet.
    pub(crate) member: usize,
    pub(crate) rng: SimRng,
    pub(crate) setup: Setup,
    /// How it leaves, if that may be in haste.
    pub(crate) haste: Option<Rc<Haste>>,
}

impl Node {
    pub(crate) async fn run(mut self, spawn: impl Fn(Worker, u64, u32, Rc<Cell<u64>>)) {
        if let Err(error) = self.try_run(spawn).await
            && !(self.shared.crashes && is_eviction(&error))
        {
            self.shared.fail(format!("client {}: {error}", self.number));
        }
        self.shared.auditing.leaves(self.member);
    }

    async fn try_run(&mut self, spawn: impl Fn(Worker, u64, u32, Rc<Cell<u64>>)) -> Result<(), IndexError> {
        let endpoint = self.me.connect();
        if self.shared.crashes && self.number > 1 && self.rng.chance(ODDS / 2) {
            // Another client may have crashed by then.
            let pause = self.rng.tail(27);
            endpoint.sleep(Duration::from_nanos(pause)).await;
        } else if self.setup.joining && self.number > 1 {
            // In the midst of what the first client does.
            let pause = self.rng.tail(20);
            endpoint.sleep(Duration::from_nanos(pause)).await;
        }
        let client = Client::register(&self.pool, self.me.identity(), &endpoint).await?;
        self.shared.auditing.has_registered(self.member);
        let working = Rc::new(Cell::new(0));
        let coroutines = self.rng.within(self.setup.coroutines.0, self.setup.coroutines.1);
        let one_session = self.rng.chance(ODDS * 2 / 3);
        let pause = self.rng.within(8, 20) as u32;
        let one_session = one_session || self.setup.one_session;
        let mut handles: Option<Handles> = None;
        let mut whose = SimRng::new(self.rng.clone().word(), PAIR);
        for coroutine in 0..coroutines {
            if handles.is_none() || !one_session {
                let endpoint = self.me.connect();
                let session = session_of(&client, &endpoint).await;
                let mut indexes = Vec::new();
                for which in self.shared.indexes() {
                    indexes.push(self.shared.open_if_there(&session, which).await?);
                }
                handles = Some((indexes, endpoint, session));
            }
            let which = if self.shared.pair && whose.chance(ODDS / 2) { Which::Other } else { Which::One };
            let Some((indexes, endpoint, session)) = handles.clone() else { continue };
            let Some(index) = indexes.get(which as usize).cloned().flatten() else { continue };
            let name = self.number * 10 + coroutine;
            let worker = Worker {
                shared: Rc::clone(&self.shared),
                which,
                index,
                endpoint,
                log: self.shared.recorder(which).client(self.number),
                rng: SimRng::new(self.rng.word(), WORKERS + name),
                name,
                written: 0,
                session: Some(session),
                last: BTreeMap::new(),
                given: Given::default(),
            };
            let operations = self.rng.within(self.setup.operations.0, self.setup.operations.1);
            working.set(working.get() + 1);
            spawn(worker, operations, pause, Rc::clone(&working));
        }
        drop(handles);
        self.me.error_odds(self.setup.failing);
        self.me.lag_odds(self.setup.lagging.0, self.setup.lagging.1);
        let beat = self.rng.within(10, 19) as u32;
        let mut beats = 0;
        while working.get() > 0 {
            let beaten = match &self.haste {
                Some(haste) => haste.tick(&client, &endpoint).await,
                None => client.tick(&endpoint).await,
            };
            match beaten {
                // The next one does it.
                Err(PoolError::Fabric(error)) if self.shared.failing && error != FabricError::Revoked => {}
                beaten => beaten?,
            }
            beats += 1;
            if client.keeps_lease(endpoint.now()) && self.me.is_revoked() {
                let what = format!("client {} was evicted, and counts as one that keeps its lease", self.number);
                self.shared.failures.borrow_mut().push(what);
            }
            let pause = Duration::from_nanos(1000 + self.rng.tail(beat));
            // Where clients wait for whole leases, ticks that are much more frequent only cost time.
            let waits = self.shared.crashes || self.pool.lease() <= SHORT_LEASE;
            let often = self.haste.is_some() && beats < HASTY_BEATS;
            let least = if waits && !often { self.pool.lease() / 500 } else { Duration::ZERO };
            endpoint.sleep(pause.max(least)).await;
        }
        self.me.error_odds(0);
        if self.shared.vanishing {
            // Its process ends without a word.
            self.me.crash(CrashOutcome::Landed);
            endpoint.sleep(Duration::from_nanos(1)).await;
        }
        self.shared.failures.borrow_mut().extend(self.shared.judge_lock_table(&client));
        self.shared.auditing.leaves(self.member);
        let slot = ClosingSlot::of(&client);
        client.close(&endpoint).await?;
        if let Some(sim) = self.sim.upgrade().filter(|_| !self.me.is_revoked()) {
            self.shared.failures.borrow_mut().extend(slot.judge(&sim, &self.pool));
        }
        self.shared.closed.borrow_mut().insert(self.number);
        Ok(())
    }
}
