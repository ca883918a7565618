//! Updates, removals and inserts for a long time, in a pool that is only four times as large as the live data: it must
//! never fill, and its use of far memory must stay where it was after the first tenth.
//!
//! `churn [OPERATIONS] [KEYS] [THREADS] [KIND]`, 50,000,000 over 100,000 keys with 2 threads and SHARD by default.
//! Every thread has keys of its own and knows what each must hold, so every answer is checked.

use farindex::{IndexConfig, Insert, Pool, Remove, Session, Update};
use farindex_pool::layout::ChunkUse;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

fn argument(at: usize, default: u64) -> u64 {
    std::env::args().nth(at).map_or(default, |text| text.parse().expect("a whole number"))
}

/// Values of 40 to 167 bytes: blocks of one to three units.
fn value(random: &mut SplitMix64, buf: &mut Vec<u8>) {
    let word = random.next_u64();
    buf.clear();
    buf.resize(40 + (word % 128) as usize, word as u8);
}

fn used_bytes(session: &Session) -> u64 {
    let raw = session.raw();
    let span = raw.span(farindex_fabric::OpKind::Other);
    let node = farindex_fabric::NodeId::new(0);
    let chunks = session
        .block_on(farindex_pool::alloc::chunks::all_chunks(raw.pool(), &span, node))
        .expect("the pool can be read");
    chunks.iter().filter(|chunk| chunk.used != ChunkUse::Free).count() as u64 * raw.pool().geometry(node).chunk_size
}

fn main() {
    let (operations, keys, threads) = (argument(1, 50_000_000), argument(2, 100_000), argument(3, 2));
    let kind = std::env::args().nth(4).unwrap_or_else(|| "shard".to_owned());
    let config = IndexConfig::of_kind(&kind).expect("a kind of index");
    // Once in a pool of any size, to learn what the live data takes.
    let live = {
        let pool = Pool::in_memory(1 << 30).expect("a pool");
        let session = pool.session().expect("a session");
        let index = session.create_index("churn", config).expect("an index");
        let (mut random, mut buf) = (SplitMix64::seed_from_u64(1), Vec::new());
        for key in 0..keys {
            value(&mut random, &mut buf);
            index.insert(key.to_le_bytes(), &buf).expect("room");
        }
        let report = session.check().expect("a check");
        report.pool.nodes.iter().map(|node| node.live_bytes).sum::<u64>()
    };
    let size = live * 4;
    println!("{keys} keys take {live} bytes; the pool has {size}");
    let pool = Pool::in_memory(size).expect("a pool");
    let session = pool.session().expect("a session");
    session.create_index("churn", config).expect("an index");
    let (done, after_tenth, worst) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let clock = std::time::Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (pool, done) = (&pool, &done);
            scope.spawn(move || {
                let session = pool.session().expect("a session");
                let index = session.open_index("churn").expect("the index");
                let mut random = SplitMix64::seed_from_u64(thread + 100);
                let mut model: HashMap<u64, Vec<u8>> = HashMap::new();
                let mut buf = Vec::new();
                for key in (thread..keys).step_by(threads as usize) {
                    value(&mut random, &mut buf);
                    assert_eq!(index.insert(key.to_le_bytes(), &buf).expect("room"), Insert::Inserted);
                    model.insert(key, buf.clone());
                }
                for i in 0..operations / threads {
                    let key = random.next_u64() % (keys / threads) * threads + thread;
                    let present = model.contains_key(&key);
                    match random.next_u64() % 100 {
                        0..40 => {
                            value(&mut random, &mut buf);
                            let expected = if present { Update::Updated } else { Update::Absent };
                            assert_eq!(index.update(key.to_le_bytes(), &buf).expect("never full"), expected);
                            model.entry(key).and_modify(|value| value.clone_from(&buf));
                        }
                        40..70 => {
                            let expected = if present { Remove::Removed } else { Remove::Absent };
                            assert_eq!(index.remove(key.to_le_bytes()).expect("no error"), expected);
                            model.remove(&key);
                        }
                        _ => {
                            value(&mut random, &mut buf);
                            let expected = if present { Insert::Exists } else { Insert::Inserted };
                            assert_eq!(index.insert(key.to_le_bytes(), &buf).expect("never full"), expected);
                            model.entry(key).or_insert_with(|| buf.clone());
                        }
                    }
                    if i % 1024 == 0 {
                        done.fetch_add(1024, Ordering::Relaxed);
                    }
                }
                for (key, value) in &model {
                    assert_eq!(index.get(key.to_le_bytes()).expect("no error").as_deref(), Some(&**value));
                }
                done.fetch_add(u64::MAX / 2 / threads, Ordering::Relaxed);
            });
        }
        while done.load(Ordering::Relaxed) < u64::MAX / 4 {
            std::thread::sleep(std::time::Duration::from_millis(200));
            let (done, used) = (done.load(Ordering::Relaxed), used_bytes(&session));
            if done >= operations / 10 && done < u64::MAX / 4 {
                after_tenth.compare_exchange(0, used, Ordering::Relaxed, Ordering::Relaxed).ok();
                worst.fetch_max(used, Ordering::Relaxed);
            }
        }
    });
    let seconds = clock.elapsed().as_secs_f64();
    let (tenth, worst) = (after_tenth.into_inner(), worst.into_inner());
    let growth = worst as f64 / tenth as f64 - 1.0;
    println!(
        "{operations} operations in {seconds:.1} s; far memory {tenth} bytes after a tenth, {worst} at most: {:+.1} %",
        growth * 100.0
    );
    let report = session.check().expect("a check");
    let problems: Vec<_> = report.problems().chain(report.left_behind()).collect();
    println!("check: {problems:?}, {} entries", report.indexes[0].1.entries);
    assert!(problems.is_empty() && growth <= 0.05);
}
