//! The messages of the control channel.
//!
//! Invariants: a frame is at most [`MAX_FRAME`] bytes, and nothing is set aside for a frame before its length was
//! checked; decoding is total: any bytes are a message, the beginning of one, or [`Malformed`]; the first 10 bytes of
//! the first body that each side sends (magic, version) stay what they are in every version.
//!
//! ```text
//! frame      0        4      5         8         12
//!            | length | kind | 0, 0, 0 | request | body ...        length: bytes behind itself
//! ```
//!
//! The node speaks first (`Challenge`), the client answers (`Hello`), the node admits it (`Welcome`) or not (`Error`).
//! Behind that the client asks and the node answers under the same request number; `Error` with request 0 closes
//! the connection.

use crate::token::{NONCE_LEN, PROOF_LEN, Rights};
use crate::wire::{Malformed, Reader, Writer};
use farindex_fabric::call::MAX_CALL_LEN;
use farindex_fabric::{Identity, NodeId};
use std::fmt;

/// Begins the first body of either side: `FARINDEX` in ASCII.
pub const MAGIC: u64 = u64::from_le_bytes(*b"FARINDEX");
/// Version of the control protocol, the messages of the data planes included.
pub const VERSION: u16 = 4;
/// Bytes of a frame at most.
pub const MAX_FRAME: usize = 64 << 10;
/// Bytes of what a data plane may send in one message at most.
pub const MAX_OPAQUE: usize = 32 << 10;
/// Bytes of an error's text at most; what is longer is cut.
pub const MAX_TEXT: usize = 1 << 10;
const HEADER: usize = 12;
const _: () = assert!(MAX_CALL_LEN <= MAX_OPAQUE);
const ANY_NODE: u16 = u16::MAX;

/// A data plane: what carries the verbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PlaneKind {
    /// UCX active messages.
    Ucx,
    /// RDMA verbs.
    Verbs,
    /// One that this version does not know.
    Other(u8),
}

impl PlaneKind {
    fn code(self) -> u8 {
        match self {
            PlaneKind::Ucx => 1,
            PlaneKind::Verbs => 2,
            PlaneKind::Other(code) => code,
        }
    }
    fn of_code(code: u8) -> Self {
        match code {
            1 => PlaneKind::Ucx,
            2 => PlaneKind::Verbs,
            code => PlaneKind::Other(code),
        }
    }
}

impl fmt::Display for PlaneKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlaneKind::Ucx => f.write_str("ucx"),
            PlaneKind::Verbs => f.write_str("verbs"),
            PlaneKind::Other(code) => write!(f, "number {code}"),
        }
    }
}

/// A client's request to be admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// Which node it expects to reach; `None` where it only asks.
    pub node: Option<NodeId>,
    /// The client's identity. With token 0 it gets the [`Welcome`] and may attach nothing.
    pub identity: Identity,
    /// Proof that it knows a token: see [`crate::token`].
    pub proof: [u8; PROOF_LEN],
}

/// What an admitted client learns about the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// The node's number within its pool.
    pub node: NodeId,
    /// What the client's token allows.
    pub rights: Rights,
    /// The data plane of this node.
    pub plane: PlaneKind,
    /// Did the region read as zeros before the first WRITE?
    pub zeroed: bool,
    /// Does the node answer calls?
    pub calls: bool,
    /// Bytes of the region.
    pub len: u64,
    /// The memory itself: the same after a restart from the same file, another one otherwise.
    pub region: [u8; 16],
    /// This run of the memory node's process.
    pub instance: u64,
    /// What the data plane wants its clients to know (an rkey, say).
    pub parameters: Vec<u8>,
}

/// Why a node refuses a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Code {
    /// The node does not know the token, or none was shown.
    BadToken,
    /// Another version of the protocol.
    Version,
    /// Another node than the client expects.
    WrongNode,
    /// The client's token only allows reading.
    ReadOnly,
    /// Another client has revoked this one (G6).
    Revoked,
    /// Too many connections.
    Busy,
    /// The message is malformed, or not allowed at this point.
    Malformed,
    /// The data plane refuses.
    Refused,
    /// The memory node's process ends.
    Stopping,
    /// A code that this version does not know.
    Other(u16),
}

