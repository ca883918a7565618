//! The model reproduces its own figures, and relations that the papers measured.

use crate::common::{on, word};
use farindex_fabric::call::{CallTable, Work, gather_request};
use farindex_fabric::{NodeId, OpKind, RemotePtr};
use farindex_sim::{Config, Preset, Sim};
use std::time::Duration;

fn cluster(preset: Preset, nodes: usize) -> Sim {
    Sim::new(1, Config { nodes, node_len: 1 << 20, model: Some(preset), ..Config::default() }).unwrap()
}

/// The operation that a coroutine repeats.
#[derive(Debug, Clone, Copy)]
enum Op {
    /// READs of so many bytes each, all in one batch.
    Reads {
        bytes: usize,
        verbs: usize,
    },
    /// READs of so many bytes each, one after the other.
    Sequential {
        bytes: usize,
        verbs: usize,
    },
    Write {
        bytes: usize,
    },
    /// An FAA, on a word of the coroutine's own or on one word for all.
    Faa {
        shared: bool,
    },
}

/// Operations a second of `clients` clients with `depth` coroutines each on each of `hosts` compute nodes.
fn throughput(preset: Preset, hosts: usize, clients: usize, depth: usize, op: Op) -> f64 {
    let nodes = preset.memory_nodes;
    let sim = cluster(preset, nodes);
    let span_ns = 400_000u64;
    let mut counts = Vec::new();
    for number in 0..hosts * clients {
        let client = sim.client_on(number % hosts);
        let endpoint = client.connect();
        for lane in 0..depth {
            let endpoint = endpoint.clone();
            let own = (number * depth + lane) as u64;
            counts.push(sim.spawn(&client, async move {
                let span = endpoint.span(OpKind::Other);
                let (mut ops, mut begun) = (0u64, None);
                let end = Duration::from_nanos(span_ns);
                let node = (own % nodes as u64) as u16;
                loop {
                    let ptr = on(node, own % 4096 * 8);
                    match op {
                        Op::Reads { bytes, verbs } => {
                            let mut batch = span.batch();
                            (0..verbs as u64).for_each(|i| _ = batch.read(ptr.add(i * 512), bytes));
                            batch.post().await.unwrap();
                        }
                        Op::Sequential { bytes, verbs } => {
                            for i in 0..verbs as u64 {
                                span.read(ptr.add(i * 512), bytes).await.unwrap();
                            }
                        }
                        Op::Write { bytes } => span.write(ptr, endpoint.buf(bytes)).await.unwrap(),
                        Op::Faa { shared } => {
                            let ptr = if shared { word(0) } else { on(node, own) };
                            span.faa(ptr, 1).await.unwrap();
                        }
                    }
                    // The first half warms up; the rest is counted from one completion to another.
                    let now = endpoint.now();
                    if let Some(begun) = begun {
                        ops += 1;
                        if now > end {
                            return ops as f64 / Duration::as_secs_f64(&(now - begun));
                        }
                    } else if now * 2 > end {
                        begun = Some(now);
                    }
                }
            }));
        }
    }
    sim.run().assert_done();
    counts.iter().filter_map(|rate| rate.take()).sum()
}

fn near(measured: f64, expected: f64, tolerance: f64) {
    assert!((measured / expected - 1.0).abs() < tolerance, "{measured} is not {expected} within {tolerance}");
}

#[test]
fn latency_of_an_empty_read_is_that_of_the_preset() {
    for preset in Preset::all() {
        let expected = preset.read_ns;
        let sim = cluster(preset, 1);
        let client = sim.client();
        let endpoint = client.connect();
        let took = sim.spawn(&client, async move {
            let span = endpoint.span(OpKind::Other);
            span.read(word(0), 0).await.unwrap();
            let before = endpoint.now();
            for _ in 0..100 {
                span.read(word(0), 0).await.unwrap();
            }
            (endpoint.now() - before).as_nanos() as u64 / 100
        });
        sim.run().assert_done();
        let took = took.take().unwrap();
        assert!(took.abs_diff(expected) <= 3, "{took} instead of {expected}");
    }
}

