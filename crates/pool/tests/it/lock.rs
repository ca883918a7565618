//! The guards of locks: which verbs they post, and what stands in the intent cells afterwards.

use crate::common::{Member, NODE, Rig};
use farindex_fabric::memory::Delivery;
use farindex_fabric::{OpKind, Span};
use farindex_pool::{HeldLock, Intent, Lock, LostLock, Session, intent};

fn lock(rig: &Rig) -> Lock {
    Lock { at: rig.pool.geometry(NODE).chunk(NODE, 0), mask: 1 }
}

fn attempt<'s>(member: &Member, session: &'s Session, span: &Span, lock: Lock) -> Result<HeldLock<'s>, LostLock<'s>> {
    let cell = member.run(session.intent_cell(NODE)).expect("free");
    let mut batch = span.batch();
    let attempt = cell.try_lock(&mut batch, &Intent { index: 1, lock, what: [7; 4] }, 0, 1);
    attempt.outcome(&mut member.run(batch.post()).expect("posted"))
}

fn declared(member: &Member, session: &Session) -> usize {
    member.run(intent::intents(session, &session.span(OpKind::Other), NODE)).expect("read").len()
}

#[test]
fn lock_guard_costs_one_batch_to_take_and_one_to_release() {
    let rig = Rig::new(8);
    let member = rig.join();
    let session = member.session();
    let lock = lock(&rig);
    for by_faa in [false, true] {
        let span = session.span(OpKind::Other);
        let held = attempt(&member, &session, &span, lock).ok().expect("the lock is free");
        let cost = span.cost();
        assert_eq!((cost.round_trips, cost.writes, cost.cas, cost.reads), (1, 1, 1, 0));
        assert_eq!((held.lock(), held.word()), (lock, 1));
        assert_eq!((rig.peek(lock.at, 1), declared(&member, &session)), (vec![1], 1));
        let span = session.span(OpKind::Other);
        let mut batch = span.batch();
        let released = match by_faa {
            true => held.release_by_faa(&mut batch, 1_u64.wrapping_neg()),
            false => held.release_by_cas(&mut batch, 0),
        };
        assert_eq!(member.run(batch.post()).expect("posted").old(released), 1);
        held.cleared();
        let cost = span.cost();
        assert_eq!((cost.round_trips, cost.writes, cost.cas + cost.faa), (1, 0, 2));
        assert_eq!((rig.peek(lock.at, 1), declared(&member, &session)), (vec![0], 0));
    }
}

#[test]
fn lost_lock_costs_one_more_batch_and_returns_the_cell() {
    let rig = Rig::new(8);
    let (holder, member) = (rig.join(), rig.join());
    let (theirs, session) = (holder.session(), member.session());
    let lock = lock(&rig);
    let held = attempt(&holder, &theirs, &theirs.span(OpKind::Other), lock).ok().expect("the lock is free");
    let span = session.span(OpKind::Other);
    let lost = attempt(&member, &session, &span, lock).err().expect("the lock is held");
    assert_eq!((lost.word(), declared(&member, &session)), (1, 2));
    let cell = member.run(lost.clear(&span)).expect("cleared");
    assert_eq!((span.cost().round_trips, declared(&member, &session)), (2, 1));
    let theirs_span = theirs.span(OpKind::Other);
    let mut batch = theirs_span.batch();
    held.release_by_cas(&mut batch, 0);
    holder.run(batch.post()).expect("released");
    held.cleared();
    let mut batch = span.batch();
    let attempt = cell.try_lock(&mut batch, &Intent { index: 1, lock, what: [7; 4] }, 0, 1);
    let mut done = member.run(batch.post()).expect("posted");
    assert!(attempt.outcome(&mut done).is_ok(), "the cell serves a second attempt");
}

#[test]
fn dropped_lock_guard_leaves_its_intent_declared() {
    let rig = Rig::new(8);
    let member = rig.join();
    let session = member.session();
    let lock = lock(&rig);
    drop(attempt(&member, &session, &session.span(OpKind::Other), lock).ok().expect("the lock is free"));
    assert_eq!((rig.peek(lock.at, 1), declared(&member, &session)), (vec![1], 1));
    let cells: Vec<_> = (0..15).map(|_| member.run(session.intent_cell(NODE)).expect("free")).collect();
    assert!(member.run(session.intent_cell(NODE)).is_err(), "the cell of the dropped guard is not used");
    drop(cells);
}

/// An operation is given up when it has posted the batch that releases its lock. Its verbs may land later, so until then another
/// operation must not declare its intent there (docs/bugs/221).
#[test]
fn guard_that_is_given_up_in_its_release_keeps_its_cell() {
    let rig = Rig::new(8);
    let member = rig.join_with(Delivery::Deferred);
    let session = member.session();
    let lock = lock(&rig);
    let span = session.span(OpKind::Other);
    let held = attempt(&member, &session, &span, lock).ok().expect("the lock is free");
    let mut batch = span.batch();
    held.release_by_cas(&mut batch, 0);
    drop(batch.post());
    drop(held);
    let cells: Vec<_> = (0..15).map(|_| member.run(session.intent_cell(NODE)).expect("free")).collect();
    let posted = member.endpoint.posted();
    let last = member.run(session.intent_cell(NODE)).expect("it is cleared with the next verbs");
    assert!(member.endpoint.posted() > posted, "the cell is used before its intent was seen to be cleared");
    drop((cells, last));
}

#[test]
fn abandoned_lock_guard_is_taken_over_by_another_client() {
    let rig = Rig::new(8);
    let (holder, member) = (rig.join(), rig.join());
    let (theirs, session) = (holder.session(), member.session());
    let lock = lock(&rig);
    let span = theirs.span(OpKind::Other);
    let held = attempt(&holder, &theirs, &span, lock).ok().expect("the lock is free");
    holder.run(held.abandon(&span)).expect("abandoned");
    let span = session.span(OpKind::Other);
    let claim = member.run(session.claim(&span, lock, None, 1, [9; 4])).expect("no errors");
    let farindex_pool::Claim::Taken(taken) = claim else { panic!("not claimed") };
    let held = taken.into_held();
    assert_eq!((held.lock(), held.word()), (lock, 1));
    let mut batch = span.batch();
    held.release_by_cas(&mut batch, 0);
    member.run(batch.post()).expect("released");
    assert_eq!((rig.peek(lock.at, 1), declared(&member, &session)), (vec![0], 0));
}
