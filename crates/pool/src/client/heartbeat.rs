//! The heartbeat of a client: renews its lease, publishes how far it has quiesced, advances the epoch, and evicts
//! clients whose leases have expired.

use super::{Client, FlagGuard, lock, nanos};
use crate::faults::{Fault, planted};
use crate::layout::{CLIENT_SLOT_LEN, ClientSlot, HOME, first_word, header, header_word, registration, renewed};
use crate::lease::{clients, describe, evict, identity_of, parse_slots, read_slots};
use crate::{PoolError, mark};
use farindex_fabric::{Endpoint, FabricError, OpKind, Span, cold};
use std::mem::offset_of;
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A client without a heartbeat for this part of a lease may be gone.
const SILENT_SHARE: u32 = 512;

impl Client {
    /// Renews the lease: reads the epoch, publishes how far this client has quiesced, and advances the epoch if every
    /// client has quiesced in it. Costs two round trips, and those of [`on_tick`](Self::on_tick). Returns at once if
    /// another one is running; the caller after that begins a second one.
    pub async fn tick(&self, endpoint: &Endpoint) -> Result<(), PoolError> {
        if self.is_lost() {
            return Err(PoolError::LeaseLost);
        }
        // A caller that finds a tick running leaves the work to it, and lets the next caller begin one: where many operations
        // wait for the epoch, ticks overlap, and it advances sooner.
        if self.ticking.swap(true, Ordering::AcqRel) {
            self.ticking.store(false, Ordering::Release);
            return Ok(());
        }
        let _ticking = FlagGuard(&self.ticking);
        match self.tick_alone(endpoint).await {
            Err(PoolError::Fabric(FabricError::Revoked)) => {
                self.mark_lost();
                Err(PoolError::LeaseLost)
            }
            done => done,
        }
    }

    async fn tick_alone(&self, endpoint: &Endpoint) -> Result<(), PoolError> {
        let span = endpoint.span(OpKind::Maintenance);
        let geometry = self.pool.geometry(HOME);
        let known = self.epoch();
        let mut batch = span.batch();
        let began = endpoint.now();
        let epoch = batch.read(header_word(HOME, header::EPOCH), 8);
        let slots = batch.read(geometry.client(0), (self.pool.client_slots() * CLIENT_SLOT_LEN) as usize);
        let mut done = batch.post().await?;
        let epoch = checked_epoch(first_word(&done.buf(epoch)), known)?;
        let slots = done.buf(slots);
        let slots = parse_slots(&slots);
        self.watch().observe(slots, began, endpoint.now());
        let mine = slots.get(self.slot as usize).filter(|slot| registration(slot.state) == registration(self.state()));
        let Some(mine) = mine else {
            self.mark_lost();
            return Err(PoolError::LeaseLost);
        };
        self.state.store(mine.state, Ordering::Relaxed);
        // First the epoch, then the pins: see the module `epoch`.
        self.epoch.fetch_max(epoch, Ordering::SeqCst);
        let quiesced = {
            let pins = lock(&self.pins);
            pins.iter().filter_map(|pin| pin.get()).fold(epoch, u64::min)
        };
        let (mut all_quiesced, mut alone) = (quiesced >= epoch, true);
        for (slot, record) in slots.iter().enumerate() {
            if slot as u64 == self.slot || !record.active() && !record.registering() {
                continue;
            }
            alone = false;
            let blocks = all_quiesced && record.quiesced < epoch;
            // The client that has begun an eviction may have crashed.
            if blocks || record.evicting() {
                // The epoch advances past a client only after its eviction: before that its verbs may still take
                // effect.
                // Whether a process is gone is asked of the system, which may cost more than the whole tick: not of one whose
                // heartbeat was seen just now.
                let asks = record.evicting() || self.watch().expired(slot, self.pool.lease() / SILENT_SHARE);
                let evicted = asks
                    && self.has_expired(slot, record)
                    && (planted(Fault::EpochSkipsRevocation) || evict(&self.pool, &span, slot as u64, record).await?);
                all_quiesced &= evicted || !blocks;
            }
        }
        let (posted, lease) = (nanos(endpoint.now()), nanos(self.pool.lease()));
        let silent = |until: u64| until.saturating_sub(self.beat_at.load(Ordering::Relaxed));
        // Without any other client there is nobody who could end an eviction.
        let renews = if mine.evicting() { alone } else { silent(posted) >= lease };
        let mut batch = span.batch();
        let heartbeat = self.heartbeat.fetch_add(1, Ordering::Relaxed) + 1;
        let at = geometry.client(self.slot).add(offset_of!(ClientSlot, heartbeat) as u64);
        batch.write_words(at, &[heartbeat, quiesced]);
        let renewal = renews.then(|| batch.cas(geometry.client(self.slot), mine.state, renewed(mine.state)));
        let advance = all_quiesced.then(|| batch.cas(header_word(HOME, header::EPOCH), epoch, epoch + 1));
        let mut done = batch.post().await?;
        let renewed_now = renewal.is_some_and(|renewal| done.old(renewal) == mine.state);
        if renewed_now {
            mark!("clients: lease renewed after it had expired");
            self.state.store(renewed(mine.state), Ordering::Relaxed);
            self.missed_leases.fetch_add(1, Ordering::Relaxed);
        }
        let in_time = renewal.is_none() && !mine.evicting() && silent(nanos(endpoint.now())) < lease;
        if renewed_now || in_time || planted(Fault::LateHeartbeatCounts) {
            self.beat_at.fetch_max(posted, Ordering::Relaxed);
        }
        if let Some(advance) = advance
            && done.old(advance) == epoch
        {
            self.epoch.fetch_max(epoch + 1, Ordering::SeqCst);
        }
        let Some(_in_tasks) = FlagGuard::raise(&self.in_tasks) else { return Ok(()) };
        let tasks: Vec<_> = lock(&self.on_tick).iter().filter_map(Weak::upgrade).collect();
        for task in tasks {
            if let Err(FabricError::Revoked) = task.tick(endpoint).await {
                return Err(PoolError::Fabric(FabricError::Revoked));
            }
        }
        self.drop_done();
        Ok(())
    }

