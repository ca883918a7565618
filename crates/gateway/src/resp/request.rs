//! Requests: arrays of bulk strings, or words on a line.
//!
//! Invariants: a byte is looked at once, however many pieces the request arrives in; what a client announces allocates
//! nothing, only what it has sent does; no input panics. Positions are relative to the first byte of the request, so the
//! buffer may be moved between two calls.

use std::fmt;

/// What a client may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestLimits {
    /// Most arguments of a request, its name included.
    pub arguments: usize,
    /// Most bytes of one argument.
    pub argument: usize,
    /// Most bytes of a whole request. Less than 4 GiB.
    pub request: usize,
}

impl RequestLimits {
    /// Limits for a client that has not shown its password yet.
    pub const UNKNOWN_CLIENT: RequestLimits = RequestLimits { arguments: 10, argument: 16 << 10, request: 64 << 10 };
}

/// Most bytes of a line: a header, or a request of words.
const LINE: usize = 64 << 10;

/// The bytes are no request. The connection cannot be used any further, because the next request cannot be found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Malformed {
    /// A line is longer than any can be.
    LineTooLong,
    /// The number of arguments is no number, or too large.
    Arguments,
    /// The length of an argument is no number, or too large.
    ArgumentLength,
    /// Something else than a bulk string stands in a request.
    NotABulkString(u8),
    /// An argument does not end where its length says.
    NoLineEnd,
    /// The whole request is too long.
    RequestTooLong,
    /// A request of words with quotes.
    Quotes,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::LineTooLong => f.write_str("Protocol error: too big inline request"),
            Malformed::Arguments => f.write_str("Protocol error: invalid multibulk length"),
            Malformed::ArgumentLength => f.write_str("Protocol error: invalid bulk length"),
            Malformed::NotABulkString(byte) => {
                write!(f, "Protocol error: expected '$', got '{}'", char::from(*byte).escape_default())
            }
            Malformed::NoLineEnd => f.write_str("Protocol error: a bulk string is longer than its length says"),
            Malformed::RequestTooLong => f.write_str("Protocol error: the request is larger than the limit"),
            Malformed::Quotes => {
                f.write_str("Protocol error: a request of words cannot have quotes; send an array of bulk strings")
            }
        }
    }
}

/// Where the arguments of a request are: first byte and length, relative to its first byte.
type Span = (u32, u32);

/// Reads one request after the other.
#[derive(Debug, Default)]
pub struct Parser {
    spans: Vec<Span>,
    /// Bytes of the request that have been dealt with.
    done: usize,
    /// Bytes behind `done` in which no line end was found.
    searched: usize,
    /// Arguments that are still to come; `None` before the header.
    left: Option<usize>,
    /// Length of the argument whose bytes come next.
    bulk: Option<usize>,
}

/// Vectors of more spans than this are given back after the request.
const KEPT_SPANS: usize = 1 << 10;

impl Parser {
    /// Goes on reading a request from `bytes`, which begin at its first byte and have at least what they had at the call
    /// before. Returns its length once it is whole: [`args`](Self::args) are its arguments then, and
    /// [`next`](Self::next) must be called before the next request.
    pub fn parse(&mut self, bytes: &[u8], limits: &RequestLimits) -> Result<Option<usize>, Malformed> {
        if self.left.is_none() {
            match bytes.first() {
                None => return Ok(None),
                Some(b'*') => {
                    let Some(line) = self.line(bytes)? else { return Ok(None) };
                    let count = number(line.get(1..).unwrap_or_default()).ok_or(Malformed::Arguments)?;
                    // Redis takes an array of no or of negative length as nothing.
                    let count = usize::try_from(count).unwrap_or(0);
                    if count > limits.arguments {
                        return Err(Malformed::Arguments);
                    }
                    self.left = Some(count);
                }
                Some(_) => return self.words(bytes, limits),
            }
        }
        loop {
            let left = self.left.unwrap_or_default();
            if left == 0 {
                return Ok(Some(self.done));
            }
            let len = match self.bulk {
                Some(len) => len,
                None => {
                    match bytes.get(self.done) {
                        None => return Ok(None),
                        Some(b'$') => {}
                        Some(other) => return Err(Malformed::NotABulkString(*other)),
                    }
                    let Some(line) = self.line(bytes)? else { return Ok(None) };
                    let len = number(line.get(1..).unwrap_or_default()).and_then(|len| usize::try_from(len).ok());
                    let len = len.filter(|len| *len <= limits.argument).ok_or(Malformed::ArgumentLength)?;
                    if self.done.saturating_add(len) > limits.request {
                        return Err(Malformed::RequestTooLong);
                    }
                    self.bulk = Some(len);
                    len
                }
            };
            let end = self.done + len;
            match bytes.get(end..end + 2) {
                None => return Ok(None),
                Some(b"\r\n") => {}
                Some(_) => return Err(Malformed::NoLineEnd),
            }
            self.push(self.done, len)?;
            self.done = end + 2;
            self.bulk = None;
            self.left = Some(left - 1);
        }
    }

