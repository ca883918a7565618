//! Who has died, and what becomes of its locks.

use crate::common::{CHUNK, Member, Mortal, NODE, Rig, Rng, Shuffle, block_on, peek, region};
use farindex_fabric::memory::Delivery;
use farindex_fabric::{Driver, Executor, Fabric, FabricError, MemoryFabric, OpKind, RemotePtr, Span};
use farindex_pool::faults::{Fault, plant};
use farindex_pool::layout::{HOME, header, header_word};
use farindex_pool::{Claim, Client, Intent, IntentCell, Lock, Pool, PoolError, PoolOptions, Session, clients, intent};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn rig() -> Rig {
    let options = PoolOptions {
        client_slots: 8,
        lease: Duration::from_millis(60),
        chunk_size: Some(CHUNK),
        ..PoolOptions::default()
    };
    Rig::with(1, region(8, 8), &options)
}

fn lock(rig: &Rig) -> Lock {
    Lock { at: rig.pool.geometry(NODE).chunk(NODE, 0), mask: 1 }
}

/// Declares, and takes the lock if it can.
fn take<'s>(member: &Member, session: &'s Session, lock: Lock) -> (IntentCell<'s>, bool) {
    let span = session.span(OpKind::Other);
    let cell = member.run(session.intent_cell(NODE)).expect("free");
    let mut batch = span.batch();
    cell.declare(&mut batch, &Intent { index: 1, lock, what: [member.client.slot(); 4] });
    let taken = batch.cas(lock.at, 0, 1);
    let won = member.run(batch.post()).expect("posted").old(taken) == 0;
    (cell, won)
}

fn release(member: &Member, span: &Span, cell: &IntentCell<'_>, lock: Lock) {
    let mut batch = span.batch();
    batch.cas(lock.at, 1, 0);
    cell.clear(&mut batch);
    member.run(batch.post()).expect("released");
}

