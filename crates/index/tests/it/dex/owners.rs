//! Owners: what one compute node owns, another one asks for; what it does not give; who takes what a closed handle leaves.

use farindex_fabric::memory::Delivery;
use farindex_index::dex::{Config, Foreign};
use farindex_index::{Dex, IndexError, Lifecycle, PointIndex, PoolIndex, Upsert};
use farindex_pool::PoolOptions;
use farindex_testkit::world::World;

#[test]
fn a_partition_belongs_to_the_compute_node_that_writes_first_and_stays_there_if_it_refuses() {
    World::memory(1, 4 << 20, Delivery::Immediate).run(async |ctx| {
        let pool = ctx.pool(&PoolOptions::default()).await;
        let (first, second) = (ctx.join(&pool).await, ctx.join(&pool).await);
        let config = Config { foreign: Foreign::Refuse, ..Config::default() };
        let index = Dex::create(&first.session, "dex", &config).await.expect("an index");
        assert_eq!(index.upsert(b"key", b"1").await, Ok(Upsert::Inserted));
        assert_eq!(index.partitions(), 1);
        let other = Dex::open(&second.session, "dex").await.expect("the index");
        // Reads need no ownership.
        assert_eq!(other.get(b"key").await.expect("a lookup").as_deref(), Some(&b"1"[..]));
        let refused = other.upsert(b"key", b"2").await;
        assert!(matches!(&refused, Err(IndexError::NotOwner { holder }) if holder.contains("client")), "{refused:?}");
        assert_eq!(other.partitions(), 0);
        // The last handle gives up what its compute node owns.
        drop(index);
        first.session.endpoint().settle().await;
        assert_eq!(other.upsert(b"key", b"2").await, Ok(Upsert::Updated));
        assert_eq!((other.partitions(), other.get(b"key").await.expect("a lookup").as_deref()), (1, Some(&b"2"[..])));
    });
}
