//! Leases: the registered clients as an observer sees them, expired leases, and eviction.
//!
//! Invariants: a lease has expired if the observer has seen the client's slot unchanged for a whole lease, measured on
//! the observer's own clock. An active client loses its slot only after it was revoked on every memory node (G6), so no
//! verb of an *evicted* client takes effect any more.

use crate::faults::{Fault, planted};
use crate::layout::{
    ACTIVE, CLIENT_SLOT_LEN, ClientSlot, EVICTING, HOME, REGISTERING, first_word, registration, renewed,
};
use crate::leaks::Leaks;
use crate::{Pool, PoolError, mark};
use farindex_fabric::{Buf, FabricError, Identity, Span};
use std::time::Duration;
use zerocopy::FromBytes;

/// A registered client, for display and for checkers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientInfo {
    /// Number of the client's slot.
    pub slot: u64,
    /// Content of the slot.
    pub record: ClientSlot,
    /// The client's identity on the fabric.
    pub identity: Identity,
    /// True if the client is known to be gone; `None` if the fabric cannot tell.
    pub gone: Option<bool>,
}

/// Returns all registered clients.
pub async fn clients(pool: &Pool, span: &Span) -> Result<Vec<ClientInfo>, PoolError> {
    let slots = read_slots(span, pool).await?;
    let active = parse_slots(&slots).iter().enumerate().filter(|(_, slot)| slot.active());
    Ok(active
        .map(|(i, record)| {
            let identity = identity_of(record);
            ClientInfo { slot: i as u64, record: *record, identity, gone: pool.fabric().is_gone(&identity) }
        })
        .collect())
}

/// Returns whose every client slot is ([`registration`]). For a client that is known to be gone, that is what the slot says
/// after its eviction, whether or not it has been evicted already.
pub(crate) async fn slot_words(pool: &Pool, span: &Span) -> Result<Vec<u64>, PoolError> {
    let slots = read_slots(span, pool).await?;
    let gone = |slot: &ClientSlot| slot.active() && pool.fabric().is_gone(&identity_of(slot)) == Some(true);
    Ok(parse_slots(&slots)
        .iter()
        .map(|slot| registration(if gone(slot) { slot.state & !0xFF } else { slot.state }))
        .collect())
}

/// The identity that a client has written into its slot.
pub(crate) fn identity_of(slot: &ClientSlot) -> Identity {
    let [token, pid, started] = slot.identity;
    Identity { token, pid, started }
}

/// READs all client slots.
pub(crate) async fn read_slots(span: &Span, pool: &Pool) -> Result<Buf, PoolError> {
    let len = (pool.client_slots() * CLIENT_SLOT_LEN) as usize;
    Ok(span.read(pool.geometry(HOME).client(0), len).await?)
}

/// The client slots in a buffer of whole slots.
pub(crate) fn parse_slots(buf: &Buf) -> &[ClientSlot] {
    <[ClientSlot]>::ref_from_bytes(buf.bytes()).unwrap_or_default()
}

/// Bits of a slot's generation that an intent carries.
pub(crate) const GENERATION_MASK: u64 = (1 << 24) - 1;

/// Describes a client in words: the one of this generation (its low 24 bits), or the present owner of the slot.
pub(crate) fn describe(clients: &[ClientInfo], slot: u64, generation: Option<u64>) -> String {
    let same = |client: &&ClientInfo| {
        let now = client.record.generation() & GENERATION_MASK;
        client.slot == slot && generation.is_none_or(|generation| generation == now)
    };
    match clients.iter().find(same) {
        Some(client) => {
            let state = if client.gone == Some(true) { ", which is gone" } else { "" };
            format!("client {slot} (process {}{state})", client.identity.pid)
        }
        None => format!("client {slot}, which has left"),
    }
}

/// What one observer knows of one slot: its changing words, and how long they have been seen unchanged.
#[derive(Debug, Clone, Copy, Default)]
struct Observation {
    /// State, heartbeat, quiesced.
    words: [u64; 3],
    /// End of the first READ that returned these words.
    since: Duration,
    /// Beginning of the last READ that returned them.
    until: Duration,
}

impl Observation {
    fn unchanged_for(&self, time: Duration) -> bool {
        self.until.saturating_sub(self.since) >= time
    }
}

/// The heartbeats of all clients, as one observer sees them on its own clock.
#[derive(Debug, Default)]
pub(crate) struct LeaseWatch {
    slots: Vec<Observation>,
}

