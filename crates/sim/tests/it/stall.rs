//! Stalls: where a batch stops, what others see meanwhile, and that everything goes on in its order.

use crate::common::{config, word};
use farindex_fabric::OpKind;
use farindex_sim::{Client, Config, Sim, Stall, StallAt, Swarm};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(1);

/// A client posts batches of four WRITEs and an FAA; another one notes what it finds while the first one is stalled. Returns
/// that, and how many batches of the first client had completed by then.
fn stalled(swarm: Swarm, stall: Stall, ends: bool) -> ([u64; 5], u64, Sim) {
    let sim = Sim::new(3, Config { swarm: Some(swarm), ..config() }).unwrap();
    let (first, other) = (sim.client(), sim.client());
    let (one, two) = (first.connect(), other.connect());
    first.stall(stall);
    sim.spawn(&first, async move {
        for _ in 0..3 {
            let span = one.span(OpKind::Other);
            let mut batch = span.batch();
            for i in 0..4 {
                batch.write_words(word(i), &[1]);
            }
            batch.faa(word(4), 1);
            batch.post().await.unwrap();
        }
    });
    let handle = first.clone();
    let seen = sim.spawn(&other, async move {
        while !handle.is_stalled() {
            two.sleep(Duration::from_nanos(100)).await;
        }
        two.sleep(Duration::from_millis(1)).await;
        let words = two.span(OpKind::Other).read(word(0), 40).await.unwrap().words().to_vec();
        let completed = handle.batches();
        if ends {
            handle.end_stall();
        }
        (words, completed)
    });
    sim.run().assert_done();
    let (words, batches) = seen.take().unwrap();
    assert_eq!(sim.peek(word(4)), Some(3), "everything takes effect once");
    assert_eq!((first.stalls(), first.is_stalled()), (1, false));
    (words.try_into().unwrap(), batches, sim)
}

fn at(verb: u64) -> Stall {
    Stall { at: StallAt::Verb(verb), whole: false, limit: LONG }
}

#[test]
fn a_batch_stops_ahead_of_each_of_its_verbs() {
    for swarm in [Swarm::calm(), Swarm { split: farindex_sim::ODDS, gap_ns: 300, ..Swarm::calm() }] {
        for verb in 1..=5 {
            let (words, ..) = stalled(swarm.clone(), at(verb), true);
            let expected: Vec<u64> = (1..=5).map(|number| u64::from(number < verb)).collect();
            assert_eq!(words.to_vec(), expected, "verb {verb}");
        }
        // Ahead of the second batch, and in it.
        let (words, batches, _) = stalled(swarm.clone(), at(6), true);
        assert_eq!((words, batches), ([1, 1, 1, 1, 1], 2));
    }
}

#[test]
fn a_stall_in_a_change_counts_batches_that_change_something() {
    let stall = Stall { at: StallAt::Change { batch: 1, verb: 4 + 5 }, whole: true, limit: LONG };
    let (words, batches, _) = stalled(Swarm::calm(), stall, true);
    assert_eq!((words[4], batches), (1, 2));
}

#[test]
fn a_stall_ends_by_itself() {
    let (words, _, sim) = stalled(Swarm::calm(), at(3), false);
    assert_eq!(words, [1, 1, 0, 0, 0]);
    assert!((LONG..LONG * 2).contains(&sim.now()), "{:?}", sim.now());
}

/// What the adversary may do to a batch, it may do to one that is stalled: in no seed is an order that G4 promises broken,
/// or an effect missing when the batch has completed.
#[test]
fn stalled_batches_keep_their_order_under_the_adversary() {
    for seed in 0..300 {
        let sim = Sim::new(seed, config()).unwrap();
        let (first, other) = (sim.client(), sim.client());
        let (one, two) = (first.connect(), other.connect());
        let limit = Duration::from_micros(1 + seed % 40);
        first.stall(Stall { at: StallAt::Verb(1 + seed % 12), whole: seed % 2 == 0, limit });
        let done = sim.spawn(&first, async move {
            for round in 1..=6u64 {
                let span = one.span(OpKind::Other);
                let mut batch = span.batch();
                batch.write_words(word(0), &[round]);
                batch.write_words(word(1), &[round]);
                let old = batch.faa(word(2), 1);
                let read = batch.read(word(0), 16);
                let mut done = batch.post().await.unwrap();
                assert_eq!(
                    (done.old(old), done.buf(read).words()),
                    (round - 1, [round, round].as_slice()),
                    "seed {seed}"
                );
            }
        });
        let ordered = sim.spawn(&other, async move {
            let span = two.span(OpKind::Other);
            for _ in 0..40 {
                // The later of two WRITEs is never ahead: they are read in the opposite order.
                let second = span.read(word(1), 8).await.unwrap().words()[0];
                let first = span.read(word(0), 8).await.unwrap().words()[0];
                assert!(second <= first, "seed {seed}: {second} {first}");
            }
        });
        sim.run().assert_done();
        assert!(done.take().is_some() && ordered.take().is_some());
    }
}

/// A stall is of one client: the harness has none.
#[test]
fn the_harness_is_never_stalled() {
    let sim = Sim::new(1, config()).unwrap();
    let harness: Client = sim.harness();
    harness.stall(at(1));
    let endpoint = harness.connect();
    sim.block_on(async move { endpoint.span(OpKind::Other).faa(word(0), 1).await.unwrap() }).unwrap();
    assert_eq!(harness.stalls(), 0);
}
