//! Explanations: small, true, and readable; and the picture that goes with them.

mod common;

use common::{Random, Shape, random_history};
use farindex_check::timeline::{self, Options};
use farindex_check::{Call, History, Limits, Operation, Outcome, Promise, Response, Verdict, check};

fn operation(client: u64, call: Call, invoked: u64, response: Option<(u64, Outcome)>) -> Operation {
    let response = response.map(|(at, outcome)| Response { at, outcome });
    Operation { client, call, invoked, response }
}

fn upsert(client: u64, value: &str, invoked: u64, at: Option<u64>) -> Operation {
    let call = Call::Upsert { key: b"k".to_vec(), value: value.into() };
    operation(client, call, invoked, at.map(|at| (at, Outcome::Written)))
}

fn get(client: u64, value: Option<&str>, invoked: u64, at: u64) -> Operation {
    let outcome = Outcome::Value(value.map(Into::into));
    operation(client, Call::Get { key: b"k".to_vec() }, invoked, Some((at, outcome)))
}

fn explain(operations: Vec<Operation>) -> (Vec<usize>, Option<usize>, String) {
    let report = check(&History::new(operations).unwrap(), &Limits::default());
    assert_eq!(report.verdict, Verdict::Violation, "{report}");
    let explanation = report.keys[0].explanation.as_ref().unwrap();
    (explanation.operations.clone(), explanation.unplaced, explanation.text.clone())
}

#[test]
fn a_stale_read_in_a_long_history_is_found_and_named() {
    let mut operations = Vec::new();
    for number in 0..500 {
        let value = format!("v{number}");
        operations.push(upsert(1, &value, number * 10, Some(number * 10 + 4)));
        operations.push(get(2, Some(&value), number * 10 + 5, number * 10 + 8));
    }
    // Reads v100 right after v101 was read.
    operations.push(get(3, Some("v100"), 1019, 1020));
    let (core, _, text) = explain(operations);
    assert!(core.contains(&1000), "{text}");
    assert!(core.len() <= 4, "{text}");
    assert!(core.iter().all(|&index| index == 1000 || (200..206).contains(&index)), "{text}");
}

#[test]
fn a_contradiction_of_presence_is_found_by_the_search() {
    // Two removals succeed after one insertion: no value is ever read, so no zone tells.
    let key = || b"k".to_vec();
    let mut operations = vec![
        operation(1, Call::Insert { key: key(), value: b"a".to_vec() }, 1, Some((5, Outcome::Inserted))),
        operation(2, Call::Remove { key: key() }, 2, Some((8, Outcome::Removed))),
        operation(3, Call::Remove { key: key() }, 3, Some((9, Outcome::Removed))),
    ];
    operations.extend((0..50).map(|number| get(4, None, 10 + number, 11 + number)));
    let (core, unplaced, text) = explain(operations);
    // When the insertion happens does not matter, so it is context.
    assert_eq!(core, [1, 2], "{text}");
    assert!(text.contains("(context)"), "{text}");
    assert!(unplaced.is_some(), "{text}");
    assert!(text.contains("cannot be placed"), "{text}");
}

#[test]
fn a_pending_write_explains_a_read_and_cannot_explain_two() {
    let pending = |operations: &mut Vec<Operation>| operations.push(upsert(1, "b", 10, None));
    let mut operations = vec![upsert(1, "a", 1, Some(2)), get(2, Some("a"), 20, 21), get(2, Some("b"), 30, 31)];
    pending(&mut operations);
    let report = check(&History::new(operations.clone()).unwrap(), &Limits::default());
    assert_eq!(report.verdict, Verdict::Ok, "it may take effect late");
    operations.push(get(2, Some("a"), 40, 41));
    let (core, _, text) = explain(operations);
    assert!(core.contains(&4) && core.contains(&2), "{text}");
    assert!(text.contains("pending"), "{text}");
}

