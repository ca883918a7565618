//! One client with one index: for tests of what an operation costs, and of one kind alone. Everything here panics on
//! errors.

use farindex_fabric::{Endpoint, Executor, Fabric, MemoryFabric, Meter, OpKind, OpStats};
use farindex_index::PoolIndex;
use farindex_pool::audit::Audit;
use farindex_pool::{Client, Pool, PoolOptions, Session};
use std::rc::Rc;
use std::sync::Arc;

/// Runs `body` on an empty index in a pool on one memory node of so many bytes, and then asserts that both are sound.
///
/// # Panics
/// If they are not.
pub fn with_index<I: PoolIndex>(bytes: u64, config: I::Config, body: impl AsyncFnOnce(&I)) {
    with_index_on(Arc::new(MemoryFabric::new(1, bytes).expect("memory")), config, body);
}

/// Like [`with_index`], on any fabric.
///
/// # Panics
/// If index or pool are not sound.
pub fn with_index_on<I: PoolIndex>(fabric: Arc<dyn Fabric>, config: I::Config, body: impl AsyncFnOnce(&I)) {
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

/// Asserts that an audit of the index finds nothing.
///
/// # Panics
/// If it finds something.
pub async fn assert_sound<I: PoolIndex>(session: &Rc<Session>, index: &I) {
    let span = session.span(OpKind::Other);
    let mut audit = Audit::begin(session, &span).await.expect("an audit");
    let report = index.audit(&mut audit, true).await.expect("a walk");
    assert_eq!(report.problems, Vec::<String>::new());
}

/// Returns the cost of one operation.
///
/// # Panics
/// If `body` is not exactly one operation of this kind.
pub async fn cost_of(endpoint: &Endpoint, kind: OpKind, body: impl AsyncFnOnce()) -> OpStats {
    let before: Meter = endpoint.meter();
    body().await;
    let cost = *(endpoint.meter() - before).of(kind);
    assert_eq!(cost.ops, 1, "one operation at a time");
    assert_eq!(cost.abandoned, 0);
    cost
}
