//! The memory node's side: check, carry out, answer.

use super::{ANSWERED, CALL_HEADER, Head, Item, MAX_CHAIN, Op, REFUSED, REPLY_HEADER, Status};
use farindex_fabric::CallRefused;
use farindex_fabric::call::MAX_CALL_LEN;
use farindex_fabric::words::{Words, cas, faa, load, masked_cas, store};
use farindex_remote::Rights;
use farindex_remote::wire::{Malformed, Reader, Writer};
use std::sync::atomic::AtomicU64;

/// Why a request was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub status: Status,
    /// Which verb of it, from 0.
    pub verb: u32,
}

/// Verbs and bytes of a request that was carried out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Served {
    /// READs.
    pub reads: u64,
    /// WRITEs.
    pub writes: u64,
    /// Compare-and-swaps, masked ones included.
    pub cas: u64,
    /// Fetch-and-adds.
    pub faa: u64,
    /// Calls, refused ones included.
    pub calls: u64,
    /// Bytes fetched by READs.
    pub bytes_read: u64,
    /// Bytes stored by WRITEs.
    pub bytes_written: u64,
}

/// Answers a call of a request.
pub type Calls<'a> = dyn Fn(&[u8]) -> Result<Vec<u8>, CallRefused> + 'a;

/// The bytes of a text, as far as a reply has room for them.
fn cut(text: &str) -> &[u8] {
    text.as_bytes().get(..MAX_CALL_LEN).unwrap_or(text.as_bytes())
}

/// Checks and carries out a request, and appends its reply to `reply` (which is empty). A malformed request is an
/// error, and gets no reply: its sender is to be disconnected. A well-formed request that is not allowed gets a reply
/// that says so, and has no effect.
pub fn serve(
    request: &[u8],
    memory: Words<'_>,
    calls: &Calls<'_>,
    rights: Rights,
    reply: &mut Vec<u8>,
) -> Result<Result<Served, Refused>, Malformed> {
    if request.len() > MAX_CHAIN {
        return Err(Malformed::TooLong(request.len() as u64));
    }
    let mut fields = Reader::new(request);
    let head = Head::take(&mut fields)?;
    let checked = check(head, fields, memory, rights)?;
    reply.put_u64(head.sequence);
    match checked {
        Err(refused) => {
            reply.put_u32(refused.status as u32);
            reply.put_u32(refused.verb);
            Ok(Err(refused))
        }
        Ok(len) => {
            reply.reserve(len);
            reply.put_u32(Status::Done as u32);
            reply.put_u32(0);
            run(head, fields, memory, calls, reply).map(Ok)
        }
    }
}

/// Checks all verbs. Returns the length of the reply behind its header at most, or the first verb that is not allowed.
fn check(
    head: Head,
    mut fields: Reader<'_>,
    memory: Words<'_>,
    rights: Rights,
) -> Result<Result<usize, Refused>, Malformed> {
    let mut refused = None;
    let mut len = REPLY_HEADER as u64;
    for verb in 0..head.verbs {
        let item = Item::take(&mut fields)?;
        len += match item.op {
            Op::Read => item.len,
            Op::Write(_) => 0,
            Op::Call(_) => (CALL_HEADER + MAX_CALL_LEN) as u64,
            _ => 8,
        };
        let status = if !item.offset.is_multiple_of(8) || !item.len.is_multiple_of(8) {
            Status::Misaligned
        } else if memory.range(item.offset, item.len).is_none() {
            Status::OutOfBounds
        } else if rights != Rights::ReadWrite && !matches!(item.op, Op::Read | Op::Call(_)) {
            Status::ReadOnly
        } else if len > MAX_CHAIN as u64 {
            Status::TooLong
        } else {
            continue;
        };
        // The rest is still read, to distinguish a malformed request from one that is not allowed.
        refused.get_or_insert(Refused { status, verb });
    }
    fields.end()?;
    Ok(refused.map_or(Ok(len as usize - REPLY_HEADER), Err))
}

fn run(
    head: Head,
    mut fields: Reader<'_>,
    memory: Words<'_>,
    calls: &Calls<'_>,
    reply: &mut Vec<u8>,
) -> Result<Served, Malformed> {
    let mut served = Served::default();
    for _ in 0..head.verbs {
        let item = Item::take(&mut fields)?;
        // `check` has seen that they are there.
        let words = memory.range(item.offset, item.len).unwrap_or_default();
        // An atomic has one; a READ or WRITE of nothing has none, and does not look at it.
        let none = AtomicU64::new(0);
        let word = words.first().unwrap_or(&none);
        match item.op {
            Op::Read => {
                load(words).for_each(|word| reply.put_u64(word));
                served.reads += 1;
                served.bytes_read += item.len;
            }
            Op::Write(bytes) => {
                let (values, _) = bytes.as_chunks();
                store(words, values.iter().map(|bytes| u64::from_le_bytes(*bytes)));
                served.writes += 1;
                served.bytes_written += item.len;
            }
            Op::Cas { expect, new } => {
                reply.put_u64(cas(word, expect, new));
                served.cas += 1;
            }
            Op::Faa { add } => {
                reply.put_u64(faa(word, add));
                served.faa += 1;
            }
            Op::MaskedCas { expect, new, compare_mask, swap_mask } => {
                reply.put_u64(masked_cas(word, expect, new, compare_mask, swap_mask));
                served.cas += 1;
            }
            Op::Call(request) => {
                let answer = calls(request);
                let (outcome, bytes) = match &answer {
                    Ok(reply) => (ANSWERED, &reply[..]),
                    Err(CallRefused(why)) => (REFUSED, cut(why)),
                };
                reply.put_u32(outcome);
                reply.put_counted(bytes);
                served.calls += 1;
            }
        }
    }
    Ok(served)
}
