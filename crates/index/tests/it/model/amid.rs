//! Audits in the midst of which others work: sound memory has no problems, whatever the audit has read already.

use farindex_fabric::memory::Delivery;
use farindex_index::{AnyIndex, IndexConfig, PointIndex};
use farindex_pool::PoolOptions;
use farindex_pool::audit::Audit;
use farindex_testkit::test_runs::shipped;
use farindex_testkit::world::{Ctx, World};
use farindex_testkit::{is_thorough, one_in};
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::Poll;

const FIRST: u64 = 60;
const MEANWHILE: u64 = 240;

/// After so many polls of an audit, so many keys come in, for which tables are split and grow. Returns after how many polls
/// the audit had ended, or they came in.
async fn audit_amid(ctx: Ctx, config: IndexConfig, polls: u32) -> u32 {
    let pool = ctx.pool(&PoolOptions::default()).await;
    let (one, two) = (ctx.join(&pool).await, ctx.join(&pool).await);
    let index = AnyIndex::create(&one.session, "a", &config).await.expect("an index");
    let other = AnyIndex::open(&two.session, "a").await.expect("the index");
    let insert = async |keys: std::ops::Range<u64>| {
        for key in keys {
            other.insert(&key.to_be_bytes(), b"value").await.expect("an insert");
        }
    };
    insert(0..FIRST).await;
    let mut found = Audit::default();
    let mut audit = Box::pin(index.audit(&mut found, false));
    let (mut polled, mut ended) = (0, None);
    while polled < polls && ended.is_none() {
        if let Poll::Ready(report) = poll_fn(|cx| Poll::Ready(audit.as_mut().poll(cx))).await {
            ended = Some(report);
        }
        polled += 1;
        // The audit's verbs complete while others wait for theirs.
        two.client.tick(&two.endpoint).await.expect("a heartbeat");
    }
    let report = match ended {
        Some(report) => {
            drop(audit);
            report
        }
        None => {
            insert(FIRST..FIRST + MEANWHILE).await;
            audit.await
        }
    };
    let problems = report.expect("an audit").problems;
    assert_eq!(problems, [""; 0], "{}: after {polls} polls", config.kind());
    drop((index, other));
    two.close_while_ticking(&[&one]).await;
    polled
}

#[test]
fn audits_of_every_kind_find_no_problem_whenever_others_write() {
    for kind in shipped() {
        let run = |polls| {
            let (config, polled) = (kind.smallest(), Rc::new(Cell::new(0)));
            let result = Rc::clone(&polled);
            World::memory(1, 32 << 20, Delivery::Deferred)
                .run(async move |ctx| result.set(audit_amid(ctx, config, polls).await));
            polled.get()
        };
        let all = run(u32::MAX);
        assert!(all > 3, "{}: {all} polls", kind.config().kind());
        // The first ones, in which directories and roots are READ, and some of the others.
        let step = if is_thorough() { one_in() as u32 } else { all / 16 + 1 };
        (0..all.min(8)).chain((8..all).step_by(step as usize)).for_each(|polls| assert_eq!(run(polls), polls));
    }
}
