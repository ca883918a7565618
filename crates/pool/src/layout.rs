//! Where everything lies on a memory node. See docs/layouts/pool.md for the byte diagram.
//!
//! Invariants: every structure is whole 8-byte words, little-endian; everything that is ever CASed or FAAed is one
//! aligned word; the layout of a node follows from four numbers of its superblock (region length, chunk size, client
//! slots, chunks), so a client computes every address by itself.

use farindex_fabric::{NodeId, RemotePtr};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// "FARINDEX" in ASCII.
pub const MAGIC: u64 = u64::from_le_bytes(*b"FARINDEX");
/// Version of everything in this module.
pub const FORMAT_VERSION: u64 = 2;

/// The constant part of a node's first bytes. Written once, checked by everyone.
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
    /// Milliseconds without a heartbeat after which a client counts as dead.
    pub lease_ms: u64,
    /// Non-zero where bytes that were never allocated are known to be zero.
    pub zeroed: u64,
    /// What [`seed_of`](Self::seed_of) draws the seeds of the indexes from. Random, or chosen by the pool's creator.
    pub hash_key: u64,
    /// Zero.
    pub reserved: [u64; 2],
    /// xxh3-64 of all bytes before it.
    pub checksum: u64,
}

const SUPERBLOCK_LEN: usize = 128;
const _: () = assert!(size_of::<Superblock>() == SUPERBLOCK_LEN);
const _: () = assert!(std::mem::offset_of!(Superblock, checksum) == SUPERBLOCK_LEN - 8);

impl Superblock {
    /// What [`Superblock::checksum`] must be.
    pub fn expected_checksum(&self) -> u64 {
        xxhash_rust::xxh3::xxh3_64(&self.as_bytes()[..SUPERBLOCK_LEN - 8])
    }

    /// The seed of a new index with this uid. The hash key [`UNSEEDED`] gives every index the seed 0.
    pub fn seed_of(&self, uid: u64) -> u64 {
        match self.hash_key {
            UNSEEDED => 0,
            key => xxhash_rust::xxh3::xxh3_64_with_seed(&uid.to_le_bytes(), key),
        }
    }
}

/// The hash key of a pool in which every index has the seed 0, so that keys lie at the same places in every run.
pub const UNSEEDED: u64 = 0;

/// One client's slot, on node 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ClientSlot {
    /// `generation << 8 | 0` (free), [`ACTIVE`] or [`REGISTERING`]. Taken and given back by CAS.
    pub state: u64,
    /// Counts up while the client lives.
    pub heartbeat: u64,
    /// Every operation of this client that began before the pool's epoch reached this number has ended. Zero while the
    /// client has not said anything.
    pub quiesced: u64,
    /// What the fabric needs to shut this client out: [`farindex_fabric::Identity`].
    pub identity: [u64; 3],
    /// When it came, in seconds of the Unix epoch. For people.
    pub since: u64,
    /// Zero.
    pub reserved: u64,
}

/// Low byte of a slot's state: a client holds it.
pub const ACTIVE: u64 = 1;
/// Low byte of a slot's state: a client has taken it, and writes down who it is.
pub const REGISTERING: u64 = 2;

/// Bytes of a [`ClientSlot`].
pub const CLIENT_SLOT_LEN: u64 = 64;
const _: () = assert!(size_of::<ClientSlot>() == CLIENT_SLOT_LEN as usize);

impl ClientSlot {
    /// Is somebody registered here?
    pub fn active(&self) -> bool {
        self.state & 0xFF == ACTIVE
    }
    /// Has somebody taken it who has not begun yet?
    pub fn registering(&self) -> bool {
        self.state & 0xFF == REGISTERING
    }
    /// May the slot be taken? What says neither this nor that it is active belongs to nobody.
    pub fn vacant(&self) -> bool {
        self.state & 0xFF == 0
    }
    /// How often the slot has been taken.
    pub fn generation(&self) -> u64 {
        self.state >> 8
    }
}

