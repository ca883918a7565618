//! How large the futures of lookups and updates are. A program that has many in flight keeps one for each.

use farindex::{AnyIndex, IndexConfig, KINDS, PointIndex, Pool};

/// Bytes that the future of a lookup takes at most, by kind. What is rare (waiting, recovery, growth) has a box of its own.
const MOST: usize = 2816;
/// The same behind the lock table of the process, and of the type that stands for all kinds.
const MOST_OF_ALL: usize = 3456;
/// Bytes of an update, where it is a CAS; and where it may hold a lock.
const MOST_OF_UPDATE: usize = 3200;
const MOST_OF_LOCKED: usize = 5632;
/// An update of the type that stands for all kinds.
const MOST_OF_ALL_UPDATES: usize = 6400;

#[test]
fn futures_are_small() {
    let pool = Pool::in_memory(64 << 20).expect("a pool");
    let session = pool.session().expect("a session");
    let mut large = Vec::new();
    let mut check = |what: &str, size: usize, most: usize| {
        println!("{what}: {size} bytes");
        if size > most {
            large.push(format!("{what}: {size} bytes, at most {most}"));
        }
    };
    for kind in KINDS.iter().map(|kind| kind.name) {
        let config = IndexConfig::of_kind(kind).expect("a kind");
        let index = session.create_index(kind, config).expect("an index").async_handle();
        check("a lookup of any kind", size_of_val(&index.get(b"key")), MOST_OF_ALL);
        check("an update of any kind", size_of_val(&index.update(b"key", b"value")), MOST_OF_ALL_UPDATES);
        macro_rules! check_both {
            ($index:ident, $most:expr) => {{
                let index = $index.inner();
                check(&format!("{kind}: a lookup"), size_of_val(&index.get(b"key")), MOST);
                check(&format!("{kind}: an update"), size_of_val(&index.update(b"key", b"value")), $most);
            }};
        }
        match &*index {
            AnyIndex::Shard(index) => check_both!(index, MOST_OF_UPDATE),
            AnyIndex::Race(index) => check_both!(index, MOST_OF_UPDATE),
            AnyIndex::SepHash(index) => check_both!(index, MOST_OF_UPDATE),
            AnyIndex::Linear(index) => check_both!(index, MOST_OF_UPDATE),
            AnyIndex::Cuckoo(index) => check_both!(index, MOST_OF_LOCKED),
            AnyIndex::Sherman(index) => check_both!(index, MOST_OF_LOCKED),
            AnyIndex::Chime(index) => check_both!(index, MOST_OF_LOCKED),
            AnyIndex::Dex(index) => check_both!(index, MOST_OF_LOCKED),
            // Any further kind is a part of the type for all kinds.
            _ => {}
        }
    }
    let coalesced = session.index("shard").coalesce(true).open().expect("the index").async_handle();
    check("a coalesced lookup", size_of_val(&coalesced.get(b"key")), MOST_OF_ALL);
    assert!(large.is_empty(), "{large:?}");
}

/// In mapped memory nothing stops a coroutine but the end of an operation.
#[test]
fn others_have_their_turn_while_one_coroutine_works() {
    let session = farindex::Pool::in_memory(64 << 20).expect("a pool").session().expect("a session");
    let index = session.index("busy").create().expect("an index").async_handle();
    session.block_on(index.insert(b"key", b"value")).expect("inserted");
    let turns = std::rc::Rc::new(std::cell::Cell::new(0));
    let other = session.spawn({
        let turns = std::rc::Rc::clone(&turns);
        async move {
            loop {
                turns.set(turns.get() + 1);
                farindex::yield_now().await;
            }
        }
    });
    let seen = session.block_on(async {
        farindex::yield_now().await;
        let before = turns.get();
        for _ in 0..1000 {
            index.get(b"key").await.expect("an answer");
        }
        turns.get() - before
    });
    drop(other);
    assert!((1..100).contains(&seen), "{seen} turns during 1000 gets");
}
