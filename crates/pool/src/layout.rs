//! The layout of a memory node: structures, constants and addresses. docs/layouts/pool.md has the byte diagram.
//!
//! Invariants: every structure consists of whole, little-endian 8-byte words. The target of a CAS or FAA is always one
//! aligned word. Five numbers of the superblock (region length, chunk size, client slots, intent cells, chunks) determine
//! the layout of a node, so a client computes every address itself.

use farindex_fabric::{Buf, NodeId, RemotePtr};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// "FARINDEX" in ASCII.
pub const MAGIC: u64 = u64::from_le_bytes(*b"FARINDEX");
/// Version of everything in this module. Version 7 reserves an entry of the catalog before it is written.
pub const FORMAT_VERSION: u64 = 7;

/// The constant part of a node's first bytes. Pool creation writes it once; every client checks it when it opens the
/// pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Superblock {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`FORMAT_VERSION`].
    pub version: u64,
    /// Random, the same on all nodes of the pool.
    pub pool_id: [u64; 2],
    /// Number of this node.
    pub node: u64,
    /// Memory nodes of the pool.
    pub nodes: u64,
    /// Bytes of this node that the pool uses.
    pub region_len: u64,
    /// Bytes of one chunk, a power of two.
    pub chunk_size: u64,
    /// Chunks of this node.
    pub chunks: u64,
    /// Client slots.
    pub client_slots: u64,
    /// Lease in milliseconds: a client that shows no heartbeat for so long has expired.
    pub lease_ms: u64,
    /// Non-zero if bytes that were never allocated are known to be zero.
    pub zeroed: u64,
    /// The key from which [`seed_of`](Self::seed_of) derives the seeds of the indexes. Random, or chosen at creation.
    pub hash_key: u64,
    /// Intent cells of each client slot on this node.
    pub intent_cells: u64,
    /// Zero.
    pub reserved: u64,
    /// xxh3-64 of all bytes before it.
    pub checksum: u64,
}

const SUPERBLOCK_LEN: usize = 128;
const _: () = assert!(size_of::<Superblock>() == SUPERBLOCK_LEN);
const _: () = assert!(std::mem::offset_of!(Superblock, checksum) == SUPERBLOCK_LEN - 8);

impl Superblock {
    /// Computes the value that [`Superblock::checksum`] must have.
    pub fn expected_checksum(&self) -> u64 {
        xxhash_rust::xxh3::xxh3_64(&self.as_bytes()[..SUPERBLOCK_LEN - 8])
    }

    /// Returns the seed of a new index with this uid. With the hash key [`UNSEEDED`], every index has the seed 0.
    pub fn seed_of(&self, uid: u64) -> u64 {
        match self.hash_key {
            UNSEEDED => 0,
            key => xxhash_rust::xxh3::xxh3_64_with_seed(&uid.to_le_bytes(), key),
        }
    }
}

/// The hash key of a pool whose indexes all have the seed 0, so that every run places keys alike.
pub const UNSEEDED: u64 = 0;

/// The slot of one client, on node 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ClientSlot {
    /// How often the lease was renewed after it had expired (16 bits) `<< 48`, `generation << 8`, plus 0 (free),
    /// [`ACTIVE`], [`REGISTERING`] or [`EVICTING`]. Changed by CAS alone.
    pub state: u64,
    /// A counter that a live client increments.
    pub heartbeat: u64,
    /// Every operation of this client that began before the pool's epoch reached this number has ended. Zero until the
    /// client publishes its first value.
    pub quiesced: u64,
    /// What the fabric needs to revoke this client: [`farindex_fabric::Identity`].
    pub identity: [u64; 3],
    /// Time of registration in seconds of the Unix epoch, for display.
    pub since: u64,
    /// Zero.
    pub reserved: u64,
}

/// Low byte of a slot's state: the slot belongs to a registered client.
pub const ACTIVE: u64 = 1;
/// Low byte of a slot's state: a client has taken the slot and is writing its identity into it.
pub const REGISTERING: u64 = 2;

/// Low byte of a slot's state: another client is about to revoke the client, and then frees the slot.
pub const EVICTING: u64 = 3;
/// Bits of a slot's generation.
const GENERATION: u64 = (1 << 40) - 1;

