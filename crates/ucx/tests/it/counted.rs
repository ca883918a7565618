//! Counted, not claimed: messages at UCX, requests at the memory node, batches by the meter.

use crate::nodes::{count, have_ucx, serve};
use farindex_fabric::{Endpoint, Executor, Fabric, FabricError, NodeId, OpKind, RemotePtr};
use farindex_remote::client::ControlSettings;
use farindex_remote::{Cluster, Metrics, Node, NodeMemory, NodeSettings, Tokens};
use farindex_ucx::{Poll, UcxFabric, UcxPlane, UcxSettings};
use std::sync::Arc;
use std::time::Duration;

fn at(node: u16, offset: u64) -> RemotePtr {
    RemotePtr::new(NodeId::new(node), offset)
}

fn connect(fabric: &dyn Fabric) -> Endpoint {
    fabric.connect(&fabric.new_identity()).unwrap()
}

#[test]
fn a_batch_is_one_message() {
    if !have_ucx() {
        return;
    }
    let served = serve(2, 1 << 16, Poll::Adaptive);
    let endpoint = connect(&*served.fabric);
    let counts = || (served.fabric.messages(), count(&served.metrics, "requests"), count(&served.metrics, "replies"));
    Executor::new().block_on(&endpoint, async {
        let span = endpoint.span(OpKind::Other);
        let mut batch = span.batch();
        batch.write_words(at(0, 64), &[1, 2, 3]);
        let read = batch.read(at(0, 64), 24);
        let faa = batch.faa(at(0, 64), 5);
        let mut done = batch.post().await.unwrap();
        assert_eq!((done.buf(read).words(), done.old(faa)), (&[1, 2, 3][..], 1));
        assert_eq!(counts(), (1, 1, 1), "three verbs, one message");

        // Two nodes: one message for each.
        let mut batch = span.batch();
        batch.faa(at(0, 8), 1);
        batch.faa(at(1, 8), 1);
        batch.faa(at(0, 16), 1);
        drop(batch.post().await.unwrap());
        assert_eq!(counts(), (3, 3, 3));
        // What is refused beforehand is never sent.
        assert!(matches!(span.faa(at(0, 1 << 16), 1).await, Err(FabricError::OutOfBounds { .. })));
        assert_eq!(counts(), (3, 3, 3));
        // Waits as the meter counts them are answers as the wire carries them, on one node.
        let before = (counts(), span.cost());
        for i in 0..50 {
            span.cas(at(0, 8), i, i + 1).await.unwrap();
        }
        let after = (counts(), span.cost());
        assert_eq!(after.0.2 - before.0.2, after.1.round_trips - before.1.round_trips);
        assert_eq!(after.0.0 - before.0.0, after.1.batches - before.1.batches);
    });
    for (name, counted) in [("writes", 1), ("reads", 1), ("faa", 4), ("cas", 50), ("bytes_read", 24)] {
        assert_eq!(count(&served.metrics, name), counted, "{name}");
    }
}

/// Coroutines that each wait for one batch after the other: how many messages carry them?
#[test]
fn what_coroutines_post_together_is_one_message() {
    if !have_ucx() {
        return;
    }
    const EACH: u64 = 20;
    let served = serve(2, 1 << 16, Poll::Adaptive);
    let counts = || {
        let [requests, batches, replies] = ["requests", "batches", "replies"].map(|name| count(&served.metrics, name));
        (served.fabric.messages(), requests, batches, replies)
    };
    for (coroutines, messages) in [(1, EACH), (16, EACH), (32, EACH), (64, 2 * EACH), (256, 2 * EACH)] {
        let endpoint = connect(&*served.fabric);
        let executor = Executor::new();
        // The connection is made by the first batch: it is not counted.
        executor.block_on(&endpoint, async { drop(endpoint.span(OpKind::Other).read(at(0, 0), 8).await.unwrap()) });
        let (before, metered) = (counts(), endpoint.meter());
        let work = |i: u64| {
            let endpoint = endpoint.clone();
            executor.spawn(async move {
                for n in 0..EACH {
                    let span = endpoint.span(OpKind::Other);
                    let mut batch = span.batch();
                    let faa = batch.faa(at(0, 64 + 16 * i), 1);
                    let read = batch.read(at(0, 64 + 16 * i), 16);
                    let mut done = batch.post().await.unwrap();
                    assert_eq!((done.old(faa) % EACH, done.buf(read).words()[0] % EACH), (n, (n + 1) % EACH));
                }
            })
        };
        let tasks: Vec<_> = (0..coroutines).map(work).collect();
        executor.block_on(&endpoint, async {
            for task in tasks {
                task.await;
            }
        });
        let (after, traffic) = (counts(), (endpoint.meter() - metered).traffic());
        println!("{coroutines} coroutines, {EACH} batches each: {traffic:?}");
        assert_eq!(after.2 - before.2, coroutines * EACH, "batches");
        // The first round is carried in full messages. How the answers to several messages come in decides how the
        // next rounds are: together, or message by message.
        let sent = after.0 - before.0;
        let most = if coroutines > 64 { 4 * messages } else { 2 * messages };
        assert!((messages..=most).contains(&sent), "{sent} messages for {coroutines} coroutines");
        if coroutines <= 32 {
            assert_eq!(sent, messages, "one message, one answer");
            assert_eq!(after.3 - before.3, messages);
        }
        assert_eq!((after.1 - before.1, traffic.messages), (sent, sent));
        assert_eq!(traffic.answers, after.3 - before.3);
    }
    // Two nodes: one message for each.
    let endpoint = connect(&*served.fabric);
    Executor::new().block_on(&endpoint, async {
        let span = endpoint.span(OpKind::Other);
        drop((span.read(at(0, 0), 8).await.unwrap(), span.read(at(1, 0), 8).await.unwrap()));
        let before = counts();
        let flying: Vec<_> = (0..10).map(|i| span.faa(at(i % 2, 8), 1)).collect();
        for one in flying {
            one.await.unwrap();
        }
        let after = counts();
        assert_eq!((after.0 - before.0, after.2 - before.2), (2, 10));
    });
}

