//! One simulated client: a process with its own connections and coroutines, which can die, freeze and come back.

use crate::CrashOutcome;
use crate::fabric::{Shared, SimFabric};
use crate::world::{Death, Life, World};
use farindex_fabric::{Endpoint, Fabric, Identity};
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// A client of the simulation. Clones are the same client; coroutines may hold one, of their own client or another's.
#[derive(Clone)]
pub struct Client {
    shared: Rc<Shared>,
    id: u32,
    identity: Identity,
}

impl Client {
    pub(crate) fn new(shared: Rc<Shared>, id: u32) -> Self {
        let identity = shared.new_identity();
        Client { shared, id, identity }
    }
    /// Its number: 1 for the first. 0 is the harness.
    pub fn id(&self) -> u32 {
        self.id
    }
    /// What it is to the fabric, unless library code takes fresh identities from [`fabric`](Self::fabric).
    pub fn identity(&self) -> Identity {
        self.identity
    }
    /// A new connection under its identity.
    pub fn connect(&self) -> Endpoint {
        self.shared.connect(self.id, &self.identity)
    }
    /// The fabric as this client sees it: connections made through it are this client's, and die with it.
    pub fn fabric(&self) -> Arc<dyn Fabric> {
        Arc::new(SimFabric::new(&self.shared, self.id))
    }
    /// Kills it at once, or, from inside its own coroutine, when that next waits. It is never polled again; what it had
    /// in flight meets its crash_outcome.
    pub fn crash(&self, crash_outcome: CrashOutcome) {
        self.shared.world.borrow_mut().die(self.id, Death { crash_outcome, at: None });
    }
    /// It dies at its `verb`-th verb from the beginning (the first is 1), when the coroutine that posted it next waits.
    pub fn crash_at(&self, verb: u64, crash_outcome: CrashOutcome) {
        self.state(|state| state.crash_at = Some((verb, crash_outcome)));
    }
    /// It dies in its `batch`-th batch (the first is 1) of at least three verbs that has both WRITEs and atomics, at a verb
    /// that the seed draws: in the midst of changing what others share.
    pub fn crash_in_batch(&self, batch: u64, crash_outcome: CrashOutcome) {
        self.state(|state| state.crash_in_batch = Some((batch, crash_outcome)));
    }
    /// Each of its verbs is its last with these odds (out of [`ODDS`](crate::ODDS)).
    pub fn crash_odds(&self, odds: u32) {
        self.state(|state| state.crash_odds = odds);
    }
    /// At each of its batches it freezes with these odds (out of [`ODDS`](crate::ODDS)), for a time whose order of
    /// magnitude is drawn, below 2 to `exponent` nanoseconds.
    pub fn freeze_odds(&self, odds: u32, exponent: u32) {
        self.state(|state| state.freeze_odds = (odds, exponent));
    }
    /// Stops it for a while: its coroutines are not polled, its verbs in flight go on.
    pub fn freeze(&self, pause: Duration) {
        let mut world = self.shared.world.borrow_mut();
        let until = world.now.saturating_add(u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX));
        world.freeze(self.id, until);
    }
    /// Lets a frozen client run again.
    pub fn resume(&self) {
        self.shared.world.borrow_mut().resume(self.id);
    }
    /// Is it dead?
    pub fn has_crashed(&self) -> bool {
        self.shared.world.borrow().has_crashed(self.id)
    }
    /// Verbs it has posted.
    pub fn verbs(&self) -> u64 {
        self.shared.world.borrow().clients[self.id as usize].verbs
    }
    /// Batches it has posted.
    pub fn batches(&self) -> u64 {
        self.shared.world.borrow().clients[self.id as usize].batches
    }
    fn state(&self, change: impl FnOnce(&mut crate::world::ClientState)) {
        let mut world = self.shared.world.borrow_mut();
        // The harness is immortal.
        if self.id != 0 {
            change(&mut world.clients[self.id as usize]);
        }
    }
}

/// A coroutine of a client: polled only while its client runs.
pub(crate) struct Guarded<F: Future> {
    pub(crate) world: Rc<RefCell<World>>,
    pub(crate) client: u32,
    pub(crate) future: Pin<Box<F>>,
    pub(crate) result: Rc<RefCell<Option<F::Output>>>,
}

impl<F: Future> Future for Guarded<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        {
            let mut world = this.world.borrow_mut();
            let state = &mut world.clients[this.client as usize];
            match state.life {
                Life::Running => world.current = Some(this.client),
                Life::Frozen(_) => {
                    state.parked.push(cx.waker().clone());
                    return Poll::Pending;
                }
                Life::Dead => return Poll::Pending,
            }
        }
        let polled = this.future.as_mut().poll(cx);
        let mut world = this.world.borrow_mut();
        let finished = match polled {
            Poll::Ready(value) => {
                *this.result.borrow_mut() = Some(value);
                world.clients[this.client as usize].open_tasks -= 1;
                world.open_tasks -= 1;
                Poll::Ready(())
            }
            Poll::Pending => Poll::Pending,
        };
        world.leave(this.client);
        finished
    }
}
