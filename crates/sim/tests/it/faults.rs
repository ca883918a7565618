//! Freezes, failing nodes, crashed clients, and the reports of runs that do not finish.

use crate::common::{config, on, shared, sim, word};
use farindex_fabric::{Executor, Fabric, FabricError, NodeId, OpKind};
use farindex_sim::{Config, CrashOutcome, Outcome, Sim, Swarm};
use std::time::Duration;

fn calm() -> Sim {
    Sim::new(1, Config { swarm: Some(Swarm::calm()), log: 100, ..config() }).unwrap()
}

#[test]
fn frozen_client_posts_nothing_until_it_is_resumed() {
    let sim = calm();
    let (frozen, other) = (sim.client(), sim.client());
    let (one, two) = (frozen.connect(), other.connect());
    sim.spawn(&frozen, async move {
        let span = one.span(OpKind::Other);
        for _ in 0..100 {
            span.faa(word(0), 1).await.unwrap();
        }
    });
    let handle = frozen.clone();
    let counted = sim.spawn(&other, async move {
        let span = two.span(OpKind::Other);
        two.sleep(Duration::from_micros(31)).await;
        handle.freeze(Duration::from_secs(20));
        two.sleep(Duration::from_micros(10)).await;
        let before = span.read(word(0), 8).await.unwrap().words()[0];
        two.sleep(Duration::from_secs(19)).await;
        let after = span.read(word(0), 8).await.unwrap().words()[0];
        (before, after)
    });
    sim.run().assert_done();
    let (before, after) = counted.take().unwrap();
    assert!(before == after && (10..20).contains(&before), "{before} {after}");
    assert_eq!(sim.peek(word(0)), Some(100));
    assert!(sim.now() > Duration::from_secs(20));
}

#[test]
fn failed_node_is_unreachable_until_it_is_restored() {
    for forgets in [false, true] {
        let sim = calm();
        let client = sim.client();
        let (endpoint, control) = (client.connect(), sim.node_control());
        let seen = sim.spawn(&client, async move {
            let span = endpoint.span(OpKind::Other);
            span.write(on(1, 0), endpoint.buf_from_words(&[7])).await.unwrap();
            control.fail(NodeId::new(1), false, forgets);
            let error = span.read(on(1, 0), 8).await.err();
            let other = span.read(on(0, 0), 8).await.is_ok();
            control.restore(NodeId::new(1));
            (error, other, span.read(on(1, 0), 8).await.unwrap().words()[0])
        });
        sim.run().assert_done();
        let (error, other, value) = seen.take().unwrap();
        assert!(matches!(error, Some(FabricError::Unreachable { .. })), "{error:?}");
        assert!(other);
        assert_eq!(value, if forgets { 0 } else { 7 });
    }
}

#[test]
fn deadlock_report_names_the_waiting_client() {
    let sim = calm();
    let client = sim.client();
    let endpoint = client.connect();
    sim.spawn(&client, async move {
        let span = endpoint.span(OpKind::Other);
        span.cas(word(3), 0, 1).await.unwrap();
        std::future::pending::<()>().await;
    });
    let Outcome::Deadlock(report) = sim.run() else {
        panic!("not a deadlock");
    };
    assert_eq!(report.clients.len(), 1);
    assert_eq!(report.clients[0].last, Some(("CAS", word(3))));
    assert_eq!(report.clients[0].open_tasks, 1);
    assert!(report.to_string().contains("CAS 0:0x58 0x0 -> 0x1, found 0x0: stored"), "{report}");
}

#[test]
fn livelock_is_reported_for_endless_retries_and_for_spinning_without_verbs() {
    let sim = Sim::new(3, Config { max_steps: 10_000, ..config() }).unwrap();
    let (crashed, client) = (sim.client(), sim.client());
    let (one, two) = (crashed.connect(), client.connect());
    crashed.crash_at(1, CrashOutcome::Landed);
    sim.spawn(&crashed, async move {
        let span = one.span(OpKind::Other);
        span.cas(word(0), 0, 1).await.unwrap();
        span.cas(word(0), 1, 0).await.unwrap();
    });
    sim.spawn(&client, async move {
        let span = two.span(OpKind::Other);
        two.sleep(Duration::from_secs(1)).await;
        while span.cas(word(0), 0, 1).await.unwrap() != 0 {}
    });
    assert!(matches!(sim.run(), Outcome::Livelock(_)));

    let sim = Sim::new(3, Config { max_steps: 10_000, ..config() }).unwrap();
    sim.spawn(&sim.client(), async move {
        std::future::poll_fn(|cx| {
            cx.waker().wake_by_ref();
            std::task::Poll::<()>::Pending
        })
        .await;
    });
    assert!(matches!(sim.run(), Outcome::Livelock(_)));
}

