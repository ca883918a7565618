//! Scans are recorded with their bounds, limit and pairs, survive a file, and are checked.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::common::{Store, apply};
use farindex_check::scan::ScanFault;
use farindex_check::{Call, History, Limits, Outcome, Promise, Recorder, Stamps, Verdict, check, format};

/// Records operations of one client on a correct store. `alter` may change the pairs that scans return.
fn record(calls: &[Call], alter: impl Fn(&mut Vec<(Vec<u8>, Vec<u8>)>)) -> History {
    let (recorder, stamps) = (Recorder::new(), Stamps::new());
    let mut store: Store = BTreeMap::new();
    let mut log = recorder.client(1);
    for call in calls {
        let ticket = log.invoke(call.clone(), stamps.tick());
        let mut outcome = apply(&mut store, call);
        if let Outcome::Pairs(pairs) = &mut outcome {
            alter(pairs);
        }
        log.complete(ticket, stamps.tick(), outcome);
    }
    drop(log);
    recorder.finish().unwrap()
}

/// Four keys, and scans with every kind of bound, with and without a limit.
fn calls() -> Vec<Call> {
    let put = |key: &str| Call::Upsert { key: key.into(), value: [key.as_bytes(), b"\x00\xff"].concat() };
    let mut calls: Vec<Call> = ["a", "b", "c", "d"].into_iter().map(put).collect();
    let ends: [Bound<&[u8]>; 4] =
        [Bound::Unbounded, Bound::Included(b"b"), Bound::Excluded(b"b"), Bound::Included(b"d")];
    for (from, to) in ends.iter().flat_map(|from| ends.iter().map(move |to| (*from, *to))) {
        calls.extend([None, Some(0), Some(2)].map(|limit| Call::scan(from, to, limit)));
    }
    calls
}

#[test]
fn recorded_scans_of_a_correct_index_pass_before_and_after_a_file() {
    let history = record(&calls(), |_| {});
    let mut file = Vec::new();
    format::write(&history, &mut file).unwrap();
    let read = format::read(file.as_slice()).unwrap();
    assert_eq!(read, history);
    assert_eq!(check(&read, &Limits::default()).verdict, Verdict::Ok);
    let scans = read.operations().iter().filter(|operation| operation.call.key().is_none());
    assert_eq!(scans.count(), 48);
}

#[test]
fn recorded_scans_of_a_faulty_index_are_violations() {
    let missing = check(&record(&calls(), |pairs| pairs.retain(|pair| pair.0 != b"b")), &Limits::default());
    assert!(missing.keys.iter().any(|key| key.key == b"b"), "{missing}");
    assert!(missing.keys.iter().all(|key| key.promise == Promise::ScanContent), "{missing}");
    let stale = check(&record(&calls(), |pairs| pairs.iter_mut().for_each(|pair| pair.1.push(0))), &Limits::default());
    assert_eq!(stale.keys.len(), 4, "{stale}");
    let unordered = check(&record(&calls(), |pairs| pairs.reverse()), &Limits::default());
    assert!(unordered.scans.iter().all(|scan| scan.fault == ScanFault::OutOfOrder { position: 1 }), "{unordered}");
    assert!(!unordered.scans.is_empty());
    let beyond = check(&record(&calls(), |pairs| pairs.push((b"e".to_vec(), vec![]))), &Limits::default());
    assert!(beyond.scans.iter().any(|scan| matches!(scan.fault, ScanFault::TooMany { limit: 0, .. })), "{beyond}");
    assert!(beyond.scans.iter().any(|scan| matches!(scan.fault, ScanFault::OutOfBounds { .. })), "{beyond}");
}

#[test]
fn scan_without_a_response_promises_nothing() {
    let (recorder, stamps) = (Recorder::new(), Stamps::new());
    let mut log = recorder.client(1);
    let put = log.invoke(Call::Insert { key: b"a".to_vec(), value: vec![] }, stamps.tick());
    log.complete(put, stamps.tick(), Outcome::Inserted);
    let _crashed = log.invoke(Call::scan(Bound::Unbounded, Bound::Unbounded, None), stamps.tick());
    drop(log);
    assert_eq!(check(&recorder.finish().unwrap(), &Limits::default()).verdict, Verdict::Ok);
}
