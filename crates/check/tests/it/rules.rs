//! Properties beyond the verdict: the promise that a violation is attributed to, undecided keys, the exact text of
//! explanations, and the cost of a check. Mutation testing of the checker asked for these tests (docs/mutation.md).

use std::ops::Bound;
use std::time::Duration;

use crate::common::{Random, Shape, Store, apply, operation, random_history, text};
use farindex_check::map::MapModel;
use farindex_check::model::{Model, Tightened};
use farindex_check::scan::ScanFault;
use farindex_check::search::{Answer, Budget, search, search_longest};
use farindex_check::{Call, History, Limits, Operation, Outcome, Promise, Recorder, Report, Verdict, check, timeline};

pub(crate) fn upsert(client: u64, key: &str, value: &str, invoked: u64, at: Option<u64>) -> Operation {
    let call = Call::Upsert { key: key.into(), value: value.into() };
    operation(client, call, invoked, at.map(|at| (at, Outcome::Written)))
}

pub(crate) fn get(client: u64, key: &str, value: Option<&str>, invoked: u64, at: u64) -> Operation {
    operation(client, Call::Get { key: key.into() }, invoked, Some((at, Outcome::Value(value.map(Into::into)))))
}

fn scan(client: u64, pairs: &[(&str, &str)], invoked: u64, at: u64) -> Operation {
    let pairs = pairs.iter().map(|&(key, value)| (key.into(), value.into())).collect();
    let call = Call::scan(Bound::Unbounded, Bound::Unbounded, None);
    operation(client, call, invoked, Some((at, Outcome::Pairs(pairs))))
}

fn report_of(operations: Vec<Operation>) -> Report {
    check(&History::new(operations).unwrap(), &Limits::default())
}

#[test]
fn scan_of_an_unwritten_value_violates_the_scan_promise() {
    let report = report_of(vec![upsert(1, "k", "a", 1, Some(2)), scan(2, &[("k", "b")], 3, 4)]);
    assert_eq!(report.keys[0].promise, Promise::ScanContent, "{report}");
}

#[test]
fn contradicting_point_operations_violate_linearizability_in_spite_of_scans() {
    let report =
        report_of(vec![upsert(1, "k", "a", 1, Some(2)), scan(2, &[("k", "b")], 3, 4), get(3, "k", Some("c"), 5, 6)]);
    assert_eq!(report.keys[0].promise, Promise::Linearizability, "{report}");
    let explanation = report.keys[0].explanation.as_ref().unwrap();
    assert_eq!(explanation.operations, [2], "{report}");
    assert_eq!(explanation.prefix, 2, "the scan is not counted: {report}");
}

#[test]
fn keys_beyond_the_step_limit_are_undecided() {
    let history =
        || vec![upsert(1, "a", "x", 1, Some(5)), upsert(2, "a", "y", 2, Some(6)), get(1, "a", Some("x"), 7, 8)];
    let decided = report_of(history());
    assert_eq!((decided.verdict, decided.undecided.len()), (Verdict::Ok, 0));
    assert!(decided.stats.steps > 0);
    let limits = Limits { steps_per_key: decided.stats.steps - 1, ..Limits::default() };
    let report = check(&History::new(history()).unwrap(), &limits);
    assert_eq!((report.verdict, report.undecided, report.keys.len()), (Verdict::Unknown, vec![b"a".to_vec()], 0));
    let enough = Limits { steps_per_key: decided.stats.steps, ..Limits::default() };
    assert_eq!(check(&History::new(history()).unwrap(), &enough).verdict, Verdict::Ok);
}

#[test]
fn keys_beyond_the_time_limit_are_undecided() {
    let history = busy(4, 1500, 1);
    let with = |time| check(&history, &Limits { time: Some(time), ..Limits::default() });
    let patient = with(Duration::from_secs(3600));
    assert_eq!(patient.verdict, Verdict::Ok);
    // The search checks the clock every 1,024 steps.
    assert!(patient.stats.steps > 1024, "{patient}");
    let hurried = with(Duration::ZERO);
    assert_eq!((hurried.verdict, hurried.stats.steps), (Verdict::Unknown, 1024), "{hurried}");
}

