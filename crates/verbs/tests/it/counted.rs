//! What a batch costs on the wire, counted where it is posted and by the device itself.

use crate::nodes::{Local, client_device, device_or_skip};
use farindex_fabric::{Endpoint, Executor, Fabric, NodeId, OpKind, RemotePtr};
use farindex_verbs::WireCounts;

fn at(node: u16, word: u64) -> RemotePtr {
    RemotePtr::new(NodeId::new(node), word * 8)
}

/// Packets that the device has sent, by its own counter. The kernel reads it anew only when it is older than `lifespan`
/// (milliseconds).
fn packets_sent(fabric: &Local) -> u64 {
    let name = fabric.fabric.device().name().to_owned();
    let read = |counter: &str| {
        let path = format!("/sys/class/infiniband/{name}/ports/1/hw_counters/{counter}");
        std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).expect("a counter")
    };
    std::thread::sleep(std::time::Duration::from_millis(2 * read("lifespan") + 1));
    read("sent_pkts")
}

fn since(fabric: &Local, before: WireCounts) -> (u64, u64, u64) {
    let now = fabric.fabric.wire_counts();
    (now.doorbells - before.doorbells, now.requests - before.requests, now.completions - before.completions)
}

fn with(fabric: &Local, body: impl AsyncFnOnce(&Endpoint)) {
    let endpoint = fabric.connect(&fabric.new_identity()).expect("a connection");
    Executor::new().block_on(&endpoint, async { body(&endpoint).await });
}

#[test]
fn three_verbs_ring_one_doorbell() {
    if !device_or_skip() {
        return;
    }
    let fabric = Local::new(2, 1 << 20).expect("memory nodes");
    with(&fabric, async |endpoint| {
        let span = endpoint.span(OpKind::Other);
        span.read(at(0, 8), 8).await.expect("connected");
        span.read(at(1, 8), 8).await.expect("connected");
        let (before, packets) = (fabric.fabric.wire_counts(), packets_sent(&fabric));
        let mut batch = span.batch();
        batch.write_words(at(0, 8), &[5]);
        let faa = batch.faa(at(0, 8), 2);
        let read = batch.read(at(0, 8), 8);
        let mut done = batch.post().await.expect("a batch");
        assert_eq!((done.old(faa), done.buf(read).words()[0]), (5, 7));
        assert_eq!(since(&fabric, before), (1, 3, 1), "doorbells, requests, completions of three verbs");
        let sent = packets_sent(&fabric) - packets;
        // One device on both sides counts what either sends: three requests, and an answer to each at most. Two devices
        // count apart.
        let both = client_device().device.is_none();
        let expected = if both { 5..=6 } else { 3..=3 };
        println!("three verbs in one batch: {sent} packets sent");
        if std::env::var_os("ROCE_LOSSY").is_none() {
            assert!(expected.contains(&sent), "{sent} packets for three verbs");
        }

        // A batch to two nodes rings two: one in each queue pair.
        let before = fabric.fabric.wire_counts();
        let mut batch = span.batch();
        for node in 0..2 {
            batch.write_words(at(node, 8), &[5]);
            batch.faa(at(node, 8), 2);
        }
        batch.post().await.expect("a batch");
        assert_eq!(since(&fabric, before), (2, 4, 2));
    });
}

#[test]
fn round_trips_on_the_wire_match_the_meter() {
    if !device_or_skip() {
        return;
    }
    let fabric = Local::new(1, 1 << 20).expect("memory nodes");
    with(&fabric, async |endpoint| {
        let span = endpoint.span(OpKind::Other);
        span.read(at(0, 8), 8).await.expect("connected");
        let (before, metered) = (fabric.fabric.wire_counts(), span.cost());
        for n in 0..50 {
            let mut batch = span.batch();
            batch.write_words(at(0, 16), &[n; 40]);
            batch.cas(at(0, 8), n, n + 1);
            batch.read(at(0, 16), 320);
            batch.post().await.expect("a batch");
            span.faa(at(0, 9), 1).await.expect("a FAA");
        }
        let cost = span.cost() - metered;
        let (doorbells, requests, completions) = since(&fabric, before);
        assert_eq!((cost.batches, cost.verbs(), cost.round_trips), (doorbells, requests, completions));
        assert_eq!(cost.round_trips, 100);
    });
}

