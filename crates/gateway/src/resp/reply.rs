//! Replies: what a client gets, in the version of the protocol that it has chosen.
//!
//! Invariant: what is in the buffer is a series of whole replies between two commands; a command that fails truncates the
//! buffer to where its reply began.

use crate::number;

/// The version of the protocol that a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    /// Version 2, which every client begins with.
    #[default]
    Resp2,
    /// Version 3, chosen by `HELLO 3`.
    Resp3,
}

/// Buffers above this are given back when they are empty.
const LARGE: usize = 1 << 20;

/// The replies to one client that have not been sent.
#[derive(Debug, Default)]
pub struct Reply {
    out: Vec<u8>,
    /// Bytes of it that have been sent.
    sent: usize,
    /// How replies are written.
    pub protocol: Protocol,
}

impl Reply {
    /// The bytes that are to be sent.
    pub fn bytes(&self) -> &[u8] {
        self.out.get(self.sent..).unwrap_or_default()
    }
    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.out.len() - self.sent
    }
    /// Is there nothing to send?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Drops what was written behind `len`.
    pub fn truncate(&mut self, len: usize) {
        self.out.truncate(self.sent + len);
    }
    /// Drops the first bytes, which have been sent.
    pub fn sent(&mut self, len: usize) {
        self.sent = (self.sent + len).min(self.out.len());
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
            if self.out.capacity() > LARGE {
                self.out = Vec::new();
            }
        } else if self.sent > self.out.len() / 2 {
            // Moving them costs no more than what was sent.
            self.out.drain(..self.sent);
            self.sent = 0;
        }
    }
    /// Bytes of memory that it holds.
    pub fn memory(&self) -> usize {
        self.out.capacity()
    }
    /// Takes the buffer out, if nothing is in it.
    pub fn take_buffer(&mut self) -> Option<Vec<u8>> {
        (self.is_empty() && self.out.capacity() > 0).then(|| std::mem::take(&mut self.out))
    }
    /// Writes into this buffer from here on, if there is none.
    pub fn give_buffer(&mut self, buffer: Vec<u8>) {
        if self.out.capacity() == 0 {
            self.out = buffer;
            self.out.clear();
        }
    }

    fn header(&mut self, kind: u8, value: i64) {
        self.out.push(kind);
        self.out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }
    /// A status such as `OK`.
    pub fn simple(&mut self, text: &str) {
        self.out.push(b'+');
        self.out.extend_from_slice(text.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }
    /// `+OK`.
    pub fn ok(&mut self) {
        self.out.extend_from_slice(b"+OK\r\n");
    }
    /// An error; what would end the line becomes a space.
    pub fn error(&mut self, text: &str) {
        self.out.push(b'-');
        self.out.extend(text.bytes().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte }));
        self.out.extend_from_slice(b"\r\n");
    }
    /// An integer.
    pub fn integer(&mut self, value: i64) {
        self.header(b':', value);
    }
    /// A count.
    pub fn count(&mut self, value: usize) {
        self.integer(i64::try_from(value).unwrap_or(i64::MAX));
    }
    /// A byte string.
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.header(b'$', bytes.len() as i64);
        self.out.reserve(bytes.len() + 2);
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }
    /// A byte string, or nothing.
    pub fn bulk_or_null(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.bulk(bytes),
            None => self.null(),
        }
    }
    /// Nothing.
    pub fn null(&mut self) {
        self.out.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }
    /// The beginning of an array.
    pub fn array(&mut self, len: usize) {
        self.header(b'*', len as i64);
    }
    /// The beginning of a map; version 2 has an array of twice the length in its place.
    pub fn map(&mut self, pairs: usize) {
        match self.protocol {
            Protocol::Resp2 => self.header(b'*', 2 * pairs as i64),
            Protocol::Resp3 => self.header(b'%', pairs as i64),
        }
    }
    /// The beginning of a set; version 2 has an array in its place.
    pub fn set(&mut self, len: usize) {
        self.header(if self.protocol == Protocol::Resp2 { b'*' } else { b'~' }, len as i64);
    }
    /// A score; version 2 has a byte string in its place.
    pub fn double(&mut self, value: f64) {
        let text = number::format_score(value);
        match self.protocol {
            Protocol::Resp2 => self.bulk(text.as_bytes()),
            Protocol::Resp3 => {
                self.out.push(b',');
                self.out.extend_from_slice(text.as_bytes());
                self.out.extend_from_slice(b"\r\n");
            }
        }
    }
    /// Text for people; version 2 has a byte string in its place.
    pub fn text(&mut self, text: &str) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(text.as_bytes()),
            Protocol::Resp3 => {
                self.header(b'=', text.len() as i64 + 4);
                self.out.extend_from_slice(b"txt:");
                self.out.extend_from_slice(text.as_bytes());
                self.out.extend_from_slice(b"\r\n");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(protocol: Protocol, write: impl FnOnce(&mut Reply)) -> String {
        let mut reply = Reply { protocol, ..Reply::default() };
        write(&mut reply);
        reply.bytes().escape_ascii().to_string()
    }

    #[test]
    fn each_version_has_its_own_forms() {
        for (write, two, three) in [
            ((|reply| reply.null()) as fn(&mut Reply), "$-1\\r\\n", "_\\r\\n"),
            (|reply| reply.map(2), "*4\\r\\n", "%2\\r\\n"),
            (|reply| reply.double(1.5), "$3\\r\\n1.5\\r\\n", ",1.5\\r\\n"),
            (|reply| reply.text("a"), "$1\\r\\na\\r\\n", "=5\\r\\ntxt:a\\r\\n"),
            (|reply| reply.bulk(b"\0"), "$1\\r\\n\\x00\\r\\n", "$1\\r\\n\\x00\\r\\n"),
            (|reply| reply.error("ERR a\r\nb"), "-ERR a  b\\r\\n", "-ERR a  b\\r\\n"),
            (|reply| reply.integer(-7), ":-7\\r\\n", ":-7\\r\\n"),
        ] {
            assert_eq!(written(Protocol::Resp2, write), two);
            assert_eq!(written(Protocol::Resp3, write), three);
        }
    }
}
