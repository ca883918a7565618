//! Visits every entry of an index: for dumps, audits, recovery and drops.
//!
//! A walk is a sequence of steps. Each step looks up all keys of a range of places (docs/protocols/linear.md, "Walks"):
//! it READs the slots from the home of the range's first place on to an empty slot, and continues in the next table as
//! a lookup does. Ranges do not overlap, so a walk visits no key twice. Ranges do not depend on the size of the table,
//! so it may grow meanwhile. Each step has its own pin.

use super::migrate::Mover;
use super::{Linear, Table};
use crate::IndexError;
use crate::audit::{Damage, Findings, IndexAudit, OnDamage};
use crate::marks::mark;
use crate::recovery::recover_lock;
use crate::slotted::geometry::{Geometry, REGION, Segment, place};
use crate::slotted::mover::RegionMigrator;
use crate::slotted::slot::{Slot, frozen};
use crate::slotted::walk::{
    self, Step, VisitedEntry, audit_entry, audit_region, audit_root, audit_walk, entries_of, free_what_was_moved,
    read_slots,
};
use crate::visit::Entries;
use farindex_fabric::{OpKind, RemotePtr, Span};
use farindex_pool::Pin;
use farindex_pool::audit::Audit;
use std::collections::BTreeMap;

/// Figures of an audit: entries in head words, behind head words, and out of band; slots; dead slots; regions not moved
/// yet.
const FIGURES: [&str; 6] = ["tiny_entries", "inline_entries", "heap_entries", "slots", "dead_slots", "regions_to_move"];

/// Maximum bytes of entries that a step holds, unless one place has more. A range with more is cut.
const STEP_BYTES: usize = 1 << 20;
/// Approximate bytes of an entry without its key and value.
const ENTRY_BYTES: usize = 64;

/// Position of a walk: the first place that it has not visited. None at the end.
pub(crate) struct Progress(Option<u64>);

impl Default for Progress {
    fn default() -> Self {
        Progress(Some(0))
    }
}

/// A range of places, and the entries of its keys that have been visited.
struct Range {
    from: u64,
    /// End of the range, exclusive: at most 2^64.
    to: u128,
    /// Whether the paths of all keys in front of `to` are known to end there.
    closed: bool,
    found: BTreeMap<(u64, Vec<u8>), VisitedEntry>,
    bytes: usize,
    wrong: Vec<Damage>,
}

/// The paths of a range's keys in one table.
struct Path {
    /// Whether they end at a slot that is or was empty.
    ends: bool,
    /// A slot on them that shows that a newer table exists.
    sign: Option<u64>,
}

impl Range {
    fn new(from: u64) -> Self {
        Range { from, to: 1 << 64, closed: false, found: BTreeMap::new(), bytes: 0, wrong: Vec::new() }
    }

    /// Adds an entry whose key has this place, unless the key has been visited.
    fn add(&mut self, place: u64, entry: VisitedEntry) {
        if place < self.from || u128::from(place) >= self.to {
            return;
        }
        let bytes = ENTRY_BYTES + entry.key.len() + entry.value.len();
        self.found.entry((place, entry.key.clone())).or_insert_with(|| {
            self.bytes += bytes;
            entry
        });
        let places = |range: &Range| {
            let mut places = range.found.keys().map(|(place, _)| *place);
            Some((places.next()?, places.next_back()?))
        };
        while self.bytes > STEP_BYTES
            && let Some((first, last)) = places(self)
            && first < last
        {
            mark!("linear walk: range cut");
            self.cut(u128::from(last));
        }
    }

    /// Ends the range in front of this place.
    fn cut(&mut self, to: u128) {
        self.to = self.to.min(to);
        while let Some(last) = self.found.last_entry().filter(|last| u128::from(last.key().0) >= self.to) {
            let entry = last.remove();
            self.bytes -= ENTRY_BYTES + entry.key.len() + entry.value.len();
        }
    }

    /// READs the paths of all of its keys in a table. In the first table, this sets the end of the range to the end of
    /// a path.
    async fn read(&mut self, linear: &Linear, span: &Span, segment: &Segment) -> Result<Path, IndexError> {
        let (home, slots) = (segment.home_of(self.from), segment.slots());
        let mut path = Path { ends: false, sign: None };
        let mut walked = 0;
        while walked < slots && !path.ends {
            let at = segment.after(home, walked);
            let count = REGION.min(slots - at).min(slots - walked);
            let buf = read_slots(span, segment, at, count).await?;
            let last = u64::try_from(self.to - 1).map_or(slots - 1, |place| segment.home_of(place));
            let mut end = None;
            for (i, head) in (walked..).zip(buf.words().iter().step_by(segment.width / 8)) {
                let slot = Slot::decode(*head);
                if matches!(slot, Slot::Sealed | Slot::Moved) && path.sign.is_none() {
                    path.sign = Some(segment.after(home, i));
                }
                if matches!(slot, Slot::Empty | Slot::Sealed) && (!self.closed || home + i >= last) {
                    end = Some(home + i);
                }
            }
            if let Some(end) = end {
                path.ends = true;
                // Behind the last slot, the path of its home ends there.
                if !self.closed && end + 1 < slots {
                    self.cut(segment.first_place(end + 1));
                }
            }
            let (visited, wrong) = entries_of(&linear.session, span, segment, at, buf, |_| true).await?;
            visited.into_iter().for_each(|entry| self.add(place(linear.hash(&entry.key)), entry));
            self.wrong.extend(wrong);
            walked += count;
        }
        self.closed = true;
        Ok(path)
    }

