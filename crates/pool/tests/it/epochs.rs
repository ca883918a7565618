//! Clients and epochs: registration, heartbeats, and that no memory is reused that a pinned operation can
//! reach.

use crate::common::{CHUNK, GoneFabric, Member, NODE, Rig, Rng, Shuffle, block_on, peek, poke, region, small};
use farindex_fabric::memory::Delivery;
use farindex_fabric::{Executor, Fabric, MemoryFabric, OpKind, RemotePtr};
use farindex_pool::audit::Audit;
use farindex_pool::layout::{HOME, header, header_word};
use farindex_pool::{Client, Pool, PoolError, PoolOptions, Session, clients};
use farindex_sim::{Config, Preset, Sim};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const BYTES: u64 = 1000;

fn epoch(rig: &Rig) -> u64 {
    rig.peek(header_word(HOME, header::EPOCH), 1)[0]
}

#[test]
fn retired_block_is_not_reused_while_an_older_pin_exists() {
    let rig = Rig::new(8);
    let (writer, reader) = (rig.join(), rig.join());
    let (writes, reads) = (writer.session(), reader.session());
    let blocks: Vec<_> = std::iter::from_fn(|| writer.alloc(&writes, BYTES).ok()).collect();
    let span = || writes.span(OpKind::Other);
    for _ in 0..3 {
        writer.tick();
        reader.tick();
    }
    let pin = reads.pin(reads.span(OpKind::Get)).expect("holds");
    writer.retire(&writes, blocks[0], BYTES);
    for _ in 0..20 {
        writer.tick();
        reader.tick();
        assert!(epoch(&rig) <= pin.epoch() + 1, "E1");
        assert!(matches!(writer.run(writes.alloc_now(&span(), NODE, BYTES)), Err(PoolError::Full { .. })));
    }
    drop(pin);
    for _ in 0..4 {
        writer.tick();
        reader.tick();
    }
    assert_eq!(writer.run(writes.alloc_now(&span(), NODE, BYTES)), Ok(blocks[0]));
}

#[test]
fn oldest_operation_of_a_session_holds_the_epoch() {
    let rig = Rig::new(8);
    let member = rig.join();
    let session = member.session();
    let pin = |kind| session.pin(session.span(kind)).expect("holds");
    let first = pin(OpKind::Get);
    member.tick();
    let second = pin(OpKind::Get);
    assert_eq!(second.epoch(), first.epoch() + 1);
    for _ in 0..3 {
        member.tick();
    }
    assert_eq!(epoch(&rig), first.epoch() + 1);
    drop(first);
    for _ in 0..3 {
        member.tick();
    }
    assert_eq!(epoch(&rig), second.epoch() + 1);
    // A third operation joins, and the second ends.
    let third = pin(OpKind::Get);
    drop(second);
    for _ in 0..3 {
        member.tick();
    }
    assert_eq!(epoch(&rig), third.epoch() + 1);
}

/// A drop says who is in its way.
#[test]
fn who_keeps_the_epoch_is_named_also_where_it_is_the_client_itself() {
    let rig = Rig::new(8);
    let (one, other) = (rig.join(), rig.join());
    let sessions = (one.session(), other.session());
    let tick = || {
        for _ in 0..4 {
            one.tick();
            other.tick();
        }
    };
    let named = || {
        let span = sessions.0.span(OpKind::Other);
        one.run(sessions.0.client().laggards(&span)).expect("a look")
    };
    tick();
    let pin = sessions.0.pin(sessions.0.span(OpKind::Get)).expect("holds");
    tick();
    assert_eq!(named(), "an operation of this client");
    drop(pin);
    tick();
    let pin = sessions.1.pin(sessions.1.span(OpKind::Get)).expect("holds");
    tick();
    assert!(named().starts_with(&format!("client {} ", sessions.1.client().slot())), "{}", named());
    drop(pin);
}

