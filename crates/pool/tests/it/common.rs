//! Shared by the tests: pools on the memory fabric, clients, a seeded generator, and a driver that lets the endpoints
//! of many clients advance in an order drawn from a seed.

use farindex_fabric::memory::Delivery;
use farindex_fabric::{
    Capabilities, Driver, Endpoint, Executor, Fabric, FabricError, Identity, MemoryFabric, NodeId, NodeInfo, OpKind,
    RemotePtr,
};
use farindex_pool::{Client, Pool, PoolError, PoolOptions, Session};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) const NODE: NodeId = NodeId::new(0);
pub(crate) const CHUNK: u64 = 16 << 10;

/// Bytes of a node with exactly so many chunks of 16 KiB.
pub(crate) fn region(chunks: u64, client_slots: u64) -> u64 {
    farindex_pool::layout::Geometry { chunk_size: CHUNK, chunks, client_slots, intent_cells: 16 }.end()
}

pub(crate) fn small() -> PoolOptions {
    PoolOptions {
        client_slots: 8,
        lease: Duration::from_millis(200),
        chunk_size: Some(CHUNK),
        intent_cells: Some(16),
        ..PoolOptions::default()
    }
}

pub(crate) fn block_on<T>(endpoint: &Endpoint, future: impl Future<Output = T>) -> T {
    Executor::new().block_on(endpoint, future)
}

/// A pool and its fabric.
#[derive(Clone)]
pub(crate) struct Rig {
    pub(crate) fabric: MemoryFabric,
    pub(crate) pool: Pool,
}

impl Rig {
    /// One node with so many chunks.
    pub(crate) fn new(chunks: u64) -> Rig {
        Rig::with(1, region(chunks, 8), &small())
    }
    pub(crate) fn with(nodes: usize, len: u64, options: &PoolOptions) -> Rig {
        let fabric = MemoryFabric::new(nodes, len).expect("enough memory");
        let pool = create(&fabric, options).expect("a pool");
        Rig { fabric, pool }
    }
    pub(crate) fn join(&self) -> Member {
        self.join_with(Delivery::Immediate)
    }
    pub(crate) fn join_with(&self, delivery: Delivery) -> Member {
        let identity = self.fabric.new_identity();
        let endpoint = self.fabric.with_delivery(delivery).connect(&identity).expect("connects");
        let client = block_on(&endpoint, Client::register(&self.pool, identity, &endpoint)).expect("a slot is free");
        Member { endpoint, client }
    }
    /// Overwrites words, as damage does.
    pub(crate) fn poke(&self, ptr: RemotePtr, words: &[u64]) {
        poke(&self.fabric, ptr, words);
    }
    pub(crate) fn peek(&self, ptr: RemotePtr, words: usize) -> Vec<u64> {
        peek(&self.fabric, ptr, words)
    }
}

pub(crate) fn create(fabric: &MemoryFabric, options: &PoolOptions) -> Result<Pool, PoolError> {
    let endpoint = fabric.connect(&fabric.new_identity())?;
    block_on(&endpoint, Pool::create(Arc::new(fabric.clone()), &endpoint, options))
}

pub(crate) fn open(fabric: &MemoryFabric) -> Result<Pool, PoolError> {
    let endpoint = fabric.connect(&fabric.new_identity())?;
    block_on(&endpoint, Pool::open(Arc::new(fabric.clone()), &endpoint))
}

pub(crate) fn poke(fabric: &MemoryFabric, ptr: RemotePtr, words: &[u64]) {
    let endpoint = fabric.connect(&fabric.new_identity()).expect("connects");
    let span = endpoint.span(OpKind::Other);
    block_on(&endpoint, span.write(ptr, endpoint.buf_from_words(words))).expect("in bounds");
}

pub(crate) fn peek(fabric: &MemoryFabric, ptr: RemotePtr, words: usize) -> Vec<u64> {
    let endpoint = fabric.connect(&fabric.new_identity()).expect("connects");
    let span = endpoint.span(OpKind::Other);
    block_on(&endpoint, span.read(ptr, words * 8)).expect("in bounds").words().to_vec()
}

/// A registered client with one connection.
pub(crate) struct Member {
    pub(crate) endpoint: Endpoint,
    pub(crate) client: Arc<Client>,
}

impl Member {
    pub(crate) fn session(&self) -> Session {
        self.client.session(self.endpoint.clone())
    }
    pub(crate) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        block_on(&self.endpoint, future)
    }
    pub(crate) fn tick(&self) {
        self.run(self.client.tick(&self.endpoint)).expect("the lease holds");
    }
    pub(crate) fn close(self) {
        let Member { endpoint, client } = self;
        block_on(&endpoint, client.close(&endpoint)).expect("closes");
    }
    pub(crate) fn alloc(&self, session: &Session, bytes: u64) -> Result<RemotePtr, PoolError> {
        let span = session.span(OpKind::Other);
        self.run(session.alloc(&span, NODE, bytes))
    }
    pub(crate) fn free(&self, session: &Session, ptr: RemotePtr, bytes: u64) {
        let span = session.span(OpKind::Other);
        self.run(session.free(&span, ptr, bytes)).expect("freed");
    }
    pub(crate) fn retire(&self, session: &Session, ptr: RemotePtr, bytes: u64) {
        session.pin(session.span(OpKind::Other)).expect("the lease holds").retire(ptr, bytes);
    }
}

/// A small seeded generator: xorshift64*.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11
    }
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// The live objects: no two may overlap.
#[derive(Default)]
pub(crate) struct Live(BTreeMap<u64, u64>);

impl Live {
    pub(crate) fn add(&mut self, ptr: RemotePtr, bytes: u64) {
        let (start, end) = (ptr.to_bits(), ptr.to_bits() + bytes);
        if let Some((before, until)) = self.0.range(..end).next_back() {
            assert!(*until <= start, "{ptr} + {bytes} overlaps the object at {before:#x}");
        }
        self.0.insert(start, end);
    }
    pub(crate) fn remove(&mut self, ptr: RemotePtr) {
        assert!(self.0.remove(&ptr.to_bits()).is_some(), "{ptr} is not live");
    }
}

/// Lets one endpoint at a time advance by one batch, drawn from a seed.
pub(crate) struct Shuffle {
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) rng: RefCell<Rng>,
}

impl Driver for Shuffle {
    fn progress(&self) -> bool {
        let chosen = self.rng.borrow_mut().below(self.endpoints.len() as u64) as usize;
        self.endpoints[chosen].progress()
    }
}

/// The memory fabric, with clients that can be declared gone.
pub(crate) struct GoneFabric {
    pub(crate) inner: MemoryFabric,
    pub(crate) gone: Mutex<HashSet<u64>>,
}

impl Fabric for GoneFabric {
    fn name(&self) -> &'static str {
        self.inner.name()
    }
    fn nodes(&self) -> Vec<NodeInfo> {
        self.inner.nodes()
    }
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn new_identity(&self) -> Identity {
        self.inner.new_identity()
    }
    fn connect(&self, identity: &Identity) -> Result<Endpoint, FabricError> {
        self.inner.connect(identity)
    }
    fn is_gone(&self, identity: &Identity) -> Option<bool> {
        Some(self.gone.lock().expect("not poisoned").contains(&identity.token))
    }
}
