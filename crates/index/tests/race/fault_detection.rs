//! Every fault of RACE that is planted or published, and how many seeds it takes until it is found.
//!
//! `cargo test --release -p farindex-index --test race convictions -- --nocapture` prints the table.

use farindex_testkit::race::cases;

/// Seeds that each fault is given.
const LIMIT: u64 = 2000;

#[test]
fn every_fault_is_found_and_the_shipped_form_survives() {
    println!(" seeds  fault");
    let mut wanting = Vec::new();
    for case in cases() {
        let fault_detection = case.detect(LIMIT);
        println!("{fault_detection}");
        if !fault_detection.holds() {
            wanting.push(fault_detection.to_string());
        }
    }
    assert!(wanting.is_empty(), "{wanting:#?}");
}
