//! A pool that becomes full while SHARD splits a bucket or overflows.

use super::{alone, audited, word};
use crate::crash_recovery::kinds::{CrashTested, keys_at};
use crate::crash_recovery::run::make;
use farindex_fabric::{NodeId, OpKind, RemotePtr};
use farindex_index::shard::bucket::{LOCK_SLOT, Level};
use farindex_index::shard::slot::META;
use farindex_index::{IndexError, Insert, PointIndex, Remove, Shard, Update};
use farindex_pool::{PoolError, Session, intent};

/// Takes all memory but for so many small blocks.
async fn drain(session: &Session, node: NodeId, left: usize) -> Result<Vec<(RemotePtr, u64)>, IndexError> {
    let span = session.span(OpKind::Other);
    let mut taken = Vec::new();
    for bytes in [256 << 10, 16 << 10, 64] {
        while let Ok(ptr) = session.alloc(&span, node, bytes).await {
            taken.push((ptr, bytes));
        }
    }
    for (ptr, bytes) in taken.split_off(taken.len() - left) {
        session.free(&span, ptr, bytes).await?;
    }
    Ok(taken)
}

/// Nobody holds the bucket, so many small blocks are free, and so is everything after this.
async fn let_go(session: &Session, at: RemotePtr, taken: Vec<(RemotePtr, u64)>, left: usize) -> Result<(), IndexError> {
    let span = session.span(OpKind::Other);
    assert_eq!(word(session, at.add(LOCK_SLOT as u64 * 8)).await? & META, 0);
    assert_eq!(intent::intents(session, &span, at.node()).await?.len(), 0);
    let mut free = Vec::new();
    while let Ok(ptr) = session.alloc(&span, at.node(), 64).await {
        free.push((ptr, 64));
    }
    assert_eq!(free.len(), left);
    for (ptr, bytes) in taken.into_iter().chain(free) {
        session.free(&span, ptr, bytes).await?;
    }
    Ok(())
}

/// All keys of a bucket move to one child, more than it has room for; what level 3 needs nodes for finds none, or one
/// and no second. Then everything is as it was before, until there is room again: keys are found in all three levels, and can
/// be changed, and only an insert fails.
#[test]
fn a_split_that_finds_no_room_for_level_3_is_undone() {
    for left in [0, 1] {
        alone(async move |session| {
            let index: Shard = make(&session, "old", 0).await?;
            index.swell(-(1 << 20));
            let mut keys: Vec<_> = keys_at(1, 1).take(106).collect();
            let absent = keys.pop().unwrap_or_default();
            for key in &keys {
                index.insert(key.as_bytes(), b"value").await?;
            }
            index.enlarge(&session).await?;
            let before = audited(&index).await?;
            assert_eq!((before.figure("level1_entries"), before.figure("level3_entries")), (64, 33));
            let at = index.tables()[0].geometry().bucket(Level::One, 0);
            let taken = drain(&session, at.node(), left).await?;
            for key in &keys {
                assert_eq!(index.get(key.as_bytes()).await?.as_deref(), Some(&b"value"[..]), "{left}");
            }
            let all: Vec<_> = keys.iter().map(String::as_bytes).collect();
            assert!(index.get_many(&all).await?.iter().all(Option::is_some));
            assert_eq!(index.get(absent.as_bytes()).await?, None);
            assert_eq!(index.remove(absent.as_bytes()).await?, Remove::Absent);
            if left > 0 {
                assert_eq!(index.update(absent.as_bytes(), b"value").await?, Update::Absent);
                assert_eq!(index.insert(keys[0].as_bytes(), b"value").await?, Insert::Exists);
            }
            let outcome = index.insert(absent.as_bytes(), b"value").await;
            assert!(matches!(outcome, Err(IndexError::Pool(PoolError::Full { .. }))), "{left}: {outcome:?}");
            let now = audited(&index).await?;
            assert_eq!((now.entries, &now.problems, now.index_bytes), (105, &vec![], before.index_bytes));
            // Level 2 may be split, but not level 1.
            for level in ["level1_entries", "level2_entries", "level3_entries"] {
                assert_eq!(now.figure(level), before.figure(level), "{left}: {level}");
            }
            assert_eq!(index.remove(keys[0].as_bytes()).await?, Remove::Removed);
            assert_eq!(index.get(keys[0].as_bytes()).await?, None);
            // And the block of the key that was removed.
            let_go(&session, at, taken, left + 1).await?;
            for key in &keys[1..] {
                assert_eq!(index.get(key.as_bytes()).await?.as_deref(), Some(&b"value"[..]));
            }
            assert_eq!(index.insert(keys[0].as_bytes(), b"value").await?, Insert::Inserted);
            let after = audited(&index).await?;
            assert_eq!((after.entries, after.problems), (105, vec![]));
            Ok(())
        });
    }
}

/// An insert has its block, and under the lock finds no node of level 3: the lock is released, and the block is free
/// again.
#[test]
fn an_insert_that_finds_no_room_for_level_3_lets_go() {
    alone(async move |session| {
        let index: Shard = make(&session, "old", 0).await?;
        index.swell(-(1 << 20));
        // Level 3 has one slot without a node.
        for key in 0..64 + 8 + 1u32 {
            index.insert(&key.to_le_bytes(), b"value").await?;
        }
        let at = index.tables()[0].geometry().bucket(Level::One, 0);
        let taken = drain(&session, at.node(), 1).await?;
        let outcome = index.insert(b"one more", b"value").await;
        assert!(matches!(outcome, Err(IndexError::Pool(PoolError::Full { .. }))), "{outcome:?}");
        assert_eq!((audited(&index).await?.entries, audited(&index).await?.problems), (73, vec![]));
        let_go(&session, at, taken, 1).await?;
        assert_eq!(index.insert(b"one more", b"value").await?, Insert::Inserted);
        assert_eq!((audited(&index).await?.entries, audited(&index).await?.problems), (74, vec![]));
        Ok(())
    });
}
