//! Tests under the adversary that every kind of index passes.

use farindex_sim::{Fate, ODDS};
use farindex_testkit::{IndexUnderTest, Setup, Totals, replay, run_cases, run_seeds, seeds_or};

const FATES: [Fate; 3] = [Fate::Lost, Fate::Landed, Fate::Prefix];

/// The second client crashes at this verb.
fn crashes(verb: u64, fate: Fate) -> Setup {
    let setup = Setup { crashes_at: Some((verb, fate)), tight: 0, ..Setup::crashing() };
    Setup { crashes: 0, clients: (2, 3), coroutines: (1, 2), ..setup }
}

/// A client crashes at each of its verbs, and what it posted lands, is lost, or lands in part. `FARINDEX_EVERY=1` leaves no verb out.
pub(crate) fn survives_a_crash_at_every_verb(index: &dyn IndexUnderTest) {
    let every = std::env::var("FARINDEX_EVERY").ok().and_then(|every| every.parse().ok()).unwrap_or(61);
    let mut cases = Vec::new();
    for seed in seeds_or(0..12) {
        for (i, fate) in FATES.into_iter().enumerate() {
            cases.extend((1 + i as u64 + seed..=600).step_by(every).map(|verb| (seed, crashes(verb, fate))));
        }
    }
    let totals = run_cases(&cases, index);
    println!("{totals}");
    totals.assert_sound();
}

/// Gets of many keys at once, also while clients crash. `mark` says that some of them went on alone.
pub(crate) fn survives_gets_of_many_keys(index: &dyn IndexUnderTest, mark: &'static str) {
    for setup in [Setup::default(), Setup::crashing()] {
        let totals = run_seeds(seeds_or(0..150), &Setup { many: ODDS * 2 / 3, ..setup }, index);
        println!("{totals}");
        totals.assert_sound();
        totals.assert_marks([mark]);
    }
}

/// Shows one seed; with `FARINDEX_CRASHES` set, one with crashes; with `FARINDEX_CRASHES_AT` set to a verb, with a crash there.
pub(crate) fn replays_one(index: &dyn IndexUnderTest) {
    let crashing = std::env::var_os("FARINDEX_CRASHES").is_some();
    let crashes_at = std::env::var("FARINDEX_CRASHES_AT").ok().and_then(|verb| verb.parse().ok());
    for seed in seeds_or(0..1) {
        let setups = match crashes_at {
            Some(verb) => FATES.map(|fate| crashes(verb, fate)).to_vec(),
            None if crashing => vec![Setup::crashing()],
            None => vec![Setup::default()],
        };
        for setup in setups {
            let report = replay(seed, &setup, index);
            assert!(report.is_sound(), "{:?}: {report}", setup.crashes_at);
        }
    }
}

/// Runs so many seeds, or `FARINDEX_SEEDS`; nothing may be wrong.
pub(crate) fn survives(seeds: u64, setup: &Setup, index: &dyn IndexUnderTest) -> Totals {
    let totals = run_seeds(seeds_or(0..seeds), setup, index);
    println!("{totals}");
    totals.assert_sound();
    totals
}
