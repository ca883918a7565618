//! Keys of all shapes: shared prefixes, zero bytes, the empty key; ranges of them; many strings.

use super::{Tree, with_tree};
use farindex_index::{AnyIndex, Insert, KeyBounds, OrderedIndex, PointIndex, Remove, Value};
use farindex_testkit::suite::{Model, Walk, compare, step};
use farindex_testkit::world::{Rng, bytes};
use std::ops::Bound;

/// Inserts keys in a random order, changes some, removes two thirds, and inserts those again; the index is that of the
/// model after each of these.
async fn work_on(index: &AnyIndex, mut keys: Vec<Vec<u8>>) {
    let (mut model, mut rng) = (Model::new(), Rng::new(keys.len() as u64));
    for i in (1..keys.len()).rev() {
        keys.swap(i, rng.below(i as u64 + 1) as usize);
    }
    for key in &keys {
        step(index, &mut model, 1, key, &bytes(rng.below(20) as usize, rng.word())).await;
    }
    compare(index, &model).await;
    for key in keys.iter().step_by(5) {
        step(index, &mut model, 3, key, &bytes(8, rng.word())).await;
    }
    for (_, key) in keys.iter().enumerate().filter(|(i, _)| i % 3 > 0) {
        step(index, &mut model, 4, key, b"").await;
        step(index, &mut model, 0, key, b"").await;
    }
    compare(index, &model).await;
    for key in &keys {
        step(index, &mut model, 1, key, &bytes(8, rng.word())).await;
    }
    compare(index, &model).await;
}

pub(crate) fn keys_with_long_common_prefixes_are_distinct<T: Tree>() {
    for (prefix, count, config) in [
        (8, 4000, T::default_config()),
        (300, 2000, T::default_config()),
        (8, 1500, T::smallest()),
        (300, 1000, T::smallest()),
    ] {
        with_tree::<T>(64 << 20, config, async move |_, index| {
            let key = |i: u32| [vec![b'p'; prefix], format!("{:05}", i * 7).into_bytes()].concat();
            work_on(index, (0..count).map(key).collect()).await;
        });
    }
}

/// Keys that are prefixes of each other, also by zero bytes alone.
pub(crate) fn keys_with_zero_bytes_and_the_empty_key_are_distinct<T: Tree>() {
    for config in [T::default_config(), T::smallest()] {
        with_tree::<T>(64 << 20, config, async |_, index| {
            // All strings of up to 5 bytes out of these, and some of them behind 6 zeros: across the eighth byte.
            let mut keys = vec![Vec::new()];
            let mut from = 0;
            for _ in 0..5 {
                let until = keys.len();
                for i in from..until {
                    keys.extend([0, 1, 0xFF].map(|last| [keys[i].as_slice(), &[last]].concat()));
                }
                from = until;
            }
            let shifted: Vec<_> = keys.iter().skip(1).map(|key| [&[0; 6], key.as_slice()].concat()).collect();
            keys.extend(shifted);
            keys.sort_unstable();
            keys.dedup();
            work_on(index, keys).await;
        });
    }
}

/// Keys of 8 bytes whose values change between 8 bytes and other lengths: entries move between leaf and block.
pub(crate) fn an_entry_changes_between_inline_and_block<T: Tree>() {
    for config in [T::default_config(), T::smallest()] {
        with_tree::<T>(8 << 20, config, async |_, index| {
            let mut model = Model::new();
            for round in 0..6u64 {
                for i in 0..200u64 {
                    let len = if (i + round) % 3 == 0 { 8 } else { (i % 40) as usize };
                    step(index, &mut model, 3, &i.to_be_bytes(), &bytes(len, round)).await;
                }
                compare(index, &model).await;
            }
        });
    }
}

