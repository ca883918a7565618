//! Owners: what one compute node owns, another one asks for; what it does not give; who takes what a closed handle leaves.

use farindex_fabric::memory::Delivery;
use farindex_fabric::{OpKind, RemotePtr};
use farindex_index::dex::{Config, Foreign, Moves};
use farindex_index::{Dex, IndexError, Lifecycle, PointIndex, PoolIndex, Upsert};
use farindex_pool::audit::Audit;
use farindex_pool::reclaim::Reclaimed;
use farindex_pool::{PoolError, PoolOptions, catalog};
use farindex_testkit::until_in_flight;
use farindex_testkit::world::{Member, World, join_all};
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::ops::Bound;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

#[test]
fn a_partition_belongs_to_the_compute_node_that_writes_first_and_stays_there_if_it_refuses() {
    World::memory(1, 4 << 20, Delivery::Immediate).run(async |ctx| {
        let pool = ctx.pool(&PoolOptions::default()).await;
        let (first, second) = (ctx.join(&pool).await, ctx.join(&pool).await);
        let config = Config { foreign: Foreign::Refuse, ..Config::default() };
        let index = Dex::create(&first.session, "dex", &config).await.expect("an index");
        assert_eq!(index.upsert(b"key", b"1").await, Ok(Upsert::Inserted));
        assert_eq!(index.partitions(), 1);
        let other = Dex::open(&second.session, "dex").await.expect("the index");
        // Reads need no ownership.
        assert_eq!(other.get(b"key").await.expect("a lookup").as_deref(), Some(&b"1"[..]));
        let refused = other.upsert(b"key", b"2").await;
        assert!(matches!(&refused, Err(IndexError::NotOwner { holder }) if holder.contains("client")), "{refused:?}");
        assert_eq!(other.partitions(), 0);
        // The last handle gives up what its compute node owns.
        drop(index);
        first.session.endpoint().settle().await;
        assert_eq!(other.upsert(b"key", b"2").await, Ok(Upsert::Updated));
        assert_eq!((other.partitions(), other.get(b"key").await.expect("a lookup").as_deref()), (1, Some(&b"2"[..])));
    });
}

/// What a compute node keeps of a partition, it keeps the copies of.
#[test]
fn an_owner_that_gives_a_range_away_keeps_its_other_copies() {
    World::memory(1, 8 << 20, Delivery::Immediate).run(async |ctx| {
        let pool = ctx.pool(&PoolOptions::default()).await;
        let (first, second) = (ctx.join(&pool).await, ctx.join(&pool).await);
        let config = Config { leaf_span: 8, leaf_admission: 100, moves: Moves::Leaf, ..Config::default() };
        let index = Dex::create(&first.session, "dex", &config).await.expect("an index");
        let key = |i: u64| i.to_be_bytes();
        for i in 0..100 {
            assert_eq!(index.upsert(&key(i), &key(i)).await, Ok(Upsert::Inserted));
        }
        for i in 0..100 {
            assert_eq!(index.get(&key(i)).await.expect("a lookup").as_deref(), Some(&key(i)[..]));
        }
        let other = Dex::open(&second.session, "dex").await.expect("the index");
        // The first compute node answers with its heartbeats.
        let key_of_leaf = key(50);
        let mut write = pin!(other.upsert(&key_of_leaf, b"other"));
        let wrote = loop {
            if let Poll::Ready(wrote) = poll_fn(|cx| Poll::Ready(write.as_mut().poll(cx))).await {
                break wrote;
            }
            first.session.client().tick(first.session.endpoint()).await.expect("a heartbeat");
        };
        assert_eq!(wrote, Ok(Upsert::Updated));
        let endpoint = first.session.endpoint();
        // The first lookup of an epoch READs the anchor (D8).
        assert!(index.get(&key(10)).await.is_ok());
        for (i, value, read) in [(10, &key(10)[..], false), (90, &key(90)[..], false), (50, b"other", true)] {
            let before = endpoint.meter();
            assert_eq!(index.get(&key(i)).await.expect("a lookup").as_deref(), Some(value));
            let reads = (endpoint.meter() - before).of(OpKind::Get).total.reads;
            assert_eq!(reads > 0, read, "key {i}: {reads} READs");
        }
    });
}