#[test]
fn hold_keeps_the_epoch_after_its_operation_and_session_end() {
    let rig = Rig::new(8);
    let member = rig.join();
    let session = member.session();
    let pin = session.pin(session.span(OpKind::Upsert)).expect("holds");
    let (pinned, hold) = (pin.epoch(), pin.hold());
    drop(pin);
    for _ in 0..3 {
        member.tick();
    }
    assert_eq!(epoch(&rig), pinned + 1);
    drop(session);
    for _ in 0..3 {
        member.tick();
    }
    assert_eq!(epoch(&rig), pinned + 1);
    drop(hold);
    for _ in 0..3 {
        member.tick();
    }
    assert!(epoch(&rig) > pinned + 1);
}

#[test]
fn shared_value_is_made_once_and_dropped_with_its_last_holder() {
    let rig = Rig::new(8);
    let member = rig.join();
    let (one, other) = (member.session(), member.session());
    let made = AtomicU64::new(0);
    let make = || made.fetch_add(1, Ordering::Relaxed);
    let shared: Arc<u64> = one.client().share(7, make);
    assert!(Arc::ptr_eq(&shared, &other.client().share(7, make)));
    let text: Arc<String> = other.client().share(7, || "of another type".to_owned());
    let apart: Arc<u64> = other.client().share(8, make);
    assert_eq!((*shared, *apart, text.len()), (0, 1, 15));
    drop(shared);
    assert_eq!(*one.client().share::<u64>(7, make), 2);
}

#[test]
fn epoch_waits_for_silent_clients_and_not_for_idle_closed_or_gone_ones() {
    let inner = MemoryFabric::new(1, region(8, 8)).expect("enough memory");
    let fabric = Arc::new(GoneFabric { inner: inner.clone(), gone: Mutex::default() });
    let endpoint = fabric.connect(&fabric.new_identity()).expect("connects");
    let pool = block_on(&endpoint, Pool::create(fabric.clone(), &endpoint, &small())).expect("created");
    let join = || {
        let identity = fabric.new_identity();
        let endpoint = fabric.connect(&identity).expect("connects");
        let client = block_on(&endpoint, Client::register(&pool, identity, &endpoint)).expect("a slot");
        Member { endpoint, client }
    };
    let epoch = || peek(&inner, header_word(HOME, header::EPOCH), 1)[0];
    let member = join();
    let moves = || {
        let before = epoch();
        for _ in 0..3 {
            member.tick();
        }
        epoch() - before
    };
    assert_eq!(moves(), 3, "alone");
    let idle = join();
    assert!(moves() <= 1, "a silent client holds the epoch");
    let before = epoch();
    for _ in 0..3 {
        idle.tick();
        member.tick();
    }
    assert!(epoch() - before >= 3, "an idle one that ticks does not");
    idle.close();
    assert_eq!(moves(), 3, "nor does a closed one");
    let gone = join();
    assert!(moves() <= 1);
    fabric.gone.lock().expect("not poisoned").insert(gone.client.identity().token);
    // Nobody asks whether one is gone that was heard of just now.
    std::thread::sleep(pool.lease() / 256);
    assert!(moves() >= 2, "nor one that is known to be gone");
    let span = member.endpoint.span(OpKind::Other);
    let all = member.run(clients(&pool, &span)).expect("read");
    assert_eq!(all.iter().map(|client| client.gone).collect::<Vec<_>>(), [Some(false)], "it was evicted");
}

/// A simulated run must be the same at any time of day (docs/bugs/076).
#[test]
fn registration_posts_the_same_verbs_at_any_time_of_day() {
    let rig = Rig::new(8);
    let first = rig.join();
    let slot = rig.pool.geometry(HOME).client(first.client.slot());
    let since = slot.add(std::mem::offset_of!(farindex_pool::layout::ClientSlot, since) as u64);
    first.close();
    let mut costs = Vec::new();
    for differs in [false, true, false] {
        let time = rig.peek(since, 1)[0];
        rig.poke(since, &[time + u64::from(differs)]);
        let member = rig.join();
        costs.push(member.endpoint.meter().total().cas);
        member.close();
    }
    assert!(costs[0] > 0 && costs.iter().all(|cost| *cost == costs[0]), "{costs:?}");
}

