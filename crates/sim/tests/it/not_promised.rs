//! The adversary does everything that the contract leaves open: tests for N1-N7 count how often.

use crate::common::{config, count, fierce, on, shared, sim, word};
use farindex_fabric::OpKind;
use farindex_sim::{Config, CrashOutcome, Sim, SimRng, Swarm};

#[test]
fn n1_two_batches_of_one_client_are_reordered() {
    let hits = count(300, |seed| {
        let sim = sim(seed);
        let client = sim.client();
        let endpoint = client.connect();
        sim.spawn(&client, async move {
            let span = endpoint.span(OpKind::Other);
            let first = span.write(word(0), endpoint.buf_from_words(&[1]));
            let second = span.write(word(0), endpoint.buf_from_words(&[2]));
            first.await.unwrap();
            second.await.unwrap();
        });
        sim.run().assert_done();
        sim.peek(word(0)) == Some(1)
    });
    assert!((20..280).contains(&hits), "{hits}");
}

#[test]
fn n1_parts_of_a_batch_to_two_nodes_are_reordered() {
    let hits = count(400, |seed| {
        let sim = sim(seed);
        let (writer, reader) = (sim.client(), sim.client());
        let (out, inn) = (writer.connect(), reader.connect());
        sim.spawn(&writer, async move {
            let span = out.span(OpKind::Other);
            let mut batch = span.batch();
            batch.write_words(on(0, 0), &[1]);
            batch.write_words(on(1, 0), &[1]);
            batch.post().await.unwrap();
        });
        let swapped = sim.spawn(&reader, async move {
            let span = inn.span(OpKind::Other);
            let second = span.read(on(1, 0), 8).await.unwrap().words()[0];
            let first = span.read(on(0, 0), 8).await.unwrap().words()[0];
            second == 1 && first == 0
        });
        sim.run().assert_done();
        swapped.take() == Some(true)
    });
    assert!(hits > 5, "{hits}");
}

#[test]
fn n2_reads_and_writes_are_torn() {
    for tear_of in ["read", "write"] {
        let hits = count(400, |seed| {
            let sim = sim(seed);
            let (writer, reader) = (sim.client(), sim.client());
            let (out, inn) = (writer.connect(), reader.connect());
            sim.spawn(&writer, async move {
                let span = out.span(OpKind::Other);
                match tear_of {
                    "write" => span.write(word(0), out.buf_from_words(&[1; 8])).await.unwrap(),
                    _ => {
                        // One word at a time, from the last to the first: an untorn READ sees ones only at the end.
                        for i in (0..8).rev() {
                            span.write(word(i), out.buf_from_words(&[1])).await.unwrap();
                        }
                    }
                }
            });
            let torn = sim.spawn(&reader, async move {
                let span = inn.span(OpKind::Other);
                let mut torn = false;
                for _ in 0..8 {
                    let buf = span.read(word(0), 64).await.unwrap();
                    torn |= match tear_of {
                        "write" => buf.words().contains(&0) && buf.words().contains(&1),
                        _ => buf.words().windows(2).any(|pair| pair == [1, 0]),
                    };
                }
                torn
            });
            sim.run().assert_done();
            torn.take() == Some(true)
        });
        assert!(hits > 5, "{tear_of}: {hits}");
    }
}

#[test]
fn n3_a_write_overtakes_a_read_unless_it_is_fenced() {
    let early = |fence: bool| {
        count(300, |seed| {
            let sim = sim(seed);
            let client = sim.client();
            let endpoint = client.connect();
            let seen = sim.spawn(&client, async move {
                let span = endpoint.span(OpKind::Other);
                let mut batch = span.batch();
                let read = batch.read(word(0), 8);
                if fence {
                    batch.fence();
                }
                batch.write_words(word(0), &[1]);
                batch.post().await.unwrap().buf(read).words()[0]
            });
            sim.run().assert_done();
            seen.take() == Some(1)
        })
    };
    assert!(early(false) > 20);
    assert_eq!(early(true), 0);
}

