//! The seed of an index's key hash: each index has its own, and no order or choice of keys that ignores it makes
//! loading dear.
//!
//! What loading costs is counted, not timed: verbs and bytes, of inserts and of the growth that they cause.

use farindex_fabric::memory::Delivery;
use farindex_index::audit::Damage;
use farindex_index::keyhash::KeyHash;
use farindex_index::{Cuckoo, Insert, Lifecycle, Linear, PoolIndex, Race, SepHash, Shard};
use farindex_pool::{Pool, PoolOptions, catalog};
use farindex_testkit::world::{Ctx, Member, Rng, World};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// A pool whose indexes have seeds of their own, the same in every run.
const SEEDED: PoolOptions = PoolOptions {
    client_slots: 8,
    intent_cells: None,
    lease: Duration::from_secs(10),
    chunk_size: None,
    hash_key: Some(7),
    identity: None,
};
/// Keys of a load.
const KEYS: u64 = 12_000;

type Keys = Vec<Vec<u8>>;

/// What loading cost, for each key.
#[derive(Debug, Clone, Copy)]
struct Cost {
    verbs: f64,
    bytes: f64,
}

impl Cost {
    /// The larger of the two ratios to another cost.
    fn over(&self, other: &Cost) -> f64 {
        (self.verbs / other.verbs).max(self.bytes / other.bytes)
    }
}

fn in_memory(options: PoolOptions, body: impl AsyncFnOnce(&Member) + 'static) {
    World::memory(1, 256 << 20, Delivery::Immediate).run(async move |ctx| {
        let member = ctx.join(&ctx.pool(&options).await).await;
        body(&member).await;
    });
}

/// Loads keys in this order into a new index with default settings; returns what that cost, and the keys in the order
/// of a dump.
async fn load<I: PoolIndex>(member: &Member, keys: &Keys) -> (Cost, Keys) {
    let index = I::create(&member.session, "loaded", &I::Config::default()).await.unwrap();
    let before = member.endpoint.meter();
    for key in keys {
        assert_eq!(index.insert(key, &[0; 8]).await, Ok(Insert::Inserted));
    }
    let total = (member.endpoint.meter() - before).total();
    let each = |n: u64| n as f64 / keys.len() as f64;
    let cost = Cost { verbs: each(total.verbs()), bytes: each(total.bytes_read + total.bytes_written) };
    let mut dumped = Keys::new();
    let note = async |key: &[u8], _| {
        dumped.push(key.to_vec());
        Ok(())
    };
    assert_eq!(index.visit(note, &mut Damage::fail).await, Ok(keys.len() as u64));
    drop(index);
    I::drop_index(&member.session, "loaded").await.unwrap();
    (cost, dumped)
}

fn shuffled(keys: &Keys) -> Keys {
    let mut rng = Rng::new(3);
    let mut keys = keys.clone();
    for i in (1..keys.len()).rev() {
        keys.swap(i, rng.below(i as u64 + 1) as usize);
    }
    keys
}

