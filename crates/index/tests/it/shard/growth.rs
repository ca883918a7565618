//! SHARD from the smallest table, through many resizes and back to nothing.

use farindex_fabric::OpKind;
use farindex_index::shard::bucket::Level;
use farindex_index::shard::slot::Slot;
use farindex_index::{Insert, PointIndex, Remove, Shard, Update, Upsert, shard};
use farindex_testkit::alone::with_index;

#[test]
fn nothing_is_lost_from_the_smallest_table_on() {
    const KEYS: u64 = 20_000;
    with_index(64 << 20, shard::Config { initial_bits: 0, ..Default::default() }, async |shard: &Shard| {
        for i in 0..KEYS {
            assert_eq!(shard.insert(&i.to_le_bytes(), &(i * 3).to_le_bytes()).await, Ok(Insert::Inserted));
        }
        assert!(shard.tables()[0].geometry().version >= 8);
        assert_eq!(shard.tables()[0].count(), KEYS);
        for i in 0..KEYS {
            let value = shard.get(&i.to_le_bytes()).await.expect("no error");
            assert_eq!(value.expect("a key is lost"), &(i * 3).to_le_bytes());
            assert_eq!(shard.get(&(i + 1_000_000).to_le_bytes()).await, Ok(None));
        }
        for i in 0..KEYS {
            assert_eq!(shard.insert(&i.to_le_bytes(), b"").await, Ok(Insert::Exists));
            assert_eq!(shard.update(&i.to_le_bytes(), b"x").await, Ok(Update::Updated));
            assert_eq!(shard.upsert(&i.to_le_bytes(), b"y").await, Ok(Upsert::Updated));
        }
        for i in 0..KEYS {
            assert_eq!(shard.remove(&i.to_le_bytes()).await, Ok(Remove::Removed));
            assert_eq!(shard.remove(&i.to_le_bytes()).await, Ok(Remove::Absent));
            assert_eq!(shard.update(&i.to_le_bytes(), b"x").await, Ok(Update::Absent));
        }
        assert_eq!(shard.tables()[0].count(), 0);
        // What a worker keeps does not depend on the number of keys.
        let copy = shard.tables()[0].geometry().cache_bytes();
        assert!((copy + 1..1000).contains(&shard.cache_bytes()), "{} bytes", shard.cache_bytes());
    });
}

/// A lookup that finds its key in a young bucket has found that bucket split, and after 64 of these in a row parents are READ no
/// more.
#[test]
fn lookups_that_find_their_keys_stop_reading_parents() {
    const KEYS: u64 = 5_000;
    with_index(64 << 20, shard::Config { initial_bits: 0, ..Default::default() }, async |shard: &Shard| {
        for i in 0..KEYS {
            assert_eq!(shard.insert(&i.to_le_bytes(), b"").await, Ok(Insert::Inserted));
        }
        let read_all = async || {
            let before = shard.session().endpoint().meter();
            for i in 0..KEYS {
                assert!(shard.get(&i.to_le_bytes()).await.is_ok_and(|value| value.is_some()));
            }
            (shard.session().endpoint().meter() - before).of(OpKind::Get).total.reads
        };
        // Buckets that have yet to be split are split by these.
        read_all().await;
        let reads = read_all().await;
        // The bucket and the block of each key; more where fingerprints are equal, or a key lies in level 2. (A parent for each
        // bucket that may be young would be 2,500 more.)
        assert!((KEYS * 2..KEYS * 9 / 4).contains(&reads), "{reads} READs");
    });
}

/// A READ that is torn by two renewals of the sids would miss an entry that is there, so the second one is not
/// published while an operation may be in progress that does not know the first.
#[test]
fn the_sids_are_renewed_once_during_an_operation() {
    with_index(64 << 20, shard::Config { initial_bits: 0, ..Default::default() }, async |shard: &Shard| {
        let version = || shard.tables()[0].geometry().version;
        let session = shard.session();
        let slow = session.pin(session.span(OpKind::Other)).expect("a pin");
        for i in 0..12_000u64 {
            assert_eq!(shard.insert(&i.to_le_bytes(), b"").await, Ok(Insert::Inserted));
        }
        assert_eq!(version(), 7, "the next resize renews the sids for the second time");
        drop(slow);
        for i in 12_000..16_000u64 {
            assert_eq!(shard.insert(&i.to_le_bytes(), b"").await, Ok(Insert::Inserted));
        }
        assert!(version() > 7);
        for i in 0..16_000u64 {
            assert!(shard.get(&i.to_le_bytes()).await.expect("no error").is_some(), "key {i} is lost");
        }
    });
}

/// Larger than a chunk of the pool, and than one batch of WRITEs fills.
#[test]
fn a_table_that_is_large_from_the_beginning() {
    const KEYS: u64 = 60_000;
    with_index(64 << 20, shard::Config { initial_bits: 12, ..Default::default() }, async |shard: &Shard| {
        let table = &shard.tables()[0];
        assert_eq!((table.geometry().initial_bits(), table.geometry().slots()), (12, 64 << 12));
        let span = shard.session().span(OpKind::Other);
        for (level, slots) in [(Level::One, 64), (Level::Two, 8)] {
            for bucket in [0, 1, 2047, 4094, 4095] {
                let words = span.read(table.geometry().bucket(level, bucket), level.bytes()).await.expect("there");
                let fresh = |word: &u64| matches!(Slot::decode(*word), Slot::Fresh(0, _));
                assert_eq!(words.words().iter().filter(|word| fresh(word)).count(), slots, "{level:?} {bucket}");
            }
        }
        for i in 0..KEYS {
            assert_eq!(shard.insert(&i.to_le_bytes(), b"").await, Ok(Insert::Inserted));
        }
        assert_eq!(table.geometry().version, 0);
        for i in 0..KEYS {
            assert!(shard.get(&i.to_le_bytes()).await.expect("no error").is_some(), "key {i} is lost");
        }
    });
}
