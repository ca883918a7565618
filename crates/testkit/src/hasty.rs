//! Clients that leave in haste, and heartbeats that are given up, as by `select!` around the loop that sends them.
//!
//! Invariants: a heartbeat that was dropped leaves what it had begun to the next one; one that goes on late has the effects of a
//! slow one. When a client leaves in haste, its coroutines are dropped one after the other, wherever they are, with their
//! handles; nothing waits for the verbs that they have posted, and then the client closes. Their operations stay open in the
//! history. What they leave is that of operations that are given up (`docs/async.md`).
//!
//! The judge of slots looks at the slot of each client that has closed: when the client has freed its slot, none of
//! its intents is declared there any more, unless its lock was abandoned. Otherwise others take a lock over while
//! verbs of its former holder may still land. And no two declarations of a client have the same number (I2 of
//! `farindex_pool::intent`).

use crate::cancelling::within;
use farindex_fabric::{Endpoint, NodeId};
use farindex_pool::layout::ClientSlot;
use farindex_pool::{Client, Pool, PoolError};
use farindex_sim::{ODDS, Sim, SimRng};
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::mem::offset_of;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// Polls of a heartbeat before it is given up, at most. Those that carry something out for an index take so many.
const POLLS: u64 = 24;
/// Polls of a coroutine between the decision to leave and its end, at most.
const LAST_POLLS: u64 = 24;
/// A client that leaves in haste waits so many times at most for a heartbeat that it can give up in its midst.
const ATTEMPTS: u64 = 12;
/// The longest pause in a heartbeat, as an exponent of nanoseconds.
const PAUSE: u32 = 20;

/// How one client gives heartbeats up, and when it leaves.
pub(crate) struct Haste {
    rng: RefCell<SimRng>,
    /// Heartbeats until it leaves; `None`: it stays until its operations are carried out.
    left: Cell<Option<u64>>,
    leaves: Cell<bool>,
    given_up: Cell<u64>,
}

impl Haste {
    pub(crate) fn new(mut rng: SimRng) -> Self {
        let order = rng.within(0, 7);
        let leaves_early = rng.chance(ODDS * 2 / 3);
        let left = leaves_early.then(|| rng.within(1, 1 << order));
        Haste { rng: RefCell::new(rng), left: Cell::new(left), leaves: Cell::new(false), given_up: Cell::new(0) }
    }
    /// Heartbeats that were given up.
    pub(crate) fn given_up(&self) -> u64 {
        self.given_up.get()
    }
    /// Does it leave before its operations are carried out?
    pub(crate) fn leaves(&self) -> bool {
        self.leaves.get()
    }

    /// Sends a heartbeat, or gives one up, or stops in its midst. If the client is to leave, it does so when it has given one up.
    pub(crate) async fn tick(&self, client: &Client, endpoint: &Endpoint) -> Result<(), PoolError> {
        let due = match self.left.get() {
            Some(left) => {
                self.left.set(Some(left.saturating_sub(1)));
                left == 0
            }
            None => false,
        };
        let (gives_up, stops, polls, pause) = {
            let mut rng = self.rng.borrow_mut();
            let (gives_up, stops) = (due || rng.chance(ODDS / 8), rng.chance(ODDS / 8));
            (gives_up, stops, rng.below(POLLS), Duration::from_nanos(rng.tail(PAUSE)))
        };
        if !gives_up && !stops {
            return client.tick(endpoint).await;
        }
        let mut tick = pin!(client.tick(endpoint));
        let done = within(polls, tick.as_mut()).await;
        match done {
            Some(done) => {
                done?;
                // It had nothing to do but to renew the lease.
                self.leaves.set(self.leaves.get() || due && self.wait_no_longer());
                Ok(())
            }
            None if !gives_up => {
                endpoint.sleep(pause).await;
                tick.await
            }
            None => {
                self.given_up.set(self.given_up.get() + 1);
                self.leaves.set(self.leaves.get() || due);
                Ok(())
            }
        }
    }

    fn wait_no_longer(&self) -> bool {
        self.rng.borrow_mut().below(ATTEMPTS) == 0
    }

    /// How many more polls a coroutine gets: most get none.
    fn last_polls(&self) -> u64 {
        let mut rng = self.rng.borrow_mut();
        if rng.chance(ODDS / 2) { 0 } else { rng.below(LAST_POLLS) }
    }
}

/// Carries out a coroutine's work, up to where its client leaves in haste: then it is dropped, and there is no result.
pub(crate) async fn cut_short<T>(haste: Option<Rc<Haste>>, work: impl Future<Output = T>) -> Option<T> {
    let Some(haste) = haste else { return Some(work.await) };
    let (mut work, mut left) = (pin!(work), None);
    poll_fn(|cx| {
        if haste.leaves() {
            let left = left.get_or_insert_with(|| haste.last_polls());
            if *left == 0 {
                return Poll::Ready(None);
            }
            *left -= 1;
        }
        work.as_mut().poll(cx).map(Some)
    })
    .await
}