/// Intents that one client may hold at once on one node.
pub const INTENTS: u64 = 16;
/// Bytes of an intent.
pub const INTENT_LEN: u64 = 64;

/// One named index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CatalogEntry {
    /// [`ENTRY_EMPTY`], [`ENTRY_READY`] or [`ENTRY_DROPPING`]. Written last.
    pub state: u64,
    /// xxh3-64 of all bytes behind it.
    pub checksum: u64,
    /// Unlike that of any other index of this pool, ever.
    pub uid: u64,
    /// Which kind of index.
    pub kind: u32,
    /// Version of that kind's format.
    pub version: u32,
    /// Where the kind keeps its roots.
    pub root: u64,
    /// Length of the name in bytes.
    pub name_len: u64,
    /// The name, zero-padded.
    pub name: [u8; MAX_NAME],
    /// The kind's own settings.
    pub config: [u8; CONFIG_LEN],
    /// Seed of the key hash, which decides where keys lie. It never changes.
    pub seed: u64,
    /// Zero.
    pub reserved: [u8; 64],
}

/// The entry names no index.
pub const ENTRY_EMPTY: u64 = 0;
/// The entry names an index.
pub const ENTRY_READY: u64 = 1;
/// The index is being dropped: it cannot be opened any more, and its memory goes back as soon as nobody uses it.
pub const ENTRY_DROPPING: u64 = 2;
/// Longest name of an index, in bytes.
pub const MAX_NAME: usize = 72;
/// Bytes that a kind of index may keep as its settings.
pub const CONFIG_LEN: usize = 64;
/// Indexes of one pool at most.
pub const CATALOG_ENTRIES: u64 = 64;
/// Bytes of a [`CatalogEntry`].
pub const CATALOG_ENTRY_LEN: u64 = 256;
const _: () = assert!(size_of::<CatalogEntry>() == CATALOG_ENTRY_LEN as usize);

impl CatalogEntry {
    /// What [`CatalogEntry::checksum`] must be.
    pub fn expected_checksum(&self) -> u64 {
        xxhash_rust::xxh3::xxh3_64(&self.as_bytes()[16..])
    }
}

/// What a chunk is used for, and which of its blocks are free.
///
/// No 64 bytes of it hold bitmap words alone: each line begins with a word that can be checked. So 64 bytes that were
/// overwritten are noticed, or they are zeros in bitmap words, which only hide free blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ChunkDescriptor {
    /// [`ChunkUse`] as bits, in word 0 of line 0. Taken by CAS.
    pub lines: [DescriptorLine; 3],
}

/// 64 bytes of a [`ChunkDescriptor`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DescriptorLine {
    /// Of the first line: the chunk's state. Of the others: zero.
    pub head: u64,
    /// Zero.
    pub guard: u64,
    /// A set bit is a free block: FAA gives blocks back, CAS to zero takes those of a word.
    pub free: [u64; LINE_WORDS],
}

/// Bitmap words of one line of a descriptor.
const LINE_WORDS: usize = 6;
/// Words of a chunk's bitmap that stand for blocks.
pub const BITMAP_WORDS: usize = 16;
/// Bytes of a [`ChunkDescriptor`].
pub const DESCRIPTOR_LEN: u64 = 192;
const _: () = assert!(size_of::<ChunkDescriptor>() == DESCRIPTOR_LEN as usize);
const _: () = assert!(BITMAP_WORDS <= 3 * LINE_WORDS);

/// Free blocks of a chunk: a bit for each.
pub type Bitmap = [u64; BITMAP_WORDS];

/// Address of bitmap word `i` of the descriptor at `descriptor`.
pub const fn bitmap_word(descriptor: RemotePtr, i: usize) -> RemotePtr {
    let (line, word) = (i / LINE_WORDS, i % LINE_WORDS);
    descriptor.add((line * size_of::<DescriptorLine>() + (2 + word) * 8) as u64)
}

