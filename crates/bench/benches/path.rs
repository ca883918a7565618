//! The path of one operation in the process's own memory, by one thread: what an operation costs above its verbs.
//!
//! `path [KIND] [WORK] [KEYS] [OPERATIONS] [ROUNDS]`: `shard`, `get`, 1,000 keys, 200,000 operations and the median of 5
//! rounds by default. Works:
//!
//! | Work | An operation |
//! |---|---|
//! | `get`, `update` | of a key that is present, drawn at random |
//! | `insert` | of a key that is absent; the table is made large enough not to grow |
//! | `get-many` | a get, 128 of which are asked for at once |
//! | `call` | a get through the blocking face, with its own `block_on` |
//! | `read` | the READs of a get of SHARD alone: 512 bytes, and then 64 |
//! | `read-many` | the same, 128 in a batch |
//!
//! Keys and values are of 8 bytes. `scripts/instructions` counts the instructions of an operation as the difference
//! between two lengths of such a run.

use farindex::{IndexConfig, Insert, PointIndex, Pool, Session, Update, linear, shard};
use farindex_fabric::{Endpoint, FabricError, NodeId, OpKind, RemotePtr};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use std::hint::black_box;
use std::time::Instant;

/// Gets that are asked for at once.
const TOGETHER: usize = 128;
/// Share of the slots that are filled at most.
const LOAD: f64 = 0.6;
/// Inserts for which there is room in any case.
const SHORT: u64 = 1 << 14;
/// Bytes of a bucket of SHARD, and of a block.
const BUCKET: usize = 512;
const BLOCK: usize = 64;

fn argument(at: usize, default: &str) -> String {
    // `cargo bench` adds a flag of its own.
    std::env::args().filter(|arg| arg != "--bench").nth(at).unwrap_or_else(|| default.to_owned())
}

fn number(at: usize, default: &str) -> u64 {
    argument(at, default).parse().expect("a whole number")
}

fn below(random: &mut SplitMix64, end: u64) -> u64 {
    ((u128::from(random.next_u64()) * u128::from(end)) >> 64) as u64
}

fn key(i: u64) -> [u8; 8] {
    i.to_le_bytes()
}

/// An index that does not grow before it holds so many keys.
fn config(kind: &str, keys: u64) -> IndexConfig {
    let slots = (keys as f64 / LOAD) as u64;
    match kind {
        "shard" => {
            let initial_bits = u64::from((slots / 64).max(1).next_power_of_two().trailing_zeros());
            IndexConfig::Shard(shard::Config { initial_bits, ..shard::Config::default() })
        }
        "linear" => IndexConfig::Linear(linear::Config { slots, ..linear::Config::default() }),
        other => IndexConfig::of_kind(other).expect("a kind of index"),
    }
}

/// READs of a bucket and then of a block each, `together` of both in a batch.
async fn bare(endpoint: &Endpoint, operations: u64, together: usize, end: u64) -> Result<u64, FabricError> {
    let (mut random, mut sum, mut left) = (SplitMix64::seed_from_u64(7), 0u64, operations as usize);
    let places = end / BUCKET as u64;
    let mut tickets = Vec::new();
    while left > 0 {
        let count = left.min(together);
        let span = endpoint.span(OpKind::Other);
        // What the first READ brings decides where the second one goes.
        let mut seen = 0;
        for len in [BUCKET, BLOCK] {
            let mut batch = span.batch();
            for _ in 0..count {
                let place = below(&mut random, places) ^ seen & 1;
                tickets.push(batch.read(RemotePtr::new(NodeId::new(0), place * BUCKET as u64), len));
            }
            let mut done = batch.post().await?;
            for ticket in tickets.drain(..) {
                seen = done.buf(ticket).words().iter().fold(seen, |all, word| all ^ word);
            }
        }
        sum = sum.wrapping_add(seen);
        left -= count;
    }
    Ok(sum)
}

fn main() {
    let (kind, work) = (argument(1, "shard"), argument(2, "get"));
    let (keys, operations, rounds) = (number(3, "1000"), number(4, "200000"), number(5, "5"));
    // Short runs have tables of one size, so that their difference is that of the operations.
    let fresh = if work == "insert" { (operations * rounds).max(SHORT) } else { 0 };
    let room = keys + fresh;
    let pool = Pool::in_memory((64 << 20) + room * 256).expect("a pool");
    let session: Session = pool.session().expect("a session");
    session.create_index("path", config(&kind, room)).expect("an index");
    let face = session.open_index("path").expect("the index");
    let index = face.async_handle();
    session.block_on(async {
        for i in 0..keys {
            assert_eq!(index.insert(&key(i), &key(i)).await, Ok(Insert::Inserted));
        }
    });
    let endpoint = session.raw().endpoint().clone();
    let mut random = SplitMix64::seed_from_u64(1);
    let mut next = keys;
    let mut round = || {
        let random = &mut random;
        match work.as_str() {
            "get" => session.block_on(async {
                for _ in 0..operations {
                    let i = below(random, keys);
                    assert_eq!(index.get(&key(i)).await.expect("no error").as_deref(), Some(&key(i)[..]));
                }
            }),
            "call" => {
                for _ in 0..operations {
                    let i = below(random, keys);
                    assert_eq!(face.get(key(i)).expect("no error").as_deref(), Some(&key(i)[..]));
                }
            }
            "update" => session.block_on(async {
                for _ in 0..operations {
                    let i = below(random, keys);
                    assert_eq!(index.update(&key(i), &key(i)).await, Ok(Update::Updated));
                }
            }),
            "insert" => session.block_on(async {
                for _ in 0..operations {
                    assert_eq!(index.insert(&key(next), &key(next)).await, Ok(Insert::Inserted));
                    next += 1;
                }
            }),
            "get-many" => session.block_on(async {
                let mut left = operations as usize;
                while left > 0 {
                    let asked: Vec<_> = (0..left.min(TOGETHER)).map(|_| key(below(random, keys))).collect();
                    let refs: Vec<&[u8]> = asked.iter().map(|key| &key[..]).collect();
                    let found = index.get_many(&refs).await.expect("no error");
                    for (key, value) in asked.iter().zip(found) {
                        assert_eq!(value.as_deref(), Some(&key[..]));
                    }
                    left -= asked.len();
                }
            }),
            "read" | "read-many" => {
                let together = if work == "read" { 1 } else { TOGETHER };
                let end = 1024 * 1024 + keys * 128;
                black_box(session.block_on(bare(&endpoint, operations, together, end)).expect("no error"));
            }
            other => panic!("no work {other:?}"),
        }
    };
    let mut taken: Vec<f64> = (0..rounds)
        .map(|_| {
            let began = Instant::now();
            round();
            began.elapsed().as_secs_f64() * 1e9 / operations as f64
        })
        .collect();
    taken.sort_by(f64::total_cmp);
    if let Some(median) = taken.get(taken.len() / 2) {
        println!("{kind} {work}, {keys} keys: {median:.1} ns");
    }
}
