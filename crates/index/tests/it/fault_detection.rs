//! Every fault that is planted or published, and how many seeds it takes until it is detected. The shipped form passes
//! the same seeds.
//!
//! `cargo test --release -p farindex-index-tests --test it fault_detection -- --nocapture` prints the table; with
//! `FARINDEX_FAULT=NoGrace` only the faults whose names hold that. Seeds that are known to detect a fault go first; with
//! `FARINDEX_SEED_LIMIT=2000`, so many seeds are searched from 0 on.

use farindex_index::faults::{Fault, plant};
use farindex_testkit::fault_detection::FaultCase;
use farindex_testkit::test_runs::shipped;
use farindex_testkit::{Setup, run_seed};
use farindex_testkit::{blink, chime, cuckoo, dex, fault_detection, linear, race, sephash, sherman};

/// Each fault is given so many seeds at most.
fn all_are_detected(cases: Vec<FaultCase>, limit: u64) {
    let search = std::env::var("FARINDEX_SEED_LIMIT").ok().and_then(|limit| limit.parse().ok());
    let wanted = std::env::var("FARINDEX_FAULT").unwrap_or_default();
    println!(" seeds  fault");
    let mut missed = Vec::new();
    for case in cases.iter().filter(|case| case.planted.contains(&wanted)) {
        let detection = search.map_or_else(|| case.detect(limit), |limit| case.search(limit));
        println!("{detection}");
        if !detection.holds() {
            missed.push(detection.to_string());
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn faults_of_shard_the_pool_and_the_lock_table_are_detected() {
    all_are_detected(fault_detection::cases(), 2000);
}

#[test]
fn faults_that_take_an_adversary_that_aims_are_detected() {
    all_are_detected(fault_detection::aimed_cases(), 400);
}

/// The judges and features are needed: the usual setup misses these faults in as many seeds as find them with features.
#[test]
fn the_usual_setup_misses_what_takes_features() {
    for (kind, fault) in [("shard", Fault::HashIsKey), ("race", Fault::HashIsKey), ("sephash", Fault::WalkOnce)] {
        let index = shipped().into_iter().find(|index| index.config().kind() == kind).expect("a kind");
        plant(&[fault]);
        let found = (0..20).find(|seed| !run_seed(*seed, &Setup::default(), &*index).is_sound());
        plant(&[]);
        assert_eq!(found, None, "{kind}, {fault:?}");
    }
}

#[test]
fn faults_of_race_are_detected() {
    all_are_detected(race::cases(), 2000);
}

#[test]
fn faults_of_sephash_are_detected() {
    all_are_detected(sephash::fault_detection(), 600);
}

#[test]
fn faults_of_linear_probing_are_detected() {
    all_are_detected(linear::cases(), 2000);
}

#[test]
fn faults_of_cuckoo_hashing_are_detected() {
    all_are_detected(cuckoo::cases(), 2000);
}

#[test]
fn faults_of_the_b_link_tree_are_detected() {
    all_are_detected(blink::cases(), 2000);
}

#[test]
fn faults_of_sherman_are_detected() {
    all_are_detected(sherman::cases(), 2000);
}

#[test]
fn faults_of_chime_are_detected() {
    all_are_detected(chime::cases(), 2000);
}

#[test]
fn faults_of_dex_are_detected() {
    all_are_detected(dex::cases(), 2000);
}