#[test]
fn what_coroutines_post_together_rings_one_doorbell() {
    if !device_or_skip() {
        return;
    }
    const EACH: u64 = 10;
    let fabric = Local::new(2, 1 << 20).expect("memory nodes");
    for coroutines in [1, 8, 32] {
        with(&fabric, async |endpoint| {
            let span = endpoint.span(OpKind::Other);
            span.read(at(0, 8), 8).await.expect("connected");
            span.read(at(1, 8), 8).await.expect("connected");
            let (before, metered) = (fabric.fabric.wire_counts(), endpoint.meter());
            for n in 0..EACH {
                // What a span posts before it awaits is what coroutines post in one round.
                let old = n;
                let flying: Vec<_> = (0..coroutines).map(|i| span.faa(at(0, 64 + 16 * coroutines + i), 1)).collect();
                for one in flying {
                    assert_eq!(one.await, Ok(old));
                }
            }
            assert_eq!(since(&fabric, before), (EACH, EACH * coroutines, EACH * coroutines), "{coroutines} together");
            assert_eq!((endpoint.meter() - metered).traffic().doorbells, EACH);
            // Two nodes: one doorbell for each queue pair.
            let before = fabric.fabric.wire_counts();
            let flying: Vec<_> = (0..8).map(|i| span.read(at(i % 2, 8), 8)).collect();
            for one in flying {
                one.await.expect("a READ");
            }
            assert_eq!(since(&fabric, before), (2, 8, 8));
        });
    }
}

#[test]
fn a_full_send_queue_waits() {
    if !device_or_skip() {
        return;
    }
    let fabric = Local::new(1, 1 << 20).expect("memory nodes");
    with(&fabric, async |endpoint| {
        let span = endpoint.span(OpKind::Other);
        // Ten times what a send queue holds, in batches of three sizes; one is larger than the queue.
        let flying: Vec<_> = (0..900)
            .map(|i| {
                let mut batch = span.batch();
                let verbs = [1, 3, 2000][usize::from(i % 3 > 0) + usize::from(i == 450)];
                for _ in 0..verbs {
                    batch.faa(at(0, 8), 1);
                }
                (verbs, batch.post())
            })
            .collect();
        let mut sum = 0;
        for (verbs, one) in flying {
            one.await.expect("a batch that waited");
            sum += verbs;
        }
        assert_eq!(span.faa(at(0, 8), 0).await, Ok(sum));
    });
}

#[test]
fn large_reads_and_writes_are_cut() {
    if !device_or_skip() {
        return;
    }
    const LEN: usize = (9 << 20) + 8;
    let fabric = Local::new(1, 16 << 20).expect("memory nodes");
    with(&fabric, async |endpoint| {
        endpoint.set_deadline(std::time::Duration::from_secs(60));
        let span = endpoint.span(OpKind::Other);
        let mut buf = endpoint.buf(LEN);
        buf.words_mut().iter_mut().enumerate().for_each(|(i, word)| *word = i as u64 ^ 0x5555);
        span.write(at(0, 8), buf).await.expect("connected");
        // Requests of 16 KiB; a send queue holds 256 of them.
        for (len, counts) in [((1 << 20) + 8, (1, 65, 1)), (LEN, (3, 577, 3))] {
            let before = fabric.fabric.wire_counts();
            let seen = span.read(at(0, 8), len).await.expect("a READ");
            assert!(seen.words().iter().enumerate().all(|(i, word)| *word == i as u64 ^ 0x5555));
            assert_eq!(since(&fabric, before), counts);
        }
    });
}
