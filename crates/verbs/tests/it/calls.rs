//! Calls, which travel over the control channel. What every fabric promises about them is in the conformance suite.

use crate::nodes::{Local, Served, device_or_skip, reach};
use farindex_fabric::call::{CallTable, ECHO, MAX_CALL_LEN, gather_request};
use farindex_fabric::{Endpoint, Executor, Fabric, FabricError, NodeId, OpKind, RemotePtr};
use farindex_remote::NodeMemory;
use std::net::SocketAddr;
use std::time::Duration;

const NODE: NodeId = NodeId::new(0);

/// A memory node, with the handlers of this table.
fn served(table: Option<CallTable>) -> Local {
    let memory = NodeMemory::anonymous(NODE, 1 << 20).expect("memory");
    let memory = match table {
        Some(table) => memory.with_call_handler(table.into_handler()),
        None => memory,
    };
    let nodes = vec![Served::start(memory, SocketAddr::from(([127, 0, 0, 1], 0))).expect("a memory node")];
    let fabric = reach(&nodes).expect("a fabric");
    Local { fabric, nodes }
}

fn connect(fabric: &dyn Fabric) -> Endpoint {
    fabric.connect(&fabric.new_identity()).expect("a connection")
}

fn call(endpoint: &Endpoint, words: &[u64]) -> Result<Vec<u8>, FabricError> {
    Executor::new()
        .block_on(endpoint, async { endpoint.span(OpKind::Other).call(NODE, endpoint.buf_from_words(words)).await })
}

#[test]
fn a_node_without_a_handler_has_no_calls() {
    if !device_or_skip() {
        return;
    }
    let local = served(None);
    assert!(!local.capabilities().call);
    let unsupported = call(&connect(&local), &[ECHO]);
    assert!(matches!(unsupported, Err(FabricError::Unsupported { verb: "CALL", .. })), "{unsupported:?}");
}

#[test]
fn a_handler_sees_what_the_device_has_stored() {
    if !device_or_skip() {
        return;
    }
    let local = served(Some(CallTable::builtin()));
    let endpoint = connect(&local);
    Executor::new().block_on(&endpoint, async {
        let span = endpoint.span(OpKind::Other);
        let before = local.fabric.wire_counts();
        for n in 1..=100 {
            let mut batch = span.batch();
            batch.write_words(RemotePtr::new(NODE, 64), &[n, n + 1, n + 2]);
            let read = batch.read(RemotePtr::new(NODE, 64), 24);
            let mut done = batch.post().await.expect("a batch");
            assert_eq!(done.buf(read).words(), [n, n + 1, n + 2]);
            let request = endpoint.buf_from_words(&gather_request(&[(80, 8), (64, 8)]));
            let reply = span.call(NODE, request).await.expect("an answer");
            assert_eq!(reply, [(n + 2).to_le_bytes(), n.to_le_bytes()].concat());
        }
        let after = local.fabric.wire_counts();
        assert_eq!(after.doorbells - before.doorbells, 100, "calls ring no doorbell");
        assert_eq!(span.cost().calls, 100);
    });
}

#[test]
fn a_handler_that_fails_or_takes_too_long_costs_its_call_alone() {
    if !device_or_skip() {
        return;
    }
    let table = CallTable::builtin().with(7, |_, _| panic!("planted: this handler panics")).with(8, |_, _| {
        std::thread::sleep(Duration::from_secs(1));
        Ok(Vec::new())
    });
    let local = served(Some(table));
    let endpoint = connect(&local);
    let error = call(&endpoint, &[7]).expect_err("it panics");
    assert!(matches!(error, FabricError::CallRefused { node: NODE, .. }), "{error:?}");
    assert_eq!(call(&endpoint, &[ECHO, 5]), Ok(5_u64.to_le_bytes().to_vec()));
    endpoint.set_deadline(Duration::from_millis(100));
    assert!(matches!(call(&endpoint, &[8]), Err(FabricError::Deadline { .. })));
    endpoint.set_deadline(Duration::from_secs(10));
    assert_eq!(call(&endpoint, &[ECHO, 6]), Ok(6_u64.to_le_bytes().to_vec()));
}

#[test]
fn many_calls_at_once_are_answered_or_refused_one_by_one() {
    if !device_or_skip() {
        return;
    }
    let local = served(Some(CallTable::builtin()));
    let endpoint = connect(&local);
    Executor::new().block_on(&endpoint, async {
        let span = endpoint.span(OpKind::Other);
        let request = gather_request(&[(0, MAX_CALL_LEN as u64)]);
        let calls: Vec<_> = (0..200).map(|_| span.call(NODE, endpoint.buf_from_words(&request))).collect();
        let mut answered = 0;
        for one in calls {
            match one.await {
                Ok(reply) => {
                    assert_eq!(reply.len(), MAX_CALL_LEN);
                    answered += 1;
                }
                Err(FabricError::CallRefused { reason, .. }) => assert!(reason.contains("unread"), "{reason}"),
                Err(error) => panic!("{error}"),
            }
        }
        assert!(answered > 0, "none of 200 calls was answered");
        println!("{answered} of 200 calls were answered");
        // The connection stands.
        assert_eq!(span.faa(RemotePtr::new(NODE, 64), 1).await, Ok(0));
    });
}
