//! Operations on many keys at once, where fingerprints collide: as a lookup of one key does, they READ all blocks that may
//! be a key's in one batch.

use farindex_fabric::{Endpoint, OpKind};
use farindex_index::{Cuckoo, PointIndex, Race, Shard, Upsert, cuckoo, race, shard};
use farindex_testkit::alone::with_index;
use farindex_testkit::twins;

/// Three pairs of keys; those of a pair share their whole hash.
fn twin_keys() -> Vec<Vec<u8>> {
    [7u64, 11, 13].into_iter().flat_map(|n| (0..2).map(move |which| (n << 50 | n << 30 | n, which))).map(key).collect()
}

fn key((hash, which): (u64, u64)) -> Vec<u8> {
    twins::key_with(hash, which)
}

/// Sets all keys, and asks for them at once.
async fn get_all(index: &impl PointIndex, endpoint: &Endpoint) {
    let keys = twin_keys();
    for key in &keys {
        assert_eq!(index.upsert(key, &key.repeat(12)).await, Ok(Upsert::Inserted));
    }
    let asked: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    // The directory is known and the root has been READ before the cost is measured.
    index.get_many(&asked).await.expect("answers");
    let before = endpoint.meter();
    let values = index.get_many(&asked).await.expect("answers");
    let cost = *(endpoint.meter() - before).of(OpKind::Get);
    assert!(values.iter().zip(&keys).all(|(value, key)| value.as_deref() == Some(&key.repeat(12))));
    assert_eq!((cost.ops, cost.round_trips, cost.block_round_trips), (6, 2, 1), "{cost:?}");
    // The two blocks of its pair for each key.
    assert!(cost.reads >= 6 + 12, "{cost:?}");
}

#[test]
fn gets_of_twins_take_two_round_trips() {
    with_index(16 << 20, shard::Config { alpha: 50.0, ..Default::default() }, async |index: &Shard| {
        get_all(index, index.session().endpoint()).await
    });
    with_index(16 << 20, race::Config::default(), async |index: &Race| {
        get_all(index, index.session().endpoint()).await
    });
    with_index(16 << 20, cuckoo::Config::default(), async |index: &Cuckoo| {
        get_all(index, index.session().endpoint()).await
    });
}

#[test]
fn upserts_of_twins_take_two_round_trips_and_their_cas() {
    with_index(16 << 20, shard::Config { alpha: 50.0, ..Default::default() }, async |index: &Shard| {
        get_all(index, index.session().endpoint()).await;
        let keys = twin_keys();
        let pairs: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (&key[..], &b"new"[..])).collect();
        let endpoint = index.session().endpoint();
        let before = endpoint.meter();
        let outcomes = index.upsert_many(&pairs).await;
        let cost = *(endpoint.meter() - before).of(OpKind::Upsert);
        assert!(outcomes.iter().all(|outcome| *outcome == Ok(Upsert::Updated)));
        assert_eq!((cost.round_trips, cost.block_round_trips, cost.cas), (2 + 6, 1, 6), "{cost:?}");
    });
}
