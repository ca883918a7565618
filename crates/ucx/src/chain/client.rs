//! The client's side: write a chain, and put its results back into it.

use super::{
    ANSWERED, CALL, CALL_HEADER, CAS, FAA, FENCED, MASKED_CAS, MAX_CHAIN, MAX_VERBS, READ, REFUSED, REPLY_HEADER,
    REQUEST_HEADER, Status, VERB_HEADER, WRITE,
};
use farindex_fabric::call::MAX_CALL_LEN;
use farindex_fabric::{CallRefused, NodeId, Verb, VerbKind};
use farindex_remote::wire::{Malformed, Reader, Writer};

/// Sizes of a chain's messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes of the request.
    pub request: u64,
    /// Bytes of the reply, at most: a call may be answered by fewer.
    pub reply: u64,
    /// Verbs.
    pub verbs: usize,
}

impl Sizes {
    /// May it be sent?
    pub fn fit(self) -> bool {
        self.request.max(self.reply) <= MAX_CHAIN as u64 && self.verbs <= MAX_VERBS
    }
}

/// Computes the sizes of the messages of those verbs that go to one node.
pub fn sizes(chain: &[Verb], node: NodeId) -> Sizes {
    let mut sizes = Sizes { request: REQUEST_HEADER as u64, reply: REPLY_HEADER as u64, verbs: 0 };
    for verb in chain.iter().filter(|verb| is_data(verb, node)) {
        let (asked, answered) = match &verb.kind {
            VerbKind::Read(buf) => (0, buf.len()),
            VerbKind::Write(buf) => (buf.len(), 0),
            VerbKind::Cas { .. } => (16, 8),
            VerbKind::Faa { .. } => (8, 8),
            VerbKind::MaskedCas { .. } => (32, 8),
            VerbKind::Call { request, .. } => (request.len(), CALL_HEADER + MAX_CALL_LEN),
            VerbKind::Revoke(_) => (0, 0),
        };
        sizes.request += (VERB_HEADER + asked) as u64;
        sizes.reply += answered as u64;
        sizes.verbs += 1;
    }
    sizes
}

fn is_data(verb: &Verb, node: NodeId) -> bool {
    verb.node() == node && !matches!(verb.kind, VerbKind::Revoke(_))
}

/// Writes the request with those verbs of a chain that go to one node.
pub fn encode(chain: &[Verb], node: NodeId, session: u64, sequence: u64, out: &mut Vec<u8>) {
    let Sizes { request, verbs, .. } = sizes(chain, node);
    out.reserve(request as usize);
    out.put_u64(session);
    out.put_u64(sequence);
    out.put_u32(verbs as u32);
    out.put_u32(0);
    for verb in chain.iter().filter(|verb| is_data(verb, node)) {
        let (kind, len) = match &verb.kind {
            VerbKind::Read(buf) => (READ, buf.len()),
            VerbKind::Write(buf) => (WRITE, buf.len()),
            VerbKind::Cas { .. } => (CAS, 8),
            VerbKind::Faa { .. } => (FAA, 8),
            VerbKind::MaskedCas { .. } => (MASKED_CAS, 8),
            VerbKind::Call { request, .. } => (CALL, request.len()),
            VerbKind::Revoke(_) => continue,
        };
        out.put_u8(kind);
        out.put_u8(if verb.fence { FENCED } else { 0 });
        out.put_u16(0);
        out.put_u32(len as u32);
        out.put_u64(if kind == CALL { 0 } else { verb.ptr.offset() });
        match &verb.kind {
            VerbKind::Write(buf) | VerbKind::Call { request: buf, .. } => out.extend_from_slice(buf.bytes()),
            VerbKind::Cas { expect, new, .. } => [*expect, *new].into_iter().for_each(|word| out.put_u64(word)),
            VerbKind::Faa { add, .. } => out.put_u64(*add),
            VerbKind::MaskedCas { expect, new, compare_mask, swap_mask, .. } => {
                [*expect, *new, *compare_mask, *swap_mask].into_iter().for_each(|word| out.put_u64(word));
            }
            VerbKind::Read(_) | VerbKind::Revoke(_) => {}
        }
    }
}

/// The front of a reply, and what follows it.
#[derive(Debug, Clone, Copy)]
pub struct Answer<'a> {
    /// Which request it answers.
    pub sequence: u64,
    /// Its status.
    pub status: Status,
    /// Which verb it was refused for, from 0 among those of the request.
    pub verb: u32,
    results: Reader<'a>,
}

impl<'a> Answer<'a> {
    /// Reads the front.
    pub fn read(reply: &'a [u8]) -> Result<Self, Malformed> {
        let mut fields = Reader::new(reply);
        let sequence = fields.u64()?;
        let status = Status::of_number(fields.u32()?).ok_or(Malformed::Field("no status"))?;
        Ok(Answer { sequence, status, verb: fields.u32()?, results: fields })
    }
}

/// Puts the results of a request that was carried out into the verbs of the chain that went to that node.
pub fn fill(chain: &mut [Verb], node: NodeId, answer: Answer<'_>) -> Result<(), Malformed> {
    let mut results = answer.results;
    for verb in chain.iter_mut().filter(|verb| is_data(verb, node)) {
        match &mut verb.kind {
            VerbKind::Read(buf) => {
                let bytes = results.bytes(buf.len())?;
                buf.bytes_mut().copy_from_slice(bytes);
            }
            VerbKind::Cas { old, .. } | VerbKind::Faa { old, .. } | VerbKind::MaskedCas { old, .. } => {
                *old = results.u64()?;
            }
            VerbKind::Call { reply, .. } => {
                let outcome = results.u32()?;
                let bytes = results.counted()?;
                *reply = Some(match outcome {
                    ANSWERED => Ok(bytes.to_vec()),
                    REFUSED => Err(CallRefused(String::from_utf8_lossy(bytes).into_owned())),
                    _ => return Err(Malformed::Field("a call is answered or refused")),
                });
            }
            VerbKind::Write(_) | VerbKind::Revoke(_) => {}
        }
    }
    results.end()
}

/// Finds the verb of the chain that a refusal names.
pub(crate) fn refused_verb(chain: &[Verb], node: NodeId, verb: u32) -> Option<&Verb> {
    chain.iter().filter(|verb| is_data(verb, node)).nth(verb as usize)
}