#[test]
fn scan_shape_is_order_bounds_and_limit() {
    use Bound::{Excluded, Included, Unbounded};
    use ScanFault::{OutOfBounds, OutOfOrder, TooMany};
    type Key = Bound<&'static str>;
    type Case = (Key, Key, Option<u64>, &'static [&'static str], Option<ScanFault>);
    let cases: [Case; 14] = [
        (Unbounded, Unbounded, None, &["a", "b", "c"], None),
        (Unbounded, Unbounded, Some(3), &["a", "b", "c"], None),
        (Unbounded, Unbounded, Some(2), &["a", "b", "c"], Some(TooMany { returned: 3, limit: 2 })),
        (Unbounded, Unbounded, None, &["a", "a", "b", "c"], Some(OutOfOrder { position: 1 })),
        (Unbounded, Unbounded, None, &["a", "c", "b"], Some(OutOfOrder { position: 2 })),
        (Included("b"), Unbounded, None, &["b", "c"], None),
        (Included("b"), Unbounded, None, &["a", "b", "c"], Some(OutOfBounds { position: 0 })),
        (Excluded("a"), Unbounded, None, &["b", "c"], None),
        (Excluded("a"), Unbounded, None, &["a", "b", "c"], Some(OutOfBounds { position: 0 })),
        (Unbounded, Included("b"), None, &["a", "b"], None),
        (Unbounded, Included("b"), None, &["a", "b", "c"], Some(OutOfBounds { position: 2 })),
        (Unbounded, Excluded("b"), None, &["a"], None),
        (Unbounded, Excluded("b"), None, &["a", "b"], Some(OutOfBounds { position: 1 })),
        (Included("b"), Included("b"), None, &["b"], None),
    ];
    for (from, to, limit, keys, fault) in cases {
        let mut operations = ["a", "b", "c"].map(|key| upsert(1, key, "v", 1, Some(2))).to_vec();
        let bound = |bound: Key| bound.map(|key| key.as_bytes().to_vec());
        let call = Call::Scan { from: bound(from), to: bound(to), limit };
        let pairs = keys.iter().map(|key| (key.as_bytes().to_vec(), b"v".to_vec())).collect();
        operations.push(operation(2, call, 3, Some((4, Outcome::Pairs(pairs)))));
        let report = report_of(operations);
        let found: Vec<_> = report.scans.iter().map(|scan| (scan.operation, scan.fault)).collect();
        assert_eq!(found, fault.map(|fault| (3, fault)).as_slice(), "{report}");
        assert_eq!(report.keys.len(), 0, "{report}");
        assert_eq!(report.verdict == Verdict::Ok, fault.is_none());
    }
}

#[test]
fn scan_covers_its_range_up_to_its_limit() {
    use Bound::{Excluded, Included, Unbounded};
    type Key = Bound<&'static str>;
    // Bounds, limit, returned keys, and those of a, b and c that the scan fails to return.
    type Case = (Key, Key, Option<u64>, &'static [&'static str], &'static [&'static str]);
    let cases: [Case; 12] = [
        (Unbounded, Unbounded, None, &[], &["a", "b", "c"]),
        (Unbounded, Unbounded, Some(0), &[], &[]),
        (Unbounded, Unbounded, Some(1), &[], &["a", "b", "c"]),
        (Unbounded, Unbounded, Some(1), &["b"], &["a"]),
        (Unbounded, Unbounded, Some(2), &["b"], &["a", "c"]),
        (Included("b"), Included("b"), None, &[], &["b"]),
        (Excluded("b"), Included("b"), None, &[], &[]),
        (Included("b"), Excluded("b"), None, &[], &[]),
        (Excluded("b"), Excluded("b"), None, &[], &[]),
        (Excluded("a"), Excluded("c"), None, &[], &["b"]),
        (Included("c"), Included("a"), None, &[], &[]),
        // A malformed scan: its coverage is unknown.
        (Included("b"), Unbounded, None, &["a"], &[]),
    ];
    for (from, to, limit, keys, missing) in cases {
        let mut operations = ["a", "b", "c"].map(|key| upsert(1, key, "v", 1, Some(2))).to_vec();
        let bound = |bound: Key| bound.map(|key| key.as_bytes().to_vec());
        let call = Call::Scan { from: bound(from), to: bound(to), limit };
        let pairs = keys.iter().map(|key| (key.as_bytes().to_vec(), b"v".to_vec())).collect();
        operations.push(operation(2, call.clone(), 3, Some((4, Outcome::Pairs(pairs)))));
        operations.push(operation(2, call, 5, None));
        let report = report_of(operations);
        let violated: Vec<_> = report.keys.iter().map(|key| std::str::from_utf8(&key.key).unwrap()).collect();
        assert_eq!(violated, missing, "{report}");
    }
}

#[test]
fn explanations_are_limited_to_the_requested_number() {
    let history = History::new(["a", "b", "c"].map(|key| get(1, key, Some("never"), 1, 2)).to_vec()).unwrap();
    for explanations in 0..4 {
        let report = check(&history, &Limits { explanations, ..Limits::default() });
        assert_eq!(report.keys.len(), 3);
        assert_eq!(report.keys.iter().filter(|key| key.explanation.is_some()).count(), explanations);
    }
    assert_eq!(history.clone().into_operations(), history.operations());
}

