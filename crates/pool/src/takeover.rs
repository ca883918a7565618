//! Takeover: how a client acquires a lock whose holder has crashed.
//!
//! Invariants (proofs in docs/protocols/pool.md, T1 to T5):
//!
//! * No verb of an evicted client takes effect any more (see [`lease`](crate::lease)). If such a client is alive, its
//!   next verb fails with an error.
//! * If no cell changed around a moment, and no declared one until it was read whole, the holder of a lock at that
//!   moment is among the clients whose intents name the lock.
//! * The intent of an evicted holder is cleared by one CAS. At that time an intent of the new holder names the lock
//!   already. From this CAS on the new holder has the lock, and if it crashes, its lock is taken over in the same way.
//!
//! A lock is never taken from a live client that keeps its lease, unless the client has abandoned the lock itself (I4).

use crate::faults::{Fault, planted};
use crate::intent_record::{DeclaredIntent, cell_words, cleared, declared, is_abandoned, is_declared, read_cells};
use crate::layout::{ClientSlot, INTENT_LEN, first_word};
use crate::lease::{GENERATION_MASK, evict};
use crate::lock::HeldLock;
use crate::session::Session;
use crate::{Intent, IntentCell, Lock, PoolError, intent, mark};
use farindex_fabric::{RemotePtr, Span, cold};
use std::time::Duration;

/// The result of an attempt to take a lock over.
pub enum Claim<'s> {
    /// The lock is free.
    Free,
    /// The intents changed too often to identify the holder. Try again later.
    Unsteady,
    /// A client that may be alive holds the lock, or the fabric cannot revoke the holder.
    Busy {
        /// The intents that name the lock, of clients that may hold it: of its holder, and of those that try to take it.
        names: Names,
        /// True if only operations of this very client name the lock.
        own: bool,
    },
    /// The caller holds the lock now.
    Taken(Taken<'s>),
}

/// A lock of an evicted client that the caller has taken over.
pub struct Taken<'s> {
    /// The cell with the caller's intent; `None` for a covered lock.
    pub cell: Option<IntentCell<'s>>,
    /// The lock word as it was read.
    pub word: u64,
    /// The intents of all clients that may have held the lock. Only one of them did, and how far it came is unknown:
    /// they are hints.
    pub candidates: Vec<Intent>,
    lock: Lock,
}

impl<'s> Taken<'s> {
    /// Returns the guard that releases the lock.
    pub fn into_held(self) -> HeldLock<'s> {
        HeldLock::new(self.cell, self.lock, self.word)
    }
}

/// How often a takeover starts again, because the intents changed or a client was evicted, before it is
/// [`Unsteady`](Claim::Unsteady).
const ATTEMPTS: u32 = 16;

/// A lock word, and the intents that name the lock, from one batch.
struct LockSnapshot {
    word: u64,
    named: Vec<DeclaredIntent>,
}

/// Reads a lock and all intents of its node: the intents before the lock word, after it, and once more. `None` if the
/// lock is held and the intents differ. The last READ says that the words of an intent belong together: the one before
/// may have found its first word, and the others after the cell was used again (N2). `under` is a lock whose holder may
/// hold this one without an intent that names it; `None` is also returned while `under` is held.
async fn read_lock(
    session: &Session,
    span: &Span,
    lock: Lock,
    under: Option<Lock>,
) -> Result<Option<LockSnapshot>, PoolError> {
    let (pool, node) = (session.pool(), lock.at.node());
    let mut batch = span.batch();
    let before = read_cells(&mut batch, pool, node);
    let cover = under.map(|under| (under, batch.read(under.at, 8)));
    let word = batch.read(lock.at, 8);
    let after = read_cells(&mut batch, pool, node);
    let again = read_cells(&mut batch, pool, node);
    let mut done = batch.post().await?;
    let word = first_word(&done.buf(word));
    let covered = cover.is_some_and(|(under, word)| under.held(first_word(&done.buf(word))));
    let [before, after, again] = [before, after, again].map(|cells| cell_words(&mut done, cells));
    let steady = firsts(&before).eq(firsts(&after)) || planted(Fault::SingleRead);
    let whole = firsts(&after).zip(firsts(&again)).all(|(after, again)| after == again || !is_declared(after));
    let whole = whole || planted(Fault::TornIntents);
    if lock.held(word) && (covered || !steady || !whole) {
        mark!("takeover: holder not identified yet");
        return Ok(None);
    }
    let named = declared(pool, node, &after).filter(|found| found.intent.lock.at == lock.at).collect();
    Ok(Some(LockSnapshot { word, named }))
}

