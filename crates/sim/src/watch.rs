//! Watches the slots in which clients show that they are alive, and notes for how long each was silent before its client was
//! revoked.
//!
//! Invariants: watching changes nothing. It compares words after each event that may have changed one of them, so whatever
//! stores to a memory node says so ([`note_store`]). It is for tests with few slots.

use crate::world::World;
use farindex_fabric::RemotePtr;
use std::ops::Range;
use std::time::Duration;

/// Where the slots lie, and what is in them.
#[derive(Debug, Clone, Copy)]
pub struct Watch {
    /// The first slot.
    pub at: RemotePtr,
    /// Number of slots.
    pub slots: usize,
    /// Words of a slot.
    pub words: usize,
    /// The first so many words of a slot show that the client is alive when one of them changes. The first word, without its
    /// lowest byte, changes when another client takes the slot.
    pub changing: usize,
    /// The word of a slot that holds the token of its client's identity.
    pub token: usize,
    /// Whether the token in a slot is its client's, by the slot's first word. A client that leaves a slot leaves its token
    /// there, and it stays until the next one has written its own.
    pub registered: fn(u64) -> bool,
    /// Whether a change of a slot's first word, before and after, ends an eviction.
    pub evicts: fn(u64, u64) -> bool,
}

/// A client was revoked on a node while its token stood in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Revocation {
    /// The slot.
    pub slot: usize,
    /// The longest time without a change of the slot since the client had taken it.
    pub silent: Duration,
    /// The client had crashed, and the fabric reports that.
    pub crashed: bool,
}

/// What was seen of one slot.
#[derive(Debug, Clone, Default)]
struct Seen {
    words: Vec<u64>,
    changed_at: u64,
    longest: u64,
}

/// What was seen of all slots.
#[derive(Debug)]
pub(crate) struct Watching {
    spec: Watch,
    seen: Vec<Seen>,
    /// The slots may have changed since they were compared.
    changed: bool,
    pub(crate) revocations: Vec<Revocation>,
    /// Slots whose clients were evicted and were not revoked on every node.
    pub(crate) unrevoked: Vec<usize>,
}

/// Notes that words of a memory node are stored to, in case that slots are among them.
pub(crate) fn note_store(watching: &mut Option<Watching>, node: usize, words: Range<usize>) {
    if let Some(Watching { spec, changed, .. }) = watching
        && spec.at.node().index() == node
    {
        let first = spec.first_word();
        *changed |= words.start < first + spec.slots * spec.words && first < words.end;
    }
}

impl Watch {
    fn first_word(&self) -> usize {
        (self.at.offset() / 8) as usize
    }
}

impl World {
    pub(crate) fn start_watch(&mut self, spec: Watch) {
        let seen = vec![Seen { changed_at: self.now, ..Seen::default() }; spec.slots];
        self.watching = Some(Watching { spec, seen, changed: true, revocations: Vec::new(), unrevoked: Vec::new() });
        self.watch_slots();
    }

    /// Notes what the last event has changed.
    pub(crate) fn watch_slots(&mut self) {
        let World { watching: Some(Watching { spec, seen, changed, unrevoked, .. }), nodes, now, .. } = self else {
            return;
        };
        let changed = std::mem::take(changed);
        if !changed && !cfg!(debug_assertions) {
            return;
        }
        let first = spec.first_word();
        let Some(node) = nodes.get(spec.at.node().index()) else { return };
        for (slot, seen) in seen.iter_mut().enumerate() {
            let from = first + slot * spec.words;
            let Some(words) = node.words.get(from..from + spec.changing) else { continue };
            if seen.words == words {
                continue;
            }
            debug_assert!(changed, "a store to slot {slot} was not noted");
            let evicted = matches!((seen.words.first(), words.first()), (Some(a), Some(b)) if (spec.evicts)(*a, *b));
            let token = node.words.get(from + spec.token);
            if evicted && !token.is_some_and(|token| nodes.iter().all(|node| node.revoked.contains(token))) {
                unrevoked.push(slot);
            }
            // Without the renewals of an expired lease, which are in the upper bits.
            let owner = |words: &[u64]| words.first().map(|state| state >> 8 & ((1 << 40) - 1));
            let silent = *now - seen.changed_at;
            seen.longest = if owner(&seen.words) == owner(words) { seen.longest.max(silent) } else { 0 };
            seen.changed_at = *now;
            seen.words = words.to_vec();
        }
    }

    /// Notes that the client of this token is revoked on a node, unless it has no slot: then its eviction was noted
    /// before.
    pub(crate) fn note_revocation(&mut self, token: u64) {
        let Some(Watching { spec, seen, .. }) = &self.watching else { return };
        let first = spec.first_word();
        let Some(node) = self.nodes.get(spec.at.node().index()) else { return };
        let is_of_client = |slot: &usize| {
            let words = node.words.get(first + slot * spec.words..).unwrap_or_default();
            words.get(spec.token) == Some(&token) && words.first().is_some_and(|state| (spec.registered)(*state))
        };
        let Some(slot) = (0..spec.slots).find(is_of_client) else { return };
        let silent = Duration::from_nanos(seen[slot].longest.max(self.now - seen[slot].changed_at));
        let crashed =
            self.reports_crashes && self.conns.iter().any(|conn| conn.token == token && self.has_crashed(conn.client));
        if let Some(watching) = &mut self.watching {
            watching.revocations.push(Revocation { slot, silent, crashed });
        }
    }
}
