//! The messages that connect two queue pairs, over the control channel.
//!
//! Invariants: both messages have one length and no padding, little-endian; received messages are checked field by
//! field before a queue pair sees it.

use crate::device::PortAddress;
use farindex_fabric::FabricError;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of these messages.
const VERSION: u16 = 1;

/// One side's queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Hello {
    version: U16,
    lid: U16,
    queue_pair: U32,
    /// Number of the first packet that it sends, 24 bits.
    first_packet: U32,
    gid: [u8; 16],
    infiniband: u8,
    mtu: u8,
    starts: u8,
    serves: u8,
}

/// The memory node's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Reply {
    pub(crate) hello: Hello,
    /// The region's address there.
    pub(crate) start: U64,
    /// Its bytes.
    pub(crate) len: U64,
    pub(crate) key: U32,
}

const _: () = assert!(size_of::<Hello>() == 32 && size_of::<Reply>() == 52);

fn nonsense(what: &str) -> FabricError {
    FabricError::Settings(format!("RDMA verbs: the other side {what}: do both run the same version of farindex?"))
}

/// A checked description of the other side's queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) address: PortAddress,
    pub(crate) queue_pair: u32,
    pub(crate) first_packet: u32,
    pub(crate) mtu: u8,
    pub(crate) starts: u8,
    pub(crate) serves: u8,
}

impl Hello {
    pub(crate) fn new(peer: &Peer) -> Self {
        Hello {
            version: U16::new(VERSION),
            lid: U16::new(peer.address.lid),
            queue_pair: U32::new(peer.queue_pair),
            first_packet: U32::new(peer.first_packet),
            gid: peer.address.gid,
            infiniband: u8::from(peer.address.infiniband),
            mtu: peer.mtu,
            starts: peer.starts,
            serves: peer.serves,
        }
    }
    /// Reads what a client sent.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Peer, FabricError> {
        Hello::read_from_bytes(bytes).map_err(|_| nonsense("sent a greeting of another length"))?.check()
    }
    fn check(&self) -> Result<Peer, FabricError> {
        if self.version.get() != VERSION {
            return Err(nonsense(&format!("speaks version {}, this one {VERSION}", self.version)));
        }
        let number = |field: U32| Some(field.get()).filter(|number| *number < 1 << 24);
        let (Some(queue_pair), Some(first_packet)) = (number(self.queue_pair), number(self.first_packet)) else {
            return Err(nonsense("names a queue pair that there cannot be"));
        };
        let known = (1..=5).contains(&self.mtu) && self.starts > 0 && self.serves > 0 && self.infiniband < 2;
        if !known {
            return Err(nonsense("sent limits that make no sense"));
        }
        let address = PortAddress { gid: self.gid, lid: self.lid.get(), infiniband: self.infiniband == 1 };
        Ok(Peer { address, queue_pair, first_packet, mtu: self.mtu, starts: self.starts, serves: self.serves })
    }
}

impl Reply {
    /// Reads the memory node's answer.
    pub(crate) fn parse(bytes: &[u8]) -> Result<(Peer, Reply), FabricError> {
        let reply = Reply::read_from_bytes(bytes).map_err(|_| nonsense("sent an answer of another length"))?;
        let (start, len) = (reply.start.get(), reply.len.get());
        if start.checked_add(len).is_none() || !start.is_multiple_of(8) || !len.is_multiple_of(8) {
            return Err(nonsense("has a region that there cannot be"));
        }
        Ok((reply.hello.check()?, reply))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer() -> Peer {
        let address = PortAddress { gid: [7; 16], lid: 3, infiniband: false };
        Peer { address, queue_pair: 0x00ab_cdef, first_packet: 5, mtu: 5, starts: 16, serves: 1 }
    }

    #[test]
    fn greetings_survive_the_wire() {
        assert_eq!(Hello::parse(Hello::new(&peer()).as_bytes()), Ok(peer()));
        let reply = Reply { hello: Hello::new(&peer()), start: 4096.into(), len: 8192.into(), key: 9.into() };
        assert_eq!(Reply::parse(reply.as_bytes()), Ok((peer(), reply)));
    }

    #[test]
    fn malformed_greetings_are_refused() {
        let good = Hello::new(&peer());
        let broken = [
            Hello { version: 2.into(), ..good },
            Hello { queue_pair: U32::new(1 << 24), ..good },
            Hello { first_packet: U32::new(u32::MAX), ..good },
            Hello { mtu: 0, ..good },
            Hello { mtu: 6, ..good },
            Hello { starts: 0, ..good },
            Hello { serves: 0, ..good },
            Hello { infiniband: 2, ..good },
        ];
        for hello in broken {
            assert!(hello.check().is_err(), "{hello:?}");
        }
        let reply = Reply { hello: good, start: 4096.into(), len: 8192.into(), key: 9.into() };
        let broken = [
            Reply { start: u64::MAX.into(), ..reply },
            Reply { start: 4.into(), ..reply },
            Reply { len: 12.into(), ..reply },
            Reply { hello: Hello { mtu: 9, ..good }, ..reply },
        ];
        for reply in broken {
            assert!(Reply::parse(reply.as_bytes()).is_err(), "{reply:?}");
        }
        let whole = [good.as_bytes(), &[0]].concat();
        assert!((0..=whole.len()).all(|len| len == 32 || Hello::parse(&whole[..len]).is_err()));
        let bytes = reply.as_bytes();
        assert!((0..bytes.len()).all(|len| Reply::parse(&bytes[..len]).is_err()));
        assert!(Hello::parse(&[0xff; 32]).is_err() && Reply::parse(&[0xff; 52]).is_err());
    }
}
