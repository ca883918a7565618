//! Damage in what the allocator reads from far memory: whatever was overwritten, no live memory is allocated again.

use crate::common::{CHUNK as SMALL_CHUNK, Live, Member, NODE, Rig, Rng, small};
use farindex_fabric::{NodeId, OpKind, RemotePtr};
use farindex_pool::audit::Audit;
use farindex_pool::layout::{DESCRIPTOR_LEN, Geometry, MAX_UID, header, header_word};
use farindex_pool::{PoolError, PoolOptions};

const CHUNKS: u64 = 12;
/// With chunks of this size, 64-byte blocks need the whole bitmap.
const CHUNK: u64 = 64 << 10;

/// A pool in use: chunks full of live blocks, chunks with live and free blocks, free chunks, spans, unused chunks.
fn pool_in_use() -> (Rig, Member, Live) {
    let options = PoolOptions { chunk_size: Some(CHUNK), ..small() };
    let rig =
        Rig::with(1, Geometry { chunk_size: CHUNK, chunks: CHUNKS, client_slots: 8, intent_cells: 16 }.end(), &options);
    let (owner, taker) = (rig.join(), rig.join());
    let session = owner.session();
    let mut live = Live::default();
    // All of the first four chunks. A third of the second chunk's blocks are free.
    for (bytes, freed) in [(64, 0), (128, 3), (1024, 0), (64, 0)] {
        for i in 0..CHUNK / bytes {
            let ptr = owner.alloc(&session, bytes).expect("fits");
            match freed > 0 && i % freed == 0 {
                true => owner.free(&session, ptr, bytes),
                false => live.add(ptr, bytes),
            }
        }
    }
    let span = owner.alloc(&session, 2 * CHUNK).expect("fits");
    let back = owner.alloc(&session, 3 * CHUNK).expect("fits");
    live.add(span, 2 * CHUNK);
    owner.free(&session, back, 3 * CHUNK);
    live.add(owner.alloc(&session, 5000).expect("fits"), 5000);
    owner.run(session.flush()).expect("flushed");
    drop(session);
    owner.close();
    (rig, taker, live)
}

/// Allocates until the pool is full, for several sizes. `Live::add` checks that nothing of it is live.
fn take_everything(member: &Member, live: &mut Live) -> Vec<PoolError> {
    let session = member.session();
    let mut errors = Vec::new();
    for bytes in [128, 64, 5000, 2 * CHUNK, 1024, CHUNK] {
        loop {
            match member.alloc(&session, bytes) {
                Ok(ptr) => live.add(ptr, bytes),
                Err(error) => {
                    errors.push(error);
                    break;
                }
            }
        }
    }
    errors
}

/// Contents with which 64 bytes are overwritten.
fn contents(rng: &mut Rng) -> [[u64; 8]; 3] {
    [[0; 8], [u64::MAX; 8], std::array::from_fn(|_| rng.next() << 32 ^ rng.next())]
}

#[test]
fn alloc_with_overwritten_descriptors_returns_no_live_memory() {
    let mut rng = Rng::new(1);
    let mut detected = 0;
    let words = CHUNKS * DESCRIPTOR_LEN / 8;
    // Every 64 bytes, from every word on.
    for first in 0..=words - 8 {
        for content in contents(&mut rng) {
            let (rig, member, mut live) = pool_in_use();
            let at = rig.pool.geometry(NODE).descriptor(NODE, 0).add(first * 8);
            rig.poke(at, &content);
            let errors = take_everything(&member, &mut live);
            detected += u32::from(errors.iter().any(|error| matches!(error, PoolError::Corrupt { .. })));
            for error in errors {
                assert!(matches!(error, PoolError::Corrupt { .. } | PoolError::Full { .. }), "word {first}: {error}");
            }
        }
    }
    assert!(detected > 500, "{detected} were detected");
}

#[test]
fn alloc_with_an_overwritten_header_returns_no_live_memory() {
    let mut rng = Rng::new(2);
    for first in (header::CURSOR..header::RETURNED + 40 * 8).step_by(8) {
        for content in contents(&mut rng) {
            let (rig, member, mut live) = pool_in_use();
            rig.poke(header_word(NODE, first), &content);
            take_everything(&member, &mut live);
        }
    }
}

#[test]
fn alloc_with_a_wrong_cursor_returns_no_live_memory() {
    for cursor in 0..=CHUNKS + 1 {
        let (rig, member, mut live) = pool_in_use();
        let former = rig.peek(header_word(NODE, header::CURSOR), 1)[0];
        assert_eq!(former, 9);
        rig.poke(header_word(NODE, header::CURSOR), &[cursor]);
        let session = member.session();
        let table = member.run(session.alloc_zeroed(&session.span(OpKind::Other), NODE, CHUNK));
        if let Ok(table) = table {
            live.add(table, CHUNK);
            assert!(rig.peek(table, CHUNK as usize / 8).iter().all(|word| *word == 0), "cursor {cursor}");
        }
        drop(session);
        let errors = take_everything(&member, &mut live);
        let corrupt = errors.iter().any(|error| matches!(error, PoolError::Corrupt { .. }));
        // A cursor that is too low is moved on by the next client that takes a chunk.
        assert_eq!(corrupt, cursor > former, "cursor {cursor}: {errors:?}");
    }
}

