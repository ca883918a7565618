//! Batches in a message: how they are written, read, checked and carried out.
//!
//! Invariants: a request is read whole and checked whole (form, bounds, alignment, rights, size of the replies) before
//! any verb of it takes effect; a batch that is refused leaves the others of its message untouched; reading is total,
//! and sets nothing aside that the message does not hold; batches, and the verbs of each, are carried out in the order
//! in which they stand. docs/protocols/remote.md draws the bytes.

mod client;
mod node;

pub use client::{Answer, Sizes, encode, fill, finish, sizes};
pub(crate) use client::{refusal, refused_verb, senseless};
pub use node::{Calls, Checked, Refused, Served, check, serve};

use farindex_fabric::NodeId;
use farindex_remote::wire::{Malformed, Reader, Writer};

/// Bytes of a request, and of the answers to it, at most.
pub const MAX_CHAIN: usize = 64 << 20;
/// Verbs of one message at most.
pub const MAX_VERBS: usize = 1 << 16;
/// A message that holds so many batches, and half of those that its node has not answered, is sent, also if more could
/// follow: while one side works on it, the other one works on the next.
pub const FULL_BATCHES: u32 = 32;
/// A message is sent before its verbs and the answers to them have more bytes than this, unless it holds one batch.
pub const FULL_BYTES: usize = 56 << 10;
/// Bytes of a request before its first batch: session, batches.
pub const MESSAGE_HEADER: usize = 16;
/// Bytes of a batch before its first verb: sequence, verbs.
pub const BATCH_HEADER: usize = 16;
/// Bytes of an answer before its first result: sequence, status, length.
pub const ANSWER_HEADER: usize = 16;
/// Bytes of a verb before its operands: kind, flags, length, offset.
const VERB_HEADER: usize = 16;

/// Bytes of a greeting: session, node. No answer is as short.
const GREETING: usize = 10;

const READ: u8 = 1;
const WRITE: u8 = 2;
const CAS: u8 = 3;
const FAA: u8 = 4;
const MASKED_CAS: u8 = 5;
const CALL: u8 = 6;
/// Bytes of a call's result before the reply or the reason of a refusal: outcome, length.
const CALL_HEADER: usize = 8;
const ANSWERED: u32 = 0;
const REFUSED: u32 = 1;
/// The verb waits for all before it. The node carries them out one by one, so it does.
const FENCED: u8 = 1;

/// Status of a batch, on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    /// All its verbs were carried out.
    Done = 0,
    /// A verb reaches beyond the region.
    OutOfBounds = 1,
    /// A verb's address or length is not a multiple of 8.
    Misaligned = 2,
    /// A verb changes memory, and the connection may only read.
    ReadOnly = 3,
    /// The answer would be larger than any may be.
    TooLong = 4,
}

impl Status {
    fn of_number(number: u32) -> Option<Status> {
        let all = [Status::Done, Status::OutOfBounds, Status::Misaligned, Status::ReadOnly, Status::TooLong];
        all.into_iter().find(|status| *status as u32 == number)
    }
}

/// What a node sends first over its connection to a client's worker: that connection is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Greeting {
    /// The number that the node has given out for this connection.
    pub session: u64,
    /// Which node it is.
    pub node: NodeId,
}

impl Greeting {
    /// Appends it to a message.
    pub fn encode(self, out: &mut Vec<u8>) {
        out.put_u64(self.session);
        out.put_u16(self.node.index() as u16);
    }
    /// `None` if this message is none, and so holds answers.
    pub fn decode(message: &[u8]) -> Option<Self> {
        let whole: &[u8; GREETING] = message.try_into().ok()?;
        let mut fields = Reader::new(whole);
        Some(Greeting { session: fields.u64().ok()?, node: NodeId::new(fields.u16().ok()?) })
    }
}

/// The front of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Front {
    /// Which connection it comes over: the number that the node gave out when it was attached.
    pub session: u64,
    /// Batches.
    pub batches: u32,
}

/// The front of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    /// The client's number for it, repeated in the answer.
    sequence: u64,
    /// Verbs.
    verbs: u32,
}

/// One verb of a request, and the bytes of the region that it touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Item<'a> {
    offset: u64,
    len: u64,
    op: Op<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op<'a> {
    Read,
    Write(&'a [u8]),
    Cas { expect: u64, new: u64 },
    Faa { add: u64 },
    MaskedCas { expect: u64, new: u64, compare_mask: u64, swap_mask: u64 },
    Call(&'a [u8]),
}

fn take_reserved(fields: &mut Reader<'_>) -> Result<(), Malformed> {
    if fields.u32()? == 0 { Ok(()) } else { Err(Malformed::Field("reserved bytes are zero")) }
}

impl Front {
    fn take(fields: &mut Reader<'_>) -> Result<Self, Malformed> {
        let front = Front { session: fields.u64()?, batches: fields.u32()? };
        take_reserved(fields)?;
        Ok(front)
    }
    /// Reads the front of a request, and nothing behind it.
    pub fn peek(request: &[u8]) -> Result<Self, Malformed> {
        Front::take(&mut Reader::new(request))
    }
}

impl Head {
    fn take(fields: &mut Reader<'_>) -> Result<Self, Malformed> {
        let head = Head { sequence: fields.u64()?, verbs: fields.u32()? };
        take_reserved(fields)?;
        Ok(head)
    }
}

impl<'a> Item<'a> {
    fn take(fields: &mut Reader<'a>) -> Result<Self, Malformed> {
        let (kind, flags, zero) = (fields.u8()?, fields.u8()?, fields.u16()?);
        let len = fields.u32()?;
        let offset = fields.u64()?;
        if zero != 0 || flags & !FENCED != 0 {
            return Err(Malformed::Field("reserved bits are zero"));
        }
        let op = match kind {
            READ => Op::Read,
            WRITE => Op::Write(fields.bytes(usize::try_from(len).map_err(|_| Malformed::Truncated)?)?),
            CAS => Op::Cas { expect: fields.u64()?, new: fields.u64()? },
            FAA => Op::Faa { add: fields.u64()? },
            MASKED_CAS => Op::MaskedCas {
                expect: fields.u64()?,
                new: fields.u64()?,
                compare_mask: fields.u64()?,
                swap_mask: fields.u64()?,
            },
            CALL => {
                if offset != 0 {
                    return Err(Malformed::Field("a call has no offset"));
                }
                let request = fields.bytes(usize::try_from(len).map_err(|_| Malformed::Truncated)?)?;
                return Ok(Item { offset: 0, len: 0, op: Op::Call(request) });
            }
            kind => return Err(Malformed::Kind(kind)),
        };
        if !matches!(op, Op::Read | Op::Write(_)) && len != 8 {
            return Err(Malformed::Field("an atomic is of 8 bytes"));
        }
        Ok(Item { offset, len: u64::from(len), op })
    }
}

#[cfg(test)]
mod tests;