    /// Looks up all of its keys, and sets its end; `false` if the table has been replaced, and the range must begin
    /// again.
    async fn look_up(&mut self, linear: &Linear, table: &Table, pin: &Pin<'_>) -> Result<bool, IndexError> {
        let mut segment = table.geometry().current;
        loop {
            let Path { ends, sign } = self.read(linear, pin.span(), &segment).await?;
            if ends && sign.is_none() {
                return Ok(true);
            }
            let mut next = table.next_of(&segment);
            if next.is_none() {
                // Without an end and without a sign, only the root shows whether keys are in a next table.
                if table.look(pin).await?.current.generation > segment.generation {
                    mark!("linear walk: range begun again");
                    return Ok(false);
                }
                next = table.next_of(&segment);
            }
            match (next, sign) {
                (Some(next), _) => {
                    mark!("linear walk: on to the next table");
                    segment = next;
                }
                (None, None) => return Ok(true),
                (None, Some(index)) => {
                    let what =
                        format!("{} is sealed or moved, and there is no next table", walk::name(&segment, index));
                    self.wrong.push(Damage { at: segment.slot(index), what });
                    return Ok(true);
                }
            }
        }
    }
}

impl Linear {
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
        Progress(left): &mut Progress,
    ) -> Result<Option<Step>, IndexError> {
        let Some(from) = *left else { return Ok(None) };
        let range = loop {
            let mut range = Range::new(from);
            if range.look_up(self, table, pin).await? {
                break range;
            }
        };
        *left = u64::try_from(range.to).ok();
        Ok(Some(Step { visited: range.found.into_values().collect(), wrong: range.wrong }))
    }

    /// Walks the whole index, records every object in `audit`, and checks every entry: its bytes are sound. `alone`
    /// states that no other client is at work: then an unfinished move is a problem, and so is an entry that no lookup
    /// finds. Otherwise each key is counted once, as a walk visits it.
    pub(crate) async fn audit(&self, audit: &mut Audit, alone: bool) -> Result<IndexAudit, IndexError> {
        let mut findings = Findings::new(&self.session, audit, alone, &FIGURES);
        for (table, node) in self.tables.iter().zip(self.session.pool().nodes()) {
            let Some(geometry) = audit_root(table, node, &mut findings).await? else { continue };
            for segment in geometry.segments() {
                self.audit_segment(table, &geometry, &segment, &mut findings).await?;
            }
            if !alone {
                audit_walk(self, table, &mut findings, |_, _| {}).await?;
            }
        }
        Ok(findings.finish())
    }

    async fn audit_segment(
        &self,
        table: &Table,
        geometry: &Geometry,
        segment: &Segment,
        findings: &mut Findings<'_>,
    ) -> Result<(), IndexError> {
        // For each slot, whether a lookup ends there; for each entry, its slot and its home.
        let mut ends = Vec::new();
        let mut places = Vec::new();
        for region in 0..segment.regions {
            let unfinished = |moved: bool, head: u64| {
                let slot = Slot::decode(head);
                frozen(head)
                    || matches!(slot, Slot::Reserved(_))
                    || moved && !matches!(slot, Slot::Sealed | Slot::Moved | Slot::Dead)
            };
            let each = |report: &mut IndexAudit, head: u64| {
                let slot = Slot::decode(head);
                ends.push(matches!(slot, Slot::Empty | Slot::Sealed));
                report.count("dead_slots", u64::from(slot == Slot::Dead));
            };
            let read = audit_region(table, geometry, segment, region, findings, unfinished, each).await?;
            let Some((pin, slots)) = read else { return Ok(()) };
            if !findings.alone {
                continue;
            }
            let first = region * REGION;
            let (visited, wrong) = entries_of(&self.session, pin.span(), segment, first, slots, |_| true).await?;
            wrong.into_iter().for_each(|damage| findings.problem(damage.what));
            for entry in visited {
                let hash = self.hash(&entry.key);
                places.push((entry.at, segment.home(hash)));
                audit_entry(&pin, &entry, hash, findings).await?;
            }
        }
        if findings.alone {
            check_reachable(segment, &ends, &places, findings);
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
            let geometry = table.current(&self.session).await?;
            let (Some(next), from) = (geometry.next, geometry.current) else { continue };
            for region in 0..from.regions {
                let pin = async || table.pin_step(session, &from, OpKind::Maintenance).await;
                let attempt = async |pin: &Pin<'_>| {
                    let mover = Mover { index: self.uid, seed: self.seed, table, pin };
                    mover.try_recover_lock(from, next, region).await
                };
                recovered += recover_lock(session, from.lock(region), pin, attempt).await?;
            }
        }
        if recovered > 0 {
            free_what_was_moved(session).await?;
        }
        Ok(recovered)
    }
}

/// Reports each entry that lies behind an empty slot, as seen from its home.
fn check_reachable(segment: &Segment, ends: &[bool], places: &[(RemotePtr, u64)], findings: &mut Findings<'_>) {
    // For each slot, the length of the run in front of it that ends no lookup. Two rounds, because the table is a ring.
    let mut before = vec![0u64; ends.len()];
    let mut run = 0;
    for i in 0..2 * ends.len() {
        let i = i % ends.len();
        before[i] = run;
        run = if ends[i] { 0 } else { (run + 1).min(segment.slots()) };
    }
    for (at, home) in places {
        let index = segment.index_of(*at);
        let away = segment.after(index, segment.slots() - home);
        if before.get(index as usize).is_none_or(|before| *before < away) {
            findings.problem(format!("the entry at {at} lies where no lookup finds it"));
        }
    }
}