    /// The line that begins at `done`, without its end, and moves `done` behind it.
    fn line<'b>(&mut self, bytes: &'b [u8]) -> Result<Option<&'b [u8]>, Malformed> {
        let rest = bytes.get(self.done..).unwrap_or_default();
        let Some(found) = rest.iter().skip(self.searched).position(|byte| *byte == b'\n') else {
            self.searched = rest.len();
            return if rest.len() > LINE { Err(Malformed::LineTooLong) } else { Ok(None) };
        };
        let end = self.searched + found;
        if end > LINE {
            return Err(Malformed::LineTooLong);
        }
        self.searched = 0;
        self.done += end + 1;
        let line = rest.get(..end).unwrap_or_default();
        Ok(Some(line.strip_suffix(b"\r").unwrap_or(line)))
    }

    /// A request of words that are separated by spaces.
    fn words(&mut self, bytes: &[u8], limits: &RequestLimits) -> Result<Option<usize>, Malformed> {
        let Some(line) = self.line(bytes)? else { return Ok(None) };
        if line.iter().any(|byte| matches!(byte, b'"' | b'\'')) {
            return Err(Malformed::Quotes);
        }
        let mut at = 0;
        for word in line.split(u8::is_ascii_whitespace) {
            if !word.is_empty() {
                if self.spans.len() >= limits.arguments {
                    return Err(Malformed::Arguments);
                }
                self.push(at, word.len())?;
            }
            at += word.len() + 1;
        }
        self.left = Some(0);
        Ok(Some(self.done))
    }

    fn push(&mut self, at: usize, len: usize) -> Result<(), Malformed> {
        let at = u32::try_from(at).map_err(|_| Malformed::RequestTooLong)?;
        let len = u32::try_from(len).map_err(|_| Malformed::RequestTooLong)?;
        self.spans.push((at, len));
        Ok(())
    }

    /// The arguments of a whole request, in the bytes that it was read from.
    pub fn args<'a>(&'a self, bytes: &'a [u8]) -> Args<'a> {
        Args { bytes, spans: &self.spans }
    }

    /// Forgets the request.
    pub fn next(&mut self) {
        if self.spans.capacity() > KEPT_SPANS {
            self.spans = Vec::new();
        }
        self.spans.clear();
        (self.done, self.searched, self.left, self.bulk) = (0, 0, None, None);
    }

    /// Is a request begun and not whole?
    pub fn is_inside(&self) -> bool {
        self.left.is_some() || self.searched > 0
    }

    /// Bytes that the request has at least, as far as its beginning tells.
    pub fn wants(&self) -> usize {
        self.bulk.map_or(0, |len| self.done + len + 2)
    }

    /// Bytes of memory that it holds.
    pub fn memory(&self) -> usize {
        self.spans.capacity() * size_of::<Span>()
    }
}

/// A decimal number of a header.
fn number(digits: &[u8]) -> Option<i64> {
    let (negative, digits) = match digits.split_first() {
        Some((b'-', rest)) => (true, rest),
        _ => (false, digits),
    };
    if digits.is_empty() || digits.len() > 18 {
        return None;
    }
    let mut value = 0i64;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value * 10 + i64::from(digit - b'0');
    }
    Some(if negative { -value } else { value })
}

/// The arguments of a request, its name first.
#[derive(Debug, Clone, Copy)]
pub struct Args<'a> {
    bytes: &'a [u8],
    spans: &'a [Span],
}

