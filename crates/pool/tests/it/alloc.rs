//! Allocation: live objects never overlap, freed memory is reused, exhaustion loses nothing, and costs in verbs.

use crate::common::{CHUNK, Live, Member, NODE, Rig, Rng, Shuffle, block_on};
use farindex_fabric::memory::Delivery;
use farindex_fabric::{Counters, Driver, Executor, OpKind, RemotePtr};
use farindex_pool::audit::{Audit, AuditReport};
use farindex_pool::{PoolError, Session};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

/// Audits a pool without indexes, by a new client.
fn audit(rig: &Rig) -> AuditReport {
    let member = rig.join();
    let session = member.session();
    let span = session.span(OpKind::Other);
    let report = member.run(async {
        let audit = Audit::begin(&session, &span).await?;
        audit.settle(&session, &span).await
    });
    drop(session);
    member.close();
    report.expect("audited")
}

fn assert_empty(rig: &Rig) {
    let report = audit(rig);
    assert_eq!(report.problems, Vec::<String>::new());
    assert!(report.alone);
    assert_eq!((report.lost, report.nodes[0].held_bytes, report.nodes[0].live_bytes), (0, 0, 0));
}

fn size(rng: &mut Rng) -> u64 {
    match rng.below(10) {
        0 => rng.below(3 * CHUNK),
        1..4 => rng.below(CHUNK / 2),
        _ => rng.below(600),
    }
}

#[test]
fn alloc_never_returns_overlapping_objects() {
    for seed in 0..6 {
        let rig = Rig::new(60);
        let members = [rig.join(), rig.join()];
        let sessions: Vec<_> = members.iter().map(Member::session).collect();
        let mut rng = Rng::new(seed);
        let mut live = Live::default();
        let mut objects: Vec<(RemotePtr, u64)> = Vec::new();
        let mut full = 0;
        for step in 0..4000 {
            let chosen = rng.below(2) as usize;
            let (member, session) = (&members[chosen], &sessions[chosen]);
            let grow = objects.is_empty() || rng.below(100) < if step / 500 % 2 == 0 { 65 } else { 35 };
            if grow {
                let bytes = size(&mut rng);
                match member.alloc(session, bytes) {
                    Ok(ptr) => {
                        assert!(ptr.offset().is_multiple_of(64));
                        live.add(ptr, bytes.max(1));
                        objects.push((ptr, bytes));
                    }
                    Err(PoolError::Full { .. }) => full += 1,
                    Err(error) => panic!("{error}"),
                }
            } else {
                let (ptr, bytes) = objects.swap_remove(rng.below(objects.len() as u64) as usize);
                live.remove(ptr);
                member.free(session, ptr, bytes);
            }
            if session.maintenance_due() {
                member.run(session.maintain()).expect("maintained");
            }
        }
        println!("seed {seed}: {full} times full, {} live at the end", objects.len());
        for (ptr, bytes) in objects {
            members[0].free(&sessions[0], ptr, bytes);
        }
        drop(sessions);
        members.into_iter().for_each(Member::close);
        assert_empty(&rig);
    }
}

/// Several clients on one thread. Their batches take effect in an order drawn from a seed.
#[test]
fn alloc_by_coroutines_of_several_clients_never_overlaps() {
    for seed in 0..12 {
        let rig = Rig::new(20);
        let members: Vec<_> = (0..3).map(|_| rig.join_with(Delivery::Deferred)).collect();
        let endpoints = members.iter().map(|member| member.endpoint.clone()).collect();
        let driver = Shuffle { endpoints, rng: RefCell::new(Rng::new(seed)) };
        let live = Rc::new(RefCell::new(Live::default()));
        let executor = Executor::new();
        let mut tasks = Vec::new();
        for (number, member) in members.iter().enumerate() {
            let session = Rc::new(member.session());
            for coroutine in 0..3 {
                let (session, live) = (Rc::clone(&session), Rc::clone(&live));
                let mut rng = Rng::new(seed * 1000 + number as u64 * 10 + coroutine);
                tasks.push(executor.spawn(async move { churn(&session, &live, &mut rng).await }));
            }
        }
        let full = executor.block_on(&driver, async {
            let mut full = 0;
            for task in tasks {
                full += task.await;
            }
            full
        });
        println!("seed {seed}: {full} times full");
        for member in members {
            member.close();
        }
        assert_empty(&rig);
    }
}

