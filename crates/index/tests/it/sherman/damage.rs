//! How soon a damaged leaf is reported.

use farindex_fabric::{NodeId, RemotePtr};
use farindex_index::sherman::{Config, Sherman};
use farindex_index::{IndexError, PointIndex, PoolIndex, Upsert};
use farindex_pool::{PoolError, PoolOptions};
use farindex_testkit::world::World;
use std::time::Duration;

/// A lookup takes the lock of a leaf that it cannot read, and then knows: it does not wait for leases.
#[test]
fn a_damaged_leaf_is_reported_within_milliseconds() {
    World::calm(1, 2 << 20).run(async move |ctx| {
        let options = PoolOptions { lease: Duration::from_secs(10), ..PoolOptions::default() };
        let member = ctx.join(&ctx.pool(&options).await).await;
        let index = Sherman::create(&member.session, "damaged", &Config::default()).await.unwrap();
        assert_eq!(index.upsert(b"the key!", b"a value!").await, Ok(Upsert::Inserted));
        let (span, memory) = (member.span(), RemotePtr::new(NodeId::new(0), 0));
        let mut all = Vec::new();
        for at in (0..2 << 20).step_by(1 << 16) {
            all.extend_from_slice(span.read(memory.add(at), 1 << 16).await.unwrap().words());
        }
        let word = u64::from_le_bytes(*b"the key!");
        let places: Vec<_> = all.iter().enumerate().filter(|(_, found)| **found == word).collect();
        let [(place, _)] = places[..] else { panic!("{} places", places.len()) };
        let at = memory.add(place as u64 * 8);
        for damaged in [true, false] {
            let word = if damaged { !word } else { word };
            span.write(at, member.session.endpoint().buf_from_words(&[word])).await.unwrap();
            let began = member.endpoint.now();
            let found = index.get(b"the key!").await;
            let took = member.endpoint.now() - began;
            assert_eq!(matches!(found, Err(IndexError::Pool(PoolError::Corrupt { .. }))), damaged, "{found:?}");
            assert!(took < Duration::from_millis(20), "{took:?}");
        }
    });
}
