//! Memory that is damaged, which is beyond the fabric's contract: every operation comes to an end all the same.

use super::{LEASE, alone, word};
use crate::crash_recovery::kinds::CrashTested;
use crate::crash_recovery::run::make;
use farindex_fabric::{OpKind, RemotePtr};
use farindex_index::shard::bucket::Level;
use farindex_index::shard::geometry::ROOT_LEN;
use farindex_index::shard::slot::{META, Slot};
use farindex_index::{IndexError, Lifecycle, PointIndex, PoolIndex, Shard};
use farindex_pool::audit::Audit;
use farindex_pool::{PoolError, Session};
use std::future::Future;
use std::rc::Rc;
use std::task::Poll;

const KEYS: u32 = 180;
const RANGE: u64 = 64;

fn key(i: u32) -> [u8; 4] {
    i.to_le_bytes()
}

/// Two full buckets with all three levels, grown once since: bucket 0 has been split, bucket 1 has not.
async fn table(session: &Rc<Session>) -> Result<Shard, IndexError> {
    let index: Shard = make(session, "damaged", 1).await?;
    index.swell(-(1 << 20));
    for i in 0..KEYS {
        index.insert(&key(i), b"value").await?;
    }
    index.enlarge(session).await?;
    let geometry = index.tables()[0].geometry();
    for i in 0..KEYS {
        if word(session, geometry.bucket(Level::One, 2)).await? & !META != 0 {
            break;
        }
        let home = geometry.home(index.hash(&key(i)).bits(), 0);
        if home == 0 {
            index.get(&key(i)).await?;
        }
    }
    assert_eq!(word(session, geometry.bucket(Level::One, 3)).await?, 0, "bucket 1 has yet to be split");
    Ok(index)
}

/// Every kind of object, cut into ranges.
async fn ranges(index: &Shard) -> Result<Vec<(String, RemotePtr)>, IndexError> {
    let session = index.session();
    let geometry = index.tables()[0].geometry();
    let mut objects = vec![("the root".to_owned(), index.tables()[0].root(), ROOT_LEN as u64)];
    for bucket in 0..4 {
        for level in [Level::One, Level::Two] {
            objects.push((format!("{level:?} {bucket}"), geometry.bucket(level, bucket), level.bytes() as u64));
        }
    }
    // The slots of level 3, of both segments.
    objects.push(("Three 0".to_owned(), geometry.third(0), 16));
    objects.push(("Three 2".to_owned(), geometry.third(2), 16));
    for bucket in 0..2 {
        if let Slot::Link(node) = Slot::decode(word(session, geometry.third(bucket)).await?) {
            objects.push((format!("a node of bucket {bucket}"), node, RANGE));
        }
    }
    for slot in [10, 30] {
        let at = geometry.bucket(Level::One, 1).add(slot * 8);
        let Slot::Live(entry) = Slot::decode(word(session, at).await?) else { panic!("no entry") };
        objects.push((format!("the block of slot {slot}"), entry.ptr, RANGE));
    }
    let cut = |(name, at, len): (String, RemotePtr, u64)| {
        (0..len.div_ceil(RANGE)).map(move |i| (format!("{name}, range {i}"), at.add(i * RANGE)))
    };
    Ok(objects.into_iter().flat_map(cut).collect())
}

async fn damage(session: &Session, at: RemotePtr, len: u64, seed: Option<u64>) -> Result<(), IndexError> {
    let mut state = seed.unwrap_or_default();
    let words: Vec<u64> = (0..len / 8)
        .map(|_| {
            // splitmix64
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let x = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
            if seed.is_some() { x ^ x >> 31 } else { 0 }
        })
        .collect();
    let span = session.span(OpKind::Other);
    let mut batch = span.batch();
    batch.write_words(at, &words);
    Ok(batch.post().await.map(drop)?)
}