async fn churn(session: &Session, live: &RefCell<Live>, rng: &mut Rng) -> u64 {
    let mut mine: Vec<(RemotePtr, u64)> = Vec::new();
    let mut full = 0;
    for step in 0..150 {
        let span = session.span(OpKind::Other);
        if mine.len() < 30 && rng.below(100) < if step % 60 < 30 { 80 } else { 20 } {
            let bytes = 1 + size(rng) / 2;
            match session.alloc_now(&span, NODE, bytes).await {
                Ok(ptr) => {
                    live.borrow_mut().add(ptr, bytes);
                    mine.push((ptr, bytes));
                }
                Err(PoolError::Full { .. }) => full += 1,
                Err(error) => panic!("{error}"),
            }
        } else if !mine.is_empty() {
            let (ptr, bytes) = mine.swap_remove(rng.below(mine.len() as u64) as usize);
            live.borrow_mut().remove(ptr);
            session.free(&span, ptr, bytes).await.expect("freed");
        }
        if rng.below(20) == 0 {
            session.flush().await.expect("flushed");
        }
    }
    for (ptr, bytes) in mine {
        live.borrow_mut().remove(ptr);
        session.free(&session.span(OpKind::Other), ptr, bytes).await.expect("freed");
    }
    full
}

/// Threads with a client each. Every object has its owner's mark in its first and last word.
#[test]
fn alloc_by_threads_never_overlaps() {
    let rig = Rig::new(40);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let rig = rig.clone();
            scope.spawn(move || {
                let member = rig.join();
                let session = member.session();
                let mut rng = Rng::new(thread + 77);
                let mut mine: Vec<(RemotePtr, u64, u64)> = Vec::new();
                for step in 0..3000_u64 {
                    let span = session.span(OpKind::Other);
                    if mine.len() < 60 && rng.below(2) == 0 {
                        let bytes = (16 + size(&mut rng)).next_multiple_of(8);
                        let Ok(ptr) = member.run(session.alloc(&span, NODE, bytes)) else { continue };
                        let mark = thread << 32 | step;
                        for at in [ptr, ptr.add(bytes - 8)] {
                            member.run(span.write(at, member.endpoint.buf_from_words(&[mark]))).expect("written");
                        }
                        mine.push((ptr, bytes, mark));
                    } else if !mine.is_empty() {
                        let (ptr, bytes, mark) = mine.swap_remove(rng.below(mine.len() as u64) as usize);
                        for at in [ptr, ptr.add(bytes - 8)] {
                            assert_eq!(member.run(span.read(at, 8)).expect("read").words(), [mark], "at {at}");
                        }
                        if rng.below(2) == 0 {
                            member.free(&session, ptr, bytes);
                        } else {
                            member.retire(&session, ptr, bytes);
                        }
                    }
                    if session.maintenance_due() || step % 100 == 0 {
                        member.run(session.maintain()).expect("maintained");
                    }
                }
                for (ptr, bytes, _) in mine {
                    member.free(&session, ptr, bytes);
                }
                drop(session);
                member.close();
            });
        }
    });
    assert_empty(&rig);
}

