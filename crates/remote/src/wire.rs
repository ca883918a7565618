//! Bounded reading and writing of little-endian fields.
//!
//! Invariants: no length that a peer sends is believed before it was compared with what is there; reading never panics
//! and never allocates more than the message holds.

/// Why bytes are not a valid message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// A field reaches beyond the end of its message.
    #[error("a message ends in the middle of a field")]
    Truncated,
    /// Bytes are left over behind the last field.
    #[error("a message has bytes left over")]
    Trailing,
    /// Longer than any message may be.
    #[error("a message of {0} bytes is longer than any may be")]
    TooLong(u64),
    /// A kind of message or verb that does not exist.
    #[error("there is no message or verb of kind {0}")]
    Kind(u8),
    /// A field has an invalid value.
    #[error("a field has an invalid value: {0}")]
    Field(&'static str),
    /// The other side does not speak this protocol.
    #[error("the other side does not speak farindex's control protocol")]
    Magic,
    /// Another version of the protocol.
    #[error(
        "the other side speaks version {theirs} of the control protocol, this one version {ours}: use equal versions of farindex"
    )]
    Version {
        /// What it sent.
        theirs: u16,
        /// What this side speaks.
        ours: u16,
    },
}

/// Reads fields off the front of a message.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Over these bytes.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }
    /// Bytes that are left.
    #[inline]
    pub fn left(&self) -> usize {
        self.rest.len()
    }
    /// The next `len` bytes.
    #[inline]
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (head, tail) = self.rest.split_at_checked(len).ok_or(Malformed::Truncated)?;
        self.rest = tail;
        Ok(head)
    }
    /// The next `N` bytes.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, tail) = self.rest.split_first_chunk().ok_or(Malformed::Truncated)?;
        self.rest = tail;
        Ok(*head)
    }
    /// One byte.
    #[inline]
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_le_bytes)
    }
    /// Two bytes.
    #[inline]
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }
    /// Four bytes.
    #[inline]
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }
    /// Eight bytes.
    #[inline]
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }
    /// A length of four bytes, and as many bytes behind it.
    #[inline]
    pub fn counted(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.u32()?;
        self.bytes(usize::try_from(len).map_err(|_| Malformed::Truncated)?)
    }
    /// Checks that nothing is left.
    #[inline]
    pub fn end(self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed::Trailing) }
    }
}

/// Appends fields to a message.
pub trait Writer {
    /// One byte.
    fn put_u8(&mut self, value: u8);
    /// Two bytes.
    fn put_u16(&mut self, value: u16);
    /// Four bytes.
    fn put_u32(&mut self, value: u32);
    /// Eight bytes.
    fn put_u64(&mut self, value: u64);
    /// A length of four bytes, and the bytes behind it.
    fn put_counted(&mut self, bytes: &[u8]);
}

impl Writer for Vec<u8> {
    #[inline]
    fn put_u8(&mut self, value: u8) {
        self.push(value);
    }
    #[inline]
    fn put_u16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_le_bytes());
    }
    #[inline]
    fn put_u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_le_bytes());
    }
    #[inline]
    fn put_u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }
    #[inline]
    fn put_counted(&mut self, bytes: &[u8]) {
        self.put_u32(bytes.len() as u32);
        self.extend_from_slice(bytes);
    }
}
