//! A table is moved, and its entries are changed, in the midst of a walk.

use crate::slotted::kinds::{Entries, Kind, counted, key, value, walk};
use farindex_fabric::OpKind;
use farindex_index::audit::Damage;
use farindex_index::{Cuckoo, Insert, Linear, Value, cuckoo, linear};
use farindex_pool::marks;
use farindex_testkit::alone::with_index;

const KEYS: u32 = 150;
/// Four regions.
const SLOTS: u64 = 256;

async fn fill<I: Kind>(index: &I) {
    for i in 0..KEYS {
        assert_eq!(index.insert(&key(i), &value(i, "old")).await, Ok(Insert::Inserted));
    }
    assert_eq!(index.geometry().current.slots(), SLOTS);
}

/// When the walk has visited its first key, everything is changed, and moved as often as asked.
fn is_met_once_while_it_moves<I: Kind>(times: u64) {
    with_index(64 << 20, I::config(SLOTS), async |index: &I| {
        fill(index).await;
        let mut visited = Entries::new();
        let each = async |of: &[u8], value_seen: Value| {
            let first = visited.is_empty();
            assert!(
                visited.insert(of.to_vec(), value_seen.to_vec()).is_none(),
                "{} is visited twice",
                of.escape_ascii()
            );
            for _ in 0..if first { times } else { 0 } {
                index.enlarge().await?;
                for i in 0..KEYS {
                    index.update(&key(i), &value(i, "new")).await?;
                }
                while index.geometry().next.is_some() {
                    index.move_one().await?;
                }
            }
            Ok(())
        };
        assert_eq!(index.visit(each, &mut Damage::fail).await, Ok(u64::from(KEYS)));
        assert!(index.geometry().current.generation >= times);
        for i in 0..KEYS {
            let seen = &visited[&key(i)];
            assert!(*seen == value(i, "old") || *seen == value(i, "new"), "key {i}: {}", seen.escape_ascii());
        }
        assert!(visited.values().any(|seen| seen.starts_with(b"new")), "the walk was over before");
    });
}

#[test]
fn linear_is_met_once_while_it_moves() {
    is_met_once_while_it_moves::<Linear>(1);
    is_met_once_while_it_moves::<Linear>(3);
}

#[test]
fn cuckoo_is_met_once_while_it_moves() {
    is_met_once_while_it_moves::<Cuckoo>(1);
    is_met_once_while_it_moves::<Cuckoo>(3);
}

/// Walks and counts with each number of regions moved, as they stand.
fn is_met_once_half_moved<I: Kind>() {
    with_index(64 << 20, I::config(SLOTS), async |index: &I| {
        fill(index).await;
        index.enlarge().await.expect("a next table");
        for moved in 0.. {
            let visited = walk(index).await.expect("a walk");
            assert!((0..KEYS).all(|i| visited[&key(i)] == value(i, "old")), "{moved} regions moved");
            let all = u64::from(KEYS);
            assert_eq!((visited.len() as u64, counted(index).await), (all, Ok([all; 2])), "{moved} regions moved");
            if index.geometry().next.is_none() {
                break;
            }
            index.move_one().await.expect("one more region");
        }
    });
}

#[test]
fn linear_is_met_once_half_moved() {
    is_met_once_half_moved::<Linear>();
}

#[test]
fn cuckoo_is_met_once_half_moved() {
    is_met_once_half_moved::<Cuckoo>();
}

/// No slot is empty, so no path ends; and the records are more than a step holds.
#[test]
fn linear_is_walked_though_no_slot_is_empty() {
    let config = linear::Config { slots: 64, threshold: 0.95, ..linear::Config::default() };
    with_index(64 << 20, config, async |index: &Linear| {
        let table = &index.tables()[0];
        let long = |i: u32| vec![i as u8; 40_000];
        for i in 0..64 {
            table.note(0, 0, -1000);
            assert_eq!(farindex_index::PointIndex::insert(index, &key(i), &long(i)).await, Ok(Insert::Inserted));
        }
        assert_eq!((index.resizes(), table.geometry().next), (0, None));
        marks::take();
        let visited = walk(index).await.expect("a walk");
        assert!(visited.len() == 64 && (0..64).all(|i| visited[&key(i)] == long(i)));
        let marks = marks::take();
        assert!(marks.contains_key("linear walk: range cut"), "{marks:?}");
    });
}

/// A table of so many slots is walked in passes: what a walk remembers is bounded.
#[test]
fn cuckoo_is_walked_in_passes() {
    const SLOTS: u64 = 3 << 20;
    let config = cuckoo::Config { slots: SLOTS, width: 8, ..cuckoo::Config::default() };
    with_index(64 << 20, config, async |index: &Cuckoo| {
        for i in 0..2000u32 {
            let key = i.to_le_bytes();
            assert_eq!(farindex_index::PointIndex::insert(index, &key, b"").await, Ok(Insert::Inserted));
        }
        let endpoint = index.session().endpoint().clone();
        let before = endpoint.meter();
        assert_eq!(walk(index).await.map(|visited| visited.len()), Ok(2000));
        let read = (endpoint.meter() - before).of(OpKind::Scan).total.bytes_read;
        assert_eq!(read / (SLOTS * 8), 2 * 3, "two passes through three places: {read} bytes");
    });
}
