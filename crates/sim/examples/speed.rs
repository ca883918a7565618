//! Measures the simulator's speed: verbs a second of one core, in both modes.
//!
//! `cargo run --release -p farindex-sim --example speed [NAME]` runs the measurements whose names begin with NAME.

use farindex_fabric::{NodeId, OpKind, RemotePtr};
use farindex_sim::{Config, Outcome, Preset, Sim, Swarm};
use std::time::{Duration, Instant};

/// Runs `clients` clients with `depth` coroutines each; every round of a coroutine is one batch of `verbs` verbs.
fn measure(name: &str, config: Config, clients: usize, depth: usize, verbs: u64, rounds: u64) {
    if std::env::args().nth(1).is_some_and(|wanted| !name.starts_with(&wanted)) {
        return;
    }
    let nodes = config.nodes as u64;
    let sim = match Sim::new(1, config) {
        Ok(sim) => sim,
        Err(error) => {
            eprintln!("{name}: {error}");
            return;
        }
    };
    for number in 0..clients {
        let client = sim.client_on(number % 4);
        let endpoint = client.connect();
        for lane in 0..depth {
            let endpoint = endpoint.clone();
            let own = (number * depth + lane) as u64;
            sim.spawn(&client, async move {
                for round in 0..rounds {
                    let span = endpoint.span(OpKind::Other);
                    let node = NodeId::new(((own + round) % nodes) as u16);
                    let ptr = RemotePtr::new(node, (own * 977 + round * 61) % 8192 * 64);
                    let mut batch = span.batch();
                    for verb in 0..verbs {
                        match (round + verb) % 4 {
                            0 => batch.write_words(ptr, &[round; 4]),
                            1 => batch.faa(ptr, 1),
                            _ => batch.read(ptr, 64),
                        };
                    }
                    if batch.post().await.is_err() {
                        return;
                    }
                }
            });
        }
    }
    let (start, before) = (Instant::now(), on_cpu());
    let outcome = sim.run();
    let wall = start.elapsed();
    let seconds = on_cpu().zip(before).map_or(wall, |(now, before)| now - before).as_secs_f64();
    let stats = sim.stats();
    let rate = stats.verbs as f64 / seconds / 1e6;
    let events = stats.events as f64 / stats.verbs as f64;
    let done = matches!(outcome, Outcome::Done);
    println!("{name:<44} {rate:>6.2} M verbs/s, {events:.2} events a verb, finished: {done}");
}

/// Time that this thread has run on a core, which on a busy machine is less than the elapsed time. Linux only.
fn on_cpu() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    stat.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

fn main() {
    let base = Config { nodes: 4, node_len: 1 << 20, max_steps: u64::MAX, ..Config::default() };
    let with = |swarm: Swarm| Config { swarm: Some(swarm), ..base.clone() };
    let model = Config { model: Some(Preset::shard()), ..base.clone() };
    let rounds = 2_000_000;
    measure("adversary, calm, 1 verb a batch", with(Swarm::calm()), 16, 2, 1, rounds / 32);
    measure("adversary, calm, 4 verbs a batch", with(Swarm::calm()), 16, 2, 4, rounds / 64);
    measure("adversary, everything on, 1 verb a batch", with(Swarm::fierce()), 16, 2, 1, rounds / 32);
    measure("adversary, everything on, 4 verbs a batch", with(Swarm::fierce()), 16, 2, 4, rounds / 64);
    measure("model, 1 verb a batch", model.clone(), 16, 2, 1, rounds / 32);
    measure("model, 4 verbs a batch", model.clone(), 16, 2, 4, rounds / 64);
    measure("model, 128 clients of 8 coroutines, 1 verb", model, 128, 8, 1, rounds / 1024);
}