/// The first words of cells.
fn firsts(words: &[u64]) -> impl Iterator<Item = u64> {
    words.iter().step_by(INTENT_LEN as usize / 8).copied()
}

/// The state of the client that declared an intent, from its slot as it was read before the intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Alive,
    /// The lease has expired, and the client may not be revoked yet.
    Expired,
    /// No verb of the operation takes effect any more: the client was evicted, or the operation has abandoned its lock.
    Evicted,
}

impl Session {
    fn standing_of(&self, slots: &[ClientSlot], found: &DeclaredIntent) -> Standing {
        if is_abandoned(found.word) {
            return Standing::Evicted;
        }
        let Some(record) = slots.get(found.slot as usize) else { return Standing::Alive };
        let ahead = record.generation().wrapping_sub(found.generation) & GENERATION_MASK;
        match ahead {
            0 if record.active() => match self.client().has_expired(found.slot as usize, record) {
                true => Standing::Expired,
                false => Standing::Alive,
            },
            0 if record.vacant() => Standing::Evicted,
            // Another client owns the slot now. In the other half of the numbers the intent is newer than the READ.
            1..=0x7F_FFFF => Standing::Evicted,
            _ => Standing::Alive,
        }
    }

    /// Takes a lock over if its holder has crashed. Then the caller holds the lock, under an intent with the change
    /// `what` of the index with uid `index`.
    ///
    /// `under` is the lock that may cover this one, if there is one: see [`claim_covered`](Self::claim_covered).
    pub async fn claim(
        &self,
        span: &Span,
        lock: Lock,
        under: Option<Lock>,
        index: u64,
        what: [u64; 4],
    ) -> Result<Claim<'_>, PoolError> {
        cold(self.claim_inner(span, lock, under, index, what)).await
    }

    async fn claim_inner(
        &self,
        span: &Span,
        lock: Lock,
        under: Option<Lock>,
        index: u64,
        what: [u64; 4],
    ) -> Result<Claim<'_>, PoolError> {
        self.claim_as(span, lock, under, Some(Intent { index, lock, what })).await
    }

    /// Like [`claim`](Self::claim), for a lock that is covered by one that the caller has taken over: if no intent
    /// names the covered lock, it belonged to the former holder of the covering lock.
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
        'attempts: for _ in 0..ATTEMPTS {
            let slots = self.client().observe_slots(span).await?;
            let Some(LockSnapshot { word, named }) = read_lock(self, span, lock, under).await? else { continue };
            if !lock.held(word) {
                mark!("takeover: lock released meanwhile");
                return Ok(Claim::Free);
            }
            let own = !named.is_empty() && named.iter().all(|found| found.slot == self.client().slot());
            let standings: Vec<_> = named.iter().map(|found| self.standing_of(&slots, found)).collect();
            let that_are = |standing| {
                let those = named.iter().zip(&standings).filter(move |(_, of)| **of == standing);
                Names::of(those.map(|(found, _)| found.word))
            };
            if standings.contains(&Standing::Alive) || named.is_empty() && mine.is_some() {
                mark!("takeover: held by a live client");
                // What a client has left behind that is gone stays there until the lock is claimed.
                return Ok(Claim::Busy { names: that_are(Standing::Alive), own });
            }
            let expired: Vec<_> = named.iter().zip(&standings).filter(|(_, of)| **of == Standing::Expired).collect();
            for (found, _) in &expired {
                let Some(record) = slots.get(found.slot as usize) else { continue };
                if !evict(self.pool(), span, found.slot, record).await? {
                    return Ok(Claim::Busy { names: that_are(Standing::Expired), own });
                }
            }
            if !expired.is_empty() {
                mark!("takeover: retried after an eviction");
                // Verbs that were in flight may have landed before the eviction.
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
                    mark!("takeover: lost to another client");
                    if let Some(cell) = &cell {
                        let mut batch = span.batch();
                        cell.clear(&mut batch);
                        batch.post().await?;
                        cell.cleared();
                    }
                    continue 'attempts;
                }
            }
            if named.len() > 1 {
                mark!("takeover: several candidates");
            }
            if mine.is_none() {
                mark!("takeover: covered lock claimed");
            }
            let candidates = named.into_iter().map(|found| found.intent).collect();
            return Ok(Claim::Taken(Taken { cell, word, candidates, lock }));
        }
        Ok(Claim::Unsteady)
    }
}