/// A compute node asks for what another one owns, gives up its operations, and leaves. Then the owner accepts the map that was
/// proposed, which names the record of the one that has left (D9, docs/bugs/166).
#[test]
fn a_record_that_a_proposal_names_is_not_freed() {
    for polls in 0..40 {
        World::calm(polls, 4 << 20).run(async move |ctx| {
            let pool = ctx.pool(&PoolOptions::default()).await;
            let (first, second) = (ctx.join(&pool).await, ctx.join(&pool).await);
            let index = Dex::create(&first.session, "dex", &Config::default()).await.expect("an index");
            assert_eq!(index.upsert(b"key", b"1").await, Ok(Upsert::Inserted));
            let other = Dex::open(&second.session, "dex").await.expect("the index");
            // The first one has proposed by then; the second one waits for the answer to that.
            for polls in [40, polls] {
                assert_eq!(until_in_flight(polls, other.upsert(b"key", b"2")).await, None);
            }
            drop(other);
            second.close_while_ticking(&[&first]).await;
            // The owner answers.
            first.client.tick(&first.endpoint).await.expect("a heartbeat");
            let mut audit = Audit::begin(&first.session, &first.span()).await.expect("an audit");
            index.audit(&mut audit, true).await.expect("a walk");
            let report = audit.settle(&first.session, &first.span()).await.expect("an audit");
            assert_eq!((report.alone, report.problems), (true, Vec::<String>::new()), "after {polls} polls");
        });
    }
}

/// An owner carries a proposal out, and its heartbeat is given up before the answer is at its record. Then its last handle is
/// closed. The proposer must not take the map for one that nobody will carry out (D12, docs/bugs/201).
#[test]
fn an_owner_answers_what_it_has_carried_out_before_it_leaves() {
    for polls in 0..24 {
        World::calm(polls, 4 << 20).run(async move |ctx| {
            let pool = ctx.pool(&PoolOptions::default()).await;
            let members = [ctx.join(&pool).await, ctx.join(&pool).await];
            let [first, second] = &members;
            let index = Dex::create(&first.session, "dex", &Config::default()).await.expect("an index");
            assert_eq!(index.upsert(b"key", b"1").await, Ok(Upsert::Inserted));
            let other = Dex::open(&second.session, "dex").await.expect("the index");
            assert_eq!(until_in_flight(40, other.upsert(b"key", b"2")).await, None);
            until_in_flight(polls, first.client.tick(&first.endpoint)).await;
            drop(index);
            assert_eq!(while_ticking(&members, other.upsert(b"key", b"2")).await, Ok(Upsert::Updated));
            drop(other);
            let [first, second] = members;
            second.close_while_ticking(&[&first]).await;
            let index = Dex::open(&first.session, "dex").await.expect("the index");
            assert_eq!(index.get(b"key").await.expect("a lookup").as_deref(), Some(&b"2"[..]));
            let mut audit = Audit::begin(&first.session, &first.span()).await.expect("an audit");
            index.audit(&mut audit, true).await.expect("a walk");
            let report = audit.settle(&first.session, &first.span()).await.expect("an audit");
            assert_eq!((report.alone, report.problems), (true, Vec::<String>::new()), "after {polls} polls");
        });
    }
}

/// A compute node asks for what another one owns, and leaves. What it has proposed is not lost memory as long as the owner may
/// accept it (D10, docs/bugs/205).
#[test]
fn a_proposed_map_is_not_reclaimed() {
    World::calm(1, 4 << 20).run(async |ctx| {
        let pool = ctx.pool(&PoolOptions::default()).await;
        let (first, second) = (ctx.join(&pool).await, ctx.join(&pool).await);
        let index = Dex::create(&first.session, "dex", &Config::default()).await.expect("an index");
        assert_eq!(index.upsert(b"key", b"1").await, Ok(Upsert::Inserted));
        let other = Dex::open(&second.session, "dex").await.expect("the index");
        assert_eq!(until_in_flight(40, other.upsert(b"key", b"2")).await, None);
        drop(other);
        second.close().await;
        assert!(reclaim(&first, &index).await.alone);
        // The owner accepts it, and owns nothing any more.
        first.endpoint.sleep(Duration::from_millis(10)).await;
        first.client.tick(&first.endpoint).await.expect("a heartbeat");
        assert!(index.partition_list().await.expect("a list").iter().all(|partition| !partition.is_own));
        // The map before is lost, because its proposer would have retired that.
        assert_eq!(settle(&first, &index).await, (true, vec![], 1));
        assert_eq!(index.get(b"key").await.expect("a lookup").as_deref(), Some(&b"1"[..]));
    });
}

