//! Death made harmless: who has expired, and how the locks of the dead are claimed.
//!
//! Invariants (argued in docs/protocols/pool.md, T1 to T5):
//!
//! * A client loses its slot only after it was revoked on every memory node (G6), so nothing of a *buried* client takes
//!   effect any more. One that is alive all the same learns it from the error of its next verb.
//! * Whoever held a lock at a moment is among those whose intents name it, if no cell changed around that moment.
//! * A dead holder's intent is cleared by one CAS, of a client whose own intent names the lock by then: that client holds
//!   the lock from then on, and is replaced in the same way if it dies.
//!
//! Nobody is claimed from who is alive and keeps its lease, unless it has given the lock up itself (I4).

use crate::client::{Client, first_word, identity_of, parse_slots, read_slots};
use crate::faults::{Fault, planted};
use crate::intent::{DeclaredIntent, GENERATION_MASK, cell_words, cleared, given_up, read_cells, standing};
use crate::layout::{ClientSlot, HOME, INTENT_LEN};
use crate::leaks::Leaks;
use crate::mark;
use crate::session::Session;
use crate::{HeldLock, Intent, IntentCell, Lock, Pool, PoolError, intent};
use farindex_fabric::{Endpoint, FabricError, Span};
use std::time::Duration;

/// What is known of one slot: when it last changed.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    /// State, heartbeat, quiesced.
    words: [u64; 3],
    /// The end of the READ that first showed these, and the beginning of the one that showed them last.
    since: Duration,
    until: Duration,
}

/// Signs of life of all clients, as one observer sees them on its own clock.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    seen: Vec<Seen>,
}

impl Watch {
    /// Takes in what a READ showed that was posted at `began` and completed at `ended`.
    pub(crate) fn observe(&mut self, slots: &[ClientSlot], began: Duration, ended: Duration) {
        if self.seen.len() != slots.len() {
            self.seen = vec![Seen::default(); slots.len()];
        }
        for (seen, slot) in self.seen.iter_mut().zip(slots) {
            let words = [slot.state, slot.heartbeat, slot.quiesced];
            if seen.words != words || seen.until == Duration::ZERO {
                *seen = Seen { words, since: ended, until: ended };
            } else {
                // Sessions on several threads may come in any order.
                seen.until = seen.until.max(began);
            }
        }
    }
    /// Has this slot not changed for a lease?
    pub(crate) fn expired(&self, slot: usize, lease: Duration) -> bool {
        self.seen.get(slot).is_some_and(|seen| seen.until.saturating_sub(seen.since) >= lease)
    }
}

