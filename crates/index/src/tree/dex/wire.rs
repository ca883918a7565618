//! Requests to a memory node, and its replies: words, as `docs/layouts/tree.md` has them.
//!
//! Invariants: whatever words come, decoding them gives a request or a reply within the limits of this module, or nothing.

pub(super) mod gets;

use crate::tree::node::{Layout, MAX_LEVEL, MAX_SPAN};
use crate::write::Mode;
use farindex_fabric::RemotePtr;
use farindex_fabric::call::MAX_CALL_LEN;

/// Number of the handler of trees: see [`CallTable`](farindex_fabric::CallTable).
pub(super) const HANDLER: u64 = 0x10;
/// Longest key in a request, and longest bound of a partition.
pub(super) const MAX_KEY: usize = 1024;
/// Words of a request before its keys.
const REQUEST_HEAD: usize = 6;
/// Words of a reply before what it carries.
pub(super) const REPLY_HEAD: usize = 2;
/// Most words of what a reply carries.
pub(super) const MAX_CARRIED: usize = MAX_CALL_LEN / 8 - REPLY_HEAD;

/// What a memory node is asked to do at the leaf of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    /// Look the key up.
    Get,
    /// Return the leaf's address.
    Locate,
    /// Insert, update or upsert the key, of 8 bytes, with this value. The caller has the leaf's turn.
    Put(Mode<'static>, u64),
    /// Remove the key, of 8 bytes. The caller has the leaf's turn.
    Remove,
    /// Return the words of so many leaves at most, from this one on.
    Leaves(u64),
}

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request<'k> {
    pub(super) ask: Ask,
    /// The node where the walk begins, and its level.
    pub(super) start: RemotePtr,
    pub(super) level: u8,
    pub(super) inner: Layout,
    pub(super) leaf: Layout,
    /// The index tag.
    pub(super) tag: u64,
    /// The key's hash, as slots with blocks have it.
    pub(super) hash: u64,
    pub(super) key: &'k [u8],
    /// The partition: a leaf that reaches beyond it is not changed.
    pub(super) bounds: (&'k [u8], Option<&'k [u8]>),
}

fn padded(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
        u64::from_le_bytes(word)
    })
}

impl<'k> Request<'k> {
    /// The words of the request, with the handler's number. `None` if a key is too long.
    pub(super) fn encode(&self) -> Option<Vec<u64>> {
        let (from, to) = self.bounds;
        let lens = [self.key.len(), from.len(), to.map_or(0, <[u8]>::len)];
        if lens.iter().any(|len| *len > MAX_KEY) {
            return None;
        }
        let (ask, mode, argument) = match self.ask {
            Ask::Get => (1, 0, 0),
            Ask::Locate => (2, 0, 0),
            Ask::Put(Mode::Insert, value) => (3, 1, value),
            Ask::Put(Mode::Update(_), value) => (3, 2, value),
            Ask::Put(Mode::Upsert, value) => (3, 3, value),
            Ask::Remove => (4, 0, 0),
            Ask::Leaves(most) => (5, 0, most),
        };
        let (inner, leaf) = (self.inner.span as u64, self.leaf.span as u64);
        let [key, low, high] = lens.map(|len| len as u64);
        let mut words = vec![
            HANDLER,
            ask | u64::from(self.level) << 8 | mode << 16 | inner << 24 | leaf << 40,
            self.tag,
            self.start.to_bits(),
            self.hash,
            argument,
            key | low << 16 | high << 32 | u64::from(to.is_some()) << 48,
        ];
        for bytes in [self.key, from, to.unwrap_or_default()] {
            words.extend(padded(bytes));
        }
        Some(words)
    }

