//! The servers of a NIC.
//!
//! Invariants: a server does one piece of work at a time, in the order of the requests; a reservation is never undone.

use std::time::Duration;

/// Number of addresses on which atomics can proceed at once: a table in the NIC, indexed by low bits of the address.
const ADDRESSES: usize = 4096;

/// A server that is busy until a moment, in picoseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Server {
    free: u64,
    /// All work that was reserved.
    work: u64,
}

impl Server {
    /// Reserves work of this length, from `now` on or as soon as the server is free. Returns when the work is done.
    pub(crate) fn reserve(&mut self, now: u64, work: u64) -> u64 {
        self.free = self.free.max(now) + work;
        self.work += work;
        self.free
    }
    /// The moment at which the server is free.
    pub(crate) fn free_at(&self) -> u64 {
        self.free
    }
}

/// One NIC, of a compute node or a memory node.
#[derive(Debug, Default)]
pub(crate) struct Nic {
    /// Handles messages of both directions.
    pub(crate) engine: Server,
    /// The wire towards the network.
    pub(crate) out: Server,
    /// The wire from the network.
    pub(crate) inward: Server,
    /// Atomics on all addresses together.
    pub(crate) atomics: Server,
    /// Atomics on one address. Allocated at the first atomic.
    addresses: Vec<Server>,
}

impl Nic {
    /// How long its servers have been at work.
    pub(crate) fn work(&self) -> NicWork {
        let time = |server: &Server| Duration::from_nanos(server.work / 1000);
        NicWork {
            messages: time(&self.engine),
            out: time(&self.out),
            inward: time(&self.inward),
            atomics: time(&self.atomics),
        }
    }
    /// The server of atomics on this address.
    pub(crate) fn address(&mut self, offset: u64) -> &mut Server {
        if self.addresses.is_empty() {
            self.addresses = vec![Server::default(); ADDRESSES];
        }
        &mut self.addresses[(offset / 8) as usize % ADDRESSES]
    }
}

/// How long the servers of a NIC have been at work since the simulation began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NicWork {
    /// Messages of both directions.
    pub messages: Duration,
    /// Bytes to the network.
    pub out: Duration,
    /// Bytes from the network.
    pub inward: Duration,
    /// Atomics.
    pub atomics: Duration,
}

impl NicWork {
    /// The server that has worked longest.
    pub fn longest(&self) -> Duration {
        self.messages.max(self.out).max(self.inward).max(self.atomics)
    }
}

impl std::ops::Sub for NicWork {
    type Output = NicWork;
    fn sub(self, earlier: NicWork) -> NicWork {
        NicWork {
            messages: self.messages.saturating_sub(earlier.messages),
            out: self.out.saturating_sub(earlier.out),
            inward: self.inward.saturating_sub(earlier.inward),
            atomics: self.atomics.saturating_sub(earlier.atomics),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_queues_up_and_idle_time_is_lost() {
        let mut server = Server::default();
        assert_eq!(server.reserve(10, 5), 15);
        assert_eq!(server.reserve(11, 5), 20);
        assert_eq!(server.reserve(100, 5), 105);
        assert_eq!(server.work, 15);
    }
}