/// A compute node gives up an operation that waits for an answer, and audits the pool. Of the map that it has proposed and the one
/// before, it frees one, once.
#[test]
fn an_audit_takes_the_answer_to_a_proposal() {
    World::calm(1, 4 << 20).run(async |ctx| {
        let pool = ctx.pool(&PoolOptions::default()).await;
        let (first, second) = (ctx.join(&pool).await, ctx.join(&pool).await);
        let index = Dex::create(&first.session, "dex", &Config::default()).await.expect("an index");
        assert_eq!(index.upsert(b"key", b"1").await, Ok(Upsert::Inserted));
        let other = Dex::open(&second.session, "dex").await.expect("the index");
        assert_eq!(until_in_flight(40, other.upsert(b"key", b"2")).await, None);
        first.client.tick(&first.endpoint).await.expect("a heartbeat");
        drop(index);
        first.close_while_ticking(&[&second]).await;
        // The first one retires the map before. What the operation has allocated is lost, because it was given up.
        settle(&second, &other).await;
        second.session.drain().await.expect("nothing is retired");
        assert_eq!(settle(&second, &other).await, (true, vec![], 1));
        assert!(reclaim(&second, &other).await.alone);
        assert_eq!(other.upsert(b"key", b"2").await, Ok(Upsert::Updated));
        second.session.drain().await.expect("nothing is retired");
        assert_eq!(settle(&second, &other).await, (true, vec![], 0));
    });
}

/// Walks the pool.
async fn audit(member: &Member, index: &Dex) -> Audit {
    let span = member.span();
    let mut audit = Audit::begin(&member.session, &span).await.expect("an audit");
    let info = catalog::find(member.session.pool(), &span, "dex").await.expect("the index");
    audit.reach(info.root, 8, "a list of roots");
    let report = index.audit(&mut audit, true).await.expect("a walk");
    assert_eq!(report.problems, Vec::<String>::new());
    audit
}

pub(super) async fn reclaim(member: &Member, index: &Dex) -> Reclaimed {
    audit(member, index).await.reclaim(&member.session, &member.span()).await.expect("reclaimed")
}

/// Was the audit alone, what is wrong, and how many objects are lost?
pub(super) async fn settle(member: &Member, index: &Dex) -> (bool, Vec<String>, u64) {
    let report = audit(member, index).await.settle(&member.session, &member.span()).await.expect("an audit");
    (report.alone, report.problems, report.lost)
}

