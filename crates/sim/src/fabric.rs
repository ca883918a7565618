//! The simulated cluster as a [`Fabric`].
//!
//! Invariants: a simulation and its connections stay on the thread that made them. A [`SimFabric`] holds only the
//! simulation's number, so library code may keep it wherever it keeps a fabric; on another thread it fails to connect.

use crate::queue::EventKind;
use crate::world::World;
use farindex_fabric::transport::{Completions, Post};
use farindex_fabric::{Capabilities, Chain, Endpoint, Fabric, FabricError, Identity, NodeId, NodeInfo, Transport};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// State shared by the simulation, its clients and its fabrics.
pub(crate) struct Shared {
    pub(crate) number: u64,
    pub(crate) world: Rc<RefCell<World>>,
    /// The endpoint of each connection, to be polled when a completion or timer is due.
    pub(crate) endpoints: RefCell<Vec<Endpoint>>,
    pub(crate) tokens: Arc<AtomicU64>,
}

thread_local! {
    static SIMULATIONS: RefCell<BTreeMap<u64, Weak<Shared>>> = const { RefCell::new(BTreeMap::new()) };
}

impl Shared {
    pub(crate) fn new(world: World) -> Rc<Shared> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let shared = Rc::new(Shared {
            number,
            world: Rc::new(RefCell::new(world)),
            endpoints: RefCell::default(),
            tokens: Arc::new(AtomicU64::new(1)),
        });
        SIMULATIONS.with_borrow_mut(|all| all.insert(number, Rc::downgrade(&shared)));
        shared
    }
    pub(crate) fn forget(&self) {
        SIMULATIONS.with_borrow_mut(|all| all.remove(&self.number));
    }
    pub(crate) fn new_identity(&self) -> Identity {
        Identity { token: self.tokens.fetch_add(1, Ordering::Relaxed), pid: 0, started: 0 }
    }
    /// Makes a connection of the client whose coroutine is running, or, if none is, of `owner`.
    pub(crate) fn connect(&self, owner: u32, identity: &Identity) -> Endpoint {
        let conn = {
            let mut world = self.world.borrow_mut();
            let owner = world.current.unwrap_or(owner);
            world.add_conn(owner, identity.token)
        };
        let endpoint = Endpoint::new(Box::new(Connection { world: Rc::clone(&self.world), conn }));
        self.endpoints.borrow_mut().push(endpoint.clone());
        endpoint
    }
}

/// The simulation's memory nodes, for library code that takes a fabric.
#[derive(Debug, Clone)]
pub struct SimFabric {
    number: u64,
    owner: u32,
    nodes: Vec<NodeInfo>,
    capabilities: Capabilities,
    tokens: Arc<AtomicU64>,
}

impl SimFabric {
    pub(crate) fn new(shared: &Shared, owner: u32) -> Self {
        let world = shared.world.borrow();
        let infos = world.nodes.iter().enumerate();
        let nodes =
            infos.map(|(i, node)| NodeInfo { node: NodeId::new(i as u16), len: node.words.len() as u64 * 8 }).collect();
        let capabilities = world.capabilities;
        SimFabric { number: shared.number, owner, nodes, capabilities, tokens: Arc::clone(&shared.tokens) }
    }
    fn shared(&self) -> Option<Rc<Shared>> {
        SIMULATIONS.with_borrow(|all| all.get(&self.number).and_then(Weak::upgrade))
    }
}

impl Fabric for SimFabric {
    fn name(&self) -> &'static str {
        "sim"
    }
    fn nodes(&self) -> Vec<NodeInfo> {
        self.nodes.clone()
    }
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }
    fn new_identity(&self) -> Identity {
        Identity { token: self.tokens.fetch_add(1, Ordering::Relaxed), pid: 0, started: 0 }
    }
    fn connect(&self, identity: &Identity) -> Result<Endpoint, FabricError> {
        let shared = self.shared().ok_or_else(|| {
            FabricError::Settings("a simulation is used on the thread that made it, while it exists".to_owned())
        })?;
        Ok(shared.connect(self.owner, identity))
    }
    fn is_gone(&self, identity: &Identity) -> Option<bool> {
        let shared = self.shared()?;
        let world = shared.world.borrow();
        if !world.reports_crashes {
            return None;
        }
        let conn = world.conns.iter().find(|conn| conn.token == identity.token)?;
        Some(world.has_crashed(conn.client))
    }
}

/// One connection to the simulated cluster.
struct Connection {
    world: Rc<RefCell<World>>,
    conn: u32,
}

impl Transport for Connection {
    fn post(&mut self, id: u64, chain: Chain) -> Post {
        self.world.borrow_mut().post(self.conn, id, chain)
    }
    fn detached(&mut self, id: u64) {
        self.world.borrow_mut().detached(self.conn, id);
    }
    fn abandoned(&mut self, id: u64) {
        self.world.borrow_mut().abandoned(self.conn, id);
    }
    fn progress(&mut self, completions: &mut dyn Completions) -> bool {
        let mut any = false;
        loop {
            let next = self.world.borrow_mut().conns[self.conn as usize].done.pop_front();
            let Some((id, chain, result)) = next else {
                return any;
            };
            completions.complete(id, chain, result.map_err(Box::new));
            any = true;
        }
    }
    fn now(&self) -> Duration {
        Duration::from_nanos(self.world.borrow().now)
    }
    fn wake_at(&mut self, at: Duration) {
        let mut world = self.world.borrow_mut();
        if !world.closed {
            let at = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX).max(world.now);
            world.queue.push(at, EventKind::Wake { conn: self.conn });
        }
    }
    fn capabilities(&self) -> Capabilities {
        self.world.borrow().capabilities
    }
    fn name(&self) -> &'static str {
        "sim"
    }
}