/// The preset with client CPUs that cost nothing, so that the NIC is the limit, and with separate memory nodes.
fn bare(preset: Preset) -> Preset {
    Preset { doorbell_ns: 0, wqe_ns: 0, poll_ns: 0, colocated: false, memory_nodes: 1, ..preset }
}

/// Operations a second if each takes this many picoseconds.
fn per_second(ps: u64) -> f64 {
    1e12 / ps as f64
}

#[test]
fn message_rate_limits_small_reads() {
    for preset in Preset::all().map(bare) {
        // The limit is the wire if the header alone takes longer than a message.
        let limit = per_second(preset.message_ps.max(preset.header_bytes * preset.byte_ps));
        let op = Op::Reads { bytes: 0, verbs: 1 };
        near(throughput(preset, 2, 14, 16, op), limit, 0.01);
    }
    // The 28 threads of the paper's client reach it too, in spite of the doorbells' cost, if they batch.
    let preset = Preset::linear_probing();
    let limit = per_second(preset.message_ps);
    let op = Op::Reads { bytes: 0, verbs: 16 };
    near(16.0 * throughput(preset, 1, 28, 4, op), limit, 0.02);
}

#[test]
fn bandwidth_limits_large_reads_and_writes() {
    for preset in Preset::all().map(bare) {
        for bytes in [1024, 4096] {
            let limit = per_second((bytes as u64 + preset.header_bytes) * preset.byte_ps);
            for op in [Op::Reads { bytes, verbs: 1 }, Op::Write { bytes }] {
                near(throughput(preset.clone(), 2, 14, 8, op), limit, 0.02);
            }
        }
    }
}

#[test]
fn atomic_rate_limits_atomics_and_is_lower_on_one_address() {
    for preset in Preset::all().map(bare) {
        let (many, one) = (per_second(preset.atomic_ps), per_second(preset.atomic_same_ps));
        near(throughput(preset.clone(), 2, 16, 16, Op::Faa { shared: false }), many, 0.01);
        near(throughput(preset, 2, 16, 16, Op::Faa { shared: true }), one, 0.01);
    }
}

/// The NIC of a machine that is compute node and memory node handles its clients' messages and those to its memory.
#[test]
fn colocated_nic_has_half_the_message_rate_in_each_role() {
    for preset in Preset::all().into_iter().filter(|preset| preset.colocated) {
        let nodes = preset.memory_nodes as f64;
        let limit = nodes * per_second(preset.message_ps) / 2.0;
        let both = Preset { colocated: true, memory_nodes: preset.memory_nodes, ..bare(preset.clone()) };
        let op = Op::Reads { bytes: 0, verbs: 1 };
        near(throughput(both, preset.memory_nodes, 14, 16, op), limit, 0.02);
    }
}

#[test]
fn atomics_on_a_hot_word_do_not_delay_reads_of_other_words() {
    let sim = cluster(bare(Preset::linear_probing()), 1);
    for _ in 0..64 {
        let client = sim.client();
        let endpoint = client.connect();
        sim.spawn(&client, async move {
            let span = endpoint.span(OpKind::Other);
            for _ in 0..20 {
                span.faa(word(0), 1).await.unwrap();
            }
        });
    }
    let client = sim.client();
    let endpoint = client.connect();
    let took = sim.spawn(&client, async move {
        let span = endpoint.span(OpKind::Other);
        endpoint.sleep(Duration::from_micros(50)).await;
        let before = endpoint.now();
        span.read(word(8), 8).await.unwrap();
        endpoint.now() - before
    });
    sim.run().assert_done();
    assert!(took.take().unwrap() < Duration::from_nanos(1500));
    assert_eq!(sim.peek(word(0)), Some(64 * 20));
}