/// The state of a slot whose client has renewed an expired lease.
pub const fn renewed(state: u64) -> u64 {
    state.wrapping_add(1 << 48) & !0xFF | ACTIVE
}
/// The state of a slot that a client takes which finds it free in this state.
pub const fn taken(state: u64) -> u64 {
    ((state >> 8).wrapping_add(1) & GENERATION) << 8 | REGISTERING
}
/// What of a slot's state says whose it is: without the renewals, and the same before and during an eviction.
pub const fn registration(state: u64) -> u64 {
    let kept = state & GENERATION << 8;
    if state & 0xFF == EVICTING { kept | ACTIVE } else { kept | state & 0xFF }
}

/// Bytes of a [`ClientSlot`].
pub const CLIENT_SLOT_LEN: u64 = 64;
const _: () = assert!(size_of::<ClientSlot>() == CLIENT_SLOT_LEN as usize);

impl ClientSlot {
    /// Returns whether the slot belongs to a registered client, which may be about to be evicted.
    pub fn active(&self) -> bool {
        matches!(self.state & 0xFF, ACTIVE | EVICTING)
    }
    /// Returns whether the client is about to be evicted.
    pub fn evicting(&self) -> bool {
        self.state & 0xFF == EVICTING
    }
    /// Returns whether a client has taken the slot and has not finished its registration.
    pub fn registering(&self) -> bool {
        self.state & 0xFF == REGISTERING
    }
    /// Returns whether a client may take the slot. A slot with any other low byte is damaged: it belongs to no client.
    pub fn vacant(&self) -> bool {
        self.state & 0xFF == 0
    }
    /// How many times the slot has been taken.
    pub fn generation(&self) -> u64 {
        self.state >> 8 & GENERATION
    }
}

/// Fewest and most intents that a new pool lets one client declare at a time on one node, unless its creator chooses.
pub const INTENT_CELLS: [u64; 2] = [16, MAX_INTENT_CELLS];
/// Most intents that one client can declare at a time on one node: it has a bit for each in a word.
pub const MAX_INTENT_CELLS: u64 = 64;
/// A new pool uses about this fraction of a node for the intents of all clients, within [`INTENT_CELLS`].
const INTENT_SHARE: u64 = 256;
/// Bytes of an intent.
pub const INTENT_LEN: u64 = 64;

/// The entry of one named index in the catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CatalogEntry {
    /// [`ENTRY_EMPTY`], or the uid and what is so of its index: see [`entry_state`], [`reserved_state`] and
    /// [`given_up_state`]. Changed by CAS alone.
    pub state: u64,
    /// xxh3-64 of all bytes after it.
    pub checksum: u64,
    /// Number of the index. No other index of this pool ever has the same.
    pub uid: u64,
    /// Number of the kind of index.
    pub kind: u32,
    /// Version of that kind's format.
    pub version: u32,
    /// Address of the kind's roots.
    pub root: u64,
    /// Seed of the key hash, which decides where keys lie. It never changes.
    pub seed: u64,
    /// Length of the name in bytes.
    pub name_len: u32,
    /// Length of the settings in bytes.
    pub config_len: u32,
    /// Version of the settings' encoding.
    pub config_version: u32,
    /// Zero.
    pub reserved: u32,
    /// The name, zero-padded.
    pub name: [u8; MAX_NAME],
    /// The kind's own settings, zero-padded.
    pub config: [u8; MAX_CONFIG_LEN],
    /// Zero.
    pub room: [u8; 120],
}

/// The entry names no index, and may be reserved for one.
pub const ENTRY_EMPTY: u64 = 0;
/// The index can be opened.
pub const ENTRY_READY: u64 = 1;
/// The index is being dropped. No client can open it; its memory is freed once no operation uses it.
pub const ENTRY_DROPPING: u64 = 2;
/// The largest uid. Then no state is near to a [reservation](reserved_state): damage does not turn one into the other.
pub const MAX_UID: u64 = u64::MAX >> 26;