/// A message that a large batch would make too long is sent before it.
#[test]
fn large_batches_leave_by_themselves_and_in_their_turn() {
    if !have_ucx() {
        return;
    }
    let served = serve(1, 8 << 20, Poll::Adaptive);
    let endpoint = connect(&*served.fabric);
    Executor::new().block_on(&endpoint, async {
        let span = endpoint.span(OpKind::Other);
        drop(span.read(at(0, 0), 8).await.unwrap());
        let before = served.fabric.messages();
        // Small ones before and behind large WRITEs and READs: three messages of small ones, and the large ones.
        let (one, two) = (span.faa(at(0, 8), 1), span.faa(at(0, 8), 1));
        let write = span.write(at(0, 4096), endpoint.buf_from_words(&vec![7; 128 << 10]));
        let three = span.faa(at(0, 8), 1);
        let read = span.read(at(0, 4096), 1 << 20);
        let four = span.faa(at(0, 8), 1);
        assert_eq!((one.await, two.await, three.await, four.await), (Ok(0), Ok(1), Ok(2), Ok(3)));
        write.await.unwrap();
        let seen = read.await.unwrap();
        assert!(seen.words() == vec![7; 128 << 10]);
        assert_eq!(served.fabric.messages() - before, 5);
    });
}

#[test]
fn large_values_travel_whole() {
    if !have_ucx() {
        return;
    }
    let served = serve(1, 160 << 20, Poll::Adaptive);
    let endpoint = connect(&*served.fabric);
    // Batches of 60 MiB: on a loaded machine they take longer than the usual deadline, which is not tested here.
    endpoint.set_deadline(Duration::from_secs(60));
    Executor::new().block_on(&endpoint, async {
        let span = endpoint.span(OpKind::Other);
        for len in [8usize, 4096, 8 << 10, 64 << 10, 1 << 20, 16 << 20, 60 << 20] {
            let words: Vec<u64> = (0..len as u64 / 8).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
            span.write(at(0, 4096), endpoint.buf_from_words(&words)).await.unwrap();
            let mut batch = span.batch();
            let read = batch.read(at(0, 4096), len);
            let first = batch.faa(at(0, 4096), 1);
            let mut done = batch.post().await.unwrap();
            assert!(done.buf(read).words() == words && done.old(first) == words[0], "{len} bytes");
        }
        let refused = span.read(at(0, 0), 65 << 20).await.map(drop).unwrap_err();
        assert!(refused.to_string().contains("at most"), "{refused}");
    });
}

#[test]
fn reading_is_all_that_a_token_for_reading_allows() {
    if !have_ucx() {
        return;
    }
    let memory = Arc::new(NodeMemory::anonymous(NodeId::new(0), 1 << 16).unwrap());
    let metrics = Metrics::new();
    let settings = UcxSettings { loopback: true, ..UcxSettings::default() };
    let plane = UcxPlane::start(Arc::clone(&memory), settings, &metrics).unwrap();
    let tokens = Tokens::parse("read-write 0123456789abcdef-rw\nread-only 0123456789abcdef-ro\n").unwrap();
    let listen = NodeSettings::new("127.0.0.1:0".parse().unwrap(), tokens);
    let node = Node::start(memory, plane, listen, metrics).unwrap();
    let open = |line: &str| {
        let token = Tokens::parse(line).unwrap().first();
        let settings = ControlSettings { token, ..ControlSettings::default() };
        UcxFabric::new(Cluster::connect(&[node.addr().to_string()], settings).unwrap()).unwrap()
    };
    let (writer, reader) = (open("read-write 0123456789abcdef-rw"), open("read-only 0123456789abcdef-ro"));
    let (writing, reading) = (connect(&writer), connect(&reader));
    Executor::new().block_on(&writing, async { writing.span(OpKind::Other).faa(at(0, 8), 7).await.unwrap() });
    Executor::new().block_on(&reading, async {
        let span = reading.span(OpKind::Other);
        assert_eq!(span.read(at(0, 8), 8).await.unwrap().words(), [7]);
        let refused = Err(FabricError::ReadOnly(NodeId::new(0)));
        assert_eq!(span.faa(at(0, 8), 1).await, refused);
        assert_eq!(span.revoke(NodeId::new(0), writer.new_identity()).await, refused.map(drop));
        assert_eq!(span.read(at(0, 8), 8).await.unwrap().words(), [7]);
    });
}
