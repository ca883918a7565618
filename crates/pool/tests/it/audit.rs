//! The audit: what it reports, and what it must not report.

use crate::common::{CHUNK, NODE, Rig};
use farindex_fabric::OpKind;
use farindex_pool::audit::Audit;

#[test]
fn audit_reports_every_inconsistency_and_no_false_one() {
    let rig = Rig::new(8);
    let worker = rig.join();
    let works = worker.session();
    let kept = worker.alloc(&works, 500).expect("fits");
    let lost = worker.alloc(&works, 500).expect("fits");
    let table = worker.alloc(&works, 2 * CHUNK).expect("fits");
    let checker = rig.join();
    let session = checker.session();
    let span = session.span(OpKind::Other);
    let walk = |audit: &mut Audit| {
        audit.reach(kept, 500, "a block");
        audit.reach(table, 2 * CHUNK, "the table");
    };
    let settle = |audit: Audit| checker.run(audit.settle(&session, &span)).expect("settled");
    let begin = || checker.run(Audit::begin(&session, &span)).expect("begun");
    let undisturbed = |audit: &Audit| checker.run(audit.undisturbed(&session, &span)).expect("asked");

    // While the worker is registered, nothing is lost; nor if it leaves in between.
    let mut audit = begin();
    walk(&mut audit);
    assert!(!undisturbed(&audit));
    let report = settle(audit);
    assert_eq!((report.alone, report.lost, report.problems.len()), (false, 0, 0));
    let mut audit = begin();
    drop(works);
    let close = worker.client.clone();
    let witness = std::sync::Arc::clone(&checker.client);
    checker.run(async {
        for _ in 0..5 {
            witness.tick(&checker.endpoint).await.expect("ticks");
        }
    });
    worker.run(close.close(&worker.endpoint)).expect("closed");
    walk(&mut audit);
    assert!(!undisturbed(&audit));
    let report = settle(audit);
    assert_eq!((report.alone, report.lost, report.problems.len()), (false, 0, 0));

    let mut audit = begin();
    walk(&mut audit);
    assert!(undisturbed(&audit));
    // Nor if a client comes and leaves in between.
    rig.join().close();
    assert!(!undisturbed(&audit));
    // Nor if a session of the same client does, before the end or after the beginning.
    let audit = begin();
    drop(checker.session());
    assert!(!undisturbed(&audit));
    let other = checker.session();
    let audit = begin();
    drop(other);
    assert!(!undisturbed(&audit));
    let mut audit = begin();
    walk(&mut audit);
    let report = settle(audit);
    assert_eq!((report.alone, report.lost), (true, 1));
    assert_eq!(report.problems, [""; 0]);
    // Nor if the walk itself retires what it has recorded, also if that is free by the end.
    let passing = checker.alloc(&session, 500).expect("fits");
    let mut audit = begin();
    walk(&mut audit);
    audit.reach(passing, 500, "a block that is retired");
    assert!(!audit.is_outdated(&session));
    session.pin(session.span(OpKind::Other)).expect("pinned").retire(passing, 500);
    checker.run(session.drain()).expect("drained");
    assert!(undisturbed(&audit) && audit.is_outdated(&session));
    let report = settle(audit);
    assert_eq!((report.alone, report.lost, report.problems.len()), (false, 0, 0));
    let mut audit = begin();
    walk(&mut audit);
    let report = settle(audit);
    assert_eq!((report.alone, report.lost), (true, 1));
    assert_eq!(report.problems, [""; 0]);
    assert_eq!(report.leak().as_deref(), Some("1 objects of 512 bytes are leaked: neither reachable nor free"));
    assert_eq!(report.nodes[0].live_bytes, 512 + 2 * CHUNK);

    let mut audit = begin();
    walk(&mut audit);
    audit.reach(lost, 500, "a block");
    audit.reach(kept, 500, "a block");
    audit.reach(lost.add(512), 500, "a block");
    audit.reach(table.add(CHUNK), 64, "a block");
    audit.reach(rig.pool.geometry(NODE).chunk(NODE, 7), 64, "a block");
    assert_eq!(audit.reached(), 6);
    let report = settle(audit);
    let mut expected = vec![
        format!("the object at {} is marked free", lost.add(512)),
        format!("the object at {} lies inside a span", table.add(CHUNK)),
        format!("the object at {} lies in a chunk that was never taken", rig.pool.geometry(NODE).chunk(NODE, 7)),
        format!("a block at {kept} is reached twice"),
    ];
    let mut problems = report.problems;
    expected.sort();
    problems.sort();
    assert_eq!(problems, expected);
}
