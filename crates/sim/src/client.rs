//! One simulated client: a process with its own connections and coroutines, which can crash, freeze and resume.

use crate::client_state::{Batches, ClientState, Crash, CrashInBatch, CrashOutcome, RunState};
use crate::fabric::{Shared, SimFabric};
use crate::stall::Stall;
use crate::world::World;
use farindex_fabric::{Cold, Endpoint, Fabric, Identity};
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Handle to a client of the simulation. Clones are the same client; a coroutine may hold handles to its own client and
/// to others.
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
    /// The client's number: 1 for the first. 0 is the harness.
    pub fn id(&self) -> u32 {
        self.id
    }
    /// The client's identity on the fabric. Library code that takes identities from [`fabric`](Self::fabric) gets
    /// others.
    pub fn identity(&self) -> Identity {
        self.identity
    }
    /// Makes a new connection under the client's identity.
    pub fn connect(&self) -> Endpoint {
        self.shared.connect(self.id, &self.identity)
    }
    /// The fabric as this client sees it: connections made through it belong to this client and end with its crash.
    pub fn fabric(&self) -> Arc<dyn Fabric> {
        Arc::new(SimFabric::new(&self.shared, self.id))
    }
    /// Crashes the client at once, or, from inside its own coroutine, when that coroutine next waits. The client is
    /// never polled again; `outcome` says what happens to its verbs in flight.
    pub fn crash(&self, outcome: CrashOutcome) {
        self.shared.world.borrow_mut().crash(self.id, Crash { outcome, at: None });
    }
    /// Schedules a crash at the client's `verb`-th verb from its beginning (the first is 1). The crash takes effect
    /// when the coroutine that posted the verb next waits.
    pub fn crash_at(&self, verb: u64, outcome: CrashOutcome) {
        self.set(|state| state.crash_at = Some((verb, outcome)));
    }
    /// Schedules a crash in the client's `batch`-th batch (the first is 1) of at least three verbs that has both WRITEs
    /// and atomics, at a verb that the seed draws. Such a batch changes what clients share.
    pub fn crash_in_batch(&self, batch: u64, outcome: CrashOutcome) {
        self.set(|state| state.crash_in_batch = Some(CrashInBatch { left: batch, of: Batches::Changes, outcome }));
    }
    /// Schedules a crash in the client's `batch`-th batch (the first is 1) of at least `verbs` verbs, of which one is a WRITE,
    /// at a verb that the seed draws: a split, a merge, a move or a displacement.
    pub fn crash_in_long_batch(&self, batch: u64, verbs: usize, outcome: CrashOutcome) {
        self.set(|state| state.crash_in_batch = Some(CrashInBatch { left: batch, of: Batches::Long(verbs), outcome }));
    }
    /// Lets the client crash at each of its verbs with these odds (out of [`ODDS`](crate::ODDS)).
    pub fn crash_odds(&self, odds: u32) {
        self.set(|state| state.crash_odds = odds);
    }
    /// Lets the client freeze at each of its batches with these odds (out of [`ODDS`](crate::ODDS)). The order of
    /// magnitude of each pause is drawn; pauses are shorter than 2 to `exponent` nanoseconds.
    pub fn freeze_odds(&self, odds: u32, exponent: u32) {
        self.set(|state| state.freeze_odds = (odds, exponent));
    }
    /// Lets each of the client's batches fail with these odds (out of [`ODDS`](crate::ODDS)): any part of it takes effect, perhaps
    /// after the error (N7).
    pub fn error_odds(&self, odds: u32) {
        self.set(|state| state.error_odds = odds);
    }
    /// Lets each part of a batch whose coroutine has given it up take effect late with these odds (out of
    /// [`ODDS`](crate::ODDS)), by less than 2 to `exponent` nanoseconds.
    pub fn lag_odds(&self, odds: u32, exponent: u32) {
        self.set(|state| state.lag_odds = (odds, exponent));
    }
    /// Stalls the client once: it is stopped between two verbs of a batch until [`end_stall`](Self::end_stall), or as long as
    /// the stall may last. Replaces a stall that has not begun.
    pub fn stall(&self, stall: Stall) {
        if self.id != 0 {
            self.shared.world.borrow_mut().arm_stall(self.id, Some(stall));
        }
    }
    /// Returns whether the client is stalled now.
    pub fn is_stalled(&self) -> bool {
        self.shared.world.borrow().is_stalled(self.id)
    }
    /// Number of stalls of the client that have begun.
    pub fn stalls(&self) -> u32 {
        self.shared.world.borrow().stalls(self.id)
    }
    /// Lets a stalled client go on, and drops a stall that has not begun.
    pub fn end_stall(&self) {
        let mut world = self.shared.world.borrow_mut();
        world.arm_stall(self.id, None);
        world.end_stall(self.id, None);
    }
    /// Stops the client for a while: its coroutines are not polled, its verbs in flight proceed.
    pub fn freeze(&self, pause: Duration) {
        let mut world = self.shared.world.borrow_mut();
        let until = world.now.saturating_add(u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX));
        world.freeze(self.id, until);
    }
    /// Lets a frozen client run again.
    pub fn resume(&self) {
        self.shared.world.borrow_mut().resume(self.id);
    }
    /// Returns whether the client has crashed.
    pub fn has_crashed(&self) -> bool {
        self.shared.world.borrow().has_crashed(self.id)
    }
    /// Returns whether the client was revoked on any memory node.
    pub fn is_revoked(&self) -> bool {
        self.shared.world.borrow().nodes.iter().any(|node| node.revoked.contains(&self.identity.token))
    }
    /// Number of verbs that the client has posted.
    pub fn verbs(&self) -> u64 {
        self.shared.world.borrow().clients[self.id as usize].verbs
    }
    /// Number of batches that the client has posted.
    pub fn batches(&self) -> u64 {
        self.shared.world.borrow().clients[self.id as usize].batches
    }
    fn set(&self, change: impl FnOnce(&mut ClientState)) {
        let mut world = self.shared.world.borrow_mut();
        // The harness neither crashes nor freezes.
        if self.id != 0 {
            change(&mut world.clients[self.id as usize]);
        }
    }
}

/// A coroutine of a client, polled only while the client runs.
pub(crate) struct ClientTask<T> {
    pub(crate) world: Rc<RefCell<World>>,
    pub(crate) client: u32,
    pub(crate) future: Cold<'static, T>,
    pub(crate) result: Rc<RefCell<Option<T>>>,
}

impl<T> Future for ClientTask<T> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        {
            let mut world = this.world.borrow_mut();
            let state = &mut world.clients[this.client as usize];
            match state.run_state {
                RunState::Running => world.current = Some(this.client),
                RunState::Frozen(_) => {
                    state.parked.push(cx.waker().clone());
                    return Poll::Pending;
                }
                RunState::Crashed => return Poll::Pending,
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
        world.end_poll(this.client);
        finished
    }
}
