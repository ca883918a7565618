//! Worlds for tests: a fabric and what drives it, registered clients, a seeded generator.
//!
//! Invariants: a test body runs unchanged in every world; in one world everything is driven by one thread, so that the
//! endpoints of many clients advance in turns. Everything here panics on errors: it is for tests alone.

use farindex_fabric::memory::Delivery;
use farindex_fabric::{Driver, Endpoint, Executor, Fabric, FabricError, MemoryFabric, OpKind, ShmFabric};
use farindex_pool::{Client, Pool, PoolOptions, Session};
use farindex_sim::{Config, Sim, Swarm};
use std::cell::RefCell;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

/// A fabric, and what drives it.
pub enum World {
    /// Memory or mapped files; the paths are removed in the end.
    Mapped(Arc<dyn Fabric>, Vec<PathBuf>),
    /// The simulator.
    Sim(Box<Sim>),
}

impl World {
    /// Memory of this process.
    ///
    /// # Panics
    /// If there is not enough of it.
    pub fn memory(nodes: usize, len: u64, delivery: Delivery) -> World {
        World::Mapped(Arc::new(MemoryFabric::new(nodes, len).unwrap().with_delivery(delivery)), Vec::new())
    }
    /// One mapped file, which is removed in the end.
    ///
    /// # Panics
    /// If it cannot be created.
    pub fn shm(len: u64) -> World {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("farindex-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = PathBuf::from("/dev/shm");
        let dir = if dir.is_dir() { dir } else { std::env::temp_dir() };
        let paths = vec![dir.join(name)];
        World::Mapped(Arc::new(ShmFabric::create(&paths, len).unwrap()), paths)
    }
    /// A simulated cluster without an adversary.
    ///
    /// # Panics
    /// If the settings make no cluster.
    pub fn calm(seed: u64, len: u64) -> World {
        let config = Config { node_len: len, swarm: Some(Swarm::calm()), max_steps: u64::MAX, ..Config::default() };
        World::Sim(Box::new(Sim::new(seed, config).unwrap()))
    }

    /// Runs a test body to its end.
    ///
    /// # Panics
    /// If it does not end.
    pub fn run<F: Future<Output = ()> + 'static>(&self, body: impl FnOnce(Ctx) -> F) {
        // Boxed, so that what runs it is compiled once.
        let mut body = Some(body);
        self.run_boxed(&mut |ctx| Box::pin(body.take().expect("asked for once")(ctx)));
    }
    fn run_boxed(&self, body: &mut dyn FnMut(Ctx) -> Pin<Box<dyn Future<Output = ()>>>) {
        let endpoints = Rc::new(RefCell::default());
        match self {
            World::Mapped(fabric, _) => {
                let ctx = Ctx { fabric: Arc::clone(fabric), endpoints: Rc::clone(&endpoints) };
                Executor::new().block_on(&All(endpoints), body(ctx));
            }
            World::Sim(sim) => {
                let ctx = Ctx { fabric: sim.fabric(), endpoints };
                sim.block_on(body(ctx)).unwrap_or_else(|outcome| panic!("{outcome}"));
            }
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let World::Mapped(_, paths) = self {
            for path in paths {
                let _: std::io::Result<()> = std::fs::remove_file(path);
            }
        }
    }
}

/// Drives every connection of a test in turns.
struct All(Rc<RefCell<Vec<Endpoint>>>);

impl Driver for All {
    fn progress(&self) -> bool {
        // Progress wakes coroutines and runs none, so nobody connects meanwhile.
        self.0.borrow().iter().fold(false, |any, endpoint| endpoint.progress() | any)
    }
    fn flush(&self) {
        self.0.borrow().iter().for_each(Driver::flush);
    }
    fn collects(&self) -> bool {
        self.0.borrow().iter().any(Driver::collects)
    }
}

/// A test body's access to its world.
#[derive(Clone)]
pub struct Ctx {
    /// The fabric.
    pub fabric: Arc<dyn Fabric>,
    endpoints: Rc<RefCell<Vec<Endpoint>>>,
}

impl Ctx {
    /// A pool of unseeded indexes, unless `options` chooses a hash key: what a test counts is then the same each time.
    ///
    /// # Panics
    /// If the pool cannot be created.
    pub async fn pool(&self, options: &PoolOptions) -> Pool {
        let endpoint = self.connect(&self.fabric.new_identity()).unwrap();
        let options = PoolOptions { hash_key: options.hash_key.or(PoolOptions::unseeded().hash_key), ..*options };
        Pool::create(Arc::clone(&self.fabric), &endpoint, &options).await.unwrap()
    }
    fn connect(&self, identity: &farindex_fabric::Identity) -> Result<Endpoint, FabricError> {
        let endpoint = self.fabric.connect(identity)?;
        self.endpoints.borrow_mut().push(endpoint.clone());
        Ok(endpoint)
    }
    /// Registers a client with one session.
    ///
    /// # Panics
    /// If the pool refuses.
    pub async fn join(&self, pool: &Pool) -> Member {
        let identity = self.fabric.new_identity();
        let endpoint = self.connect(&identity).unwrap();
        let client = Client::register(pool, identity, &endpoint).await.unwrap();
        let session = Rc::new(client.session(endpoint.clone()));
        Member { endpoint, client, session }
    }
    /// Opens a second session of the same client.
    ///
    /// # Panics
    /// If the fabric refuses a connection.
    pub fn session(&self, member: &Member) -> Rc<Session> {
        Rc::new(member.client.session(self.connect(member.client.identity()).unwrap()))
    }
}

/// A registered client with one session.
pub struct Member {
    /// Its connection.
    pub endpoint: Endpoint,
    /// The client.
    pub client: Arc<Client>,
    /// Its session.
    pub session: Rc<Session>,
}

impl Member {
    /// Leaves the pool. The test must have dropped everything that uses the session.
    ///
    /// # Panics
    /// If it has not, or if the pool refuses.
    pub async fn close(self) {
        let Member { endpoint, client, session } = self;
        assert_eq!(Rc::strong_count(&session), 1, "the session is still in use");
        drop(session);
        client.close(&endpoint).await.unwrap();
    }
    /// Leaves the pool while `others` advance the epoch.
    ///
    /// # Panics
    /// As [`close`](Self::close).
    pub async fn close_while_ticking(self, others: &[&Member]) {
        let closed = std::cell::Cell::new(false);
        let closing = async {
            self.close().await;
            closed.set(true);
        };
        let keeping = async {
            while !closed.get() {
                for other in others {
                    other.client.tick(&other.endpoint).await.unwrap();
                }
                if let Some(other) = others.first() {
                    other.endpoint.sleep(Duration::from_micros(20)).await;
                }
            }
        };
        let both: [Pin<Box<dyn Future<Output = ()> + '_>>; 2] = [Box::pin(closing), Box::pin(keeping)];
        join_all(both).await;
    }
    /// Begins an operation.
    pub fn span(&self) -> farindex_fabric::Span {
        self.session.span(OpKind::Other)
    }
}

/// xorshift64*: small, seeded, the same everywhere.
pub struct Rng(u64);

impl Rng {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Self {
        Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }
    /// The next number, below 2^53.
    pub fn word(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11
    }
    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.word() % end
    }
    /// One of these.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
}

/// Runs futures in turns until all have completed.
pub async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut open: Vec<_> = futures.into_iter().map(|f| (None::<F::Output>, Box::pin(f))).collect();
    std::future::poll_fn(|cx| {
        let mut waits = false;
        for (done, future) in open.iter_mut().filter(|(done, _)| done.is_none()) {
            match future.as_mut().poll(cx) {
                Poll::Ready(value) => *done = Some(value),
                Poll::Pending => waits = true,
            }
        }
        if waits { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    open.into_iter().map(|(done, _)| done.expect("done")).collect()
}

/// Bytes of this length that differ for different tags, even in their last byte.
pub fn bytes(len: usize, tag: u64) -> Vec<u8> {
    let mut rng = Rng::new(tag ^ (len as u64) << 40);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend(rng.word().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