#[test]
fn explanation_has_the_exact_text() {
    let report = report_of(vec![
        upsert(1, "k", "a", 1, Some(2)),
        upsert(2, "k", "b", 3, Some(14)),
        upsert(2, "k", "unread", 4, Some(5)),
        get(3, "k", Some("b"), 6, 8),
        get(4, "k", Some("a"), 9, 11),
        get(5, "k", None, 20, 21),
    ]);
    let expected = [
        "VIOLATION: 6 operations on 1 keys, 0 search steps",
        "",
        "key \"k\": not linearizable",
        "  3 of the first 5 operations on the key cannot all be true,",
        "  whether or not the other 1 writes take effect, and however late they do:",
        "",
        "  client  operation             interval  order of events",
        "       1  upsert \"a\" → written  1–2       ├──┤                     ",
        "       2  upsert \"b\" → written  3–14            ├──────────────┤     (context)",
        "       3  get → \"b\"             6–8                ├──┤            ",
        "       4  get → \"a\"             9–11                     ├──┤        ✗",
        "",
        "  longest order that explains its outcomes:",
        "    1. client 1: upsert \"a\" → written; the key now holds \"a\"",
        "    2. client 2: upsert \"b\" → written; the key now holds \"b\"",
        "    3. client 3: get → \"b\"; the key now holds \"b\"",
        "    ✗ client 4: get → \"a\" cannot be placed",
    ];
    assert_eq!(report.to_string().lines().collect::<Vec<_>>(), expected, "{report}");
}

#[test]
fn explanation_with_a_pending_write_has_the_exact_text() {
    let report = report_of(vec![
        operation(1, Call::Insert { key: b"\x00k".to_vec(), value: vec![0xff; 20] }, 1, None),
        operation(10, Call::Get { key: b"\x00k".to_vec() }, 2, Some((4, Outcome::Value(Some(vec![0xff; 20]))))),
        operation(3, Call::Remove { key: b"\x00k".to_vec() }, 5, Some((6, Outcome::Absent))),
    ]);
    let expected = [
        "VIOLATION: 3 operations on 1 keys, 2 search steps",
        "",
        "key 0x006b: not linearizable",
        "  2 of the first 3 operations on the key cannot all be true:",
        "",
        "  client  operation                                                  interval   order of events",
        "       1  insert 0xffffffffffffffffffffffffffffffff… (+4 bytes) → ?  1–pending  ├──────────────⇢  (context)",
        "      10  get → 0xffffffffffffffffffffffffffffffff… (+4 bytes)       2–4           ├──┤         ",
        "       3  remove → absent                                            5–6                 ├──┤     ✗",
        "",
        "  longest order that explains its outcomes:",
        "    1. client 1: insert 0xffffffffffffffffffffffffffffffff… (+4 bytes) → ?; the key now holds 0xffffffffffffffffffffffffffffffff… (+4 bytes)",
        "    2. client 10: get → 0xffffffffffffffffffffffffffffffff… (+4 bytes); the key now holds 0xffffffffffffffffffffffffffffffff… (+4 bytes)",
        "    ✗ client 3: remove → absent cannot be placed",
    ];
    assert_eq!(report.to_string().lines().collect::<Vec<_>>(), expected, "{report}");
}

#[test]
fn explanations_of_scans_have_the_exact_text() {
    let bounds =
        Call::Scan { from: Bound::Included(b"k".to_vec()), to: Bound::Excluded(b"l".to_vec()), limit: Some(1) };
    let pairs = ["k", "k"].map(|key| (key.into(), b"v".to_vec())).to_vec();
    let report = report_of(vec![
        upsert(1, "k", "v", 1, Some(2)),
        operation(2, bounds.clone(), 3, Some((4, Outcome::Pairs(vec![])))),
        operation(2, bounds, 5, Some((6, Outcome::Pairs(pairs)))),
        scan(3, &[("k", "v"), ("j", "w")], 7, 8),
    ]);
    let expected = [
        "VIOLATION: 4 operations on 2 keys, 1 search steps",
        "",
        "scan, operation 2: 2 pairs returned where the limit is 1",
        "",
        "scan, operation 3: pair 1 is not above the pair before it",
        "",
        "key \"j\": a scan returned a state that never existed",
        "  1 of the first 1 operations on the key cannot all be true:",
        "",
        "  client  operation     interval  order of events",
        "       3  scan saw \"w\"  7–8       ├──┤     ✗",
        "",
        "  none of them can be first while the key is absent",
        "    ✗ client 3: scan saw \"w\" cannot be placed",
        "",
        "key \"k\": a scan returned a state that never existed",
        "  2 of the first 4 operations on the key cannot all be true:",
        "",
        "  client  operation             interval  order of events",
        "       1  upsert \"v\" → written  1–2       ├──┤         ",
        "       2  scan saw nothing      3–4             ├──┤     ✗",
        "",
        "  longest order that explains its outcomes:",
        "    1. client 1: upsert \"v\" → written; the key now holds \"v\"",
        "    ✗ client 2: scan saw nothing cannot be placed",
    ];
    assert_eq!(report.to_string().lines().collect::<Vec<_>>(), expected, "{report}");
}

