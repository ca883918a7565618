//! Expired leases, eviction, and the takeover of locks.

use crate::common::{CHUNK, GoneFabric, Member, NODE, Rig, Rng, Shuffle, block_on, peek, region};
use farindex_fabric::memory::Delivery;
use farindex_fabric::{Driver, Executor, Fabric, FabricError, MemoryFabric, OpKind, RemotePtr, Span};
use farindex_pool::faults::{Fault, plant};
use farindex_pool::layout::{EVICTING, HOME, header, header_word};
use farindex_pool::{
    Claim, Client, ClientInfo, Intent, IntentCell, Lock, Pool, PoolError, PoolOptions, Session, clients, intent,
};
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

/// Declares an intent, and takes the lock if it is free.
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
    cell.cleared();
}

/// Claims until the lock is taken over, or this many leases have passed.
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

fn declared(member: &Member, session: &Session) -> usize {
    member.run(intent::intents(session, &session.span(OpKind::Other), NODE)).expect("read").len()
}

#[test]
fn takeover_of_an_expired_client_revokes_it() {
    let rig = rig();
    let (silent, taker) = (rig.join(), rig.join());
    let (theirs, mine) = (silent.session(), taker.session());
    let lock = lock(&rig);
    let (cell, won) = take(&silent, &theirs, lock);
    assert!(won);
    let Claim::Taken(taken) = claim(&taker, &mine, lock, 10) else { panic!("not claimed") };
    assert_eq!(taken.candidates.iter().map(|intent| intent.what).collect::<Vec<_>>(), [[0; 4]]);
    assert_eq!(rig.peek(lock.at, 1), [1], "it is held until the new holder releases it");
    // The expired client continues: none of its verbs takes effect.
    let span = theirs.span(OpKind::Other);
    assert_eq!(silent.run(span.cas(lock.at, 1, 0)), Err(FabricError::Revoked));
    assert_eq!(silent.run(silent.client.tick(&silent.endpoint)), Err(PoolError::LeaseLost));
    assert!(theirs.pin(theirs.span(OpKind::Get)).is_err());
    release(&taker, &mine.span(OpKind::Other), taken.cell.as_ref().expect("its own"), lock);
    assert_eq!((rig.peek(lock.at, 1), declared(&taker, &mine)), (vec![0], 0));
    assert_eq!(taker.run(clients(&rig.pool, &span_of(&mine))).expect("read").len(), 1);
    drop(cell);
}

/// A pool with two slots: so many clients have left intents in both of their cells, and one of them holds the lock that all name.
fn without_usable_cells(clients: u64) -> Rig {
    let (intent_cells, chunk_size) = (Some(2), Some(CHUNK));
    let options = PoolOptions { client_slots: 2, intent_cells, chunk_size, ..PoolOptions::default() };
    let options = PoolOptions { lease: Duration::from_millis(60), ..options };
    let rig = Rig::with(1, region(8, 2), &options);
    for client in 0..clients {
        let gone = rig.join();
        let theirs = gone.session();
        for cell in 0..2 {
            assert_eq!(take(&gone, &theirs, lock(&rig)).1, (client, cell) == (0, 0));
        }
        drop(theirs);
        gone.close();
    }
    rig
}

/// Who comes after it in its slot could neither write nor take that lock over, so it takes another slot (docs/bugs/224).
#[test]
fn a_client_takes_a_slot_in_which_it_has_an_intent_cell() {
    let rig = without_usable_cells(1);
    let other = rig.join();
    other.run(other.client.wait_and_evict_expired(&other.endpoint)).expect("evicted");
    other.close();
    let second = rig.join();
    assert_eq!(second.client.slot(), 1);
    let (mine, lock) = (second.session(), lock(&rig));
    let Claim::Taken(taken) = claim(&second, &mine, lock, 10) else { panic!("not claimed") };
    assert_eq!(taken.candidates.len(), 2);
    release(&second, &span_of(&mine), taken.cell.as_ref().expect("its own"), lock);
    // Both cells of the first slot are usable again.
    assert_eq!(rig.join().client.slot(), 0);
}

/// There is no other slot: the client can look, and an operation that waits for a cell is told whose intents are there.
#[test]
fn a_client_takes_a_slot_without_an_intent_cell_if_there_is_no_other() {
    let rig = without_usable_cells(2);
    let only = rig.join();
    let session = only.session();
    let refused = only.run(session.intent_cell(NODE)).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(refused.contains("clients that had its slot before"), "{refused}");
}