/// Shuts a client out of every memory node, and then frees its slot. `false` if the fabric cannot do that: then nothing
/// has changed.
pub(crate) async fn evict(pool: &Pool, span: &Span, slot: u64, record: &ClientSlot) -> Result<bool, PoolError> {
    if planted(Fault::FreedBeforeRevocation) {
        span.cas(pool.geometry(HOME).client(slot), record.state, record.state & !0xFF).await?;
    }
    if record.active() && !planted(Fault::NoRevocation) {
        for node in pool.nodes() {
            match span.revoke(node, identity_of(record)).await {
                Ok(()) => {}
                Err(FabricError::CannotRevoke(_) | FabricError::Unsupported { .. }) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
    }
    if record.active() {
        mark!("takeover: client evicted");
    } else {
        mark!("takeover: arriving slot taken back");
    }
    let mut batch = span.batch();
    if record.active() {
        Leaks::count(&mut batch);
    }
    batch.cas(pool.geometry(HOME).client(slot), record.state, record.state & !0xFF);
    batch.post().await?;
    Ok(true)
}

impl Client {
    /// Has this client been silent for a lease, or is it proved gone?
    pub(crate) fn is_over(&self, slot: usize, record: &ClientSlot) -> bool {
        let gone = || record.active() && self.pool().fabric().is_gone(&identity_of(record)) == Some(true);
        slot as u64 != self.slot() && (self.watch().expired(slot, self.pool().lease()) || gone())
    }

    /// Evicts every client that has expired or is gone; returns how many. Whether one has expired shows only over a lease:
    /// call it again and again, or use [`wait_and_evict_expired`](Self::wait_and_evict_expired).
    pub async fn evict_expired(&self, endpoint: &Endpoint) -> Result<u64, PoolError> {
        let span = endpoint.span(farindex_fabric::OpKind::Maintenance);
        let slots = self.look_at_slots(&span).await?;
        let mut evicted = 0;
        for (slot, record) in slots.iter().enumerate().filter(|(_, record)| record.active() || record.registering()) {
            if self.is_over(slot, record) && evict(self.pool(), &span, slot as u64, record).await? {
                evicted += 1;
            }
        }
        Ok(evicted)
    }

    /// Waits until no other client is there that has given no sign of life for a lease, and evicts those; returns how many.
    /// Takes a little more than a lease.
    pub async fn wait_and_evict_expired(&self, endpoint: &Endpoint) -> Result<u64, PoolError> {
        let lease = self.pool().lease();
        let mut evicted = self.evict_expired(endpoint).await?;
        let until = endpoint.now() + lease + lease / 4;
        loop {
            endpoint.sleep((lease / 8).max(Duration::from_micros(10))).await;
            self.tick(endpoint).await?;
            let began = endpoint.now();
            evicted += self.evict_expired(endpoint).await?;
            if began >= until {
                return Ok(evicted);
            }
        }
    }

    /// READs all slots, and notes the signs of life.
    pub(crate) async fn look_at_slots(&self, span: &Span) -> Result<Vec<ClientSlot>, PoolError> {
        let began = span.endpoint().now();
        let buf = read_slots(span, self.pool()).await?;
        let slots = parse_slots(&buf).to_vec();
        self.watch().observe(&slots, began, span.endpoint().now());
        Ok(slots)
    }
}

/// What came of an attempt to claim a lock.
pub enum Claim<'s> {
    /// Nobody holds it.
    Free,
    /// The intents changed too fast to tell.
    Unsteady,
    /// Somebody who may be alive holds it, or nobody may be shut out.
    Busy {
        /// Changes whenever others name the lock than before.
        names: u64,
        /// Only operations of this very client name it.
        own: bool,
    },
    /// It is the caller's now.
    Taken(Taken<'s>),
}

/// A lock that a dead client has left, and that is held by the caller from now on.
pub struct Taken<'s> {
    /// The intent under which it is held; none for a covered lock.
    pub cell: Option<IntentCell<'s>>,
    /// The lock word as it was read.
    pub word: u64,
    /// What those who may have held it had declared. Hints: only one of them did, and how far it came, they do not say.
    pub left: Vec<Intent>,
    lock: Lock,
}

impl<'s> Taken<'s> {
    /// The guard that releases the lock.
    pub fn into_held(self) -> HeldLock<'s> {
        HeldLock::new(self.cell, self.lock, self.word)
    }
}

/// How often a claim looks again because the intents changed, or because somebody was evicted, before it gives up.
const LOOKS: u32 = 16;

/// What one look at a lock showed.
struct Look {
    word: u64,
    named: Vec<DeclaredIntent>,
}

/// `under` is a lock whose holder may hold this one without an intent that names it: while it is held, nothing is told.
async fn look(session: &Session, span: &Span, lock: Lock, under: Option<Lock>) -> Result<Option<Look>, PoolError> {
    let (pool, node) = (session.pool(), lock.at.node());
    let mut batch = span.batch();
    let before = read_cells(&mut batch, pool, node);
    let cover = under.map(|under| (under, batch.read(under.at, 8)));
    let word = batch.read(lock.at, 8);
    let after = read_cells(&mut batch, pool, node);
    let mut done = batch.post().await?;
    let word = first_word(&done.buf(word));
    let covered = cover.is_some_and(|(under, word)| under.held(first_word(&done.buf(word))));
    let (before, after) = (cell_words(&mut done, before), cell_words(&mut done, after));
    let firsts = |words: &[u64]| words.iter().step_by(INTENT_LEN as usize / 8).copied().collect::<Vec<_>>();
    let steady = firsts(&before) == firsts(&after) || planted(Fault::SingleRead);
    if lock.held(word) && (covered || !steady) {
        mark!("takeover: not to be told yet");
        return Ok(None);
    }
    let named = standing(pool, node, &after).filter(|found| found.intent.lock.at == lock.at).collect();
    Ok(Some(Look { word, named }))
}

/// How the client that wrote an intent is doing, by what was read of its slot before the intent was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Alive,
    Expired,
    /// Nothing of the operation takes effect any more: the client was shut out, or the operation has given its lock up.
    Evicted,
}

impl Session {
    fn standing_of(&self, slots: &[ClientSlot], found: &DeclaredIntent) -> Standing {
        if given_up(found.word) {
            return Standing::Evicted;
        }
        let Some(record) = slots.get(found.slot as usize) else { return Standing::Alive };
        let ahead = record.generation().wrapping_sub(found.generation) & GENERATION_MASK;
        match ahead {
            0 if record.active() => match self.client().is_over(found.slot as usize, record) {
                true => Standing::Expired,
                false => Standing::Alive,
            },
            0 if record.vacant() => Standing::Evicted,
            // Another owner has the slot by now. (Half of the numbers are behind: that one came after the READ.)
            1..=0x7F_FFFF => Standing::Evicted,
            _ => Standing::Alive,
        }
    }