#[test]
fn timeout_is_reported_at_the_limit_of_virtual_time() {
    let sim = Sim::new(3, Config { max_time: Duration::from_secs(9), ..config() }).unwrap();
    let client = sim.client();
    let endpoint = client.connect();
    sim.spawn(&client, async move {
        loop {
            endpoint.sleep(Duration::from_secs(1)).await;
        }
    });
    assert!(matches!(sim.run(), Outcome::Timeout(_)));
}

#[test]
fn fabric_connects_only_on_its_thread_while_its_simulation_exists() {
    let fabric = calm().fabric();
    assert!(matches!(fabric.connect(&fabric.new_identity()), Err(FabricError::Settings(_))));
    let sim = calm();
    let fabric = sim.fabric();
    let elsewhere = std::thread::spawn(move || fabric.connect(&fabric.new_identity()).is_err());
    assert!(elsewhere.join().unwrap());
}

#[test]
fn connection_made_inside_a_coroutine_ends_with_its_client() {
    let sim = calm();
    let (client, fabric) = (sim.client(), sim.fabric());
    client.crash_at(2, CrashOutcome::Lost);
    sim.spawn(&client, async move {
        let endpoint = fabric.connect(&fabric.new_identity()).unwrap();
        let span = endpoint.span(OpKind::Other);
        for i in 0..9 {
            span.write(word(i), endpoint.buf_from_words(&[1])).await.unwrap();
        }
    });
    sim.run().assert_done();
    sim.settle();
    assert!(client.has_crashed());
    assert_eq!((sim.peek(word(0)), sim.peek(word(1))), (Some(1), Some(0)));
}

#[test]
fn crashed_client_is_not_polled_when_it_is_woken() {
    let sim = calm();
    let client = sim.client();
    let endpoint = client.connect();
    let (waker, woken) = shared(None::<std::task::Waker>);
    let (ran, seen) = shared(0);
    sim.spawn(&client, async move {
        std::future::poll_fn(|cx| {
            *waker.borrow_mut() = Some(cx.waker().clone());
            *ran.borrow_mut() += 1;
            std::task::Poll::<()>::Pending
        })
        .await;
    });
    assert!(matches!(sim.run(), Outcome::Deadlock(_)));
    client.crash(CrashOutcome::Landed);
    if let Some(waker) = woken.borrow_mut().take() {
        waker.wake();
    }
    // A verb posted through its endpoint has no effect either.
    let span = endpoint.span(OpKind::Other);
    let mut batch = span.batch();
    batch.write_words(word(0), &[1]);
    batch.post_detached();
    sim.run().assert_done();
    sim.run_for(Duration::from_secs(1)).assert_done();
    assert_eq!((*seen.borrow(), sim.peek(word(0))), (1, Some(0)));
}

#[test]
fn harness_runs_under_the_simulation_and_under_another_executor() {
    let sim = sim(5);
    let endpoint = sim.harness().connect();
    let again = endpoint.clone();
    let old = sim.block_on(async move {
        let span = again.span(OpKind::Other);
        span.faa(word(0), 5).await.unwrap();
        span.faa(word(0), 5).await.unwrap()
    });
    assert_eq!(old.ok(), Some(5));
    let old = Executor::new().block_on(&sim, async {
        let span = endpoint.span(OpKind::Other);
        span.faa(word(0), 5).await.unwrap()
    });
    assert_eq!(old, 10);
}

#[test]
fn invalid_input_is_an_error_value() {
    let sim = calm();
    let client = sim.client();
    let endpoint = client.connect();
    let errors = sim.spawn(&client, async move {
        let span = endpoint.span(OpKind::Other);
        (
            span.read(on(7, 0), 8).await.err(),
            span.read(word(0), 1 << 20).await.err(),
            span.read(word(0).add(4), 8).await.err(),
            span.call(NodeId::new(0), endpoint.buf(8)).await.err(),
        )
    });
    sim.run().assert_done();
    let (node, bounds, aligned, call) = errors.take().unwrap();
    assert!(matches!(node, Some(FabricError::NoSuchNode(_))));
    assert!(matches!(bounds, Some(FabricError::OutOfBounds { .. })));
    assert!(matches!(aligned, Some(FabricError::Misaligned { .. })));
    assert!(matches!(call, Some(FabricError::Unsupported { .. })));
    assert!(Sim::new(1, Config { nodes: 0, ..config() }).is_err());
    assert!(Sim::new(1, Config { node_len: 12, ..config() }).is_err());
}