/// Every kind of range over leaves that removals have emptied, and over prefixes.
pub(crate) fn scans_return_what_their_bounds_hold<T: Tree>() {
    for (config, value_len) in [(T::smallest(), 8), (T::smallest(), 20), (T::default_config(), 8)] {
        with_tree::<T>(32 << 20, config, async move |_, index| {
            let key = |i: u32| format!("k{i:07}").into_bytes();
            let mut model = Model::new();
            for i in 0..600 {
                step(index, &mut model, 1, &key(i), &bytes(value_len, u64::from(i))).await;
            }
            // The leaves of the middle go, but for one key.
            for i in (100..500).filter(|i| *i != 300) {
                step(index, &mut model, 4, &key(i), b"").await;
            }
            let (a, b, gone, alone) = (key(50), key(550), key(200), key(300));
            let (a, b, gone, alone) = (a.as_slice(), b.as_slice(), gone.as_slice(), alone.as_slice());
            let ranges: Vec<KeyBounds<'_>> = vec![
                (Bound::Unbounded, Bound::Unbounded),
                (Bound::Included(a), Bound::Included(b)),
                (Bound::Excluded(a), Bound::Excluded(b)),
                (Bound::Included(a), Bound::Included(a)),
                (Bound::Included(b), Bound::Included(a)),
                (Bound::Included(a), Bound::Excluded(a)),
                (Bound::Excluded(a), Bound::Included(a)),
                (Bound::Excluded(a), Bound::Excluded(a)),
                (Bound::Included(gone), Bound::Excluded(alone)),
                (Bound::Excluded(gone), Bound::Included(alone)),
                (Bound::Excluded(alone), Bound::Unbounded),
                (Bound::Unbounded, Bound::Excluded(b"")),
                (Bound::Included(b""), Bound::Included(b"")),
                // Prefixes.
                (Bound::Included(b"k00000"), Bound::Excluded(b"k00001")),
                (Bound::Included(b"k00002"), Bound::Excluded(b"k00003")),
                (Bound::Included(b"k00003"), Bound::Excluded(b"k00004")),
                (Bound::Included(b"k00005"), Bound::Excluded(b"k00006")),
                (Bound::Included(b"l"), Bound::Unbounded),
            ];
            for range in ranges {
                for limit in [0, 1, 2, 3, 5, 100, 101, usize::MAX] {
                    let holds = |key: &[u8]| std::ops::RangeBounds::contains(&range, key);
                    let expected = model.iter().filter(|(key, _)| holds(key)).take(limit);
                    let expected: Vec<_> = expected.map(|(key, value)| (key.clone(), value.clone())).collect();
                    let found = index.scan(range, limit).await.unwrap();
                    let found: Vec<_> = found.iter().map(|e| (e.key.to_vec(), e.value.to_vec())).collect();
                    assert_eq!(found, expected, "{range:?}, {limit} at most");
                }
            }
        });
    }
}

/// Strings as they occur: paths and names with many common prefixes. `FARINDEX_STRINGS` says how many.
pub(crate) fn strings_come_out_sorted<T: Tree>() {
    let count = std::env::var("FARINDEX_STRINGS").ok().and_then(|count| count.parse().ok()).unwrap_or(20_000);
    with_tree::<T>((16 << 20) + count as u64 * 1024, T::default_config(), async move |_, index| {
        const WORDS: [&str; 16] = [
            "a",
            "index",
            "in",
            "inner",
            "leaf",
            "leaves",
            "node",
            "nodes",
            "tree",
            "http://",
            "example",
            ".org/",
            "user",
            "users",
            "\u{e4}rger",
            "\u{65e5}\u{672c}",
        ];
        let (mut model, mut rng) = (Model::new(), Rng::new(1));
        while model.len() < count {
            let mut key = String::new();
            for _ in 0..1 + rng.below(6) {
                let word: &str = WORDS[rng.below(16) as usize];
                key.push_str(word);
                key.push_str(["/", "-", "", " "][rng.below(4) as usize]);
            }
            if rng.below(2) == 0 {
                key.push_str(&rng.below(count as u64).to_string());
            }
            let value = model.len().to_string().into_bytes();
            if !model.contains_key(key.as_bytes()) {
                assert_eq!(index.insert(key.as_bytes(), &value).await, Ok(Insert::Inserted));
                model.insert(key.into_bytes(), value);
            }
        }
        let mut dump = Vec::with_capacity(count);
        let each = async |key: &[u8], value: Value| {
            dump.push((key.to_vec(), value.to_vec()));
            Ok(())
        };
        assert_eq!(index.visit_all(each).await, Ok(count as u64));
        assert!(model.iter().map(|(key, value)| (key.clone(), value.clone())).eq(dump));
        let scanned = index.scan((Bound::Unbounded, Bound::Unbounded), usize::MAX).await.unwrap();
        assert!(scanned.iter().map(|e| (&*e.key, &*e.value)).eq(model.iter().map(|(k, v)| (&k[..], &v[..]))));
        for key in model.keys().step_by(2) {
            assert_eq!(index.remove(key).await, Ok(Remove::Removed));
        }
        let left: Vec<_> = model.keys().skip(1).step_by(2).map(Vec::as_slice).collect();
        let scanned = index.scan((Bound::Unbounded, Bound::Unbounded), usize::MAX).await.unwrap();
        assert!(scanned.iter().map(|entry| &*entry.key).eq(left.iter().copied()));
    });
}