/// Returns the state of an entry that names the index `uid`, which is [`ENTRY_READY`] or [`ENTRY_DROPPING`].
///
/// The uid is in the entry as well. A READ that tears may return a new state together with older bytes, which are those of an
/// index that has gone, and whose checksum is right: the two uids tell them apart.
pub const fn entry_state(uid: u64, is: u64) -> u64 {
    uid << 2 | is
}
/// Returns the state of an entry that names no index yet: the creator of the index `uid` has it, and is writing its bytes.
pub const fn reserved_state(uid: u64) -> u64 {
    !entry_state(uid, ENTRY_READY)
}
/// Returns the state of an entry whose reservation was given up: it names no index, and its creator may still write its
/// bytes.
pub const fn given_up_state(uid: u64) -> u64 {
    !entry_state(uid, ENTRY_DROPPING)
}
/// Returns for which uid an entry with this state is reserved, or was before that was given up; `None` if it is not a state
/// of either kind.
pub fn reserved_for(state: u64) -> Option<u64> {
    let uid = !state >> 2;
    let known = state == reserved_state(uid) || state == given_up_state(uid);
    (known && (1..=MAX_UID).contains(&uid)).then_some(uid)
}
/// Longest name of an index, in bytes.
pub const MAX_NAME: usize = 72;
/// Most bytes that a kind of index can store as its settings.
pub const MAX_CONFIG_LEN: usize = 256;
/// Most indexes of one pool.
pub const CATALOG_ENTRIES: u64 = 64;
/// Bytes of a [`CatalogEntry`].
pub const CATALOG_ENTRY_LEN: u64 = 512;
const _: () = assert!(size_of::<CatalogEntry>() == CATALOG_ENTRY_LEN as usize);

impl CatalogEntry {
    /// Computes the value that [`CatalogEntry::checksum`] must have.
    pub fn expected_checksum(&self) -> u64 {
        xxhash_rust::xxh3::xxh3_64(&self.as_bytes()[16..])
    }
    /// The name as bytes; `None` if its length is not possible.
    pub fn name(&self) -> Option<&[u8]> {
        self.name.get(..self.name_len as usize)
    }
    /// The settings; `None` if their length is not possible.
    pub fn config(&self) -> Option<&[u8]> {
        self.config.get(..self.config_len as usize)
    }
}

/// The use of a chunk, and a bitmap of its free blocks.
///
/// Each line begins with a word that can be checked, so no 64 bytes consist of bitmap words alone. Overwriting 64 bytes
/// is therefore detected, except for zeros in bitmap words. Those only hide free blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ChunkDescriptor {
    /// Word 0 of line 0 is the state: a [`ChunkUse`] as bits, taken by CAS.
    pub lines: [DescriptorLine; 3],
}

/// 64 bytes of a [`ChunkDescriptor`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DescriptorLine {
    /// In the first line the chunk's state, in the others zero.
    pub head: u64,
    /// Zero.
    pub guard: u64,
    /// A set bit is a free block. A FAA frees blocks; a CAS of a word to zero takes all of its free blocks.
    pub free: [u64; LINE_WORDS],
}

/// Bitmap words of one line of a descriptor.
const LINE_WORDS: usize = 6;
/// Words of a chunk's bitmap that represent blocks.
pub const BITMAP_WORDS: usize = 16;
/// Bytes of a [`ChunkDescriptor`].
pub const DESCRIPTOR_LEN: u64 = 192;
const _: () = assert!(size_of::<ChunkDescriptor>() == DESCRIPTOR_LEN as usize);
const _: () = assert!(BITMAP_WORDS <= 3 * LINE_WORDS);

/// The free blocks of a chunk, one bit each.
pub type Bitmap = [u64; BITMAP_WORDS];

/// Returns the address of bitmap word `i` of the descriptor at `descriptor`.
pub const fn bitmap_word(descriptor: RemotePtr, i: usize) -> RemotePtr {
    let (line, word) = (i / LINE_WORDS, i % LINE_WORDS);
    descriptor.add((line * size_of::<DescriptorLine>() + (2 + word) * 8) as u64)
}