/// A client registers while another one ticks, in orders drawn from seeds.
#[test]
fn registration_during_a_heartbeat_keeps_the_epoch_bound() {
    for seed in 0..200 {
        let rig = Rig::new(8);
        let old = rig.join_with(Delivery::Deferred);
        let identity = rig.fabric.new_identity();
        let endpoint = rig.fabric.with_delivery(Delivery::Deferred).connect(&identity).expect("connects");
        let driver =
            Shuffle { endpoints: vec![old.endpoint.clone(), endpoint.clone()], rng: RefCell::new(Rng::new(seed)) };
        let executor = Executor::new();
        let ticks = executor.spawn({
            let (client, endpoint) = (Arc::clone(&old.client), old.endpoint.clone());
            async move {
                for _ in 0..5 {
                    client.tick(&endpoint).await.expect("ticks");
                }
            }
        });
        let pool = rig.pool.clone();
        let joined = executor.spawn(async move { Client::register(&pool, identity, &endpoint).await });
        let new = executor.block_on(&driver, joined).expect("a slot");
        let session = new.session(old.endpoint.clone());
        let pin = session.pin(session.span(OpKind::Get)).expect("holds");
        executor.block_on(&driver, ticks);
        assert!(epoch(&rig) <= pin.epoch() + 1, "seed {seed}: E1");
    }
}

#[test]
fn heartbeat_works_after_a_cancelled_tick() {
    let rig = Rig::new(8);
    let member = rig.join_with(Delivery::Deferred);
    let executor = Executor::new();
    let task = executor.spawn({
        let (client, endpoint) = (Arc::clone(&member.client), member.endpoint.clone());
        async move { client.tick(&endpoint).await }
    });
    executor.run_ready();
    drop(task);
    executor.run_ready();
    let before = epoch(&rig);
    for _ in 0..3 {
        member.tick();
    }
    assert!(epoch(&rig) >= before + 3);
}

#[test]
fn evicted_client_gets_an_error() {
    let rig = Rig::new(8);
    let member = rig.join();
    let session = member.session();
    let slot = rig.pool.geometry(HOME).client(member.client.slot());
    let state = rig.peek(slot, 1)[0];
    rig.poke(slot, &[state & !0xFF]);
    assert_eq!(member.run(member.client.tick(&member.endpoint)), Err(PoolError::LeaseLost));
    assert!(member.client.is_lost());
    let refused = session.pin(session.span(OpKind::Get)).err().expect("refused");
    assert_eq!(
        refused.to_string(),
        "this client's lease expired and another client evicted it; open the pool again to go on"
    );
    drop(session);
    assert_eq!(member.run(Arc::clone(&member.client).close(&member.endpoint)), Err(PoolError::LeaseLost));
    // The evicted client has written nothing to the slot: another one can take it.
    let next = rig.join();
    assert_eq!(next.client.slot(), member.client.slot());
}

#[test]
fn client_slots_run_out_and_become_free_again() {
    let rig = Rig::new(8);
    let mut members: Vec<_> = (0..8).map(|_| rig.join()).collect();
    let slots: Vec<_> = members.iter().map(|member| member.client.slot()).collect();
    assert_eq!(slots, [0, 1, 2, 3, 4, 5, 6, 7]);
    // Their heartbeats: without one for a lease, a client loses its slot.
    let stop = std::sync::atomic::AtomicBool::new(false);
    let all: Vec<_> = members.iter().map(|member| Arc::clone(&member.client)).collect();
    let refused = std::thread::scope(|scope| {
        scope.spawn(|| {
            let kept: Vec<_> = all.iter().map(|client| (client, rig.fabric.connect(client.identity()))).collect();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                for (client, endpoint) in &kept {
                    let endpoint = endpoint.as_ref().expect("connects");
                    block_on(endpoint, client.tick(endpoint)).expect("the lease holds");
                }
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        });
        let identity = rig.fabric.new_identity();
        let endpoint = rig.fabric.connect(&identity).expect("connects");
        let refused = block_on(&endpoint, Client::register(&rig.pool, identity, &endpoint)).err().expect("refused");
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        refused
    });
    drop(all);
    assert_eq!(
        refused.to_string(),
        "all 8 client slots of the pool are taken; close a client, or wait until the lease of a crashed one has expired"
    );
    members.remove(3).close();
    assert_eq!(rig.join().client.slot(), 3);
}

