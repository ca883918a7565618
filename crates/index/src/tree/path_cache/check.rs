//! The invariants of a path cache that nobody uses, for its tests.

use super::frame::{Content, Frame};
use super::table::{Place, Table};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Checks C1, C2, C3 and C5, while nobody holds a frame that has left the cache. `own` are the bytes of the tables.
pub(super) fn check<N: Content>(table: &Table<N>, own: u64) -> Result<(), String> {
    let all = table.frames();
    let by_address: HashMap<u64, &Arc<Frame<N>>> = all.iter().map(|(frame, _)| (frame.at, frame)).collect();
    let mut held: BTreeMap<u64, usize> = BTreeMap::new();
    let mut bytes = own;
    let cooling = table.cooling.nodes();
    for (frame, place) in &all {
        bytes += Frame::bytes(&frame.node, Table::<N>::entry_bytes());
        if frame.is_gone() {
            return Err(format!("{:x} is in the table although it has left the cache", frame.at));
        }
        let mut linked = 0;
        for (i, slot) in frame.slots.iter().enumerate() {
            let child = slot.load();
            let Some(child) = child.as_ref() else { continue };
            linked += 1;
            *held.entry(child.at).or_default() += 1;
            if !by_address.get(&child.at).is_some_and(|own| Arc::ptr_eq(own, child)) {
                return Err(format!("{:x} is swizzled, but not in the table", child.at));
            }
            let of_child = all.iter().find(|(frame, _)| frame.at == child.at).map(|(_, place)| *place);
            if of_child != Some(Place::Slot(Some(frame.at), i)) {
                return Err(format!("the entry of {:x} says {of_child:?}, not {:x}", child.at, frame.at));
            }
        }
        if linked != frame.linked() {
            return Err(format!("{:x} counts {} children of {linked}", frame.at, frame.linked()));
        }
        let places = cooling.iter().filter(|at| **at == frame.at).count();
        if places != usize::from(frame.is_cooling()) || frame.is_cooling() && (linked > 0 || *place != Place::Nowhere) {
            return Err(format!("{:x} is cooling, {places} times, with {linked} children, {place:?}", frame.at));
        }
        if let Place::Slot(parent, i) = place
            && !parent.and_then(|at| by_address.get(&at)).is_some_and(|parent| parent.slots[*i].load().is_some())
        {
            return Err(format!("the parent of {:x} has left the cache before it", frame.at));
        }
    }
    if let Some((at, times)) = held.into_iter().find(|(_, times)| *times > 1) {
        return Err(format!("{times} slots hold {at:x}"));
    }
    if cooling.len() > all.iter().filter(|(frame, _)| frame.is_cooling()).count() {
        return Err("the cooling map has nodes that are not in the cache".to_owned());
    }
    let charged = all.len() as u64 * Table::<N>::entry_bytes();
    if table.entries_bytes() > charged || table.budget.used() != bytes {
        return Err(format!("{} bytes are charged for {bytes}", table.budget.used()));
    }
    Ok(())
}