impl LeaseWatch {
    /// Records the result of a READ of all slots that was posted at `began` and completed at `ended`.
    pub(crate) fn observe(&mut self, slots: &[ClientSlot], began: Duration, ended: Duration) {
        if self.slots.len() != slots.len() {
            self.slots = vec![Observation::default(); slots.len()];
        }
        for (seen, slot) in self.slots.iter_mut().zip(slots) {
            let words = [slot.state, slot.heartbeat, slot.quiesced];
            if seen.words != words || seen.until == Duration::ZERO {
                *seen = Observation { words, since: ended, until: ended };
            } else {
                // Sessions on several threads may report in any order.
                seen.until = seen.until.max(began);
            }
        }
    }
    /// Returns whether this slot was seen unchanged for a lease.
    pub(crate) fn expired(&self, slot: usize, lease: Duration) -> bool {
        self.slots.get(slot).is_some_and(|seen| seen.unchanged_for(lease))
    }
    /// Returns whether the slot of a client other than `own` that has not quiesced in `epoch` was seen unchanged for
    /// `time`.
    pub(crate) fn has_silent_laggard(&self, own: usize, epoch: u64, time: Duration) -> bool {
        self.slots.iter().enumerate().any(|(slot, seen)| {
            let [state, _, quiesced] = seen.words;
            slot != own
                && matches!(state & 0xFF, ACTIVE | REGISTERING | EVICTING)
                && quiesced < epoch
                && seen.unchanged_for(time)
        })
    }
}

/// Evicts a client: says so in its slot, revokes it on every memory node, and then frees the slot. Returns `false` if the
/// client is not evicted: the fabric cannot revoke it, it has renewed its lease since `record` was READ, or `record` shows the
/// identity of another one.
pub(crate) async fn evict(pool: &Pool, span: &Span, slot: u64, record: &ClientSlot) -> Result<bool, PoolError> {
    if record.active() && !is_owners_identity(pool, span, slot, record).await? {
        return Ok(false);
    }
    let at = pool.geometry(HOME).client(slot);
    if planted(Fault::FreedBeforeRevocation) {
        span.cas(at, record.state, record.state & !0xFF).await?;
    }
    let mut state = record.state;
    if record.active() && !record.evicting() {
        // From here on no heartbeat of the client counts, so it knows soon that it may be evicted at any time.
        state = state & !0xFF | EVICTING;
        let old = span.cas(at, record.state, state).await?;
        if old != record.state && old != state && !planted(Fault::FreedBeforeRevocation) {
            mark!("takeover: client renewed its lease in time");
            return Ok(false);
        }
    }
    if record.active() && !planted(Fault::NoRevocation) {
        for (revoked, node) in pool.nodes().enumerate() {
            match span.revoke(node, identity_of(record)).await {
                Ok(()) => {}
                Err(FabricError::CannotRevoke(_) | FabricError::Unsupported { .. }) => {
                    if revoked == 0 {
                        span.cas(at, state, renewed(state)).await?;
                    }
                    return Ok(false);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    if record.active() {
        mark!("takeover: client evicted");
        #[cfg(feature = "marks")]
        crate::ledger::evicted((slot, record.generation()));
    } else {
        mark!("takeover: slot of an unfinished registration freed");
    }
    let mut batch = span.batch();
    if record.active() {
        Leaks::count(&mut batch);
    }
    batch.cas(at, state, state & !0xFF);
    batch.post().await?;
    Ok(true)
}

/// READs a slot again; returns whether its owner in `record` has the identity that is there.
///
/// One READ may show the state of one owner and the identity of the one before (N2), who may be gone. A READ that begins
/// after an owner's state was seen shows the identity of that one or of a later one, and then the state behind it is
/// another.
async fn is_owners_identity(pool: &Pool, span: &Span, slot: u64, record: &ClientSlot) -> Result<bool, PoolError> {
    let at = pool.geometry(HOME).client(slot);
    let mut batch = span.batch();
    let (again, state) = (batch.read(at, CLIENT_SLOT_LEN as usize), batch.read(at, 8));
    let mut done = batch.post().await?;
    let (again, state) = (done.buf(again), first_word(&done.buf(state)));
    let same = |again: &ClientSlot| again.identity == record.identity;
    let confirmed = registration(state) == registration(record.state) && parse_slots(&again).first().is_some_and(same);
    if !confirmed {
        mark!("takeover: slot has another owner than its identity says");
    }
    Ok(confirmed)
}
