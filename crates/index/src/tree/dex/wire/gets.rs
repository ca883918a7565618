//! Requests that look many keys up, and their replies.
//!
//! Invariants: whatever words come, decoding them gives requests or answers within the limits of this module, or nothing. A
//! reply answers the first keys of its request, in their order: all of them, or as many as it has room for.

use super::{Ask, MAX_KEY, Outcome, Reply, Request, padded};
use crate::tree::node::{Layout, MAX_LEVEL, MAX_SPAN};
use farindex_fabric::RemotePtr;
use farindex_fabric::call::MAX_CALL_LEN;

/// Number of the handler that looks many keys up.
pub(in crate::tree::dex) const HANDLER: u64 = 0x11;
/// Most keys of a request: so many walks take a memory node less than a millisecond.
pub(in crate::tree::dex) const MOST: usize = 128;
/// Words of a request before its keys, with the handler's number.
const HEAD: usize = 3;
const LEVEL_SHIFT: u32 = 48;
const LEN_SHIFT: u32 = 52;

/// A request in the making: keys, each of which is looked up from a node on.
#[derive(Debug)]
pub(in crate::tree::dex) struct Gets {
    words: Vec<u64>,
    keys: usize,
}

impl Gets {
    /// A request about the index with this tag, whose nodes have these layouts; without keys.
    pub(in crate::tree::dex) fn new(tag: u64, inner: Layout, leaf: Layout) -> Self {
        Gets { words: vec![HANDLER, inner.span as u64 | (leaf.span as u64) << 16, tag], keys: 0 }
    }
    /// Adds a key, with its hash, and the node with its level from which on it is to be looked up. False, and nothing is
    /// added, if there is no room for it, or it fits no request.
    pub(in crate::tree::dex) fn add(&mut self, key: &[u8], hash: u64, (start, level): (RemotePtr, u8)) -> bool {
        let Some(start) = start.to_slot().filter(|_| key.len() <= MAX_KEY && level <= MAX_LEVEL) else { return false };
        if self.keys == MOST || (self.words.len() + 2 + key.len().div_ceil(8)) * 8 > MAX_CALL_LEN {
            return false;
        }
        self.words.extend([start | u64::from(level) << LEVEL_SHIFT | (key.len() as u64) << LEN_SHIFT, hash]);
        self.words.extend(padded(key));
        self.keys += 1;
        true
    }
    /// Its words, with the handler's number.
    pub(in crate::tree::dex) fn words(&self) -> &[u64] {
        &self.words
    }
}

/// Decodes what comes behind the handler's number: a request for each key.
pub(in crate::tree::dex) fn decode(bytes: &[u8]) -> Option<Vec<Request<'_>>> {
    let (head, mut rest) = bytes.split_at_checked((HEAD - 1) * 8)?;
    let &[spans, tag] = head.as_chunks::<8>().0 else { return None };
    let [spans, tag] = [spans, tag].map(u64::from_le_bytes);
    let span = |bits: u64| {
        let span = bits as usize;
        (1..=MAX_SPAN).contains(&span).then(|| Layout::new(span))
    };
    let (inner, leaf) = (span(spans & 0xFFFF)?, span(spans >> 16)?);
    let mut requests = Vec::new();
    while !rest.is_empty() {
        let (head, behind) = rest.split_at_checked(16)?;
        let &[what, hash] = head.as_chunks::<8>().0 else { return None };
        let [what, hash] = [what, hash].map(u64::from_le_bytes);
        let (level, len) = ((what >> LEVEL_SHIFT & 0xF) as u8, (what >> LEN_SHIFT) as usize);
        let (key, behind) = behind.split_at_checked(len.next_multiple_of(8))?;
        let key = key.get(..len).filter(|_| len <= MAX_KEY && requests.len() < MOST)?;
        let start = RemotePtr::from_slot(what & ((1 << LEVEL_SHIFT) - 1));
        requests.push(Request { ask: Ask::Get, start, level, inner, leaf, tag, hash, key, bounds: (&[], None) });
        rest = behind;
    }
    Some(requests)
}

/// A reply in the making.
#[derive(Debug, Default)]
pub(in crate::tree::dex) struct Answers(Vec<u8>);

