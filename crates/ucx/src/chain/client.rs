//! The client's side: write batches, and put their results back into them.

use super::{
    ANSWER_HEADER, ANSWERED, BATCH_HEADER, CALL, CALL_HEADER, CAS, FAA, FENCED, MASKED_CAS, MAX_CHAIN, MAX_VERBS,
    MESSAGE_HEADER, READ, REFUSED, Status, VERB_HEADER, WRITE,
};
use farindex_fabric::call::MAX_CALL_LEN;
use farindex_fabric::{CallRefused, FabricError, NodeId, Verb, VerbKind};
use farindex_remote::wire::{Malformed, Reader};

/// Sizes of a batch on its way to one node and back, or of the batches of one message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes of the request, without the front of the message.
    pub request: u64,
    /// Bytes of the answer, at most: a call may be answered by fewer.
    pub answer: u64,
    /// Bytes of the answer without those of calls.
    pub results: u64,
    /// Verbs.
    pub verbs: usize,
}

impl Sizes {
    /// May it be sent in one message?
    pub fn fit(self) -> bool {
        let request = MESSAGE_HEADER as u64 + self.request;
        request.max(self.answer) <= MAX_CHAIN as u64 && self.verbs <= MAX_VERBS
    }
    /// Both together.
    #[must_use]
    pub fn with(self, other: Sizes) -> Sizes {
        Sizes {
            request: self.request + other.request,
            answer: self.answer + other.answer,
            results: self.results + other.results,
            verbs: self.verbs + other.verbs,
        }
    }
}

/// Computes the sizes of those verbs that go to one node.
pub fn sizes(chain: &[Verb], node: NodeId) -> Sizes {
    let mut sizes = Sizes::of_no_verbs();
    chain.iter().filter(|verb| is_data(verb, node)).for_each(|verb| sizes.add(verb));
    sizes
}

impl Sizes {
    /// Those of a batch that has no verbs yet.
    pub fn of_no_verbs() -> Self {
        let (request, results) = (BATCH_HEADER as u64, ANSWER_HEADER as u64);
        Sizes { request, answer: results, results, verbs: 0 }
    }
    /// Adds a verb to the batch.
    #[inline]
    pub fn add(&mut self, verb: &Verb) {
        let (asked, answered) = match &verb.kind {
            VerbKind::Read(buf) => (0, buf.len()),
            VerbKind::Write(buf) => (buf.len(), 0),
            VerbKind::Cas { .. } => (16, 8),
            VerbKind::Faa { .. } => (8, 8),
            VerbKind::MaskedCas { .. } => (32, 8),
            VerbKind::Call { request, .. } => {
                self.answer += (CALL_HEADER + MAX_CALL_LEN) as u64;
                (request.len(), 0)
            }
            VerbKind::Revoke(_) => (0, 0),
        };
        self.request += (VERB_HEADER + asked) as u64;
        self.results += answered as u64;
        self.answer += answered as u64;
        self.verbs += 1;
    }
}

fn is_data(verb: &Verb, node: NodeId) -> bool {
    verb.node() == node && !matches!(verb.kind, VerbKind::Revoke(_))
}

/// Appends a batch to a message: those verbs of a chain that go to one node. An empty message gets its front first.
pub fn encode(chain: &[Verb], node: NodeId, session: u64, sequence: u64, out: &mut Vec<u8>) {
    if out.is_empty() {
        // `finish` writes the number of batches behind the session.
        put_words(out, [session, 0]);
    }
    let front = out.len();
    // The number of verbs is known when they are there.
    put_words(out, [sequence, 0]);
    let mut verbs: u32 = 0;
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
        verbs += 1;
        let flags = if verb.fence { FENCED } else { 0 };
        // Kind, flags, two bytes of zeros, length: one word.
        let what = u64::from(kind) | u64::from(flags) << 8 | u64::from(len as u32) << 32;
        let place = if kind == CALL { 0 } else { verb.ptr.offset() };
        match &verb.kind {
            VerbKind::Cas { expect, new, .. } => put_words(out, [what, place, *expect, *new]),
            VerbKind::Faa { add, .. } => put_words(out, [what, place, *add]),
            VerbKind::MaskedCas { expect, new, compare_mask, swap_mask, .. } => {
                put_words(out, [what, place, *expect, *new, *compare_mask, *swap_mask]);
            }
            VerbKind::Write(buf) | VerbKind::Call { request: buf, .. } => {
                put_words(out, [what, place]);
                out.extend_from_slice(buf.bytes());
            }
            VerbKind::Read(_) | VerbKind::Revoke(_) => put_words(out, [what, place]),
        }
    }
    if let Some(place) = out.get_mut(front + 8..front + 12) {
        place.copy_from_slice(&verbs.to_le_bytes());
    }
}

/// Appends words with one look at how much room there is.
#[inline]
fn put_words<const N: usize>(out: &mut Vec<u8>, words: [u64; N]) {
    out.extend_from_slice(words.map(u64::to_le_bytes).as_flattened());
}

/// Completes a message that holds so many batches.
pub fn finish(message: &mut [u8], batches: u32) {
    if let Some(place) = message.get_mut(8..12) {
        place.copy_from_slice(&batches.to_le_bytes());
    }
}

/// One answer of a reply.
#[derive(Debug, Clone, Copy)]
pub struct Answer<'a> {
    /// Which batch it answers.
    pub sequence: u64,
    /// Its status.
    pub status: Status,
    /// Which verb it was refused for, from 0 among those of the batch.
    pub verb: u32,
    results: Reader<'a>,
}

impl<'a> Answer<'a> {
    /// Reads the next answer of a reply; `None` at its end.
    pub fn take(reply: &mut Reader<'a>) -> Result<Option<Self>, Malformed> {
        if reply.left() == 0 {
            return Ok(None);
        }
        let sequence = reply.u64()?;
        let status = Status::of_number(reply.u32()?).ok_or(Malformed::Field("no status"))?;
        let number = reply.u32()?;
        let (verb, len) = if status == Status::Done { (0, number) } else { (number, 0) };
        let results = reply.bytes(usize::try_from(len).map_err(|_| Malformed::Truncated)?)?;
        Ok(Some(Answer { sequence, status, verb, results: Reader::new(results) }))
    }
}

/// Puts the results of a batch that was carried out into the verbs of the chain that went to that node.
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

/// What a batch fails with that its node has refused, for this verb of a region of so many bytes.
pub(crate) fn refusal(status: Status, verb: Option<&Verb>, node: NodeId, region: u64) -> FabricError {
    let (ptr, len) = verb.map_or_else(Default::default, |verb| (verb.ptr, verb.len()));
    match status {
        Status::OutOfBounds => FabricError::OutOfBounds { ptr, len, region },
        Status::Misaligned => FabricError::Misaligned { ptr, len },
        Status::ReadOnly => FabricError::ReadOnly(node),
        Status::TooLong => FabricError::TooLong { ptr, len },
        Status::Done => FabricError::Unreachable { node, reason: "its reply made no sense".to_owned() },
    }
}

/// What a batch fails with whose answer cannot be read.
#[cold]
pub(crate) fn senseless(node: NodeId, why: Malformed) -> FabricError {
    FabricError::Unreachable { node, reason: format!("its reply made no sense: {why}") }
}
