//! G4 and G5: order within a batch, and what has completed.
//!
//! The cases on G5 use single verbs, so that they do not depend on G4. Those on G4 come after them, and read with
//! batches of READs, whose order is part of G4.

use super::{Bench, POLL_PAUSE, Signal, Verdict, World, at, ensure, word};
use crate::{Counters, FabricError, RemotePtr};
use std::time::Duration;

pub(super) fn completed_verbs_are_seen_by_others(bench: &Bench<'_>) -> Verdict {
    let world = bench.world(1)?;
    // Few turns: where threads outnumber cores, each costs a slice of time.
    let (rounds, ball) = (bench.rounds().div_ceil(4).min(24), Signal::default());
    // They take turns. Whose turn it is changes the words, and the other must see that.
    let scripts = (0..2).map(|me| {
        let ball = ball.clone();
        world.script(move |client| async move {
            let span = client.span();
            for n in (me..2 * rounds).step_by(2) {
                ball.reach(&client, n).await?;
                for (i, verb) in ["WRITE", "CAS", "FAA"].into_iter().enumerate() {
                    let seen = word(&span, at(0, 16 * i as u64)).await?;
                    ensure!(seen == n, "a READ posted after {verb} number {n} had completed saw {seen}");
                }
                span.write(at(0, 0), client.endpoint.buf_from_words(&[n + 1])).await?;
                let old = span.cas(at(0, 16), n, n + 1).await?;
                ensure!(old == n, "a CAS posted after {n} CASes had completed saw {old}");
                let old = span.faa(at(0, 32), 1).await?;
                ensure!(old == n, "a FAA posted after {n} FAAs had completed saw {old}");
                ball.set(n + 1);
            }
            Ok(())
        })
    });
    world.run(scripts.collect())
}

pub(super) fn completed_verbs_are_seen_by_oneself(bench: &Bench<'_>) -> Verdict {
    let rounds = bench.rounds() / 4;
    bench.world(1)?.solo(move |client| async move {
        let span = client.span();
        for n in 1..=rounds {
            span.write(at(0, 8), client.endpoint.buf_from_words(&[n, n])).await?;
            let seen = word(&span, at(0, 9)).await?;
            ensure!(seen == n, "a READ saw {seen} after the WRITE of {n} had completed");
            let old = span.faa(at(0, 8), 1).await?;
            ensure!(old == n, "a FAA saw {old} after the WRITE of {n} had completed");
        }
        Ok(())
    })
}

/// A writer that posts data before a flag, and an observer that reads the flag before the data.
fn publish(
    world: &World<'_>,
    rounds: u64,
    write: impl Fn(&mut crate::Batch<'_>, u64) + Send + 'static,
    flag: RemotePtr,
    data: RemotePtr,
    len: usize,
) -> Verdict {
    let writing = Signal::default();
    let done = writing.clone();
    let writer = world.script(move |client| async move {
        for n in 1..=rounds {
            let span = client.span();
            let mut batch = span.batch();
            write(&mut batch, n);
            batch.post().await?;
        }
        done.raise();
        Ok(())
    });
    let observer = world.script(move |client| async move {
        while writing.get() == 0 {
            let span = client.span();
            let mut batch = span.batch();
            let (first, then) = (batch.read(flag, 8), batch.read(data, len));
            let mut seen = batch.post().await?;
            let flag = seen.buf(first).words()[0];
            for word in seen.buf(then).words() {
                ensure!(*word >= flag, "the flag of batch {flag} was seen before its data: {word}");
            }
        }
        Ok(())
    });
    world.run(vec![writer, observer])
}

pub(super) fn writes_land_in_posting_order(bench: &Bench<'_>) -> Verdict {
    let (flag, data) = (at(0, 100), at(0, 8));
    let write = move |batch: &mut crate::Batch<'_>, n| {
        batch.write_words(data, &[n; 8]);
        batch.write_words(flag, &[n]);
    };
    publish(&bench.world(1)?, bench.rounds(), write, flag, data, 64)
}

pub(super) fn writes_land_before_later_atomics(bench: &Bench<'_>) -> Verdict {
    let (flag, data) = (at(0, 100), at(0, 8));
    let by_faa = move |batch: &mut crate::Batch<'_>, n| {
        batch.write_words(data, &[n; 4]);
        batch.faa(flag, 1);
    };
    publish(&bench.world(1)?, bench.rounds(), by_faa, flag, data, 32)?;
    let by_cas = move |batch: &mut crate::Batch<'_>, n| {
        batch.write_words(data, &[n; 4]);
        batch.cas(flag, n - 1, n);
    };
    publish(&bench.world(1)?, bench.rounds(), by_cas, flag, data, 32)
}

