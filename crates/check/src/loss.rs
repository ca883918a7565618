//! Stores whose clients acknowledge writes before these are durable: what a client that crashes may lose.
//!
//! # The promise
//!
//! When a client crashes, each key has, from one moment on, a state that it had within a *window* of time before that: as if
//! everything since had not been. Each key falls back on its own, and once for each crash; it may keep its state as well. Only
//! keys that the client has written fall back. Nothing else is lost.
//!
//! # The check
//!
//! A key that is not linearizable is tried again with a *fallback* for each client that has crashed and written it: an operation
//! that gives the key a state, without a condition, between the last invocation of an operation of the client that has completed
//! and the end of the history. The states are those that the key may have had within the window, by its operations or because
//! another client had crashed before.
//!
//! Invariants:
//!
//! 1. a history that keeps the promise is found sound, or undecided;
//! 2. without losses the verdict is that of [`check`](crate::check()).

use crate::check::{Limits, Report, Verdict, check};
use crate::history::History;
use crate::key_op::{Effect, Guard, KeyOp};
use crate::map::MapModel;
use crate::model::{Entry, Model};
use crate::search::{Answer, Budget, search};

/// What a client may have lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The client, which has crashed.
    pub client: u64,
    /// How long before its crash the state was reached that a key has afterwards, at most, in stamps.
    pub window: u64,
}

/// Attempts to explain a key by losses, before it counts as undecided.
const ATTEMPTS: usize = 20_000;

/// Checks a history of which clients that have crashed may have lost the end.
pub fn check_with_losses(history: &History, limits: &Limits, losses: &[Loss]) -> Report {
    let mut report = check(history, limits);
    if losses.is_empty() || report.keys.is_empty() {
        return report;
    }
    let parts = MapModel.partition(history);
    let mut undecided = Vec::new();
    report.keys.retain(|violation| {
        let entries = parts.iter().find(|part| part.key == violation.key).map(|part| part.entries.as_slice());
        match explain(history, entries.unwrap_or_default(), limits, losses) {
            Some(true) => false,
            Some(false) => true,
            None => {
                undecided.push(violation.key.clone());
                false
            }
        }
    });
    report.undecided.append(&mut undecided);
    report.undecided.sort();
    report.verdict = match (report.keys.is_empty() && report.scans.is_empty(), report.undecided.is_empty()) {
        (false, _) => Verdict::Violation,
        (true, false) => Verdict::Unknown,
        (true, true) => Verdict::Ok,
    };
    report
}

/// The fallbacks of one client that are to be tried.
struct Fallbacks {
    from: u64,
    to: Vec<Effect>,
}

/// Do losses explain these operations on a key? `None`: not decided.
fn explain(history: &History, entries: &[Entry<KeyOp>], limits: &Limits, losses: &[Loss]) -> Option<bool> {
    let mut all: Vec<_> = losses.iter().filter_map(|loss| fallbacks(history, entries, loss)).collect();
    // What one crash has brought back is a state that the next one may make the key fall back to, however old it was before.
    let brought_back: Vec<_> = all.iter().flat_map(|fallbacks| fallbacks.to.clone()).collect();
    for fallbacks in &mut all {
        for effect in &brought_back {
            if !fallbacks.to.contains(effect) {
                fallbacks.to.push(*effect);
            }
        }
    }
    let budget = Budget { steps: limits.steps_per_key, deadline: None };
    let end = entries.iter().flat_map(|entry| [Some(entry.invoked), entry.responded]).flatten().max().unwrap_or(0) + 1;
    // Which fallback of each client is tried; 0: none.
    let (mut chosen, mut undecided) = (vec![0; all.len()], false);
    for _ in 0..ATTEMPTS {
        let next = (0..all.len()).find(|i| chosen[*i] < all[*i].to.len());
        let Some(next) = next else { return (!undecided).then_some(false) };
        chosen[next] += 1;
        chosen[..next].fill(0);
        let mut tried = entries.to_vec();
        for (fallbacks, choice) in all.iter().zip(&chosen) {
            if let Some(effect) = choice.checked_sub(1).and_then(|i| fallbacks.to.get(i)) {
                tried.push(Entry {
                    source: 0,
                    from_scan: false,
                    invoked: fallbacks.from,
                    responded: Some(end),
                    op: KeyOp { guard: Guard::Any, effect: *effect },
                    link: None,
                });
            }
        }
        if MapModel.refute(&tried).is_some() {
            continue;
        }
        match search(&MapModel, &tried, budget).answer {
            Answer::Linearizable(_) => return Some(true),
            Answer::Violation => {}
            Answer::Unknown => undecided = true,
        }
    }
    None
}

