//! The memory node's side: check, carry out, answer.

use super::{
    ANSWER_HEADER, ANSWERED, CALL_HEADER, FULL_BYTES, Front, Head, Item, MAX_CHAIN, MAX_VERBS, Op, REFUSED, Status,
};
use farindex_fabric::CallRefused;
use farindex_fabric::call::MAX_CALL_LEN;
use farindex_fabric::words::{Words, cas, faa, load, masked_cas, store};
use farindex_remote::Rights;
use farindex_remote::wire::{Malformed, Reader, Writer};
use std::sync::atomic::AtomicU64;

/// Why a batch was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// Which batch of its message, from 0.
    pub batch: u32,
    /// Why.
    pub status: Status,
    /// Which verb of it, from 0.
    pub verb: u32,
}

/// Verbs and bytes of a message that was carried out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Served {
    /// Batches, refused ones included.
    pub batches: u64,
    /// Batches that were refused.
    pub refused: u64,
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

/// A message that makes sense, to be carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checked {
    /// Batches.
    pub batches: u32,
    /// Calls among their verbs.
    pub calls: u32,
}

/// Checks all batches of a message. Notes those that are not allowed in `refused` (which is empty); a malformed message
/// is an error, and none of it may be carried out: its sender is to be disconnected.
pub fn check(
    request: &[u8],
    memory: Words<'_>,
    rights: Rights,
    refused: &mut Vec<Refused>,
) -> Result<Checked, Malformed> {
    if request.len() > MAX_CHAIN {
        return Err(Malformed::TooLong(request.len() as u64));
    }
    let mut fields = Reader::new(request);
    let front = Front::take(&mut fields)?;
    let (mut verbs, mut calls, mut len) = (0, 0, 0);
    for batch in 0..front.batches {
        let head = Head::take(&mut fields)?;
        // A batch without verbs counts as well, so that the work for one message is bounded.
        verbs += u64::from(head.verbs.max(1));
        if verbs > MAX_VERBS as u64 {
            return Err(Malformed::TooLong(verbs));
        }
        len += ANSWER_HEADER as u64;
        let mut first = None;
        for verb in 0..head.verbs {
            let item = Item::take(&mut fields)?;
            len += match item.op {
                Op::Read => item.len,
                Op::Write(_) => 0,
                Op::Call(_) => (CALL_HEADER + MAX_CALL_LEN) as u64,
                _ => 8,
            };
            calls += u32::from(matches!(item.op, Op::Call(_)));
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
            // The rest is still read, to distinguish a malformed message from one that is not allowed.
            first.get_or_insert(Refused { batch, status, verb });
        }
        refused.extend(first);
    }
    fields.end()?;
    Ok(Checked { batches: front.batches, calls })
}

/// Carries out the batches of a message that was checked, and appends their answers to `reply`. When it
/// is full, `full` is called, which sends it and leaves an empty one behind. It returns false if the client is to be
/// served no further.
pub fn serve(
    request: &[u8],
    memory: Words<'_>,
    calls: &Calls<'_>,
    refused: &[Refused],
    reply: &mut Vec<u8>,
    full: &mut dyn FnMut(&mut Vec<u8>) -> bool,
) -> Result<Served, Malformed> {
    let mut fields = Reader::new(request);
    let front = Front::take(&mut fields)?;
    let (mut served, mut refused) = (Served::default(), refused.iter().copied().peekable());
    for batch in 0..front.batches {
        let head = Head::take(&mut fields)?;
        let why = refused.next_if(|refused| refused.batch == batch);
        if reply.len() >= FULL_BYTES && !full(reply) {
            break;
        }
        served.batches += 1;
        reply.put_u64(head.sequence);
        if let Some(Refused { status, verb, .. }) = why {
            reply.put_u32(status as u32);
            reply.put_u32(verb);
            for _ in 0..head.verbs {
                Item::take(&mut fields)?;
            }
            served.refused += 1;
            continue;
        }
        reply.put_u32(Status::Done as u32);
        // How long they are is known when they are there.
        reply.put_u32(0);
        let begin = reply.len();
        run(head, &mut fields, memory, calls, reply, &mut served)?;
        let len = (reply.len() - begin) as u32;
        if let Some(place) = reply.get_mut(begin - 4..begin) {
            place.copy_from_slice(&len.to_le_bytes());
        }
    }
    Ok(served)
}

/// Appends what a READ sees: cache line by cache line, through a piece that the compiler keeps in registers. Appending
/// word by word is slower, and so is filling the place with zeros first.
fn append(words: &[AtomicU64], reply: &mut Vec<u8>) {
    reply.reserve(words.len() * 8);
    let (lines, rest) = words.as_chunks::<8>();
    for line in lines {
        let mut piece = [[0; 8]; 8];
        piece.iter_mut().zip(load(line)).for_each(|(place, word)| *place = word.to_le_bytes());
        reply.extend_from_slice(piece.as_flattened());
    }
    load(rest).for_each(|word| reply.put_u64(word));
}

fn run(
    head: Head,
    fields: &mut Reader<'_>,
    memory: Words<'_>,
    calls: &Calls<'_>,
    reply: &mut Vec<u8>,
    served: &mut Served,
) -> Result<(), Malformed> {
    for _ in 0..head.verbs {
        let item = Item::take(fields)?;
        // `check` has seen that they are there.
        let words = memory.range(item.offset, item.len).unwrap_or_default();
        // An atomic has one; a READ or WRITE of nothing has none, and does not look at it.
        let none = AtomicU64::new(0);
        let word = words.first().unwrap_or(&none);
        match item.op {
            Op::Read => {
                append(words, reply);
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
    Ok(())
}
