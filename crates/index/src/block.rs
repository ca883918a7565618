//! Key-value blocks, which hold the bytes of keys and values, and how a lookup reads and verifies them.
//!
//! Invariants: a block is written whole before anything points to it, and never changes afterwards. Its lengths and its
//! checksum distinguish a sound block from a torn, foreign or reused one. A block is a multiple of 64 bytes long and
//! 64-byte aligned.
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
use crate::{IndexError, Value};
use farindex_fabric::{Buf, Done, Endpoint, FabricError, RemotePtr, Span, Ticket, cold};
use smallvec::SmallVec;
use std::ops::Range;
use xxhash_rust::xxh3::Xxh3;
use zerocopy::IntoBytes;

/// Bytes of a block's header.
pub const HEADER_LEN: usize = 16;
/// Bytes of a unit: a block's length is a multiple of it.
pub const UNIT: usize = 64;
/// Longest key in bytes.
pub const MAX_KEY: usize = 64 << 10;
/// Longest value in bytes.
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
    /// Decodes the first two words of a block; `None` if no block begins like this.
    #[inline]
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
    /// Returns the bytes of the whole block.
    pub fn block_len(&self) -> usize {
        block_len(self.key_len, self.value_len)
    }
    #[inline]
    fn expected_checksum(&self, data: &[u8]) -> u32 {
        let word0 = self.word0();
        if data.len() <= 128 {
            // The usual case: one call is faster than the streaming interface.
            return xxhash_rust::xxh3::xxh3_64_with_seed(data, word0 ^ self.hash.bits().rotate_left(17)) as u32;
        }
        let mut hasher = Xxh3::with_seed(word0 ^ self.hash.bits().rotate_left(17));
        hasher.update(data);
        hasher.digest() as u32
    }
}

/// Returns the bytes of a block with a key and a value of these lengths.
pub const fn block_len(key_len: usize, value_len: usize) -> usize {
    (HEADER_LEN + key_len + value_len).next_multiple_of(UNIT)
}

/// Encodes a new block, ready to be written.
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

/// Content of a buffer that was read from a block's address.
pub(crate) enum Decoded {
    /// A sound block: its header, and the positions of key and value in the buffer.
    Sound(Header, Range<usize>, Range<usize>),
    /// The block is longer than the buffer: it has this many bytes.
    Longer(usize),
    /// No sound block: torn, foreign or overwritten.
    Unsound,
}

/// Decodes a buffer that was read from a block's address.
#[inline]
pub(crate) fn decode(buf: &Buf) -> Decoded {
    decode_words(buf.words())
}

/// Decodes words that were read from a block's address.
#[inline]
pub(crate) fn decode_words(words: &[u64]) -> Decoded {
    let Some(header) = Header::decode(words) else { return Decoded::Unsound };
    let key = HEADER_LEN..HEADER_LEN + header.key_len;
    let value = key.end..key.end + header.value_len;
    let Some(data) = words.as_bytes().get(key.start..value.end) else { return Decoded::Longer(header.block_len()) };
    if header.expected_checksum(data) != header.checksum && !planted(Fault::NoChecksum) {
        return Decoded::Unsound;
    }
    Decoded::Sound(header, key, value)
}

/// READs the rest of a block of `len` bytes, and returns the whole block. `head` is what has been read.
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

/// A key-value block that was read whole, and whose checksum is right.
pub(crate) struct Block {
    pub(crate) header: Header,
    buf: Buf,
}

impl Block {
    /// Decodes a whole block; `None` if it is longer than the buffer, or not sound.
    pub(crate) fn decode(buf: Buf) -> Option<Self> {
        match decode(&buf) {
            Decoded::Sound(header, ..) => Some(Block { header, buf }),
            _ => None,
        }
    }
    #[inline]
    pub(crate) fn key(&self) -> &[u8] {
        self.buf.bytes().get(HEADER_LEN..HEADER_LEN + self.header.key_len).unwrap_or_default()
    }
    /// Returns the bytes of the whole block, with its padding.
    pub(crate) fn len(&self) -> u64 {
        self.header.block_len() as u64
    }
    pub(crate) fn value(&self) -> &[u8] {
        let start = HEADER_LEN + self.header.key_len;
        self.buf.bytes().get(start..start + self.header.value_len).unwrap_or_default()
    }
    #[inline]
    pub(crate) fn into_value(self) -> Value {
        let start = HEADER_LEN + self.header.key_len;
        Value::fetched(self.buf, start..start + self.header.value_len)
    }
}

