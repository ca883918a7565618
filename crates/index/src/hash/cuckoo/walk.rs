//! Visits every entry of an index: for dumps, audits, recovery and drops.
//!
//! A walk makes passes, each for the keys of a range of hashes (docs/protocols/cuckoo.md, "Walks"). A pass goes through
//! the table and the next tables three times: first for the entries at their keys' first places, then for those at the
//! second, then for those at the third. Entries move forward only, so a pass visits every key that is present during
//! all of it. It remembers the visited keys, so it visits none twice. Each step reads one region and has its own pin.

use super::places::{WAYS, place_of};
use super::{Cuckoo, Table};
use crate::IndexError;
use crate::audit::{Damage, Findings, IndexAudit, OnDamage};
use crate::keyhash::{HASH_BITS, KeyHash};
use crate::marks::mark;
use crate::recovery::{HeldLock, wait_for_lock_holder};
use crate::slotted::geometry::{Geometry, LOCKED, REGION, Segment};
use crate::slotted::slot::{Slot, frozen};
use crate::slotted::walk::{
    self, Step, VisitedEntry, audit_entry, audit_region, audit_root, audit_walk, entries_of, free_what_was_moved,
    read_region,
};
use crate::visit::Entries;
use farindex_fabric::OpKind;
use farindex_pool::audit::Audit;
use farindex_pool::{LockTimeout, Names, Pin};
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

/// Figures of an audit: entries in head words, behind head words, and out of band; slots; regions not moved yet;
/// entries at their keys' first, second and third places.
const FIGURES: [&str; 5] = ["tiny_entries", "inline_entries", "heap_entries", "slots", "regions_to_move"];
const BY_PLACE: [&str; WAYS] = ["first_place", "second_place", "third_place"];

/// Number of region locks that one READ fetches.
const LOCKS: u64 = 64;

/// Number of slots for each pass: larger tables take more passes.
const PASS_SLOTS: u64 = 2 << 20;
/// Number of hashes.
const HASHES: u64 = 1 << HASH_BITS;

/// Position of a walk.
#[derive(Default)]
pub(crate) struct Progress {
    /// The hashes of this pass.
    hashes: Range<u64>,
    /// The place that the pass visits, and the next region. None in front of the next pass.
    at: Option<(usize, Segment, u64)>,
    /// Keys that this pass has visited.
    visited: HashSet<u128>,
    /// Two keyed hashes, with random keys of this walk, that make a 128-bit identity of a key.
    identity: [RandomState; 2],
}

impl Progress {
    /// Begins the next pass; `false` if the last one has ended. The size of the table determines the number of passes.
    fn begin_pass(&mut self, geometry: &Geometry) -> bool {
        let slots: u64 = geometry.segments().map(|segment| segment.slots()).sum();
        let from = self.hashes.end;
        self.hashes = from..HASHES.min(from + (HASHES / slots.div_ceil(PASS_SLOTS)).max(1));
        self.visited.clear();
        self.at = (!self.hashes.is_empty()).then_some((0, geometry.current, 0));
        self.at.is_some()
    }

    /// Continues behind a segment: with a newer segment, or with the next place in the table.
    fn end_segment(&mut self, place: usize, segment: &Segment, geometry: &Geometry) {
        let newer = geometry.segments().find(|of| of.generation > segment.generation);
        self.at = match newer {
            Some(newer) => Some((place, newer, 0)),
            None if place + 1 < WAYS => Some((place + 1, geometry.current, 0)),
            None => None,
        };
    }

    /// Returns whether the pass has keys with this signature.
    fn may_have(&self, signature: u8) -> bool {
        let first = u64::from(signature) << (HASH_BITS - 8);
        first < self.hashes.end && self.hashes.start < first + (1 << (HASH_BITS - 8))
    }

    /// Marks a key as visited; returns whether it is a key of the pass that was not visited before.
    fn is_new(&mut self, hash: KeyHash, key: &[u8]) -> bool {
        let [high, low] = [0, 1].map(|i: usize| u128::from(self.identity[i].hash_one(key)));
        self.hashes.contains(&hash.bits()) && self.visited.insert(high << 64 | low)
    }
}

impl Cuckoo {
    /// Hands out every key and value. The module's description says what it visits while other clients change
    /// the index.
    pub(crate) async fn visit_entries(&self, entries: &Entries, damaged: OnDamage<'_>) -> Result<u64, IndexError> {
        walk::visit(self, entries, damaged).await
    }