/// A client claims freed blocks. At every point of the claim, another client empties and frees the chunk and takes it
/// for another class.
#[test]
fn claim_of_a_chunk_that_changes_its_class_takes_blocks_of_the_new_class() {
    let mut changed = 0;
    for steps in 0..12 {
        let rig = Rig::new(8);
        let other = rig.join();
        let theirs = other.session();
        // Seven chunks are taken, the eighth is of 128-byte blocks, all of them free.
        let spans = other.alloc(&theirs, 7 * CHUNK).expect("fits");
        let block = other.alloc(&theirs, 128).expect("fits");
        other.free(&theirs, block, 128);
        other.run(theirs.flush()).expect("flushed");

        let member = rig.join_with(Delivery::Deferred);
        let session = Rc::new(member.session());
        let executor = Executor::new();
        let task = executor.spawn({
            let session = Rc::clone(&session);
            async move { session.alloc_now(&session.span(OpKind::Other), NODE, 128).await }
        });
        for _ in 0..steps {
            executor.run_ready();
            member.endpoint.progress();
        }
        // Meanwhile the chunk becomes one of 64-byte blocks. The first half of them is free again: the same bits of the
        // bitmap, but as 128-byte blocks they would reach over the second half, which is in use.
        let mut live = Live::default();
        let half = rig.pool.geometry(NODE).chunk(NODE, 7).add(CHUNK / 2);
        let small: Vec<_> = std::iter::from_fn(|| other.alloc(&theirs, 64).ok()).collect();
        changed += usize::from(!small.is_empty());
        for ptr in small {
            match ptr < half {
                true => other.free(&theirs, ptr, 64),
                false => live.add(ptr, 64),
            }
        }
        other.run(theirs.flush()).expect("flushed");
        if let Ok(ptr) = executor.block_on(&member.endpoint, task) {
            live.add(ptr, 128);
        }
        while let Ok(ptr) = member.run(session.alloc_now(&session.span(OpKind::Other), NODE, 128)) {
            live.add(ptr, 128);
        }
        while let Ok(ptr) = other.alloc(&theirs, 64) {
            live.add(ptr, 64);
        }
        live.add(spans, 7 * CHUNK);
    }
    assert!(changed > 0, "the chunk never changed its class");
}

#[test]
fn alloc_reuses_blocks_that_another_client_freed() {
    let rig = Rig::new(8);
    let (first, second) = (rig.join(), rig.join());
    let (frees, allocs) = (first.session(), second.session());
    let mut given: Vec<_> = (0..8 * CHUNK / 512).map(|_| first.alloc(&frees, 512).expect("fits")).collect();
    assert!(matches!(first.alloc(&frees, 512), Err(PoolError::Full { .. })));
    given.iter().for_each(|ptr| first.free(&frees, *ptr, 512));
    first.run(frees.flush()).expect("flushed");
    let mut taken: Vec<_> = (0..given.len()).map(|_| second.alloc(&allocs, 512).expect("freed before")).collect();
    given.sort();
    taken.sort();
    assert_eq!(given, taken);
}

#[test]
fn alloc_by_one_client_and_free_by_another_use_bounded_memory() {
    for retires in [false, true] {
        let rig = Rig::new(64);
        let (producer, consumer) = (rig.join(), rig.join());
        let (allocs, frees) = (producer.session(), consumer.session());
        for round in 0..8000_u64 {
            let bytes = 100 + round % 200;
            let ptr = producer.alloc(&allocs, bytes).unwrap_or_else(|error| panic!("round {round}: {error}"));
            match retires {
                true => consumer.retire(&frees, ptr, bytes),
                false => consumer.free(&frees, ptr, bytes),
            }
            for (member, session) in [(&producer, &allocs), (&consumer, &frees)] {
                if session.maintenance_due() {
                    member.run(session.maintain()).expect("maintained");
                }
            }
            if retires && round % 50 == 0 {
                producer.tick();
            }
        }
    }
}

/// Even if it never calls `maintain`.
#[test]
fn session_that_only_frees_returns_blocks_to_the_pool() {
    let rig = Rig::new(24);
    let (producer, consumer) = (rig.join(), rig.join());
    let (allocs, frees) = (producer.session(), consumer.session());
    for _ in 0..3000 {
        let ptr = producer.alloc(&allocs, 1000).expect("comes back");
        consumer.free(&frees, ptr, 1000);
    }
}