#[test]
fn explanation_is_ordered_by_invocation_and_ends_with_the_contradiction() {
    let report = report_of(vec![
        upsert(6, "k", "d", 12, Some(13)),
        get(4, "k", Some("a"), 9, 11),
        upsert(1, "k", "a", 1, Some(2)),
        // At the stamp of the response that completes the contradiction: it counts as invoked before.
        upsert(5, "k", "c", 11, Some(30)),
        get(3, "k", Some("b"), 6, 8),
        upsert(2, "k", "b", 3, Some(14)),
    ]);
    let explanation = report.keys[0].explanation.as_ref().unwrap();
    assert_eq!((&explanation.operations[..], &explanation.context[..]), (&[2, 4, 1][..], &[5][..]), "{report}");
    assert_eq!((explanation.prefix, explanation.irrelevant_writes), (5, 1), "{report}");
}

#[test]
fn timeline_shows_the_bounds_of_a_scan() {
    let call = Call::Scan { from: Bound::Unbounded, to: Bound::Unbounded, limit: Some(3) };
    let history = History::new(vec![operation(1, call, 1, Some((2, Outcome::Pairs(vec![]))))]).unwrap();
    let report = check(&history, &Limits::default());
    let page = timeline::html(&history, &report, &timeline::Options::default());
    assert!(page.contains("scan (-∞, ∞) limit 3"), "{page}");
}

/// Without any one of its operations, the rest of an explanation is linearizable.
#[test]
fn explanation_needs_each_of_its_operations() {
    let shape = Shape {
        keys: 1,
        values: 4,
        operations: 16,
        span: 60,
        pending_percent: 10,
        scan_percent: 0,
        guarded_percent: 0,
        grouped_percent: 30,
        wrong_percent: 10,
    };
    let (mut explained, mut shown) = (0, 0);
    for seed in 0..600 {
        let history = random_history(&mut Random(seed), &shape);
        let report = check(&history, &Limits::default());
        let Some(explanation) = report.keys.first().and_then(|key| key.explanation.as_ref()) else {
            continue;
        };
        explained += 1;
        shown += explanation.operations.len();
        let unplaced = explanation.unplaced.expect("something cannot be placed");
        assert!(explanation.operations.contains(&unplaced) && !explanation.longest.contains(&unplaced), "{report}");
        let known = |index: &usize| explanation.operations.contains(index) || explanation.context.contains(index);
        assert!(explanation.longest.iter().all(known), "seed {seed}\n{report}");
        for left_out in &explanation.operations {
            let rest = history.operations().iter().enumerate().filter_map(|(index, operation)| {
                let mut operation = operation.clone();
                if !explanation.operations.contains(&index) || index == *left_out {
                    use Outcome::{Inserted, Removed, Replaced, Updated, Written};
                    let changed = [Inserted, Updated, Written, Removed, Replaced];
                    let response = operation.response.take();
                    return response.is_none_or(|it| changed.contains(&it.outcome)).then_some(operation);
                }
                Some(operation)
            });
            let rest = History::new(rest.collect()).unwrap();
            assert_eq!(
                check(&rest, &Limits::default()).verdict,
                Verdict::Ok,
                "seed {seed}, without {left_out}\n{report}"
            );
        }
    }
    println!("{explained} explained, {shown} operations shown");
    assert!(explained > 80 && shown < 2 * explained, "{shown} operations shown for {explained} violations");
}

/// A correct history of clients that always have one operation in flight.
fn busy(clients: u64, operations: u64, keys: u64) -> History {
    let mut random = Random(clients * 1_000_003 + keys);
    let mut planned = Vec::new();
    for client in 0..clients {
        let mut now = random.below(100);
        for _ in 0..operations {
            let length = if random.below(50) == 0 { 2000 } else { 100 };
            let [invoked, effect] = [now + 1, now + 1 + random.below(length)];
            now = effect + random.below(length);
            planned.push((effect, client, invoked, now));
        }
    }
    planned.sort_unstable();
    let mut store = Store::new();
    let operations = planned.into_iter().enumerate().map(|(number, (_, client, invoked, responded))| {
        let key = text(b'k', random.below(keys));
        let value = format!("{number}").into_bytes();
        let call = match random.below(100) {
            0..50 => Call::Get { key },
            50..80 => Call::Upsert { key, value },
            80..86 => Call::Update { key, value },
            86..93 => Call::Insert { key, value },
            _ => Call::Remove { key },
        };
        let outcome = apply(&mut store, &call);
        let response = (random.below(200) > 0).then_some((responded, outcome));
        operation(client, call, invoked, response)
    });
    History::new(operations.collect()).unwrap()
}