/// Operations that wait for the same owner fail one after the other, in the order in which they have begun, also those that wait
/// for longer than a lease (docs/bugs/167). The time in which one has waited for the answer counts for those behind it (189).
#[test]
fn an_operation_that_waits_for_an_owner_keeps_its_place() {
    World::calm(1, 4 << 20).run(async |ctx| {
        let lease = Duration::from_millis(100);
        let pool = ctx.pool(&PoolOptions { lease, ..PoolOptions::default() }).await;
        let (first, second) = (ctx.join(&pool).await, ctx.join(&pool).await);
        let index = Dex::create(&first.session, "dex", &Config::default()).await.expect("an index");
        assert_eq!(index.upsert(b"key", b"1").await, Ok(Upsert::Inserted));
        // An owner in the middle of a write gives nothing away.
        let mut write = pin!(index.upsert(b"key", b"2"));
        for _ in 0..2 {
            assert!(poll_fn(|cx| Poll::Ready(write.as_mut().poll(cx))).await.is_pending());
        }
        let other = Dex::open(&second.session, "dex").await.expect("the index");
        let (failed, began) = (RefCell::new(Vec::new()), second.endpoint.now());
        let ask = async |number: u32, begins: Duration| {
            second.endpoint.sleep(begins).await;
            let asked = other.upsert(b"key", b"3").await;
            assert!(matches!(asked, Err(IndexError::Locked { .. })), "{asked:?}");
            failed.borrow_mut().push(number);
        };
        let keep = async || {
            while failed.borrow().len() < 3 {
                for member in [&first, &second] {
                    member.client.tick(&member.endpoint).await.expect("a heartbeat");
                }
                second.endpoint.sleep(lease / 16).await;
            }
        };
        let all: [Pin<Box<dyn Future<Output = ()> + '_>>; 4] = [
            Box::pin(ask(0, Duration::ZERO)),
            Box::pin(ask(1, lease / 64)),
            Box::pin(ask(2, lease / 2)),
            Box::pin(keep()),
        ];
        join_all(all).await;
        assert_eq!(failed.into_inner(), [0, 1, 2]);
        let took = second.endpoint.now() - began;
        assert!(took >= lease * 2 && took < lease * 3, "{took:?}");
    });
}

/// An owner carries a proposal out, and its heartbeat is given up before it has learned of that. Meanwhile the proposer leaves, and a
/// third compute node takes what it has left: the map that counts is another one by then (docs/bugs/223).
#[test]
fn an_owner_learns_of_what_it_has_given_away_by_a_later_map() {
    giving_up_heartbeats(async |members, index, takes, (polls, took)| {
        members[0].client.tick(&members[0].endpoint).await.expect("a heartbeat");
        if took {
            assert_eq!(until_in_flight(40, index.upsert(b"key", b"4")).await, None, "after {polls} polls");
        }
        for (asks, value) in [(index, b"4"), (takes, b"5")] {
            assert_eq!(while_ticking(members, asks.upsert(b"key", value)).await, Ok(Upsert::Updated));
        }
        assert_eq!(index.get(b"key").await.expect("a lookup").as_deref(), Some(&b"5"[..]), "after {polls} polls");
    });
}

/// The same, and that map is damaged when the owner looks for it: then nobody can tell who owns what.
#[test]
fn an_owner_does_not_go_on_with_what_it_has_given_away_where_the_map_is_damaged() {
    giving_up_heartbeats(async |members, index, _, (polls, took)| {
        if !took {
            return;
        }
        let (first, span) = (&members[0], members[0].span());
        let info = catalog::list(first.session.pool(), &span).await.expect("the catalog").remove(0);
        let word_at = async |at: RemotePtr| span.read(at, 8).await.expect("a word").words()[0];
        let anchor = RemotePtr::from_bits(word_at(info.root).await);
        let map = RemotePtr::from_slot(word_at(anchor.add(16)).await).add(8);
        let damaged = word_at(map).await ^ 1;
        span.write(map, first.endpoint.buf_from_words(&[damaged])).await.expect("damage");
        for _ in 0..2 {
            first.client.tick(&first.endpoint).await.expect("a heartbeat");
        }
        let wrote = while_ticking(members, index.upsert(b"key", b"4")).await;
        assert!(matches!(wrote, Err(IndexError::Pool(PoolError::Corrupt { .. }))), "after {polls} polls: {wrote:?}");
    });
}