    /// Decodes what comes behind the handler's number.
    pub(super) fn decode(bytes: &'k [u8]) -> Option<Self> {
        let (head, mut rest) = bytes.split_at_checked(REQUEST_HEAD * 8)?;
        let (words, _) = head.as_chunks::<8>();
        let &[what, tag, start, hash, argument, lens] = words else { return None };
        let [what, tag, start, hash, argument, lens] = [what, tag, start, hash, argument, lens].map(u64::from_le_bytes);
        let ask = match (what & 0xFF, what >> 16 & 0xFF) {
            (1, 0) => Ask::Get,
            (2, 0) => Ask::Locate,
            (3, 1) => Ask::Put(Mode::Insert, argument),
            (3, 2) => Ask::Put(Mode::UPDATE, argument),
            (3, 3) => Ask::Put(Mode::Upsert, argument),
            (4, 0) => Ask::Remove,
            (5, 0) => Ask::Leaves(argument),
            _ => return None,
        };
        let level = (what >> 8 & 0xFF) as u8;
        let span = |shift: u32| {
            let span = (what >> shift & 0xFFFF) as usize;
            (1..=MAX_SPAN).contains(&span).then(|| Layout::new(span))
        };
        let mut take = |shift: u32| {
            let len = (lens >> shift & 0xFFFF) as usize;
            let (taken, behind) = rest.split_at_checked(len.next_multiple_of(8))?;
            rest = behind;
            taken.get(..len).filter(|_| len <= MAX_KEY)
        };
        let (key, from, to) = (take(0)?, take(16)?, take(32)?);
        let request = Request {
            ask,
            start: RemotePtr::from_bits(start),
            level,
            inner: span(24)?,
            leaf: span(40)?,
            tag,
            hash,
            key,
            bounds: (from, (lens >> 48 == 1).then_some(to)),
        };
        let changes = matches!(ask, Ask::Put(..) | Ask::Remove);
        let sound = level <= MAX_LEVEL && rest.is_empty() && lens >> 48 <= 1 && (!changes || key.len() == 8);
        sound.then_some(request)
    }
}

/// What a memory node answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The reply carries the value.
    Found,
    /// The key is absent.
    Absent,
    /// One of these slots has the key, or none: their numbers and their words. Their blocks lie on other memory nodes, or
    /// the memory node makes nothing of them.
    Blocks,
    /// The leaf's address.
    Leaf,
    /// The leaf was changed; was the key present before?
    Wrote { present: bool },
    /// There is nothing to change; is the key present?
    Nothing { present: bool },
    /// The reply carries leaves: each one's address and its words.
    Leaves,
    /// The key does not belong to a node on the way, or a node is dead: the caller finds its way by verbs.
    Moved,
    /// The way leads to another memory node, to this address.
    Crosses,
    /// A node is torn, or a leaf that is to be changed is locked.
    Busy,
    /// The leaf is full.
    Full,
    /// The leaf reaches beyond the partition.
    Beyond,
    /// No node of this index lies there.
    Foreign,
}

impl Outcome {
    /// Every outcome, in the order of their numbers.
    pub(super) const ALL: [Outcome; 15] = [
        Outcome::Found,
        Outcome::Absent,
        Outcome::Blocks,
        Outcome::Leaf,
        Outcome::Wrote { present: false },
        Outcome::Wrote { present: true },
        Outcome::Nothing { present: false },
        Outcome::Nothing { present: true },
        Outcome::Leaves,
        Outcome::Moved,
        Outcome::Crosses,
        Outcome::Busy,
        Outcome::Full,
        Outcome::Beyond,
        Outcome::Foreign,
    ];

    pub(super) fn number(self) -> usize {
        Outcome::ALL.iter().position(|outcome| *outcome == self).unwrap_or(Outcome::ALL.len() - 1)
    }
}

/// A reply.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) outcome: Outcome,
    /// The node where the walk has ended.
    pub(super) at: RemotePtr,
    /// Entries of a leaf that was changed.
    pub(super) entries: usize,
    /// Nodes that were read.
    pub(super) visited: u8,
    /// Bytes of the value that the reply carries; otherwise those of all of its words.
    pub(super) len: usize,
    pub(super) carried: Vec<u64>,
}

