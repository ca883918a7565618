//! A bucket that a crashed client has written in part.

use super::{run, staying, word, world};
use crate::crash_recovery::kinds::CrashTested;
use crate::crash_recovery::run::{join, make};
use farindex_fabric::{OpKind, RemotePtr};
use farindex_index::shard::bucket::{LOCK_SLOT, Level};
use farindex_index::shard::slot::{META, Slot};
use farindex_index::{IndexError, Lifecycle, PointIndex, Shard, Update};
use farindex_pool::Session;
use farindex_sim::CrashOutcome;
use std::rc::Rc;

/// More than a bucket of level 1 holds.
const KEYS: u32 = 70;

async fn words(session: &Session, at: RemotePtr) -> Result<Vec<u64>, IndexError> {
    let buf = session.span(OpKind::Other).read(at, Level::Two.bytes()).await?;
    Ok(buf.words().to_vec())
}

/// Leaves the first entry of a new bucket, as if the rest of the WRITE had not landed. `None` if no split has just written the new
/// bucket: the lock of the old one is held, and its entries are still frozen.
async fn tear(session: &Session, [old, new]: [RemotePtr; 2]) -> Result<Option<()>, IndexError> {
    let is = |word: &u64, what: fn(Slot) -> bool| what(Slot::decode(*word));
    let (of_old, of_new) = (words(session, old).await?, words(session, new).await?);
    let is_frozen = of_old.iter().any(|word| is(word, |slot| matches!(slot, Slot::Frozen(..))));
    let is_written = of_new.iter().all(|word| word & !META != 0);
    let entry = of_new.iter().position(|word| is(word, |slot| matches!(slot, Slot::Live(_))));
    let (Some(entry), true) = (entry, is_frozen && is_written && of_old[LOCK_SLOT] & META != 0) else {
        return Ok(None);
    };
    let torn: Vec<_> = of_new.iter().enumerate().map(|(i, word)| if i == entry { *word } else { 0 }).collect();
    let span = session.span(OpKind::Other);
    span.write(new, session.endpoint().buf_from_words(&torn)).await?;
    assert_ne!(word(session, new.add(entry as u64 * 8)).await?, 0);
    Ok(Some(()))
}

/// A client crashes in the midst of the WRITE of a new bucket of level 2, and that split will be undone. A client that finds a key
/// there may not update it there (docs/bugs/202).
#[test]
fn an_update_waits_for_a_bucket_of_level_2_that_is_written_in_part() {
    let mut torn = 0;
    for verb in 1..300 {
        let (sim, pool) = world();
        let [maker, crashing, updating] = [(); 3].map(|()| sim.client());
        let buckets = {
            let (pool, me) = (pool.clone(), maker.clone());
            run(&sim, &maker, async move {
                let (client, session) = join(&pool, &me).await?;
                let index: Shard = make(&session, "old", 0).await?;
                index.swell(-(1 << 20));
                for key in 0..KEYS {
                    index.insert(&key.to_le_bytes(), b"first").await?;
                }
                index.enlarge(&session).await?;
                let geometry = index.tables()[0].geometry();
                let buckets = [0, 1].map(|bucket| geometry.bucket(Level::Two, bucket));
                drop((index, session));
                client.close(&me.connect()).await?;
                Ok(buckets)
            })
        };
        crashing.crash_at(verb, CrashOutcome::Prefix);
        let (theirs, me) = (pool.clone(), crashing.clone());
        drop(sim.spawn(&crashing, async move {
            let (_client, session) = join(&theirs, &me).await?;
            let index = Shard::open(&session, "old").await?;
            // Keys that are not there: so a bucket of level 2 is looked for.
            for key in KEYS..2 * KEYS {
                index.get(&key.to_le_bytes()).await?;
            }
            Ok::<_, IndexError>(())
        }));
        let mine: Rc<Session> = staying(&sim, &pool, &updating);
        torn += run(&sim, &updating, async move {
            if tear(&mine, buckets).await?.is_none() {
                return Ok(0);
            }
            let index = Shard::open(&mine, "old").await?;
            for key in 0..KEYS {
                assert_eq!(index.update(&key.to_le_bytes(), b"second").await?, Update::Updated);
            }
            for key in 0..KEYS {
                let found = index.get(&key.to_le_bytes()).await?;
                assert_eq!(found.as_deref(), Some(&b"second"[..]), "key {key}, crash at verb {verb}");
            }
            Ok(1)
        });
    }
    assert!(torn > 0, "no split was interrupted");
}