#[test]
fn concurrent_registrations_get_different_slots() {
    for seed in 0..50 {
        let rig = Rig::new(8);
        let executor = Executor::new();
        let mut endpoints = Vec::new();
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let identity = rig.fabric.new_identity();
                let endpoint = rig.fabric.with_delivery(Delivery::Deferred).connect(&identity).expect("connects");
                endpoints.push(endpoint.clone());
                let pool = rig.pool.clone();
                executor.spawn(async move { Client::register(&pool, identity, &endpoint).await })
            })
            .collect();
        let driver = Shuffle { endpoints, rng: RefCell::new(Rng::new(seed)) };
        let mut slots = executor.block_on(&driver, async {
            let mut slots = Vec::new();
            for task in tasks {
                slots.push(task.await.expect("a slot for each").slot());
            }
            slots
        });
        slots.sort_unstable();
        assert_eq!(slots, [0, 1, 2, 3, 4, 5, 6, 7], "seed {seed}");
    }
}

#[test]
fn damaged_epoch_is_reported() {
    let rig = Rig::new(8);
    let member = rig.join();
    for _ in 0..3 {
        member.tick();
    }
    for damaged in [0, 1, u64::MAX, 1 << 63] {
        rig.poke(header_word(HOME, header::EPOCH), &[damaged]);
        let error = member.run(member.client.tick(&member.endpoint)).expect_err("refused");
        assert!(matches!(error, PoolError::Corrupt { .. }), "{error}");
    }
}

/// Words in far memory that point to blocks. A block contains a mark of its word. A reader that finds another mark has
/// followed a pointer into reused memory.
struct Table {
    words: RemotePtr,
    len: u64,
}

const MARK: u64 = 0xB10C << 48;

impl Table {
    fn word(&self, i: u64) -> RemotePtr {
        self.words.add(i * 8)
    }

    async fn update(&self, session: &Session, rng: &mut Rng) {
        let i = rng.below(self.len);
        let span = session.span(OpKind::Other);
        let bytes = BYTES + rng.below(3) * 500;
        let Ok(block) = session.alloc_now(&span, NODE, bytes).await else { return };
        let mark = session.endpoint().buf_from_words(&[MARK | i, bytes]);
        span.write(block, mark).await.expect("written");
        let pin = session.pin(session.span(OpKind::Update)).expect("holds");
        let seen = pin.span().read(self.word(i), 8).await.expect("read").words()[0];
        let old = RemotePtr::from_bits(seen);
        let mut old_bytes = 0;
        if !old.is_null() {
            let found = pin.span().read(old, 16).await.expect("read");
            assert_eq!(found.words()[0], MARK | i, "the block at {old} was reused under a pin");
            old_bytes = found.words()[1];
        }
        if pin.span().cas(self.word(i), seen, block.to_bits()).await.expect("posted") != seen {
            session.discard(block, bytes);
        } else if !old.is_null() {
            pin.retire(old, old_bytes);
        }
    }

    async fn get(&self, session: &Session, rng: &mut Rng, pause: impl AsyncFn()) {
        let i = rng.below(self.len);
        let pin = session.pin(session.span(OpKind::Get)).expect("holds");
        let seen = pin.span().read(self.word(i), 8).await.expect("read").words()[0];
        if seen == 0 {
            return;
        }
        pause().await;
        let ptr = RemotePtr::from_bits(seen);
        let found = pin.span().read(ptr, 16).await.expect("read");
        assert_eq!(found.words()[0], MARK | i, "the block at {ptr} was reused under a pin");
    }
}

