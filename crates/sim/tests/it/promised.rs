//! The adversary never breaks a promise: tests for each of G1-G6, over many seeds, with every kind of trouble and with
//! the mixtures that seeds draw.

use crate::common::{config, on, shared, word};
use farindex_fabric::{FabricError, NodeId, OpKind};
use farindex_sim::{Config, CrashOutcome, Sim};
use std::time::Duration;

/// Runs every seed twice: with every kind of trouble, and with the seed's own mixture.
fn everywhere(seeds: u64, check: impl Fn(&Sim)) {
    for seed in 0..seeds {
        check(&Sim::new(seed, config()).unwrap());
        check(&Sim::new(seed, Config { swarm: None, ..config() }).unwrap());
    }
}

#[test]
fn g1_every_batch_completes_once() {
    everywhere(100, |sim| {
        let client = sim.client();
        let endpoint = client.connect();
        let done = sim.spawn(&client, async move {
            let span = endpoint.span(OpKind::Other);
            let posted: Vec<_> = (0..50)
                .map(|i| {
                    let mut batch = span.batch();
                    batch.write_words(on(i as u16 % 2, i), &[i]);
                    batch.faa(word(100), 1);
                    batch.post()
                })
                .collect();
            let mut completed = 0;
            for batch in posted {
                batch.await.unwrap();
                completed += 1;
            }
            completed
        });
        sim.run().assert_done();
        assert_eq!(done.take(), Some(50));
        assert_eq!(sim.peek(word(100)), Some(50));
    });
}

#[test]
fn g1_a_deadline_turns_silence_into_an_error() {
    everywhere(20, |sim| {
        let client = sim.client();
        let endpoint = client.connect();
        sim.node_control().fail(NodeId::new(1), true, false);
        let done = sim.spawn(&client, async move {
            let span = endpoint.span(OpKind::Other);
            endpoint.set_deadline(Duration::from_millis(500));
            let before = endpoint.now();
            let error = span.read(on(1, 0), 8).await.err();
            (error, endpoint.now() - before)
        });
        sim.run().assert_done();
        let (error, waited) = done.take().unwrap();
        assert!(matches!(error, Some(FabricError::Deadline { .. })), "{error:?}");
        assert_eq!(waited, Duration::from_millis(500));
    });
}

#[test]
fn g2_words_are_whole() {
    everywhere(60, |sim| {
        let mut seen = Vec::new();
        for writer in 1..=3u64 {
            let client = sim.client();
            let endpoint = client.connect();
            sim.spawn(&client, async move {
                let span = endpoint.span(OpKind::Other);
                for _ in 0..10 {
                    let buf = endpoint.buf_from_words(&[writer * 0x0101_0101_0101_0101; 8]);
                    span.write(word(0), buf).await.unwrap();
                }
            });
        }
        for _ in 0..2 {
            let client = sim.client();
            let endpoint = client.connect();
            seen.push(sim.spawn(&client, async move {
                let span = endpoint.span(OpKind::Other);
                let mut whole = true;
                for _ in 0..20 {
                    let buf = span.read(word(0), 64).await.unwrap();
                    whole &= buf.words().iter().all(|word| word % 0x0101_0101_0101_0101 == 0);
                }
                whole
            }));
        }
        sim.run().assert_done();
        assert!(seen.iter().all(|whole| whole.take() == Some(true)));
    });
}

#[test]
fn g3_atomics_are_atomic_among_themselves_and_with_reads() {
    everywhere(60, |sim| {
        let mut readers = Vec::new();
        for number in 0..4u64 {
            let client = sim.client();
            let endpoint = client.connect();
            sim.spawn(&client, async move {
                let span = endpoint.span(OpKind::Other);
                for _ in 0..20 {
                    if number % 2 == 0 {
                        span.faa(word(0), 1).await.unwrap();
                        continue;
                    }
                    let mut seen = 0;
                    loop {
                        let old = span.cas(word(0), seen, seen + 1).await.unwrap();
                        if old == seen {
                            break;
                        }
                        seen = old;
                    }
                }
            });
        }
        for _ in 0..2 {
            let client = sim.client();
            let endpoint = client.connect();
            readers.push(sim.spawn(&client, async move {
                let span = endpoint.span(OpKind::Other);
                let mut values = Vec::new();
                for _ in 0..40 {
                    values.push(span.read(word(0), 8).await.unwrap().words()[0]);
                }
                values
            }));
        }
        sim.run().assert_done();
        assert_eq!(sim.peek(word(0)), Some(80));
        for reader in readers {
            assert!(reader.take().unwrap().is_sorted(), "a counter never decreases");
        }
    });
}

