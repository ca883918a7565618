//! SHARD on the memory fabric, from the smallest table.

use farindex_fabric::{Executor, Fabric, MemoryFabric, OpKind};
use farindex_index::{HashIndex, Insert, Remove, Shard, Update, Upsert, shard};
use farindex_pool::{Client, Pool, PoolOptions, audit::Audit};
use std::rc::Rc;
use std::sync::Arc;

fn with_shard(bytes: u64, config: shard::Config, body: impl AsyncFnOnce(&Shard)) {
    let fabric: Arc<dyn Fabric> = Arc::new(MemoryFabric::new(1, bytes).unwrap());
    let identity = fabric.new_identity();
    let endpoint = fabric.connect(&identity).unwrap();
    Executor::new().block_on(&endpoint, async {
        let pool = Pool::create(fabric.clone(), &endpoint, &PoolOptions::default()).await.unwrap();
        let client = Client::register(&pool, identity, &endpoint).await.unwrap();
        let session = Rc::new(client.session(endpoint.clone()));
        let shard = Shard::create(&session, "test", &config).await.unwrap();
        body(&shard).await;
        let mut audit = Audit::default();
        let report = shard.audit(&mut audit, true).await.unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
        println!("{report:?}");
        session.flush().await.unwrap();
        println!("{:#?}", endpoint.meter().of(OpKind::Insert));
        drop(shard);
        drop(session);
        client.close(&endpoint).await.unwrap();
    });
}

#[test]
fn grows_from_the_smallest_table() {
    with_shard(64 << 20, shard::Config { initial_bits: 0, ..Default::default() }, async |shard| {
        for i in 0..20_000u64 {
            assert_eq!(shard.insert(&i.to_le_bytes(), &(i * 3).to_le_bytes()).await.unwrap(), Insert::Inserted);
        }
        for i in 0..20_000u64 {
            let value = shard.get(&i.to_le_bytes()).await.unwrap().unwrap_or_else(|| panic!("{i} is lost"));
            assert_eq!(value, &(i * 3).to_le_bytes());
            assert!(shard.get(&(i + 1_000_000).to_le_bytes()).await.unwrap().is_none());
        }
        for i in 0..20_000u64 {
            assert_eq!(shard.insert(&i.to_le_bytes(), b"").await.unwrap(), Insert::Exists);
            assert_eq!(shard.update(&i.to_le_bytes(), b"x").await.unwrap(), Update::Updated);
            assert_eq!(shard.upsert(&i.to_le_bytes(), b"y").await.unwrap(), Upsert::Updated);
        }
        for i in 0..20_000u64 {
            assert_eq!(shard.remove(&i.to_le_bytes()).await.unwrap(), Remove::Removed);
            assert_eq!(shard.remove(&i.to_le_bytes()).await.unwrap(), Remove::Absent);
            assert_eq!(shard.update(&i.to_le_bytes(), b"x").await.unwrap(), Update::Absent);
        }
    });
}
