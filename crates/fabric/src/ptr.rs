//! Addresses of far memory.
//!
//! Invariants: offset 0 of node 0 holds a superblock, so the all-zero pointer never names data and serves as null; an
//! offset is below [`MAX_NODE_LEN`], so every 64-byte aligned address fits 48 bits ([`RemotePtr::to_slot`]).
//!
//! ```text
//! RemotePtr     63      54 53        44 43                                   0
//!               | zero    | node (10)  | byte offset (44)                    |
//! slot form (48 bits)       47      38 37                                    0
//!                           | node (10)| offset / 64 (38)                    |
//! ```

use std::fmt;

const OFFSET_BITS: u32 = 44;
const NODE_BITS: u32 = 10;
const OFFSET_MASK: u64 = (1 << OFFSET_BITS) - 1;
const SLOT_OFFSET_BITS: u32 = OFFSET_BITS - BLOCK_ALIGN.trailing_zeros();

/// Key-value blocks begin at multiples of this many bytes.
pub const BLOCK_ALIGN: u64 = 64;
/// Bytes that one memory node may offer at most: 16 TiB.
pub const MAX_NODE_LEN: u64 = 1 << OFFSET_BITS;
/// Memory nodes of one pool at most. The last number is reserved: layouts use it to mark words that are no pointers.
pub const MAX_NODES: usize = (1 << NODE_BITS) - 1;

/// Number of a memory node within its pool.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u16);

impl NodeId {
    /// The node with this number. Only the low 10 bits count.
    pub const fn new(number: u16) -> Self {
        NodeId(number & ((1 << NODE_BITS) - 1))
    }
    /// Its number.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A memory node and a byte offset on it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RemotePtr(u64);

impl RemotePtr {
    /// Names no data.
    pub const NULL: RemotePtr = RemotePtr(0);

    /// Byte `offset` of `node`. Offsets at or above [`MAX_NODE_LEN`] do not exist and are cut.
    pub const fn new(node: NodeId, offset: u64) -> Self {
        RemotePtr((node.0 as u64) << OFFSET_BITS | offset & OFFSET_MASK)
    }
    /// The memory node.
    pub const fn node(self) -> NodeId {
        NodeId((self.0 >> OFFSET_BITS) as u16 & ((1 << NODE_BITS) - 1))
    }
    /// Byte offset on the node.
    pub const fn offset(self) -> u64 {
        self.0 & OFFSET_MASK
    }
    /// `bytes` further on the same node, modulo [`MAX_NODE_LEN`].
    #[must_use]
    pub const fn add(self, bytes: u64) -> Self {
        RemotePtr(self.0 & !OFFSET_MASK | self.offset().wrapping_add(bytes) & OFFSET_MASK)
    }
    /// Is this the null pointer?
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }
    /// The 64 bits, as stored in far memory.
    pub const fn to_bits(self) -> u64 {
        self.0
    }
    /// From 64 stored bits. Bits that mean nothing are dropped: what comes from far memory may be anything.
    pub const fn from_bits(bits: u64) -> Self {
        RemotePtr(bits & ((1 << (OFFSET_BITS + NODE_BITS)) - 1))
    }
    /// The 48 bits that an index slot keeps; `None` unless the offset is a multiple of [`BLOCK_ALIGN`].
    pub const fn to_slot(self) -> Option<u64> {
        if !self.offset().is_multiple_of(BLOCK_ALIGN) {
            return None;
        }
        Some(((self.node().0 as u64) << SLOT_OFFSET_BITS) | (self.offset() / BLOCK_ALIGN))
    }
    /// From the 48 bits of an index slot; higher bits are ignored.
    pub const fn from_slot(bits: u64) -> Self {
        let node = (bits >> SLOT_OFFSET_BITS) as u16 & ((1 << NODE_BITS) - 1);
        RemotePtr::new(NodeId(node), (bits & ((1 << SLOT_OFFSET_BITS) - 1)) * BLOCK_ALIGN)
    }
}

impl fmt::Debug for RemotePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:#x}", self.node(), self.offset())
    }
}

impl fmt::Display for RemotePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

const _: () = assert!(SLOT_OFFSET_BITS + NODE_BITS == 48);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_form_keeps_node_and_offset() {
        for (node, offset) in [(0, 64), (1, 0), (1022, MAX_NODE_LEN - 64), (37, 1 << 43)] {
            let ptr = RemotePtr::new(NodeId::new(node), offset);
            assert_eq!(RemotePtr::from_slot(ptr.to_slot().unwrap()), ptr);
            assert_eq!(RemotePtr::from_bits(ptr.to_bits()), ptr);
        }
        assert_eq!(RemotePtr::new(NodeId::new(0), 8).to_slot(), None);
    }
}