fn table(rig: &Rig, len: u64) -> Table {
    let member = rig.join();
    let session = member.session();
    let span = session.span(OpKind::Other);
    let words = member.run(session.alloc_zeroed(&span, NODE, CHUNK)).expect("fits");
    drop(session);
    member.close();
    Table { words, len }
}

/// Clients on one thread with several operations in flight each. Their batches take effect in an order drawn from a
/// seed. The pool is so small that every free block is reused at once.
#[test]
fn pinned_readers_never_see_reused_memory_interleaved() {
    for seed in 0..20 {
        let rig = Rig::new(8);
        let table = Rc::new(table(&rig, 6));
        let members: Vec<_> = (0..3).map(|_| rig.join_with(Delivery::Deferred)).collect();
        let endpoints: Vec<_> = members.iter().map(|member| member.endpoint.clone()).collect();
        let driver = Shuffle { endpoints, rng: RefCell::new(Rng::new(seed)) };
        let executor = Executor::new();
        let mut tasks = Vec::new();
        for (number, member) in (0..).zip(&members) {
            // Two sessions of one client, three operations in flight each.
            for s in 0..2 {
                let session = Rc::new(member.session());
                for coroutine in 0..3 {
                    let (session, table) = (Rc::clone(&session), Rc::clone(&table));
                    let mut rng = Rng::new(seed * 100 + number * 10 + s * 3 + coroutine);
                    tasks.push(executor.spawn(async move {
                        for step in 0..60 {
                            match coroutine {
                                0 => {
                                    // A slow reader.
                                    let endpoint = session.endpoint().clone();
                                    let word = table.word(0);
                                    let pause = async || {
                                        let span = endpoint.span(OpKind::Other);
                                        for _ in 0..6 {
                                            span.read(word, 8).await.expect("read");
                                        }
                                    };
                                    table.get(&session, &mut rng, pause).await;
                                }
                                _ => table.update(&session, &mut rng).await,
                            }
                            if step % 4 == 0 {
                                session.maintain().await.expect("maintained");
                            }
                        }
                    }));
                }
            }
        }
        executor.block_on(&driver, async {
            for task in tasks {
                task.await;
            }
        });
    }
}

#[test]
fn pinned_readers_never_see_reused_memory_threads() {
    let rig = Rig::new(10);
    let table = &table(&rig, 8);
    let reads = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for client in 0..2_u64 {
            let member = rig.join();
            let identity = *member.client.identity();
            let client_of_threads = Arc::clone(&member.client);
            for thread in 0..2_u64 {
                let (rig, reads) = (rig.clone(), &reads);
                let client_of_thread = Arc::clone(&client_of_threads);
                scope.spawn(move || {
                    let endpoint = rig.fabric.connect(&identity).expect("connects");
                    let session = client_of_thread.session(endpoint.clone());
                    let mut rng = Rng::new(client * 10 + thread + 1);
                    for step in 0..4000_u64 {
                        if thread == 0 {
                            block_on(&endpoint, table.update(&session, &mut rng));
                        } else {
                            block_on(&endpoint, table.get(&session, &mut rng, async || std::thread::yield_now()));
                            reads.fetch_add(1, Ordering::Relaxed);
                        }
                        if step % 16 == 0 {
                            block_on(&endpoint, session.maintain()).expect("maintained");
                        }
                    }
                });
            }
        }
    });
    assert_eq!(reads.load(Ordering::Relaxed), 8000);
}

