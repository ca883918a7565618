//! Everything of DEX that decodes what others have written, as one function of arbitrary bytes: for fuzzing.
//!
//! Checked: no panic; what is decoded is within the limits of its format, means the same when it is encoded and decoded
//! again, and can be used; a memory node answers every request that it can read, whatever its region holds, and changes
//! nothing but one sound leaf.
#![allow(clippy::missing_panics_doc, clippy::expect_used, missing_docs)]

use super::map::{Map, is_later, place_of, word_after};
use super::remote::add_handlers;
use super::wire::{self, MAX_CARRIED, MAX_KEY, Outcome, Reply, Request, gets};
use crate::tree::node::{self, CHECKSUM, Layout, magic};
use farindex_fabric::call::{CallTable, RegionView, answer};
use farindex_fabric::{NodeId, RemotePtr};

const HERE: NodeId = NodeId::new(1);
const TAG: u64 = 77;
const SPAN: usize = 6;
/// Places of nodes in the region, and its words.
const NODES: [u64; 4] = [512, 1024, 1536, 2048];
const WORDS: usize = 384;

/// Decodes these bytes as what their first one says.
pub fn check(bytes: &[u8]) {
    let Some((what, bytes)) = bytes.split_first() else { return };
    match what % 6 {
        0 => map(bytes),
        1 => proposal(bytes),
        2 => requests(bytes),
        3 => replies(bytes),
        4 => walk(bytes, false),
        _ => walk(bytes, true),
    }
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}
fn behind_number(words: &[u64]) -> Vec<u8> {
    words.iter().skip(1).flat_map(|word| word.to_le_bytes()).collect()
}

/// A partition map, and all maps that may follow it.
fn map(bytes: &[u8]) {
    let Some(map) = Map::decode(bytes) else { return };
    assert_eq!(Map::decode(&map.encode().expect("a map is short")).as_ref(), Some(&map));
    let owners: Vec<_> = map.partitions().map(|(partition, _)| partition.owner()).chain(map.members()).collect();
    let keys = [&b""[..], b"f", bytes.get(..9).unwrap_or_default()];
    for key in keys {
        let (partition, high) = map.find(key);
        assert!(*partition.low <= *key && high.is_none_or(|high| *key < *high));
        for owner in owners.iter().copied().take(4).chain([RemotePtr::new(HERE, 640)]) {
            for high in [None, Some(&b"\xFF\xFF"[..])].into_iter().filter(|high| high.is_none_or(|high| key < high)) {
                let next = [map.give(1, (key, high), owner), map.give_up(1, (key, high), owner), map.clean(1, owner)];
                for next in next.iter().filter(|_| !owner.is_null()) {
                    assert!(Map::decode(&next.encode().expect("a map is short")).is_some(), "{next:?} follows {map:?}");
                }
            }
        }
    }
}

/// Words of the anchor and of owner records.
fn proposal(bytes: &[u8]) {
    for pair in words(bytes).windows(2) {
        let &[word, other] = pair else { continue };
        assert!(!(is_later(word, other) && is_later(other, word)));
        let at = place_of(other);
        let next = word_after(word, at);
        assert!(is_later(next, word) && place_of(next) == at);
    }
}

fn requests(bytes: &[u8]) {
    if let Some(request) = Request::decode(bytes) {
        assert!(request.key.len().max(request.bounds.0.len()) <= MAX_KEY);
        let again = behind_number(&request.encode().expect("it was decoded"));
        assert_eq!(Request::decode(&again), Some(request));
    }
    if let Some(requests) = gets::decode(bytes) {
        assert!(requests.len() <= gets::MOST);
        let Some(first) = requests.first() else { return };
        let mut again = gets::Gets::new(first.tag, first.inner, first.leaf);
        for Request { key, hash, start, level, .. } in &requests {
            // A request that came in one message fits one message.
            assert!(bytes.len() + 8 > farindex_fabric::call::MAX_CALL_LEN || again.add(key, *hash, (*start, *level)));
        }
    }
}

fn replies(bytes: &[u8]) {
    if let Some(reply) = Reply::decode(bytes) {
        assert!(reply.len.div_ceil(8) == reply.carried.len());
        assert_eq!(Reply::decode(&reply.encode()), Some(reply));
    }
    if let Some(replies) = gets::decode_answers(bytes) {
        let mut again = gets::Answers::default();
        assert!(replies.len() <= gets::MOST);
        if replies.iter().all(|reply| again.add(reply)) {
            assert_eq!(gets::decode_answers(&again.into_bytes()), Some(replies));
        }
    }
}

/// Requests to a memory node whose region holds these words; the checksums of its nodes are right.
fn walk(bytes: &[u8], many: bool) {
    let (layout, given) = (Layout::new(SPAN), words(bytes));
    let Some((&asked, given)) = given.split_first() else { return };
    let mut region = vec![0; WORDS];
    region.iter_mut().skip(NODES[0] as usize / 8).zip(given).for_each(|(to, from)| *to = *from);
    for offset in NODES {
        let (at, first) = (RemotePtr::new(HERE, offset), offset as usize / 8);
        let Some(node) = region.get_mut(first..first + layout.len() / 8) else { continue };
        if let Some(lock) = node.first_mut() {
            *lock = magic(TAG, at) | *lock & 1;
        }
        let checksum = node::checksum(node, layout, at, TAG);
        node.iter_mut().skip(CHECKSUM).take(1).for_each(|word| *word = checksum);
    }
    let key = asked.to_be_bytes();
    let start = RemotePtr::new(HERE, NODES[asked as usize % NODES.len()]);
    let (level, hash) = ((asked >> 8) as u8 % 4, asked >> 3);
    let words = if many {
        let mut gets = gets::Gets::new(TAG, layout, layout);
        let all = (0..3).all(|more| gets.add(&key[..8 - more], hash, (start, level)));
        assert!(all, "three short keys");
        gets.words().to_vec()
    } else {
        let mode = [wire::Ask::Get, wire::Ask::Locate, wire::Ask::Remove, wire::Ask::Leaves(asked)];
        let puts = [crate::write::Mode::Insert, crate::write::Mode::UPDATE, crate::write::Mode::Upsert];
        let asks: Vec<_> = mode.into_iter().chain(puts.map(|mode| wire::Ask::Put(mode, asked))).collect();
        let ask = asks[(asked >> 16) as usize % asks.len()];
        let bounds = (&[][..], None);
        let request = Request { ask, start, level, inner: layout, leaf: layout, tag: TAG, hash, key: &key, bounds };
        request.encode().expect("a short key")
    };
    let before = region.clone();
    let handler = add_handlers(CallTable::new()).into_handler();
    let request: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let view = RegionView::exclusive(HERE, &mut region);
    let reply = answer(&*handler, &view, &request).expect("an answer");
    if many {
        let replies = gets::decode_answers(&reply).expect("answers");
        assert!(!replies.is_empty() && replies.iter().all(|reply| reply.carried.len() <= MAX_CARRIED));
        assert!(region == before);
        return;
    }
    let reply = Reply::decode(&reply).expect("a reply");
    if !matches!(reply.outcome, Outcome::Wrote { .. }) {
        assert!(region == before);
        return;
    }
    let (first, len) = (reply.at.offset() as usize / 8, layout.len() / 8);
    assert!(node::is_sound(&region[first..first + len], layout, reply.at, TAG));
    assert!(region[..first] == before[..first] && region[first + len..] == before[first + len..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A short run of what the fuzzer does for long.
        #[test]
        fn any_bytes_are_decoded_or_refused(what in 0..6_u8, bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            check(&[&[what], &bytes[..]].concat());
        }
    }
}
