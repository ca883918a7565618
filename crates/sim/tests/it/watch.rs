//! What is noted of the silence of clients that are revoked.

use crate::common::{config, on, word};
use farindex_fabric::{NodeId, OpKind};
use farindex_sim::{Config, Sim, Swarm, Watch};
use std::time::Duration;

/// Words of a slot: its state, which is odd while it is its client's, a heartbeat, and the client's token.
const WORDS: u64 = 3;

fn watch() -> Watch {
    let registered = |state| state & 1 == 1;
    let evicts = |before, after| before & 3 == 3 && after == before & !3;
    Watch { at: word(0), slots: 2, words: WORDS as usize, changing: 2, token: 2, registered, evicts }
}

#[test]
fn a_token_that_was_left_in_a_slot_is_not_its_clients() {
    let sim = Sim::new(1, Config { swarm: Some(Swarm::calm()), ..config() }).unwrap();
    let (victim, other) = (sim.client(), sim.client());
    let (ours, target) = (other.connect(), victim.identity());
    sim.watch(watch());
    sim.spawn(&other, async move {
        let span = ours.span(OpKind::Other);
        let set = async |slot: u64, words: &[u64]| {
            span.write(on(0, slot * WORDS), ours.buf_from_words(words)).await.unwrap();
        };
        // The first slot was taken back from the client before it had registered there.
        set(0, &[0x100, 1, target.token]).await;
        ours.sleep(Duration::from_millis(3)).await;
        set(1, &[0x101, 1, target.token]).await;
        ours.sleep(Duration::from_millis(1)).await;
        span.revoke(NodeId::new(0), target).await.unwrap();
        // It has been evicted, and another client is about to register in the first slot. A second evictor comes late.
        set(1, &[0x100]).await;
        set(0, &[0x202]).await;
        span.revoke(NodeId::new(0), target).await.unwrap();
    });
    sim.run().assert_done();
    let noted = sim.revocations();
    let slots: Vec<_> = noted.iter().map(|revocation| (revocation.slot, revocation.silent.as_millis())).collect();
    assert_eq!(slots, [(1, 1)]);
}

#[test]
fn an_eviction_that_leaves_a_node_out_is_noted() {
    for revoked in 0..=2 {
        let sim = Sim::new(1, Config { nodes: 2, swarm: Some(Swarm::calm()), ..config() }).unwrap();
        let (victim, other) = (sim.client(), sim.client());
        let (ours, target) = (other.connect(), victim.identity());
        sim.watch(watch());
        sim.spawn(&other, async move {
            let span = ours.span(OpKind::Other);
            for state in [0x101, 0x103, 0x100] {
                if state == 0x100 {
                    for node in 0..revoked {
                        span.revoke(NodeId::new(node), target).await.unwrap();
                    }
                }
                span.write(on(0, WORDS), ours.buf_from_words(&[state, 1, target.token])).await.unwrap();
            }
        });
        sim.run().assert_done();
        assert_eq!(sim.unrevoked(), if revoked < 2 { vec![1] } else { vec![] });
    }
}
