//! G2 and G3: whole words, and atomics that lose nothing.
//!
//! Single verbs in batches of their own, so that no case here depends on G4; nothing is written where something is
//! counted, so that none depends on G5.

use super::{Bench, Client, Signal, Verdict, at, ensure, word};
use crate::RemotePtr;
use std::sync::{Arc, Mutex, PoisonError};

/// A word whose halves are the same.
fn doubled(n: u64) -> u64 {
    n << 32 | n & 0xffff_ffff
}

pub(super) fn words_are_read_and_written_whole(bench: &Bench<'_>) -> Verdict {
    const WORDS: usize = 8;
    let world = bench.world(1)?;
    let (rounds, writing) = (bench.rounds(), Signal::default());
    let mut scripts = Vec::new();
    for writer in 1..=2 {
        let writing = writing.clone();
        scripts.push(world.script(move |client| async move {
            for n in 0..rounds {
                let block = client.endpoint.buf_from_words(&[doubled(2 * n + writer); WORDS]);
                client.span().write(at(0, 64), block).await?;
            }
            writing.raise();
            Ok(())
        }));
    }
    scripts.push(world.script(move |client| async move {
        while writing.get() < 2 {
            let block = client.span().read(at(0, 64), WORDS * 8).await?;
            for word in block.words() {
                ensure!(word >> 32 == word & 0xffff_ffff, "half of a WRITE was read: {word:#018x}");
            }
        }
        Ok(())
    }));
    world.run(scripts)
}

pub(super) fn faa_loses_nothing(bench: &Bench<'_>) -> Verdict {
    let world = bench.world(1)?;
    let rounds = bench.rounds();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let scripts = (0..3).map(|_| {
        let seen = Arc::clone(&seen);
        world.script(move |client| async move {
            let mut olds = Vec::new();
            let span = client.span();
            for _ in 0..rounds {
                // Two in flight at once, so that verbs of one client race as well.
                let (one, two) = (span.faa(at(0, 9), 1), span.faa(at(0, 9), 1));
                olds.extend([one.await?, two.await?]);
            }
            seen.lock().unwrap_or_else(PoisonError::into_inner).extend(olds);
            Ok(())
        })
    });
    world.run(scripts.collect())?;
    let mut seen = std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner));
    seen.sort_unstable();
    for (i, old) in seen.iter().enumerate() {
        ensure!(*old == i as u64, "two FAAs of 1 saw the same word, or one saw none: {old} comes as number {i}");
    }
    world.expect(at(0, 9), vec![6 * rounds])
}

/// Adds 1 by CAS.
async fn add_by_cas(client: &Client, ptr: RemotePtr) -> Verdict {
    let span = client.span();
    let mut seen = 0;
    loop {
        let old = span.cas(ptr, seen, seen + 1).await?;
        if old == seen {
            return Ok(());
        }
        seen = old;
    }
}

pub(super) fn cas_has_one_winner(bench: &Bench<'_>) -> Verdict {
    let world = bench.world(1)?;
    let rounds = bench.rounds() / 2;
    let mut scripts = Vec::new();
    for client in 0..3 {
        scripts.push(world.script(move |client_| async move {
            for _ in 0..rounds {
                if client == 0 {
                    client_.span().faa(at(0, 9), 1).await?;
                } else {
                    add_by_cas(&client_, at(0, 9)).await?;
                }
            }
            Ok(())
        }));
    }
    world.run(scripts)?;
    world.expect(at(0, 9), vec![3 * rounds])
}

pub(super) fn failed_cas_writes_nothing(bench: &Bench<'_>) -> Verdict {
    let world = bench.world(1)?;
    let (rounds, counting) = (bench.rounds(), Signal::default());
    let done = counting.clone();
    let counter = world.script(move |client| async move {
        for _ in 0..rounds {
            client.span().faa(at(0, 9), 1).await?;
        }
        done.raise();
        Ok(())
    });
    let loser = world.script(move |client| async move {
        while counting.get() == 0 {
            let old = client.span().cas(at(0, 9), u64::MAX, 1 << 40).await?;
            ensure!(old <= rounds, "a CAS saw {old}, which was never there");
        }
        Ok(())
    });
    world.run(vec![counter, loser])?;
    world.expect(at(0, 9), vec![rounds])
}

pub(super) fn reads_see_atomics_whole(bench: &Bench<'_>) -> Verdict {
    const STEP: u64 = (1 << 32) + 1;
    let world = bench.world(1)?;
    let (rounds, counting) = (bench.rounds(), Signal::default());
    let done = counting.clone();
    let counter = world.script(move |client| async move {
        for n in 0..rounds {
            if n % 2 == 0 {
                client.span().faa(at(0, 9), STEP).await?;
            } else {
                let old = client.span().cas(at(0, 9), n * STEP, (n + 1) * STEP).await?;
                ensure!(old == n * STEP, "a CAS by the only client to change a word saw {old:#x}");
            }
        }
        done.raise();
        Ok(())
    });
    let reader = world.script(move |client| async move {
        let (span, mut before) = (client.span(), 0);
        while counting.get() == 0 {
            let seen = word(&span, at(0, 9)).await?;
            ensure!(seen >> 32 == seen & 0xffff_ffff, "half of an atomic was read: {seen:#018x}");
            ensure!(seen >= before, "a word that only grows went from {before:#x} to {seen:#x}");
            before = seen;
        }
        Ok(())
    });
    world.run(vec![counter, reader])
}

pub(super) fn masked_cas_changes_its_bits_alone(bench: &Bench<'_>) -> Verdict {
    let world = bench.world(1)?;
    let rounds = bench.rounds().min(200);
    let lanes = (0..3_u32).map(|lane| {
        world.script(move |client| async move {
            let (mask, span) = (0xffff << (16 * lane), client.span());
            for n in 0..rounds {
                let (expect, new) = (n << (16 * lane), (n + 1) << (16 * lane));
                let old = span.masked_cas(at(0, 9), !mask | expect, !mask | new, mask, mask).await?;
                ensure!(old & mask == expect, "lane {lane} held {old:#x} after {n} rounds");
                let old = span.masked_cas(at(0, 9), expect, 0, mask, mask).await?;
                ensure!(old & mask == new, "a failed masked CAS on lane {lane} saw {old:#x} in round {n}");
            }
            Ok(())
        })
    });
    world.run(lanes.collect())?;
    world.expect(at(0, 9), vec![rounds | rounds << 16 | rounds << 32])
}
