//! Memory that the NIC reads and writes.
//!
//! Invariants: memory is registered for as long as the NIC may touch it, and stays where it is; memory that the NIC
//! writes while this process may read it is read through atomics only.
#![allow(unsafe_code)]

use crate::device::Device;
use farindex_fabric::FabricError;
use farindex_fabric::slab::{Block, Registrar, Registration};
use farindex_remote::{NodeMemory, Rights};
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::memory_region::MemoryRegion;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn refused(device: &Device, len: usize, error: &dyn std::fmt::Display) -> FabricError {
    FabricError::Settings(format!(
        "RDMA verbs: device {} cannot register {len} bytes: {error}; memory must not be swapped out while it is \
         registered, so raise the limit on locked memory (ulimit -l unlimited); of files, those on /dev/shm or hugetlbfs \
         can be registered",
        device.name()
    ))
}

/// Registers the buffers of one endpoint.
pub(crate) struct Buffers(pub(crate) Arc<Device>);

impl Registrar for Buffers {
    fn register(&self, block: &Block) -> Result<Registration, FabricError> {
        // SAFETY: a block stays where it is, readable and writable, until this registration has been dropped.
        let region = unsafe { self.0.domain.reg_mr(block.start() as usize, block.len(), AccessFlags::LocalWrite) };
        let region = region.map_err(|error| refused(&self.0, block.len(), &error))?;
        Ok(Registration { key: region.lkey(), hold: Box::new(region) })
    }
}

/// Words that the NIC puts the old values of atomics into.
pub(crate) struct Scratch {
    // Unregistered before it is freed.
    region: Arc<MemoryRegion>,
    words: Box<[AtomicU64]>,
}

impl Scratch {
    pub(crate) fn new(device: &Device, words: usize) -> Result<Self, FabricError> {
        let words: Box<[AtomicU64]> = (0..words.max(1)).map(|_| AtomicU64::new(0)).collect();
        let len = words.len() * 8;
        // SAFETY: the words are on the heap and stay there; `region` is dropped before them (field order).
        let region = unsafe { device.domain.reg_mr(words.as_ptr() as usize, len, AccessFlags::LocalWrite) };
        let region = region.map_err(|error| refused(device, len, &error))?;
        Ok(Scratch { region, words })
    }
    pub(crate) fn key(&self) -> u32 {
        self.region.lkey()
    }
    fn word(&self, ordinal: u64) -> Option<&AtomicU64> {
        self.words.get((ordinal % self.words.len() as u64) as usize)
    }
    pub(crate) fn address(&self, ordinal: u64) -> u64 {
        self.word(ordinal).map_or(0, |word| word.as_ptr() as u64)
    }
    /// The old value that the NIC has stored for the request with this number.
    pub(crate) fn get(&self, ordinal: u64) -> u64 {
        self.word(ordinal).map_or(0, |word| word.load(Ordering::Acquire))
    }
}

/// A memory node's region, as clients may use it.
pub(crate) struct Exported {
    // Unregistered before the memory is given up.
    all: Arc<MemoryRegion>,
    reads: Arc<MemoryRegion>,
    memory: Arc<NodeMemory>,
}

impl Exported {
    pub(crate) fn new(device: &Device, memory: Arc<NodeMemory>) -> Result<Self, FabricError> {
        let words = memory.region().words();
        let (start, len) = (words.as_ptr() as usize, words.len() * 8);
        let remote = AccessFlags::RemoteRead | AccessFlags::RemoteWrite | AccessFlags::RemoteAtomic;
        let register = |access| {
            // SAFETY: a region's words stay where they are for as long as it lives, and the registrations are dropped
            // before `memory` (field order). The NIC changes them as another process changes a shared mapping: this
            // process has them as atomics alone.
            unsafe { device.domain.reg_mr(start, len, access) }.map_err(|error| refused(device, len, &error))
        };
        let (all, reads) = (register(AccessFlags::LocalWrite | remote)?, register(AccessFlags::RemoteRead)?);
        Ok(Exported { all, reads, memory })
    }
    /// The key that clients use: with the right to change the region, or without.
    pub(crate) fn key(&self, rights: Rights) -> u32 {
        match rights {
            Rights::ReadWrite => self.all.rkey(),
            Rights::ReadOnly => self.reads.rkey(),
        }
    }
    pub(crate) fn start(&self) -> u64 {
        self.all.get_ptr() as u64
    }
    pub(crate) fn len(&self) -> u64 {
        self.memory.region().len()
    }
}