/// What an operation answers, which must not take longer than so many leases.
async fn within<T>(
    index: &Shard,
    leases: u32,
    what: &str,
    body: impl Future<Output = Result<T, IndexError>>,
) -> Option<T> {
    let endpoint = index.session().endpoint();
    let mut body = std::pin::pin!(body);
    let mut late = std::pin::pin!(endpoint.sleep(LEASE * leases));
    std::future::poll_fn(|cx| match (body.as_mut().poll(cx), late.as_mut().poll(cx)) {
        (Poll::Ready(result), _) => Poll::Ready(result.ok()),
        (_, Poll::Ready(())) => panic!("{what}: not back after {leases} leases"),
        _ => Poll::Pending,
    })
    .await
}

/// Everything that one can do with an index, on keys of all its buckets.
async fn everything(index: &Shard, what: &str) {
    for i in (0..KEYS).step_by(9) {
        let (one, new) = (key(i), key(i + 1000));
        within(index, 4, &format!("{what}: get {i}"), index.get(&one)).await;
        within(index, 4, &format!("{what}: get of an absent key {i}"), index.get(&new)).await;
        match i % 4 {
            0 => drop(within(index, 4, &format!("{what}: insert {i}"), index.insert(&new, b"new")).await),
            1 => drop(within(index, 4, &format!("{what}: update {i}"), index.update(&one, b"new")).await),
            2 => drop(within(index, 4, &format!("{what}: upsert {i}"), index.upsert(&one, b"new")).await),
            _ => drop(within(index, 4, &format!("{what}: remove {i}"), index.remove(&one)).await),
        }
    }
    let keys: Vec<_> = (0..4).map(key).collect();
    let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    within(index, 8, &format!("{what}: get_many"), index.get_many(&keys)).await;
    within(index, 8, &format!("{what}: walk"), index.visit(async |_, _| Ok(()), &mut |_| Ok(()))).await;
    for alone in [false, true] {
        within(index, 4, &format!("{what}: audit"), index.audit(&mut Audit::default(), alone)).await;
    }
    within(index, 30, &format!("{what}: recovery"), index.recover()).await;
}

/// One range of one object after the other, each in a table of its own.
fn damage_every_range(seed: Option<u64>) {
    let mut range = 0;
    let mut all = usize::MAX;
    while range < all {
        let count = Rc::new(std::cell::Cell::new(0));
        let counted = Rc::clone(&count);
        alone(async move |session| {
            let index = table(&session).await?;
            let ranges = ranges(&index).await?;
            counted.set(ranges.len());
            let (name, at) = &ranges[range];
            let len = if name.starts_with("Three") { 16 } else { RANGE };
            damage(&session, *at, len, seed.map(|seed| seed + range as u64)).await?;
            let how = if seed.is_some() { "random words" } else { "zeros" };
            everything(&index, &format!("{how} in {name}")).await;
            // A client that comes later, and knows nothing.
            if let Some(index) = within(&index, 4, name, Shard::open(&session, "damaged")).await {
                within(&index, 4, &format!("{how} in {name}: first get"), index.get(&key(1))).await;
            }
            Ok(())
        });
        all = count.get();
        range += 1;
    }
    assert!(all >= 50, "{all} ranges");
}

#[test]
fn every_operation_ends_when_a_range_is_zeroed() {
    damage_every_range(None);
}

#[test]
fn every_operation_ends_when_a_range_holds_random_words() {
    damage_every_range(Some(7));
    damage_every_range(Some(1000));
}

/// What is wrong is named: the bucket that has lost its beginning.
#[test]
fn a_zeroed_bucket_is_named() {
    alone(async move |session| {
        let index: Shard = make(&session, "damaged", 1).await?;
        for i in 0..40 {
            index.insert(&key(i), b"value").await?;
        }
        let at = index.tables()[0].geometry().bucket(Level::One, 1);
        damage(&session, at, RANGE, None).await?;
        let mut reported = 0;
        for i in 1000..1020 {
            let began = session.endpoint().now();
            match index.insert(&key(i), b"new").await {
                Ok(_) => {}
                Err(IndexError::Pool(PoolError::Corrupt { at: named, what })) => {
                    assert_eq!((named, what.contains("bucket 1")), (at, true), "{what}");
                    let waited = session.endpoint().now() - began;
                    assert!((LEASE * 2..LEASE * 3).contains(&waited), "{waited:?}");
                    reported += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(reported > 0);
        Ok(())
    });
}
