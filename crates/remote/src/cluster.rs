//! The memory nodes of a pool, on the client's side.
//!
//! Invariants: the place of an address in the list is its node's number; all nodes speak one data plane; a client has
//! one control connection to each node, shared by its threads, for as long as any of them needs it.

use crate::ControlError;
use crate::client::{Control, ControlSettings};
use crate::control::{PlaneKind, Welcome};
use crate::token::{Rights, random_u64};
use farindex_fabric::{Identity, NodeId, NodeInfo};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The memory nodes of a pool.
pub struct Cluster {
    addrs: Vec<String>,
    seen: Vec<Welcome>,
    settings: ControlSettings,
    clients: Mutex<HashMap<u64, Weak<ClusterClient>>>,
}

/// A client's control connections, one for each node.
pub struct ClusterClient {
    identity: Identity,
    controls: Vec<Control>,
}

impl ClusterClient {
    /// The client's identity.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }
    /// In the order of the nodes' numbers.
    pub fn controls(&self) -> &[Control] {
        &self.controls
    }
}

impl Cluster {
    /// Asks every node for its Welcome: all must answer, in the order of their numbers.
    pub fn connect(addrs: &[String], settings: ControlSettings) -> Result<Self, ControlError> {
        let max = farindex_fabric::ptr::MAX_NODES;
        if addrs.is_empty() || addrs.len() > max {
            let count = addrs.len();
            return Err(ControlError::Local(format!("{count} memory nodes: it takes between 1 and {max}")));
        }
        let mut seen: Vec<Welcome> = Vec::with_capacity(addrs.len());
        for (place, addr) in addrs.iter().enumerate() {
            let welcome = Control::look(addr, &settings)?;
            let wanted = NodeId::new(place as u16);
            if welcome.node != wanted {
                return Err(ControlError::WrongNode { addr: addr.clone(), is: welcome.node, wanted });
            }
            if let Some(first) = seen.first().filter(|first| first.plane != welcome.plane) {
                let (is, wanted) = (welcome.plane, first.plane);
                return Err(ControlError::WrongPlane { addr: addr.clone(), is, wanted });
            }
            seen.push(welcome);
        }
        Ok(Cluster { addrs: addrs.to_vec(), seen, settings, clients: Mutex::default() })
    }
    /// Where the nodes are, in the order of their numbers.
    pub fn addrs(&self) -> &[String] {
        &self.addrs
    }
    /// The data plane that all of them speak.
    pub fn plane(&self) -> PlaneKind {
        self.seen.first().map_or(PlaneKind::Other(0), |welcome| welcome.plane)
    }
    /// The Welcome of each node, in the order of their numbers.
    pub fn welcomes(&self) -> &[Welcome] {
        &self.seen
    }
    /// Their numbers and sizes.
    pub fn node_infos(&self) -> Vec<NodeInfo> {
        self.seen.iter().map(|welcome| NodeInfo { node: welcome.node, len: welcome.len }).collect()
    }
    /// Did all regions read as zeros before the first WRITE?
    pub fn zeroed(&self) -> bool {
        self.seen.iter().all(|welcome| welcome.zeroed)
    }
    /// Do all nodes answer calls?
    pub fn answers_calls(&self) -> bool {
        self.seen.iter().all(|welcome| welcome.calls)
    }
    /// The rights of this client's token on all nodes.
    pub fn rights(&self) -> Rights {
        let all = self.seen.iter().all(|welcome| welcome.rights == Rights::ReadWrite);
        if all { Rights::ReadWrite } else { Rights::ReadOnly }
    }
    /// A fresh identity: 64 random bits. It names no process, since clients are anywhere.
    pub fn new_identity(&self) -> Result<Identity, ControlError> {
        Ok(Identity { token: random_u64().map_err(ControlError::Local)?, pid: 0, started: 0 })
    }
    /// Returns a client's control connections: the existing ones, or new ones. A node that cannot be reached now is
    /// tried again in the background. Fails if this client was revoked, or if a node has other memory.
    pub fn client(&self, identity: &Identity) -> Result<Arc<ClusterClient>, ControlError> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(&identity.token).and_then(Weak::upgrade) {
            return Ok(client);
        }
        let open = |(addr, seen): (&String, &Welcome)| Control::open(addr, *identity, seen, &self.settings);
        let controls = self.addrs.iter().zip(&self.seen).map(open).collect::<Result<Vec<_>, _>>()?;
        let client = Arc::new(ClusterClient { identity: *identity, controls });
        clients.retain(|_, client| client.strong_count() > 0);
        clients.insert(identity.token, Arc::downgrade(&client));
        Ok(client)
    }
}