/// The states to which a crash may make a key fall back; `None` if the client has not written it.
fn fallbacks(history: &History, entries: &[Entry<KeyOp>], loss: &Loss) -> Option<Fallbacks> {
    let operations = history.operations();
    let writes = |entry: &&Entry<KeyOp>| entry.op.effect != Effect::Keep;
    let own = |entry: &Entry<KeyOp>| operations.get(entry.source).is_some_and(|of| of.client == loss.client);
    entries.iter().filter(writes).find(|entry| own(entry))?;
    // What asks for nothing needs no memory node, and may also end after the client has lost its lease.
    let completed =
        operations.iter().filter(|of| of.client == loss.client && of.response.is_some() && !of.call.asks_for_nothing());
    let from = completed.map(|of| of.invoked).max()?;
    let oldest = from.saturating_sub(loss.window);
    // A state that was certainly replaced before the window is none of it.
    let is_replaced = |at: Option<u64>| {
        at.is_some_and(|at| {
            let mut others = entries.iter().filter(writes);
            others.any(|other| other.invoked > at && other.responded.is_some_and(|responded| responded < oldest))
        })
    };
    let mut to: Vec<Effect> = Vec::new();
    let mut newest_first: Vec<_> = entries.iter().filter(writes).collect();
    newest_first.sort_by_key(|entry| std::cmp::Reverse(entry.invoked));
    for entry in newest_first {
        if !is_replaced(entry.responded) && !to.contains(&entry.op.effect) {
            to.push(entry.op.effect);
        }
    }
    // Every key is absent at first.
    if !is_replaced(Some(0)) && !to.contains(&Effect::Clear) {
        to.push(Effect::Clear);
    }
    Some(Fallbacks { from, to })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Call, Operation, Outcome, Response};
    use std::ops::Bound;

    fn put(client: u64, value: u8, (invoked, at): (u64, u64)) -> Operation {
        let call = Call::Upsert { key: b"k".to_vec(), value: vec![value] };
        Operation { client, call, invoked, response: Some(Response { at, outcome: Outcome::Written }), group: None }
    }
    fn get(client: u64, value: Option<u8>, (invoked, at): (u64, u64)) -> Operation {
        let outcome = Outcome::Value(value.map(|value| vec![value]));
        Operation {
            client,
            call: Call::Get { key: b"k".to_vec() },
            invoked,
            response: Some(Response { at, outcome }),
            group: None,
        }
    }
    fn verdict(operations: &[Operation], losses: &[Loss]) -> Verdict {
        let history = History::new(operations.to_vec()).expect("a history");
        check_with_losses(&history, &Limits::default(), losses).verdict
    }

    #[test]
    fn a_client_that_crashed_may_lose_what_it_has_acknowledged_within_the_window() {
        let written = [put(1, 1, (10, 11)), put(1, 2, (20, 21)), put(1, 3, (30, 31)), get(1, Some(3), (32, 33))];
        let loss = |window| [Loss { client: 1, window }];
        let then = |value| [written.as_slice(), &[get(2, value, (50, 51)), get(2, value, (60, 61))]].concat();
        for (value, window, expected) in [
            (Some(3), 0, Verdict::Ok),
            (Some(2), 15, Verdict::Ok),
            (Some(1), 15, Verdict::Ok),
            (Some(1), 5, Verdict::Violation),
            (None, 15, Verdict::Violation),
            (None, 40, Verdict::Ok),
        ] {
            assert_eq!(verdict(&then(value), &loss(window)), expected, "{value:?} within {window}");
        }
        assert_eq!(verdict(&then(Some(2)), &[]), Verdict::Violation);
        assert_eq!(verdict(&then(Some(2)), &[Loss { client: 2, window: 40 }]), Verdict::Violation);
    }

    #[test]
    fn a_scan_of_nothing_does_not_say_that_its_client_was_there() {
        let bound = |key: &str| Bound::Excluded(key.as_bytes().to_vec());
        let everything = (Bound::Unbounded, Bound::Unbounded);
        for ((from, to), limit, expected) in [
            (everything.clone(), Some(0), Verdict::Ok),
            ((bound("b"), bound("a")), None, Verdict::Ok),
            ((bound("a"), bound("a")), None, Verdict::Ok),
            // It has found nothing, but it has looked.
            ((bound("a"), bound("b")), None, Verdict::Violation),
            ((bound("l"), Bound::Unbounded), None, Verdict::Violation),
        ] {
            let call = Call::Scan { from, to, limit };
            let response = Some(Response { at: 91, outcome: Outcome::Pairs(Vec::new()) });
            let scan = Operation { client: 1, call, invoked: 90, response, group: None };
            let history = [put(1, 1, (10, 11)), put(1, 2, (20, 21)), get(2, Some(1), (50, 51)), scan.clone()];
            assert_eq!(verdict(&history, &[Loss { client: 1, window: 15 }]), expected, "{scan:?}");
            assert_eq!(verdict(&history, &[]), Verdict::Violation);
        }
    }

    #[test]
    fn what_one_crash_has_brought_back_may_come_back_once_more() {
        let (first, second) = (Loss { client: 1, window: 20 }, Loss { client: 2, window: 20 });
        let operations =
            |last| [put(1, 1, (10, 11)), get(3, None, (50, 51)), put(2, 2, (100, 101)), get(3, last, (150, 151))];
        assert_eq!(verdict(&operations(None), &[first, second]), Verdict::Ok);
        assert_eq!(verdict(&operations(Some(2)), &[first, second]), Verdict::Ok);
        assert_eq!(verdict(&operations(Some(3)), &[first, second]), Verdict::Violation);
        for one in [first, second] {
            assert_eq!(verdict(&operations(None), &[one]), Verdict::Violation);
        }
    }

    #[test]
    fn a_crash_loses_once_and_nothing_of_others() {
        let written = [put(1, 1, (10, 11)), put(1, 2, (20, 21)), get(2, Some(1), (50, 51))];
        let loss = [Loss { client: 1, window: 100 }];
        let with = |more: &[Operation]| verdict(&[written.as_slice(), more].concat(), &loss);
        assert_eq!(with(&[]), Verdict::Ok);
        assert_eq!(with(&[get(2, None, (60, 61))]), Verdict::Violation);
        assert_eq!(with(&[get(2, Some(2), (60, 61))]), Verdict::Violation);
        // What another client has written since stays.
        let third = put(2, 3, (60, 61));
        assert_eq!(with(&[third.clone(), get(3, Some(3), (70, 71))]), Verdict::Ok);
        assert_eq!(with(&[third, get(3, Some(1), (70, 71))]), Verdict::Violation);
    }
}
