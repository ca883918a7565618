//! Every fault that is planted or published, and how many seeds it takes until it is found.
//!
//! `cargo test --release -p farindex-index --test convictions -- --nocapture` prints the table; with `FARINDEX_FAULT=NoGrace`
//! only the faults whose names hold that.

use farindex_testkit::fault_detection::cases;

/// Seeds that each fault is given.
const LIMIT: u64 = 2000;

#[test]
fn every_fault_is_found_and_the_shipped_form_survives() {
    println!(" seeds  fault");
    let wanted = std::env::var("FARINDEX_FAULT").unwrap_or_default();
    let fault_detection: Vec<_> = cases()
        .iter()
        .filter(|case| case.planted.contains(&wanted))
        .map(|case| {
            let fault_detection = case.detect(LIMIT);
            println!("{fault_detection}");
            fault_detection
        })
        .collect();
    let wanting: Vec<_> =
        fault_detection.iter().filter(|fault_detection| !fault_detection.holds()).map(ToString::to_string).collect();
    assert!(wanting.is_empty(), "{wanting:#?}");
}