impl ChunkDescriptor {
    /// Decodes the use of the chunk whose descriptor is at `at`; [`ChunkUse::Damaged`] if a check fails.
    pub fn used(&self, at: RemotePtr) -> ChunkUse {
        let [first, second, third] = &self.lines;
        let bitmap = self.lines.iter().flat_map(|line| line.free);
        let zeros = [first.guard, second.head, second.guard, third.head, third.guard];
        match zeros.into_iter().chain(bitmap.skip(BITMAP_WORDS)).all(|word| word == 0) {
            true => ChunkUse::from_bits(first.head, at),
            false => ChunkUse::Damaged(first.head),
        }
    }
    /// The bitmap of free blocks.
    pub fn free(&self) -> Bitmap {
        let mut words = self.lines.iter().flat_map(|line| line.free);
        std::array::from_fn(|_| words.next().unwrap_or_default())
    }
}

/// Bytes of the largest chunk: the bitmap has one bit for each of its 64-byte blocks.
pub const MAX_CHUNK: u64 = BITMAP_WORDS as u64 * 64 * 64;
/// Bytes of the smallest chunk.
pub const MIN_CHUNK: u64 = 16 << 10;

/// The use of a chunk.
///
/// Bits: 0-2 use, 3-15 client slot that took the chunk, 16-47 size class or chunks of the span, 48-63 check. The check
/// is a hash of the other bits and of the descriptor's address; it distinguishes a word that a client wrote from
/// damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkUse {
    /// Never used: only at the cursor and above it. All bits are zero.
    Unused,
    /// Free again.
    Free,
    /// Blocks of one size class.
    Blocks {
        /// The class.
        class: usize,
        /// The client slot that took the chunk.
        owner: u16,
    },
    /// The first chunk of a span.
    Span {
        /// Chunks of the span, this one included.
        chunks: u32,
        /// The client slot that took the chunk.
        owner: u16,
    },
    /// A further chunk of a span.
    SpanTail {
        /// The client slot that took the chunk.
        owner: u16,
    },
    /// Bits that no client writes.
    Damaged(u64),
}

/// Bits of a chunk's state below its check.
const CHECKED_BITS: u32 = 48;

impl ChunkUse {
    /// Decodes the state word of the descriptor at `at`.
    pub fn from_bits(bits: u64, at: RemotePtr) -> Self {
        let owner = (bits >> 3 & 0x1FFF) as u16;
        let number = (bits >> 16) as u32;
        let used = match bits & 7 {
            _ if bits == 0 => ChunkUse::Unused,
            1 => ChunkUse::Blocks { class: number as usize, owner },
            2 => ChunkUse::Span { chunks: number, owner },
            3 => ChunkUse::SpanTail { owner },
            4 => ChunkUse::Free,
            _ => ChunkUse::Damaged(bits),
        };
        if used.to_bits(at) == bits { used } else { ChunkUse::Damaged(bits) }
    }
    /// Encodes the state word of the descriptor at `at`.
    pub fn to_bits(self, at: RemotePtr) -> u64 {
        let (used, owner, number) = match self {
            ChunkUse::Unused => return 0,
            ChunkUse::Damaged(bits) => return bits,
            ChunkUse::Blocks { class, owner } => (1, owner, class as u64),
            ChunkUse::Span { chunks, owner } => (2, owner, u64::from(chunks)),
            ChunkUse::SpanTail { owner } => (3, owner, 0),
            ChunkUse::Free => (4, 0, 0),
        };
        let bits = used | u64::from(owner) << 3 | number << 16;
        let check = xxhash_rust::xxh3::xxh3_64_with_seed(&at.to_bits().to_le_bytes(), bits);
        bits | check >> CHECKED_BITS << CHECKED_BITS
    }
}

/// Offsets of the words of the node header that change.
pub mod header {
    /// Chunks below this number have been taken at least once.
    pub const CURSOR: u64 = 0x100;
    /// Approximate number of free chunks below the cursor: a hint.
    pub const FREE_CHUNKS: u64 = 0x108;
    /// The pool's epoch (node 0).
    pub const EPOCH: u64 = 0x110;
    /// The lock of the catalog: client slot of the holder + 1, or zero (node 0).
    pub const CATALOG_LOCK: u64 = 0x118;
    /// The last `uid` that an index received (node 0).
    pub const LAST_UID: u64 = 0x120;
    /// Number of clients that left without freeing their memory (node 0): [`Leaks`](crate::leaks::Leaks).
    pub const LEAKS: u64 = 0x128;
    /// The measured performance of the fabric: three figures, a choice, and a checksum (node 0).
    pub const CALIBRATION: u64 = 0x140;
    /// Approximate number of free blocks in the chunk bitmaps, one word for each size class: hints.
    pub const RETURNED: u64 = 0x200;
    /// Offset of the first byte after the header.
    pub const END: u64 = 0x1000;
}

