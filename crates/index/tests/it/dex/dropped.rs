//! An index that is dropped while an owner has copies of its leaves: the owner learns of it before its next operation, and
//! writes to no memory that has another use by now.

use super::tear;
use farindex_fabric::memory::Delivery;
use farindex_index::dex::Config;
use farindex_index::tree::faults::{Fault, plant};
use farindex_index::{Dex, IndexError, Lifecycle, OrderedIndex, PointIndex, PoolIndex, Sherman, Upsert, sherman};
use farindex_pool::audit::Audit;
use farindex_pool::{PoolOptions, Session};
use farindex_testkit::alone::assert_sound;
use farindex_testkit::until_in_flight;
use farindex_testkit::world::{Ctx, Member, World};
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::ops::Bound;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

const KEYS: u64 = 200;

fn key(i: u64) -> [u8; 8] {
    i.to_be_bytes()
}

/// Awaits what takes heartbeats of this client.
async fn while_ticking<T>(member: &Member, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        if let Poll::Ready(done) = poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx))).await {
            return done;
        }
        member.session.client().tick(member.session.endpoint()).await.expect("a heartbeat");
    }
}

/// An index of another client, in memory that another one has had.
async fn next_tenant(session: &Rc<Session>) -> Sherman {
    let index = Sherman::create(session, "next", &sherman::Config::default()).await.expect("an index");
    for i in 0..20 * KEYS {
        assert_eq!(index.upsert(&key(i), b"8 bytes!").await, Ok(Upsert::Inserted));
    }
    index
}

/// What came of the owner's operations after the drop.
#[derive(Debug, Default)]
struct Seen {
    /// Their errors.
    errors: Vec<Option<IndexError>>,
    /// Keys of the index that has got the memory which are not as they were written.
    harmed: usize,
}

fn after_a_drop(faults: &'static [Fault]) -> Seen {
    let seen = Rc::new(RefCell::new(Seen::default()));
    let body = {
        let seen = Rc::clone(&seen);
        async move |ctx: Ctx| {
            let pool = ctx.pool(&PoolOptions::default()).await;
            let (owner, other) = (ctx.join(&pool).await, ctx.join(&pool).await);
            let config = Config { leaf_admission: 100, ..Config::default() };
            let index = Dex::create(&owner.session, "dex", &config).await.expect("an index");
            for i in 0..KEYS {
                assert_eq!(index.upsert(&key(i), b"an entry").await, Ok(Upsert::Inserted));
            }
            for i in 0..KEYS {
                assert!(index.get(&key(i)).await.is_ok_and(|value| value.is_some()));
            }
            plant(faults);
            while_ticking(&owner, Dex::drop_index(&other.session, "dex")).await.expect("a drop");
            let next = while_ticking(&owner, next_tenant(&other.session)).await;
            let mut errors = vec![
                index.get(&key(0)).await.err(),
                index.get_many(&[&key(1)[..], &key(2)]).await.err(),
                index.scan((Bound::Unbounded, Bound::Unbounded), 10).await.err(),
            ];
            for i in 0..KEYS {
                errors.push(index.upsert(&key(i), b"a change").await.err());
            }
            plant(&[]);
            let mut harmed = 0;
            for i in 0..20 * KEYS {
                let value = while_ticking(&owner, next.get(&key(i))).await;
                harmed += usize::from(value.ok().flatten().as_deref() != Some(b"8 bytes!"));
            }
            if harmed == 0 {
                assert_sound(&other.session, &next).await;
            }
            *seen.borrow_mut() = Seen { errors, harmed };
        }
    };
    World::memory(1, 16 << 20, Delivery::Immediate).run(body);
    seen.take()
}

#[test]
fn an_owner_learns_that_its_index_was_dropped() {
    let Seen { errors, harmed } = after_a_drop(&[]);
    assert!(errors.iter().all(|error| *error == Some(IndexError::Dropped)), "{errors:?}");
    assert_eq!(harmed, 0);
    // Without the look at the anchor it answers from its copies, and writes to what is another index's by now.
    let Seen { errors, harmed } = after_a_drop(&[Fault::DropUnseen]);
    assert!(errors.contains(&None) && harmed > 0, "{errors:?}, {harmed} harmed");
}

/// An owner crashes in the middle of a change, and a client whose proposal it has not answered drops the index. The drop restores
/// the leaf by itself: what it has freed before says who owns it (D11, docs/bugs/205).
#[test]
fn a_drop_restores_what_a_crashed_owner_has_left() {
    World::calm(1, 4 << 20).run(async |ctx| {
        let pool = ctx.pool(&PoolOptions { lease: Duration::from_millis(20), ..PoolOptions::default() }).await;
        let (owner, other) = (ctx.join(&pool).await, ctx.join(&pool).await);
        let index = Dex::create(&owner.session, "dex", &Config::default()).await.expect("an index");
        assert_eq!(index.upsert(b"the key!", b"a value!").await, Ok(Upsert::Inserted));
        // Its operation is given up when it has made its proposal.
        let asks = Dex::open(&other.session, "dex").await.expect("the index");
        assert_eq!(until_in_flight(40, asks.upsert(b"the key!", b"another!")).await, None);
        drop(asks);
        // Of the owner's next change one word has landed.
        tear(&other, (b"a value!", b"changed!")).await;
        // The owner sends no heartbeat any more.
        Dex::drop_index(&other.session, "dex").await.expect("a drop");
        other.session.drain().await.expect("no block is freed twice");
        let report = Audit::begin(&other.session, &other.span()).await.expect("an audit");
        let report = report.settle(&other.session, &other.span()).await.expect("an audit");
        assert_eq!((report.alone, report.problems), (true, vec![]));
        drop(index);
    });
}