/// SHARD, figure 1a: one READ is faster than two of half the size, in one batch or sequentially, and than two much
/// smaller sequential ones.
#[test]
fn one_larger_read_is_faster_than_two_smaller_ones() {
    for threads in [4, 16, 36] {
        let rate = |op| throughput(Preset::shard(), 3, threads, 1, op);
        for bytes in [128usize, 256, 512] {
            let one = rate(Op::Reads { bytes, verbs: 1 });
            let batch = rate(Op::Reads { bytes: bytes / 2, verbs: 2 });
            let sequential = rate(Op::Sequential { bytes: bytes / 2, verbs: 2 });
            let small = rate(Op::Sequential { bytes: 64, verbs: 2 });
            assert!(one > batch && batch > sequential, "{bytes} bytes, {threads} threads: {one} {batch} {sequential}");
            assert!(one > small, "{bytes} bytes, {threads} threads: {one} {small}");
        }
    }
}

#[test]
fn calls_queue_for_the_cores_of_the_memory_node() {
    let sim = cluster(Preset { call_ns: 10_000, call_cores: 2, ..bare(Preset::linear_probing()) }, 1);
    sim.set_handler(Box::new(|_, memory, request| {
        memory[8] += 1;
        (Ok(request.to_vec()), Work::default())
    }));
    for _ in 0..8 {
        let client = sim.client();
        let endpoint = client.connect();
        sim.spawn(&client, async move {
            let span = endpoint.span(OpKind::Other);
            let reply = span.call(NodeId::new(0), endpoint.buf_from(b"a request")).await.unwrap();
            assert_eq!(&reply[..9], b"a request");
        });
    }
    sim.run().assert_done();
    assert_eq!(sim.peek(RemotePtr::new(NodeId::new(0), 64)), Some(8));
    // Eight calls of 10 us on two cores.
    assert!(sim.now().as_micros().abs_diff(41) <= 1, "{:?}", sim.now());
}

/// What a handler reads and stores takes time of its core: 10 us for the message, 1 us for each range, 1 ns for each byte.
#[test]
fn a_call_costs_what_its_handler_does() {
    let took = |ranges: &[(u64, u64)]| {
        let costs =
            Preset { call_ns: 10_000, call_access_ns: 1000, call_byte_ps: 1000, ..bare(Preset::linear_probing()) };
        let sim = cluster(costs, 1);
        sim.set_call_handler(CallTable::builtin().into_handler());
        let (client, request) = (sim.client(), gather_request(ranges));
        let endpoint = client.connect();
        sim.spawn(&client, async move {
            let span = endpoint.span(OpKind::Other);
            span.call(NodeId::new(0), endpoint.buf_from_words(&request)).await.unwrap();
        });
        sim.run().assert_done();
        sim.now().as_micros()
    };
    let message = took(&[]);
    assert!(message.abs_diff(11) <= 1, "{message}");
    for (ranges, more) in [(&[(0, 8)][..], 1), (&[(0, 8); 10], 10), (&[(0, 2000)], 3), (&[(0, 2000), (64, 4000)], 8)] {
        let expected = message + more;
        assert!(took(ranges).abs_diff(expected) <= 1, "{ranges:?}: {} us, not {expected}", took(ranges));
    }
}

#[test]
fn model_run_with_crashes_is_repeatable() {
    let run = || {
        let sim = cluster(Preset::dex(), 4);
        for number in 0..20 {
            let client = sim.client_on(number % 4);
            client.crash_at(5 + number as u64, farindex_sim::CrashOutcome::Drawn);
            let endpoint = client.connect();
            sim.spawn(&client, async move {
                let span = endpoint.span(OpKind::Other);
                loop {
                    let mut batch = span.batch();
                    (0..4).for_each(|node| _ = batch.faa(on(node, 0), 1));
                    batch.post().await.unwrap();
                }
            });
        }
        sim.run().assert_done();
        sim.settle();
        assert_eq!(sim.stats().crashes, 20);
        (sim.trace(), sim.now())
    };
    assert_eq!(run(), run());
}