/// The cost of a check in configurations. An exact search that is too slow is useless. A better search may lower these.
#[test]
fn check_stays_within_its_budget_of_steps() {
    let random = |values, operations, span| {
        let shape = Shape {
            keys: 1,
            values,
            operations,
            span,
            pending_percent: 20,
            scan_percent: 0,
            guarded_percent: 0,
            grouped_percent: 0,
            wrong_percent: 5,
        };
        let histories = (0..300).map(|seed| random_history(&mut Random(seed), &shape));
        histories.map(|history| check(&history, &Limits { explanations: 0, ..Limits::default() }).stats.steps).sum()
    };
    let busy = |clients, operations, keys| {
        let report = check(&busy(clients, operations, keys), &Limits { steps_per_key: 1_000_000, ..Limits::default() });
        assert_eq!(report.verdict, Verdict::Ok, "{report}");
        report.stats.steps
    };
    let steps: [u64; 5] = [busy(4, 200, 1), busy(16, 60, 1), busy(30, 40, 3), random(3, 20, 12), random(40, 20, 12)];
    println!("{steps:?}");
    assert!(steps.iter().zip([171, 145, 163, 1206, 1160]).all(|(steps, most)| *steps <= most), "{steps:?}");
}

/// `k` concurrent operations have `k!` orders, and need about `k` steps.
#[test]
fn concurrent_writes_need_a_linear_number_of_steps() {
    let writes = || (0..24).map(|number| upsert(number, "k", &format!("{number}"), 1, Some(100)));
    let unread: Vec<_> = writes().collect();
    let mut read: Vec<_> = writes().collect();
    read.extend((0..24).map(|number| get(number, "k", Some(&format!("{number}")), 2, 99)));
    let pending: Vec<_> = (0..24).map(|number| upsert(number, "k", &format!("{}", number % 3), 1, None)).collect();
    let mut pending_read = pending.clone();
    pending_read.extend(
        [1, 0, 2, 0]
            .iter()
            .zip(0..)
            .map(|(value, at)| get(99, "k", Some(&format!("{value}")), 200 + 2 * at, 201 + 2 * at)),
    );
    let steps = [unread, read, pending, pending_read].map(|operations| {
        let report = check(&History::new(operations).unwrap(), &Limits { steps_per_key: 100_000, ..Limits::default() });
        assert_eq!(report.verdict, Verdict::Ok, "{report}");
        report.stats.steps
    });
    println!("{steps:?}");
    assert!(steps.iter().zip([24, 24, 0, 7]).all(|(steps, most)| *steps <= most), "{steps:?}");
}

pub(crate) fn remove(client: u64, invoked: u64, at: Option<u64>) -> Operation {
    let call = Call::Remove { key: b"k".to_vec() };
    operation(client, call, invoked, at.map(|at| (at, Outcome::Removed)))
}

fn replace(client: u64, (expected, value): (&str, &str), invoked: u64, response: Option<(u64, Outcome)>) -> Operation {
    let call = Call::Replace { key: b"k".to_vec(), expected: expected.into(), value: value.into() };
    operation(client, call, invoked, response)
}

fn replaced(client: u64, values: (&str, &str), invoked: u64, at: u64) -> Operation {
    replace(client, values, invoked, Some((at, Outcome::Replaced)))
}

fn remove_if(client: u64, expected: &str, invoked: u64, (at, outcome): (u64, Outcome)) -> Operation {
    let call = Call::RemoveIf { key: b"k".to_vec(), expected: expected.into() };
    operation(client, call, invoked, Some((at, outcome)))
}