/// The geometry of a node: computes the address of every structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of one chunk.
    pub chunk_size: u64,
    /// Chunks of the node.
    pub chunks: u64,
    /// Client slots.
    pub client_slots: u64,
    /// Intent cells of each client slot.
    pub intent_cells: u64,
}

impl Geometry {
    /// The number of intent cells of each client slot in a new pool on a region of this length.
    pub fn intent_cells_for(region_len: u64, client_slots: u64) -> u64 {
        let [least, most] = INTENT_CELLS;
        (region_len / INTENT_SHARE / (client_slots.max(1) * INTENT_LEN)).clamp(least, most)
    }
    /// Fits as many chunks as possible into a region; `None` if not even one fits.
    pub fn fit(region_len: u64, chunk_size: u64, client_slots: u64, intent_cells: u64) -> Option<Self> {
        let empty = Geometry { chunk_size, chunks: 0, client_slots, intent_cells };
        let room = region_len.checked_sub(empty.descriptors())?;
        let most = room / (chunk_size + DESCRIPTOR_LEN);
        // Rounding the data area up to whole pages may cost one of them.
        let mut fits = [most, most.saturating_sub(1)].into_iter().map(|chunks| Geometry { chunks, ..empty });
        fits.find(|geometry| geometry.chunks > 0 && geometry.end() <= region_len)
    }
    const fn clients(&self) -> u64 {
        header::END
    }
    const fn intents(&self) -> u64 {
        self.clients() + self.client_slots * CLIENT_SLOT_LEN
    }
    const fn catalog(&self) -> u64 {
        self.intents() + self.client_slots * self.intent_cells * INTENT_LEN
    }
    const fn descriptors(&self) -> u64 {
        self.catalog() + CATALOG_ENTRIES * CATALOG_ENTRY_LEN
    }
    /// Offset of the first chunk.
    pub const fn data(&self) -> u64 {
        (self.descriptors() + self.chunks * DESCRIPTOR_LEN).next_multiple_of(4096)
    }
    /// Offset of the first byte after the last chunk.
    pub const fn end(&self) -> u64 {
        self.data() + self.chunks * self.chunk_size
    }
    /// Address of a client's slot (node 0).
    pub const fn client(&self, slot: u64) -> RemotePtr {
        RemotePtr::new(NodeId::new(0), self.clients() + slot * CLIENT_SLOT_LEN)
    }
    /// Address of one of a client's intent cells on a node.
    pub const fn intent(&self, node: NodeId, slot: u64, cell: u64) -> RemotePtr {
        RemotePtr::new(node, self.intents() + (slot * self.intent_cells + cell) * INTENT_LEN)
    }
    /// Address of a catalog entry (node 0).
    pub const fn entry(&self, index: u64) -> RemotePtr {
        RemotePtr::new(NodeId::new(0), self.catalog() + index * CATALOG_ENTRY_LEN)
    }
    /// Address of a chunk's descriptor.
    pub const fn descriptor(&self, node: NodeId, chunk: u64) -> RemotePtr {
        RemotePtr::new(node, self.descriptors() + chunk * DESCRIPTOR_LEN)
    }
    /// Address of a chunk's first byte.
    pub const fn chunk(&self, node: NodeId, chunk: u64) -> RemotePtr {
        RemotePtr::new(node, self.data() + chunk * self.chunk_size)
    }
    /// Number of chunks that a span of `bytes` bytes takes.
    pub const fn chunks_for(&self, bytes: u64) -> u64 {
        let chunks = bytes.div_ceil(self.chunk_size);
        if chunks == 0 { 1 } else { chunks }
    }
    /// Number of the first chunk of a span of `count` chunks at `start`; `None` if no such span can lie there.
    pub fn span_start(&self, start: RemotePtr, count: u64) -> Option<u64> {
        let first = self.chunk_of(start)?;
        (self.chunk(start.node(), first) == start && count <= self.chunks - first).then_some(first)
    }
    /// Number of the chunk that contains an address; `None` outside of all chunks.
    pub fn chunk_of(&self, ptr: RemotePtr) -> Option<u64> {
        let chunk = ptr.offset().checked_sub(self.data())? / self.chunk_size;
        (chunk < self.chunks).then_some(chunk)
    }
}

