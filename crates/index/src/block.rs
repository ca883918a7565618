//! Key-value blocks: where the bytes of keys and values live.
//!
//! Invariants: a block is written whole before anything points to it, and never changes after; its lengths and its
//! checksum tell a torn, foreign or reused block from a sound one; blocks are multiples of 64 bytes and 64-byte aligned.
//!
//! ```text
//! word 0   63      42 41         17 16        0
//!          | hash hi 22 | value len 25 | key len 17 |
//! word 1   63                  32 31                 0
//!          | checksum (32)       | hash lo (32)      |
//! then the key, the value, and zeros up to a multiple of 64 bytes
//! ```
//!
//! The checksum is the low half of xxh3-64 over word 0, the hash, the key and the value.

use crate::faults::{Fault, planted};
use crate::keyhash::KeyHash;
use farindex_fabric::{Buf, Endpoint, FabricError, RemotePtr, Span};
use std::ops::Range;
use xxhash_rust::xxh3::Xxh3;

/// Bytes of a block's header.
pub const HEADER_LEN: usize = 16;
/// Bytes of a unit: blocks are whole units.
pub const UNIT: usize = 64;
/// Longest key.
pub const MAX_KEY: usize = 64 << 10;
/// Longest value.
pub const MAX_VALUE: usize = 16 << 20;

const KEY_BITS: u32 = 17;
const VALUE_BITS: u32 = 25;
const HASH_HI_BITS: u32 = 22;
const _: () = assert!(MAX_KEY < 1 << KEY_BITS && MAX_VALUE < 1 << VALUE_BITS);
const _: () = assert!(KEY_BITS + VALUE_BITS + HASH_HI_BITS == 64);
const _: () = assert!(HASH_HI_BITS + 32 == crate::keyhash::HASH_BITS);

/// A block's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the key.
    pub key_len: usize,
    /// Bytes of the value.
    pub value_len: usize,
    /// Hash of the key.
    pub hash: KeyHash,
    checksum: u32,
}

impl Header {
    /// From the first two words of a block; `None` if no block begins so.
    pub fn decode(words: &[u64]) -> Option<Self> {
        let &[word0, word1, ..] = words else { return None };
        let key_len = (word0 & ((1 << KEY_BITS) - 1)) as usize;
        let value_len = (word0 >> KEY_BITS & ((1 << VALUE_BITS) - 1)) as usize;
        let hash = KeyHash::from_bits(word0 >> (KEY_BITS + VALUE_BITS) << 32 | word1 & 0xFFFF_FFFF);
        let fits = key_len <= MAX_KEY && value_len <= MAX_VALUE;
        fits.then_some(Header { key_len, value_len, hash, checksum: (word1 >> 32) as u32 })
    }
    fn word0(&self) -> u64 {
        self.key_len as u64 | (self.value_len as u64) << KEY_BITS | (self.hash.bits() >> 32) << (KEY_BITS + VALUE_BITS)
    }
    fn word1(&self) -> u64 {
        self.hash.bits() & 0xFFFF_FFFF | u64::from(self.checksum) << 32
    }
    /// Bytes of the whole block.
    pub fn block_len(&self) -> usize {
        block_len(self.key_len, self.value_len)
    }
    fn expected_checksum(&self, data: &[u8]) -> u32 {
        let word0 = self.word0();
        if data.len() <= 128 {
            // One short call: the usual case is worth it.
            return xxhash_rust::xxh3::xxh3_64_with_seed(data, word0 ^ self.hash.bits().rotate_left(17)) as u32;
        }
        let mut hasher = Xxh3::with_seed(word0 ^ self.hash.bits().rotate_left(17));
        hasher.update(data);
        hasher.digest() as u32
    }
}

/// Bytes of a block with a key and a value of these lengths.
pub const fn block_len(key_len: usize, value_len: usize) -> usize {
    (HEADER_LEN + key_len + value_len).next_multiple_of(UNIT)
}

/// A new block, ready to be written.
pub fn encode(endpoint: &Endpoint, hash: KeyHash, key: &[u8], value: &[u8]) -> Buf {
    let mut buf = endpoint.buf(block_len(key.len(), value.len()));
    let bytes = buf.bytes_mut();
    let (data, padding) = bytes[HEADER_LEN..].split_at_mut(key.len() + value.len());
    data[..key.len()].copy_from_slice(key);
    data[key.len()..].copy_from_slice(value);
    padding.fill(0);
    let mut header = Header { key_len: key.len(), value_len: value.len(), hash, checksum: 0 };
    header.checksum = header.expected_checksum(data);
    let words = [header.word0(), header.word1()];
    buf.words_mut()[..2].copy_from_slice(&words);
    buf
}

/// What a buffer that was read from a block's address holds.
pub enum Decoded {
    /// A sound block: its header, and where key and value lie in the buffer.
    Sound(Header, Range<usize>, Range<usize>),
    /// The block is longer than the buffer: read this many bytes.
    Longer(usize),
    /// No sound block: torn, foreign or overwritten.
    Unsound,
}

/// Decodes a buffer that was read from a block's address.
pub fn decode(buf: &Buf) -> Decoded {
    let Some(header) = Header::decode(buf.words()) else { return Decoded::Unsound };
    let key = HEADER_LEN..HEADER_LEN + header.key_len;
    let value = key.end..key.end + header.value_len;
    let Some(data) = buf.bytes().get(key.start..value.end) else { return Decoded::Longer(header.block_len()) };
    if header.expected_checksum(data) != header.checksum && !planted(Fault::NoChecksum) {
        return Decoded::Unsound;
    }
    Decoded::Sound(header, key, value)
}

/// The whole block whose beginning has been read.
pub(crate) async fn read_tail(span: &Span, ptr: RemotePtr, head: &Buf, len: usize) -> Result<Buf, FabricError> {
    let have = head.len();
    let mut batch = span.block_batch();
    let ticket = batch.read(ptr.add(have as u64), len.saturating_sub(have));
    let tail = batch.post().await?.buf(ticket);
    let mut whole = span.endpoint().buf(len);
    whole.words_mut()[..have / 8].copy_from_slice(head.words());
    whole.words_mut()[have / 8..].copy_from_slice(tail.words());
    Ok(whole)
}
