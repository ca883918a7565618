//! Once warm, a batch allocates nothing: neither where it is written and read, nor where it is carried out.
//!
//! Allocations are counted for the whole process, so both tests take turns, and each counts several times, for short times: one
//! of them is undisturbed by what other threads do now and then (pings of the control channel), while an allocation for each batch
//! or message would show in all. More batches may be on their way than ever before, which takes more buffers: so all attempts have
//! the same connection.

use farindex_fabric::buf::BufPool;
use farindex_fabric::words::Words;
use farindex_fabric::{Chain, Endpoint, Executor, Fabric, NodeId, OpKind, RemotePtr, Verb, VerbKind};
use farindex_remote::client::ControlSettings;
use farindex_remote::wire::Reader;
use farindex_remote::{Cluster, Metrics, Node, NodeMemory, NodeSettings, Rights, Tokens};
use farindex_ucx::chain::{Answer, check, encode, fill, finish, serve};
use farindex_ucx::{Poll, UcxFabric, UcxPlane, UcxSettings};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

static TURN: Mutex<()> = Mutex::new(());
const ATTEMPTS: usize = 5;
const BATCHES: u64 = 64;
const NODE: NodeId = NodeId::new(0);
const OTHER: NodeId = NodeId::new(1);

fn at(word: u64) -> RemotePtr {
    RemotePtr::new(NODE, word * 8)
}

/// Allocations and reallocations since then.
fn since(region: &Region<'_, System>) -> usize {
    let change = region.change();
    change.allocations + change.reallocations
}

#[test]
fn batches_are_written_carried_out_and_read_without_allocation() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let memory: Vec<AtomicU64> = (0..1024).map(AtomicU64::new).collect();
    let buffers = Rc::new(BufPool::default());
    let verb = |word, kind| Verb { ptr: at(word), fence: false, kind };
    let chain = |i: u64| -> Chain {
        vec![
            verb(i, VerbKind::Read(buffers.take(88))),
            verb(i, VerbKind::Read(buffers.take(8))),
            verb(i, VerbKind::Write(buffers.take(64))),
            verb(i, VerbKind::Faa { add: 1, old: 0 }),
            verb(i, VerbKind::Cas { expect: i, new: i, old: 0 }),
        ]
    };
    let mut chains: Vec<Chain> = (0..BATCHES).map(chain).collect();
    let (mut request, mut reply, mut refused) = (Vec::new(), Vec::new(), Vec::new());
    let mut message = || {
        request.clear();
        for (i, chain) in chains.iter().enumerate() {
            encode(chain, NODE, 7, i as u64, &mut request);
        }
        finish(&mut request, chains.len() as u32);
        reply.clear();
        refused.clear();
        let rights = Rights::ReadWrite;
        check(&request, Words(&memory), rights, &mut refused).expect("sense");
        let calls = |_: &[u8]| Ok(Vec::new());
        let served = serve(&request, Words(&memory), &calls, &refused, &mut reply, &mut |_| true).expect("sense");
        let mut rest = Reader::new(&reply);
        let mut answers = 0;
        while let Some(answer) = Answer::take(&mut rest).expect("an answer") {
            let chain = chains.get_mut(answer.sequence as usize).expect("a batch");
            fill(chain, NODE, answer).expect("results");
            answers += 1;
        }
        assert_eq!((served.batches, answers), (BATCHES, BATCHES));
    };
    message();
    let fewest = (0..ATTEMPTS).map(|_| {
        let region = Region::new(ALLOCATOR);
        (0..20).for_each(|_| message());
        since(&region)
    });
    assert_eq!(fewest.min(), Some(0));
}

/// A memory node of this process.
fn serve_node(node: NodeId) -> Node {
    let memory = Arc::new(NodeMemory::anonymous(node, 1 << 16).expect("memory"));
    let metrics = Metrics::new();
    let settings = UcxSettings { poll: Poll::Adaptive, loopback: true, report: None };
    let plane = UcxPlane::start(Arc::clone(&memory), settings, &metrics).expect("UCX");
    let listen = NodeSettings::new("127.0.0.1:0".parse().expect("an address"), Tokens::open());
    Node::start(memory, plane, listen, metrics).expect("a node")
}

/// Clients and memory nodes together: coroutines whose batches travel together, and a lone one; to one node, and to two.
#[test]
fn batches_travel_over_ucx_without_allocation() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Err(why) = farindex_ucx::available() {
        assert!(!std::env::var("FARINDEX_REQUIRE").is_ok_and(|what| what.contains("ucx")), "{why}");
        eprintln!("SKIPPED: {why}");
        return;
    }
    let nodes = [NODE, OTHER].map(serve_node);
    let addresses = nodes.each_ref().map(|node| node.addr().to_string());
    for served in [&addresses[..1], &addresses[..]] {
        let cluster = Cluster::connect(served, ControlSettings::default()).expect("a node");
        let fabric = UcxFabric::new(cluster).expect("UCX");
        for coroutines in [1, BATCHES, 4 * BATCHES] {
            let endpoint = fabric.connect(&fabric.new_identity()).expect("a connection");
            let fewest = (0..ATTEMPTS).map(|_| rounds(&endpoint, coroutines, served.len() > 1)).min();
            assert_eq!(fewest, Some(0), "{coroutines} coroutines, {} nodes", served.len());
        }
    }
}

/// Coroutines go through rounds of two batches, and after some rounds to get warm allocations are counted: the fewest of any
/// [`COUNTED`] rounds. The first batch of a round goes to both nodes, if that is asked for.
fn rounds(endpoint: &Endpoint, coroutines: u64, to_both: bool) -> usize {
    const WARM: u64 = 40;
    const COUNTED: u64 = 8;
    const ROUNDS: u64 = WARM + 5 * COUNTED;
    let executor = Executor::new();
    let fewest = Rc::new(Cell::new(usize::MAX));
    let work = |i: u64| {
        let (endpoint, fewest) = (endpoint.clone(), Rc::clone(&fewest));
        executor.spawn(async move {
            let mut region = Region::new(ALLOCATOR);
            // The others go on while the first one counts.
            for round in 1..=ROUNDS + 20 * u64::from(i > 0) {
                let span = endpoint.span(OpKind::Other);
                let mut batch = span.batch();
                let ticket = batch.read(at(i), 64);
                batch.faa(at(1024 + i), 1);
                if to_both {
                    batch.faa(RemotePtr::new(OTHER, i * 8), 1);
                }
                let mut done = batch.post().await.expect("a batch");
                drop(done.buf(ticket));
                drop(done);
                span.read(at(i), 128).await.expect("a READ");
                if i == 0 && round >= WARM && round % COUNTED == 0 {
                    if round > WARM {
                        fewest.set(fewest.get().min(since(&region)));
                    }
                    region.reset();
                }
            }
        })
    };
    let tasks: Vec<_> = (0..coroutines).map(work).collect();
    executor.block_on(endpoint, async {
        for task in tasks {
            task.await;
        }
    });
    fewest.get()
}
