//! What replacements and removals of an expected value cost, for every kind: as much as an update and a removal; where the
//! value differs, what comes before the change.

use farindex_fabric::OpStats;
use farindex_fabric::memory::Delivery;
use farindex_fabric::{Endpoint, OpKind};
use farindex_index::{
    AnyIndex, IndexConfig, Insert, PointIndex, Remove, RemoveIf, Replace, Update, cuckoo, linear, shard,
};
use farindex_pool::PoolOptions;
use farindex_testkit::alone::cost_of;
use farindex_testkit::world::World;

/// Round trips, those for blocks, READs, WRITEs, CASes, FAAs, bytes read, bytes written.
type Budget = [u64; 8];

fn budget(cost: &OpStats) -> Budget {
    let all = &cost.total;
    let of_blocks = all.block_round_trips;
    [all.round_trips, of_blocks, all.reads, all.writes, all.cas, all.faa, all.bytes_read, all.bytes_written]
}

/// Default settings, with rare synchronization.
fn config(kind: &str) -> IndexConfig {
    match kind {
        "shard" => IndexConfig::Shard(shard::Config { alpha: 50.0, ..Default::default() }),
        "linear" => IndexConfig::Linear(linear::Config { alpha: 50.0, ..Default::default() }),
        "cuckoo" => IndexConfig::Cuckoo(cuckoo::Config { alpha: 50.0, ..Default::default() }),
        _ => IndexConfig::of_kind(kind).expect("a kind"),
    }
}

/// Costs of a replacement, of one that finds another value, and of a removal of the expected value.
async fn costs(index: &AnyIndex, endpoint: &Endpoint, values: [&[u8]; 2]) -> [Budget; 3] {
    let [a, b] = values;
    for i in 0..20u64 {
        assert_eq!(index.insert(&i.to_be_bytes(), a).await, Ok(Insert::Inserted));
        assert_eq!(index.get(&i.to_be_bytes()).await.map(|value| value.is_some()), Ok(true));
    }
    let key = 7u64.to_be_bytes();
    // From here on the entry is where a changed one is.
    assert_eq!(index.update(&key, a).await, Ok(Update::Updated));
    let update = cost_of(endpoint, OpKind::Update, async || {
        assert_eq!(index.update(&key, a).await, Ok(Update::Updated));
    });
    let update = budget(&update.await);
    let replace = cost_of(endpoint, OpKind::Update, async || {
        assert_eq!(index.replace(&key, a, b).await, Ok(Replace::Replaced));
    });
    let replace = budget(&replace.await);
    let differs = cost_of(endpoint, OpKind::Update, async || {
        assert_eq!(index.replace(&key, a, b).await, Ok(Replace::Differs));
    });
    let differs = budget(&differs.await);
    let (one, other) = (8u64.to_be_bytes(), 9u64.to_be_bytes());
    for key in [&one, &other] {
        assert_eq!(index.update(key, a).await, Ok(Update::Updated));
    }
    let remove = cost_of(endpoint, OpKind::Remove, async || {
        assert_eq!(index.remove(&one).await, Ok(Remove::Removed));
    });
    let remove = budget(&remove.await);
    let remove_if = cost_of(endpoint, OpKind::Remove, async || {
        assert_eq!(index.remove_if(&other, a).await, Ok(RemoveIf::Removed));
    });
    let remove_if = budget(&remove_if.await);
    let verbs = |budget: Budget| [budget[0], budget[1], budget[2], budget[3], budget[4], budget[5]];
    if index.kind() != "blink" {
        // SepHash READs of the CurSegment as far as it is filled.
        assert_eq!((replace, verbs(remove_if)), (update, verbs(remove)), "{}", index.kind());
    }
    [replace, differs, remove_if]
}

/// By kind, for entries of 8 and of 40 bytes: a replacement, one that finds another value, a removal of the expected value.
const COSTS: [(&str, [[Budget; 3]; 2]); 9] = [
    ("shard", [[[3, 1, 2, 1, 1, 0, 576, 64], [2, 1, 2, 1, 0, 0, 576, 64], [3, 1, 2, 0, 1, 0, 576, 0]]; 2]),
    ("race", [[[3, 1, 3, 1, 1, 0, 352, 64], [2, 1, 3, 1, 0, 0, 352, 64], [3, 1, 3, 0, 1, 0, 352, 0]]; 2]),
    // The key is in the CurSegment, which has grown by one entry, and by two more.
    ("sephash", [[[4, 1, 6, 3, 1, 0, 360, 112], [3, 1, 6, 1, 0, 0, 432, 64], [4, 1, 6, 3, 1, 0, 432, 112]]; 2]),
    ("linear", [[[3, 1, 2, 1, 1, 0, 128, 64], [2, 1, 2, 1, 0, 0, 128, 64], [3, 1, 2, 0, 1, 0, 128, 0]]; 2]),
    ("cuckoo", [[[3, 1, 4, 1, 1, 0, 448, 64], [2, 1, 4, 1, 0, 0, 448, 64], [3, 1, 4, 0, 1, 0, 448, 0]]; 2]),
    // The lock is taken and released in any case.
    (
        "sherman",
        [
            [[2, 0, 1, 3, 3, 0, 1024, 80], [2, 0, 1, 1, 3, 0, 1024, 64], [2, 0, 1, 2, 3, 0, 1024, 80]],
            [[3, 1, 2, 4, 3, 0, 1088, 144], [3, 1, 2, 2, 3, 0, 1088, 128], [3, 1, 2, 2, 3, 0, 1088, 80]],
        ],
    ),
    (
        "chime",
        [
            [[2, 0, 3, 2, 3, 0, 264, 80], [2, 0, 3, 1, 3, 0, 264, 64], [2, 0, 2, 3, 3, 0, 264, 80]],
            [[3, 1, 4, 3, 3, 0, 328, 144], [3, 1, 4, 2, 3, 0, 328, 128], [3, 1, 3, 3, 3, 0, 328, 80]],
        ],
    ),
    // The leaf is in the owner's cache.
    (
        "dex",
        [
            [[1, 0, 0, 2, 0, 0, 0, 16], [0; 8], [1, 0, 0, 1, 0, 0, 0, 16]],
            [[2, 1, 1, 3, 0, 0, 64, 80], [1, 1, 1, 0, 0, 0, 64, 0], [2, 1, 1, 1, 0, 0, 64, 16]],
        ],
    ),
    // An update READs no block: the comparison takes one READ more, under the lock.
    ("blink", [[[9, 4, 7, 4, 3, 0, 568, 328], [9, 4, 7, 1, 3, 0, 568, 64], [9, 4, 7, 3, 3, 0, 568, 264]]; 2]),
];

#[test]
fn what_expects_a_value_costs_what_does_not() {
    for (kind, [short, long]) in COSTS {
        let cases = [([b"12345678", b"87654321"].map(|value| &value[..]), short), ([&[1; 40], &[2; 40]], long)];
        for (values, expected) in cases {
            World::memory(1, 64 << 20, Delivery::Immediate).run(async move |ctx| {
                let member = ctx.join(&ctx.pool(&PoolOptions::default()).await).await;
                let index = AnyIndex::create(&member.session, "test", &config(kind)).await.expect("an index");
                assert_eq!(
                    costs(&index, &member.endpoint, values).await,
                    expected,
                    "{kind}, {} bytes",
                    values[0].len()
                );
                drop(index);
                member.close().await;
            });
        }
    }
}
