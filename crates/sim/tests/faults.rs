//! Freezes, vanishing nodes, and how a run that gets stuck says so.

mod common;

use common::{config, on, shared, sim, word};
use farindex_fabric::{Executor, Fabric, FabricError, NodeId, OpKind};
use farindex_sim::{Config, CrashOutcome, Outcome, Sim, Swarm};
use std::time::Duration;

fn calm() -> Sim {
    Sim::new(1, Config { swarm: Some(Swarm::calm()), log: 100, ..config() }).unwrap()
}

#[test]
fn a_frozen_client_does_nothing_until_it_is_thawed() {
    let sim = calm();
    let (cold, other) = (sim.client(), sim.client());
    let (one, two) = (cold.connect(), other.connect());
    sim.spawn(&cold, async move {
        let span = one.span(OpKind::Other);
        for _ in 0..100 {
            span.faa(word(0), 1).await.unwrap();
        }
    });
    let cold_too = cold.clone();
    let counted = sim.spawn(&other, async move {
        let span = two.span(OpKind::Other);
        two.sleep(Duration::from_micros(31)).await;
        cold_too.freeze(Duration::from_secs(20));
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
fn a_node_vanishes_and_comes_back() {
    for forgets in [false, true] {
        let sim = calm();
        let client = sim.client();
        let (endpoint, switches) = (client.connect(), sim.switches());
        let seen = sim.spawn(&client, async move {
            let span = endpoint.span(OpKind::Other);
            span.write(on(1, 0), endpoint.buf_from_words(&[7])).await.unwrap();
            switches.vanish(NodeId::new(1), false, forgets);
            let error = span.read(on(1, 0), 8).await.err();
            let other = span.read(on(0, 0), 8).await.is_ok();
            switches.restore(NodeId::new(1));
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
fn a_deadlock_names_who_waits() {
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
    assert_eq!(report.positions.len(), 1);
    assert_eq!(report.positions[0].last, Some(("CAS", word(3))));
    assert_eq!(report.positions[0].open_tasks, 1);
    assert!(report.to_string().contains("CAS 0:0x58 0x0 -> 0x1, found 0x0: stored"), "{report}");
}

#[test]
fn endless_retry_is_a_livelock_and_spinning_without_verbs_too() {
    let sim = Sim::new(3, Config { max_steps: 10_000, ..config() }).unwrap();
    let (dead, client) = (sim.client(), sim.client());
    let (one, two) = (dead.connect(), client.connect());
    dead.crash_at(1, CrashOutcome::Landed);
    sim.spawn(&dead, async move {
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
fn time_can_run_out() {
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
fn the_fabric_belongs_to_its_thread_and_its_simulation() {
    let fabric = calm().fabric();
    assert!(matches!(fabric.connect(&fabric.new_identity()), Err(FabricError::Settings(_))));
    let sim = calm();
    let fabric = sim.fabric();
    let elsewhere = std::thread::spawn(move || fabric.connect(&fabric.new_identity()).is_err());
    assert!(elsewhere.join().unwrap());
}

#[test]
fn connections_made_inside_a_coroutine_die_with_its_client() {
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
fn the_dead_do_nothing_although_somebody_wakes_them() {
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
    // Nor does what is called on its behalf.
    let span = endpoint.span(OpKind::Other);
    let mut batch = span.batch();
    batch.write_words(word(0), &[1]);
    batch.post_detached();
    sim.run().assert_done();
    sim.run_for(Duration::from_secs(1)).assert_done();
    assert_eq!((*seen.borrow(), sim.peek(word(0))), (1, Some(0)));
}

#[test]
fn the_harness_sets_up_and_another_executor_can_drive() {
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
fn errors_of_input_are_values() {
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