/// The intents that name one lock, by their words. Each declaration has a word of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names(Vec<u64>);

impl Names {
    /// No intent names the lock. It may be held all the same, and for long.
    pub const NONE: Names = Names(Vec::new());

    /// The intents with these words.
    pub fn of(words: impl IntoIterator<Item = u64>) -> Names {
        Names(words.into_iter().collect())
    }
    /// Those that are in both; `None` if one of the two has intents and none of them is in the other.
    fn common(&self, other: &Names) -> Option<Names> {
        if planted(Fault::TriersHold) || self.0.is_empty() || other.0.is_empty() {
            return (self == other).then(|| self.clone());
        }
        let common = Names(self.0.iter().copied().filter(|word| other.0.contains(word)).collect());
        (!common.0.is_empty()).then_some(common)
    }
}

/// Looks before the time counts of a holder that no intent names.
const LOOKS: u32 = 16;

/// Locks that are measured at a time. An operation needs the locks of a leaf, of its neighbour and of the parents of both.
const LOCKS: usize = 8;

/// Measures how long the same client has held a lock, so that a waiting operation can give up. The limit of the
/// indexes and the catalog is two leases. An operation that waits for several locks in turn knows this of each of them.
///
/// Half a lease counts at most of the time between two looks: who was stopped itself for two leases has not waited, nor has a
/// holder that was stopped with it had any time. Who can look once in a lease alone, because something else has to be waited
/// for each time, gives up after five leases.
///
/// Invariant: the intent of the holder names the lock all the time, and its word does not change. Those of clients that try to
/// take the lock come and go. So the same client has held it since the last moment from which on one intent was always there.
#[derive(Debug, Default)]
pub struct LockTimeout {
    /// The locks that were waited for, the last one at the end.
    waits: Vec<Wait>,
    looks: u32,
}

/// The wait for one lock.
#[derive(Debug)]
struct Wait {
    lock: RemotePtr,
    state: u64,
    /// The intents that were there whenever anyone has looked.
    names: Names,
    /// What counts of the time since the first look.
    counted: Duration,
    /// The last look at it.
    latest: Duration,
    /// Looks before, at this lock or another one.
    looks: u32,
}

impl LockTimeout {
    /// Returns for how long one intent at least has always named the lock, while the caller could look. `names` is that of
    /// [`Claim::Busy`]. The measurement of a lock begins again when none of the intents is left, and when the caller sees another
    /// `state` of it.
    pub fn held_for(
        &mut self,
        lock: RemotePtr,
        state: u64,
        names: Names,
        (now, lease): (Duration, Duration),
    ) -> Duration {
        let known = self.waits.iter().position(|wait| wait.lock == lock).map(|at| self.waits.remove(at));
        // Nothing tells two holders apart whom no intent names, so there must be no gap in which one can follow the other.
        self.waits.retain(|wait| wait.names != Names::NONE);
        let known = known.filter(|wait| wait.state == state);
        let mut wait = match known.and_then(|wait| Some(Wait { names: wait.names.common(&names)?, ..wait })) {
            Some(wait) => wait,
            None => Wait { lock, state, names, counted: Duration::ZERO, latest: now, looks: self.looks },
        };
        wait.counted += now.saturating_sub(wait.latest).min(lease / 2);
        wait.latest = now;
        self.looks = self.looks.saturating_add(1);
        let counts = wait.names != Names::NONE || self.looks - wait.looks >= LOOKS;
        let counted = if counts { wait.counted } else { Duration::ZERO };
        if self.waits.len() == LOCKS {
            self.waits.remove(0);
        }
        self.waits.push(wait);
        counted
    }
}

