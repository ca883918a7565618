//! The same seed repeats the same run, in every build.

use crate::common::{on, word};
use farindex_fabric::OpKind;
use farindex_sim::{Config, Sim, once_in};

/// Runs six clients that lock, write, read, freeze and crash. Returns the trace and the final virtual time.
fn run(seed: u64) -> (u64, u128) {
    let sim = Sim::new(seed, Config { nodes: 2, node_len: 4096, ..Config::default() }).unwrap();
    for number in 0..6u64 {
        let client = sim.client();
        if number > 3 {
            client.crash_odds(once_in(60));
        }
        client.freeze_odds(once_in(50), 20);
        let endpoint = client.connect();
        sim.spawn(&client, async move {
            let span = endpoint.span(OpKind::Other);
            for round in 0..40 {
                let mut batch = span.batch();
                batch.write_words(on(1, number * 8), &[round; 8]);
                batch.cas(word(0), round, round + 1);
                let read = batch.read(on(1, 0), 8 * 48);
                let mut done = batch.post().await.unwrap();
                let seen = done.buf(read).words().iter().sum::<u64>();
                span.faa(word(1), seen).await.unwrap();
            }
        });
    }
    sim.run().assert_done();
    sim.settle();
    (sim.trace(), sim.now().as_nanos())
}

#[test]
fn replay_of_a_seed_has_the_same_trace() {
    for seed in 0..20 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
    assert_ne!(run(1).0, run(2).0);
}

/// The expected trace was recorded once; debug and release builds agree on it. It changes when the adversary draws
/// differently, and then every recorded seed means another run.
#[test]
fn replay_has_the_recorded_trace() {
    assert_eq!(run(7).0, 2662494106419728098);
}