/// Updates of one size: allocate, retire, and nothing else.
#[test]
fn maintenance_falls_due_although_refills_are_frequent() {
    let rig = Rig::new(40);
    let member = rig.join();
    let session = member.session();
    let mut due = 0;
    for _ in 0..2000 {
        let ptr = member.alloc(&session, 4000).expect("bounded");
        member.retire(&session, ptr, 4000);
        if session.maintenance_due() {
            due += 1;
            member.run(session.maintain()).expect("maintained");
        }
    }
    assert!(due >= 10, "{due} times due");
}

#[test]
fn chunks_change_their_class_when_sizes_change() {
    let rig = Rig::new(10);
    let member = rig.join();
    let session = member.session();
    let sizes = [64, 100, 300, 700, 1500, 3000, 8000, CHUNK, 3 * CHUNK, 64];
    for (round, bytes) in sizes.into_iter().cycle().take(40).enumerate() {
        let mut objects = Vec::new();
        while let Ok(ptr) = member.alloc(&session, bytes) {
            objects.push(ptr);
        }
        let total = objects.len() as u64 * bytes;
        assert!(total >= 10 * CHUNK * 7 / 10, "round {round}: {total} bytes of objects of {bytes}");
        objects.into_iter().for_each(|ptr| member.free(&session, ptr, bytes));
    }
    drop(session);
    member.close();
    assert_empty(&rig);
}

/// Coroutines that find the free list empty at the same time ask the pool one after the other. Together they would each
/// READ and claim the same blocks: with 256 updates in flight that was most of what they did.
#[test]
fn coroutines_that_need_memory_at_once_ask_for_it_once() {
    const COROUTINES: u64 = 100;
    let rig = Rig::new(60);
    let member = rig.join_with(Delivery::Deferred);
    let session = member.session();
    let bytes = 128;
    // Blocks that were freed and given back are claimed by CASes of their chunks' bitmaps.
    for ptr in (0..4 * COROUTINES).map(|_| member.alloc(&session, bytes).expect("there is room")).collect::<Vec<_>>() {
        member.free(&session, ptr, bytes);
    }
    member.run(session.flush()).expect("given back");
    let (session, executor) = (Rc::new(session), Executor::new());
    let tasks: Vec<_> = (0..COROUTINES)
        .map(|_| {
            let session = Rc::clone(&session);
            executor.spawn(async move {
                let span = session.span(OpKind::Other);
                let ptr = session.alloc(&span, NODE, bytes).await.expect("there is room");
                (ptr.offset(), span.cost())
            })
        })
        .collect();
    let (mut places, mut batches, mut atomics) = (BTreeSet::new(), 0, 0);
    executor.block_on(&member.endpoint, async {
        for task in tasks {
            let (place, cost) = task.await;
            places.insert(place);
            batches += cost.batches;
            atomics += cost.cas + cost.faa;
        }
    });
    assert_eq!(places.len() as u64, COROUTINES);
    println!("{batches} batches, {atomics} atomics");
    assert!(batches <= 6 && atomics <= 12, "{batches} batches, {atomics} atomics");
    drop((session, executor));
    member.close();
}

/// One coroutine refills the free list before it is empty, and the others take what is left: they do not wait.
#[test]
fn free_list_is_refilled_before_it_is_empty() {
    const COROUTINES: usize = 32;
    const TIMES: usize = 200;
    let rig = Rig::new(120);
    let member = rig.join_with(Delivery::Deferred);
    let (session, executor) = (Rc::new(member.session()), Executor::new());
    let tasks: Vec<_> = (0..COROUTINES)
        .map(|_| {
            let session = Rc::clone(&session);
            executor.spawn(async move {
                let (mut waited, mut asked) = (0, 0);
                for _ in 0..TIMES {
                    let span = session.span(OpKind::Other);
                    let mut alloc = Box::pin(session.alloc(&span, NODE, 128));
                    let mut polls = 0;
                    let ptr = poll_fn(|cx| {
                        polls += 1;
                        alloc.as_mut().poll(cx)
                    })
                    .await
                    .expect("there is room");
                    drop(alloc);
                    waited += usize::from(polls > 1 && span.cost().batches == 0);
                    asked += usize::from(span.cost().batches > 0);
                    // An operation that uses the block takes some round trips.
                    let pin = session.pin(span).expect("the lease holds");
                    for _ in 0..3 {
                        pin.span().read(ptr, 8).await.expect("in bounds");
                    }
                }
                (waited, asked)
            })
        })
        .collect();
    let (mut waited, mut asked) = (0, 0);
    executor.block_on(&member.endpoint, async {
        for task in tasks {
            let (one, other) = task.await;
            waited += one;
            asked += other;
        }
    });
    // At the beginning all of them wait for the first block.
    assert!(waited < COROUTINES, "{waited} of {} allocations waited", COROUTINES * TIMES);
    assert!((50..100).contains(&asked), "{asked} asked the pool, which has 128 blocks in a chunk");
    drop((session, executor));
    member.close();
}

