//! One lock table for all threads of a process.

use farindex::{IndexConfig, PointIndex, Pool};

#[test]
fn sessions_of_a_process_share_verbs() {
    let pool = Pool::in_memory(32 << 20).unwrap();
    let session = pool.session().unwrap();
    for name in ["a", "b"] {
        session.create_index(name, IndexConfig::default()).unwrap();
    }
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let pool = pool.clone();
            scope.spawn(move || {
                let session = pool.session().unwrap();
                let plain = session.open_index("a").unwrap();
                let index = session.index("a").coalesce(true).open().unwrap();
                let other = session.index("b").coalesce(true).open().unwrap().async_handle();
                assert!(index.async_handle().cache_bytes() > plain.async_handle().cache_bytes());
                for i in 0..500u64 {
                    index.upsert("hot", [thread.to_le_bytes(), i.to_le_bytes()].concat()).unwrap();
                    index.upsert(thread.to_le_bytes(), i.to_le_bytes()).unwrap();
                    assert_eq!(plain.get(thread.to_le_bytes()).unwrap().as_deref(), Some(&i.to_le_bytes()[..]));
                    assert_eq!(index.get("hot").unwrap().map(|value| value.len()), Some(16));
                    assert_eq!(session.block_on(other.get(b"hot")), Ok(None));
                }
            });
        }
    });
    let report = session.check().unwrap();
    assert_eq!(report.problems().collect::<Vec<_>>(), Vec::<String>::new());
    assert_eq!(report.pool.lost, 0);
    assert_eq!(report.indexes[0].1.entries, 4);
    session.drop_index("a").unwrap();
}
