//! How full a table becomes before it has to grow.

use farindex_index::cuckoo::{Config, places};
use farindex_index::{Cuckoo, Insert, PointIndex};
use farindex_testkit::alone::with_index;

/// Entries of one table of 4096 slots when it first begins to move: at the highest threshold, or when there is no path
/// for a key.
fn filled(associativity: u64) -> u64 {
    let config = Config { slots: 4096, width: 8, associativity, threshold: 0.98, ..Config::default() };
    let mut entries = 0;
    with_index(64 << 20, config, async |index: &Cuckoo| {
        for i in 0..5000u32 {
            assert_eq!(index.insert(&i.to_le_bytes(), b"").await, Ok(Insert::Inserted));
            if index.tables()[0].geometry().next.is_some() {
                break;
            }
            entries += 1;
        }
        for i in 0..=entries as u32 {
            assert!(index.get(&i.to_le_bytes()).await.is_ok_and(|value| value.is_some()), "{i}");
        }
    });
    entries
}

#[test]
fn displacement_fills_a_table() {
    assert_eq!(places::WAYS, 3);
    let [single, fourfold] = [1, 4].map(filled);
    println!("4096 slots: {single} entries at associativity 1, {fourfold} at 4");
    assert!(single > 4096 * 3 / 4, "{single}");
    assert!(fourfold > 4096 * 9 / 10, "{fourfold}");
}