impl ChunkDescriptor {
    /// What the chunk is used for, as its descriptor at `at` says; [`ChunkUse::Damaged`] if it cannot be believed.
    pub fn used(&self, at: RemotePtr) -> ChunkUse {
        let [first, second, third] = &self.lines;
        let bitmap = self.lines.iter().flat_map(|line| line.free);
        let zeros = [first.guard, second.head, second.guard, third.head, third.guard];
        match zeros.into_iter().chain(bitmap.skip(BITMAP_WORDS)).all(|word| word == 0) {
            true => ChunkUse::from_bits(first.head, at),
            false => ChunkUse::Damaged(first.head),
        }
    }
    /// Its bitmap.
    pub fn free(&self) -> Bitmap {
        let mut words = self.lines.iter().flat_map(|line| line.free);
        std::array::from_fn(|_| words.next().unwrap_or_default())
    }
}

/// Bytes of the largest chunk: its 64-byte blocks just fit the bitmap.
pub const MAX_CHUNK: u64 = BITMAP_WORDS as u64 * 64 * 64;
/// Bytes of the smallest chunk.
pub const MIN_CHUNK: u64 = 16 << 10;

/// What a chunk is used for.
///
/// As bits: 0-2 use, 3-15 client slot that took the chunk, 16-47 size class or chunks of the span, 48-63 check. The
/// check is a hash of the other bits and of the descriptor's address, so a word that some client wrote is told from
/// damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkUse {
    /// Nothing, ever: only at the cursor and above it. All bits are zero.
    Unused,
    /// Nothing any more.
    Free,
    /// Blocks of one size class.
    Blocks {
        /// The class.
        class: usize,
        /// The client slot that took the chunk.
        owner: u16,
    },
    /// First chunk of a span.
    Span {
        /// Chunks of the span, this one included.
        chunks: u32,
        /// The client slot that took it.
        owner: u16,
    },
    /// Further chunk of a span.
    SpanTail {
        /// The client slot that took it.
        owner: u16,
    },
    /// Bits that no client writes there.
    Damaged(u64),
}

/// Bits of a chunk's state below its check.
const CHECKED_BITS: u32 = 48;

impl ChunkUse {
    /// From the state word of the descriptor at `at`.
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
    /// As the state word of the descriptor at `at`.
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

/// Words of the node header that change.
pub mod header {
    /// Chunks below this number have been taken at least once.
    pub const CURSOR: u64 = 0x100;
    /// About how many chunks below the cursor are free.
    pub const FREE_CHUNKS: u64 = 0x108;
    /// The pool's epoch (node 0).
    pub const EPOCH: u64 = 0x110;
    /// Who holds the catalog: client slot + 1, or zero (node 0).
    pub const CATALOG_LOCK: u64 = 0x118;
    /// The last `uid` given to an index (node 0).
    pub const LAST_UID: u64 = 0x120;
    /// How many clients have gone without giving back their memory (node 0): [`Leaks`](crate::leaks::Leaks).
    pub const LEAKS: u64 = 0x128;
    /// What the fabric was measured to do: three figures and a checksum (node 0).
    pub const CALIBRATION: u64 = 0x140;
    /// About how many blocks of each size class lie free in chunk bitmaps: one word for each class.
    pub const RETURNED: u64 = 0x200;
    /// First byte behind the header.
    pub const END: u64 = 0x1000;
}

/// Computes every address of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of one chunk.
    pub chunk_size: u64,
    /// Chunks of the node.
    pub chunks: u64,
    /// Client slots.
    pub client_slots: u64,
}