    /// Takes a lock over if whoever holds it has died: then it is the caller's, under an intent that says `what`.
    ///
    /// `under` is the lock that may cover this one, if there is such: see [`claim_covered`](Self::claim_covered).
    pub async fn claim(
        &self,
        span: &Span,
        lock: Lock,
        under: Option<Lock>,
        index: u64,
        what: [u64; 4],
    ) -> Result<Claim<'_>, PoolError> {
        self.claim_as(span, lock, under, Some(Intent { index, lock, what })).await
    }

    /// The same for a lock that is covered by one that the caller has claimed: if nobody's intent names it, the former
    /// holder of the covering lock held it.
    pub async fn claim_covered(&self, span: &Span, lock: Lock) -> Result<Claim<'_>, PoolError> {
        self.claim_as(span, lock, None, None).await
    }

    async fn claim_as(
        &self,
        span: &Span,
        lock: Lock,
        under: Option<Lock>,
        mine: Option<Intent>,
    ) -> Result<Claim<'_>, PoolError> {
        'looks: for _ in 0..LOOKS {
            let slots = self.client().look_at_slots(span).await?;
            let Some(Look { word, named }) = look(self, span, lock, under).await? else { continue };
            if !lock.held(word) {
                mark!("takeover: lock released meanwhile");
                return Ok(Claim::Free);
            }
            let names = named.iter().fold(named.len() as u64, |names, found| names.rotate_left(7) ^ found.word);
            let own = !named.is_empty() && named.iter().all(|found| found.slot == self.client().slot());
            let standings: Vec<_> = named.iter().map(|found| self.standing_of(&slots, found)).collect();
            if standings.contains(&Standing::Alive) || named.is_empty() && mine.is_some() {
                mark!("takeover: held by somebody alive");
                return Ok(Claim::Busy { names, own });
            }
            let over: Vec<_> = named.iter().zip(&standings).filter(|(_, of)| **of == Standing::Expired).collect();
            for (found, _) in &over {
                let Some(record) = slots.get(found.slot as usize) else { continue };
                if !evict(self.pool(), span, found.slot, record).await? {
                    return Ok(Claim::Busy { names, own });
                }
            }
            if !over.is_empty() {
                mark!("takeover: looks again after an eviction");
                // What was in flight may have landed before they were shut out.
                continue;
            }
            let cell = match &mine {
                Some(_) => Some(self.intent_cell(lock.at.node()).await?),
                None => None,
            };
            for (i, found) in named.iter().enumerate() {
                let mut batch = span.batch();
                if let (0, Some(cell), Some(mine)) = (i, &cell, &mine) {
                    cell.declare(&mut batch, mine);
                }
                let won = batch.cas(found.at, found.word, cleared(found.word));
                if batch.post().await?.old(won) != found.word {
                    mark!("takeover: lost to another heir");
                    if let Some(cell) = &cell {
                        let mut batch = span.batch();
                        cell.clear(&mut batch);
                        batch.post().await?;
                    }
                    continue 'looks;
                }
            }
            if named.len() > 1 {
                mark!("takeover: several candidates");
            }
            if mine.is_none() {
                mark!("takeover: covered lock claimed");
            }
            let left = named.into_iter().map(|found| found.intent).collect();
            return Ok(Claim::Taken(Taken { cell, word, left, lock }));
        }
        Ok(Claim::Unsteady)
    }
}

/// Patience with those who hold one lock: two leases for each of them.
#[derive(Debug, Default)]
pub struct LockTimeout {
    names: Option<u64>,
    since: Duration,
}

impl LockTimeout {
    /// The same intents have named the lock for this long.
    pub fn held_for(&mut self, names: u64, now: Duration) -> Duration {
        if self.names != Some(names) {
            *self = LockTimeout { names: Some(names), since: now };
        }
        now.saturating_sub(self.since)
    }
}

/// The error for a lock that is held by somebody who keeps its lease, or who cannot be shut out.
pub(crate) async fn held(session: &Session, span: &Span, lock: Lock, what: &str) -> Result<PoolError, PoolError> {
    let holder = intent::holders(session, span, lock.at).await?;
    Ok(PoolError::Held { what: what.to_owned(), holder })
}