/// Gives a heartbeat of an owner up at each of its polls, in the midst of the answer to a proposal, and lets a third compute node take
/// what the proposer has left. `then` gets the members, the indexes of the owner and of the third one, the poll, and whether the third
/// one has taken something.
fn giving_up_heartbeats(then: impl AsyncFn(&[Member], &Dex, &Dex, (u64, bool)) + Copy + 'static) {
    let taken = Rc::new(Cell::new(0));
    for polls in 0..24 {
        let count = Rc::clone(&taken);
        World::calm(polls, 4 << 20).run(async move |ctx| {
            let pool = ctx.pool(&PoolOptions { lease: Duration::from_millis(100), ..PoolOptions::default() }).await;
            let members = [ctx.join(&pool).await, ctx.join(&pool).await, ctx.join(&pool).await];
            let [first, second, third] = &members;
            let index = Dex::create(&first.session, "dex", &Config::default()).await.expect("an index");
            assert_eq!(index.upsert(b"key", b"1").await, Ok(Upsert::Inserted));
            let leaves = Dex::open(&second.session, "dex").await.expect("the index");
            assert_eq!(until_in_flight(40, leaves.upsert(b"key", b"2")).await, None);
            // A proposal that is young stays: see `Ownership::keeps`.
            first.endpoint.sleep(Duration::from_millis(10)).await;
            _ = until_in_flight(polls, first.client.tick(&first.endpoint)).await;
            drop(leaves);
            second.endpoint.settle().await;
            let takes = Dex::open(&third.session, "dex").await.expect("the index");
            let took = until_in_flight(60, takes.upsert(b"key", b"3")).await;
            assert!(matches!(took, None | Some(Ok(Upsert::Updated))), "{took:?}");
            count.set(count.get() + u32::from(took.is_some()));
            then(&members, &index, &takes, (polls, took.is_some())).await;
        });
    }
    assert!(taken.get() > 0, "no map came to count ahead of the answer");
}

/// A proposal was refused, and nobody took the answer. Much later the record has the answer to another compute node's proposal,
/// which is not to be taken for it: the map that it follows was retired by somebody else (D10, docs/bugs/177).
#[test]
fn an_answer_is_not_taken_for_that_to_another_proposal() {
    World::calm(1, 4 << 20).run(async |ctx| {
        let lease = Duration::from_millis(100);
        let pool = ctx.pool(&PoolOptions { lease, ..PoolOptions::default() }).await;
        let members = [ctx.join(&pool).await, ctx.join(&pool).await, ctx.join(&pool).await];
        let [first, second, third] = &members;
        let index = Dex::create(&first.session, "dex", &Config::default()).await.expect("an index");
        let (slow, other) = (
            Dex::open(&second.session, "dex").await.expect("the index"),
            Dex::open(&third.session, "dex").await.expect("the index"),
        );
        index.own((Bound::Included(&b"k"[..]), Bound::Unbounded)).await.expect("a range");
        // Refused, because what nobody has owned is taken meanwhile.
        assert_eq!(until_in_flight(40, slow.upsert(b"z", b"2")).await, None);
        assert_eq!(other.upsert(b"a", b"3").await, Ok(Upsert::Inserted));
        for _ in 0..24 {
            for member in &members {
                member.client.tick(&member.endpoint).await.expect("a heartbeat");
            }
            first.endpoint.sleep(lease / 16).await;
        }
        // Accepted.
        assert_eq!(until_in_flight(40, other.upsert(b"z", b"3")).await, None);
        first.client.tick(&first.endpoint).await.expect("a heartbeat");
        assert_eq!(while_ticking(&members, slow.upsert(b"z", b"2")).await, Ok(Upsert::Inserted));
        assert_eq!(while_ticking(&members, other.upsert(b"z", b"3")).await, Ok(Upsert::Updated));
        drop((slow, other));
        let [first, second, third] = members;
        second.close_while_ticking(&[&first, &third]).await;
        third.close_while_ticking(&[&first]).await;
        let mut audit = Audit::begin(&first.session, &first.span()).await.expect("an audit");
        index.audit(&mut audit, true).await.expect("a walk");
        let report = audit.settle(&first.session, &first.span()).await.expect("an audit");
        assert_eq!((report.alone, report.problems), (true, Vec::<String>::new()));
    });
}

/// Awaits what takes heartbeats of these clients.
pub(super) async fn while_ticking<T>(members: &[Member], work: impl Future<Output = T>) -> T {
    let done = RefCell::new(None);
    let keep = async || {
        while done.borrow().is_none() {
            for member in members {
                member.client.tick(&member.endpoint).await.expect("a heartbeat");
            }
            members[0].endpoint.sleep(Duration::from_micros(100)).await;
        }
    };
    let work = async { *done.borrow_mut() = Some(work.await) };
    let both: [Pin<Box<dyn Future<Output = ()> + '_>>; 2] = [Box::pin(work), Box::pin(keep())];
    join_all(both).await;
    done.into_inner().expect("what has ended")
}
