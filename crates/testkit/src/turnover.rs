//! In the end, entries come and go in an index of their own, and its memory is judged.
//!
//! Invariants: only one client is there. The index never has more than [`PRESENT`] entries, so nothing but what was removed can
//! make it grow: once each place has been used, it must do with the memory that it has, or with a few times as much.

use crate::worker::Shared;
use farindex_fabric::OpKind;
use farindex_index::{AnyIndex, IndexConfig, IndexError, PointIndex};
use farindex_pool::audit::Audit;
use farindex_pool::{PoolError, Session};
use std::rc::Rc;

const NAME: &str = "turnover";
/// Entries that are present at a time, at most.
const PRESENT: u64 = 24;
/// Keys, which take turns.
const KEYS: u64 = 96;
/// Entries that have come when the memory is measured first, and in the end.
const FIRST: u64 = 192;
const ALL: u64 = 3_000;
/// So many times as much memory may be in use in the end.
const GROWTH: u64 = 4;

/// Bytes of everything but the blocks of entries.
async fn bytes_of(session: &Rc<Session>, index: &AnyIndex) -> Result<u64, IndexError> {
    session.drain().await?;
    let mut audit = Audit::begin(session, &session.span(OpKind::Other)).await?;
    Ok(index.audit(&mut audit, true).await?.index_bytes)
}

/// How entries take turns.
#[derive(Debug, Clone, Copy)]
struct Turns {
    keys: u64,
    present: u64,
}

/// Inserts and removes entries; `false` if the pool has no room.
async fn turn_over(index: &AnyIndex, turns: Turns, entries: std::ops::Range<u64>) -> Result<bool, IndexError> {
    let key = |entry: u64| format!("t{}", entry % turns.keys).into_bytes();
    for entry in entries {
        match index.insert(&key(entry), b"value").await {
            Ok(_) => {}
            Err(IndexError::Pool(PoolError::Full { .. })) => return Ok(false),
            Err(error) => return Err(error),
        }
        let Some(old) = entry.checked_sub(turns.present) else { continue };
        match index.remove(&key(old)).await {
            Ok(_) => {}
            Err(IndexError::Pool(PoolError::Full { .. })) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Bytes when each key has had its turn, and in the end. `None`: the pool has no room.
async fn measure(session: &Rc<Session>, index: &AnyIndex, turns: Turns) -> Result<Option<[u64; 2]>, IndexError> {
    if !turn_over(index, turns, 0..FIRST).await? {
        return Ok(None);
    }
    let first = bytes_of(session, index).await?;
    if !turn_over(index, turns, FIRST..ALL).await? {
        return Ok(None);
    }
    Ok(Some([first, bytes_of(session, index).await?]))
}

fn has_grown([first, last]: [u64; 2]) -> bool {
    last > first * GROWTH
}

/// Entries come and go in a new index, which is dropped then.
pub(crate) async fn judge(shared: &Shared, session: &Rc<Session>, config: &IndexConfig) -> Result<(), IndexError> {
    let index = match AnyIndex::create(session, NAME, config).await {
        Ok(index) => index,
        // What it had allocated is there for the next allocation of the session.
        Err(IndexError::Pool(PoolError::Full { .. })) => return Ok(session.drain().await?),
        Err(error) => return Err(error),
    };
    if let Some(bytes) = measure(session, &index, Turns { keys: KEYS, present: PRESENT }).await? {
        if has_grown(bytes) {
            let [first, last] = bytes;
            shared.fail(format!(
                "an index of {PRESENT} entries, of which others come and go, has grown from {first} bytes to {last}"
            ));
        }
        shared.turnovers.set(shared.turnovers.get() + 1);
    }
    drop(index);
    // A batch that holds a pin and that nobody awaits may take longer than a drop waits.
    session.endpoint().settle().await;
    AnyIndex::drop_named(session, NAME).await?;
    session.drain().await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{KEYS, PRESENT, Turns, has_grown, measure};
    use crate::test_runs::shipped;
    use crate::world::World;
    use farindex_index::{AnyIndex, IndexConfig, cuckoo, linear};
    use farindex_pool::PoolOptions;
    use std::cell::Cell;
    use std::rc::Rc;

    #[test]
    fn an_index_grows_if_what_has_come_stays_and_otherwise_does_not() {
        let stay = Turns { keys: u64::MAX, present: u64::MAX };
        for kind in shipped() {
            for (turns, grows) in [(Turns { keys: KEYS, present: PRESENT }, false), (stay, true)] {
                // Narrow slots of 2,000 entries fit into the smallest chunk.
                let config = match kind.smallest() {
                    IndexConfig::Linear(config) => IndexConfig::Linear(linear::Config { width: 128, ..config }),
                    IndexConfig::Cuckoo(config) => IndexConfig::Cuckoo(cuckoo::Config { width: 128, ..config }),
                    config => config,
                };
                let grown = Rc::new(Cell::new(None));
                let result = Rc::clone(&grown);
                World::calm(1, 32 << 20).run(async move |ctx| {
                    let pool = ctx.pool(&PoolOptions { chunk_size: Some(16 << 10), ..PoolOptions::default() }).await;
                    let member = ctx.join(&pool).await;
                    let index = AnyIndex::create(&member.session, "turnover", &config).await.expect("an index");
                    let bytes = measure(&member.session, &index, turns).await.expect("a measurement");
                    result.set(bytes.map(has_grown));
                });
                assert_eq!(grown.get(), Some(grows), "{}: {turns:?}", kind.config().kind());
            }
        }
    }
}
