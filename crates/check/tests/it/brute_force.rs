//! Compares the checker with an oracle that tries every order.
//!
//! The quick test compares 20,000 histories of each of nine shapes; with `FARINDEX_CHECK_HISTORIES=100000` (or any
//! other number) in the environment, that many of each.

use crate::common::{Random, Shape, Store, apply, random_history};
use farindex_check::map::MapModel;
use farindex_check::model::{Entry, Model, Part};
use farindex_check::search::{self, Answer, Budget, search};
use farindex_check::{Call, History, Limits, Operation, Outcome, Response, Verdict, check};

/// Returns whether some order of the operations explains all outcomes: tries each operation that no remaining one
/// precedes.
fn explainable(left: &[Operation], store: &Store) -> bool {
    if left.iter().all(|operation| operation.response.is_none()) {
        return true;
    }
    (0..left.len()).any(|index| {
        let operation = &left[index];
        let preceded =
            left.iter().any(|other| other.response.as_ref().is_some_and(|response| response.at < operation.invoked));
        let behind_another = operation.group.is_some()
            && operation.response.is_some()
            && left[..index].iter().any(|other| {
                let same_call = (other.client, other.group) == (operation.client, operation.group);
                same_call && other.response.is_some() && other.call.key() == operation.call.key()
            });
        if preceded || behind_another {
            return false;
        }
        let mut rest = left.to_vec();
        rest.remove(index);
        let mut after = store.clone();
        let outcome = apply(&mut after, &operation.call);
        let agrees = operation.response.as_ref().is_none_or(|response| {
            let vague = matches!(operation.call, Call::Upsert { .. });
            response.outcome == outcome || vague && response.outcome == Outcome::Written
        });
        agrees && explainable(&rest, &after)
    })
}

/// The promise of scans as gets: one for each key that a scan covers. `None` if a scan's result is malformed.
fn expand_scans(history: &History, keys: u64) -> Option<Vec<Operation>> {
    let mut expanded = Vec::new();
    for operation in history.operations() {
        let Call::Scan { limit, .. } = &operation.call else {
            expanded.push(operation.clone());
            continue;
        };
        let Some(Response { at, outcome: Outcome::Pairs(pairs) }) = &operation.response else {
            continue;
        };
        let full = limit.is_some_and(|limit| pairs.len() as u64 == limit);
        if limit.is_some_and(|limit| pairs.len() as u64 > limit) || !pairs.is_sorted_by(|a, b| a.0 < b.0) {
            return None;
        }
        for key in (0..keys).map(|number| crate::common::text(b'k', number)) {
            // The store's own scan decides whether a key is within the bounds.
            let mut only = Store::from([(key.clone(), vec![])]);
            let unlimited = match &operation.call {
                Call::Scan { from, to, .. } => Call::Scan { from: from.clone(), to: to.clone(), limit: None },
                other => other.clone(),
            };
            let inside = apply(&mut only, &unlimited) != Outcome::Pairs(vec![]);
            let seen = pairs.iter().find(|pair| pair.0 == key).map(|pair| pair.1.clone());
            if seen.is_some() && !inside {
                return None;
            }
            let beyond = full && pairs.last().is_none_or(|last| key > last.0);
            if inside && !beyond {
                expanded.push(Operation {
                    client: operation.client,
                    call: Call::Get { key },
                    invoked: operation.invoked,
                    response: Some(Response { at: *at, outcome: Outcome::Value(seen) }),
                    group: None,
                });
            }
        }
    }
    Some(expanded)
}

/// Asserts that an order is a linearization: it can be replayed, respects real time, and has every completed operation
/// once.
fn assert_linearization(entries: &[Entry<<MapModel as Model>::Op>], order: &[usize]) {
    let mut state = MapModel.init();
    for (position, &index) in order.iter().enumerate() {
        state = MapModel.step(&state, &entries[index].op).expect("an admitted operation");
        for &later in &order[position + 1..] {
            assert_ne!(index, later);
            let precedes = entries[later].responded.is_some_and(|at| at < entries[index].invoked);
            assert!(!precedes, "{later} responds before {index} is invoked");
            let (link, later_link) = (entries[index].link, entries[later].link);
            let inverted = link.zip(later_link).is_some_and(|(a, b)| a.chain == b.chain && a.place > b.place);
            assert!(!inverted, "{later} comes before {index} in its chain");
        }
    }
    for (index, entry) in entries.iter().enumerate() {
        assert!(entry.responded.is_none() || order.contains(&index), "{index} is left out");
    }
}

/// The map model without the methods that only make the search faster.
struct MinimalModel;

impl Model for MinimalModel {
    type State = <MapModel as Model>::State;
    type Op = <MapModel as Model>::Op;

    fn init(&self) -> Self::State {
        MapModel.init()
    }

    fn step(&self, state: &Self::State, op: &Self::Op) -> Option<Self::State> {
        MapModel.step(state, op)
    }

    fn partition(&self, history: &History) -> Vec<Part<Self::Op>> {
        MapModel.partition(history)
    }
}