#[test]
fn alloc_error_names_the_damaged_descriptor() {
    let (rig, member, mut live) = pool_in_use();
    let at = rig.pool.geometry(NODE).descriptor(NODE, 2);
    rig.poke(at, &[0; 8]);
    let errors = take_everything(&member, &mut live);
    let message = format!(
        "corrupted far memory at {at}: the descriptor of chunk 2 is damaged, or the cursor is; `farindex pool check` shows \
         how far it reaches"
    );
    assert!(errors.iter().any(|error| error.to_string() == message), "{errors:?}");
}

#[test]
fn new_uid_refuses_a_damaged_counter() {
    let rig = Rig::new(8);
    let member = rig.join();
    let span = member.endpoint.span(OpKind::Other);
    let new_uid = |largest| member.run(farindex_pool::catalog::new_uid(&span, largest));
    assert_eq!((new_uid(0), new_uid(1)), (Ok(1), Ok(2)));
    let at = header_word(NODE, header::LAST_UID);
    for damaged in [0, 1, MAX_UID, u64::MAX] {
        rig.poke(at, &[damaged]);
        assert!(matches!(new_uid(2), Err(PoolError::Corrupt { at: named, .. }) if named == at), "{damaged}");
    }
    assert_eq!(RemotePtr::new(NODE, header::LAST_UID), at);
}

/// Descriptors and counters with random content: errors, perhaps less memory, no panic and no overlap.
#[test]
fn damaged_descriptors_and_counters_cause_errors_only() {
    for seed in 0..150 {
        let rig = Rig::new(10);
        let member = rig.join();
        let session = member.session();
        let mut rng = Rng::new(seed);
        let mut objects = Vec::new();
        for i in 0..40 {
            let bytes = [64, 1000, 3000, 2 * SMALL_CHUNK][i % 4];
            objects.extend(member.alloc(&session, bytes).map(|ptr| (ptr, bytes)));
        }
        let geometry = rig.pool.geometry(NODE);
        for _ in 0..=rng.below(4) {
            let random = rng.next() << rng.below(12) | rng.next();
            let at = match rng.below(3) {
                0 => header_word(NODE, header::CURSOR + 8 * rng.below(2)),
                1 => header_word(NODE, header::RETURNED + 8 * rng.below(36)),
                _ => geometry.descriptor(NODE, rng.below(10)).add(8 * rng.below(24)),
            };
            rig.poke(at, &[random]);
        }
        let span = session.span(OpKind::Other);
        for (ptr, bytes) in objects {
            drop(member.run(session.free(&span, ptr, bytes)));
        }
        drop(member.run(session.flush()));
        let mut live = Live::default();
        for _ in 0..60 {
            if let Ok(ptr) = member.run(session.alloc_now(&span, NODE, 500)) {
                assert!(geometry.chunk_of(ptr).is_some(), "seed {seed}: {ptr}");
                live.add(ptr, 500);
            }
        }
        if let Ok(audit) = member.run(Audit::begin(&session, &span)) {
            drop(member.run(audit.settle(&session, &span)));
        }
    }
}

#[test]
fn free_and_retire_refuse_addresses_that_are_no_object() {
    let rig = Rig::new(8);
    let member = rig.join();
    let session = member.session();
    let span = session.span(OpKind::Other);
    let geometry = rig.pool.geometry(NODE);
    let bad = [
        (RemotePtr::NULL, 64),
        (geometry.chunk(NODE, 0).add(8), 64),
        (geometry.chunk(NODE, 0).add(64), 128),
        // After the last whole block of its class.
        (geometry.chunk(NODE, 0).add(SMALL_CHUNK - SMALL_CHUNK % 320), 320),
        (geometry.chunk(NODE, 8), 64),
        (geometry.chunk(NODE, 6), 3 * SMALL_CHUNK),
        (RemotePtr::new(NodeId::new(5), 1 << 20), 64),
    ];
    for (ptr, bytes) in bad {
        assert!(member.run(session.free(&span, ptr, bytes)).is_err(), "{bytes} bytes at {ptr}");
        session.discard(ptr, bytes);
        session.pin(session.span(OpKind::Other)).expect("holds").retire(ptr, bytes);
    }
    for _ in 0..5 {
        member.run(session.maintain()).expect("maintained");
    }
    let span_of_two = member.alloc(&session, 2 * SMALL_CHUNK).expect("fits");
    let error = member.run(session.free(&span, span_of_two, 3 * SMALL_CHUNK)).expect_err("another size");
    assert!(error.to_string().contains("an address that is no span was freed"), "{error}");
    member.free(&session, span_of_two, 2 * SMALL_CHUNK);
    assert!(member.run(session.free(&span, span_of_two, 2 * SMALL_CHUNK)).is_err(), "twice");
    let block = member.alloc(&session, 64).expect("fits");
    member.free(&session, block, 64);
    member.free(&session, block, 64);
    let error = member.run(session.flush()).expect_err("twice");
    assert!(error.to_string().contains("a block was freed twice"), "{error}");
}