/// The first word of an intent cell: whether an intent is declared, whether its lock was abandoned, and the generation.
const DECLARED: u64 = 1;
const ABANDONED: u64 = 1 << 39;
const GENERATION_SHIFT: u32 = 40;
const GENERATION: u64 = u64::MAX >> GENERATION_SHIFT;

/// A client slot whose client closes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClosingSlot {
    slot: u64,
    generation: u64,
}

impl ClosingSlot {
    pub(crate) fn of(client: &Client) -> Self {
        ClosingSlot { slot: client.slot(), generation: client.generation() }
    }

    /// What is wrong if the client, which nobody has evicted, has freed its slot. It is looked at without verbs.
    pub(crate) fn judge(self, sim: &Sim, pool: &Pool) -> Option<String> {
        if let Some(word) = self.declared_twice(sim, pool) {
            return Some(format!("two intents of the client in slot {} have the first word {word:#x}", self.slot));
        }
        let home = pool.geometry(NodeId::new(0));
        let state = sim.peek(home.client(self.slot).add(offset_of!(ClientSlot, state) as u64))?;
        let generation_of = |state: u64| state << 16 >> 24;
        if state & 0xFF != 0 && generation_of(state) == self.generation {
            // It stays until the lease expires.
            return None;
        }
        let stands = |word: &u64| word & DECLARED != 0 && word & ABANDONED == 0;
        let word = self.words(sim, pool).into_iter().find(stands)?;
        Some(format!("the client in slot {} has left, and its intent {word:#x} still stands", self.slot))
    }

    /// A number that two declarations of this client share: a late CAS that clears the one would clear the other one, too.
    fn declared_twice(self, sim: &Sim, pool: &Pool) -> Option<u64> {
        let mut words: Vec<_> = self.words(sim, pool).into_iter().map(|word| word & !(DECLARED | ABANDONED)).collect();
        words.sort_unstable();
        words.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
    }

    /// The first words of the cells, on all nodes, that this client has used last.
    fn words(self, sim: &Sim, pool: &Pool) -> Vec<u64> {
        let cells = pool.nodes().flat_map(|node| {
            let geometry = pool.geometry(node);
            (0..geometry.intent_cells).map(move |cell| geometry.intent(node, self.slot, cell))
        });
        let words = cells.filter_map(|at| sim.peek(at));
        words.filter(|word| *word != 0 && word >> GENERATION_SHIFT == self.generation & GENERATION).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{ABANDONED, ClosingSlot, DECLARED, GENERATION_SHIFT, Haste, cut_short};
    use farindex_fabric::NodeId;
    use farindex_pool::{Client, Pool, PoolError, PoolOptions};
    use farindex_sim::{Config, Sim, SimRng};
    use std::rc::Rc;

    #[test]
    fn intents_that_a_client_leaves_behind_or_declares_alike_are_wrong() {
        let sim = Sim::new(1, Config::default()).expect("the settings are sound");
        let (fabric, harness) = (sim.fabric(), sim.harness());
        let closed = sim.block_on(async move {
            let endpoint = harness.connect();
            let pool = Pool::create(fabric, &endpoint, &PoolOptions::unseeded()).await?;
            let client = Client::register(&pool, harness.identity(), &endpoint).await?;
            let slot = ClosingSlot::of(&client);
            client.close(&endpoint).await?;
            Ok::<_, PoolError>((pool, slot))
        });
        let (pool, slot) = closed.expect("ends").expect("succeeds");
        let judged = |first: u64, second: u64| {
            let node = NodeId::new(0);
            let cell = |i| pool.geometry(node).intent(node, slot.slot, i);
            sim.poke(cell(0), first);
            sim.poke(cell(1), second);
            slot.judge(&sim, &pool).is_some()
        };
        let word = |number: u64| slot.generation << GENERATION_SHIFT | number << 1;
        let of_former_owner = (slot.generation - 1) << GENERATION_SHIFT | 1 << 1;
        assert!(!judged(0, 0));
        assert!(!judged(word(1), word(2)));
        assert!(judged(word(1), word(2) | DECLARED));
        assert!(!judged(word(1), word(2) | DECLARED | ABANDONED));
        assert!(!judged(of_former_owner | DECLARED, word(2)));
        assert!(judged(word(2), word(2)));
        assert!(!judged(of_former_owner, of_former_owner));
    }

    #[test]
    fn work_ends_where_its_client_leaves() {
        let sim = Sim::new(1, Config::default()).expect("the settings are sound");
        let haste = Rc::new(Haste::new(SimRng::new(1, 1)));
        let staying = cut_short(Some(Rc::clone(&haste)), async { 7 });
        assert_eq!(sim.block_on(staying).expect("ends"), Some(7));
        haste.leaves.set(true);
        let endless = cut_short::<u64>(Some(haste), async {
            loop {
                farindex_fabric::yield_now().await;
            }
        });
        assert_eq!(sim.block_on(endless).expect("ends"), None);
    }
}