    /// Runs the next step of a walk.
    pub(super) async fn step_on(
        &self,
        table: &Table,
        pin: &Pin<'_>,
        progress: &mut Progress,
    ) -> Result<Option<Step>, IndexError> {
        loop {
            let Some((place, segment, region)) = progress.at else {
                if !progress.begin_pass(&table.geometry()) {
                    return Ok(None);
                }
                mark!("cuckoo walk: pass");
                continue;
            };
            if region == segment.regions || table.geometry().current.generation > segment.generation {
                // Entries that have left the segment are in a segment that the root names by now.
                progress.end_segment(place, &segment, &table.look(pin).await?);
                continue;
            }
            progress.at = Some((place, segment, region + 1));
            let slots = read_region(pin.span(), &segment, region).await?;
            let wanted = |signature| progress.may_have(signature);
            let (visited, mut wrong) =
                entries_of(&self.session, pin.span(), &segment, region * REGION, slots, wanted).await?;
            let mut new = Vec::new();
            for entry in visited {
                let hash = self.hash(&entry.key);
                match self.place_at(table, &entry) {
                    Some(at) if at == place && progress.is_new(hash, &entry.key) => new.push(entry),
                    Some(_) => {}
                    None => {
                        let slot = walk::name(&segment, segment.index_of(entry.at));
                        let what = format!("{slot} holds a key none of whose places is there");
                        wrong.push(Damage { at: entry.at, what });
                    }
                }
            }
            return Ok(Some(Step { visited: new, wrong }));
        }
    }

    /// Returns the place of its key at which an entry is.
    fn place_at(&self, table: &Table, entry: &VisitedEntry) -> Option<usize> {
        let slot = entry.segment.index_of(entry.at);
        place_of(self.hash(&entry.key), &entry.segment, table.own.associativity, slot)
    }

    /// Walks the whole index, records every object in `audit`, and checks every entry: its bytes are sound, and it lies
    /// where a lookup finds it. `alone` states that no other client is at work: then an unfinished move is a problem.
    /// Otherwise each key is counted once, as a walk visits it.
    pub(crate) async fn audit(&self, audit: &mut Audit, alone: bool) -> Result<IndexAudit, IndexError> {
        let mut findings = Findings::new(&self.session, audit, alone, &[&FIGURES[..], &BY_PLACE].concat());
        for (table, node) in self.tables.iter().zip(self.session.pool().nodes()) {
            let Some(geometry) = audit_root(table, node, &mut findings).await? else { continue };
            for segment in geometry.segments() {
                for region in 0..segment.regions {
                    self.audit_entries(table, &geometry, &segment, region, &mut findings).await?;
                }
            }
            if !alone {
                let place = |entry: &VisitedEntry| self.place_at(table, entry).and_then(|place| BY_PLACE.get(place));
                let also = |entry: &VisitedEntry, report: &mut IndexAudit| {
                    place(entry).into_iter().for_each(|of| report.count(of, 1))
                };
                audit_walk(self, table, &mut findings, also).await?;
            }
        }
        Ok(findings.finish())
    }

    async fn audit_entries(
        &self,
        table: &Table,
        geometry: &Geometry,
        segment: &Segment,
        region: u64,
        findings: &mut Findings<'_>,
    ) -> Result<(), IndexError> {
        let unfinished =
            |moved: bool, head: u64| frozen(head) || matches!(Slot::decode(head), Slot::Sealed | Slot::Moved) != moved;
        let read = audit_region(table, geometry, segment, region, findings, unfinished, |_, _| {}).await?;
        let Some((pin, slots)) = read.filter(|_| findings.alone) else { return Ok(()) };
        let first = region * REGION;
        let (visited, wrong) = entries_of(&self.session, pin.span(), segment, first, slots, |_| true).await?;
        wrong.into_iter().for_each(|damage| findings.problem(damage.what));
        for entry in visited {
            match self.place_at(table, &entry) {
                Some(place) => findings.count(BY_PLACE[place], 1),
                None => findings.problem(format!("the entry at {} lies where no lookup finds it", entry.at)),
            }
            audit_entry(&pin, &entry, self.hash(&entry.key), findings).await?;
        }
        Ok(())
    }

    /// Walks the whole index, recovers every region that a crashed client left unfinished, and returns the number of
    /// repairs. Operations do the same where they need such a region. A client that is alive and holds a lock for two
    /// leases is an error.
    pub(crate) async fn recover(&self) -> Result<u64, IndexError> {
        let session = &self.session;
        let mut recovered = 0;
        for table in &self.tables {
            recovered += table.recover_growth(session, self.uid).await?;
            for segment in table.current(session).await?.segments() {
                for first in (0..segment.regions).step_by(LOCKS as usize) {
                    recovered += self.recover_regions(table, &segment, first).await?;
                }
            }
        }
        if recovered > 0 {
            free_what_was_moved(session).await?;
        }
        Ok(recovered)
    }

    async fn recover_regions(&self, table: &Table, segment: &Segment, first: u64) -> Result<u64, IndexError> {
        let session = &self.session;
        let (mut timeout, mut recovered) = (LockTimeout::default(), 0);
        while let Some(pin) = table.pin_step(session, segment, OpKind::Maintenance).await? {
            let count = LOCKS.min(segment.regions - first);
            let locks = pin.span().read(segment.lock(first).at, count as usize * 8).await?;
            let Some(region) = (first..).zip(locks.words()).find(|(_, word)| **word == LOCKED).map(|(i, _)| i) else {
                break;
            };
            let held = self.mover(table, &pin).recover_locked(*segment, region).await?;
            drop(pin);
            recovered += u64::from(held.is_none());
            let held = held.unwrap_or(HeldLock { at: segment.lock(region).at, holders: Names::NONE });
            wait_for_lock_holder(session, &mut timeout, held).await?;
        }
        Ok(recovered)
    }
}
