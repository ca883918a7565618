//! What owners and proposers leave that crash, and audits that clear that away.

use super::owners::{reclaim, settle, while_ticking};
use super::tear;
use farindex_index::dex::Config;
use farindex_index::{Dex, Lifecycle, PointIndex, PoolIndex, Upsert};
use farindex_pool::audit::Audit;
use farindex_pool::layout::HOME;
use farindex_pool::{PoolError, PoolOptions};
use farindex_testkit::until_in_flight;
use farindex_testkit::world::{Member, World};
use std::ops::Bound;
use std::time::Duration;

const LEASE: Duration = Duration::from_millis(20);

/// Sends heartbeats until all others that send none were evicted, and what is retired is free.
async fn outlast(member: &Member) {
    for _ in 0..40 {
        member.client.tick(&member.endpoint).await.expect("a heartbeat");
        member.endpoint.sleep(LEASE / 8).await;
    }
    member.session.drain().await.expect("nothing is freed twice");
}

/// Leaves no memory to allocate.
pub(super) async fn fill(member: &Member) {
    for len in (6..=20).rev().map(|bits| 1 << bits) {
        let full = loop {
            let allocated = member.session.alloc_now(&member.span(), HOME, len).await;
            if let Err(error) = allocated {
                break error;
            }
        };
        assert!(matches!(full, PoolError::Full { .. }), "{full:?}");
    }
}

/// A client proposes a map and crashes, the map that it follows does not count any more, and the owner crashes without an answer.
/// While the maps in between are there, they tell that what was proposed never counted (D10, docs/bugs/211).
#[test]
fn an_audit_frees_what_a_crashed_client_has_proposed() {
    World::calm(1, 4 << 20).run(async |ctx| {
        let pool = ctx.pool(&PoolOptions { lease: LEASE, ..PoolOptions::default() }).await;
        let members = [ctx.join(&pool).await, ctx.join(&pool).await, ctx.join(&pool).await];
        let [owner, proposer, third] = &members;
        let index = Dex::create(&owner.session, "dex", &Config::default()).await.expect("an index");
        let asks = Dex::open(&proposer.session, "dex").await.expect("the index");
        let last = Dex::open(&third.session, "dex").await.expect("the index");
        index.own((Bound::Included(&b"k"[..]), Bound::Unbounded)).await.expect("a range");
        assert_eq!(until_in_flight(40, asks.upsert(b"z", b"2")).await, None);
        // What nobody has owned is taken, given back, and taken again: three maps.
        assert_eq!(last.upsert(b"a", b"3").await, Ok(Upsert::Inserted));
        let rest = (Bound::Unbounded, Bound::Excluded(&b"k"[..]));
        while_ticking(&members[2..], last.give_up(rest)).await.expect("a range");
        assert_eq!(last.upsert(b"a", b"4").await, Ok(Upsert::Updated));
        outlast(third).await;
        // Also what the crashed clients had kept to allocate from.
        assert!(reclaim(third, &last).await.alone);
        // The memory of the maps in between has another use, and then none.
        let (span, mut blocks) = (third.span(), Vec::new());
        for len in [64, 128, 256].into_iter().flat_map(|len| [len; 2000]) {
            let at = third.session.alloc_now(&span, HOME, len).await.expect("a block");
            span.write(at, third.endpoint.buf_from_words(&[u64::MAX; 8])).await.expect("a WRITE");
            blocks.push((at, len));
        }
        for (at, len) in blocks {
            third.session.free(&span, at, len).await.expect("free memory");
        }
        outlast(third).await;
        assert_eq!(settle(third, &last).await, (true, vec![], 0));
        drop((index, asks));
    });
}

/// An audit looks whether other clients are at work, and then clients come. What one of them has proposed follows an old map, and
/// that client frees it itself (docs/bugs/222).
#[test]
fn an_audit_does_not_free_what_a_client_that_has_come_meanwhile_proposes() {
    World::calm(1, 4 << 20).run(async |ctx| {
        let pool = ctx.pool(&PoolOptions { lease: LEASE, ..PoolOptions::default() }).await;
        let auditor = ctx.join(&pool).await;
        let audited = Dex::create(&auditor.session, "dex", &Config::default()).await.expect("an index");
        let mut audit = Audit::begin(&auditor.session, &auditor.span()).await.expect("an audit");
        let alone = audit.undisturbed(&auditor.session, &auditor.span()).await.expect("a look");
        let members = [auditor, ctx.join(&pool).await, ctx.join(&pool).await];
        let [_, owner, proposer] = &members;
        let index = Dex::open(&owner.session, "dex").await.expect("the index");
        let asks = Dex::open(&proposer.session, "dex").await.expect("the index");
        index.own((Bound::Included(&b"k"[..]), Bound::Unbounded)).await.expect("a range");
        let mut asked = Box::pin(asks.upsert(b"z", b"1"));
        assert_eq!(until_in_flight(40, asked.as_mut()).await, None);
        // Another map counts.
        assert_eq!(audited.upsert(b"a", b"2").await, Ok(Upsert::Inserted));
        audited.audit(&mut audit, alone).await.expect("a walk");
        assert_eq!(while_ticking(&members, asked).await, Ok(Upsert::Inserted));
        while_ticking(&members, async { drop((index, asks)) }).await;
        let [auditor, owner, proposer] = members;
        proposer.close_while_ticking(&[&auditor, &owner]).await;
        owner.close_while_ticking(&[&auditor]).await;
        assert_eq!(settle(&auditor, &audited).await, (true, vec![], 0));
    });
}

/// An owner crashes in the middle of a change. The next owner has not looked at that leaf, and has left. Who comes then has no
/// memory to become the owner (docs/bugs/210).
#[test]
fn a_leaf_that_nobody_owns_is_restored_in_a_full_pool() {
    World::calm(1, 4 << 20).run(async |ctx| {
        let pool = ctx.pool(&PoolOptions { lease: LEASE, ..PoolOptions::default() }).await;
        let (owner, next) = (ctx.join(&pool).await, ctx.join(&pool).await);
        let index = Dex::create(&owner.session, "dex", &Config::default()).await.expect("an index");
        assert_eq!(index.upsert(&[0; 8], b"a value!").await, Ok(Upsert::Inserted));
        for i in 1..500_u64 {
            assert_eq!(index.upsert(&i.to_be_bytes(), b"an entry").await, Ok(Upsert::Inserted));
        }
        tear(&next, (b"a value!", b"changed!")).await;
        outlast(&next).await;
        let taken = Dex::open(&next.session, "dex").await.expect("the index");
        assert_eq!(taken.upsert(&499_u64.to_be_bytes(), b"changed!").await, Ok(Upsert::Updated));
        drop(taken);
        outlast(&next).await;
        let last = ctx.join(&pool).await;
        fill(&last).await;
        let found = Dex::open(&last.session, "dex").await.expect("the index");
        let value = found.get(&[0; 8]).await.expect("a lookup");
        assert!([&b"a value!"[..], b"changed!"].contains(&value.as_deref().unwrap_or_default()), "{value:?}");
        drop(index);
    });
}