pub(super) fn later_verbs_see_earlier_writes(bench: &Bench<'_>) -> Verdict {
    let rounds = bench.rounds() / 4;
    bench.world(1)?.solo(move |client| async move {
        for n in 1..=rounds {
            let span = client.span();
            let mut batch = span.batch();
            batch.write_words(at(0, 8), &[1, 1, 1, 1]);
            batch.write_words(at(0, 10), &[10 * n]);
            let read = batch.read(at(0, 10), 8);
            let faa = batch.faa(at(0, 10), 1);
            let cas = batch.cas(at(0, 10), 10 * n + 1, 10 * n + 2);
            let again = batch.read(at(0, 10), 8);
            let mut done = batch.post().await?;
            let seen = [done.buf(read).words()[0], done.old(faa), done.old(cas), done.buf(again).words()[0]];
            let expected = [10 * n, 10 * n, 10 * n + 1, 10 * n + 2];
            ensure!(seen == expected, "WRITE, READ, FAA, CAS, READ of a word saw {seen:?}, not {expected:?}");
        }
        Ok(())
    })
}

pub(super) fn reads_and_atomics_keep_posting_order(bench: &Bench<'_>) -> Verdict {
    let rounds = bench.rounds() / 4;
    bench.world(1)?.solo(move |client| async move {
        for n in 0..rounds {
            let (span, base) = (client.span(), 3 * n);
            let mut batch = span.batch();
            let first = batch.read(at(0, 8), 8);
            let faa = batch.faa(at(0, 8), 1);
            let second = batch.read(at(0, 8), 8);
            let cas = batch.cas(at(0, 8), base + 1, base + 2);
            let third = batch.read(at(0, 8), 8);
            let last = batch.faa(at(0, 8), 1);
            let mut done = batch.post().await?;
            let mut read = |ticket| done.buf(ticket).words()[0];
            let reads = [read(first), read(second), read(third)];
            let olds = [done.old(faa), done.old(cas), done.old(last)];
            ensure!(reads == [base, base + 1, base + 2], "READs between atomics saw {reads:?} from {base} on");
            ensure!(olds == [base, base + 1, base + 2], "atomics in one batch saw {olds:?} from {base} on");
        }
        Ok(())
    })
}

/// Two clients meet again and again, each time on two fresh words; what each saw of the other's word is judged.
fn litmus(bench: &Bench<'_>, atomic_first: bool, judge: fn(u64, u64) -> bool) -> Verdict {
    let world = bench.world(1)?;
    let (rounds, here) = (bench.rounds().min(100), Signal::default());
    let (seen, start) = ([Signal::default(), Signal::default()], Signal::default());
    let scripts = (0..2).map(|me| {
        let (here, seen, start) = (here.clone(), seen.clone(), start.clone());
        world.script(move |client| async move {
            for n in 0..rounds {
                // The client that comes second notices at once, the other one a pause later: they agree on a moment to
                // start.
                let soon = client.endpoint.now() + 2 * POLL_PAUSE;
                start.raise_to(soon.as_nanos() as u64);
                here.raise();
                here.reach(&client, 2 * (2 * n + 1)).await?;
                let pause = Duration::from_nanos(start.get()).saturating_sub(client.endpoint.now());
                client.endpoint.sleep(pause.min(10 * POLL_PAUSE)).await;
                let (mine, other) = (at(0, 64 + 16 * n + 8 * me), at(0, 64 + 16 * n + 8 * (1 - me)));
                let span = client.span();
                let mut batch = span.batch();
                let early = (!atomic_first).then(|| batch.read(other, 8));
                if me == 0 {
                    batch.faa(mine, 1);
                } else {
                    batch.cas(mine, 0, 1);
                }
                let read = early.unwrap_or_else(|| batch.read(other, 8));
                let mut done = batch.post().await?;
                seen[me as usize].set(done.buf(read).words()[0]);
                here.raise();
                here.reach(&client, 2 * (2 * n + 2)).await?;
                let (a, b) = (seen[0].get(), seen[1].get());
                let order = if atomic_first { "an atomic, then a READ" } else { "a READ, then an atomic" };
                ensure!(judge(a, b), "two batches of {order} on each other's word saw {a} and {b}");
            }
            Ok(())
        })
    });
    world.run(scripts.collect())
}

pub(super) fn atomics_land_before_later_reads(bench: &Bench<'_>) -> Verdict {
    litmus(bench, true, |a, b| a + b > 0)
}

pub(super) fn reads_come_before_later_atomics(bench: &Bench<'_>) -> Verdict {
    litmus(bench, false, |a, b| a + b < 2)
}