/// Claims until something comes of it, or this many leases have passed.
fn claim<'s>(member: &Member, session: &'s Session, lock: Lock, leases: u32) -> Claim<'s> {
    let until = member.endpoint.now() + member.client.pool().lease() * leases;
    loop {
        member.tick();
        let claim = member.run(session.claim(&session.span(OpKind::Other), lock, None, 1, [9; 4])).expect("no errors");
        if matches!(claim, Claim::Taken(_)) || member.endpoint.now() > until {
            return claim;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn standing(member: &Member, session: &Session) -> usize {
    member.run(intent::intents(session, &session.span(OpKind::Other), NODE)).expect("read").len()
}

#[test]
fn a_silent_client_loses_its_lock_and_learns_it() {
    let rig = rig();
    let (silent, taker) = (rig.join(), rig.join());
    let (theirs, mine) = (silent.session(), taker.session());
    let lock = lock(&rig);
    let (cell, won) = take(&silent, &theirs, lock);
    assert!(won);
    let Claim::Taken(taken) = claim(&taker, &mine, lock, 10) else { panic!("not claimed") };
    assert_eq!(taken.left.iter().map(|left| left.what).collect::<Vec<_>>(), [[0; 4]]);
    assert_eq!(rig.peek(lock.at, 1), [1], "it is held until its new owner releases it");
    // It comes back: nothing that it does takes effect.
    let span = theirs.span(OpKind::Other);
    assert_eq!(silent.run(span.cas(lock.at, 1, 0)), Err(FabricError::Revoked));
    assert_eq!(silent.run(silent.client.tick(&silent.endpoint)), Err(PoolError::LeaseLost));
    assert!(theirs.pin(theirs.span(OpKind::Get)).is_err());
    release(&taker, &mine.span(OpKind::Other), taken.cell.as_ref().expect("its own"), lock);
    assert_eq!((rig.peek(lock.at, 1), standing(&taker, &mine)), (vec![0], 0));
    assert_eq!(taker.run(clients(&rig.pool, &span_of(&mine))).expect("read").len(), 1);
    drop(cell);
}

fn span_of(session: &Session) -> Span {
    session.span(OpKind::Other)
}

#[test]
fn who_keeps_its_lease_keeps_its_lock() {
    let rig = rig();
    let (owner, taker) = (rig.join(), rig.join());
    let (theirs, mine) = (owner.session(), taker.session());
    let lock = lock(&rig);
    let (cell, _) = take(&owner, &theirs, lock);
    let until = owner.endpoint.now() + rig.pool.lease() * 4;
    while owner.endpoint.now() < until {
        owner.tick();
        taker.tick();
        let claim = taker.run(mine.claim(&span_of(&mine), lock, None, 1, [0; 4])).expect("no errors");
        assert!(matches!(claim, Claim::Busy { own: false, .. }));
        std::thread::sleep(Duration::from_millis(1));
    }
    release(&owner, &span_of(&theirs), &cell, lock);
    assert!(matches!(taker.run(mine.claim(&span_of(&mine), lock, None, 1, [0; 4])), Ok(Claim::Free)));
}

/// Of the same client as well; and its slot is another one's as soon as it leaves.
#[test]
fn a_lock_that_was_given_up_is_the_next_ones() {
    let rig = rig();
    let (owner, taker) = (rig.join(), rig.join());
    let mine = taker.session();
    let lock = lock(&rig);
    {
        let theirs = owner.session();
        let span = span_of(&theirs);
        let (cell, won) = take(&owner, &theirs, lock);
        assert!(won);
        owner.run(cell.abandon_lock(&span)).expect("given up");
        drop(cell);
        assert_eq!((rig.peek(lock.at, 1), standing(&taker, &mine)), (vec![1], 1));
        let Claim::Taken(taken) = claim(&owner, &theirs, lock, 0) else { panic!("not claimed") };
        assert_eq!(taken.left.iter().map(|left| left.what).collect::<Vec<_>>(), [[0; 4]]);
        owner.run(taken.cell.expect("its own").abandon_lock(&span)).expect("given up");
        assert_eq!(owner.run(intent::holders(&theirs, &span, lock.at)).as_deref(), Ok("an unknown client"));
    }
    let slot = owner.client.slot();
    owner.run(Arc::clone(&owner.client).close(&owner.endpoint)).expect("left");
    assert_eq!(rig.join().client.slot(), slot, "left for good");
    let Claim::Taken(taken) = claim(&taker, &mine, lock, 0) else { panic!("not claimed") };
    let cell = taken.cell.expect("its own");
    release(&taker, &span_of(&mine), &cell, lock);
    assert_eq!((rig.peek(lock.at, 1), standing(&taker, &mine)), (vec![0], 0));
    // What is not declared cannot be given up.
    taker.run(cell.abandon_lock(&span_of(&mine))).expect("nothing");
    assert_eq!(standing(&taker, &mine), 0);
}

#[test]
fn a_lock_that_nobody_has_declared_is_nobodys_to_take() {
    let rig = rig();
    let taker = rig.join();
    let mine = taker.session();
    let lock = lock(&rig);
    rig.poke(lock.at, &[1]);
    assert!(matches!(claim(&taker, &mine, lock, 3), Claim::Busy { own: false, .. }));
    assert_eq!(rig.peek(lock.at, 1), [1]);
}

#[test]
fn only_one_of_the_candidates_held_it_and_all_are_cleared() {
    let rig = rig();
    let lock = lock(&rig);
    let members: Vec<_> = (0..4).map(|_| rig.join()).collect();
    let sessions: Vec<_> = members.iter().map(Member::session).collect();
    let cells: Vec<_> = members.iter().zip(&sessions).map(|(member, session)| take(member, session, lock)).collect();
    assert_eq!(cells.iter().filter(|(_, won)| *won).count(), 1);
    let taker = rig.join();
    let mine = taker.session();
    let Claim::Taken(taken) = claim(&taker, &mine, lock, 10) else { panic!("not claimed") };
    assert_eq!(taken.left.len(), 4);
    assert_eq!(standing(&taker, &mine), 1, "the new owner's");
    std::mem::forget(cells);
}

#[test]
fn the_heir_of_an_heir() {
    let rig = rig();
    let lock = lock(&rig);
    let (first, second) = (rig.join(), rig.join());
    let sessions = [first.session(), second.session()];
    let (cell, _) = take(&first, &sessions[0], lock);
    let Claim::Taken(new_holder) = claim(&second, &sessions[1], lock, 10) else { panic!("not claimed") };
    let third = rig.join();
    let session = third.session();
    let Claim::Taken(taken) = claim(&third, &session, lock, 10) else { panic!("not claimed") };
    assert_eq!(taken.left.iter().map(|left| left.what).collect::<Vec<_>>(), [[9; 4]]);
    std::mem::forget((cell, new_holder));
}

/// A pool whose clients can be declared gone, so that nobody has to wait for a lease.
fn mortals(delivery: Delivery) -> (Arc<Mortal>, Pool) {
    let inner = MemoryFabric::new(1, region(8, 8)).expect("enough memory").with_delivery(delivery);
    let fabric = Arc::new(Mortal { inner, gone: Mutex::default() });
    let endpoint = fabric.connect(&fabric.new_identity()).expect("connects");
    let options = PoolOptions {
        client_slots: 8,
        lease: Duration::from_secs(100),
        chunk_size: Some(CHUNK),
        ..PoolOptions::default()
    };
    let pool = block_on(&endpoint, Pool::create(fabric.clone(), &endpoint, &options)).expect("created");
    (fabric, pool)
}

fn join(fabric: &Mortal, pool: &Pool) -> Member {
    let identity = fabric.new_identity();
    let endpoint = fabric.connect(&identity).expect("connects");
    let client = block_on(&endpoint, Client::register(pool, identity, &endpoint)).expect("a slot");
    Member { endpoint, client }
}

fn declare_gone(fabric: &Mortal, members: &[Member]) {
    let tokens = members.iter().map(|member| member.client.identity().token);
    fabric.gone.lock().expect("not poisoned").extend(tokens);
}

/// A slot is free as soon as its owner is shut out; what it had declared stands until the lock is claimed.
#[test]
fn who_inherits_a_slot_leaves_the_intents_in_it_alone() {
    let (fabric, pool) = mortals(Delivery::Immediate);
    let dead = join(&fabric, &pool);
    let theirs = dead.session();
    let lock = Lock { at: pool.geometry(NODE).chunk(NODE, 0), mask: 1 };
    let other = Lock { at: lock.at.add(64), mask: 1 };
    let (cell, _) = take(&dead, &theirs, lock);
    let (behind, _) = take(&dead, &theirs, other);
    dead.run(span_of(&theirs).cas(other.at, 1, 0)).expect("released, and not cleared");
    declare_gone(&fabric, std::slice::from_ref(&dead));
    let witness = join(&fabric, &pool);
    let watching = witness.session();
    assert_eq!(witness.run(witness.client.evict_expired(&witness.endpoint)), Ok(1));
    assert_eq!(standing(&witness, &watching), 2);
    let next = join(&fabric, &pool);
    assert_eq!(next.client.slot(), 0);
    assert_eq!(standing(&witness, &watching), 1, "the lock behind the other one was free");
    let session = Rc::new(next.session());
    let cells: Vec<_> = (0..15).map(|_| next.run(session.intent_cell(NODE)).expect("free")).collect();
    let executor = Executor::new();
    let waiting = executor.spawn({
        let session = Rc::clone(&session);
        async move { session.intent_cell(NODE).await.is_ok() }
    });
    executor.run_ready();
    assert!(!waiting.is_finished(), "the last one is the dead one's");
    assert!(matches!(claim(&witness, &watching, lock, 1), Claim::Taken(_)));
    assert!(executor.block_on(&next.endpoint, waiting), "cleared by whoever claimed the lock");
    drop(cells);
    std::mem::forget((cell, behind));
}

/// Two clients claim one lock, batch by batch in every order.
#[test]
fn of_two_takers_one_wins() {
    let (mut firsts, mut seconds) = (0, 0);
    for seed in 0..60 {
        let (fabric, pool) = mortals(Delivery::Deferred);
        let lock = Lock { at: pool.geometry(NODE).chunk(NODE, 0), mask: 1 };
        let dead: Vec<_> = (0..3).map(|_| join(&fabric, &pool)).collect();
        let sessions: Vec<_> = dead.iter().map(Member::session).collect();
        let cells: Vec<_> = dead.iter().zip(&sessions).map(|(member, session)| take(member, session, lock)).collect();
        let takers = [join(&fabric, &pool), join(&fabric, &pool)];
        declare_gone(&fabric, &dead);
        let mut rng = Rng::new(seed);
        let executor = Executor::new();
        let won: Rc<RefCell<Vec<usize>>> = Rc::default();
        let tasks: Vec<_> = (0..2)
            .map(|i| {
                let (client, endpoint) = (Arc::clone(&takers[i].client), takers[i].endpoint.clone());
                let won = Rc::clone(&won);
                let late = rng.below(8);
                executor.spawn(async move {
                    let session = client.session(endpoint);
                    for _ in 0..late {
                        client.tick(session.endpoint()).await.expect("the lease holds");
                    }
                    for _ in 0..20 {
                        client.tick(session.endpoint()).await.expect("the lease holds");
                        let span = session.span(OpKind::Other);
                        if let Claim::Taken(taken) =
                            session.claim(&span, lock, None, 1, [0; 4]).await.expect("no errors")
                        {
                            won.borrow_mut().push(i);
                            std::mem::forget(taken);
                            return;
                        }
                    }
                })
            })
            .collect();
        let endpoints = takers.iter().map(|taker| taker.endpoint.clone()).collect();
        let driver = Shuffle { endpoints, rng: RefCell::new(rng) };
        for task in tasks {
            executor.block_on(&driver, task);
        }
        let won = won.borrow();
        assert_eq!(won.len(), 1, "seed {seed}");
        firsts += usize::from(won[0] == 0);
        seconds += usize::from(won[0] == 1);
        std::mem::forget(cells);
    }
    assert!(firsts > 0 && seconds > 0, "no race: {firsts} to {seconds}");
}

#[test]
fn a_dead_holder_of_the_catalog_is_succeeded() {
    let rig = rig();
    let (dead, member) = (rig.join(), rig.join());
    let (theirs, session) = (dead.session(), member.session());
    let at = header_word(HOME, header::CATALOG_LOCK);
    let span = theirs.span(OpKind::Other);
    let cell = dead.run(theirs.intent_cell(HOME)).expect("free");
    let mut batch = span.batch();
    cell.declare(&mut batch, &Intent { index: 0, lock: Lock { at, mask: u64::MAX }, what: [0; 4] });
    batch.cas(at, 0, dead.client.slot() + 1);
    dead.run(batch.post()).expect("taken");
    let span = session.span(OpKind::Other);
    let kind = farindex_pool::catalog::KindTag { kind: 3, version: 1, config_version: 1 };
    let add = farindex_pool::catalog::add(&session, &span, "late", 7, kind, RemotePtr::new(NODE, 4096), &[0; 64]);
    member.run(add).expect("claimed");
    assert_eq!((rig.peek(at, 1), standing(&member, &session)), (vec![0], 0));
    std::mem::forget(cell);
}

/// Somebody takes a slot, and dies before it begins.
#[test]
fn a_slot_whose_owner_never_arrived_is_taken_back() {
    let rig = rig();
    let member = rig.join();
    let slot = rig.pool.geometry(HOME).client(3);
    rig.poke(slot, &[5 << 8 | 2]);
    let epoch = || rig.peek(header_word(HOME, header::EPOCH), 1)[0];
    let before = epoch();
    member.tick();
    member.tick();
    assert!(epoch() <= before + 1, "it may be about to begin");
    member.run(member.client.wait_and_evict_expired(&member.endpoint)).expect("waits");
    assert_eq!(rig.peek(slot, 1), [5 << 8]);
    assert!(epoch() > before + 1);
}

/// All slots are taken by clients that give no sign of life.
#[test]
fn the_slots_of_the_silent_are_given_to_others() {
    let rig = rig();
    let silent: Vec<_> = (0..8).map(|_| rig.join()).collect();
    let identity = rig.fabric.new_identity();
    let endpoint = rig.fabric.connect(&identity).expect("connects");
    let next = block_on(&endpoint, Client::register(&rig.pool, identity, &endpoint)).expect("a slot");
    assert_eq!(silent[next.slot() as usize].run(silent[0].client.tick(&silent[0].endpoint)), Err(PoolError::LeaseLost));
}

/// Evicts a client batch by batch. Was its slot free while its verbs still took effect? Is it free in the end, and does
/// none take effect then?
fn evicted_step_by_step(faults: &[Fault]) -> (bool, bool) {
    let (fabric, pool) = mortals(Delivery::Deferred);
    let (victim, witness) = (join(&fabric, &pool), join(&fabric, &pool));
    let theirs = victim.session();
    let at = pool.geometry(NODE).chunk(NODE, 0);
    let slot = pool.geometry(HOME).client(victim.client.slot());
    declare_gone(&fabric, std::slice::from_ref(&victim));
    let works = || victim.run(span_of(&theirs).faa(at, 1)).is_ok();
    let freed = || peek(&fabric.inner, slot, 1)[0] & 0xFF == 0;
    plant(faults);
    let executor = Executor::new();
    let evicting = executor.spawn({
        let (client, endpoint) = (Arc::clone(&witness.client), witness.endpoint.clone());
        async move { client.evict_expired(&endpoint).await }
    });
    let mut early = false;
    for _ in 0..100 {
        executor.run_ready();
        early |= freed() && works();
        witness.endpoint.progress();
    }
    plant(&[]);
    assert!(evicting.is_finished());
    (early, freed() && !works())
}

#[test]
fn a_slot_is_free_only_when_nothing_of_its_owner_takes_effect() {
    assert_eq!(evicted_step_by_step(&[]), (false, true));
    // A test that could not tell would be none.
    assert_eq!(evicted_step_by_step(&[Fault::FreedBeforeRevocation]), (true, true));
    assert_eq!(evicted_step_by_step(&[Fault::NoRevocation]), (true, false));
}

/// The epoch moves on beside a client that is gone in the midst of an operation. Does anything of it still take effect?
fn passed_over(faults: &[Fault]) -> (u64, bool) {
    let (fabric, pool) = mortals(Delivery::Immediate);
    let (victim, witness) = (join(&fabric, &pool), join(&fabric, &pool));
    let theirs = victim.session();
    let _pin = theirs.pin(span_of(&theirs)).expect("a pin");
    let epoch = || peek(&fabric.inner, header_word(HOME, header::EPOCH), 1)[0];
    let before = epoch();
    (0..8).for_each(|_| witness.tick());
    assert!(epoch() <= before + 1, "it holds the epoch as long as it lives");
    declare_gone(&fabric, std::slice::from_ref(&victim));
    plant(faults);
    (0..8).for_each(|_| witness.tick());
    plant(&[]);
    (epoch() - before, victim.run(span_of(&theirs).faa(pool.geometry(NODE).chunk(NODE, 0), 1)).is_ok())
}

#[test]
fn the_epoch_passes_over_nobody_who_is_not_shut_out() {
    let (epochs, works) = passed_over(&[]);
    assert!(epochs > 2 && !works, "{epochs} epochs later, its verbs take effect: {works}");
    let (epochs, works) = passed_over(&[Fault::EpochSkipsRevocation]);
    assert!(epochs > 2 && works, "a test that could not tell would be none");
}
