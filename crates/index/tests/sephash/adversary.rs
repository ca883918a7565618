//! SepHash under the adversary: many seeds, every history checked, every index audited.
//!
//! `FARINDEX_SEEDS=0..20000 cargo test --release -p farindex-index --test sephash adversary` runs more of them;
//! `FARINDEX_EVERY=1` with the test `survives_a_death_at_every_verb` leaves no verb out;
//! `FARINDEX_SEEDS=17..18 FARINDEX_LOG=5000` with the test `replays_one` shows what one of them did.

use farindex_sim::Fate;
use farindex_testkit::sephash::{SepHashUnderTest, deepening};
use farindex_testkit::{Setup, replay, run_cases, run_seeds, seeds_or};

/// Rare paths that a few hundred seeds take.
const PATHS: [&str; 10] = [
    "merge",
    "split",
    "split: headers read",
    "append: CAS lost",
    "append: full",
    "window: not landed",
    "lookup: CurSegment",
    "directory: behind",
    "view: stale",
    "probe: locked or merged",
];

#[test]
fn survives_the_adversary() {
    let totals = run_seeds(seeds_or(0..300), &Setup::default(), &SepHashUnderTest::shipped());
    println!("{totals}");
    totals.assert_sound();
    totals.assert_marks(PATHS);
}

/// More keys: splits through several rounds of depth information.
#[test]
fn survives_the_adversary_while_it_deepens() {
    let totals = run_seeds(seeds_or(0..150), &deepening(), &SepHashUnderTest::shipped());
    println!("{totals}");
    totals.assert_sound();
}

/// Clients die between any two verbs, with verbs in flight; the others go on, and take over.
#[test]
fn survives_deaths() {
    let totals = run_seeds(seeds_or(0..300), &Setup::deadly(), &SepHashUnderTest::shipped());
    println!("{totals}");
    totals.assert_sound();
}

const FATES: [Fate; 3] = [Fate::Lost, Fate::Landed, Fate::Prefix];

/// The second client dies at this verb.
fn dies(verb: u64, fate: Fate) -> Setup {
    let setup = Setup { dies_at: Some((verb, fate)), tight: 0, ..Setup::deadly() };
    Setup { deaths: 0, clients: (2, 3), coroutines: (1, 2), ..setup }
}

/// Those of docs/bugs/047 to 049, 080, 081 and 090, which went wrong before.
#[test]
fn survives_the_seeds_that_found_something() {
    let deadly = [1911, 2757, 4377, 6065, 8770, 12_199].map(|seed| (seed, Setup::deadly()));
    let cases: Vec<_> = deadly.into_iter().chain([232, 3147].map(|seed| (seed, Setup::default()))).collect();
    let totals = run_cases(&cases, &SepHashUnderTest::shipped());
    totals.assert_sound();
}

/// A client dies at each of its verbs, and what it posted lands, is lost, or lands in part.
#[test]
fn survives_a_death_at_every_verb() {
    let every = std::env::var("FARINDEX_EVERY").ok().and_then(|every| every.parse().ok()).unwrap_or(61);
    let mut cases = Vec::new();
    for seed in seeds_or(0..12) {
        for (i, fate) in FATES.into_iter().enumerate() {
            cases.extend((1 + i as u64 + seed..=600).step_by(every).map(|verb| (seed, dies(verb, fate))));
        }
    }
    let totals = run_cases(&cases, &SepHashUnderTest::shipped());
    println!("{totals}");
    totals.assert_sound();
}

/// For looking into one seed: `FARINDEX_SEEDS=N..M`; with `FARINDEX_DEATHS` set, of the deadly ones; with `FARINDEX_DIES_AT`
/// set to a verb, of those with a death there.
#[test]
fn replays_one() {
    let deadly = std::env::var_os("FARINDEX_DEATHS").is_some();
    let dies_at = std::env::var("FARINDEX_DIES_AT").ok().and_then(|verb| verb.parse::<u64>().ok());
    let subject = SepHashUnderTest::shipped();
    for seed in seeds_or(0..1) {
        let setups = match dies_at {
            Some(verb) => FATES.map(|fate| dies(verb, fate)).to_vec(),
            None if deadly => vec![Setup::deadly()],
            None => vec![Setup::default()],
        };
        for setup in setups {
            let report = replay(seed, &setup, &subject);
            assert!(report.is_sound(), "{:?}: {report}", setup.dies_at);
        }
    }
}