#[test]
fn n5_detached_write_overwrites_a_later_one() {
    let hits = count(400, |seed| {
        let sim = sim(seed);
        let (first, second) = (sim.client(), sim.client());
        let (one, two) = (first.connect(), second.connect());
        sim.spawn(&first, async move {
            let span = one.span(OpKind::Other);
            let mut batch = span.batch();
            batch.write_words(word(0), &[1]);
            batch.post_detached();
            span.faa(word(9), 1).await.unwrap();
        });
        let done = sim.spawn(&second, async move {
            let span = two.span(OpKind::Other);
            while span.read(word(9), 8).await.unwrap().words()[0] == 0 {}
            span.write(word(0), two.buf_from_words(&[2])).await.unwrap();
            span.read(word(0), 8).await.unwrap().words()[0]
        });
        sim.run().assert_done();
        let seen = done.take();
        sim.settle();
        seen == Some(2) && sim.peek(word(0)) == Some(1)
    });
    assert!(hits > 5, "{hits}");
}

#[test]
fn n5_detached_write_takes_effect_after_every_deadline() {
    let hits = count(100, |seed| {
        let swarm = Swarm { forget: farindex_sim::ODDS, forget_exponent: 36, ..Swarm::calm() };
        let sim = Sim::new(seed, Config { swarm: Some(swarm), ..config() }).unwrap();
        let client = sim.client();
        let endpoint = client.connect();
        sim.spawn(&client, async move {
            let span = endpoint.span(OpKind::Other);
            let mut batch = span.batch();
            batch.write_words(word(0), &[1]);
            batch.faa(word(1), 1);
            batch.post_detached();
            // An awaited verb proceeds as usual.
            span.faa(word(2), 1).await.unwrap();
        });
        sim.run().assert_done();
        assert!(sim.now().as_micros() < 10);
        sim.run_for(std::time::Duration::from_secs(6)).assert_done();
        let late = sim.peek(word(1)) == Some(0);
        sim.settle();
        assert_eq!((sim.peek(word(0)), sim.peek(word(1))), (Some(1), Some(1)));
        late
    });
    assert!(hits > 3, "{hits}");
}

#[test]
fn n6_plain_write_that_races_an_atomic_is_lost() {
    let hits = count(300, |seed| {
        let sim = sim(seed);
        let (adder, writer) = (sim.client(), sim.client());
        let (add, write) = (adder.connect(), writer.connect());
        sim.spawn(&adder, async move {
            let span = add.span(OpKind::Other);
            for _ in 0..10 {
                span.faa(word(0), 1).await.unwrap();
            }
        });
        sim.spawn(&writer, async move {
            let span = write.span(OpKind::Other);
            span.write(word(0), write.buf_from_words(&[1000])).await.unwrap();
        });
        sim.run().assert_done();
        let lost = sim.peek(word(0)).unwrap() < 1000;
        assert!(!lost || sim.stats().lost_writes > 0);
        lost
    });
    assert!(hits > 5, "{hits}");
}

/// Crashes a client right after it has posted three WRITEs and an FAA. Returns the four words at the end, and whether
/// any verb took effect later than usual.
fn words_after_crash(seed: u64, swarm: Swarm, crash_outcome: CrashOutcome, verb: u64) -> ([u64; 4], bool) {
    let sim = Sim::new(seed, Config { swarm: Some(swarm), ..config() }).unwrap();
    let client = sim.client();
    client.crash_at(verb, crash_outcome);
    let endpoint = client.connect();
    let (returned, seen) = shared(false);
    sim.spawn(&client, async move {
        let span = endpoint.span(OpKind::Other);
        let mut batch = span.batch();
        for i in 0..3 {
            batch.write_words(word(i), &[1]);
        }
        batch.faa(word(3), 1);
        batch.post().await.unwrap();
        *returned.borrow_mut() = true;
    });
    sim.run().assert_done();
    assert!(client.has_crashed() && !*seen.borrow());
    let landed = || [0, 1, 2, 3].map(|i| sim.peek(word(i)).unwrap());
    sim.run_for(std::time::Duration::from_millis(4)).assert_done();
    // Verbs with usual delays have taken effect by then.
    let before = landed();
    sim.settle();
    (landed(), landed() != before)
}

#[test]
fn n7_verbs_of_a_crashed_client_take_effect_or_not_but_closed_under_g4() {
    let all = (0..600).map(|seed| words_after_crash(seed, fierce(), CrashOutcome::Drawn, 4)).collect::<Vec<_>>();
    for verbs in 0..=4 {
        let landed = [0, 1, 2, 3].map(|i| u64::from(i < verbs));
        assert!(
            all.iter().filter(|(seen, _)| *seen == landed).count() > 5,
            "{verbs} of 4 verbs take effect in some seeds"
        );
    }
    assert!(all.iter().all(|(seen, _)| seen.is_sorted_by(|a, b| a >= b)), "what takes effect is a prefix here");
    assert!(all.iter().any(|(_, lingers)| *lingers), "some of it takes effect late");
}

