//! The memory node's side: its region, registered, and a queue pair for each connection.
//!
//! Invariants: the memory node's CPU touches no word of the region while it serves, so the NIC's atomics are atomic among
//! all that touch it (N4); a connection ends by the destruction of its queue pair, which returns once the device carries out
//! nothing for it any more (G6); queue pairs are gone before the region is unregistered, and that before the memory goes.

use crate::device::{Device, DeviceOptions};
use crate::hello::{Hello, Reply};
use crate::memory::Exported;
use crate::pair::Pair;
use farindex_fabric::FabricError;
use farindex_remote::plane::{Peer, Refusal};
use farindex_remote::{NodeMemory, Plane, PlaneKind};
use sideway::ibverbs::completion::GenericCompletionQueue;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use zerocopy::IntoBytes;

/// Connections that one client may have.
const MAX_PAIRS: usize = 1024;

/// A queue pair, and the number of the client's that it is connected to.
struct Guest {
    client: u32,
    pair: Pair,
}

/// Serves a region over RDMA verbs.
pub struct VerbsPlane {
    // Dropped in this order.
    guests: Mutex<HashMap<u64, Vec<Guest>>>,
    completions: GenericCompletionQueue,
    exported: Exported,
    device: Arc<Device>,
}

impl VerbsPlane {
    /// Opens the device and registers the region with it, once.
    pub fn new(memory: Arc<NodeMemory>, options: &DeviceOptions) -> Result<Self, FabricError> {
        let device = Device::open(options)?;
        let completions = device.context.create_cq_builder().setup_cqe(1).build().map_err(|error| {
            FabricError::Settings(format!("RDMA verbs: device {} makes no completion queue: {error}", device.name()))
        })?;
        let exported = Exported::new(&device, memory)?;
        Ok(VerbsPlane { guests: Mutex::default(), completions: completions.into(), exported, device })
    }
    /// The device that it serves through.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
    /// Queue pairs that are connected now.
    pub fn connections(&self) -> usize {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner).values().map(Vec::len).sum()
    }

    fn connect(&self, peer: &Peer, client: &crate::hello::Peer) -> Result<Vec<u8>, FabricError> {
        let mut guests = self.guests.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = guests.entry(peer.link).or_default();
        if mine.len() >= MAX_PAIRS {
            return Err(FabricError::Settings(format!("a client has at most {MAX_PAIRS} queue pairs to a memory node")));
        }
        // It is asked and asks nothing.
        let mut pair = Pair::new(&self.device, &self.completions, 1, 0)?;
        let hello = Hello::new(&pair.describe(&self.device));
        pair.serve(&self.device, client, peer.rights)?;
        mine.push(Guest { client: client.queue_pair, pair });
        let reply = Reply {
            hello,
            start: self.exported.start().into(),
            len: self.exported.len().into(),
            key: self.exported.key(peer.rights).into(),
        };
        Ok(reply.as_bytes().to_vec())
    }
}

/// Ends connections; returns when nothing of them takes effect any more.
fn end(guests: impl IntoIterator<Item = Guest>) {
    let mut guests: Vec<Guest> = guests.into_iter().collect();
    // First all of them stop, then each is waited for.
    guests.iter_mut().for_each(|guest| guest.pair.refuse());
    drop(guests);
}

impl Plane for VerbsPlane {
    fn kind(&self) -> PlaneKind {
        PlaneKind::Verbs
    }
    fn attach(&self, peer: &Peer, request: &[u8]) -> Result<Vec<u8>, Refusal> {
        Ok(self.connect(peer, &Hello::parse(request)?)?)
    }
    /// A client names its own queue pair.
    fn release(&self, link: u64, request: &[u8]) {
        let Ok(number) = request.try_into().map(u32::from_le_bytes) else { return };
        let mut guests = self.guests.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mine) = guests.get_mut(&link) {
            end(mine.extract_if(.., |guest| guest.client == number));
        }
    }
    fn detach(&self, link: u64) {
        let theirs = self.guests.lock().unwrap_or_else(PoisonError::into_inner).remove(&link);
        end(theirs.into_iter().flatten());
    }
}
