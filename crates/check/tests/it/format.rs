//! The file format: round trips, and errors with their lines.

use std::ops::Bound;

use farindex_check::format::{LineError, ReadError, VERSION, read, write};
use farindex_check::{Call, History, Operation, Outcome, Response};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![vec(any::<u8>(), 0..12), "[a-z\"\\\\é\u{7f}\u{85}\n ]{0,8}".prop_map(String::into_bytes),]
}

fn bound() -> impl Strategy<Value = Bound<Vec<u8>>> {
    prop_oneof![Just(Bound::Unbounded), bytes().prop_map(Bound::Included), bytes().prop_map(Bound::Excluded),]
}

fn call_and_outcome() -> impl Strategy<Value = (Call, Outcome)> {
    let one_of = |outcomes: &'static [Outcome]| proptest::sample::select(outcomes);
    use Outcome::{Absent, Differs, Exists, Inserted, Removed, Replaced, Updated, Written};
    prop_oneof![
        (bytes(), option::of(bytes())).prop_map(|(key, value)| (Call::Get { key }, Outcome::Value(value))),
        (bytes(), bytes(), one_of(&[Inserted, Exists]))
            .prop_map(|(key, value, outcome)| (Call::Insert { key, value }, outcome)),
        (bytes(), bytes(), one_of(&[Updated, Absent]))
            .prop_map(|(key, value, outcome)| (Call::Update { key, value }, outcome)),
        (bytes(), bytes(), one_of(&[Inserted, Updated, Written]))
            .prop_map(|(key, value, outcome)| (Call::Upsert { key, value }, outcome)),
        (bytes(), one_of(&[Removed, Absent])).prop_map(|(key, outcome)| (Call::Remove { key }, outcome)),
        (bytes(), bytes(), bytes(), one_of(&[Replaced, Differs, Absent]))
            .prop_map(|(key, expected, value, outcome)| (Call::Replace { key, expected, value }, outcome)),
        (bytes(), bytes(), one_of(&[Removed, Differs, Absent]))
            .prop_map(|(key, expected, outcome)| (Call::RemoveIf { key, expected }, outcome)),
        (bound(), bound(), option::of(any::<u64>()), vec((bytes(), bytes()), 0..4))
            .prop_map(|(from, to, limit, pairs)| (Call::Scan { from, to, limit }, Outcome::Pairs(pairs))),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    (any::<u64>(), call_and_outcome(), any::<[u64; 2]>(), any::<bool>(), any::<Option<u64>>()).prop_map(
        |(client, (call, outcome), mut stamps, pending, group)| {
            stamps.sort_unstable();
            let response = (!pending).then_some(Response { at: stamps[1], outcome });
            Operation { client, call, invoked: stamps[0], response, group }
        },
    )
}

proptest! {
    #[test]
    fn format_round_trips_every_history(operations in vec(operation(), 0..20)) {
        let history = History::new(operations).unwrap();
        let mut file = Vec::new();
        write(&history, &mut file).unwrap();
        prop_assert_eq!(read(file.as_slice()).unwrap(), history);
    }

    #[test]
    fn format_reader_never_panics(junk in vec(any::<u8>(), 0..200), text in "[{}\\[\\]\":,a-z0-9 \n]{0,80}") {
        let header = b"{\"format\":\"farindex-history\",\"version\":3}\n".to_vec();
        for body in [junk, text.into_bytes()] {
            let _ = read(body.as_slice());
            let _ = read([header.clone(), body].concat().as_slice());
        }
    }
}

/// Reads operations behind a valid header.
fn body(lines: &str) -> Result<History, ReadError> {
    body_of(3, lines)
}

fn body_of(version: u32, lines: &str) -> Result<History, ReadError> {
    read(format!("{{\"format\":\"farindex-history\",\"version\":{version}}}\n{lines}").as_bytes())
}

#[test]
fn format_reads_the_documented_example() {
    let example = concat!(
        "{\"client\":1,\"op\":\"insert\",\"key\":\"k\",\"value\":{\"hex\":\"00fF\"},\"invoked\":1,\"responded\":4,\"outcome\":\"inserted\"}\n",
        "\n",
        "{\"client\":2,\"op\":\"get\",\"key\":\"k\",\"invoked\":2,\"responded\":3,\"outcome\":{\"value\":null}}\n",
        "{\"client\":1,\"op\":\"remove\",\"key\":\"k\",\"invoked\":5}\n",
        "{\"client\":2,\"op\":\"scan\",\"from\":{\"included\":\"a\"},\"limit\":1,\"invoked\":6,\"responded\":8,",
        "\"outcome\":{\"pairs\":[[\"k\",{\"hex\":\"00ff\"}]]}}\n",
    );
    let replaced = "{\"client\":3,\"op\":\"replace\",\"key\":\"k\",\"expected\":{\"hex\":\"00ff\"},\"value\":\"new\",\
                    \"invoked\":6,\"responded\":9,\"outcome\":\"replaced\"}\n";
    let history = body(&[example, replaced].concat()).unwrap();
    let expected = (b"k".to_vec(), vec![0, 255], b"new".to_vec());
    let last = history.operations().last().unwrap();
    assert_eq!(last.call, Call::Replace { key: expected.0, expected: expected.1, value: expected.2 });
    let grouped = concat!(
        "{\"client\":1,\"op\":\"upsert\",\"key\":\"k\",\"value\":\"a\",\"invoked\":10,\"responded\":14,",
        "\"outcome\":\"updated\",\"group\":1}\n",
        "{\"client\":1,\"op\":\"upsert\",\"key\":\"k\",\"value\":\"b\",\"invoked\":10,\"responded\":14,",
        "\"outcome\":\"updated\",\"group\":1}\n",
    );
    let whole = body(&[example, replaced, grouped].concat()).unwrap();
    assert_eq!(whole.operations()[..5], *history.operations());
    assert_eq!(whole.operations()[5..].iter().map(|operation| operation.group).collect::<Vec<_>>(), [Some(1); 2]);
    // Version 1 is the same without operations that expect a value.
    assert_eq!(body_of(1, example).unwrap().operations(), &history.operations()[..4]);
    let error = body_of(1, replaced).unwrap_err().error;
    assert!(matches!(error, LineError::NotInVersion { what: "replace", version: 1 }), "{error}");
    // Before version 3 there were no groups.
    let error = body_of(2, grouped).unwrap_err().error;
    assert_eq!(error.to_string(), "version 2 has no field \"group\"");
    let operations = history.operations();
    assert_eq!(operations[0].call, Call::Insert { key: b"k".to_vec(), value: vec![0, 255] });
    assert_eq!(operations[1].response.as_ref().unwrap().outcome, Outcome::Value(None));
    assert_eq!(operations[2].response, None);
    let from = Bound::Included(b"a".to_vec());
    assert_eq!(operations[3].call, Call::Scan { from, to: Bound::Unbounded, limit: Some(1) });
}

#[test]
fn format_errors_name_the_line_and_the_fault() {
    let good = "{\"client\":1,\"op\":\"remove\",\"key\":\"k\",\"invoked\":5}\n";
    let error = |line: &str| body(&format!("{good}\n{line}\n{good}")).unwrap_err();
    type Expected = fn(&LineError) -> bool;
    let cases: [(&str, Expected); 10] = [
        ("{", |e| matches!(e, LineError::Malformed(_))),
        ("{\"client\":1,\"op\":\"get\",\"key\":\"k\",\"invoked\":1,\"colour\":2}", |e| {
            matches!(e, LineError::Malformed(_))
        }),
        ("{\"client\":1,\"op\":\"get\",\"invoked\":1}", |e| {
            matches!(e, LineError::Missing { op: "get", field: "key" })
        }),
        ("{\"client\":1,\"op\":\"get\",\"key\":\"k\",\"value\":\"v\",\"invoked\":1}", |e| {
            matches!(e, LineError::Surplus { op: "get", field: "value" })
        }),
        ("{\"client\":1,\"op\":\"remove_if\",\"key\":\"k\",\"invoked\":1}", |e| {
            matches!(e, LineError::Missing { op: "remove_if", field: "expected" })
        }),
        ("{\"client\":1,\"op\":\"remove\",\"key\":\"k\",\"expected\":\"v\",\"invoked\":1}", |e| {
            matches!(e, LineError::Surplus { op: "remove", field: "expected" })
        }),
        ("{\"client\":1,\"op\":\"get\",\"key\":\"k\",\"invoked\":1,\"responded\":2}", |e| {
            matches!(e, LineError::HalfResponse)
        }),
        ("{\"client\":1,\"op\":\"get\",\"key\":{\"hex\":\"0\"},\"invoked\":1}", |e| matches!(e, LineError::BadHex(_))),
        (
            "{\"client\":1,\"op\":\"get\",\"key\":\"k\",\"invoked\":3,\"responded\":2,\"outcome\":{\"value\":null}}",
            |e| matches!(e, LineError::Invalid(_)),
        ),
        ("{\"client\":1,\"op\":\"get\",\"key\":\"k\",\"invoked\":1,\"responded\":2,\"outcome\":\"removed\"}", |e| {
            matches!(e, LineError::Invalid(_))
        }),
    ];
    for (line, is_expected) in cases {
        let error = error(line);
        assert_eq!(error.line, 4, "{error}");
        assert!(is_expected(&error.error), "{error}");
    }
}

#[test]
fn format_refuses_other_files_and_versions() {
    let error = |file: &str| read(file.as_bytes()).unwrap_err();
    assert!(matches!(error("").error, LineError::NoHeader));
    let other = error("{\"format\":\"other\",\"version\":1}");
    assert!(matches!(other.error, LineError::OtherFormat(_)));
    for version in [0, VERSION + 1] {
        let newer = error(&format!("{{\"format\":\"farindex-history\",\"version\":{version}}}"));
        assert!(matches!(newer.error, LineError::OtherVersion(of) if of == version));
        assert_eq!(newer.line, 1);
    }
}
