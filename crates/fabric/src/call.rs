//! Calls: requests that a memory node's CPU answers from its own region.
//!
//! A fabric has the verb CALL where its memory nodes have a [`CallHandler`]
//! ([`Capabilities::call`](crate::Capabilities::call)); [`Span::call`](crate::Span::call) posts one. A handler reads
//! the region, and may store whole words in it ([`RegionView::store`]). It runs on the thread that serves the memory
//! node, so it must return within microseconds to a few milliseconds.
//!
//! What a handler sees (N4): each aligned 8-byte word whole. Words that change while the handler runs may be of
//! different times. What a READ, CAS or FAA has returned is in the region before a CALL that is posted afterwards.
//!
//! What a handler stores: words, one after the other, each of them whole. A verb that sees a word sees what the handler
//! stored before it, and a verb that is posted after the call has completed sees all of it. A store is not atomic
//! together with a CAS or FAA of the same word (N6): a handler stores to words that no atomic is posted on meanwhile.
//!
//! Invariants: request and reply have at most [`MAX_CALL_LEN`] bytes; a refusal, a reply that is too long and a panic
//! of the handler are an error of that call, [`FabricError::CallRefused`](crate::FabricError::CallRefused), and of
//! nothing else. No call of a revoked client takes effect (G6): a fabric runs handlers where it carries out verbs,
//! behind the same check.
//!
//! ```
//! use farindex_fabric::call::{CallTable, gather_request};
//! use farindex_fabric::{Executor, Fabric, MemoryFabric, NodeId, OpKind, RemotePtr};
//!
//! // Handler 100 sums a range of words.
//! let table = CallTable::builtin().with(100, |view, request| {
//!     let _ = request;
//!     let words = view.read(64, 16).ok_or("the region is too small")?;
//!     Ok(words.iter().sum::<u64>().to_le_bytes().to_vec())
//! });
//! let fabric = MemoryFabric::new(1, 4096)?.with_call_handler(table.into_handler());
//! let endpoint = fabric.connect(&fabric.new_identity())?;
//! Executor::new().block_on(&endpoint, async {
//!     let (span, node) = (endpoint.span(OpKind::Other), NodeId::new(0));
//!     span.write(RemotePtr::new(node, 64), endpoint.buf_from_words(&[40, 2])).await?;
//!     assert_eq!(span.call(node, endpoint.buf_from_words(&[100])).await?, 42_u64.to_le_bytes());
//!     let ranges = gather_request(&[(72, 8), (64, 8)]);
//!     let reply = span.call(node, endpoint.buf_from_words(&ranges)).await?;
//!     assert_eq!(reply, [2_u64.to_le_bytes(), 40_u64.to_le_bytes()].concat());
//!     Ok::<(), farindex_fabric::FabricError>(())
//! })?;
//! # Ok::<(), farindex_fabric::FabricError>(())
//! ```

use crate::NodeId;
use crate::words::{Words, load, store};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Bytes of a request or of a reply at most. It fits one message of every fabric.
pub const MAX_CALL_LEN: usize = 32 << 10;

/// Number of the built-in handler that returns its request without the number.
pub const ECHO: u64 = 1;
/// Number of the built-in handler that reads several ranges of the region: see [`gather_request`].
pub const GATHER: u64 = 2;
/// Number of the built-in handler that stores words in several ranges of the region: see [`scatter_request`].
pub const SCATTER: u64 = 3;

/// Answers calls to a memory node from its region. Requests are whole 8-byte words: a shorter one was padded with
/// zeros.
pub type CallHandler = dyn Fn(&RegionView<'_>, &[u8]) -> Result<Vec<u8>, CallRefused> + Send + Sync;

/// Why a call was refused, for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CallRefused(pub String);

impl From<&str> for CallRefused {
    fn from(why: &str) -> Self {
        CallRefused(why.to_owned())
    }
}

impl From<String> for CallRefused {
    fn from(why: String) -> Self {
        CallRefused(why)
    }
}

/// What handlers have read and stored in a region: what a call has cost the memory node's CPU, apart from its message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Ranges that were read or stored. As a rule one depends on what the one before has returned.
    pub accesses: u64,
    /// Bytes of all of these ranges.
    pub bytes: u64,
}

