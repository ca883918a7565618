//! How large the future of a lookup is. A program that has many lookups in flight keeps one for each.

use farindex::{AnyIndex, IndexConfig, KINDS, PointIndex, Pool};

/// Bytes that it takes at most, by kind. What is rare (waiting for others, recovery, growth) has a box of its own.
const MOST: usize = 2816;
/// The same behind the lock table of the process, and of the type that stands for all kinds.
const MOST_OF_ALL: usize = 3456;

#[test]
fn the_future_of_a_lookup_is_small() {
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
        check("any kind", size_of_val(&index.get(b"key")), MOST_OF_ALL);
        match &*index {
            AnyIndex::Shard(index) => check(kind, size_of_val(&index.inner().get(b"key")), MOST),
            AnyIndex::Race(index) => check(kind, size_of_val(&index.inner().get(b"key")), MOST),
            AnyIndex::SepHash(index) => check(kind, size_of_val(&index.inner().get(b"key")), MOST),
            AnyIndex::Linear(index) => check(kind, size_of_val(&index.inner().get(b"key")), MOST),
            AnyIndex::Cuckoo(index) => check(kind, size_of_val(&index.inner().get(b"key")), MOST),
            AnyIndex::Sherman(index) => check(kind, size_of_val(&index.inner().get(b"key")), MOST),
            AnyIndex::Chime(index) => check(kind, size_of_val(&index.inner().get(b"key")), MOST),
            AnyIndex::Dex(index) => check(kind, size_of_val(&index.inner().get(b"key")), MOST),
            // Any further kind is a part of the type for all kinds.
            _ => {}
        }
    }
    let coalesced = session.index("shard").coalesce(true).open().expect("the index").async_handle();
    check("coalesced", size_of_val(&coalesced.get(b"key")), MOST_OF_ALL);
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