const CODES: [(Code, u16); 9] = [
    (Code::BadToken, 1),
    (Code::Version, 2),
    (Code::WrongNode, 3),
    (Code::ReadOnly, 4),
    (Code::Revoked, 5),
    (Code::Busy, 6),
    (Code::Malformed, 7),
    (Code::Refused, 8),
    (Code::Stopping, 9),
];

impl Code {
    fn number(self) -> u16 {
        match self {
            Code::Other(number) => number,
            code => CODES.iter().find(|(known, _)| *known == code).map_or(0, |(_, number)| *number),
        }
    }
    fn of_number(number: u16) -> Self {
        CODES.iter().find(|(_, known)| *known == number).map_or(Code::Other(number), |(code, _)| *code)
    }
}

/// One message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Node, first message: bytes over which the client proves that it knows a token.
    Challenge([u8; NONCE_LEN]),
    /// Client: its identity and proof.
    Hello(Hello),
    /// Node: the client is admitted.
    Welcome(Welcome),
    /// Client: asks for one more connection of the data plane; the bytes are the plane's.
    Attach(Vec<u8>),
    /// Node: the connection is set up; the bytes are the plane's.
    Attached(Vec<u8>),
    /// Client: that connection of the data plane is not used any more; the bytes are the plane's. There is no answer.
    Detach(Vec<u8>),
    /// Client: revoke that client (G6).
    Revoke(Identity),
    /// Node: nothing of it takes effect any more.
    Revoked,
    /// Client: a call; the bytes are the request.
    Call(Vec<u8>),
    /// Node: the reply to a call. A call that is refused is answered by `Error`.
    Called(Vec<u8>),
    /// Client: asks for a sign of life.
    Ping,
    /// Node: answers a ping.
    Pong,
    /// Node: refuses a request, or closes the connection.
    Error {
        /// For programs.
        code: Code,
        /// For people.
        text: String,
    },
}

impl Message {
    /// An error.
    pub fn error(code: Code, text: impl Into<String>) -> Self {
        Message::Error { code, text: text.into() }
    }
    fn kind(&self) -> u8 {
        match self {
            Message::Challenge(_) => 1,
            Message::Hello(_) => 2,
            Message::Welcome(_) => 3,
            Message::Attach(_) => 4,
            Message::Attached(_) => 5,
            Message::Revoke(_) => 6,
            Message::Revoked => 7,
            Message::Ping => 8,
            Message::Pong => 9,
            Message::Error { .. } => 10,
            Message::Detach(_) => 11,
            Message::Call(_) => 12,
            Message::Called(_) => 13,
        }
    }
    fn put_body(&self, out: &mut Vec<u8>) {
        match self {
            Message::Challenge(nonce) => {
                out.put_u64(MAGIC);
                out.put_u16(VERSION);
                out.extend_from_slice(nonce);
            }
            Message::Hello(hello) => {
                out.put_u64(MAGIC);
                out.put_u16(VERSION);
                put_claim(out, hello.node, &hello.identity);
                out.extend_from_slice(&hello.proof);
            }
            Message::Welcome(welcome) => {
                out.put_u16(welcome.node.index() as u16);
                out.put_u8(u8::from(welcome.rights == Rights::ReadWrite));
                out.put_u8(welcome.plane.code());
                out.put_u8(u8::from(welcome.zeroed));
                out.put_u8(u8::from(welcome.calls));
                out.put_u64(welcome.len);
                out.extend_from_slice(&welcome.region);
                out.put_u64(welcome.instance);
                out.put_counted(cut(&welcome.parameters, MAX_OPAQUE));
            }
            Message::Attach(opaque)
            | Message::Attached(opaque)
            | Message::Detach(opaque)
            | Message::Call(opaque)
            | Message::Called(opaque) => {
                out.put_counted(cut(opaque, MAX_OPAQUE));
            }
            Message::Revoke(identity) => put_identity(out, identity),
            Message::Revoked | Message::Ping | Message::Pong => {}
            Message::Error { code, text } => {
                out.put_u16(code.number());
                out.put_counted(cut(text.as_bytes(), MAX_TEXT));
            }
        }
    }
    fn take_body(kind: u8, body: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Reader::new(body);
        let fields = &mut fields;
        let message = match kind {
            1 => {
                check_opening(fields)?;
                Message::Challenge(fields.array()?)
            }
            2 => {
                check_opening(fields)?;
                let node = match fields.u16()? {
                    ANY_NODE => None,
                    number => Some(take_node(number)?),
                };
                Message::Hello(Hello { node, identity: take_identity(fields)?, proof: fields.array()? })
            }
            3 => Message::Welcome(Welcome {
                node: take_node(fields.u16()?)?,
                rights: if take_flag(fields)? { Rights::ReadWrite } else { Rights::ReadOnly },
                plane: PlaneKind::of_code(fields.u8()?),
                zeroed: take_flag(fields)?,
                calls: take_flag(fields)?,
                len: fields.u64()?,
                region: fields.array()?,
                instance: fields.u64()?,
                parameters: take_opaque(fields)?,
            }),
            4 => Message::Attach(take_opaque(fields)?),
            5 => Message::Attached(take_opaque(fields)?),
            6 => Message::Revoke(take_identity(fields)?),
            7 => Message::Revoked,
            8 => Message::Ping,
            9 => Message::Pong,
            10 => {
                let code = Code::of_number(fields.u16()?);
                let text = fields.counted()?;
                if text.len() > MAX_TEXT {
                    return Err(Malformed::TooLong(text.len() as u64));
                }
                // It is shown to people: what could steer a terminal is not.
                let text = String::from_utf8_lossy(text);
                let mut text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
                // What stands for a byte that is no UTF-8 is longer than the byte.
                while text.len() > MAX_TEXT {
                    text.pop();
                }
                Message::Error { code, text }
            }
            11 => Message::Detach(take_opaque(fields)?),
            12 => Message::Call(take_opaque(fields)?),
            13 => Message::Called(take_opaque(fields)?),
            kind => return Err(Malformed::Kind(kind)),
        };
        fields.end()?;
        Ok(message)
    }
}