/// A memory node's region, as its handler sees it. It counts what is read and stored through it.
#[derive(Clone)]
pub struct RegionView<'a> {
    node: NodeId,
    memory: Memory<'a>,
    read_only: bool,
    work: Cell<Work>,
}

#[derive(Clone, Copy)]
enum Memory<'a> {
    Shared(Words<'a>),
    Exclusive(&'a [Cell<u64>]),
}

impl<'a> RegionView<'a> {
    /// A region that verbs may change while the handler runs.
    pub fn shared(node: NodeId, words: &'a [AtomicU64]) -> Self {
        RegionView { node, memory: Memory::Shared(Words(words)), read_only: false, work: Cell::default() }
    }
    /// A region that nothing changes while the handler runs, as in a simulator.
    pub fn exclusive(node: NodeId, words: &'a mut [u64]) -> Self {
        let words = Cell::from_mut(words).as_slice_of_cells();
        RegionView { node, memory: Memory::Exclusive(words), read_only: false, work: Cell::default() }
    }
    /// The same region for a client that may not change it: nothing can be stored.
    #[must_use]
    pub fn read_only(self) -> Self {
        RegionView { read_only: true, ..self }
    }
    /// What was read and stored through this view so far.
    pub fn work(&self) -> Work {
        self.work.get()
    }
    fn count(&self, bytes: u64) {
        let Work { accesses, bytes: before } = self.work.get();
        self.work.set(Work { accesses: accesses + 1, bytes: before + bytes });
    }
    /// The memory node's number.
    pub fn node(&self) -> NodeId {
        self.node
    }
    /// Bytes of the region.
    pub fn len(&self) -> u64 {
        match self.memory {
            Memory::Shared(words) => words.len(),
            Memory::Exclusive(words) => words.len() as u64 * 8,
        }
    }
    /// Has the region no bytes at all?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Reads the word at a byte offset; `None` if the offset is misaligned or beyond the end.
    pub fn word(&self, offset: u64) -> Option<u64> {
        self.read(offset, 8)?.first().copied()
    }
    /// Reads `len` bytes from a byte offset on; `None` if either is no multiple of 8, or the range reaches beyond the
    /// end.
    pub fn read(&self, offset: u64, len: u64) -> Option<Vec<u64>> {
        if !offset.is_multiple_of(8) || !len.is_multiple_of(8) {
            return None;
        }
        let read = match self.memory {
            Memory::Shared(words) => load(words.range(offset, len)?).collect(),
            Memory::Exclusive(words) => {
                let first = usize::try_from(offset / 8).ok()?;
                let count = usize::try_from(len / 8).ok()?;
                words.get(first..first.checked_add(count)?)?.iter().map(Cell::get).collect()
            }
        };
        self.count(len);
        Some(read)
    }
    /// Stores words from a byte offset on, in their order; `None`, and nothing is stored, if the offset is misaligned, the
    /// words reach beyond the end, or the client may not change the region.
    pub fn store(&self, offset: u64, words: &[u64]) -> Option<()> {
        if !offset.is_multiple_of(8) || self.read_only {
            return None;
        }
        match self.memory {
            Memory::Shared(to) => store(to.range(offset, words.len() as u64 * 8)?, words.iter().copied()),
            Memory::Exclusive(to) => {
                let first = usize::try_from(offset / 8).ok()?;
                let to = to.get(first..first.checked_add(words.len())?)?;
                to.iter().zip(words).for_each(|(to, word)| to.set(*word));
            }
        }
        self.count(words.len() as u64 * 8);
        Some(())
    }
}

/// Runs a handler, and holds it to the invariants of this module. Every fabric that answers calls goes through here.
pub fn answer(handler: &CallHandler, view: &RegionView<'_>, request: &[u8]) -> Result<Vec<u8>, CallRefused> {
    check_request(request.len())?;
    // What a panic leaves half done is in far memory: its caller must be prepared for that, as for a client's crash.
    let reply = catch_unwind(AssertUnwindSafe(|| handler(view, request)));
    let reply = reply.map_err(|_| CallRefused::from("the handler panicked"))??;
    if reply.len() > MAX_CALL_LEN {
        return Err(CallRefused(format!("a reply of {} bytes: it has at most {MAX_CALL_LEN}", reply.len())));
    }
    Ok(reply)
}

/// Checks the length of a request in bytes.
pub(crate) fn check_request(len: usize) -> Result<(), CallRefused> {
    if len > MAX_CALL_LEN {
        return Err(CallRefused(format!("a request of {len} bytes: it has at most {MAX_CALL_LEN}")));
    }
    Ok(())
}

/// Handlers by number. The first word of a request names the handler, which gets the rest of the request.
#[derive(Default)]
pub struct CallTable {
    handlers: BTreeMap<u64, Box<CallHandler>>,
}

impl CallTable {
    /// A table without handlers.
    pub fn new() -> Self {
        CallTable::default()
    }
    /// A table with the built-in handlers, [`ECHO`], [`GATHER`] and [`SCATTER`].
    pub fn builtin() -> Self {
        CallTable::new().with(ECHO, |_, request| Ok(request.to_vec())).with(GATHER, gather).with(SCATTER, scatter)
    }
    /// Adds a handler, or replaces the one that has this number.
    #[must_use]
    pub fn with<F>(mut self, number: u64, handler: F) -> Self
    where
        F: Fn(&RegionView<'_>, &[u8]) -> Result<Vec<u8>, CallRefused> + Send + Sync + 'static,
    {
        self.handlers.insert(number, Box::new(handler));
        self
    }
    /// One handler that dispatches by number.
    pub fn into_handler(self) -> Arc<CallHandler> {
        Arc::new(move |view: &RegionView<'_>, request: &[u8]| {
            let Some((number, rest)) = request.split_first_chunk() else {
                return Err("a request begins with the number of its handler".into());
            };
            let number = u64::from_le_bytes(*number);
            let handler = self.handlers.get(&number);
            let handler = handler.ok_or_else(|| CallRefused(format!("there is no handler {number}")))?;
            handler(view, rest)
        })
    }
}

/// The words of a request to [`GATHER`]: the handler reads these ranges (byte offset and length in bytes, multiples of
/// 8) one after the other, and replies with their bytes.
pub fn gather_request(ranges: &[(u64, u64)]) -> Vec<u64> {
    let fields = ranges.iter().flat_map(|(offset, len)| [*offset, *len]);
    std::iter::once(GATHER).chain(fields).collect()
}

fn gather(view: &RegionView<'_>, request: &[u8]) -> Result<Vec<u8>, CallRefused> {
    let (ranges, rest) = request.as_chunks::<16>();
    if !rest.is_empty() {
        return Err("a range is two words: offset and length".into());
    }
    let mut reply = Vec::new();
    for range in ranges {
        let (offset, len) = range.split_at(8);
        let field = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let (offset, len) = (field(offset), field(len));
        // Before anything is allocated for it.
        if len > (MAX_CALL_LEN - reply.len()) as u64 {
            return Err(CallRefused(format!("the ranges have more than {MAX_CALL_LEN} bytes together")));
        }
        let words = view.read(offset, len);
        let words = words.ok_or_else(|| {
            CallRefused(format!(
                "{len} bytes at {offset:#x}: ranges are multiples of 8, within the region's {} bytes",
                view.len()
            ))
        })?;
        words.iter().for_each(|word| reply.extend_from_slice(&word.to_le_bytes()));
    }
    Ok(reply)
}

/// The words of a request to [`SCATTER`]: the handler stores each range's words at its byte offset, a multiple of 8, one
/// range after the other. The reply has no bytes.
pub fn scatter_request(ranges: &[(u64, &[u64])]) -> Vec<u64> {
    let mut request = vec![SCATTER];
    for (offset, words) in ranges {
        request.extend([*offset, words.len() as u64]);
        request.extend_from_slice(words);
    }
    request
}

fn scatter(view: &RegionView<'_>, request: &[u8]) -> Result<Vec<u8>, CallRefused> {
    let words: Vec<u64> = request.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let (mut rest, mut ranges) = (&words[..], Vec::new());
    while let Some(([offset, len], behind)) = rest.split_first_chunk() {
        let data = usize::try_from(*len).ok().and_then(|len| behind.split_at_checked(len));
        let (data, behind) = data.ok_or("a range is its offset, the number of its words, and the words")?;
        // Nothing is stored unless all of it can be.
        if view.read(*offset, data.len() as u64 * 8).is_none() {
            return Err(CallRefused(format!("{} words at {offset:#x} are not within the region", data.len())));
        }
        ranges.push((*offset, data));
        rest = behind;
    }
    if !rest.is_empty() {
        return Err("a range is its offset, the number of its words, and the words".into());
    }
    ranges
        .into_iter()
        .try_for_each(|(offset, data)| view.store(offset, data))
        .ok_or("the client may not change the region")?;
    Ok(Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(handler: &CallHandler, request: &[u64]) -> Result<Vec<u8>, CallRefused> {
        let mut memory: Vec<u64> = (0..MAX_CALL_LEN as u64 / 4).collect();
        let bytes: Vec<u8> = request.iter().flat_map(|word| word.to_le_bytes()).collect();
        answer(handler, &RegionView::exclusive(NodeId::new(0), &mut memory), &bytes)
    }

    #[test]
    fn both_kinds_of_view_read_the_same() {
        let mut plain: Vec<u64> = (0..8).collect();
        let atomic: Vec<AtomicU64> = (0..8).map(AtomicU64::new).collect();
        let views = [RegionView::shared(NodeId::new(3), &atomic), RegionView::exclusive(NodeId::new(3), &mut plain)];
        for view in views {
            assert_eq!((view.len(), view.is_empty(), view.node()), (64, false, NodeId::new(3)));
            assert_eq!(view.read(48, 16), Some(vec![6, 7]));
            assert_eq!(view.read(64, 0), Some(vec![]));
            assert_eq!((view.word(56), view.word(64), view.word(4)), (Some(7), None, None));
            for (offset, len) in [(56, 16), (0, 72), (1, 8), (0, 7), (u64::MAX - 7, 8), (8, u64::MAX - 7)] {
                assert_eq!(view.read(offset, len), None, "{len} bytes at {offset}");
            }
            for offset in [1, 56, 64, u64::MAX - 7] {
                assert_eq!(view.store(offset, &[1, 1]), None, "two words at {offset}");
            }
            assert_eq!(view.read(0, 64), Some((0..8).collect()));
            // What is refused is no work: three reads of 16 bytes, 0 bytes and a word, and the whole region.
            assert_eq!(view.work(), Work { accesses: 4, bytes: 16 + 8 + 64 });
            let read_only = view.clone().read_only();
            assert_eq!((read_only.store(48, &[60, 70]), read_only.word(48)), (None, Some(6)));
            assert_eq!((view.store(48, &[60, 70]), view.read(40, 24)), (Some(()), Some(vec![5, 60, 70])));
            assert_eq!(view.work(), Work { accesses: 6, bytes: 16 + 8 + 64 + 16 + 24 });
        }
    }

    #[test]
    fn a_table_answers_by_number_and_refuses_the_rest() {
        let long = |_: &RegionView<'_>, _: &[u8]| Ok(vec![0; MAX_CALL_LEN + 1]);
        let handler = CallTable::builtin().with(7, long).with(8, |_, _| panic!("planted")).into_handler();
        let ask = |request: &[u64]| ask(&*handler, request);
        assert_eq!(ask(&[ECHO, 5]), Ok(5_u64.to_le_bytes().to_vec()));
        assert_eq!(ask(&gather_request(&[])), Ok(vec![]));
        let whole = ask(&gather_request(&[(0, MAX_CALL_LEN as u64)])).map(|reply| reply.len());
        assert_eq!(whole, Ok(MAX_CALL_LEN));
        assert_eq!(ask(&scatter_request(&[(8, &[5, 6]), (64, &[7])])), Ok(vec![]));
        let refused: [(&[u64], &str); 12] = [
            (&[SCATTER, 0], "a range is its offset"),
            (&[SCATTER, 0, 2, 5], "a range is its offset"),
            (&[SCATTER, 0, 1, 5, 4, 1, 5], "not within the region"),
            (&[], "begins with the number"),
            (&[99], "no handler 99"),
            (&[7], "a reply of 32769 bytes"),
            (&[8], "panicked"),
            (&[GATHER, 0], "two words"),
            (&[GATHER, 0, 4], "multiples of 8"),
            (&[GATHER, 1 << 60, 8], "within the region"),
            (&[GATHER, 0, 8, 0, MAX_CALL_LEN as u64], "more than 32768 bytes"),
            (&[0; MAX_CALL_LEN / 8 + 1], "a request of"),
        ];
        for (request, why) in refused {
            let error = ask(request).expect_err(why);
            assert!(error.to_string().contains(why), "{error}");
        }
    }
}
