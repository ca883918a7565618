//! G1, and what endpoint and fabric promise together: posting, sizes, nodes, metering, the clock.

use super::{Bench, Client, NODE_LEN, Verdict, at, ensure, word};
use crate::call::{ECHO, MAX_CALL_LEN, gather_request, scatter_request};
use crate::{Counters, FabricError, NodeId, RemotePtr};
use std::time::Duration;

pub(super) fn every_batch_completes_once(bench: &Bench<'_>) -> Verdict {
    const SLOTS: u64 = 4;
    let world = bench.world(2)?;
    let (rounds, clients) = (bench.rounds() / 2, 3);
    let scripts = (0..clients).map(|me| {
        world.script(move |client| async move {
            // A word for each batch in flight, so that nothing here depends on order or atomicity.
            let slot = |i| at((i % 2) as usize, 16 + me * SLOTS + i);
            for n in 0..rounds {
                let span = client.span();
                let in_flight: Vec<_> = (0..SLOTS).map(|i| span.faa(slot(i), 1)).collect();
                for (i, one) in in_flight.into_iter().enumerate().rev() {
                    let old = one.await?;
                    ensure!(old == n, "batch number {n} to {} found that {old} had taken effect", slot(i as u64));
                }
            }
            client.endpoint.sleep(Duration::from_micros(50)).await;
            word(&client.span(), slot(0)).await?;
            let strays = client.endpoint.strays();
            ensure!(strays == 0, "{strays} batches completed that were not in flight");
            Ok(())
        })
    });
    world.run(scripts.collect())?;
    for node in 0..2 {
        let mine = |i: u64| if i % 2 == node { rounds } else { 0 };
        world.expect(at(node as usize, 16), (0..clients * SLOTS).map(mine).collect())?;
    }
    Ok(())
}

