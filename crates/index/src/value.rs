//! A value as a lookup returns it: in the buffer that the READ filled.

use farindex_fabric::{Buf, SharedBuf};
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// The bytes of a value; dereferences to a byte slice. A value that is kept keeps its buffer from being reused. A clone
/// is a copy of just the bytes, which further clones share; a clone of a value from [`shared`](Value::shared) copies
/// nothing and shares the buffer.
pub struct Value {
    storage: Storage,
    range: Range<usize>,
}

enum Storage {
    Fetched(Buf),
    Shared(SharedBuf),
    Owned(Arc<[u8]>),
}

impl Value {
    /// Returns the value in the bytes `range` of a buffer. A range beyond the buffer gives the empty value.
    pub fn fetched(buf: Buf, range: Range<usize>) -> Self {
        Value { storage: Storage::Fetched(buf), range }
    }
    /// A view of a buffer that several values share, as the READ of a leaf yields them.
    pub fn shared(view: SharedBuf) -> Self {
        Value { range: 0..view.len(), storage: Storage::Shared(view) }
    }
}

impl Clone for Value {
    fn clone(&self) -> Self {
        match &self.storage {
            Storage::Fetched(_) => Value::from(&**self),
            Storage::Shared(view) => Value::shared(view.clone()),
            Storage::Owned(bytes) => Value { storage: Storage::Owned(Arc::clone(bytes)), range: self.range.clone() },
        }
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Self {
        Value { storage: Storage::Owned(bytes.into()), range: 0..bytes.len() }
    }
}

impl From<Arc<[u8]>> for Value {
    fn from(bytes: Arc<[u8]>) -> Self {
        Value { range: 0..bytes.len(), storage: Storage::Owned(bytes) }
    }
}

impl Deref for Value {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        let all = match &self.storage {
            Storage::Fetched(buf) => buf.bytes(),
            Storage::Shared(view) => view,
            Storage::Owned(bytes) => bytes,
        };
        all.get(self.range.clone()).unwrap_or_default()
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Value {}

impl<T: AsRef<[u8]> + ?Sized> PartialEq<&T> for Value {
    fn eq(&self, other: &&T) -> bool {
        **self == *other.as_ref()
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_equal_to_what_has_its_bytes() {
        let value = Value::from(&b"value"[..]);
        assert!(value == "value" && value == b"value" && value == &b"value"[..] && value == value.clone());
        assert!(value != "valuf" && value != b"valu" && value != b"value2");
    }
}
