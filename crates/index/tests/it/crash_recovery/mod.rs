//! A client crashes at each verb of each kind of operation, and what it posted lands, is lost, or lands in part. The
//! other clients go on: their outcomes are linearizable, the index and the pool are sound, and no memory is lost.
//!
//! `FARINDEX_EVERY=1` leaves no verb out, and no crash_outcome; `FARINDEX_SEEDS=0..20` adds runs in which the adversary
//! is at work and the survivor is there from the beginning.

mod cuckoo;
mod interleavings;
mod kinds;
mod linear;
mod race;
pub(crate) mod run;
mod scenarios;
mod sephash;
mod shard;
mod trees;

use self::kinds::{CrashTested, Kind};
pub(crate) use self::run::join;
use self::run::run;
use farindex_index::{Chime, Cuckoo, Linear, Race, SepHash, Shard, Sherman};
use farindex_sim::CrashOutcome;
use farindex_testkit::{seeds_or, sweep_step};
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};

const CRASH_OUTCOMES: [CrashOutcome; 3] = [CrashOutcome::Lost, CrashOutcome::Landed, CrashOutcome::Prefix];
/// More verbs than any operation has under the adversary: a client that waits for a lease reads again and again.
const MOST: u64 = 3000;

/// What one kind came to.
#[derive(Default)]
struct Sum {
    /// Its verbs in a calm run without a crash.
    positions: u64,
    runs: u64,
    crashes: u64,
    late: u64,
    drops: u64,
}

/// Crashes at every `every`-th verb until there is none left.
fn sweep<I: CrashTested>(kind: Kind<I::Place>, seeds: &std::ops::Range<u64>, every: u64) -> Sum {
    let alive = run::<I>(0, kind, None).expect("calm runs are not late");
    for mark in I::must_pass(kind) {
        assert!(alive.marks.contains_key(mark), "{kind:?} does not pass {mark:?}: {:?}", alive.marks);
    }
    let mut sum = Sum { positions: alive.verbs, ..Sum::default() };
    for seed in seeds.clone() {
        for (i, crash_outcome) in CRASH_OUTCOMES.into_iter().enumerate() {
            // In calm runs, nothing is different behind the last verb.
            let most = if seed == 0 { alive.verbs + 1 } else { MOST };
            for verb in (1 + (i as u64 + seed) % every..most).step_by(every as usize) {
                sum.runs += 1;
                let Some(ran) = run::<I>(seed, kind, Some((verb, crash_outcome))) else {
                    sum.late += 1;
                    continue;
                };
                sum.drops += ran.drops;
                let context = || format!("seed {seed}, {kind:?}, verb {verb}, {crash_outcome:?}");
                assert_eq!(ran.live_bytes, alive.live_bytes, "{}: bytes that are in use for good", context());
                assert!(ran.crashed || seed > 0, "{}, of {}: no crash", context(), alive.verbs);
                if !ran.crashed {
                    break;
                }
                sum.crashes += 1;
            }
        }
    }
    sum
}

/// Crashes in every operation of one kind of index.
fn sweep_all<I: CrashTested>() {
    let every = sweep_step(13) as u64;
    let seeds = seeds_or(0..1);
    let kinds = I::kinds();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let Some(kind) = kinds.get(next.fetch_add(1, Ordering::Relaxed)) {
            // The other operations are run all the same; the panic has been printed.
            done.push((*kind, catch_unwind(|| sweep::<I>(*kind, &seeds, every)).ok()));
        }
        done
    };
    let mut sums: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no run fails")).collect()
    });
    sums.sort_by_key(|(kind, _)| kinds.iter().position(|other| other == kind));
    let (mut scarce, mut failed) = (Vec::new(), Vec::new());
    for (kind, sum) in &sums {
        let Some(Sum { positions, runs, crashes, late, drops }) = sum else {
            failed.push(*kind);
            continue;
        };
        println!(
            "{kind:?}: {positions} verbs, {runs} runs, {crashes} crashes, {late} too slow, {drops} drops finished"
        );
        if *positions < I::budget(*kind) {
            scarce.push(format!("{kind:?}: {positions} verbs instead of {}", I::budget(*kind)));
        }
    }
    let total = |count: fn(&Sum) -> u64| sums.iter().flat_map(|(_, sum)| sum).map(count).sum::<u64>();
    println!("{} runs, {} crashes", total(|sum| sum.runs), total(|sum| sum.crashes));
    assert!(failed.is_empty(), "{failed:?}");
    assert!(scarce.is_empty(), "too few places to crash at: {scarce:#?}");
}

#[test]
fn a_crash_at_every_verb_of_every_operation_of_shard() {
    sweep_all::<Shard>();
}

#[test]
fn a_crash_at_every_verb_of_every_operation_of_sephash() {
    sweep_all::<SepHash>();
}

#[test]
fn a_crash_at_every_verb_of_every_operation_of_linear() {
    sweep_all::<Linear>();
}

#[test]
fn a_crash_at_every_verb_of_every_operation_of_cuckoo() {
    sweep_all::<Cuckoo>();
}

#[test]
fn a_crash_at_every_verb_of_every_operation_of_race() {
    sweep_all::<Race>();
}

#[test]
fn a_crash_at_every_verb_of_every_operation_of_sherman() {
    sweep_all::<Sherman>();
}

#[test]
fn a_crash_at_every_verb_of_every_operation_of_chime() {
    sweep_all::<Chime>();
}