impl Reply {
    pub(super) fn new(outcome: Outcome, at: RemotePtr) -> Self {
        Reply { outcome, at, entries: 0, visited: 0, len: 0, carried: Vec::new() }
    }
    /// A reply that carries words.
    pub(super) fn with(outcome: Outcome, at: RemotePtr, carried: Vec<u64>) -> Self {
        Reply { len: carried.len() * 8, carried, ..Reply::new(outcome, at) }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let outcome = self.outcome.number() as u64;
        let visited = u64::from(self.visited);
        let head = outcome | visited << 8 | (self.entries as u64 & 0xFFFF) << 16 | (self.len as u64) << 32;
        let words = [head, self.at.to_bits()];
        words.iter().chain(&self.carried).flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Decodes a reply; `None` if it makes no sense.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.as_chunks::<8>();
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        let (head, at) = (words.next()?, words.next()?);
        let carried: Vec<u64> = words.collect();
        let len = (head >> 32) as usize;
        let reply = Reply {
            outcome: *Outcome::ALL.get((head & 0xFF) as usize)?,
            at: RemotePtr::from_bits(at),
            entries: (head >> 16 & 0xFFFF) as usize,
            visited: (head >> 8 & 0xFF) as u8,
            len,
            carried,
        };
        (rest.is_empty() && len.div_ceil(8) == reply.carried.len()).then_some(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farindex_fabric::NodeId;

    fn request() -> Request<'static> {
        Request {
            ask: Ask::Put(Mode::Upsert, 7),
            start: RemotePtr::new(NodeId::new(3), 640),
            level: 2,
            inner: Layout::new(59),
            leaf: Layout::new(256),
            tag: u64::MAX,
            hash: 5,
            key: b"12345678",
            bounds: (b"low", Some(b"a bound of more than eight bytes")),
        }
    }
    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().skip(1).flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn requests_come_as_they_were_sent() {
        let asks = [Ask::Get, Ask::Locate, Ask::Put(Mode::Insert, 1), Ask::Put(Mode::UPDATE, 2), Ask::Remove];
        for ask in asks.into_iter().chain([Ask::Put(Mode::Upsert, 3), Ask::Leaves(9)]) {
            for bounds in [(&b""[..], None), (b"low", Some(&b""[..])), request().bounds] {
                let sent = Request { ask, bounds, ..request() };
                assert_eq!(Request::decode(&bytes(&sent.encode().expect("short keys"))), Some(sent));
            }
        }
        let long = [0; MAX_KEY + 1];
        assert_eq!(Request { key: &long, ..request() }.encode(), None);
        assert_eq!(Request { bounds: (&long, None), ..request() }.encode(), None);
    }

    #[test]
    fn requests_out_of_bounds_are_refused() {
        let whole = request().encode().expect("short keys");
        let changed = |word: usize, to: u64| {
            let mut words = whole.clone();
            words[word] = to;
            Request::decode(&bytes(&words)).is_some()
        };
        assert!(changed(1, whole[1]));
        for what in [0, 6, 1 | 1 << 16, 3, 3 | 4 << 16] {
            assert!(!changed(1, whole[1] & !0xFF_00FF | what), "{what:#x}");
        }
        let spans = [whole[1] & !(0xFFFF << 24), whole[1] & !(0xFFFF << 40) | 257 << 40];
        for what in spans.into_iter().chain([whole[1] & !0xFF00 | 16 << 8]) {
            assert!(!changed(1, what), "{what:#x}");
        }
        for lens in [whole[6] | 1 << 49, whole[6] + 8, whole[6] - 1, u64::MAX] {
            assert!(!changed(6, lens), "{lens:#x}");
        }
        for cut in 0..whole.len() - 1 {
            assert_eq!(Request::decode(&bytes(&whole)[..cut * 8]), None);
        }
    }

    #[test]
    fn replies_come_as_they_were_sent() {
        for outcome in Outcome::ALL {
            let mut sent = Reply::with(outcome, RemotePtr::new(NodeId::new(1), 64), vec![1, 2]);
            (sent.entries, sent.visited, sent.len) = (59, 4, 13);
            let bytes = sent.encode();
            assert_eq!(Reply::decode(&bytes[..bytes.len() - 8]), None);
            assert_eq!(Reply::decode(&bytes), Some(sent));
        }
        assert_eq!((Reply::decode(&[]), Reply::decode(&[15; 16])), (None, None));
    }
}
