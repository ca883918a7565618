//! Explanations are small, true and readable; and the timeline page.

use crate::common::{Random, Shape, operation, random_history};
use farindex_check::timeline::{self, Options};
use farindex_check::{Call, History, Limits, Operation, Outcome, Promise, Verdict, check};

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
fn explanation_of_a_stale_read_in_a_long_history_is_small() {
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
fn explanation_of_a_contradiction_without_reads_comes_from_the_search() {
    // Two removals succeed after one insertion. No operation reads a value, so zones prove nothing.
    let key = || b"k".to_vec();
    let mut operations = vec![
        operation(1, Call::Insert { key: key(), value: b"a".to_vec() }, 1, Some((5, Outcome::Inserted))),
        operation(2, Call::Remove { key: key() }, 2, Some((8, Outcome::Removed))),
        operation(3, Call::Remove { key: key() }, 3, Some((9, Outcome::Removed))),
    ];
    operations.extend((0..50).map(|number| get(4, None, 10 + number, 11 + number)));
    let (core, unplaced, text) = explain(operations);
    // The moment of the insertion does not matter, so it is context.
    assert_eq!(core, [1, 2], "{text}");
    assert!(text.contains("(context)"), "{text}");
    assert!(unplaced.is_some(), "{text}");
    assert!(text.contains("cannot be placed"), "{text}");
}

#[test]
fn pending_write_explains_one_read_but_not_a_second_one() {
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
fn scan_that_misses_a_key_present_throughout_is_a_violation() {
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
    // With a removal within the interval the key may have been absent.
    let remove = Call::Remove { key: b"k".to_vec() };
    operations.push(operation(3, remove, 6, Some((7, Outcome::Removed))));
    operations.push(upsert(3, "a", 8, Some(9)));
    let report = check(&History::new(operations).unwrap(), &Limits::default());
    assert_eq!(report.verdict, Verdict::Ok, "{report}");
}

/// The operations of an explanation, with all others pending, are still a violation.
#[test]
fn explanations_of_random_histories_are_violations_by_themselves() {
    let shape = Shape {
        keys: 1,
        values: 4,
        operations: 30,
        span: 60,
        pending_percent: 10,
        scan_percent: 0,
        guarded_percent: 0,
        grouped_percent: 0,
        wrong_percent: 10,
    };
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
                // An operation without a change is a read.
                use Outcome::{Inserted, Removed, Updated, Written};
                let changed = [Inserted, Updated, Written, Removed];
                response.is_none_or(|it| changed.contains(&it.outcome)).then_some(operation)
            } else {
                Some(operation)
            }
        });
        let relaxed = History::new(relaxed.collect()).unwrap();
        let verdict = check(&relaxed, &Limits { explanations: 0, ..Limits::default() }).verdict;
        // A relaxed write keeps its known outcome; a pending write in a history has none. This is the only difference,
        // so only histories without conditional writes among the relaxed ones are compared.
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
fn timeline_is_self_contained_and_escaped() {
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
fn timeline_of_a_long_history_is_bounded() {
    let operations = (0..5000).map(|number| get(number % 7, Some("never"), number, number + 3)).collect();
    let history = History::new(operations).unwrap();
    let report = check(&history, &Limits::default());
    let page = timeline::html(&history, &report, &Options::default());
    assert_eq!(page.matches("<g class=").count(), 400);
    assert!(page.contains("4600 left out"));
    assert!(page.contains("op unplaced"));
}