/// What replacements and removals of an expected value promise: each verdict, and a history that is just right.
#[test]
fn operations_that_expect_a_value_take_effect_at_it() {
    use Outcome::{Absent, Differs, Removed};
    let put = |value, invoked| upsert(1, "k", value, invoked, Some(invoked + 1));
    let read = |value: Option<&str>, invoked| get(9, "k", value, invoked, invoked + 1);
    let cases: [(&[Operation], Verdict); 18] = [
        // A lost update: two increments of one value.
        (&[put("1", 1), replaced(2, ("1", "2"), 3, 9), replaced(3, ("1", "3"), 4, 8)], Verdict::Violation),
        (&[put("1", 1), replaced(2, ("1", "2"), 3, 9), replaced(3, ("2", "3"), 4, 8)], Verdict::Ok),
        // A value that was restored in between may be replaced twice.
        (
            &[put("1", 1), replaced(2, ("1", "2"), 3, 9), upsert(4, "k", "1", 3, None), replaced(3, ("1", "3"), 4, 8)],
            Verdict::Ok,
        ),
        (&[put("1", 1), replaced(2, ("1", "2"), 3, 9), remove_if(3, "1", 4, (8, Removed))], Verdict::Violation),
        (&[put("1", 1), replaced(2, ("1", "2"), 3, 9), remove_if(3, "1", 4, (8, Differs))], Verdict::Ok),
        (&[put("1", 1), remove_if(3, "1", 4, (8, Differs))], Verdict::Violation),
        (&[put("1", 1), remove_if(3, "2", 4, (8, Differs)), read(Some("1"), 9)], Verdict::Ok),
        (&[put("1", 1), remove_if(3, "2", 4, (8, Differs)), read(None, 9)], Verdict::Violation),
        (&[put("1", 1), remove_if(3, "1", 4, (8, Removed)), read(None, 9)], Verdict::Ok),
        (&[put("1", 1), remove_if(3, "1", 4, (8, Absent))], Verdict::Violation),
        (&[remove_if(3, "1", 4, (8, Differs))], Verdict::Violation),
        (&[remove_if(3, "1", 4, (8, Absent))], Verdict::Ok),
        (&[replaced(2, ("1", "2"), 3, 9)], Verdict::Violation),
        // Changes nothing, and yet it observes.
        (&[put("1", 1), replaced(2, ("1", "1"), 3, 9), read(Some("1"), 10)], Verdict::Ok),
        (&[put("2", 1), replaced(2, ("1", "1"), 3, 9)], Verdict::Violation),
        // One of unknown outcome takes effect at its value, or not at all.
        (&[put("1", 1), replace(2, ("1", "2"), 3, None), read(Some("2"), 10)], Verdict::Ok),
        (&[put("3", 1), replace(2, ("1", "2"), 3, None), read(Some("2"), 10)], Verdict::Violation),
        (&[put("1", 1), replace(2, ("1", "2"), 3, None), read(Some("1"), 10), read(Some("2"), 20)], Verdict::Ok),
    ];
    for (operations, verdict) in cases {
        let report = report_of(operations.to_vec());
        assert_eq!(report.verdict, verdict, "{operations:#?}\n{report}");
    }
}

/// A chain of `k` increments by as many clients at once has one order, which takes no search.
#[test]
fn chains_of_replacements_need_a_linear_number_of_steps() {
    let value = |number: u64| format!("{number}");
    let mut operations = vec![upsert(99, "k", "0", 1, Some(2))];
    for number in 0..40 {
        let (from, to) = (value(number), value(number + 1));
        operations.push(replaced(number, (&from, &to), 3, 1000));
        operations.push(replace(100 + number, (&from, "never"), 3, Some((1000, Outcome::Differs))));
    }
    let report = report_of(operations.clone());
    assert_eq!(report.verdict, Verdict::Ok, "{report}");
    assert!(report.stats.steps <= 41, "{report}");
    operations.push(replaced(200, ("17", "lost"), 4, 900));
    let report = report_of(operations);
    assert_eq!((report.verdict, report.stats.steps), (Verdict::Violation, 0), "{report}");
    let explanation = report.keys[0].explanation.as_ref().unwrap();
    assert_eq!(explanation.operations.len(), 2, "{report}");
    assert!(report.to_string().contains("replace \"17\" by \"lost\" → replaced"), "{report}");
}

pub(crate) fn exists(client: u64, invoked: u64, at: u64) -> Operation {
    let call = Call::Insert { key: b"k".to_vec(), value: b"new".to_vec() };
    operation(client, call, invoked, Some((at, Outcome::Exists)))
}

