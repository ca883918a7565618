//! What the adversary does to every kind of index.

use farindex_sim::{CrashOutcome, ODDS};
use farindex_testkit::{Access, Setup, replay, run_cases, run_seeds, seeds_or};

const CRASH_OUTCOMES: [CrashOutcome; 3] = [CrashOutcome::Lost, CrashOutcome::Landed, CrashOutcome::Prefix];

/// The second client dies at this verb.
fn dies(verb: u64, crash_outcome: CrashOutcome) -> Setup {
    let setup = Setup { crashes_at: Some((verb, crash_outcome)), tight: 0, ..Setup::crashing() };
    Setup { crashes: 0, clients: (2, 3), coroutines: (1, 2), ..setup }
}

/// A client dies at each of its verbs, and what it posted lands, is lost, or lands in part. `FARINDEX_EVERY=1` leaves no verb out.
pub(crate) fn survives_a_death_at_every_verb(access: &(impl Access + Sync)) {
    let every = std::env::var("FARINDEX_EVERY").ok().and_then(|every| every.parse().ok()).unwrap_or(61);
    let mut cases = Vec::new();
    for seed in seeds_or(0..12) {
        for (i, crash_outcome) in CRASH_OUTCOMES.into_iter().enumerate() {
            cases.extend((1 + i as u64 + seed..=600).step_by(every).map(|verb| (seed, dies(verb, crash_outcome))));
        }
    }
    let totals = run_cases(&cases, access);
    println!("{totals}");
    totals.assert_sound();
}

/// Gets of many keys at once, also while clients die. `mark`: that some of them went on alone.
pub(crate) fn survives_gets_of_many_keys(access: &(impl Access + Sync), mark: &'static str) {
    for setup in [Setup::default(), Setup::crashing()] {
        let totals = run_seeds(seeds_or(0..150), &Setup { many: ODDS * 2 / 3, ..setup }, access);
        println!("{totals}");
        totals.assert_sound();
        totals.assert_marks([mark]);
    }
}

/// Shows one seed; with `FARINDEX_DEADLY` set, one with deaths; with `FARINDEX_CRASHES_AT` set to a verb, with a death there.
pub(crate) fn replays_one(access: &(impl Access + Sync)) {
    let crashing = std::env::var_os("FARINDEX_DEADLY").is_some();
    let crashes_at = std::env::var("FARINDEX_CRASHES_AT").ok().and_then(|verb| verb.parse().ok());
    for seed in seeds_or(0..1) {
        let setups = match crashes_at {
            Some(verb) => CRASH_OUTCOMES.map(|crash_outcome| dies(verb, crash_outcome)).to_vec(),
            None if crashing => vec![Setup::crashing()],
            None => vec![Setup::default()],
        };
        for setup in setups {
            let report = replay(seed, &setup, access);
            assert!(report.is_sound(), "{:?}: {report}", setup.crashes_at);
        }
    }
}