    /// Describes the clients that keep the epoch from advancing: those that have not quiesced in the epoch that this
    /// client knows. This client's own operations may keep it as well, and batches that hold a pin and have not ended.
    pub async fn laggards(&self, span: &Span) -> Result<String, PoolError> {
        let (epoch, all) = (self.epoch(), clients(&self.pool, span).await?);
        let lagging = all.iter().filter(|other| other.slot != self.slot && other.record.quiesced < epoch);
        let mut words: Vec<_> = lagging.map(|other| describe(&all, other.slot, None)).collect();
        if lock(&self.pins).iter().filter_map(|pin| pin.get()).any(|pinned| pinned < epoch) {
            words.push("an operation of this client".to_owned());
        }
        Ok(if words.is_empty() { "a client that has just quiesced".to_owned() } else { words.join(" or ") })
    }

    /// Returns whether another client's lease has expired, as far as this client has observed, or the client is known
    /// to be gone.
    pub(crate) fn has_expired(&self, slot: usize, record: &ClientSlot) -> bool {
        let gone = || record.active() && self.pool.fabric().is_gone(&identity_of(record)) == Some(true);
        let lease = if planted(Fault::EvictsEarly) { self.pool.lease() / 2 } else { self.pool.lease() };
        slot as u64 != self.slot && (record.evicting() || self.watch().expired(slot, lease) || gone())
    }

    /// Returns whether another client that has not quiesced in the epoch that this client knows was seen without a
    /// heartbeat for `time`. The ticks of this client observe the others.
    pub(crate) fn has_silent_laggard(&self, time: Duration) -> bool {
        self.watch().has_silent_laggard(self.slot as usize, self.epoch(), time)
    }

    /// READs all slots, and records the heartbeats.
    pub(crate) async fn observe_slots(&self, span: &Span) -> Result<Vec<ClientSlot>, PoolError> {
        let began = span.endpoint().now();
        let buf = read_slots(span, &self.pool).await?;
        let slots = parse_slots(&buf).to_vec();
        self.watch().observe(&slots, began, span.endpoint().now());
        Ok(slots)
    }

    /// Evicts every client that is gone or whose lease has expired; returns their number. An expiry takes a lease to
    /// observe: call this repeatedly, or use [`wait_and_evict_expired`](Self::wait_and_evict_expired).
    pub async fn evict_expired(&self, endpoint: &Endpoint) -> Result<u64, PoolError> {
        cold(self.evict_expired_inner(endpoint)).await
    }

    async fn evict_expired_inner(&self, endpoint: &Endpoint) -> Result<u64, PoolError> {
        let span = endpoint.span(OpKind::Maintenance);
        let slots = self.observe_slots(&span).await?;
        let mut evicted = 0;
        for (slot, record) in slots.iter().enumerate().filter(|(_, record)| record.active() || record.registering()) {
            if self.has_expired(slot, record) && evict(&self.pool, &span, slot as u64, record).await? {
                evicted += 1;
            }
        }
        Ok(evicted)
    }

    /// Observes all clients for slightly longer than one lease, and evicts those whose lease has expired by then;
    /// returns their number.
    pub async fn wait_and_evict_expired(&self, endpoint: &Endpoint) -> Result<u64, PoolError> {
        let lease = self.pool.lease();
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
}

/// Checks an epoch that was read: it begins at 1, never decreases, and stays below 2^62.
pub(super) fn checked_epoch(epoch: u64, known: u64) -> Result<u64, PoolError> {
    if (known..1 << 62).contains(&epoch) {
        return Ok(epoch);
    }
    let what = format!("the epoch is {epoch}, after {known}");
    Err(PoolError::Corrupt { at: header_word(HOME, header::EPOCH), what })
}
