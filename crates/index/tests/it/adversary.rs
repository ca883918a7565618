//! Tests under the adversary that every kind of index passes.

use farindex_sim::{CrashOutcome, ODDS};
use farindex_testkit::cuckoo::packed;
use farindex_testkit::test_runs::shipped;
use farindex_testkit::{
    IndexUnderTest, Setup, Totals, replay, run_cases, run_seeds, sampled_seeds, seeds_or, sweep_step,
};

const CRASH_OUTCOMES: [CrashOutcome; 3] = [CrashOutcome::Lost, CrashOutcome::Landed, CrashOutcome::Prefix];

/// The second client crashes at this verb.
fn crashes(verb: u64, crash_outcome: CrashOutcome) -> Setup {
    let setup = Setup { crashes_at: Some((verb, crash_outcome)), tight: 0, ..Setup::crashing() };
    Setup { crashes: 0, clients: (2, 3), coroutines: (1, 2), ..setup }
}

/// A client crashes at each of its verbs, and what it posted lands, is lost, or lands in part. `FARINDEX_EVERY=1`
/// leaves no verb out.
#[test]
fn every_kind_survives_a_crash_at_every_verb() {
    let every = sweep_step(61);
    let mut cases = Vec::new();
    for seed in sampled_seeds(0..12) {
        for (i, crash_outcome) in CRASH_OUTCOMES.into_iter().enumerate() {
            cases.extend((1 + i as u64 + seed..=600).step_by(every).map(|verb| (seed, crashes(verb, crash_outcome))));
        }
    }
    for index in shipped() {
        let totals = run_cases(&cases, &*index);
        println!("{}: {totals}", index.config().kind());
        totals.assert_sound();
    }
}

/// Gets of many keys at once, also while clients crash. Where lookups share batches, some of them must go on alone.
#[test]
fn every_kind_survives_gets_of_many_keys() {
    for index in shipped() {
        let kind = index.config().kind();
        for setup in [Setup::default(), Setup::crashing()] {
            let totals = run_seeds(sampled_seeds(0..120), &Setup { many: ODDS * 2 / 3, ..setup }, &*index);
            println!("{kind}: {totals}");
            totals.assert_sound();
            // The B-link tree gets each key for itself.
            let alone = totals.marks.keys().any(|mark| mark.ends_with("many: alone"));
            assert!(alone || kind == "blink", "{kind}: no lookup went on alone");
        }
    }
}

/// Shows seeds of `FARINDEX_INDEX`; with `FARINDEX_CRASHES` set, with crashes; with `FARINDEX_CRASHES_AT` set to a
/// verb, with a crash there; with `FARINDEX_PACKED` set, of tables that are filled up.
#[test]
#[ignore = "shows one seed: set FARINDEX_INDEX, FARINDEX_SEEDS and FARINDEX_LOG"]
fn replays_one() {
    let kind = std::env::var("FARINDEX_INDEX").unwrap_or_else(|_| "shard".to_owned());
    let index = shipped().into_iter().find(|index| index.config().kind() == kind).expect("a kind");
    let is_set = |name| std::env::var_os(name).is_some();
    let setup = if is_set("FARINDEX_PACKED") { packed() } else { Setup::default() };
    let crashes_at = std::env::var("FARINDEX_CRASHES_AT").ok().and_then(|verb| verb.parse().ok());
    let setups = match crashes_at {
        Some(verb) => CRASH_OUTCOMES.map(|crash_outcome| crashes(verb, crash_outcome)).to_vec(),
        None if is_set("FARINDEX_CRASHES") => vec![setup.with_crashes()],
        None => vec![setup],
    };
    for (seed, setup) in seeds_or(0..1).flat_map(|seed| setups.iter().map(move |setup| (seed, setup))) {
        let report = replay(seed, setup, &*index);
        assert!(report.is_sound(), "{:?}: {report}", setup.crashes_at);
    }
}

/// Runs so many seeds, or as many of them as [`sampled_seeds`] says; nothing may be wrong.
pub(crate) fn survives(seeds: u64, setup: &Setup, index: &dyn IndexUnderTest) -> Totals {
    let totals = run_seeds(sampled_seeds(0..seeds), setup, index);
    println!("{totals}");
    totals.assert_sound();
    totals
}