/// Slots with random content.
#[test]
fn damaged_client_slots_cause_no_failure() {
    let rig = Rig::new(8);
    let member = rig.join();
    let geometry = rig.pool.geometry(HOME);
    let mut rng = Rng::new(5);
    for _ in 0..200 {
        let words: Vec<u64> = (0..8).map(|_| rng.next() << rng.below(16)).collect();
        poke(&rig.fabric, geometry.client(1 + rng.below(7)), &words);
        member.tick();
        let span = member.endpoint.span(OpKind::Other);
        member.run(clients(&rig.pool, &span)).expect("read");
    }
    rig.poke(geometry.client(1), &[u64::MAX << 8]);
    assert_eq!(rig.join().client.slot(), 1, "the generation wraps");
}

/// The network is so slow that the grace period takes longer than a lease.
#[test]
fn drain_waits_for_as_long_as_the_epoch_advances() {
    let lease = Duration::from_millis(1);
    let model = Preset { read_ns: 300_000, ..Preset::shard() };
    let config = Config { node_len: 4 << 20, model: Some(model), ..Config::default() };
    let sim = Sim::new(1, config).expect("a world");
    let (me, fabric) = (sim.harness(), sim.fabric());
    let drained = sim.block_on(async move {
        let endpoint = me.connect();
        let pool = Pool::create(fabric, &endpoint, &PoolOptions { lease, ..PoolOptions::default() }).await?;
        let client = Client::register(&pool, me.identity(), &endpoint).await?;
        let session = client.session(endpoint.clone());
        let span = session.span(OpKind::Other);
        let block = session.alloc(&span, NODE, BYTES).await?;
        session.pin(session.span(OpKind::Other))?.retire(block, BYTES);
        let began = endpoint.now();
        session.drain().await?;
        let took = endpoint.now() - began;
        let report = Audit::begin(&session, &span).await?.settle(&session, &span).await?;
        Ok::<_, PoolError>((took, report.alone, report.lost))
    });
    let (took, alone, lost) = drained.expect("it ends").expect("sound");
    assert!(took > lease, "{took:?}");
    assert_eq!((alone, lost), (true, 0));
}

/// Who keeps the epoch from advancing holds up one allocation of an operation for a lease, not each of them (bug 189).
#[test]
fn allocations_in_a_full_pool_wait_for_a_lease_together() {
    let lease = Duration::from_millis(100);
    let config = Config { node_len: 4 << 20, ..Config::default() };
    let sim = Sim::new(1, config).expect("a world");
    let (me, fabric) = (sim.harness(), sim.fabric());
    let waited = sim.block_on(async move {
        let endpoint = me.connect();
        let pool = Pool::create(fabric, &endpoint, &PoolOptions { lease, ..PoolOptions::default() }).await?;
        let client = Client::register(&pool, me.identity(), &endpoint).await?;
        let session = client.session(endpoint.clone());
        let span = session.span(OpKind::Other);
        let mut blocks = Vec::new();
        while let Ok(block) = session.alloc_now(&span, NODE, BYTES).await {
            blocks.push(block);
        }
        let reads = client.session(endpoint.clone());
        let held = reads.pin(reads.span(OpKind::Get))?;
        held.retire(blocks.pop().expect("some"), BYTES);
        session.pin(session.span(OpKind::Other))?.retire(blocks.pop().expect("some"), BYTES);
        let mut waited = Vec::new();
        for pause in [0, 0, 0, 2] {
            endpoint.sleep(lease * pause).await;
            let began = endpoint.now();
            let full = session.alloc(&span, NODE, BYTES).await;
            assert!(matches!(full, Err(PoolError::Full { .. })), "{full:?}");
            waited.push(endpoint.now() - began);
        }
        drop(held);
        session.alloc(&span, NODE, BYTES).await?;
        Ok::<_, PoolError>(waited)
    });
    let waited = waited.expect("it ends").expect("there is room once the pin is gone");
    assert!(waited[0] >= lease && waited[1] + waited[2] < lease / 4, "{waited:?}");
    // Nobody has waited for a lease: then nobody has asked for the next epoch either.
    assert!(waited[3] >= lease, "{waited:?}");
}