/// Dumps of the same keys from an index of each kind.
async fn dumps(member: &Member) -> [(&'static str, Keys); 5] {
    let keys: Keys = (0..KEYS).map(|i| i.to_le_bytes().to_vec()).collect();
    [
        (Shard::NAME, load::<Shard>(member, &keys).await.1),
        (Race::NAME, load::<Race>(member, &keys).await.1),
        (SepHash::NAME, load::<SepHash>(member, &keys).await.1),
        (Linear::NAME, load::<Linear>(member, &keys).await.1),
        (Cuckoo::NAME, load::<Cuckoo>(member, &keys).await.1),
    ]
}

/// How many times more the dump that suits this kind least costs than its keys in any order, and whose dump that is.
async fn worst_dump<I: PoolIndex>(member: &Member, dumps: &[(&'static str, Keys)]) -> (f64, &'static str) {
    let (usual, _) = load::<I>(member, &shuffled(&dumps[0].1)).await;
    let mut worst = (0.0, "");
    for (of, keys) in dumps {
        let ratio = load::<I>(member, keys).await.0.over(&usual);
        if ratio > worst.0 {
            worst = (ratio, of);
        }
    }
    worst
}

#[test]
fn a_dump_of_any_kind_loads_into_any_kind_as_shuffled_keys_do() {
    in_memory(SEEDED, async |member: &Member| {
        let dumps = dumps(member).await;
        for (into, (ratio, of)) in [
            (Shard::NAME, worst_dump::<Shard>(member, &dumps).await),
            (Race::NAME, worst_dump::<Race>(member, &dumps).await),
            (SepHash::NAME, worst_dump::<SepHash>(member, &dumps).await),
            (Linear::NAME, worst_dump::<Linear>(member, &dumps).await),
            (Cuckoo::NAME, worst_dump::<Cuckoo>(member, &dumps).await),
        ] {
            assert!(ratio < 1.3, "the dump of {of} costs {into} {ratio:.2} times as much as shuffled keys");
        }
    });
}

/// What the test above would find if indexes shared a seed.
#[test]
fn a_dump_is_dear_to_load_where_indexes_share_a_seed() {
    in_memory(PoolOptions::unseeded(), async |member: &Member| {
        let dumps = dumps(member).await;
        let (linear, of) = worst_dump::<Linear>(member, &dumps).await;
        assert!(linear > 10.0 && of == Linear::NAME, "{linear:.2} times, {of}");
    });
}

/// Keys that share the low ten bits of their unseeded hash: in every kind's unseeded index they lie in one place.
fn flood(count: usize) -> Keys {
    let keys = (0_u64..).map(|i| i.to_le_bytes().to_vec());
    keys.filter(|key| KeyHash::unseeded(key).bits() & 0x3FF == 0).take(count).collect()
}

/// How many times more those keys cost than any others.
async fn flooded<I: PoolIndex>(member: &Member) -> f64 {
    let flood = flood(3000);
    let any: Keys = (0..flood.len() as u64).map(|i| i.to_le_bytes().to_vec()).collect();
    let (usual, _) = load::<I>(member, &any).await;
    load::<I>(member, &flood).await.0.over(&usual)
}

async fn flooded_kinds(member: &Member) -> [(&'static str, f64); 5] {
    [
        (Shard::NAME, flooded::<Shard>(member).await),
        (Race::NAME, flooded::<Race>(member).await),
        (SepHash::NAME, flooded::<SepHash>(member).await),
        (Linear::NAME, flooded::<Linear>(member).await),
        (Cuckoo::NAME, flooded::<Cuckoo>(member).await),
    ]
}

#[test]
fn colliding_keys_of_an_unseeded_index_load_into_a_seeded_one_like_others() {
    in_memory(SEEDED, async |member: &Member| {
        for (into, ratio) in flooded_kinds(member).await {
            assert!(ratio < 1.1, "{into}: {ratio:.2} times");
        }
    });
    // They do collide.
    in_memory(PoolOptions::unseeded(), async |member: &Member| {
        for (into, ratio) in flooded_kinds(member).await {
            assert!(ratio > 1.3, "{into}: {ratio:.2} times");
        }
    });
}

/// The seed is the catalog's: another client finds the same one, and no other index has it.
async fn own_seed<I: PoolIndex>(ctx: &Ctx, member: &Member, seeds: &mut BTreeSet<u64>) {
    let seed_of = async |pool: &Pool, name| {
        let span = member.span();
        catalog::find(pool, &span, name).await.map(|info| info.seed).unwrap()
    };
    let pool = member.session.pool();
    for name in ["first", "second"] {
        let index = I::create(&member.session, name, &I::Config::default()).await.unwrap();
        for i in 0..100_u64 {
            assert_eq!(index.insert(&i.to_le_bytes(), b"value").await, Ok(Insert::Inserted));
        }
        let seed = seed_of(pool, name).await;
        assert!(seeds.insert(seed), "another index has the seed of {name}");
        // A client that knows the memory nodes and the name.
        let opened = Pool::open(Arc::clone(&ctx.fabric), &member.endpoint).await.unwrap();
        let other = ctx.join(&opened).await;
        let again = I::open(&other.session, name).await.unwrap();
        for i in 0..100_u64 {
            assert_eq!(again.get(&i.to_le_bytes()).await.unwrap().as_deref(), Some(b"value".as_slice()));
        }
        assert_eq!(seed_of(&opened, name).await, seed);
        drop(again);
        other.close_while_ticking(&[member]).await;
        drop(index);
        I::drop_index(&member.session, name).await.unwrap();
    }
    // The name comes back, and the seed does not.
    drop(I::create(&member.session, "first", &I::Config::default()).await.unwrap());
    assert!(seeds.insert(seed_of(pool, "first").await));
    I::drop_index(&member.session, "first").await.unwrap();
}

#[test]
fn every_index_has_a_seed_of_its_own_that_other_clients_find() {
    World::memory(2, 64 << 20, Delivery::Immediate).run(async |ctx| {
        let member = ctx.join(&ctx.pool(&SEEDED).await).await;
        let mut seeds = BTreeSet::new();
        own_seed::<Shard>(&ctx, &member, &mut seeds).await;
        own_seed::<Race>(&ctx, &member, &mut seeds).await;
        own_seed::<SepHash>(&ctx, &member, &mut seeds).await;
        own_seed::<Linear>(&ctx, &member, &mut seeds).await;
        own_seed::<Cuckoo>(&ctx, &member, &mut seeds).await;
        assert_eq!(seeds.len(), 15);
    });
}