fn cut(bytes: &[u8], max: usize) -> &[u8] {
    bytes.get(..max).unwrap_or(bytes)
}

fn check_opening(fields: &mut Reader<'_>) -> Result<(), Malformed> {
    if fields.u64()? != MAGIC {
        return Err(Malformed::Magic);
    }
    match fields.u16()? {
        VERSION => Ok(()),
        theirs => Err(Malformed::Version { theirs, ours: VERSION }),
    }
}

fn take_flag(fields: &mut Reader<'_>) -> Result<bool, Malformed> {
    match fields.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Malformed::Field("neither yes nor no")),
    }
}

fn take_node(number: u16) -> Result<NodeId, Malformed> {
    let node = NodeId::new(number);
    if node.index() == usize::from(number) { Ok(node) } else { Err(Malformed::Field("no number of a memory node")) }
}

fn take_opaque(fields: &mut Reader<'_>) -> Result<Vec<u8>, Malformed> {
    let bytes = fields.counted()?;
    if bytes.len() > MAX_OPAQUE { Err(Malformed::TooLong(bytes.len() as u64)) } else { Ok(bytes.to_vec()) }
}

fn put_identity(out: &mut Vec<u8>, identity: &Identity) {
    out.put_u64(identity.token);
    out.put_u64(identity.pid);
    out.put_u64(identity.started);
}

fn take_identity(fields: &mut Reader<'_>) -> Result<Identity, Malformed> {
    Ok(Identity { token: fields.u64()?, pid: fields.u64()?, started: fields.u64()? })
}

/// What a [`Hello`] claims, as bytes: its proof covers this and the challenge.
pub(crate) fn put_claim(out: &mut Vec<u8>, node: Option<NodeId>, identity: &Identity) {
    out.put_u16(node.map_or(ANY_NODE, |node| node.index() as u16));
    put_identity(out, identity);
}

/// A message and the request that it belongs to; 0 where it belongs to none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Chosen by the client, repeated by the node.
    pub request: u32,
    /// The message.
    pub message: Message,
}