#[test]
fn n7_crash_outcome_is_applied_as_chosen() {
    for seed in 0..50 {
        assert_eq!(words_after_crash(seed, fierce(), CrashOutcome::Lost, 2).0, [0; 4]);
        assert_eq!(words_after_crash(seed, fierce(), CrashOutcome::Landed, 2).0, [1; 4]);
        assert_eq!(words_after_crash(seed, fierce(), CrashOutcome::Prefix, 2).0, [1, 1, 0, 0]);
    }
}

#[test]
fn n7_an_error_may_come_before_its_verbs() {
    let config = || Config { errors: farindex_sim::ODDS / 2, ..config() };
    let (mut landed, mut not, mut later) = (0, 0, 0);
    for seed in 0..300 {
        let sim = Sim::new(seed, config()).unwrap();
        let client = sim.client();
        let endpoint = client.connect();
        let failed = sim.spawn(&client, async move {
            let span = endpoint.span(OpKind::Other);
            span.write(word(0), endpoint.buf_from_words(&[1])).await.is_err()
        });
        sim.run().assert_done();
        if failed.take() == Some(true) {
            let at_once = sim.peek(word(0)) == Some(1);
            sim.settle();
            match sim.peek(word(0)) == Some(1) {
                true if !at_once => later += 1,
                true => landed += 1,
                false => not += 1,
            }
        }
    }
    assert!(landed > 5 && not > 5 && later > 5, "{landed} {not} {later}");
}

/// The verbs of a random batch that take effect are closed under the table in module `order`: none takes effect without
/// those that it waits for.
#[test]
fn n7_effects_of_any_crashed_batch_are_closed_under_g4() {
    const VERBS: u64 = 7;
    let (mut partial, mut overtaken) = (0, 0);
    for seed in 0..1500 {
        let sim = Sim::new(seed, Config { swarm: (seed % 2 == 0).then(fierce), ..config() }).unwrap();
        let client = sim.client();
        client.crash_at(1 + seed % VERBS, CrashOutcome::Drawn);
        let mut rng = SimRng::new(seed, 77);
        // Node, whether it is a WRITE, whether it is fenced.
        let verbs: Vec<_> = (0..VERBS).map(|_| (rng.below(2) as u16, rng.below(2) == 0, rng.below(3) == 0)).collect();
        let (endpoint, plan) = (client.connect(), verbs.clone());
        sim.spawn(&client, async move {
            let span = endpoint.span(OpKind::Other);
            let mut batch = span.batch();
            for (i, (node, is_write, fenced)) in plan.into_iter().enumerate() {
                if fenced {
                    batch.fence();
                }
                match is_write {
                    true => batch.write_words(on(node, 8 * i as u64), &[1; 4]),
                    false => batch.faa(on(node, 8 * i as u64), 1),
                };
            }
            batch.post().await.map(drop)
        });
        sim.run().assert_done();
        sim.settle();
        let there = |i: usize, word: u64| sim.peek(on(verbs[i].0, 8 * i as u64 + word)) == Some(1);
        // A verb has begun if any word of it is in memory, and is whole if all are.
        let begun: Vec<_> = (0..verbs.len()).map(|i| (0..4).any(|word| there(i, word))).collect();
        let whole = |i: usize| (0..if verbs[i].1 { 4 } else { 1 }).all(|word| there(i, word));
        partial += u64::from(begun.contains(&true) && begun.contains(&false));
        for (later, &(node, is_write, _)) in verbs.iter().enumerate() {
            let mut fenced = false;
            for earlier in (0..later).rev() {
                // A fence between the two: on the later verb, or on a verb that the later one waits for.
                let (_, between_writes, between_fenced) = verbs[earlier + 1];
                let same = verbs[earlier + 1].0 == node;
                fenced |= same && between_fenced && (between_writes || earlier + 1 == later);
                if verbs[earlier].0 != node || !begun[later] {
                    continue;
                }
                let ordered = !is_write || verbs[earlier].1 || fenced;
                assert!(!ordered || whole(earlier), "seed {seed}: {later} without {earlier} of {verbs:?}: {begun:?}");
                overtaken += u64::from(!ordered && !begun[earlier]);
            }
        }
    }
    assert!(partial > 100 && overtaken > 10, "{partial} {overtaken}");
}