/// Returns the address of a word of a node's header.
pub const fn header_word(node: NodeId, offset: u64) -> RemotePtr {
    RemotePtr::new(node, offset)
}

/// Returns the first word of a READ; 0 if the READ had no bytes.
pub(crate) fn first_word(buf: &Buf) -> u64 {
    buf.words().first().copied().unwrap_or_default()
}

/// Node 0, which holds the client slots, the catalog and the epoch.
pub const HOME: NodeId = NodeId::new(0);

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    #[test]
    fn geometry_keeps_the_parts_of_a_node_apart() {
        for (len, chunk) in [(1 << 20, MIN_CHUNK), (1 << 30, MAX_CHUNK), (3 << 20, MIN_CHUNK)] {
            let g = Geometry::fit(len, chunk, 64, Geometry::intent_cells_for(len, 64)).expect("fits");
            const { assert!(header::RETURNED + 64 * 8 <= header::END) };
            assert!(g.clients() < g.intents() && g.intents() < g.catalog() && g.catalog() < g.descriptors());
            assert!(g.descriptor(HOME, g.chunks).offset() <= g.data());
            assert!(g.end() <= len, "{} > {len}", g.end());
            assert_eq!(g.chunk_of(g.chunk(HOME, 3).add(5)), Some(3));
            assert_eq!(g.chunk_of(RemotePtr::new(HOME, g.end())), None);
        }
        assert_eq!(Geometry::fit(64 << 10, MIN_CHUNK, 64, 16), None);
    }

    #[test]
    fn chunk_use_decodes_only_at_the_address_it_was_encoded_for() {
        let at = RemotePtr::new(HOME, 0x5000);
        let uses = [
            ChunkUse::Free,
            ChunkUse::Blocks { class: 35, owner: 63 },
            ChunkUse::Span { chunks: u32::MAX, owner: 7 },
            ChunkUse::SpanTail { owner: 1023 },
        ];
        for used in uses {
            let bits = used.to_bits(at);
            assert_eq!(ChunkUse::from_bits(bits, at), used);
            assert_ne!(bits, 0, "zero is a chunk that was never taken");
            assert_eq!(ChunkUse::from_bits(bits, at.add(DESCRIPTOR_LEN)), ChunkUse::Damaged(bits));
            for bit in 0..64 {
                let flipped = bits ^ 1 << bit;
                assert_eq!(ChunkUse::from_bits(flipped, at), ChunkUse::Damaged(flipped), "{used:?}, bit {bit}");
            }
        }
        assert_eq!(ChunkUse::from_bits(0, at), ChunkUse::Unused);
        assert_eq!(ChunkUse::from_bits(u64::MAX, at), ChunkUse::Damaged(u64::MAX));
    }

    #[test]
    fn overwriting_any_64_bytes_of_a_descriptor_is_detected() {
        let at = RemotePtr::new(HOME, 0x5000);
        let mut whole = ChunkDescriptor::new_zeroed();
        whole.lines[0].head = ChunkUse::Free.to_bits(at);
        for i in 0..BITMAP_WORDS {
            let word = ((bitmap_word(at, i).offset() - at.offset()) / 8) as usize;
            let mut words: [u64; 24] = zerocopy::transmute!(whole);
            words[word] = 5 + i as u64;
            let marked: ChunkDescriptor = zerocopy::transmute!(words);
            assert_eq!((marked.used(at), marked.free()[i]), (ChunkUse::Free, 5 + i as u64));
        }
        for first in 0..=24 - 8 {
            let mut words: [u64; 24] = zerocopy::transmute!(whole);
            words[first..first + 8].fill(u64::MAX);
            let damaged: ChunkDescriptor = zerocopy::transmute!(words);
            assert!(matches!(damaged.used(at), ChunkUse::Damaged(_)), "words {first} to {}", first + 7);
        }
    }
}
