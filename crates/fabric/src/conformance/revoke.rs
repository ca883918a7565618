//! G6: a revoked client has no more effect. A fabric that reports that it cannot revoke passes: it promises nothing.

use super::{Bench, Client, Signal, Verdict, at, ensure, word};
use crate::call::{SCATTER, scatter_request};
use crate::{FabricError, Identity, NodeId};
use std::time::Duration;

const COUNTER: u64 = 9;
const OTHER_CLIENTS: u64 = 200;
/// Calls in flight: some are left when the revocation has been answered by a fabric that forgets them.
const CALLS: u16 = 200;

/// Counts on both nodes with several batches in flight, until it is revoked.
async fn count_until_revoked(client: &Client, busy: &Signal, stop: &Signal, revoker: Identity) -> Verdict {
    let span = client.span();
    while stop.get() == 0 {
        let in_flight: Vec<_> = (0..6).map(|i| span.faa(at(i % 2, COUNTER), 1)).collect();
        let mut batch = span.batch();
        batch.write_words(at(0, 32), &[busy.get(); 16]);
        batch.faa(at(0, COUNTER), 1);
        batch.post_detached();
        let mut refused = false;
        for one in in_flight {
            refused |= one.await.is_err();
        }
        busy.raise();
        if refused {
            break;
        }
    }
    // Whether or not it has had an error by now, it is revoked, so nothing that it posts takes effect.
    stop.reach(client, 1).await?;
    let late = client.span().faa(at(0, COUNTER), 1 << 32).await;
    ensure!(late.is_err(), "a verb that was posted after its client had been revoked succeeded");
    let counter = client.span().revoke(NodeId::new(0), revoker).await;
    ensure!(counter.is_err(), "a revoked client could revoke another one");
    Ok(())
}

/// `None` if the fabric cannot.
async fn revoke_everywhere(client: &Client, victim: Identity) -> Result<Option<()>, super::Failure> {
    for node in 0..2 {
        match client.span().revoke(NodeId::new(node), victim).await {
            Err(FabricError::CannotRevoke(_) | FabricError::Unsupported { .. }) => return Ok(None),
            other => other?,
        }
    }
    Ok(Some(()))
}

pub(super) fn a_revoked_client_has_no_more_effect(bench: &Bench<'_>) -> Verdict {
    for _ in 0..bench.rounds().min(5) {
        let world = bench.world(2)?;
        let (busy, stop, able) = (Signal::default(), Signal::default(), Signal::default());
        let (identity, other) = (world.fabric.new_identity(), world.fabric.new_identity());
        let (busy_too, stop_too, able_too, can) = (busy.clone(), stop.clone(), able.clone(), able.clone());
        let victim = world.script_of(identity, move |client| async move {
            let verdict = count_until_revoked(&client, &busy_too, &stop_too, other).await;
            if able_too.get() == 0 { Ok(()) } else { verdict }
        });
        let revoker = world.script_of(other, move |client| async move {
            busy.reach(&client, 3).await?;
            if revoke_everywhere(&client, identity).await?.is_none() {
                stop.raise();
                return Ok(());
            }
            able.raise();
            let span = client.span();
            let before = [word(&span, at(0, COUNTER)).await?, word(&span, at(1, COUNTER)).await?];
            let data = span.read(at(0, 32), 128).await?.words().to_vec();
            stop.raise();
            for _ in 0..5 {
                client.endpoint.sleep(Duration::from_micros(20)).await;
                let now = [word(&span, at(0, COUNTER)).await?, word(&span, at(1, COUNTER)).await?];
                ensure!(now == before, "a revoked client went on to count: from {before:?} to {now:?}");
                let now = span.read(at(0, 32), 128).await?;
                ensure!(now.words() == data, "a WRITE of a revoked client landed afterwards");
            }
            Ok(())
        });
        world.run(vec![victim, revoker])?;

        if can.get() == 0 {
            return Ok(());
        }

        // It cannot come back either: its connection is refused, or all that it posts.
        let connected = Signal::default();
        let admitted = connected.clone();
        let again = world.script_of(identity, |client| async move {
            admitted.raise();
            let late = client.span().faa(at(0, COUNTER), 1).await;
            ensure!(late.is_err(), "a revoked client connected anew and went on");
            Ok(())
        });
        let verdict = world.run(vec![again]);
        if connected.get() > 0 {
            verdict?;
        }
    }
    Ok(())
}

/// A client that posts in every round, so that it is revoked with something posted that may not have been sent.
pub(super) fn what_was_posted_before_a_revocation_ends_with_it(bench: &Bench<'_>) -> Verdict {
    const WORDS: u64 = 8;
    for _ in 0..bench.rounds().min(8) {
        let world = bench.world(1)?;
        let (busy, stop) = (Signal::default(), Signal::default());
        let (busy_too, stop_too) = (busy.clone(), stop.clone());
        let identity = world.fabric.new_identity();
        let victim = world.script_of(identity, move |client| async move {
            let span = client.span();
            // It is about a client that is connected.
            for _ in 0..3 {
                span.faa(at(0, COUNTER), 1).await?;
            }
            for n in 1_u64.. {
                let mut batch = span.batch();
                batch.write_words(at(0, 32), &[n; WORDS as usize]);
                // Now and then it waits, so that what is in flight stays bounded.
                if n % 64 != 0 {
                    batch.post_detached();
                } else if batch.post().await.is_err() {
                    break;
                }
                busy_too.raise();
                if stop_too.get() > 0 {
                    break;
                }
                client.endpoint.sleep(Duration::from_nanos(40)).await;
            }
            Ok(())
        });
        let revoker = world.script(move |client| async move {
            busy.reach(&client, 24).await?;
            let span = client.span();
            let able = match span.revoke(NodeId::new(0), identity).await {
                Err(FabricError::CannotRevoke(_) | FabricError::Unsupported { .. }) => false,
                other => other.map(|()| true)?,
            };
            let before = span.read(at(0, 32), WORDS as usize * 8).await?.words().to_vec();
            for _ in 0..10 {
                client.endpoint.sleep(Duration::from_micros(20)).await;
                let now = span.read(at(0, 32), WORDS as usize * 8).await?;
                ensure!(!able || now.words() == before, "a WRITE landed after its client had been revoked");
            }
            stop.raise();
            Ok(())
        });
        // Where one thread runs both, the revocation comes between what the victim posts and what it sends.
        world.run(vec![revoker, victim])?;
    }
    Ok(())
}

