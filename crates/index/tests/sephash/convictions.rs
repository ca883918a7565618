//! The adversary convicts every fault that SepHash's released code has, and acquits the shipped form on the same seeds.

use farindex_testkit::sephash::convictions;

#[test]
fn every_fault_is_convicted() {
    let limit = std::env::var("FARINDEX_CONVICT").ok().and_then(|limit| limit.parse().ok()).unwrap_or(600);
    let mut acquitted = Vec::new();
    for case in convictions() {
        let conviction = case.convict(limit);
        println!("{conviction}");
        if !conviction.holds() {
            acquitted.push(conviction.to_string());
        }
    }
    assert!(acquitted.is_empty(), "{acquitted:#?}");
}