#[test]
fn a_scan_that_misses_a_lasting_key_is_blamed() {
    let scan = Call::Scan { from: std::ops::Bound::Unbounded, to: std::ops::Bound::Unbounded, limit: None };
    let mut operations = vec![
        upsert(1, "a", 1, Some(2)),
        operation(2, scan, 5, Some((9, Outcome::Pairs(vec![])))),
        get(1, Some("a"), 10, 11),
    ];
    let report = check(&History::new(operations.clone()).unwrap(), &Limits::default());
    assert_eq!(report.verdict, Verdict::Violation);
    assert_eq!(report.keys[0].promise, Promise::ScanContent);
    let text = &report.keys[0].explanation.as_ref().unwrap().text;
    assert!(text.contains("scan saw nothing"), "{text}");
    // With a removal somewhere in the interval the key may have been away.
    let remove = Call::Remove { key: b"k".to_vec() };
    operations.push(operation(3, remove, 6, Some((7, Outcome::Removed))));
    operations.push(upsert(3, "a", 8, Some(9)));
    let report = check(&History::new(operations).unwrap(), &Limits::default());
    assert_eq!(report.verdict, Verdict::Ok, "{report}");
}

/// The core, as a history of its own with everything else pending, must still be a violation.
#[test]
fn explanations_of_random_histories_convict() {
    let shape =
        Shape { keys: 1, values: 4, operations: 30, span: 60, pending_percent: 10, scan_percent: 0, wrong_percent: 10 };
    let mut explained = 0;
    for seed in 0..2000 {
        let history = random_history(&mut Random(seed), &shape);
        let report = check(&history, &Limits::default());
        let Some(explanation) = report.keys.first().and_then(|key| key.explanation.as_ref()) else {
            continue;
        };
        explained += 1;
        let relaxed = history.operations().iter().enumerate().filter_map(|(index, operation)| {
            let mut operation = operation.clone();
            if !explanation.operations.contains(&index) {
                let response = operation.response.take();
                // What changed nothing is a read.
                use Outcome::{Inserted, Removed, Updated, Written};
                let changed = [Inserted, Updated, Written, Removed];
                response.is_none_or(|it| changed.contains(&it.outcome)).then_some(operation)
            } else {
                Some(operation)
            }
        });
        let relaxed = History::new(relaxed.collect()).unwrap();
        let verdict = check(&relaxed, &Limits { explanations: 0, ..Limits::default() }).verdict;
        // A relaxed write keeps what it is known to have answered if it took effect; a pending one in a history does
        // not. That is the one difference, so only histories without conditional context are compared.
        let conditional = history.operations().iter().enumerate().any(|(index, operation)| {
            !explanation.operations.contains(&index)
                && matches!(operation.response.as_ref().map(|r| &r.outcome), Some(Outcome::Inserted | Outcome::Updated))
                && matches!(operation.call, Call::Upsert { .. })
        });
        assert!(verdict == Verdict::Violation || conditional, "seed {seed}\n{report}");
    }
    assert!(explained > 300, "only {explained} violations");
}

#[test]
fn the_picture_is_self_contained_and_escaped() {
    let key = b"<script>alert('\"&\")</script>".to_vec();
    let history = History::new(vec![
        operation(1, Call::Insert { key: key.clone(), value: b"<b>".to_vec() }, 1, Some((3, Outcome::Exists))),
        operation(2, Call::Get { key }, 2, None),
    ])
    .unwrap();
    let report = check(&history, &Limits::default());
    let options = Options { title: "</title><script>".to_owned(), ..Options::default() };
    let page = timeline::html(&history, &report, &options);
    assert!(!page.contains("<script") && !page.contains("<b>"), "{page}");
    assert!(page.contains("&lt;script&gt;"));
    let outside = page.replace("http://www.w3.org/2000/svg", "");
    assert!(!outside.contains("http") && !outside.contains("src=") && !outside.contains("url("));
}

#[test]
fn the_picture_of_a_long_history_is_bounded() {
    let operations = (0..5000).map(|number| get(number % 7, Some("never"), number, number + 3)).collect();
    let history = History::new(operations).unwrap();
    let report = check(&history, &Limits::default());
    let page = timeline::html(&history, &report, &Options::default());
    assert_eq!(page.matches("<g class=").count(), 400);
    assert!(page.contains("4600 left out"));
    assert!(page.contains("op unplaced"));
}