#[test]
fn g4_a_batch_to_one_node_keeps_its_order() {
    everywhere(80, |sim| {
        let (writer, reader) = (sim.client(), sim.client());
        let (out, inn) = (writer.connect(), reader.connect());
        let own = sim.spawn(&writer, async move {
            let span = out.span(OpKind::Other);
            let mut in_order = true;
            for round in 1..=15u64 {
                let mut batch = span.batch();
                batch.write_words(word(0), &[round; 4]);
                batch.write_words(word(8), &[round; 4]);
                let read = batch.read(word(0), 8 * 12);
                let faa = batch.faa(word(16), 1);
                let after = batch.read(word(16), 8);
                let cas = batch.cas(word(16), round, round);
                let mut done = batch.post().await.unwrap();
                let seen = done.buf(read);
                in_order &= seen.words()[..4] == [round; 4] && seen.words()[8..] == [round; 4];
                in_order &= done.old(faa) == round - 1;
                in_order &= done.buf(after).words()[0] == round && done.old(cas) == round;
            }
            in_order
        });
        let others = sim.spawn(&reader, async move {
            let span = inn.span(OpKind::Other);
            let mut in_order = true;
            for _ in 0..30 {
                let last = span.read(word(16), 8).await.unwrap().words()[0];
                let second = span.read(word(8), 32).await.unwrap();
                let first = span.read(word(0), 32).await.unwrap();
                let second = second.words();
                in_order &= second.iter().all(|word| *word >= last);
                in_order &= first.words().iter().all(|word| word >= second.iter().max().unwrap());
            }
            in_order
        });
        sim.run().assert_done();
        assert_eq!((own.take(), others.take()), (Some(true), Some(true)));
    });
}

#[test]
fn g5_completed_verbs_are_visible_to_every_client() {
    everywhere(80, |sim| {
        let (count, _keep) = shared(0u64);
        let mut checks = Vec::new();
        for number in 0..4u64 {
            let client = sim.client();
            let endpoint = client.connect();
            let count = std::rc::Rc::clone(&count);
            checks.push(sim.spawn(&client, async move {
                let span = endpoint.span(OpKind::Other);
                let mut seen_all = true;
                for round in 1..=10 {
                    // The number of completed increments of all clients is counted outside the fabric.
                    let completed = *count.borrow();
                    let buf = endpoint.buf_from_words(&[round]);
                    span.write(word(8 + number), buf).await.unwrap();
                    seen_all &= span.read(word(8 + number), 8).await.unwrap().words()[0] == round;
                    seen_all &= span.faa(word(0), 1).await.unwrap() >= completed;
                    *count.borrow_mut() += 1;
                }
                seen_all
            }));
        }
        sim.run().assert_done();
        assert!(checks.iter().all(|check| check.take() == Some(true)));
    });
}

#[test]
fn g6_nothing_of_a_revoked_client_takes_effect() {
    let mut stopped = 0;
    for crash in [None, Some(CrashOutcome::Drawn), Some(CrashOutcome::Landed)] {
        for seed in 0..150 {
            let sim = Sim::new(seed, Config { swarm: None, ..config() }).unwrap();
            let (victim, other) = (sim.client(), sim.client());
            let (theirs, ours) = (victim.connect(), other.connect());
            let (target, crashing) = (victim.identity(), victim.clone());
            let refused = sim.spawn(&victim, async move {
                let span = theirs.span(OpKind::Other);
                loop {
                    for i in 0..8 {
                        let mut batch = span.batch();
                        batch.write_words(word(0), &[i + 1; 8]);
                        batch.faa(word(8), 1);
                        batch.post_detached();
                    }
                    if let Err(error) = span.faa(word(9), 1).await {
                        // Later verbs are refused too.
                        let again = span.write(word(0), theirs.buf_from_words(&[99])).await;
                        assert_eq!(again, Err(FabricError::Revoked));
                        break error;
                    }
                }
            });
            let revoker = sim.spawn(&other, async move {
                let span = ours.span(OpKind::Other);
                ours.sleep(Duration::from_micros(20)).await;
                if let Some(crash_outcome) = crash {
                    crashing.crash(crash_outcome);
                }
                span.revoke(NodeId::new(0), target).await.unwrap();
                let words = span.read(word(0), 80).await.unwrap().words().to_vec();
                // Another client's atomic does not complete a half-done atomic of the revoked client.
                let counted = (span.faa(word(8), 0).await.unwrap(), span.faa(word(9), 0).await.unwrap());
                assert_eq!(counted, (words[8], words[9]));
                words
            });
            sim.run().assert_done();
            sim.settle();
            let words = revoker.take().unwrap();
            let now: Vec<_> = (0..10).map(|i| sim.peek(word(i)).unwrap()).collect();
            assert_eq!(words, now, "seed {seed}");
            match crash {
                None => assert_eq!(refused.take(), Some(FabricError::Revoked)),
                Some(_) => assert!(victim.has_crashed()),
            }
            stopped += sim.stats().revoked;
        }
    }
    assert!(stopped > 100, "the test needs verbs in flight at the revocation: {stopped}");
}