pub(super) fn a_fence_holds_writes_back(bench: &Bench<'_>) -> Verdict {
    let rounds = bench.rounds() / 4;
    bench.world(1)?.solo(move |client| async move {
        for n in 0..rounds {
            let span = client.span();
            let mut batch = span.batch();
            let (read, faa) = (batch.read(at(0, 8), 8), batch.faa(at(0, 9), 1));
            batch.fence();
            batch.write_words(at(0, 8), &[n + 1, 100 * (n + 1)]);
            let mut done = batch.post().await?;
            let (seen, old) = (done.buf(read).words()[0], done.old(faa));
            ensure!((seen, old) == (n, 100 * n), "a fenced WRITE overtook a READ or FAA: they saw {seen} and {old}");
        }
        Ok(())
    })
}

/// Where the fabric has no masked CAS, the batch is refused whole, and costs nothing.
pub(super) fn a_masked_cas_keeps_its_place_in_a_batch(bench: &Bench<'_>) -> Verdict {
    let world = bench.world(1)?;
    if !world.fabric.capabilities().masked_cas {
        world.solo(|client| async move {
            let span = client.span();
            let mut batch = span.batch();
            batch.write_words(at(0, 8), &[7]);
            batch.masked_cas(at(0, 9), 0, 7, u64::MAX, u64::MAX);
            let refused = batch.post().await.err();
            let unsupported = matches!(refused, Some(FabricError::Unsupported { .. }));
            ensure!(unsupported, "a fabric without masked CAS took a batch with one: {refused:?}");
            ensure!(span.cost() == Counters::default(), "a batch that was refused cost {:?}", span.cost());
            Ok(())
        })?;
        return world.expect(at(0, 8), vec![0; 2]);
    }
    // A compare mask of no bits always swaps.
    let (flag, data) = (at(0, 100), at(0, 8));
    let by_masked_cas = move |batch: &mut crate::Batch<'_>, n| {
        batch.write_words(data, &[n; 4]);
        batch.masked_cas(flag, 0, n, 0, u64::MAX);
    };
    publish(&world, bench.rounds(), by_masked_cas, flag, data, 32)?;
    world.solo(|client| async move {
        let span = client.span();
        let mut batch = span.batch();
        batch.write_words(at(0, 16), &[0xab]);
        let swapped = batch.masked_cas(at(0, 16), 0xfb, 0x1f0, 0x0f, 0xf0);
        let between = batch.read(at(0, 16), 8);
        let failed = batch.masked_cas(at(0, 16), 0, 0, u64::MAX, u64::MAX);
        let last = batch.faa(at(0, 16), 1);
        let mut done = batch.post().await?;
        let seen = [done.old(swapped), done.buf(between).words()[0], done.old(failed), done.old(last)];
        ensure!(seen == [0xab, 0xfb, 0xfb, 0xfb], "masked CAS, READ, masked CAS, FAA of a word saw {seen:#x?}");
        let cost = span.cost();
        ensure!((cost.cas, cost.batches) == (2, 1), "a batch with two masked CASes cost {cost:?}");
        Ok(())
    })?;
    world.expect(at(0, 16), vec![0xfc])
}

/// Batches that a fabric may send together: the order within each of them holds all the same.
pub(super) fn batches_posted_together_keep_their_order(bench: &Bench<'_>) -> Verdict {
    const TOGETHER: u64 = 5;
    let rounds = bench.rounds().div_ceil(2);
    bench.world(1)?.solo(move |client| async move {
        for n in 1..=rounds {
            let span = client.span();
            let post = |i: u64| {
                let (data, flag) = (at(0, 64 + 32 * i), at(0, 64 + 32 * i + 16));
                let mut batch = span.batch();
                batch.write_words(data, &[n; 4]);
                batch.write_words(data, &[n + 1; 2]);
                let faa = batch.faa(data, 1);
                let read = batch.read(data, 32);
                let cas = batch.cas(flag, n - 1, n);
                (i, faa, read, cas, batch.post())
            };
            let flying: Vec<_> = (0..TOGETHER).map(post).collect();
            for (i, faa, read, cas, one) in flying {
                let mut done = one.await?;
                let (old, flag, seen) = (done.old(faa), done.old(cas), done.buf(read));
                ensure!(old == n + 1, "batch {i} of {TOGETHER}: a FAA behind WRITEs of {} saw {old}", n + 1);
                let expected = [n + 2, n + 1, n, n];
                ensure!(seen.words() == expected, "batch {i} of {TOGETHER}: a READ behind them saw {:?}", seen.words());
                ensure!(flag == n - 1, "batch {i} of {TOGETHER}: CAS number {n} saw {flag}");
            }
        }
        Ok(())
    })
}