fn span_of(session: &Session) -> Span {
    session.span(OpKind::Other)
}

#[test]
fn takeover_never_takes_a_lock_from_a_client_that_keeps_its_lease() {
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

/// Also a lock of the same client; and another client can take the slot as soon as the client has left.
#[test]
fn takeover_takes_an_abandoned_lock_of_a_live_client() {
    let rig = rig();
    let (owner, taker) = (rig.join(), rig.join());
    let mine = taker.session();
    let lock = lock(&rig);
    {
        let theirs = owner.session();
        let span = span_of(&theirs);
        let (cell, won) = take(&owner, &theirs, lock);
        assert!(won);
        owner.run(cell.abandon_lock(&span)).expect("abandoned");
        drop(cell);
        assert_eq!((rig.peek(lock.at, 1), declared(&taker, &mine)), (vec![1], 1));
        let Claim::Taken(taken) = claim(&owner, &theirs, lock, 0) else { panic!("not claimed") };
        assert_eq!(taken.candidates.iter().map(|intent| intent.what).collect::<Vec<_>>(), [[0; 4]]);
        owner.run(taken.cell.expect("its own").abandon_lock(&span)).expect("abandoned");
        assert_eq!(owner.run(intent::holders(&theirs, &span, lock.at)).as_deref(), Ok("an unknown client"));
    }
    let slot = owner.client.slot();
    owner.run(Arc::clone(&owner.client).close(&owner.endpoint)).expect("left");
    assert_eq!(rig.join().client.slot(), slot, "the slot is free");
    let Claim::Taken(taken) = claim(&taker, &mine, lock, 0) else { panic!("not claimed") };
    let cell = taken.cell.expect("its own");
    release(&taker, &span_of(&mine), &cell, lock);
    assert_eq!((rig.peek(lock.at, 1), declared(&taker, &mine)), (vec![0], 0));
    // Without a declared intent there is nothing to abandon.
    taker.run(cell.abandon_lock(&span_of(&mine))).expect("nothing");
    assert_eq!(declared(&taker, &mine), 0);
}

#[test]
fn takeover_refuses_a_lock_that_no_intent_names() {
    let rig = rig();
    let taker = rig.join();
    let mine = taker.session();
    let lock = lock(&rig);
    rig.poke(lock.at, &[1]);
    assert!(matches!(claim(&taker, &mine, lock, 3), Claim::Busy { own: false, .. }));
    assert_eq!(rig.peek(lock.at, 1), [1]);
}

#[test]
fn takeover_clears_the_intents_of_all_candidates() {
    let rig = rig();
    let lock = lock(&rig);
    let members: Vec<_> = (0..4).map(|_| rig.join()).collect();
    let sessions: Vec<_> = members.iter().map(Member::session).collect();
    let cells: Vec<_> = members.iter().zip(&sessions).map(|(member, session)| take(member, session, lock)).collect();
    assert_eq!(cells.iter().filter(|(_, won)| *won).count(), 1);
    let taker = rig.join();
    let mine = taker.session();
    let Claim::Taken(taken) = claim(&taker, &mine, lock, 10) else { panic!("not claimed") };
    assert_eq!(taken.candidates.len(), 4);
    assert_eq!(declared(&taker, &mine), 1, "the new holder's");
    std::mem::forget(cells);
}

#[test]
fn takeover_from_a_new_holder_that_crashed_too() {
    let rig = rig();
    let lock = lock(&rig);
    let (first, second) = (rig.join(), rig.join());
    let sessions = [first.session(), second.session()];
    let (cell, _) = take(&first, &sessions[0], lock);
    let Claim::Taken(new_holder) = claim(&second, &sessions[1], lock, 10) else { panic!("not claimed") };
    let third = rig.join();
    let session = third.session();
    let Claim::Taken(taken) = claim(&third, &session, lock, 10) else { panic!("not claimed") };
    assert_eq!(taken.candidates.iter().map(|intent| intent.what).collect::<Vec<_>>(), [[9; 4]]);
    std::mem::forget((cell, new_holder));
}

/// A pool whose clients can be declared gone, so that no test has to wait for a lease.
fn gone_fabric(delivery: Delivery) -> (Arc<GoneFabric>, Pool) {
    let inner = MemoryFabric::new(1, region(8, 8)).expect("enough memory").with_delivery(delivery);
    let fabric = Arc::new(GoneFabric { inner, gone: Mutex::default() });
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

fn join(fabric: &GoneFabric, pool: &Pool) -> Member {
    let identity = fabric.new_identity();
    let endpoint = fabric.connect(&identity).expect("connects");
    let client = block_on(&endpoint, Client::register(pool, identity, &endpoint)).expect("a slot");
    Member { endpoint, client }
}

fn declare_gone(fabric: &GoneFabric, members: &[Member]) {
    let tokens = members.iter().map(|member| member.client.identity().token);
    fabric.gone.lock().expect("not poisoned").extend(tokens);
}

/// A slot is free as soon as its owner is evicted. The owner's intents stay declared until the locks are taken over.
#[test]
fn new_owner_of_a_slot_keeps_the_intents_of_the_former_owner() {
    let (fabric, pool) = gone_fabric(Delivery::Immediate);
    let gone = join(&fabric, &pool);
    let theirs = gone.session();
    let lock = Lock { at: pool.geometry(NODE).chunk(NODE, 0), mask: 1 };
    let other = Lock { at: lock.at.add(64), mask: 1 };
    let (cell, _) = take(&gone, &theirs, lock);
    let (second, _) = take(&gone, &theirs, other);
    gone.run(span_of(&theirs).cas(other.at, 1, 0)).expect("released, and not cleared");
    declare_gone(&fabric, std::slice::from_ref(&gone));
    let witness = join(&fabric, &pool);
    let watching = witness.session();
    assert_eq!(witness.run(witness.client.evict_expired(&witness.endpoint)), Ok(1));
    assert_eq!(declared(&witness, &watching), 2);
    let next = join(&fabric, &pool);
    assert_eq!(next.client.slot(), 0);
    assert_eq!(declared(&witness, &watching), 1, "the lock of the other one was free");
    let session = Rc::new(next.session());
    let cells: Vec<_> = (0..15).map(|_| next.run(session.intent_cell(NODE)).expect("free")).collect();
    let executor = Executor::new();
    let waiting = executor.spawn({
        let session = Rc::clone(&session);
        async move { session.intent_cell(NODE).await.is_ok() }
    });
    executor.run_ready();
    assert!(!waiting.is_finished(), "the last one has an intent of the former owner");
    assert!(matches!(claim(&witness, &watching, lock, 1), Claim::Taken(_)));
    assert!(executor.block_on(&next.endpoint, waiting), "cleared by the takeover of the lock");
    drop(cells);
    std::mem::forget((cell, second));
}

/// Two clients claim one lock. Their batches take effect in an order drawn from a seed.
#[test]
fn takeover_by_two_clients_succeeds_once() {
    let (mut firsts, mut seconds) = (0, 0);
    for seed in 0..60 {
        let (fabric, pool) = gone_fabric(Delivery::Deferred);
        let lock = Lock { at: pool.geometry(NODE).chunk(NODE, 0), mask: 1 };
        let gone: Vec<_> = (0..3).map(|_| join(&fabric, &pool)).collect();
        let sessions: Vec<_> = gone.iter().map(Member::session).collect();
        let cells: Vec<_> = gone.iter().zip(&sessions).map(|(member, session)| take(member, session, lock)).collect();
        let takers = [join(&fabric, &pool), join(&fabric, &pool)];
        declare_gone(&fabric, &gone);
        let mut rng = Rng::new(seed);
        let executor = Executor::new();
        let won: Rc<RefCell<Vec<usize>>> = Rc::default();
        let tasks: Vec<_> = (0..2)
            .map(|i| {
                let (client, endpoint) = (Arc::clone(&takers[i].client), takers[i].endpoint.clone());
                let won = Rc::clone(&won);
                let delay = rng.below(8);
                executor.spawn(async move {
                    let session = client.session(endpoint);
                    for _ in 0..delay {
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
fn takeover_of_the_catalog_lock_after_the_holder_crashes() {
    let rig = rig();
    let (silent, member) = (rig.join(), rig.join());
    let (theirs, session) = (silent.session(), member.session());
    let at = header_word(HOME, header::CATALOG_LOCK);
    let span = theirs.span(OpKind::Other);
    let cell = silent.run(theirs.intent_cell(HOME)).expect("free");
    let mut batch = span.batch();
    cell.declare(&mut batch, &Intent { index: 0, lock: Lock { at, mask: u64::MAX }, what: [0; 4] });
    batch.cas(at, 0, silent.client.slot() + 1);
    silent.run(batch.post()).expect("taken");
    let span = session.span(OpKind::Other);
    let kind = farindex_pool::catalog::KindTag { kind: 3, version: 1, config_version: 1 };
    let add = farindex_pool::catalog::add(&session, &span, "late", 7, kind, RemotePtr::new(NODE, 4096), &[0; 64]);
    member.run(add).expect("claimed");
    assert_eq!((rig.peek(at, 1), declared(&member, &session)), (vec![0], 0));
    std::mem::forget(cell);
}

/// A client crashes between taking a slot and finishing its registration.
#[test]
fn slot_of_an_unfinished_registration_is_freed() {
    let rig = rig();
    let member = rig.join();
    let slot = rig.pool.geometry(HOME).client(3);
    rig.poke(slot, &[5 << 8 | 2]);
    let epoch = || rig.peek(header_word(HOME, header::EPOCH), 1)[0];
    let before = epoch();
    member.tick();
    member.tick();
    assert!(epoch() <= before + 1, "the registration may still finish");
    member.run(member.client.wait_and_evict_expired(&member.endpoint)).expect("waits");
    assert_eq!(rig.peek(slot, 1), [5 << 8]);
    assert!(epoch() > before + 1);
}

/// All slots are taken by clients without heartbeats.
#[test]
fn registration_evicts_expired_clients_when_all_slots_are_taken() {
    let rig = rig();
    let silent: Vec<_> = (0..8).map(|_| rig.join()).collect();
    let identity = rig.fabric.new_identity();
    let endpoint = rig.fabric.connect(&identity).expect("connects");
    let next = block_on(&endpoint, Client::register(&rig.pool, identity, &endpoint)).expect("a slot");
    assert_eq!(silent[next.slot() as usize].run(silent[0].client.tick(&silent[0].endpoint)), Err(PoolError::LeaseLost));
}

/// Evicts a client batch by batch. Returns whether its slot was free while its verbs still took effect, and whether in
/// the end the slot is free and no verb takes effect.
fn evict_step_by_step(faults: &[Fault]) -> (bool, bool) {
    let (fabric, pool) = gone_fabric(Delivery::Deferred);
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
fn eviction_frees_a_slot_only_after_revocation() {
    assert_eq!(evict_step_by_step(&[]), (false, true));
    // The test detects the planted faults.
    assert_eq!(evict_step_by_step(&[Fault::FreedBeforeRevocation]), (true, true));
    assert_eq!(evict_step_by_step(&[Fault::NoRevocation]), (true, false));
}

/// A client whose lease has expired sends a heartbeat after this many steps of its eviction. Returns whether it is evicted in
/// the end, and whether it counts as one that keeps its lease.
fn beat_during_an_eviction(steps: usize, faults: &[Fault]) -> (bool, bool) {
    let rig = rig();
    let (victim, witness) = (rig.join(), rig.join_with(Delivery::Deferred));
    assert_eq!(witness.run(witness.client.evict_expired(&witness.endpoint)).expect("looks"), 0);
    std::thread::sleep(rig.pool.lease() + Duration::from_millis(1));
    plant(faults);
    let executor = Executor::new();
    let evicting = executor.spawn({
        let (client, endpoint) = (Arc::clone(&witness.client), witness.endpoint.clone());
        async move { client.evict_expired(&endpoint).await }
    });
    let step = || {
        executor.run_ready();
        witness.endpoint.progress();
    };
    (0..steps).for_each(|_| step());
    // It may be revoked already.
    let _ = victim.run(victim.client.tick(&victim.endpoint));
    let keeps = victim.client.keeps_lease(victim.endpoint.now());
    (0..100).for_each(|_| step());
    plant(&[]);
    assert!(evicting.is_finished());
    let slot = rig.pool.geometry(HOME).client(victim.client.slot());
    (rig.peek(slot, 1)[0] & 0xFF == 0, keeps)
}

#[test]
fn heartbeat_after_a_pause_renews_the_lease_or_does_not_count() {
    let outcomes: Vec<_> = (0..12).map(|steps| beat_during_an_eviction(steps, &[])).collect();
    assert!(!outcomes.contains(&(true, true)), "a client that was being evicted kept its lease: {outcomes:?}");
    assert!(outcomes.contains(&(false, true)) && outcomes.contains(&(true, false)), "{outcomes:?}");
    let mut outcomes = (0..12).map(|steps| beat_during_an_eviction(steps, &[Fault::LateHeartbeatCounts]));
    assert!(outcomes.any(|outcome| outcome == (true, true)), "the test detects the planted fault");
}

/// The client that has begun an eviction has crashed.
#[test]
fn eviction_that_another_client_began_is_finished() {
    let rig = rig();
    let (victim, witness) = (rig.join(), rig.join());
    let slot = rig.pool.geometry(HOME).client(victim.client.slot());
    let active = rig.peek(slot, 1)[0];
    rig.poke(slot, &[active & !0xFF | EVICTING]);
    let before = victim.client.keeps_lease(victim.endpoint.now());
    victim.tick();
    assert!(before && rig.peek(slot, 1)[0] & 0xFF == EVICTING, "among others it cannot renew its lease");
    witness.tick();
    assert_eq!(rig.peek(slot, 1)[0], active & !0xFF, "evicted");
    assert_eq!(victim.run(victim.client.tick(&victim.endpoint)), Err(PoolError::LeaseLost));
}

/// Nobody is left who could end the eviction.
#[test]
fn client_that_is_alone_ends_its_own_eviction() {
    let rig = rig();
    let member = rig.join();
    let slot = rig.pool.geometry(HOME).client(member.client.slot());
    let active = rig.peek(slot, 1)[0];
    rig.poke(slot, &[active & !0xFF | EVICTING]);
    member.tick();
    assert_eq!(rig.peek(slot, 1)[0], active + (1 << 48), "renewed once");
    assert!(member.client.keeps_lease(member.endpoint.now()));
    assert_eq!(member.client.missed_leases(), 1);
    member.run(Arc::clone(&member.client).close(&member.endpoint)).expect("closes");
    assert_eq!(rig.peek(slot, 1)[0] & 0xFF, 0, "the slot is free");
}

/// The epoch advances past a client that is gone during an operation. Returns by how much, and whether a verb of the
/// client still takes effect.
fn advance_past_a_gone_client(faults: &[Fault]) -> (u64, bool) {
    let (fabric, pool) = gone_fabric(Delivery::Immediate);
    let (victim, witness) = (join(&fabric, &pool), join(&fabric, &pool));
    let theirs = victim.session();
    let _pin = theirs.pin(span_of(&theirs)).expect("a pin");
    let epoch = || peek(&fabric.inner, header_word(HOME, header::EPOCH), 1)[0];
    let before = epoch();
    (0..8).for_each(|_| witness.tick());
    assert!(epoch() <= before + 1, "a pinned client holds the epoch");
    declare_gone(&fabric, std::slice::from_ref(&victim));
    // Nobody asks whether one is gone that was heard of just now.
    std::thread::sleep(pool.lease() / 256);
    plant(faults);
    (0..8).for_each(|_| witness.tick());
    plant(&[]);
    (epoch() - before, victim.run(span_of(&theirs).faa(pool.geometry(NODE).chunk(NODE, 0), 1)).is_ok())
}

#[test]
fn epoch_advances_past_a_client_only_after_its_eviction() {
    let (epochs, works) = advance_past_a_gone_client(&[]);
    assert!(epochs > 2 && !works, "{epochs} epochs later, its verbs take effect: {works}");
    let (epochs, works) = advance_past_a_gone_client(&[Fault::EpochSkipsRevocation]);
    assert!(epochs > 2 && works, "the test detects the planted fault");
}

/// A torn READ may mix the words of a slot's former owner and its present one. If a later heartbeat made the mixture true, an
/// observer would take it for unchanged since that READ (L1, docs/bugs/206).
#[test]
fn no_two_owners_of_a_slot_have_the_same_heartbeat() {
    let rig = rig();
    let mut highest = 0;
    for owner in 0..4 {
        let member = rig.join();
        for _ in 0..=owner {
            let slots = member.run(clients(&rig.pool, &member.endpoint.span(OpKind::Other))).expect("read");
            let [ClientInfo { slot: 0, record, .. }] = &slots[..] else { panic!("{slots:?}") };
            assert!(record.heartbeat > highest, "heartbeat {} follows {highest}", record.heartbeat);
            highest = record.heartbeat;
            member.tick();
        }
        if owner == 2 {
            // This one does not leave: the next one evicts it.
            let next = rig.join();
            next.run(next.client.wait_and_evict_expired(&next.endpoint)).expect("evicted");
            next.close();
        } else {
            member.close();
        }
        highest = highest.max(rig.peek(rig.pool.geometry(HOME).client(0), 2)[1]);
    }
}
