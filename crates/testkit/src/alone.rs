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
    // Three futures and not one, so that a test compiles no more than its body again.
    let alone = Alone::new(fabric);
    let index = alone.create::<I>(&config);
    alone.executor.block_on(&alone.endpoint, body(&index));
    alone.end(index);
}

/// One client of a new pool.
struct Alone {
    executor: Executor,
    endpoint: Endpoint,
    client: Arc<Client>,
    session: Rc<Session>,
}

impl Alone {
    fn new(fabric: Arc<dyn Fabric>) -> Self {
        let identity = fabric.new_identity();
        let endpoint = fabric.connect(&identity).expect("a connection");
        let executor = Executor::new();
        let client = executor.block_on(&endpoint, async {
            let pool = Pool::create(fabric.clone(), &endpoint, &PoolOptions::unseeded()).await.expect("a pool");
            Client::register(&pool, identity, &endpoint).await.expect("a slot")
        });
        let session = Rc::new(client.session(endpoint.clone()));
        Alone { executor, endpoint, client, session }
    }

    #[inline(never)]
    fn create<I: PoolIndex>(&self, config: &I::Config) -> I {
        self.executor.block_on(&self.endpoint, I::create(&self.session, "test", config)).expect("an index")
    }

    #[inline(never)]
    fn end<I: PoolIndex>(self, index: I) {
        let Alone { executor, endpoint, client, session } = self;
        executor.block_on(&endpoint, assert_sound(&session, &index));
        drop((index, session));
        executor.block_on(&endpoint, client.close(&endpoint)).expect("everything is given back");
    }
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