/// The cheap proofs, each with the operations that it names, and for each a similar history that it does not refute.
#[test]
fn zones_refute_contradicting_values() {
    let put = |value, invoked, at| upsert(1, "k", value, invoked, Some(at));
    let read = |value, invoked, at| get(2, "k", Some(value), invoked, at);
    // `a` is held at least from 2 to 10.
    let held = |more: &[Operation]| [&[put("a", 1, 2), read("a", 10, 11)], more].concat();
    let cases: [(Vec<Operation>, Option<&[usize]>); 28] = [
        (vec![put("a", 1, 2), read("b", 3, 4)], Some(&[1])),
        (vec![put("a", 5, 6), read("a", 1, 2)], Some(&[0, 1])),
        (vec![put("a", 5, 6), read("a", 1, 5)], None),
        (vec![read("a", 1, 9), put("a", 5, 6), read("a", 1, 2)], Some(&[1, 2])),
        (held(&[]), None),
        (held(&[put("b", 3, 4), read("b", 12, 13)]), Some(&[0, 1, 2, 3])),
        (held(&[put("b", 3, 11), read("b", 12, 13)]), None),
        (held(&[put("b", 3, 8), read("b", 4, 9)]), Some(&[0, 1, 2, 3])),
        (held(&[put("b", 3, 12), read("b", 4, 13)]), None),
        (held(&[put("b", 0, 8), read("b", 1, 9)]), None),
        (held(&[remove(3, 3, Some(4))]), Some(&[0, 1, 2])),
        (held(&[remove(3, 2, Some(4))]), None),
        (held(&[remove(3, 3, Some(10))]), None),
        (held(&[remove(3, 3, None)]), None),
        (held(&[get(3, "k", None, 3, 4)]), Some(&[0, 1, 2])),
        (held(&[put("unread", 3, 4)]), Some(&[0, 1, 2])),
        (held(&[exists(3, 3, 4)]), None),
        (held(&[read("a", 3, 4)]), None),
        // Two operations can have written it.
        (held(&[put("a", 3, 4), remove(3, 5, Some(6))]), None),
        (held(&[upsert(3, "k", "a", 3, None), remove(3, 5, Some(6))]), None),
        (vec![put("a", 1, 2), read("a", 3, 4), put("b", 5, 6), read("b", 7, 8), remove(3, 9, Some(10))], None),
        // Operations that found a value and ended it.
        (vec![put("a", 1, 9), replaced(2, ("a", "b"), 2, 9), replaced(3, ("a", "c"), 2, 9)], Some(&[0, 1, 2])),
        (vec![put("a", 1, 9), replaced(2, ("a", "b"), 2, 9), replace(3, ("a", "c"), 2, None)], None),
        (vec![put("a", 1, 9), put("a", 1, 9), replaced(2, ("a", "b"), 2, 9), replaced(3, ("a", "c"), 2, 9)], None),
        (held(&[replaced(3, ("a", "b"), 3, 4)]), Some(&[0, 1, 2])),
        (held(&[replace(3, ("a", "b"), 3, Some((4, Outcome::Differs)))]), Some(&[0, 1, 2])),
        (held(&[replace(3, ("b", "c"), 3, Some((4, Outcome::Differs)))]), None),
        ([&[put("b", 20, 21), read("b", 30, 31)], &held(&[remove(3, 3, Some(4))])[..]].concat(), Some(&[2, 3, 4])),
    ];
    for (operations, expected) in cases {
        let history = History::new(operations).unwrap();
        let part = &MapModel.partition(&history)[0];
        assert_eq!(MapModel.refute(&part.entries).as_deref(), expected, "{history:#?}");
    }
}

