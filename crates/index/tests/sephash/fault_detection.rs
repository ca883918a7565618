//! The adversary convicts every fault that SepHash's released code has, and acquits the shipped form on the same seeds.

use farindex_testkit::sephash::fault_detection;

#[test]
fn every_fault_is_convicted() {
    let limit = std::env::var("FARINDEX_CONVICT").ok().and_then(|limit| limit.parse().ok()).unwrap_or(600);
    let mut acquitted = Vec::new();
    for case in fault_detection() {
        let fault_detection = case.detect(limit);
        println!("{fault_detection}");
        if !fault_detection.holds() {
            acquitted.push(fault_detection.to_string());
        }
    }
    assert!(acquitted.is_empty(), "{acquitted:#?}");
}
