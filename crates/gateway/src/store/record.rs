//! What the hash index holds under a key: type, expiry, and the value.
//!
//! ```text
//! byte 0       1010 etts   tt: type (1 string, 2 hash, 3 sorted set), e: an expiry follows
//! bytes 1..9   milliseconds since 1970, little-endian; only if e
//! then         string: its bytes
//!              hash: see `fields`
//!              sorted set: see `sorted`
//! ```
//!
//! Invariant: equal bytes mean equal type, expiry and value, so a compare-and-swap of a record's bytes decides for a
//! command on all three.

use crate::Fail;

/// The type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    String,
    Hash,
    SortedSet,
}

impl Kind {
    /// Its name in the protocol.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::String => "string",
            Kind::Hash => "hash",
            Kind::SortedSet => "zset",
        }
    }
    fn tag(self) -> u8 {
        MAGIC
            | match self {
                Kind::String => 1,
                Kind::Hash => 2,
                Kind::SortedSet => 3,
            }
    }
}

const MAGIC: u8 = 0b1010_0000;
const EXPIRES: u8 = 0b0000_1000;
/// The longest header.
pub(crate) const HEADER: usize = 9;

/// A value with its type and expiry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    pub(crate) kind: Kind,
    /// When it expires, in milliseconds since 1970.
    pub(crate) expires: Option<u64>,
    pub(crate) payload: &'a [u8],
}

/// The bytes are no record.
fn foreign() -> Fail {
    Fail::text(
        "the value of this key was not written by a gateway; give the gateway an index of its own (--index), or remove the \
         key with `farindex del`",
    )
}

impl<'a> Record<'a> {
    /// Reads a record.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, Fail> {
        let (tag, rest) = bytes.split_first().ok_or_else(foreign)?;
        let kind = match tag & !EXPIRES ^ MAGIC {
            1 => Kind::String,
            2 => Kind::Hash,
            3 => Kind::SortedSet,
            _ => return Err(foreign()),
        };
        if tag & EXPIRES == 0 {
            return Ok(Record { kind, expires: None, payload: rest });
        }
        let (expires, payload) = rest.split_first_chunk().ok_or_else(foreign)?;
        Ok(Record { kind, expires: Some(u64::from_le_bytes(*expires)), payload })
    }

    /// Is it as if it were not there?
    pub(crate) fn is_expired(&self) -> bool {
        self.expires.is_some_and(|expires| expires <= now_ms())
    }
    /// The payload, if it is of this type.
    pub(crate) fn of(&self, kind: Kind) -> Result<&'a [u8], Fail> {
        if self.kind == kind { Ok(self.payload) } else { Err(Fail::WrongType) }
    }
    /// Its bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + self.payload.len());
        begin(&mut bytes, self.kind, self.expires);
        bytes.extend_from_slice(self.payload);
        bytes
    }
}

/// Begins a record in an empty buffer; the payload follows.
pub(crate) fn begin(bytes: &mut Vec<u8>, kind: Kind, expires: Option<u64>) {
    bytes.push(kind.tag() | if expires.is_some() { EXPIRES } else { 0 });
    if let Some(expires) = expires {
        bytes.extend_from_slice(&expires.to_le_bytes());
    }
}

/// The string that a record holds: the short way of a get. `None` is an expired one.
pub(crate) fn string(bytes: &[u8]) -> Result<Option<&[u8]>, Fail> {
    if let Some((tag, payload)) = bytes.split_first()
        && *tag == MAGIC | 1
    {
        return Ok(Some(payload));
    }
    let record = Record::parse(bytes)?;
    if record.is_expired() { Ok(None) } else { record.of(Kind::String).map(Some) }
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_as_it_was_written() {
        for kind in [Kind::String, Kind::Hash, Kind::SortedSet] {
            for expires in [None, Some(0), Some(u64::MAX)] {
                for payload in [&b""[..], b"x", b"\xa1\xa1"] {
                    let record = Record { kind, expires, payload };
                    assert_eq!(Record::parse(&record.encode()), Ok(record));
                }
            }
        }
    }

    #[test]
    fn bytes_of_others_are_refused() {
        for bytes in [&b""[..], b"value", &[0xa0], &[0xa9, 1, 2], &[0xb1], &[0xa4]] {
            assert_eq!(Record::parse(bytes), Err(foreign()), "{bytes:?}");
        }
    }

    #[test]
    fn the_short_way_of_a_get_agrees_with_the_long_one() {
        let record = |kind, expires| Record { kind, expires, payload: b"v" }.encode();
        assert_eq!(string(&record(Kind::String, None)), Ok(Some(&b"v"[..])));
        assert_eq!(string(&record(Kind::String, Some(u64::MAX))), Ok(Some(&b"v"[..])));
        assert_eq!(string(&record(Kind::String, Some(1))), Ok(None));
        assert_eq!(string(&record(Kind::Hash, Some(1))), Ok(None));
        assert_eq!(string(&record(Kind::Hash, None)), Err(Fail::WrongType));
    }
}