pub(super) fn refused_batches_leave_memory_untouched(bench: &Bench<'_>) -> Verdict {
    let world = bench.world(1)?;
    let beforehand = bench.subject.checks_beforehand();
    let len = world.fabric.nodes().first().map_or(NODE_LEN, |node| node.len);
    let end = RemotePtr::new(NodeId::new(0), len);
    let bad = |offset| RemotePtr::new(NodeId::new(0), offset);
    let beyond = |error: &FabricError| matches!(error, FabricError::OutOfBounds { .. });
    let nowhere = |error: &FabricError| matches!(error, FabricError::NoSuchNode(_));
    let crooked = |error: &FabricError| matches!(error, FabricError::Misaligned { .. });
    let long = |error: &FabricError| matches!(error, FabricError::TooLong { .. });
    type Kind = (&'static str, RemotePtr, usize, fn(&FabricError) -> bool);
    let kinds: [Kind; 9] = [
        ("just beyond the end", end, 8, beyond),
        ("across the end", bad(len - 8), 16, beyond),
        ("far beyond the end", bad(crate::ptr::MAX_NODE_LEN - 8), 8, beyond),
        ("across the end of all addresses", bad(crate::ptr::MAX_NODE_LEN - 8), 16, beyond),
        ("no such node", at(1, 16), 8, nowhere),
        ("the last node there can be", at(1022, 16), 8, nowhere),
        ("a crooked address", bad(132), 8, crooked),
        ("a crooked length", bad(128), 12, crooked),
        ("a huge length", bad(128), 1 << 60, long),
    ];
    for (what, ptr, len, right) in kinds {
        for verb in ["READ", "WRITE", "CAS", "FAA"] {
            if len > 8 && !matches!(verb, "READ" | "WRITE") || verb == "WRITE" && (len % 8 != 0 || len > 16) {
                continue;
            }
            world.solo(move |client| async move {
                let span = client.span();
                let mut batch = span.batch();
                batch.write_words(at(0, 16), &[7]);
                batch.faa(at(0, 17), 7);
                match verb {
                    "READ" => drop(batch.read(ptr, len)),
                    "WRITE" => drop(batch.write(ptr, client.endpoint.buf(len))),
                    "CAS" => drop(batch.cas(ptr, 0, 7)),
                    _ => drop(batch.faa(ptr, 7)),
                }
                batch.faa(at(0, 18), 7);
                match batch.post().await {
                    Ok(_) => Err(super::Failure::new(format!("{verb} with {what} succeeded"))),
                    Err(error) if !beforehand || right(&error) => Ok(()),
                    Err(error) => Err(super::Failure::new(format!("{verb} with {what} gave another error: {error}"))),
                }
            })?;
            if beforehand {
                world.expect(at(0, 16), vec![0; 3])?;
            }
        }
    }
    Ok(())
}

/// Batches that a fabric may send together: some of them are refused, on one node or on another, and each of them gets
/// its own results.
pub(super) fn batches_posted_together_are_independent(bench: &Bench<'_>) -> Verdict {
    const TOGETHER: u64 = 12;
    let rounds = bench.rounds().div_ceil(4);
    let world = bench.world(2)?;
    let len = world.fabric.nodes().first().map_or(NODE_LEN, |node| node.len);
    // Where the memory node checks, a batch that it refuses breaks the connection, and takes others along (N7).
    let refuses = bench.subject.checks_beforehand();
    world.solo(move |client| async move {
        // Nothing here depends on order, and nothing on WRITEs.
        let (slot, name) = (|i: u64| at((i % 2) as usize, 64 + 16 * i), |i: u64| at((i % 2) as usize, 72 + 16 * i));
        for i in 0..TOGETHER {
            client.span().faa(name(i), 100 + i).await?;
        }
        for n in 0..rounds {
            let span = client.span();
            // In some rounds two, which a fabric may keep for a third one.
            let (together, mut flying) = (if n % 4 == 3 { 2 } else { TOGETHER }, Vec::new());
            for i in 0..together {
                let mut batch = span.batch();
                let faa = batch.faa(slot(i), i + 1);
                let read = batch.read(name(i), 8);
                flying.push((i, faa, read, batch.post()));
                if refuses && i % 3 == 1 {
                    let beyond = span.faa(RemotePtr::new(NodeId::new((i % 2) as u16), len), 1).await;
                    let right = matches!(beyond, Err(FabricError::OutOfBounds { .. }));
                    ensure!(right, "a FAA beyond the end, behind {i} batches, gave {beyond:?}");
                }
            }
            for (i, faa, read, one) in flying {
                let mut done = one.await?;
                let (old, seen) = (done.old(faa), done.buf(read).words()[0]);
                let before = if i < 2 { n } else { n - n / 4 };
                let expected = before * (i + 1);
                ensure!(old == expected, "batch {i} of {together}: its FAA saw {old}, and not {expected}");
                ensure!(seen == 100 + i, "batch {i} of {together}: its READ saw {seen}, and not {}", 100 + i);
            }
        }
        let strays = client.endpoint.strays();
        ensure!(strays == 0, "{strays} batches completed that were not in flight");
        Ok(())
    })
}

pub(super) fn silence_becomes_an_error(bench: &Bench<'_>) -> Verdict {
    let Some(fabric) = bench.subject.silent_fabric(2, NODE_LEN, NodeId::new(1)) else {
        return Ok(());
    };
    bench.world_on(fabric).solo(move |client| async move {
        let (span, begun) = (client.span(), client.endpoint.now());
        // A deadline that is lowered holds for what is in flight already.
        let early = span.faa(at(1, 16), 1);
        let short = client.patience / 8;
        client.endpoint.set_deadline(short);
        let (late, fine) = (span.faa(at(1, 16), 1), span.faa(at(0, 16), 1));
        for lost in [early.await, late.await] {
            ensure!(lost.is_err(), "a verb to a memory node that is silent succeeded");
        }
        let took = client.endpoint.now() - begun;
        ensure!(took >= short && took < 4 * short, "a deadline of {short:?} passed after {took:?}");
        fine.await?;
        Ok(())
    })
}

/// What a span has posted so far, without waits.
fn posted(cost: Counters) -> (u64, u64) {
    (cost.verbs(), cost.batches)
}

pub(super) fn verbs_are_posted_when_called(bench: &Bench<'_>) -> Verdict {
    bench.world(1)?.solo(move |client| async move {
        let span = client.span();
        let faa = span.faa(at(0, 16), 1);
        let write = span.write(at(0, 17), client.endpoint.buf_from_words(&[5]));
        let cas = span.cas(at(0, 18), 0, 6);
        ensure!(posted(span.cost()) == (3, 3), "three verbs that were called cost {:?}", span.cost());
        // None of the three has been polled.
        for (i, value) in [(16, 1), (17, 5), (18, 6)] {
            client.until_word(at(0, i), value).await?;
        }
        ensure!((faa.await?, cas.await?) == (0, 0), "atomics on fresh words saw something");
        write.await?;
        let span = client.span();
        let masked = span.masked_cas(at(0, 19), 0, 1, 1, 1);
        ensure!(posted(span.cost()) == (1, 1), "a masked CAS that was called cost {:?}", span.cost());
        ensure!(masked.await? == 0, "a masked CAS on a fresh word saw something");
        Ok(())
    })
}

pub(super) fn dropped_futures_still_run(bench: &Bench<'_>) -> Verdict {
    bench.world(1)?.solo(move |client| async move {
        let span = client.span();
        drop(span.faa(at(0, 16), 1));
        drop(span.read(at(0, 0), 4096));
        drop(span.write(at(0, 24), client.endpoint.buf_from_words(&[3; 8])));
        ensure!(span.cost().abandoned == 3, "three futures were dropped, {} are counted", span.cost().abandoned);
        // Buffers that are taken now must not be those in flight.
        let mut others: Vec<_> = (0..8).map(|_| client.endpoint.buf_from_words(&[4; 8])).collect();
        client.until_word(at(0, 16), 1).await?;
        // Its words may land in any order.
        for i in 24..32 {
            client.until_word(at(0, i), 3).await?;
        }
        let intact = others.drain(..).all(|buf| buf.words() == [4; 8]);
        ensure!(intact, "a READ whose future was dropped filled a buffer that was free");
        ensure!(span.cost().detached == 0, "dropping a future was counted as intended");
        Ok(())
    })
}

pub(super) fn detached_batches_land(bench: &Bench<'_>) -> Verdict {
    bench.world(1)?.solo(move |client| async move {
        let span = client.span();
        let mut batch = span.batch();
        batch.write_words(at(0, 16), &[8, 9]);
        batch.faa(at(0, 18), 1);
        batch.post_detached();
        let cost = span.cost();
        ensure!((cost.detached, cost.abandoned, cost.round_trips) == (1, 0, 0), "a detached batch cost {cost:?}");
        client.until_word(at(0, 18), 1).await?;
        let seen = span.read(at(0, 16), 16).await?;
        ensure!(seen.words() == [8, 9], "a detached WRITE stored {:?}", seen.words());
        Ok(())
    })
}

pub(super) fn many_batches_in_flight(bench: &Bench<'_>) -> Verdict {
    const FLYING: u64 = 64;
    bench.world(2)?.solo(move |client| async move {
        for backwards in [false, true] {
            let span = client.span();
            let write = |i: u64| {
                let mut batch = span.batch();
                batch.write_words(at((i % 2) as usize, 64 + 8 * i), &[i; 8]);
                let ticket = batch.read(at((i % 2) as usize, 64 + 8 * i), 64);
                (i, ticket, batch.post())
            };
            let mut in_flight: Vec<_> = (0..FLYING).map(write).collect();
            if backwards {
                in_flight.reverse();
            }
            for (i, ticket, completion) in in_flight {
                let got = completion.await?.buf(ticket);
                ensure!(got.words() == [i; 8], "batch {i} of {FLYING} in flight fetched {:?}", got.words());
            }
            let cost = span.cost();
            ensure!(cost.round_trips == 1, "{FLYING} batches in flight together cost {} waits", cost.round_trips);
        }
        Ok(())
    })
}

pub(super) fn batches_span_nodes(bench: &Bench<'_>) -> Verdict {
    bench.world(3)?.solo(move |client| async move {
        let span = client.span();
        let mut batch = span.batch();
        for node in 0..3 {
            batch.write_words(at(node, 16), &[100 + node as u64]);
        }
        let reads: Vec<_> = (0..3).map(|node| batch.read(at(node, 16), 8)).collect();
        let olds: Vec<_> = (0..3).map(|node| batch.faa(at(node, 16), 1)).collect();
        let mut done = batch.post().await?;
        for node in 0..3 {
            let (seen, old) = (done.buf(reads[node]).words()[0], done.old(olds[node]));
            let expected = 100 + node as u64;
            ensure!((seen, old) == (expected, expected), "node {node} of three gave {seen} and {old}");
        }
        drop(done);
        for node in 0..3 {
            let seen = word(&span, at(node, 16)).await?;
            ensure!(seen == 101 + node as u64, "node {node} of three holds {seen}");
        }
        ensure!(span.cost().round_trips == 4, "four waits cost {} round trips", span.cost().round_trips);
        Ok(())
    })
}

pub(super) fn waits_are_metered(bench: &Bench<'_>) -> Verdict {
    bench.world(2)?.solo(move |client| async move {
        let trips = |span: &crate::Span| span.cost().round_trips;
        let span = client.span();
        let mut batch = span.batch();
        batch.write_words(at(0, 16), &[1, 2]);
        batch.read(at(1, 16), 32);
        batch.cas(at(0, 16), 1, 2);
        batch.faa(at(0, 17), 1);
        let _ = batch.post().await?;
        let cost = span.cost();
        let expected = Counters {
            round_trips: 1,
            reads: 1,
            writes: 1,
            cas: 1,
            faa: 1,
            bytes_read: 32,
            bytes_written: 16,
            batches: 1,
            ..Counters::default()
        };
        ensure!(cost == expected, "a batch of four verbs cost {cost:?}");

        let (one, two) = (span.read(at(0, 16), 8), span.read(at(1, 16), 8));
        one.await?;
        two.await?;
        ensure!(trips(&span) == 2, "two batches in flight together are one round trip, not {}", trips(&span) - 1);
        let one = span.read(at(0, 16), 8);
        one.await?;
        span.read(at(0, 16), 8).await?;
        ensure!(trips(&span) == 4, "two waits one after the other are two round trips");

        let block = span.block_batch();
        let _ = block.post().await?;
        ensure!(trips(&span) == 4, "a batch without verbs is no round trip");
        let mut block = span.block_batch();
        block.read(at(0, 16), 8);
        let _ = block.post().await?;
        let cost = span.cost();
        let blocks = (cost.block_reads, cost.block_round_trips, cost.round_trips);
        ensure!(blocks == (1, 1, 5), "a READ of a block cost {blocks:?}");

        let before = client.endpoint.meter();
        drop(span);
        let now = (client.endpoint.meter() - before).total();
        ensure!(now == cost, "a span of {cost:?} entered the meter as {now:?}");
        Ok(())
    })
}

pub(super) fn sizes_from_nothing_to_a_mebibyte(bench: &Bench<'_>) -> Verdict {
    // Miri looks at the whole memory with each verb.
    let large: usize = if cfg!(miri) { 1 << 12 } else { 1 << 20 };
    bench.world_of(1, 2 * large as u64)?.solo(move |client| async move {
        let span = client.span();
        for len in [0, 8, 56, 64, 72, 4096, 65_536 + 8, large].into_iter().filter(|len| *len <= large) {
            let mut buf = client.endpoint.buf(len);
            let value = |i: usize| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ len as u64;
            buf.words_mut().iter_mut().enumerate().for_each(|(i, word)| *word = value(i));
            let first = at(0, 8 + len as u64 % 5);
            span.write(first, buf).await?;
            let got = span.read(first, len).await?;
            ensure!(got.len() == len, "a READ of {len} bytes gave {}", got.len());
            let wrong = got.words().iter().enumerate().find(|(i, word)| **word != value(*i));
            ensure!(wrong.is_none(), "after a WRITE of {len} bytes a READ differs at word {wrong:?}");
        }
        Ok(())
    })
}

pub(super) fn calls_are_answered_or_refused(bench: &Bench<'_>) -> Verdict {
    bench.world(2)?.solo(move |client| async move {
        let (span, node) = (client.span(), NodeId::new(1));
        let call = |words: &[u64]| span.call(node, client.endpoint.buf_from_words(words));
        if !client.endpoint.capabilities().call {
            let answer = call(&[ECHO, 7]).await;
            let refused = matches!(answer, Err(FabricError::Unsupported { .. }));
            ensure!(refused, "a fabric that has no CALL answered one: {answer:?}");
            return Ok(());
        }
        let bytes = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let before = span.cost();
        let echoed = call(&[ECHO, 7, 8]).await?;
        ensure!(echoed == bytes(&[7, 8]), "an echo of two words came back as {echoed:?}");
        let cost = span.cost() - before;
        ensure!((cost.calls, cost.round_trips, cost.batches) == (1, 1, 1), "a CALL cost {cost:?}");
        // What a verb has returned is in the region by then; the other node holds something else.
        span.write(at(0, 16), client.endpoint.buf_from_words(&[1; 4])).await?;
        span.write(at(1, 16), client.endpoint.buf_from_words(&[40, 41, 42, 43])).await?;
        span.read(at(1, 16), 32).await?;
        span.faa(at(1, 18), 100).await?;
        let gathered = call(&gather_request(&[(18 * 8, 16), (16 * 8, 8)])).await?;
        ensure!(gathered == bytes(&[142, 43, 40]), "three words of node 1 were gathered as {gathered:?}");
        // What a call has stored is seen by the verbs that are posted after it.
        let stored = call(&scatter_request(&[(24 * 8, &[5, 6]), (17 * 8, &[9])])).await?;
        ensure!(stored.is_empty(), "a call that stores words was answered with {stored:?}");
        let now = span.read(at(1, 16), 80).await?;
        ensure!(now.words() == [40, 9, 142, 43, 0, 0, 0, 0, 5, 6], "after a call that stores words: {:?}", now.words());
        let largest = call(&gather_request(&[(0, MAX_CALL_LEN as u64 / 2), (0, MAX_CALL_LEN as u64 / 2)])).await;
        let largest = largest.map(|reply| reply.len());
        ensure!(cfg!(miri) || largest == Ok(MAX_CALL_LEN), "the longest reply there may be came as {largest:?}");
        // A refusal is the error of its call alone.
        let refusals: [(&str, &[u64]); 5] = [
            ("a store beyond the region", &scatter_request(&[(16 * 8, &[1]), (1 << 43, &[1])])),
            ("a handler that does not exist", &[99]),
            ("a range beyond the region", &gather_request(&[(1 << 43, 8)])),
            ("a reply that is too long", &gather_request(&[(0, MAX_CALL_LEN as u64), (0, 8)])),
            ("a request that is too long", &[ECHO; MAX_CALL_LEN / 8 + 1]),
        ];
        for (what, request) in refusals {
            let (refused, fine) = (call(request), call(&[ECHO, 9]));
            let refused = refused.await;
            let named = matches!(&refused, Err(FabricError::CallRefused { node, .. }) if node.index() == 1);
            ensure!(named, "{what}: the call gave {refused:?}");
            let fine = fine.await?;
            ensure!(fine == bytes(&[9]), "a call next to {what} gave {fine:?}");
        }
        Ok(())
    })
}

async fn nap(client: &Client, length: Duration) -> Verdict {
    let before = client.endpoint.now();
    client.endpoint.sleep(length).await;
    let slept = client.endpoint.now() - before;
    ensure!(slept >= length, "a sleep of {length:?} took {slept:?}");
    Ok(())
}

pub(super) fn the_clock_and_its_sleepers(bench: &Bench<'_>) -> Verdict {
    let world = bench.world(1)?;
    let sleepers = (1..=2).map(|i| {
        world.script(move |client| async move {
            for micros in [0, 1, 50, 200 * i] {
                nap(&client, Duration::from_micros(micros)).await?;
            }
            // A sleep that is dropped does not fire, and does not disturb others.
            drop(client.endpoint.sleep(Duration::from_micros(5)));
            let (early, late) = (Duration::from_micros(20), Duration::from_micros(60));
            let begun = client.endpoint.now();
            let (second, first) = (client.endpoint.sleep(late), client.endpoint.sleep(early));
            first.await;
            second.await;
            let took = client.endpoint.now() - begun;
            ensure!(took >= late, "two sleeps at once, of which one is {late:?}, took {took:?}");
            word(&client.span(), at(0, 16)).await.map(drop)
        })
    });
    world.run(sleepers.collect())
}

pub(super) fn fabrics_describe_themselves(bench: &Bench<'_>) -> Verdict {
    let world = bench.world(3)?;
    let nodes = world.fabric.nodes();
    ensure!(nodes.len() == 3, "asked for 3 memory nodes, got {}", nodes.len());
    for (i, info) in nodes.iter().enumerate() {
        ensure!(info.node.index() == i, "memory node {i} is called {}", info.node);
        ensure!(info.len >= NODE_LEN && info.len % 8 == 0, "memory node {i} has {} bytes", info.len);
    }
    let mut tokens: Vec<u64> = (0..100).map(|_| world.fabric.new_identity().token).collect();
    tokens.sort_unstable();
    tokens.dedup();
    ensure!(tokens.len() == 100 && tokens[0] != 0, "two of 100 new clients have one token, or one has none");
    let me = world.fabric.new_identity();
    ensure!(world.fabric.is_gone(&me) != Some(true), "a client of this process is said to be gone");
    let (name, capabilities) = (world.fabric.name(), world.fabric.capabilities());
    let zeroed = capabilities.zeroed;
    world.solo(move |client| async move {
        let same = client.endpoint.fabric_name() == name && client.endpoint.capabilities() == capabilities;
        ensure!(same, "endpoint and fabric disagree about what they are");
        if zeroed {
            let fresh = client.span().read(at(2, 0), 4096).await?;
            ensure!(fresh.words().iter().all(|word| *word == 0), "memory that was never written is not zero");
        }
        Ok(())
    })
}