/// Lets memory nodes store numbers, another one by each call, with several calls in flight, until it is revoked.
async fn store_until_revoked(client: &Client, busy: &Signal, stop: &Signal) -> Verdict {
    let span = client.span();
    let store = |node: u16, number: u64| {
        let request = scatter_request(&[(COUNTER * 8, &[number; 4])]);
        span.call(NodeId::new(node), client.endpoint.buf_from_words(&request))
    };
    for number in 1.. {
        let in_flight: Vec<_> = (0..CALLS).map(|i| store(i % 2, number * u64::from(CALLS) + u64::from(i))).collect();
        // While they are in flight.
        busy.raise();
        let mut refused = stop.get() > 0;
        for one in in_flight {
            refused |= one.await.is_err();
        }
        if refused {
            break;
        }
    }
    stop.reach(client, 1).await?;
    let late = store(0, u64::MAX).await;
    ensure!(late.is_err(), "a CALL that was posted after its client had been revoked was answered");
    Ok(())
}

pub(super) fn a_revoked_client_has_no_effect_by_calls(bench: &Bench<'_>) -> Verdict {
    for _ in 0..bench.rounds().min(5) {
        let world = bench.world(2)?;
        if !world.fabric.capabilities().call {
            return Ok(());
        }
        let (busy, stop, able) = (Signal::default(), Signal::default(), Signal::default());
        let (identity, other) = (world.fabric.new_identity(), world.fabric.new_identity());
        let (busy_too, stop_too, able_too, can) = (busy.clone(), stop.clone(), able.clone(), able.clone());
        let victim = world.script_of(identity, move |client| async move {
            let verdict = store_until_revoked(&client, &busy_too, &stop_too).await;
            if able_too.get() == 0 { Ok(()) } else { verdict }
        });
        let revoker = world.script_of(other, move |client| async move {
            busy.reach(&client, 3).await?;
            let (span, mut before) = (client.span(), [0; 2]);
            for (node, before) in (0..2).zip(&mut before) {
                match span.revoke(NodeId::new(node), identity).await {
                    Err(FabricError::CannotRevoke(_) | FabricError::Unsupported { .. }) => {
                        stop.raise();
                        return Ok(());
                    }
                    other => other?,
                }
                // At once: a fabric that forgets the calls in flight carries them out soon.
                *before = word(&span, at(node.into(), COUNTER)).await?;
            }
            able.raise();
            ensure!(before[0] > 0, "handler {SCATTER} stored nothing");
            stop.raise();
            for _ in 0..5 {
                client.endpoint.sleep(Duration::from_micros(20)).await;
                let now = [word(&span, at(0, COUNTER)).await?, word(&span, at(1, COUNTER)).await?];
                ensure!(now == before, "a CALL of a revoked client took effect: from {before:?} to {now:?}");
            }
            Ok(())
        });
        world.run(vec![victim, revoker])?;
        if can.get() == 0 {
            return Ok(());
        }
    }
    Ok(())
}

pub(super) fn a_client_may_revoke_itself(bench: &Bench<'_>) -> Verdict {
    let world = bench.world(2)?;
    let identity = world.fabric.new_identity();
    let leaver = world.script_of(identity, move |client| async move {
        let span = client.span();
        span.faa(at(0, COUNTER), 1).await?;
        for node in 0..2 {
            match span.revoke(NodeId::new(node), identity).await {
                Err(FabricError::CannotRevoke(_) | FabricError::Unsupported { .. }) => return Ok(()),
                // The revocation may take effect before its answer arrives, and on both nodes at once.
                Err(FabricError::Revoked) => {}
                other => other?,
            }
        }
        ensure!(span.faa(at(0, COUNTER), 1).await.is_err(), "a client that revoked itself went on");
        Ok(())
    });
    world.run(vec![leaver])
}

pub(super) fn a_revocation_affects_no_other_client(bench: &Bench<'_>) -> Verdict {
    let world = bench.world(2)?;
    let rounds = bench.rounds() / 4;
    let victim = world.fabric.new_identity();
    let others = (0..2).map(|i| {
        world.script(move |client| async move {
            for n in 0..rounds {
                let old = client.span().faa(at(1, OTHER_CLIENTS + i), 1).await?;
                ensure!(old == n, "another client's word is wrong");
                if n == rounds / 2 && i == 0 {
                    revoke_everywhere(&client, victim).await?;
                    // A second revocation changes nothing.
                    revoke_everywhere(&client, victim).await?;
                }
            }
            Ok(())
        })
    });
    world.run(others.collect())?;
    world.expect(at(1, OTHER_CLIENTS), vec![rounds; 2])
}