fn compare(shape: Shape, seed: u64) {
    let count: u64 = std::env::var("FARINDEX_CHECK_HISTORIES")
        .map_or(20_000, |count| count.parse().expect("FARINDEX_CHECK_HISTORIES is a number"));
    let mut violations = 0;
    for number in 0..count {
        let mut random = Random(seed + number);
        let history = random_history(&mut random, &shape);
        let expanded = expand_scans(&history, shape.keys);
        let expected = expanded.is_some_and(|operations| explainable(&operations, &Store::new()));
        let report = check(&history, &Limits { explanations: 1, ..Limits::default() });
        let verdict = if expected { Verdict::Ok } else { Verdict::Violation };
        assert_eq!(report.verdict, verdict, "seed {}: {history:#?}\n{report}", seed + number);
        violations += u64::from(!expected);
        for part in MapModel.partition(&history) {
            let fast = search(&MapModel, &part.entries, Budget::steps(100_000));
            let minimal = search(&MinimalModel, &part.entries, Budget::steps(100_000));
            for outcome in [&fast, &minimal] {
                match &outcome.answer {
                    Answer::Linearizable(order) => {
                        assert_linearization(&part.entries, order);
                        assert_eq!(MapModel.refute(&part.entries), None, "seed {}", seed + number);
                    }
                    Answer::Violation => assert!(!expected, "seed {}", seed + number),
                    Answer::Unknown => {
                        panic!("seed {}: a small history is undecided", seed + number)
                    }
                }
            }
            let holds = |outcome: &search::Outcome| matches!(outcome.answer, Answer::Linearizable(_));
            assert_eq!(holds(&fast), holds(&minimal), "seed {}", seed + number);
        }
    }
    let percent = violations * 100 / count;
    println!("{violations} of {count} histories are violations, {percent} %");
    assert!((10..=90).contains(&percent), "{percent} % violations: one verdict is too rare for a test");
}

#[test]
fn verdicts_match_brute_force_on_one_key_with_few_values() {
    let shape = Shape {
        keys: 1,
        values: 2,
        operations: 7,
        span: 16,
        pending_percent: 15,
        scan_percent: 0,
        guarded_percent: 0,
        grouped_percent: 0,
        wrong_percent: 30,
    };
    compare(shape, 1 << 32);
}

#[test]
fn verdicts_match_brute_force_on_one_key_with_mostly_unique_values() {
    let shape = Shape {
        keys: 1,
        values: 10,
        operations: 7,
        span: 12,
        pending_percent: 20,
        scan_percent: 0,
        guarded_percent: 0,
        grouped_percent: 0,
        wrong_percent: 25,
    };
    compare(shape, 2 << 32);
}

#[test]
fn verdicts_match_brute_force_on_two_keys_with_scans() {
    let shape = Shape {
        keys: 2,
        values: 2,
        operations: 6,
        span: 20,
        pending_percent: 10,
        scan_percent: 25,
        guarded_percent: 0,
        grouped_percent: 0,
        wrong_percent: 40,
    };
    compare(shape, 3 << 32);
}

#[test]
fn verdicts_match_brute_force_on_many_concurrent_operations() {
    let shape = Shape {
        keys: 1,
        values: 3,
        operations: 8,
        span: 5,
        pending_percent: 10,
        scan_percent: 0,
        guarded_percent: 0,
        grouped_percent: 0,
        wrong_percent: 40,
    };
    compare(shape, 4 << 32);
}

#[test]
fn verdicts_match_brute_force_on_replacements_of_few_values() {
    compare(
        Shape {
            keys: 1,
            values: 2,
            operations: 7,
            span: 16,
            pending_percent: 15,
            scan_percent: 0,
            guarded_percent: 60,
            grouped_percent: 0,
            wrong_percent: 25,
        },
        5 << 32,
    );
}

#[test]
fn verdicts_match_brute_force_on_replacements_of_mostly_unique_values() {
    compare(
        Shape {
            keys: 1,
            values: 5,
            operations: 8,
            span: 10,
            pending_percent: 20,
            scan_percent: 10,
            guarded_percent: 50,
            grouped_percent: 0,
            wrong_percent: 35,
        },
        6 << 32,
    );
}

#[test]
fn verdicts_match_brute_force_on_many_concurrent_replacements() {
    compare(
        Shape {
            keys: 1,
            values: 3,
            operations: 8,
            span: 5,
            pending_percent: 25,
            scan_percent: 0,
            guarded_percent: 40,
            grouped_percent: 0,
            wrong_percent: 35,
        },
        7 << 32,
    );
}

#[test]
fn verdicts_match_brute_force_on_groups_of_few_values() {
    compare(
        Shape {
            keys: 1,
            values: 2,
            operations: 8,
            span: 6,
            pending_percent: 10,
            scan_percent: 0,
            guarded_percent: 10,
            grouped_percent: 60,
            wrong_percent: 15,
        },
        8 << 32,
    );
}

#[test]
fn verdicts_match_brute_force_on_groups_of_mostly_unique_values() {
    compare(
        Shape {
            keys: 2,
            values: 9,
            operations: 8,
            span: 8,
            pending_percent: 15,
            scan_percent: 5,
            guarded_percent: 10,
            grouped_percent: 70,
            wrong_percent: 10,
        },
        9 << 32,
    );
}