impl Frame {
    /// A frame of no request.
    pub fn alone(message: Message) -> Self {
        Frame { request: 0, message }
    }
    /// Appends the frame's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.put_u32(0);
        out.put_u8(self.message.kind());
        out.extend_from_slice(&[0; 3]);
        out.put_u32(self.request);
        self.message.put_body(out);
        let len = (out.len() - start - 4) as u32;
        if let Some(place) = out.get_mut(start..start + 4) {
            place.copy_from_slice(&len.to_le_bytes());
        }
    }
    /// Decodes the frame at the front of `bytes`, and its length there; `None` if it is not complete.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Frame, usize)>, Malformed> {
        let mut fields = Reader::new(bytes);
        let Ok(len) = fields.u32() else { return Ok(None) };
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if len > MAX_FRAME - 4 {
            // Other protocols begin with letters: report that rather than a length.
            let foreign = len.to_le_bytes().iter().take(4).all(|byte| byte.is_ascii_graphic() || *byte == b' ');
            return Err(if foreign { Malformed::Magic } else { Malformed::TooLong(len as u64) });
        }
        if len < HEADER - 4 {
            return Err(Malformed::Truncated);
        }
        let Ok(rest) = fields.bytes(len) else { return Ok(None) };
        let mut fields = Reader::new(rest);
        let kind = fields.u8()?;
        if fields.array::<3>()? != [0; 3] {
            return Err(Malformed::Field("reserved bytes are zero"));
        }
        let request = fields.u32()?;
        let body = fields.bytes(fields.left())?;
        Ok(Some((Frame { request, message: Message::take_body(kind, body)? }, len + 4)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Message> {
        let identity = Identity { token: 7, pid: 0, started: 1 };
        vec![
            Message::Challenge([3; NONCE_LEN]),
            Message::Hello(Hello { node: Some(NodeId::new(2)), identity, proof: [9; PROOF_LEN] }),
            Message::Hello(Hello { node: None, identity, proof: [9; PROOF_LEN] }),
            Message::Welcome(Welcome {
                node: NodeId::new(1022),
                rights: Rights::ReadOnly,
                plane: PlaneKind::Verbs,
                zeroed: true,
                calls: false,
                len: 1 << 40,
                region: [4; 16],
                instance: 5,
                parameters: vec![1, 2, 3],
            }),
            Message::Attach(vec![0; MAX_OPAQUE]),
            Message::Attached(Vec::new()),
            Message::Detach(vec![1]),
            Message::Call(vec![0; MAX_OPAQUE]),
            Message::Called(vec![2]),
            Message::Revoke(identity),
            Message::Revoked,
            Message::Ping,
            Message::Pong,
            Message::error(Code::Other(77), "no"),
        ]
    }

    #[test]
    fn messages_survive_the_wire() {
        for message in samples() {
            let frame = Frame { request: 42, message };
            let mut bytes = vec![];
            frame.encode(&mut bytes);
            assert!(bytes.len() <= MAX_FRAME);
            assert_eq!(Frame::decode(&bytes), Ok(Some((frame.clone(), bytes.len()))));
            for cut in 0..bytes.len() {
                assert_eq!(Frame::decode(&bytes[..cut]), Ok(None), "{frame:?} cut at {cut}");
            }
            // One byte less in the length: a field is cut, or the message has an earlier end.
            let len = (bytes.len() - 5) as u32;
            bytes[..4].copy_from_slice(&len.to_le_bytes());
            assert!(Frame::decode(&bytes).is_err(), "{frame:?}");
        }
    }

    #[test]
    fn other_protocols_are_recognised() {
        let decode = |bytes: &[u8]| Frame::decode(bytes).expect_err("no frame");
        assert_eq!(decode(b"GET / HTTP/1.1\r\n\r\n"), Malformed::Magic);
        assert_eq!(decode(&[0, 0, 0, 1]), Malformed::TooLong(1 << 24));
        assert_eq!(decode(&[0, 0, 0, 0]), Malformed::Truncated);
        let mut bytes = vec![];
        Frame::alone(Message::Challenge([0; NONCE_LEN])).encode(&mut bytes);
        bytes[20] = 9;
        assert_eq!(decode(&bytes), Malformed::Version { theirs: 9, ours: VERSION });
        bytes[12] ^= 1;
        assert_eq!(decode(&bytes), Malformed::Magic);
        let mut bytes = vec![];
        Frame::alone(Message::Ping).encode(&mut bytes);
        bytes[4] = 200;
        assert_eq!(decode(&bytes), Malformed::Kind(200));
    }

    #[test]
    fn control_characters_are_removed_from_error_texts() {
        let mut bytes = vec![];
        Frame::alone(Message::error(Code::Refused, "a\x1b[2Jb\n")).encode(&mut bytes);
        let (frame, _) = Frame::decode(&bytes).expect("a frame").expect("whole");
        assert_eq!(frame.message, Message::error(Code::Refused, "a [2Jb "));
    }
}