impl Answers {
    /// Adds the answer for the next key. False, and nothing is added, if there is no room for it.
    pub(in crate::tree::dex) fn add(&mut self, reply: &Reply) -> bool {
        if self.0.len() + (1 + reply.carried.len()) * 8 > MAX_CALL_LEN {
            return false;
        }
        let head = reply.outcome.number() as u64 | u64::from(reply.visited) << 8 | (reply.len as u64) << 32;
        self.0.extend_from_slice(&head.to_le_bytes());
        reply.carried.iter().for_each(|word| self.0.extend_from_slice(&word.to_le_bytes()));
        true
    }
    pub(in crate::tree::dex) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Decodes a reply: the answers for the first keys of a request; `None` if it makes no sense. No answer says where the walk has
/// ended.
pub(in crate::tree::dex) fn decode_answers(bytes: &[u8]) -> Option<Vec<Reply>> {
    let (mut rest, mut replies) = (bytes, Vec::new());
    while !rest.is_empty() {
        let (head, behind) = rest.split_first_chunk()?;
        let head = u64::from_le_bytes(*head);
        let len = (head >> 32) as usize;
        let (carried, behind) = behind.split_at_checked(len.checked_next_multiple_of(8)?)?;
        let reply = Reply {
            outcome: *Outcome::ALL.get((head & 0xFF) as usize)?,
            at: RemotePtr::NULL,
            entries: 0,
            visited: (head >> 8 & 0xFF) as u8,
            len,
            carried: carried.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect(),
        };
        if replies.len() == MOST {
            return None;
        }
        replies.push(reply);
        rest = behind;
    }
    Some(replies)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farindex_fabric::NodeId;

    const LAYOUTS: (usize, usize) = (59, 256);

    fn gets() -> Gets {
        Gets::new(77, Layout::new(LAYOUTS.0), Layout::new(LAYOUTS.1))
    }
    fn start(number: u64) -> RemotePtr {
        RemotePtr::new(NodeId::new(3), 64 * number)
    }
    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().skip(1).flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn requests_come_as_they_were_sent() {
        let keys = [&b""[..], b"12345678", b"a key of more than eight bytes", &[7; MAX_KEY]];
        let mut gets = gets();
        for (i, key) in keys.into_iter().enumerate() {
            assert!(gets.add(key, i as u64 * 11, (start(i as u64), i as u8)));
        }
        let bytes = bytes(gets.words());
        let requests = decode(&bytes).expect("a request");
        assert_eq!(requests.len(), keys.len());
        for (i, (request, key)) in requests.iter().zip(keys).enumerate() {
            assert_eq!((request.key, request.hash), (key, i as u64 * 11));
            assert_eq!((request.start, request.level), (start(i as u64), i as u8));
            assert_eq!((request.inner.span, request.leaf.span, request.tag), (LAYOUTS.0, LAYOUTS.1, 77));
            assert_eq!((request.ask, request.bounds), (Ask::Get, (&[][..], None)));
        }
    }

    #[test]
    fn a_request_has_room_for_so_many_keys_and_bytes() {
        let mut long = gets();
        let added = (0..).take_while(|_| long.add(&[1; MAX_KEY], 0, (start(1), 0))).count();
        assert_eq!(added, (MAX_CALL_LEN - HEAD * 8) / (16 + MAX_KEY));
        assert!(long.words().len() * 8 <= MAX_CALL_LEN && decode(&bytes(long.words())).is_some());
        let mut short = gets();
        assert_eq!((0..).take_while(|_| short.add(b"12345678", 0, (start(1), 0))).count(), MOST);
        let odd = RemotePtr::new(NodeId::new(0), 8);
        for (key, at) in [(&[0; MAX_KEY + 1][..], (start(1), 0)), (b"", (start(1), MAX_LEVEL + 1)), (b"", (odd, 0))] {
            assert!(!gets().add(key, 0, at), "{at:?}");
        }
    }

    #[test]
    fn requests_that_make_no_sense_are_refused() {
        let mut whole = gets();
        assert!(whole.add(b"123456789", 5, (start(2), 1)) && decode(&bytes(whole.words())).is_some());
        let words = whole.words().to_vec();
        for cut in 4..words.len() {
            assert_eq!(decode(&bytes(&words[..cut])), None, "{cut} words");
        }
        assert_eq!(decode(&[]), None);
        for (word, to) in
            [(1, 0), (1, 59), (1, 59 | 257 << 16), (1, words[1] | 1 << 40), (3, words[3] | 0xFFF << LEN_SHIFT)]
        {
            let mut wrong = words.clone();
            wrong[word] = to;
            assert_eq!(decode(&bytes(&wrong)), None, "{to:#x} as word {word}");
        }
        let mut many = words[..HEAD].to_vec();
        (0..=MOST).for_each(|_| many.extend([0, 0]));
        assert_eq!(decode(&bytes(&many)), None);
        assert_eq!(decode(&bytes(&many[..many.len() - 2])).map(|requests| requests.len()), Some(MOST));
    }

    #[test]
    fn answers_come_as_they_were_sent_as_many_as_there_is_room_for() {
        let mut answers = Answers::default();
        for outcome in Outcome::ALL {
            let reply = Reply { visited: 4, len: 13, ..Reply::with(outcome, RemotePtr::NULL, vec![1, 2]) };
            assert!(answers.add(&reply));
        }
        let bytes = answers.into_bytes();
        let decoded = decode_answers(&bytes).expect("answers");
        assert!(decoded.iter().map(|reply| reply.outcome).eq(Outcome::ALL));
        assert!(decoded.iter().all(|reply| (reply.visited, reply.len, &*reply.carried) == (4, 13, &[1, 2])));
        assert_eq!(decode_answers(&bytes[..bytes.len() - 8]), None);
        assert_eq!(decode_answers(&[15; 16]), None);
        assert_eq!(decode_answers(&[0; (MOST + 1) * 8]), None);
        let mut full = Answers::default();
        let longest = Reply::with(Outcome::Found, RemotePtr::NULL, vec![7; super::super::MAX_CARRIED]);
        assert!(full.add(&longest) && !full.add(&longest));
        assert!(full.into_bytes().len() <= MAX_CALL_LEN);
        // Two that each have room alone.
        let mut full = Answers::default();
        let long = Reply::with(Outcome::Found, RemotePtr::NULL, vec![7; super::super::MAX_CARRIED * 3 / 5]);
        assert!(full.add(&long) && !full.add(&long));
        assert!(full.into_bytes().len() <= MAX_CALL_LEN);
    }
}