/// Result of comparing what was READ of a block with a key.
pub(crate) enum Compared {
    /// The block is the key's.
    Own(Block),
    /// The block is another key's.
    Other,
    /// It takes another verb to tell: the block is longer than what was READ, or not sound.
    Open(Buf),
}

/// Verifies what was READ of a block, and compares its key.
#[inline]
pub(crate) fn compare(buf: Buf, hash: KeyHash, key: &[u8]) -> Compared {
    let Decoded::Sound(header, ..) = decode(&buf) else { return Compared::Open(buf) };
    let block = Block { header, buf };
    // The hash first: most often it tells keys apart without a look at their bytes.
    if header.hash == hash && (block.key() == key || planted(Fault::HashIsKey)) {
        Compared::Own(block)
    } else {
        Compared::Other
    }
}

/// Result of comparing a block with the key that a lookup wants.
pub(crate) enum KeyMatch {
    /// The block is the key's.
    Own(Block),
    /// The block is another key's.
    Other,
    /// No sound block: it is damaged, unless its slot has changed ([`check_slot_changed`]).
    Unsound,
}

/// Verifies a block and compares its key. `buf` is what was READ at `ptr`. A slot's length field cannot express the
/// length of a long block, so the rest of it takes a second READ; this is done only if the block has the key's hash.
pub(crate) async fn match_key(
    span: &Span,
    ptr: RemotePtr,
    buf: Buf,
    hash: KeyHash,
    key: &[u8],
) -> Result<KeyMatch, FabricError> {
    let head = match compare(buf, hash, key) {
        Compared::Own(block) => return Ok(KeyMatch::Own(block)),
        Compared::Other => return Ok(KeyMatch::Other),
        Compared::Open(head) => head,
    };
    let Decoded::Longer(len) = decode(&head) else { return Ok(KeyMatch::Unsound) };
    if Header::decode(head.words()).is_none_or(|header| header.hash != hash) {
        return Ok(KeyMatch::Other);
    }
    // Rare, and its future is large.
    let whole = cold(read_tail(span, ptr, &head, len)).await?;
    Ok(match compare(whole, hash, key) {
        Compared::Own(block) => KeyMatch::Own(block),
        Compared::Other => KeyMatch::Other,
        Compared::Open(_) => KeyMatch::Unsound,
    })
}

/// The blocks of slots that may be a key's: one batch READs them, and they are compared one by one.
pub(crate) struct CandidateBlocks<'a, T> {
    span: &'a Span,
    done: Done,
    asked: smallvec::IntoIter<[(T, RemotePtr, Ticket); 2]>,
}

impl<'a, T> CandidateBlocks<'a, T> {
    /// READs blocks: what names the candidate, and the address and the bytes of its block.
    pub(crate) async fn read(
        span: &'a Span,
        candidates: impl IntoIterator<Item = (T, RemotePtr, usize)>,
    ) -> Result<Self, FabricError> {
        let mut batch = span.block_batch();
        let asked: SmallVec<_> =
            candidates.into_iter().map(|(candidate, ptr, len)| (candidate, ptr, batch.read(ptr, len))).collect();
        let done = batch.post().await?;
        Ok(CandidateBlocks { span, done, asked: asked.into_iter() })
    }

    /// Compares the next block with the key; `None` if there are no more.
    pub(crate) async fn next(
        &mut self,
        hash: KeyHash,
        key: &[u8],
    ) -> Result<Option<(T, RemotePtr, KeyMatch)>, FabricError> {
        let Some((candidate, ptr, ticket)) = self.asked.next() else { return Ok(None) };
        let found = match_key(self.span, ptr, self.done.buf(ticket), hash, key).await?;
        Ok(Some((candidate, ptr, found)))
    }
}

/// Decides about an unsound block at `ptr` by another READ of its slot. Under the pin the block cannot have been
/// reused. So it is damaged, which is an error, if the slot's word `still` points to it.
pub(crate) async fn check_slot_changed(
    span: &Span,
    slot: RemotePtr,
    ptr: RemotePtr,
    still: impl FnOnce(u64) -> bool,
) -> Result<(), IndexError> {
    let now = span.read(slot, 8).await?.words().first().copied().unwrap_or_default();
    if still(now) { Err(bad_checksum(ptr)) } else { Ok(()) }
}

/// The error for a damaged block.
pub(crate) fn bad_checksum(ptr: RemotePtr) -> IndexError {
    IndexError::corrupt(ptr, "the key-value block has a wrong checksum")
}