/// The tightened intervals if a value is held for a stretch.
#[test]
fn tighten_cuts_off_what_no_order_can_use() {
    let put = |value, invoked, at| upsert(1, "k", value, invoked, Some(at));
    let read = |value, invoked, at| get(2, "k", Some(value), invoked, at);
    let held = |more: Operation| vec![put("a", 1, 2), read("a", 10, 11), more];
    type Intervals = &'static [(u64, Option<u64>)];
    let cases: [(Vec<Operation>, Intervals); 15] = [
        (vec![put("a", 1, 20), read("a", 5, 8)], &[(1, Some(8)), (5, Some(8))]),
        (vec![put("a", 3, 6), read("a", 1, 8)], &[(3, Some(6)), (3, Some(8))]),
        (vec![upsert(1, "k", "a", 1, None), read("a", 5, 8)], &[(1, Some(8)), (5, Some(8))]),
        (vec![put("a", 1, 20), put("a", 2, 21), read("a", 5, 8)], &[(1, Some(20)), (2, Some(21)), (5, Some(8))]),
        (held(remove(3, 5, Some(30))), &[(1, Some(2)), (10, Some(11)), (10, Some(30))]),
        (held(remove(3, 5, None)), &[(1, Some(2)), (10, Some(11)), (10, None)]),
        (held(remove(3, 0, Some(5))), &[(1, Some(2)), (10, Some(11)), (0, Some(2))]),
        (held(remove(3, 0, Some(30))), &[(1, Some(2)), (10, Some(11)), (0, Some(30))]),
        (held(put("unread", 5, 30)), &[(1, Some(2)), (10, Some(11)), (10, Some(30))]),
        (held(exists(3, 5, 30)), &[(1, Some(2)), (10, Some(11)), (5, Some(30))]),
        (held(read("a", 5, 30)), &[(1, Some(2)), (10, Some(11)), (5, Some(30))]),
        // A cluster moves as one: `b` is read after `a` was held, so it is written after that too.
        (
            vec![put("a", 1, 2), read("a", 10, 11), put("b", 1, 30), read("b", 5, 31)],
            &[(1, Some(2)), (10, Some(11)), (10, Some(30)), (10, Some(31))],
        ),
        // What ends a value comes after all that found it, and before what found the value that it writes.
        (
            vec![put("a", 1, 30), replaced(2, ("a", "b"), 1, 20), read("a", 5, 40), read("b", 3, 15)],
            &[(1, Some(15)), (5, Some(15)), (5, Some(15)), (5, Some(15))],
        ),
        (vec![put("a", 1, 2), replaced(2, ("a", "b"), 1, 20)], &[(1, Some(2)), (1, Some(20))]),
        // The stretch begins with the first response of the cluster.
        (
            vec![put("b", 1, 40), read("b", 15, 20), read("b", 30, 31), remove(3, 25, Some(50))],
            &[(1, Some(20)), (15, Some(20)), (30, Some(31)), (30, Some(50))],
        ),
    ];
    for (operations, expected) in cases {
        let history = History::new(operations).unwrap();
        let mut part = MapModel.partition(&history).remove(0);
        assert_eq!(MapModel.tighten(&mut part.entries), Tightened::Consistent, "{history:#?}");
        let left: Vec<_> = part.entries.iter().map(|entry| (entry.invoked, entry.responded)).collect();
        assert_eq!(left, expected, "{history:#?}");
    }
    let contradicting = History::new(held(remove(3, 3, Some(4)))).unwrap();
    let mut part = MapModel.partition(&contradicting).remove(0);
    assert_eq!(MapModel.tighten(&mut part.entries), Tightened::Contradiction);
}

#[test]
fn recorder_orders_the_history_by_invocation() {
    let recorder = Recorder::new();
    let mut logs = [7, 3].map(|client| recorder.client(client));
    assert_eq!(logs.each_ref().map(|log| log.client()), [7, 3]);
    for at in [4, 2, 2, 1] {
        for log in &mut logs {
            let _pending = log.invoke(Call::Remove { key: b"k".to_vec() }, at);
        }
    }
    drop(logs);
    let history = recorder.finish().unwrap();
    let order: Vec<_> = history.operations().iter().map(|operation| (operation.invoked, operation.client)).collect();
    assert_eq!(order, [(1, 3), (1, 7), (2, 3), (2, 3), (2, 7), (2, 7), (4, 3), (4, 7)]);
}

/// The search keeps a value that a pending write may produce again, and uses the earliest of equal pending writes.
#[test]
fn search_uses_pending_writes_to_restore_a_value() {
    let report = report_of(vec![
        upsert(1, "k", "a", 1, Some(2)),
        upsert(2, "k", "b", 3, Some(4)),
        upsert(3, "k", "a", 100, None),
        upsert(3, "k", "a", 5, None),
        get(1, "k", Some("b"), 6, 7),
        get(1, "k", Some("a"), 8, 9),
    ]);
    assert_eq!(report.verdict, Verdict::Ok, "{report}");
    let twice = report_of(vec![
        upsert(1, "k", "a", 1, Some(2)),
        upsert(2, "k", "b", 3, Some(4)),
        upsert(3, "k", "a", 5, None),
        get(1, "k", Some("a"), 8, 9),
        upsert(2, "k", "b", 10, Some(11)),
        get(1, "k", Some("a"), 12, 13),
    ]);
    assert_eq!(twice.verdict, Verdict::Violation, "{twice}");
}

/// The longest partial linearization is an order that explains the outcomes of its operations.
#[test]
fn search_longest_returns_the_longest_partial_linearization() {
    let history = History::new(vec![
        upsert(1, "k", "a", 1, Some(2)),
        get(1, "k", Some("a"), 3, 4),
        upsert(2, "k", "b", 5, Some(6)),
        get(1, "k", Some("a"), 7, 8),
        get(1, "k", Some("b"), 9, 10),
    ])
    .unwrap();
    let part = &MapModel.partition(&history)[0];
    let outcome = search_longest(&MapModel, &part.entries, Budget::steps(1000));
    assert_eq!((outcome.answer, outcome.longest), (Answer::Violation, vec![0, 1, 2]));
    assert!(search(&MapModel, &part.entries, Budget::steps(1000)).longest.is_empty());
}
