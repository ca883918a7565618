//! SHARD from the smallest table, through many resizes and back to nothing.

#[path = "common/alone.rs"]
mod alone;

use alone::with_shard;
use farindex_index::{HashIndex, Insert, Remove, Update, Upsert, shard};

#[test]
fn nothing_is_lost_from_the_smallest_table_on() {
    const KEYS: u64 = 20_000;
    with_shard(64 << 20, shard::Config { initial_bits: 0, ..Default::default() }, async |shard| {
        for i in 0..KEYS {
            assert_eq!(shard.insert(&i.to_le_bytes(), &(i * 3).to_le_bytes()).await, Ok(Insert::Inserted));
        }
        assert!(shard.tables()[0].geometry().version >= 8);
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
    });
}
