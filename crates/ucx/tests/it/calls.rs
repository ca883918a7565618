//! Calls over UCX. What every fabric promises about them is in the conformance suite.

use crate::nodes::{count, have_ucx};
use farindex_fabric::call::{CallHandler, CallTable, ECHO, gather_request, scatter_request};
use farindex_fabric::{Endpoint, Executor, Fabric, FabricError, NodeId, OpKind, RemotePtr};
use farindex_remote::client::ControlSettings;
use farindex_remote::{Cluster, Metrics, Node, NodeMemory, NodeSettings, Tokens};
use farindex_ucx::{UcxFabric, UcxPlane, UcxSettings};
use std::sync::Arc;
use std::time::Duration;

const NODE: NodeId = NodeId::new(0);

/// A memory node with this handler, if any.
fn serve(number: u16, handler: Option<Arc<CallHandler>>, tokens: Tokens) -> (Node, Metrics) {
    let memory = NodeMemory::anonymous(NodeId::new(number), 1 << 16).unwrap();
    let memory = match handler {
        Some(handler) => memory.with_call_handler(handler),
        None => memory,
    };
    let (memory, metrics) = (Arc::new(memory), Metrics::new());
    let settings = UcxSettings { loopback: true, ..UcxSettings::default() };
    let plane = UcxPlane::start(Arc::clone(&memory), settings, &metrics).unwrap();
    let listen = NodeSettings::new("127.0.0.1:0".parse().unwrap(), tokens);
    (Node::start(memory, plane, listen, metrics.clone()).unwrap(), metrics)
}

fn reach(nodes: &[&Node], settings: ControlSettings) -> UcxFabric {
    let addrs: Vec<String> = nodes.iter().map(|node| node.addr().to_string()).collect();
    UcxFabric::new(Cluster::connect(&addrs, settings).unwrap()).unwrap()
}

fn connect(fabric: &dyn Fabric) -> Endpoint {
    fabric.connect(&fabric.new_identity()).unwrap()
}

fn call(endpoint: &Endpoint, words: &[u64]) -> Result<Vec<u8>, FabricError> {
    Executor::new()
        .block_on(endpoint, async { endpoint.span(OpKind::Other).call(NODE, endpoint.buf_from_words(words)).await })
}

#[test]
fn a_call_is_one_message_and_one_answer() {
    if !have_ucx() {
        return;
    }
    let (node, metrics) = serve(0, Some(CallTable::builtin().into_handler()), Tokens::open());
    let fabric = reach(&[&node], ControlSettings::default());
    let endpoint = connect(&fabric);
    assert_eq!(call(&endpoint, &[ECHO, 7]), Ok(7_u64.to_le_bytes().to_vec()));
    assert!(matches!(call(&endpoint, &[99]), Err(FabricError::CallRefused { .. })));
    let metrics = [metrics];
    let counts = ["requests", "replies", "calls", "reads"].map(|name| count(&metrics, name));
    assert_eq!((fabric.messages(), counts), (2, [2, 2, 2, 0]));
}

#[test]
fn a_cluster_has_calls_only_if_each_node_answers_them() {
    if !have_ucx() {
        return;
    }
    let (with, _) = serve(0, Some(CallTable::builtin().into_handler()), Tokens::open());
    let (without, metrics) = serve(1, None, Tokens::open());
    let fabric = reach(&[&with, &without], ControlSettings::default());
    assert!(!fabric.capabilities().call && connect(&fabric).capabilities() == fabric.capabilities());
    let unsupported = call(&connect(&fabric), &[ECHO]);
    assert!(matches!(unsupported, Err(FabricError::Unsupported { verb: "CALL", .. })), "{unsupported:?}");
    assert_eq!((fabric.messages(), count(&[metrics], "requests")), (0, 0), "it was not sent");
    assert!(reach(&[&with], ControlSettings::default()).capabilities().call);
}

#[test]
fn a_handler_that_fails_or_takes_too_long_costs_its_call_alone() {
    if !have_ucx() {
        return;
    }
    let table = CallTable::builtin()
        .with(7, |_, _| panic!("planted: this handler panics"))
        .with(8, |_, _| {
            std::thread::sleep(Duration::from_millis(300));
            Ok(Vec::new())
        })
        .with(9, |_, _| Ok(vec![0; 1 << 20]));
    let (node, _) = serve(0, Some(table.into_handler()), Tokens::open());
    let fabric = reach(&[&node], ControlSettings::default());
    let endpoint = connect(&fabric);
    for (number, why) in [(7, "panicked"), (9, "a reply of 1048576 bytes")] {
        let error = call(&endpoint, &[number]).expect_err(why);
        assert!(matches!(error, FabricError::CallRefused { node: NODE, .. }), "{error:?}");
        assert!(error.to_string().contains(why), "{error}");
        assert_eq!(call(&endpoint, &[ECHO]), Ok(Vec::new()));
    }
    endpoint.set_deadline(Duration::from_millis(50));
    assert!(matches!(call(&endpoint, &[8]), Err(FabricError::Deadline { .. })));
    // The late reply is recognised and dropped.
    endpoint.set_deadline(Duration::from_secs(10));
    assert_eq!(call(&endpoint, &[ECHO, 1]), Ok(1_u64.to_le_bytes().to_vec()));
}

#[test]
fn a_token_for_reading_may_call_and_a_revoked_client_may_not() {
    if !have_ucx() {
        return;
    }
    let lines = ["read-write 0123456789abcdef-rw", "read-only 0123456789abcdef-ro"];
    let tokens = Tokens::parse(&lines.join("\n")).unwrap();
    let (node, _) = serve(0, Some(CallTable::builtin().into_handler()), tokens);
    let open = |line: &str| {
        let token = Tokens::parse(line).unwrap().first();
        reach(&[&node], ControlSettings { token, ..ControlSettings::default() })
    };
    let [writer, reader] = lines.map(open);
    let victim = reader.new_identity();
    let (writing, reading) = (connect(&writer), reader.connect(&victim).unwrap());
    let word = RemotePtr::new(NODE, 64);
    let executor = Executor::new();
    let span = writing.span(OpKind::Other);
    assert_eq!(executor.block_on(&writing, span.faa(word, 7)), Ok(0));
    let gather = gather_request(&[(64, 8)]);
    assert_eq!(call(&reading, &gather), Ok(7_u64.to_le_bytes().to_vec()));
    // A client that may not WRITE may not let a handler store either.
    let store = scatter_request(&[(64, &[8])]);
    let refused = call(&reading, &store);
    assert!(matches!(&refused, Err(FabricError::CallRefused { .. })), "{refused:?}");
    assert_eq!(call(&reading, &gather), Ok(7_u64.to_le_bytes().to_vec()));
    assert_eq!(call(&writing, &store), Ok(vec![]));
    assert_eq!(call(&writing, &scatter_request(&[(64, &[7])])), Ok(vec![]));
    assert_eq!(executor.block_on(&writing, span.revoke(NODE, victim)), Ok(()));
    assert_eq!(call(&reading, &gather), Err(FabricError::Revoked));
    assert_eq!(call(&writing, &gather), Ok(7_u64.to_le_bytes().to_vec()));
}
