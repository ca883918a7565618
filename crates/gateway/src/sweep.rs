//! Removes what has expired, sorted sets that are empty, and entries of sorted sets that nothing names any more.
//!
//! Each gateway sweeps, on a thread of its own that takes a fifth of a core at most. Nothing waits for a sweep: what it
//! removes counts as absent already. Why it removes nothing that is needed: Z2 to Z5 in [`crate::store::sorted`].

use crate::Fail;
use crate::gateway::{GatewayError, Shared, helps_to_renew};
use crate::store::Store;
use crate::store::record::{Kind, Record};
use crate::store::sorted::{self, Generation, PAGE, Set, State};
use farindex::{Entry, OrderedIndex, PointIndex, Remove, RemoveIf, Value, yield_now};
use std::collections::HashMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// What is watched until it has settled, at most.
const WATCHED: usize = 100_000;

/// Something that a sweep has seen, and may remove when it is still the same after [`Periods::settle`](sorted::Periods::settle).
struct Watch(HashMap<Vec<u8>, (u64, Instant)>);

impl Watch {
    /// Has `key` had this nonce for so long? Watches it from now on if not.
    fn settled(&mut self, key: &[u8], nonce: u64, settle: Duration) -> bool {
        match self.0.get_mut(key) {
            Some((seen, since)) if *seen == nonce => since.elapsed() >= settle,
            Some(watched) => {
                *watched = (nonce, Instant::now());
                false
            }
            None => {
                if self.0.len() < WATCHED {
                    self.0.insert(key.to_vec(), (nonce, Instant::now()));
                }
                false
            }
        }
    }
    /// Forgets what has not been seen for so long that it is gone.
    fn forget_old(&mut self, settle: Duration, pause: Duration) {
        self.0.retain(|_, (_, since)| since.elapsed() < 10 * (settle + pause));
    }
}

/// Sweeps until the gateway ends.
pub(crate) fn run(shared: &Arc<Shared>, dropped: &Receiver<Generation>) -> Result<(), GatewayError> {
    let mut watch = (Watch(HashMap::new()), Watch(HashMap::new()));
    while !shared.stopping() {
        let (registration, pool) = shared.pools.current();
        let swept = with_session(shared, &pool, registration, dropped, &mut watch);
        drop(pool);
        match swept {
            Ok(()) => {}
            Err(why) if helps_to_renew(&why) => shared.pools.renew(registration, shared)?,
            // A full or a damaged pool: the commands of clients tell them.
            Err(_) => shared.rest(shared.sweep_pause.max(Duration::from_millis(100))),
        }
    }
    Ok(())
}

/// Sweeps in one session, until the gateway ends or has registered again.
fn with_session(
    shared: &Shared,
    pool: &farindex::Pool,
    registration: u64,
    dropped: &Receiver<Generation>,
    (empty, stale): &mut (Watch, Watch),
) -> Result<(), GatewayError> {
    let session = pool.session()?;
    let store = Store::open(&session, &shared.names, shared.periods)?;
    let mut next = Instant::now() + shared.sweep_pause;
    while !shared.stopping() && shared.pools.current().0 == registration {
        let erased = session.block_on(async {
            while let Ok(generation) = dropped.try_recv() {
                erase(&store, shared, generation).await?;
            }
            Ok::<_, Fail>(())
        });
        ended(erased)?;
        if Instant::now() >= next {
            let swept = session
                .block_on(async { Sweep { store: &store, shared, turn: Instant::now() }.all(empty, stale).await });
            ended(swept)?;
            empty.forget_old(store.periods.settle, shared.sweep_pause);
            stale.forget_old(store.periods.settle, shared.sweep_pause);
            shared.counters.sweeps.inc();
            next = Instant::now() + shared.sweep_pause;
        }
        shared.counters.expired.inc_by(store.expired.take());
        // Its own removals of sets are erased by the next round.
        for generation in store.dropped.take() {
            ended(session.block_on(erase(&store, shared, generation)))?;
        }
        shared.rest(shared.sweep_pause.min(Duration::from_millis(100)));
    }
    Ok(())
}

/// Only errors of far memory end a sweep.
fn ended(result: Result<(), Fail>) -> Result<(), GatewayError> {
    match result {
        Err(Fail::Index(error)) => Err(error.into()),
        _ => Ok(()),
    }
}

/// Removes all entries of a generation that no record names.
async fn erase(store: &Store, shared: &Shared, generation: Generation) -> Result<(), Fail> {
    let (from, to) = sorted::entries_of(generation);
    loop {
        let bounds = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
        let page = store.ordered().scan(bounds, PAGE).await?;
        for entry in &page {
            if store.ordered().remove(&entry.key).await? == Remove::Removed {
                shared.counters.swept.inc();
            }
        }
        if page.len() < PAGE || shared.stopping() {
            break;
        }
        yield_now().await;
    }
    // Last: a generation with entries keeps its owner, so that the next sweep recognises it if this one was cut off.
    store.ordered().remove(&sorted::owner_key(generation)).await?;
    Ok(())
}

