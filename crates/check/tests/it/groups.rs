//! Operations of one call that take effect in its order.

use crate::rules::{exists, get, remove, upsert};
use farindex_check::{History, Limits, Operation, Verdict, check};

/// So many calls at the same time, each of so many blind upserts of one key.
fn groups(calls: u64, parts: u64, value: impl Fn(u64, u64) -> String) -> Vec<Operation> {
    let each = (0..calls).flat_map(|call| (0..parts).map(move |part| (call, part)));
    let written = each.map(|(call, part)| Operation {
        group: Some(call),
        ..upsert(call, "k", &value(call, part), 1, Some(1000 + call * parts + part))
    });
    written.collect()
}

/// Three upserts of one call: a get after it must see the last of them.
#[test]
fn a_group_takes_effect_in_its_order() {
    let history = |seen: &str, pending: bool| {
        let part = |value, at| Operation { group: Some(3), ..upsert(1, "k", value, 1, at) };
        // Another client's operation with this number is of another group.
        let other = Operation { group: Some(3), ..upsert(2, "k", "w", 1, Some(2)) };
        let last = part("c", (!pending).then_some(9));
        History::new(vec![part("a", Some(7)), part("b", Some(8)), last, other, get(2, "k", Some(seen), 20, 21)])
            .unwrap()
    };
    let verdict = |seen, pending| check(&history(seen, pending), &Limits::default()).verdict;
    assert_eq!(verdict("c", false), Verdict::Ok);
    assert_eq!(verdict("w", false), Verdict::Ok, "the other client's may be the last of all");
    for seen in ["a", "b"] {
        let report = check(&history(seen, false), &Limits::default());
        assert_eq!(report.verdict, Verdict::Violation, "{seen}");
        assert!(report.to_string().contains(&format!("upsert \"{seen}\" → written, group 3")), "{report}");
    }
    // One without an outcome is not held to its place.
    assert_eq!(["a", "b", "c", "w"].map(|seen| verdict(seen, true)), {
        use Verdict::{Ok, Violation};
        [Violation, Ok, Ok, Ok]
    });
}

/// Twenty calls of twelve blind upserts at the same time, and a reader between: without the order of each call, their
/// operations could be interleaved in more ways than a search can try.
#[test]
fn groups_need_few_steps() {
    let mut operations = groups(20, 12, |call, part| format!("{}", (call * part) % 7));
    for read in 0..30 {
        operations.push(get(99, "k", Some(&format!("{}", (read * 3) % 7)), 10 * read + 5, 10 * read + 6));
    }
    let history = History::new(operations).unwrap();
    let report = check(&history, &Limits { steps_per_key: 100_000, ..Limits::default() });
    println!("{} steps", report.stats.steps);
    assert_eq!(report.verdict, Verdict::Ok, "{report}");
    assert!(report.stats.steps <= 300, "{}", report.stats.steps);
}

/// Twelve calls of six blind upserts each, whose values nobody reads, while the key is there, is removed, is there, and is gone
/// once more, for which a removal is missing. It does not matter of which call the upserts were that came first.
#[test]
fn unread_groups_need_few_steps() {
    let mut operations = groups(12, 6, |call, part| format!("{call} {part}"));
    operations.extend([remove(50, 2, Some(100)), exists(99, 8, 9), get(99, "k", None, 12, 13), exists(99, 16, 17)]);
    let steps_of = |operations: Vec<Operation>| {
        let report = check(&History::new(operations).unwrap(), &Limits { steps_per_key: 100_000, ..Limits::default() });
        println!("{report}");
        (report.verdict, report.stats.steps)
    };
    let (verdict, steps) = steps_of(operations.clone());
    assert!(verdict == Verdict::Ok && steps <= 100, "{verdict:?} in {steps} steps");
    operations.push(get(99, "k", None, 20, 21));
    let (verdict, steps) = steps_of(operations);
    assert!(verdict == Verdict::Violation && steps <= 1_000, "{verdict:?} in {steps} steps");
}
