//! A pool on one memory node (see `ground`), and one session in it.
#![allow(dead_code, unreachable_pub)]

use farindex_fabric::{Endpoint, Executor, Fabric, Meter, OpKind, OpStats};
use farindex_index::{PoolIndex, Shard, shard};
use farindex_pool::{Client, Pool, PoolOptions, Session, audit::Audit};
use std::rc::Rc;
use std::sync::Arc;

/// [`with_index`] for SHARD.
pub fn with_shard(bytes: u64, config: shard::Config, body: impl AsyncFnOnce(&Shard)) {
    with_index(bytes, config, body);
}

/// Runs `body` on an empty index, and then demands that the index and the pool are sound.
pub fn with_index<I: PoolIndex>(bytes: u64, config: I::Config, body: impl AsyncFnOnce(&I)) {
    let fabric: Arc<dyn Fabric> = crate::ground::ground(bytes);
    let identity = fabric.new_identity();
    let endpoint = fabric.connect(&identity).expect("a connection");
    Executor::new().block_on(&endpoint, async {
        let pool = Pool::create(fabric.clone(), &endpoint, &PoolOptions::unseeded()).await.expect("a pool");
        let client = Client::register(&pool, identity, &endpoint).await.expect("a slot");
        let session = Rc::new(client.session(endpoint.clone()));
        let index = I::create(&session, "test", &config).await.expect("an index");
        body(&index).await;
        assert_sound(&session, &index).await;
        drop(index);
        drop(session);
        client.close(&endpoint).await.expect("everything is given back");
    });
}

/// Every entry is where it should be.
pub async fn assert_sound<I: PoolIndex>(session: &Rc<Session>, index: &I) {
    let span = session.span(OpKind::Other);
    let mut audit = Audit::begin(session, &span).await.expect("an audit");
    let report = index.audit(&mut audit, true).await.expect("a walk");
    assert_eq!(report.problems, Vec::<String>::new());
}

/// What one operation cost.
pub async fn cost_of(endpoint: &Endpoint, kind: OpKind, body: impl AsyncFnOnce()) -> OpStats {
    let before: Meter = endpoint.meter();
    body().await;
    let cost = *(endpoint.meter() - before).of(kind);
    assert_eq!(cost.ops, 1, "one operation at a time");
    assert_eq!(cost.abandoned, 0);
    cost
}
