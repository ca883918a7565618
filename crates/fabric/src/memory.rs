//! The memory fabric: several memory nodes inside this process, used by any number of threads.
//!
//! Invariants: those of every mapped fabric (bounds and rights are checked before anything takes effect, a chain runs
//! in posting order on the thread that posts it); far memory is only ever touched word by word, so Miri sees every
//! access.

pub use crate::mapped::Delivery;

use crate::call::CallHandler;
use crate::mapped::{Manner, Mapped};
#[cfg(all(target_os = "linux", not(miri)))]
use crate::region::Mapping;
use crate::region::Region;
use crate::transport::{Capabilities, Fabric, Identity, NodeInfo};
use crate::{Endpoint, FabricError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Memory nodes inside this process.
#[derive(Clone)]
pub struct MemoryFabric {
    shared: Arc<Shared>,
    manner: Manner,
}

struct Shared {
    mapped: Arc<Mapped>,
    next_token: AtomicU64,
}

impl MemoryFabric {
    /// Makes `nodes` memory nodes of `len` zero bytes each.
    pub fn new(nodes: usize, len: u64) -> Result<Self, FabricError> {
        if nodes == 0 || nodes > crate::ptr::MAX_NODES {
            let max = crate::ptr::MAX_NODES;
            return Err(FabricError::Settings(format!("{nodes} memory nodes: it takes between 1 and {max}")));
        }
        if !len.is_multiple_of(8) || len == 0 || len > crate::ptr::MAX_NODE_LEN {
            return Err(FabricError::Settings(format!(
                "{len} bytes for each memory node: it takes a multiple of 8, at most {}",
                crate::ptr::MAX_NODE_LEN
            )));
        }
        let mapped = Mapped {
            name: "memory",
            nodes: (0..nodes).map(|_| zeroed(len / 8)).collect::<Result<_, _>>()?,
            gates: Arc::default(),
            // Every client is of this process, so its gates are all there is to close.
            revoke_foreign: Box::new(|_| Ok(())),
            read_only: false,
            zeroed: true,
            epoch: Instant::now(),
            _held: Vec::new(),
        };
        let shared = Shared { mapped: Arc::new(mapped), next_token: AtomicU64::new(1) };
        Ok(MemoryFabric { shared: Arc::new(shared), manner: Manner::default() })
    }

    /// Returns a fabric on the same memory that carries chains out at another moment.
    #[must_use]
    pub fn with_delivery(&self, delivery: Delivery) -> Self {
        MemoryFabric { manner: Manner { delivery, ..self.manner.clone() }, ..self.clone() }
    }

    /// Returns a fabric on the same memory that adds this latency to each cache line that a verb waits for, as memory behind
    /// a CXL link has it: the thread waits in a loop. The lines of READs in one batch overlap, ten at a time; stores wait for
    /// nothing. For measurements.
    #[must_use]
    pub fn with_line_latency(&self, latency: Duration) -> Self {
        MemoryFabric { manner: Manner { line: latency, ..self.manner.clone() }, ..self.clone() }
    }

    /// Returns a fabric on the same memory whose nodes answer calls by this handler.
    #[must_use]
    pub fn with_call_handler(&self, handler: Arc<CallHandler>) -> Self {
        MemoryFabric { manner: Manner { handler: Some(handler), ..self.manner.clone() }, ..self.clone() }
    }
}

/// Bytes of a region from which on huge pages are asked for. With small ones, nearly every READ of a large region misses
/// the processor's table of translations as well. A smaller region is often used in a few places only.
#[cfg(all(target_os = "linux", not(miri)))]
const HUGE_FROM: usize = 32 << 20;

fn zeroed(words: u64) -> Result<Region, FabricError> {
    let too_large =
        || FabricError::Settings(format!("cannot allocate {} bytes for a memory node", words.saturating_mul(8)));
    let len = usize::try_from(words).map_err(|_| too_large())?;
    #[cfg(all(target_os = "linux", not(miri)))]
    if let Some(bytes) = len.checked_mul(8)
        && bytes >= HUGE_FROM
    {
        return Mapping::anonymous(bytes).map(Region::Mapped).map_err(|_| too_large());
    }
    crate::region::zeroed_words(len).map(Region::Heap).ok_or_else(too_large)
}

impl Fabric for MemoryFabric {
    fn name(&self) -> &'static str {
        self.shared.mapped.name
    }
    fn nodes(&self) -> Vec<NodeInfo> {
        self.shared.mapped.node_infos()
    }
    fn capabilities(&self) -> Capabilities {
        self.shared.mapped.capabilities(&self.manner)
    }
    fn new_identity(&self) -> Identity {
        let token = self.shared.next_token.fetch_add(1, Ordering::Relaxed);
        Identity { token, pid: u64::from(std::process::id()), started: 0 }
    }
    fn connect(&self, identity: &Identity) -> Result<Endpoint, FabricError> {
        Ok(self.shared.mapped.connect(identity, &self.manner))
    }
}