struct Sweep<'s> {
    store: &'s Store,
    shared: &'s Shared,
    turn: Instant,
}

impl Sweep<'_> {
    async fn all(&mut self, empty: &mut Watch, stale: &mut Watch) -> Result<(), Fail> {
        self.records(empty).await?;
        self.entries(stale).await
    }

    /// Rests for four times as long as the work since the last rest took.
    fn pace(&mut self) {
        let worked = self.turn.elapsed();
        if worked > Duration::from_millis(2) {
            self.shared.rest((4 * worked).min(Duration::from_secs(1)));
            self.turn = Instant::now();
        }
    }

    /// Expired records, and sorted sets that are empty.
    async fn records(&mut self, empty: &mut Watch) -> Result<(), Fail> {
        let store = self.store;
        store
            .walk(async |key: &[u8], value: Value| {
                self.pace();
                // What is no record is not the gateway's.
                let Ok(record) = Record::parse(&value) else { return Ok(true) };
                if record.is_expired() {
                    store.expire(key, &value).await?;
                } else if record.kind == Kind::SortedSet
                    && let Ok(set) = Set::parse(record.payload)
                    && set.is_empty(store).await?
                {
                    self.empty_set(key, &value, record.expires, set, empty).await?;
                }
                Ok(!self.shared.stopping())
            })
            .await
    }

    /// Z5: marks an empty set, and removes it when it has been empty and marked for long enough.
    async fn empty_set(
        &self,
        key: &[u8],
        bytes: &[u8],
        expires: Option<u64>,
        set: Set,
        empty: &mut Watch,
    ) -> Result<(), Fail> {
        match set.mark {
            None => {
                let marked = Set { mark: Some(self.store.nonce()), ..set }.record(expires);
                self.store.swap(key, Some(bytes), Some(&marked)).await?;
            }
            Some(nonce) => {
                if empty.settled(key, nonce, self.store.periods.settle) && set.is_empty(self.store).await? {
                    self.store.swap(key, Some(bytes), None).await?;
                    empty.0.remove(key);
                }
            }
        }
        Ok(())
    }

    /// Generations without a record, and score entries whose member has another score.
    async fn entries(&mut self, stale: &mut Watch) -> Result<(), Fail> {
        let mut from: Bound<Vec<u8>> = Bound::Unbounded;
        let mut known: Option<Generation> = None;
        loop {
            let bounds = (from.as_ref().map(Vec::as_slice), Bound::Unbounded);
            let page = self.store.ordered().scan(bounds, PAGE).await?;
            let mut skipped = None;
            for entry in &page {
                let Some((generation, _)) = entry.key.split_first_chunk::<16>() else { continue };
                if known != Some(*generation) {
                    known = Some(*generation);
                    if self.is_orphan(*generation).await? {
                        erase(self.store, self.shared, *generation).await?;
                        skipped = Some(sorted::key(*generation, u8::MAX, &[]));
                        break;
                    }
                }
                if sorted::is_score_entry(&entry.key) {
                    self.score_entry(*generation, entry, stale).await?;
                }
            }
            from = match (skipped, page.last()) {
                (Some(behind), _) => Bound::Excluded(behind),
                (None, Some(last)) if page.len() == PAGE => Bound::Excluded(last.key.to_vec()),
                (None, _) => return Ok(()),
            };
            if self.shared.stopping() {
                return Ok(());
            }
            self.pace();
            yield_now().await;
        }
    }

    /// Z4: is there no record that names this generation, and will there never be?
    async fn is_orphan(&self, generation: Generation) -> Result<bool, Fail> {
        if !self.store.periods.is_garbage(generation) {
            return Ok(false);
        }
        let Some(key) = self.store.ordered().get(&sorted::owner_key(generation)).await? else { return Ok(true) };
        let record = self.store.raw(&key).await?;
        Ok(record.as_deref().and_then(sorted::generation_of) != Some(generation))
    }

    /// Z2 (b), Z3: removes a score entry that has said nothing for long enough.
    async fn score_entry(&self, generation: Generation, entry: &Entry, stale: &mut Watch) -> Result<(), Fail> {
        let Ok(member) = sorted::Member::of_score_entry(&entry.key) else { return Ok(()) };
        let Ok(nonce) = <[u8; 8]>::try_from(&entry.value[..]) else { return Ok(()) };
        let at = sorted::member_key(generation, &member.name);
        let says = async || {
            let state = self.store.ordered().get(&at).await?;
            let score = state.and_then(|bytes| Some(State::parse(&bytes).ok()?.score));
            Ok::<_, Fail>(score.is_some_and(|score| score.to_bits() == member.score.to_bits()))
        };
        if says().await?
            || !stale.settled(&entry.key, u64::from_le_bytes(nonce), self.store.periods.settle)
            || says().await?
        {
            return Ok(());
        }
        if self.store.ordered().remove_if(&entry.key, &nonce).await? == RemoveIf::Removed {
            self.shared.counters.swept.inc();
        }
        stale.0.remove(&entry.key[..]);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