impl<'a> Args<'a> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.spans.len()
    }
    /// Is it an empty request?
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }
    /// The argument of this number, from 0; empty if there is none.
    pub fn at(&self, index: usize) -> &'a [u8] {
        self.get(index).unwrap_or_default()
    }
    /// The argument of this number, if there is one.
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        let (at, len) = *self.spans.get(index)?;
        self.bytes.get(at as usize..at as usize + len as usize)
    }
    /// Where an argument is in the bytes of the request.
    pub fn span(&self, index: usize) -> std::ops::Range<usize> {
        self.spans.get(index).map_or(0..0, |(at, len)| *at as usize..*at as usize + *len as usize)
    }
    /// The arguments from this number on.
    pub fn from(&self, index: usize) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let bytes = self.bytes;
        let spans = self.spans.get(index..).unwrap_or_default();
        spans.iter().map(move |(at, len)| bytes.get(*at as usize..*at as usize + *len as usize).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: RequestLimits = RequestLimits { arguments: 8, argument: 100, request: 400 };

    /// Every request of these bytes, when they arrive in pieces of `step` bytes, and what ends them.
    fn requests(bytes: &[u8], step: usize) -> (Vec<Vec<Vec<u8>>>, Option<Malformed>) {
        let (mut parser, mut buffer, mut all) = (Parser::default(), Vec::new(), Vec::new());
        for piece in bytes.chunks(step) {
            buffer.extend_from_slice(piece);
            loop {
                match parser.parse(&buffer, &LIMITS) {
                    Ok(None) => break,
                    Ok(Some(len)) => {
                        all.push(parser.args(&buffer).from(0).map(<[u8]>::to_vec).collect());
                        parser.next();
                        buffer.drain(..len);
                    }
                    Err(why) => return (all, Some(why)),
                }
            }
        }
        (all, None)
    }

    fn words(request: &[&str]) -> Vec<Vec<u8>> {
        request.iter().map(|word| word.as_bytes().to_vec()).collect()
    }

    #[test]
    fn requests_are_the_same_in_pieces_of_any_size() {
        let bytes = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\nPING\r\n*0\r\n  SET  a b \r\n\r\n*3\r\n$3\r\nSET\r\n$0\r\n\r\n$4\r\n\r\n\r\n\r\n";
        let wanted = vec![
            words(&["GET", "k"]),
            words(&["PING"]),
            words(&[]),
            words(&["SET", "a", "b"]),
            words(&[]),
            words(&["SET", "", "\r\n\r\n"]),
        ];
        for step in 1..=bytes.len() {
            assert_eq!(requests(bytes, step), (wanted.clone(), None), "pieces of {step} bytes");
        }
    }

    #[test]
    fn what_is_no_request_is_refused() {
        for (bytes, why) in [
            (&b"*9\r\n"[..], Malformed::Arguments),
            (b"*x\r\n", Malformed::Arguments),
            (b"*99999999999999999999\r\n", Malformed::Arguments),
            (b"*1\r\n$101\r\n", Malformed::ArgumentLength),
            (b"*1\r\n$-1\r\n", Malformed::ArgumentLength),
            (b"*1\r\n:1\r\n", Malformed::NotABulkString(b':')),
            (b"*1\r\n$1\r\nabc", Malformed::NoLineEnd),
            (b"GET \"a b\"\r\n", Malformed::Quotes),
            (b"a b c d e f g h i\r\n", Malformed::Arguments),
        ] {
            assert_eq!(requests(bytes, 1), (Vec::new(), Some(why.clone())));
            assert_eq!(requests(bytes, bytes.len()), (Vec::new(), Some(why)));
        }
        let long = [b"x".repeat(LINE + 2), b"\r\n".to_vec()].concat();
        assert_eq!(requests(&long, 1000).1, Some(Malformed::LineTooLong));
        let many = [b"*8\r\n".to_vec(), [b"$100\r\n".to_vec(), b"x".repeat(100), b"\r\n".to_vec()].concat().repeat(5)]
            .concat();
        assert_eq!(requests(&many, 7).1, Some(Malformed::RequestTooLong));
    }

    /// Random bytes that look like requests: no panic, and the same requests in pieces of any size.
    #[test]
    fn random_bytes_are_read_alike_in_pieces() {
        let mut state = 0x9E37_79B9_7F4A_7C15u64;
        let mut draw = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        const PIECES: [&[u8]; 14] = [
            b"*1\r\n",
            b"*2\r\n",
            b"$3\r\n",
            b"GET",
            b"\r\n",
            b"$1\r\nk\r\n",
            b"*",
            b"$",
            b"\n",
            b"-1",
            b"0",
            b" ",
            b"\0\xff",
            b"PING\r\n",
        ];
        for _ in 0..3_000 {
            let mut bytes = Vec::new();
            for _ in 0..draw(12) + 1 {
                bytes.extend_from_slice(PIECES[draw(PIECES.len() as u64) as usize]);
            }
            let whole = requests(&bytes, bytes.len());
            for step in [1, 2, 3, 5] {
                assert_eq!(requests(&bytes, step), whole, "{:?} in pieces of {step}", bytes.escape_ascii().to_string());
            }
        }
    }
}
