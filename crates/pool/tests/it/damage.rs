//! Damage in what the allocator reads from far memory. Nothing that is live is handed out again, whatever was
//! overwritten.

use crate::common::{Live, Member, NODE, Rig, Rng, small};
use farindex_fabric::{OpKind, RemotePtr};
use farindex_pool::layout::{DESCRIPTOR_LEN, Geometry, header, header_word};
use farindex_pool::{PoolError, PoolOptions};

const CHUNKS: u64 = 12;
/// Of this size, 64-byte blocks need the whole bitmap.
const CHUNK: u64 = 64 << 10;

/// A pool in use: chunks full of live blocks, chunks with free ones among them, free chunks, spans, unused chunks.
fn pool_in_use() -> (Rig, Member, Live) {
    let options = PoolOptions { chunk_size: Some(CHUNK), ..small() };
    let rig = Rig::with(1, Geometry { chunk_size: CHUNK, chunks: CHUNKS, client_slots: 8 }.end(), &options);
    let (owner, taker) = (rig.join(), rig.join());
    let session = owner.session();
    let mut live = Live::default();
    // All of the first four chunks, of which the second one's blocks are free in part.
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

/// Takes whatever can be had. Nothing of it may be live: `Live::add` sees to that.
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

/// What 64 bytes are overwritten with.
fn contents(rng: &mut Rng) -> [[u64; 8]; 3] {
    [[0; 8], [u64::MAX; 8], std::array::from_fn(|_| rng.next() << 32 ^ rng.next())]
}

#[test]
fn overwritten_descriptors_hand_out_nothing_that_is_live() {
    let mut rng = Rng::new(1);
    let mut noticed = 0;
    let words = CHUNKS * DESCRIPTOR_LEN / 8;
    // Every 64 bytes, wherever they begin.
    for first in 0..=words - 8 {
        for content in contents(&mut rng) {
            let (rig, member, mut live) = pool_in_use();
            let at = rig.pool.geometry(NODE).descriptor(NODE, 0).add(first * 8);
            rig.poke(at, &content);
            let errors = take_everything(&member, &mut live);
            noticed += u32::from(errors.iter().any(|error| matches!(error, PoolError::Corrupt { .. })));
            for error in errors {
                assert!(matches!(error, PoolError::Corrupt { .. } | PoolError::Full { .. }), "word {first}: {error}");
            }
        }
    }
    assert!(noticed > 500, "{noticed} were noticed");
}

#[test]
fn an_overwritten_header_hands_out_nothing_that_is_live() {
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
fn a_cursor_that_stands_too_low_or_too_high_hands_out_nothing_that_is_live() {
    for cursor in 0..=CHUNKS + 1 {
        let (rig, member, mut live) = pool_in_use();
        let stood = rig.peek(header_word(NODE, header::CURSOR), 1)[0];
        assert_eq!(stood, 9);
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
        // One that stands too low is moved on by whoever takes a chunk.
        assert_eq!(corrupt, cursor > stood, "cursor {cursor}: {errors:?}");
    }
}

#[test]
fn a_damaged_descriptor_is_named() {
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
fn numbers_of_indexes_are_not_given_again_when_their_counter_is_damaged() {
    let rig = Rig::new(8);
    let member = rig.join();
    let span = member.endpoint.span(OpKind::Other);
    let new_uid = |largest| member.run(farindex_pool::catalog::new_uid(&span, largest));
    assert_eq!((new_uid(0), new_uid(1)), (Ok(1), Ok(2)));
    let at = header_word(NODE, header::LAST_UID);
    for damaged in [0, 1, u64::MAX] {
        rig.poke(at, &[damaged]);
        assert!(matches!(new_uid(2), Err(PoolError::Corrupt { at: named, .. }) if named == at), "{damaged}");
    }
    assert_eq!(RemotePtr::new(NODE, header::LAST_UID), at);
}
