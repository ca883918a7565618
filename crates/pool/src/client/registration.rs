//! Registration: takes a client slot and writes the client's identity into it.
//!
//! Invariants: a slot contains its owner's identity before it counts as active. A registering client changes the slot
//! only by CASes, so they have no effect if the slot was freed and taken by another client meanwhile.

use super::heartbeat::checked_epoch;
use super::node_cells::NodeCells;
use super::{Client, nanos};
use crate::faults::{Fault, planted};
use crate::layout::{ACTIVE, CLIENT_SLOT_LEN, ClientSlot, HOME, first_word, header, header_word, registration, taken};
use crate::lease::{LeaseWatch, evict, identity_of, parse_slots, read_slots};
use crate::{Pool, PoolError, mark};
use farindex_fabric::{Endpoint, Identity, OpKind, Span, cold};
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

impl Client {
    /// Takes a client slot. If all slots are taken, evicts clients that are gone or whose lease has expired, and fails
    /// slightly more than a lease later if none has. A slot in which every intent cell of a memory node still has an intent of a
    /// former owner is taken only if there is no other one, also after that time.
    pub async fn register(pool: &Pool, identity: Identity, endpoint: &Endpoint) -> Result<Arc<Client>, PoolError> {
        cold(Self::register_inner(pool, identity, endpoint)).await
    }

    async fn register_inner(pool: &Pool, identity: Identity, endpoint: &Endpoint) -> Result<Arc<Client>, PoolError> {
        let span = endpoint.span(OpKind::Other);
        let lease = pool.lease();
        let mut watch = LeaseWatch::default();
        let mut until = None;
        // Slots without an intent cell that can be used, and whether such a slot will do.
        let (mut without_cells, mut needs_cells) = (Vec::new(), true);
        loop {
            let began = endpoint.now();
            let slots = read_slots(&span, pool).await?;
            let slots = parse_slots(&slots);
            watch.observe(slots, began, endpoint.now());
            let mut raced = false;
            for (slot, seen) in (0..).zip(slots).filter(|(_, slot)| slot.vacant()) {
                if needs_cells && without_cells.contains(&slot) {
                    continue;
                }
                let state = taken(seen.state);
                if span.cas(pool.geometry(HOME).client(slot), seen.state, state).await? == seen.state
                    && let Some((epoch, heartbeat)) =
                        Self::activate_slot(pool, identity, &span, (slot, state), *seen).await?
                {
                    let state = state & !0xFF | ACTIVE;
                    let mut slots_before: Vec<u64> = slots.iter().map(|slot| registration(slot.state)).collect();
                    slots_before[slot as usize] = state;
                    let client = Client {
                        pool: pool.clone(),
                        identity,
                        slot,
                        state: AtomicU64::new(state),
                        epoch: AtomicU64::new(epoch),
                        heartbeat: AtomicU64::new(heartbeat),
                        lost: AtomicBool::new(false),
                        beat_at: AtomicU64::new(nanos(began)),
                        missed_leases: AtomicU64::new(0),
                        ticking: AtomicBool::new(false),
                        in_tasks: AtomicBool::new(false),
                        slots_before,
                        cataloguing: AtomicBool::new(false),
                        takings: AtomicU64::new(0),
                        pins: Mutex::default(),
                        opened: AtomicU64::new(0),
                        orphans: Mutex::default(),
                        intents: pool.nodes().map(|node| NodeCells::new(pool.geometry(node).intent_cells)).collect(),
                        watch: Mutex::default(),
                        shares: Mutex::default(),
                        on_tick: Mutex::default(),
                        lingering: Mutex::default(),
                    };
                    client.adopt_intent_cells(&span).await?;
                    let client = Arc::new(client);
                    if !needs_cells || client.can_declare() {
                        return Ok(client);
                    }
                    mark!("register: slot without an intent cell that can be used");
                    without_cells.push(slot);
                    client.close(endpoint).await?;
                }
                raced = true;
            }
            if raced {
                continue;
            }
            let gone = |slot: &ClientSlot| slot.active() && pool.fabric().is_gone(&identity_of(slot)) == Some(true);
            let taken = slots.iter().enumerate().filter(|(_, slot)| slot.active() || slot.registering());
            let expired = taken.filter(|(i, slot)| gone(slot) || watch.expired(*i, lease));
            let expired = expired.filter(|_| !planted(Fault::RegistersOnly));
            let mut evicted = false;
            for (slot, record) in expired {
                evicted |= evict(pool, &span, slot as u64, record).await?;
            }
            if evicted {
                continue;
            }
            // The last look begins after the limit. A look that takes longer than a lease shows only as much as had passed when
            // it began.
            if began > *until.get_or_insert_with(|| endpoint.now() + lease + lease / 8) {
                if needs_cells && !without_cells.is_empty() {
                    needs_cells = false;
                    continue;
                }
                return Err(PoolError::NoClientSlot(pool.client_slots() as usize));
            }
            endpoint.sleep((lease / 16).max(Duration::from_micros(20))).await;
        }
    }

    /// Fills in a slot that this client has taken, and begins its lease; returns the epoch and the heartbeat. `None` if another
    /// client freed the slot meanwhile.
    async fn activate_slot(
        pool: &Pool,
        identity: Identity,
        span: &Span,
        (slot, state): (u64, u64),
        seen: ClientSlot,
    ) -> Result<Option<(u64, u64)>, PoolError> {
        let at = pool.geometry(HOME).client(slot);
        // `quiesced` is zero until the last batch, which keeps the epoch from advancing. From before this client reads
        // the epoch until it publishes it, the epoch can advance by at most one.
        let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let mut mine = [0, 0, identity.token, identity.pid, identity.started, wall.as_secs()];
        // No two clients have the same heartbeat in a slot, so a READ that mixes words of both shows none of them as old (L1).
        let next = |seen: &[u64; 6]| seen[0].wrapping_add(1);
        const SINCE: u64 = offset_of!(ClientSlot, since) as u64 / 8;
        let words = |slot: &ClientSlot| {
            let [token, pid, started] = slot.identity;
            [slot.heartbeat, slot.quiesced, token, pid, started, slot.since]
        };
        let mut seen = words(&seen);
        mine[0] = next(&seen);
        let epoch = loop {
            let mut batch = span.batch();
            for (i, (seen, mine)) in (1..).zip(seen.into_iter().zip(mine)) {
                // The time is set even if it is there already: the verbs of a run must not depend on the time of day.
                if seen != mine || i == SINCE {
                    batch.cas(at.add(i * 8), seen, mine);
                }
            }
            let epoch = batch.read(header_word(HOME, header::EPOCH), 8);
            let again = batch.read(at, CLIENT_SLOT_LEN as usize);
            let mut done = batch.post().await?;
            let epoch = checked_epoch(first_word(&done.buf(epoch)), 1)?;
            let again = done.buf(again);
            let Some(record) = parse_slots(&again).first().filter(|record| record.state == state) else {
                return Ok(None);
            };
            seen = words(record);
            if seen == mine {
                break epoch;
            }
            if seen[0] != mine[0] {
                mine[0] = next(&seen);
            }
        };
        let mut batch = span.batch();
        batch.cas(at.add(offset_of!(ClientSlot, quiesced) as u64), 0, epoch);
        let begun = batch.cas(at, state, state & !0xFF | ACTIVE);
        let mut done = batch.post().await?;
        Ok((done.old(begun) == state).then_some((epoch, mine[0])))
    }
}