impl Geometry {
    /// The most chunks that fit a region; `None` if there is no room for even one.
    pub fn fit(region_len: u64, chunk_size: u64, client_slots: u64) -> Option<Self> {
        let empty = Geometry { chunk_size, chunks: 0, client_slots };
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
        self.intents() + self.client_slots * INTENTS * INTENT_LEN
    }
    const fn descriptors(&self) -> u64 {
        self.catalog() + CATALOG_ENTRIES * CATALOG_ENTRY_LEN
    }
    /// Offset of the first chunk.
    pub const fn data(&self) -> u64 {
        (self.descriptors() + self.chunks * DESCRIPTOR_LEN).next_multiple_of(4096)
    }
    /// Offset behind the last chunk.
    pub const fn end(&self) -> u64 {
        self.data() + self.chunks * self.chunk_size
    }
    /// A client's slot (node 0).
    pub const fn client(&self, slot: u64) -> RemotePtr {
        RemotePtr::new(NodeId::new(0), self.clients() + slot * CLIENT_SLOT_LEN)
    }
    /// One of a client's intents on a node.
    pub const fn intent(&self, node: NodeId, slot: u64, cell: u64) -> RemotePtr {
        RemotePtr::new(node, self.intents() + (slot * INTENTS + cell) * INTENT_LEN)
    }
    /// An entry of the catalog (node 0).
    pub const fn entry(&self, index: u64) -> RemotePtr {
        RemotePtr::new(NodeId::new(0), self.catalog() + index * CATALOG_ENTRY_LEN)
    }
    /// A chunk's descriptor.
    pub const fn descriptor(&self, node: NodeId, chunk: u64) -> RemotePtr {
        RemotePtr::new(node, self.descriptors() + chunk * DESCRIPTOR_LEN)
    }
    /// A chunk's first byte.
    pub const fn chunk(&self, node: NodeId, chunk: u64) -> RemotePtr {
        RemotePtr::new(node, self.data() + chunk * self.chunk_size)
    }
    /// Chunks of a span for `bytes` bytes.
    pub const fn chunks_for(&self, bytes: u64) -> u64 {
        let chunks = bytes.div_ceil(self.chunk_size);
        if chunks == 0 { 1 } else { chunks }
    }
    /// The first chunk of a span of `count` chunks at `start`, if one may lie there.
    pub fn span_start(&self, start: RemotePtr, count: u64) -> Option<u64> {
        let first = self.chunk_of(start)?;
        (self.chunk(start.node(), first) == start && count <= self.chunks - first).then_some(first)
    }
    /// The chunk that an address lies in.
    pub fn chunk_of(&self, ptr: RemotePtr) -> Option<u64> {
        let chunk = ptr.offset().checked_sub(self.data())? / self.chunk_size;
        (chunk < self.chunks).then_some(chunk)
    }
}

/// Word of a node's header.
pub const fn header_word(node: NodeId, offset: u64) -> RemotePtr {
    RemotePtr::new(node, offset)
}

/// Node 0, where clients, catalog and epoch live.
pub const HOME: NodeId = NodeId::new(0);

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    #[test]
    fn the_parts_of_a_node_do_not_overlap() {
        for (len, chunk) in [(1 << 20, MIN_CHUNK), (1 << 30, MAX_CHUNK), (3 << 20, MIN_CHUNK)] {
            let g = Geometry::fit(len, chunk, 64).expect("fits");
            const { assert!(header::RETURNED + 64 * 8 <= header::END) };
            assert!(g.clients() < g.intents() && g.intents() < g.catalog() && g.catalog() < g.descriptors());
            assert!(g.descriptor(HOME, g.chunks).offset() <= g.data());
            assert!(g.end() <= len, "{} > {len}", g.end());
            assert_eq!(g.chunk_of(g.chunk(HOME, 3).add(5)), Some(3));
            assert_eq!(g.chunk_of(RemotePtr::new(HOME, g.end())), None);
        }
        assert_eq!(Geometry::fit(64 << 10, MIN_CHUNK, 64), None);
    }

    #[test]
    fn chunk_uses_survive_their_bits_at_their_place_alone() {
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
            assert_ne!(bits, 0, "zero is a chunk that nobody ever took");
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
    fn words_that_must_be_zero_lie_within_every_64_bytes_of_a_descriptor() {
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
