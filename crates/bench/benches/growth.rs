//! Growth from the smallest table: many keys of mixed sizes, several clients at once. Nothing may be lost.
//!
//! `growth [KEYS] [CLIENTS] [THREADS]`, 10,000,000 keys by 8 clients on 2 threads by default.

use farindex::{IndexConfig, Insert, PointIndex, Pool, shard};

fn argument(at: usize, default: u64) -> u64 {
    std::env::args().nth(at).map_or(default, |text| text.parse().expect("a whole number"))
}

/// The key number in 8 to 39 bytes.
fn key(i: u64) -> Vec<u8> {
    let mut key = i.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes().to_vec();
    key.resize(8 + (i % 32) as usize, b'k');
    key
}

/// A value of 0 to 255 bytes, and now and then one of a few KiB.
fn value(i: u64) -> Vec<u8> {
    let len = if i.is_multiple_of(1000) { 4000 + i % 4000 } else { i.wrapping_mul(31) % 256 };
    vec![i as u8; len as usize]
}

fn main() {
    let (keys, clients, threads) = (argument(1, 10_000_000), argument(2, 8), argument(3, 2));
    let size = keys * 400 + (64 << 20);
    let pool = Pool::in_memory(size).expect("a pool");
    let session = pool.session().expect("a session");
    let config = IndexConfig::Shard(shard::Config { initial_bits: 0, ..shard::Config::default() });
    session.create_index("growth", config).expect("an index");
    let clock = std::time::Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let pool = &pool;
            scope.spawn(move || {
                let session = pool.session().expect("a session");
                let index = session.open_index("growth").expect("the index").async_handle();
                let tasks: Vec<_> = (thread..clients)
                    .step_by(threads as usize)
                    .map(|client| {
                        let index = index.clone();
                        session.spawn(async move {
                            for i in (client..keys).step_by(clients as usize) {
                                assert_eq!(index.insert(&key(i), &value(i)).await, Ok(Insert::Inserted));
                            }
                        })
                    })
                    .collect();
                tasks.into_iter().for_each(|task| session.block_on(task));
            });
        }
    });
    let loaded = clock.elapsed().as_secs_f64();
    println!("{keys} keys inserted in {loaded:.1} s, epoch {}", session.raw().client().epoch());
    let index = session.open_index("growth").expect("the index");
    for i in 0..keys {
        assert_eq!(index.get(key(i)).expect("no error").as_deref(), Some(&*value(i)), "key {i}");
    }
    println!("all found after {:.1} s more", clock.elapsed().as_secs_f64() - loaded);
    let report = session.check().expect("a check");
    let problems: Vec<_> = report.problems().chain(report.left_behind()).collect();
    let audit = &report.indexes[0].1;
    let node = &report.pool.nodes[0];
    println!("{audit:?}");
    println!(
        "far memory {} bytes in chunks, {} live; {:.1} bytes for each entry; cache {} bytes",
        node.data_bytes - node.free_chunk_bytes,
        node.live_bytes,
        (node.data_bytes - node.free_chunk_bytes) as f64 / audit.entries as f64,
        index.cache_bytes()
    );
    assert!(problems.is_empty(), "{problems:?}");
    assert_eq!(audit.entries, keys);
}