/// Returns the error for a lock whose holder keeps its lease or cannot be revoked.
pub(crate) async fn held(session: &Session, span: &Span, lock: Lock, what: &str) -> Result<PoolError, PoolError> {
    let holder = intent::holders(session, span, lock.at).await?;
    Ok(PoolError::Held { what: what.to_owned(), holder })
}

#[cfg(test)]
mod tests {
    use super::{LOCKS, LOOKS, LockTimeout, Names};
    use farindex_fabric::{NodeId, RemotePtr};
    use std::time::Duration;

    fn lock(number: u64) -> RemotePtr {
        RemotePtr::new(NodeId::new(0), 64 * number)
    }

    /// A look at a lock after so many milliseconds, with a lease of a second.
    fn look(timeout: &mut LockTimeout, at: RemotePtr, state: u64, names: Names, now: u64) -> u64 {
        timeout.held_for(at, state, names, (Duration::from_millis(now), Duration::from_secs(1))).as_millis() as u64
    }

    /// Looks at lock 1 from `from` on, a millisecond apart; returns the last measurement.
    fn looks(timeout: &mut LockTimeout, state: u64, names: impl Fn(u64) -> Names, from: u64) -> u64 {
        let measured = |i| look(timeout, lock(1), state, names(i), i);
        (from..from + u64::from(LOOKS)).map(measured).last().unwrap_or_default()
    }

    /// The words of others that try to take the lock differ each time, and one holds it.
    #[test]
    fn a_holder_is_seen_among_those_that_try() {
        let mut timeout = LockTimeout::default();
        let whole = u64::from(LOOKS) - 1;
        let tried = |i: u64| Names::of((0..i % 4).map(|other| 1000 + i * 10 + other).chain([7]));
        assert_eq!(looks(&mut timeout, 1, tried, 0), whole);
        // Another state.
        assert_eq!(looks(&mut timeout, 2, tried, 100), whole);
        // Another holder.
        assert_eq!(looks(&mut timeout, 2, |_| Names::of([8]), 200), whole);
        // None that is known.
        assert_eq!(looks(&mut timeout, 2, |_| Names::NONE, 300), whole);
        assert_eq!(look(&mut timeout, lock(1), 2, Names::NONE, 400), 100);
    }

    /// See docs/bugs/209: most looks find a lock held that changes hands, and every tenth one finds the holder that stays.
    #[test]
    fn a_holder_is_seen_by_who_waits_for_others_in_turn() {
        let mut timeout = LockTimeout::default();
        for i in 0..100 {
            let (at, word) = if i % 10 == 0 { (99, 7) } else { (i % (LOCKS as u64 - 1), 1000 + i) };
            let held = look(&mut timeout, lock(at), 0, Names::of([word]), i);
            assert_eq!(held, if at == 99 { i } else { 0 }, "look {i}");
        }
    }

    /// Two holders that no intent names are not the same one because nobody has looked in between.
    #[test]
    fn holders_without_names_are_measured_without_gaps() {
        let mut timeout = LockTimeout::default();
        for i in 0..100 {
            assert_eq!(look(&mut timeout, lock(i % 2), 0, Names::NONE, i), 0, "look {i}");
        }
    }

    /// See docs/bugs/220: who can look once in a lease alone finds at the sixth look that more than two leases count.
    #[test]
    fn who_looks_rarely_waits_for_five_leases() {
        let mut timeout = LockTimeout::default();
        let held = |i: u64| look(&mut timeout, lock(1), 0, Names::of([7]), i * 1000);
        assert_eq!((0..=5).map(held).collect::<Vec<_>>(), [0, 500, 1000, 1500, 2000, 2500]);
    }

    #[test]
    fn a_long_pause_counts_for_half_a_lease() {
        let mut timeout = LockTimeout::default();
        let held = |i: u64| look(&mut timeout, lock(1), 1, Names::of([7]), i * 1000);
        assert_eq!([0, 100, 200].map(held), [0, 500, 1000]);
    }

    #[test]
    fn holders_that_change_are_not_taken_for_one() {
        let mut timeout = LockTimeout::default();
        let changing = |i: u64| Names::of((0..8).map(|other| i << 8 | other << 40));
        for i in 0..10_000 {
            assert_eq!(look(&mut timeout, lock(1), 1, changing(i), i * 1000), 0);
        }
    }
}
