//! Judges every eviction: a client that is evicted must have missed its heartbeats for a lease.
//!
//! Invariants: the simulator keeps, for each client slot of the pool, the longest time during which its words did not
//! change, no matter by which client. An observer that saw them unchanged for a lease saw a part of such a time, so a client is
//! evicted rightly only if one is as long as a lease, or if the client has crashed and the fabric says so. When its slot is
//! free, every memory node must have revoked the client whose identity is there. What the client believes is judged as well:
//! one that counts itself as keeping its lease has not been evicted (see `cluster`).

use farindex_fabric::NodeId;
use farindex_pool::Pool;
use farindex_pool::layout::{ACTIVE, CLIENT_SLOT_LEN, ClientSlot, EVICTING};
use farindex_sim::{Sim, Watch};
use std::mem::offset_of;
use std::time::Duration;

/// Has the simulator watch the client slots of this pool.
pub(crate) fn watch(sim: &Sim, pool: &Pool) {
    sim.watch(Watch {
        at: pool.geometry(NodeId::new(0)).client(0),
        slots: pool.client_slots() as usize,
        words: CLIENT_SLOT_LEN as usize / 8,
        changing: offset_of!(ClientSlot, identity) / 8,
        token: offset_of!(ClientSlot, identity) / 8,
        registered: |state| matches!(state & 0xFF, ACTIVE | EVICTING),
        evicts: |before, after| before & 0xFF == EVICTING && after == before & !0xFF,
    });
}

/// What is wrong with the evictions of a run.
pub(crate) fn judge(sim: &Sim, lease: Duration) -> Vec<String> {
    let early = sim.revocations().into_iter().filter(|revocation| !revocation.crashed && revocation.silent < lease);
    let early = early.map(|revocation| {
        let (silent, slot) = (revocation.silent, revocation.slot);
        format!("the client in slot {slot} was evicted, and had never been silent for longer than {silent:?}")
    });
    let unrevoked = sim.unrevoked().into_iter();
    early.chain(unrevoked.map(|slot| format!("the client in slot {slot} was evicted without being revoked"))).collect()
}