/// One that has the turn to ask the pool, and is not polled any more, or is cancelled, does not keep the others from it.
#[test]
fn coroutine_that_stops_in_a_refill_stops_no_other() {
    let rig = Rig::new(60);
    let member = rig.join_with(Delivery::Deferred);
    let session = member.session();
    let spans = [session.span(OpKind::Other), session.span(OpKind::Other)];
    for cancelled in [true, false] {
        member.run(async {
            let mut stopped = Box::pin(session.alloc(&spans[0], NODE, 64 << u32::from(cancelled)));
            poll_fn(|cx| {
                assert!(stopped.as_mut().poll(cx).is_pending(), "its first READ is on its way");
                Poll::Ready(())
            })
            .await;
            let mut stopped = Some(stopped);
            if cancelled {
                stopped = None;
            }
            session.alloc(&spans[1], NODE, 64 << u32::from(cancelled)).await.expect("there is room");
            drop(stopped);
        });
    }
    drop((spans, session));
    member.close();
}

#[test]
fn full_pool_is_an_error_until_memory_is_freed() {
    let rig = Rig::new(8);
    let member = rig.join();
    let session = member.session();
    let blocks: Vec<_> = std::iter::from_fn(|| member.alloc(&session, 1000).ok()).collect();
    assert_eq!(blocks.len() as u64, 8 * (CHUNK / 1024));
    let size = rig.pool.superblock(NODE).region_len;
    let error = member.alloc(&session, 1000).expect_err("full");
    assert_eq!(error, PoolError::Full { node: NODE, wanted: 1024, size });
    assert_eq!(
        error.to_string(),
        format!(
            "the pool is full: no 1024 contiguous bytes left on memory node 0 of {size} bytes; remove entries, or load into a larger pool"
        )
    );
    assert!(matches!(member.alloc(&session, CHUNK), Err(PoolError::Full { wanted: CHUNK, .. })));
    assert!(matches!(member.alloc(&session, u64::MAX), Err(PoolError::Full { wanted: u64::MAX, .. })));
    let span = session.span(OpKind::Other);
    assert!(matches!(member.run(session.alloc_zeroed(&span, NODE, 9 * CHUNK)), Err(PoolError::Full { .. })));
    member.free(&session, blocks[5], 1000);
    assert_eq!(member.alloc(&session, 1000), Ok(blocks[5]));
    blocks.into_iter().for_each(|ptr| member.free(&session, ptr, 1000));
    let whole = member.alloc(&session, 8 * CHUNK).expect("all of it in one piece");
    member.free(&session, whole, 8 * CHUNK);
    drop(session);
    member.close();
    assert_empty(&rig);
}

/// Only spans are in the retire list: the allocation itself must free them.
#[test]
fn alloc_in_a_full_pool_frees_retired_spans() {
    let rig = Rig::new(8);
    let member = rig.join();
    let session = member.session();
    for _ in 0..20 {
        let ptr = member.alloc(&session, 5 * CHUNK).expect("the retired span is freed");
        member.retire(&session, ptr, 5 * CHUNK);
    }
}

