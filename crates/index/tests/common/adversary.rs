//! What the adversary does to every kind of index.

use farindex_sim::Fate;
use farindex_testkit::{Access, Setup, replay, run_cases, seeds_or};

/// A client dies at each of its verbs, and what it posted lands, is lost, or lands in part. `FARINDEX_EVERY=1` leaves no verb out.
pub(crate) fn survives_a_death_at_every_verb(access: &(impl Access + Sync)) {
    let every = std::env::var("FARINDEX_EVERY").ok().and_then(|every| every.parse().ok()).unwrap_or(61);
    let mut cases = Vec::new();
    for seed in seeds_or(0..12) {
        for (i, fate) in [Fate::Lost, Fate::Landed, Fate::Prefix].into_iter().enumerate() {
            for verb in (1 + i as u64 + seed..=600).step_by(every) {
                let setup = Setup { dies_at: Some((verb, fate)), tight: 0, ..Setup::deadly() };
                cases.push((seed, Setup { deaths: 0, clients: (2, 3), coroutines: (1, 2), ..setup }));
            }
        }
    }
    let totals = run_cases(&cases, access);
    println!("{totals}");
    totals.assert_sound();
}

/// Shows one seed; with `FARINDEX_DEADLY` set, one with deaths.
pub(crate) fn replays_one(access: &(impl Access + Sync)) {
    let deadly = std::env::var_os("FARINDEX_DEADLY").is_some();
    let setup = if deadly { Setup::deadly() } else { Setup::default() };
    for seed in seeds_or(0..1) {
        assert!(replay(seed, &setup, access).is_sound());
    }
}