#[test]
fn alloc_zeroed_returns_zeros_in_unused_and_in_reused_chunks() {
    let rig = Rig::new(8);
    let member = rig.join();
    let session = member.session();
    let span = session.span(OpKind::Other);
    let bytes = 5 * CHUNK;
    for round in 0..3 {
        let ptr = member.run(session.alloc_zeroed(&span, NODE, bytes)).expect("fits");
        assert!(rig.peek(ptr, bytes as usize / 8).iter().all(|word| *word == 0), "round {round}");
        rig.poke(ptr, &vec![u64::MAX; bytes as usize / 8]);
        member.free(&session, ptr, bytes);
    }
}

#[test]
fn dropped_sessions_leak_no_memory() {
    let rig = Rig::new(20);
    let (member, witness) = (rig.join(), rig.join());
    let first = member.session();
    for bytes in [64, 500, 4000, 2 * CHUNK] {
        let kept = member.alloc(&first, bytes).expect("fits");
        member.retire(&first, kept, bytes);
        let ptr = member.alloc(&first, bytes).expect("fits");
        first.discard(ptr, bytes);
    }
    assert_eq!(
        member.run(std::sync::Arc::clone(&member.client).close(&member.endpoint)),
        Err(PoolError::SessionsOpen(1))
    );
    drop(first);
    // The retired objects wait until the witness quiesces, which it does on its own thread.
    let stop = std::sync::atomic::AtomicBool::new(false);
    let rig_of_witness = &rig;
    std::thread::scope(|scope| {
        let client = std::sync::Arc::clone(&witness.client);
        let stop = &stop;
        scope.spawn(move || {
            let endpoint =
                farindex_fabric::Fabric::connect(&rig_of_witness.fabric, client.identity()).expect("connects");
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                block_on(&endpoint, client.tick(&endpoint)).expect("ticks");
                std::thread::yield_now();
            }
        });
        member.close();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    witness.close();
    assert_empty(&rig);
}

fn cost(session: &Session, member: &Member, body: impl AsyncFnOnce(&farindex_fabric::Span)) -> Counters {
    let span = session.span(OpKind::Other);
    member.run(body(&span));
    span.cost()
}

fn verbs(cost: &Counters) -> [u64; 5] {
    [cost.round_trips, cost.reads, cost.writes, cost.cas, cost.faa]
}

#[test]
fn alloc_and_free_cost_exactly_these_verbs() {
    // A span of three chunks is a small part of it.
    let rig = Rig::new(1000);
    let member = rig.join();
    let session = member.session();
    let mut ptr = RemotePtr::NULL;
    // Counters; then the chunk and the cursor together.
    let first = cost(&session, &member, async |span| ptr = session.alloc(span, NODE, 64).await.expect("fits"));
    assert_eq!(verbs(&first), [2, 2, 0, 2, 0]);
    // From the free list and back: nothing.
    let kept = cost(&session, &member, async |span| {
        for _ in 0..100 {
            let ptr = session.alloc(span, NODE, 64).await.expect("in the free list");
            session.free(span, ptr, 64).await.expect("freed");
        }
    });
    assert_eq!(verbs(&kept), [0; 5]);
    member.free(&session, ptr, 64);
    let before = member.endpoint.meter();
    member.run(session.flush()).expect("flushed");
    let flushed = (member.endpoint.meter() - before).of(OpKind::Maintenance).total;
    // 256 blocks: four words, and the counter.
    assert_eq!(verbs(&flushed), [1, 0, 0, 0, 5]);
    // Counters; descriptors; the claim of four words with the state after them, and the counter.
    let claim = cost(&session, &member, async |span| ptr = session.alloc(span, NODE, 64).await.expect("returned"));
    assert_eq!(verbs(&claim), [3, 4, 0, 4, 1]);
    // A span: counters; three descriptors; the cursor. Freed: a READ of its head. From the free list: nothing.
    let span = cost(&session, &member, async |span| {
        ptr = session.alloc(span, NODE, 3 * CHUNK).await.expect("fits");
    });
    assert_eq!(verbs(&span), [3, 1, 0, 4, 0]);
    let freed = cost(&session, &member, async |span| session.free(span, ptr, 3 * CHUNK).await.expect("freed"));
    assert_eq!(verbs(&freed), [1, 1, 0, 0, 0]);
    let again = cost(&session, &member, async |span| {
        assert_eq!(session.alloc(span, NODE, 2 * CHUNK + 1).await, Ok(ptr));
    });
    assert_eq!(verbs(&again), [0; 5]);
    member.free(&session, ptr, 3 * CHUNK);
    let twice = member.run(session.free(&session.span(OpKind::Other), ptr, 3 * CHUNK));
    assert!(matches!(twice, Err(PoolError::Corrupt { .. })), "{twice:?}");
    // Returned to the pool: its head; three descriptors and the counter.
    let before = member.endpoint.meter();
    member.run(session.flush()).expect("flushed");
    let flushed = (member.endpoint.meter() - before).of(OpKind::Maintenance).total;
    let blocks = [1, 0, 0, 0, 5];
    assert_eq!(verbs(&flushed), [2 + blocks[0], 1, 0, 3, 1 + blocks[4]]);
    // In a small pool no session keeps spans.
    let small = Rig::new(60);
    let other = small.join();
    let theirs = other.session();
    let kept = other.run(theirs.alloc(&theirs.span(OpKind::Other), NODE, 3 * CHUNK)).expect("fits");
    let freed = cost(&theirs, &other, async |span| theirs.free(span, kept, 3 * CHUNK).await.expect("freed"));
    assert_eq!(verbs(&freed), [2, 1, 0, 3, 1]);
    // A heartbeat: two round trips.
    let before = member.endpoint.meter();
    member.tick();
    let tick = (member.endpoint.meter() - before).of(OpKind::Maintenance).total;
    assert_eq!(verbs(&tick), [2, 2, 1, 1, 0]);
    // A pin: nothing.
    let pinned = cost(&session, &member, async |_| drop(session.pin(session.span(OpKind::Get)).expect("holds")));
    assert_eq!(verbs(&pinned), [0; 5]);
}

/// However large the node is, and wherever its free chunks lie.
#[test]
fn alloc_cost_does_not_grow_with_the_node() {
    const DESCRIPTORS: u64 = (256 + 64) * 192;
    let rig = Rig::new(3000);
    let member = rig.join();
    let session = member.session();
    let chunks: Vec<_> = (0..2000).map(|_| member.alloc(&session, CHUNK).expect("fits")).collect();
    let freed = |which: &mut dyn Iterator<Item = &RemotePtr>| {
        let freed: Vec<_> = which.copied().collect();
        freed.iter().for_each(|chunk| member.free(&session, *chunk, CHUNK));
        member.run(session.flush()).expect("flushed");
        freed
    };
    let alloc = |bytes: u64| {
        let mut ptr = RemotePtr::NULL;
        let cost = cost(&session, &member, async |span| ptr = session.alloc(span, NODE, bytes).await.expect("fits"));
        (ptr, cost.bytes_read)
    };
    // There is no search for one free chunk of two thousand.
    freed(&mut chunks[1510..].iter().take(1));
    let (ptr, read) = alloc(CHUNK);
    assert!(!chunks.contains(&ptr) && read < 100, "{ptr}: {read} bytes");
    // One of many is found soon. There are no two adjacent ones, so unused chunks are taken.
    let some = freed(&mut chunks.iter().step_by(20));
    for _ in 0..20 {
        let (ptr, read) = alloc(CHUNK);
        assert!(some.contains(&ptr) && read <= DESCRIPTORS, "{ptr}: {read} bytes");
        let (ptr, read) = alloc(2 * CHUNK);
        assert!(!chunks.contains(&ptr) && read <= DESCRIPTORS + 100, "{ptr}: {read} bytes");
    }
    // When no unused chunks are left, every free chunk is found.
    let left = (3000 - 2000 - 1 - 20 * 2) + (1 + some.len() - 20);
    for i in 0..left {
        assert!(member.alloc(&session, CHUNK).is_ok(), "{i} of {left}");
    }
    assert!(matches!(member.alloc(&session, CHUNK), Err(PoolError::Full { .. })));
}
