use super::super::wire::{Ask, Outcome, Reply, Request};
use super::*;
use crate::keyhash::KeyHash;
use crate::tree::faults::plant;
use crate::tree::node::{HIGH, LOW, SIBLING, sibling_word};
use farindex_fabric::NodeId;
use proptest::prelude::*;

const HERE: NodeId = NodeId::new(1);
const TAG: u64 = 77;
const SPAN: usize = 6;
const ROOT: u64 = 512;
const LEAVES: [u64; 3] = [1024, 1536, 2048];
const LEN: usize = 4096;

fn at(offset: u64) -> RemotePtr {
    RemotePtr::new(HERE, offset)
}
fn layout() -> Layout {
    Layout::new(SPAN)
}
/// Keys of leaf `i` lie from `bound(i)` on.
fn bound(i: usize) -> [u8; 8] {
    (i as u64 * 100).to_be_bytes()
}
fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

fn new_node(offset: u64, level: u8, low: Fence, high: Fence, sibling: RemotePtr) -> Loaded {
    let mut node = Loaded { at: at(offset), layout: layout(), words: vec![0; layout().len() / 8] };
    node.set(0, magic(TAG, node.at));
    node.set(SIBLING, sibling_word(level, sibling));
    for (word, fence) in [(LOW, low), (HIGH, high)] {
        node.set(word, fence.word);
        node.set(word + 1, fence.tag);
    }
    node
}

fn put(region: &mut [u64], mut node: Loaded) {
    node.set(CHECKSUM, node::checksum(&node.words, node.layout, node.at, TAG));
    let first = node.at.offset() as usize / 8;
    region[first..first + node.words.len()].copy_from_slice(&node.words);
}

fn fill(node: &mut Loaded, slot: usize, (a, b): (u64, u64), inline: bool) {
    node.set(node.layout.slot(slot), a);
    node.set(node.layout.slot(slot) + 1, b);
    node.set_bit(USED, slot, true);
    node.set_bit(node.layout.inline(), slot, inline);
}

/// A root and three leaves; leaf `i` has the keys `100 i` and `100 i + 1`, whose values are theirs times ten.
fn region() -> Vec<u64> {
    let mut region = vec![0; LEN / 8];
    let fence =
        |i: usize| if i == 0 { Fence::new(&[], RemotePtr::NULL) } else { Fence::new(&bound(i), RemotePtr::NULL) };
    let mut root = new_node(ROOT, 1, fence(0), Fence::INFINITE, RemotePtr::NULL);
    for (i, offset) in LEAVES.into_iter().enumerate() {
        let (high, sibling) = match LEAVES.get(i + 1) {
            Some(next) => (fence(i + 1), at(*next)),
            None => (Fence::INFINITE, RemotePtr::NULL),
        };
        let mut leaf = new_node(offset, 0, fence(i), high, sibling);
        for j in 0..2 {
            let number = i as u64 * 100 + j;
            fill(&mut leaf, j as usize, (u64::from_le_bytes(key(number)), number * 10), true);
        }
        put(&mut region, leaf);
        let separator = fence(i).separator(at(offset), 0);
        fill(&mut root, i, (separator.word, separator.tag), false);
    }
    put(&mut region, root);
    region
}

fn request(ask: Ask, key: &[u8]) -> Request<'_> {
    let (inner, leaf) = (layout(), layout());
    Request { ask, start: at(ROOT), level: 1, inner, leaf, tag: TAG, hash: hash(key), key, bounds: (&[], None) }
}
fn hash(key: &[u8]) -> u64 {
    KeyHash::unseeded(key).bits()
}

fn answer(region: &mut [u64], request: &Request<'_>) -> Reply {
    let words = request.encode().expect("short keys");
    let bytes: Vec<u8> = words.iter().skip(1).flat_map(|word| word.to_le_bytes()).collect();
    let view = RegionView::exclusive(HERE, region);
    Reply::decode(&handle(&view, &bytes).expect("an answer")).expect("a reply")
}
fn outcome(region: &mut [u64], request: &Request<'_>) -> Outcome {
    answer(region, request).outcome
}

#[test]
fn a_key_is_found_in_its_leaf() {
    let mut region = region();
    for (i, leaf) in LEAVES.into_iter().enumerate() {
        let present = key(i as u64 * 100 + 1);
        let found = answer(&mut region, &request(Ask::Get, &present));
        let expected = (Outcome::Found, at(leaf), 2, vec![(i as u64 * 100 + 1) * 10]);
        assert_eq!((found.outcome, found.at, found.visited, found.carried), expected);
        let absent = key(i as u64 * 100 + 2);
        assert_eq!(outcome(&mut region, &request(Ask::Get, &absent)), Outcome::Absent);
        let located = answer(&mut region, &request(Ask::Locate, &absent));
        assert_eq!((located.outcome, located.at), (Outcome::Leaf, at(leaf)));
    }
}

/// Keys of three leaves from the root on, one from its leaf on, one that does not belong to the leaf where its walk begins, and
/// one whose walk begins where no node is.
#[test]
fn many_keys_are_looked_up_by_one_request() {
    let (mut region, mut gets) = (region(), gets::Gets::new(TAG, layout(), layout()));
    region[3072 / 8] = 5;
    let (root, leaf, nothing) = ((at(ROOT), 1), (at(LEAVES[1]), 0), (at(3072), 0));
    let asked = [(1, root), (100, root), (202, root), (101, leaf), (201, leaf), (1, nothing)];
    for (number, start) in asked {
        assert!(gets.add(&key(number), hash(&key(number)), start));
    }
    let bytes: Vec<u8> = gets.words().iter().skip(1).flat_map(|word| word.to_le_bytes()).collect();
    let view = RegionView::exclusive(HERE, &mut region);
    let replies = gets::decode_answers(&handle_gets(&view, &bytes).expect("an answer")).expect("replies");
    let found: Vec<_> =
        replies.iter().map(|reply| (reply.outcome, reply.visited, reply.carried.first().copied())).collect();
    let expected = [
        (Outcome::Found, 2, Some(10)),
        (Outcome::Found, 2, Some(1000)),
        (Outcome::Absent, 2, None),
        (Outcome::Found, 1, Some(1010)),
        (Outcome::Moved, 1, None),
        (Outcome::Foreign, 1, None),
    ];
    assert_eq!(found, expected);
    let node = layout().len() as u64;
    assert_eq!(view.work().bytes, node * (2 + 2 + 2 + 1 + 1 + 1) + 8);
}

#[test]
fn a_value_is_found_in_its_block_and_a_block_elsewhere_is_named() {
    let (name, far) = (&b"a key of more than eight bytes"[..], RemotePtr::new(NodeId::new(0), 64));
    let value: Vec<u8> = (0..100).collect();
    let fabric = farindex_fabric::MemoryFabric::new(1, 4096).expect("memory");
    let endpoint = farindex_fabric::Fabric::connect(&fabric, &farindex_fabric::Identity::default()).expect("memory");
    let block = block::encode(&endpoint, KeyHash::unseeded(name), name, &value);
    for (place, whole) in [(at(3072), true), (at(3072), false), (far, true)] {
        let mut region = region();
        region[384..384 + block.words().len()].copy_from_slice(block.words());
        region[384 + 3] ^= u64::from(!whole);
        let fence = Fence::new(&bound(1), RemotePtr::NULL);
        let mut leaf = new_node(LEAVES[1], 0, fence, Fence::INFINITE, RemotePtr::NULL);
        let word = (block.len() / UNIT) as u64 >> 1 << 48 | place.to_slot().expect("a slot");
        fill(&mut leaf, 4, (hash(name), word), false);
        put(&mut region, leaf);
        let start = Request { start: at(LEAVES[1]), level: 0, ..request(Ask::Get, name) };
        let found = answer(&mut region, &start);
        if place == far || !whole {
            assert_eq!((found.outcome, found.carried), (Outcome::Blocks, vec![4, word]));
        } else {
            let bytes: Vec<u8> = found.carried.iter().flat_map(|word| word.to_le_bytes()).collect();
            assert_eq!((found.outcome, &bytes[..found.len]), (Outcome::Found, &value[..]));
        }
    }
}

#[test]
fn changes_are_those_of_an_owner() {
    let mut region = region();
    fn leaf(put: Request<'_>) -> Request<'_> {
        Request { start: at(LEAVES[1]), level: 0, ..put }
    }
    let (old, new) = (key(100), key(150));
    let mut ask = |ask, key: &[u8; 8]| {
        let reply = answer(&mut region, &leaf(request(ask, key)));
        (reply.outcome, reply.entries)
    };
    let nothing = |present| (Outcome::Nothing { present }, 0);
    assert_eq!(ask(Ask::Put(Mode::Insert, 1), &old), nothing(true));
    assert_eq!(ask(Ask::Put(Mode::UPDATE, 1), &new), nothing(false));
    assert_eq!(ask(Ask::Remove, &new), nothing(false));
    assert_eq!(ask(Ask::Put(Mode::UPDATE, 5), &old), (Outcome::Wrote { present: true }, 2));
    assert_eq!(ask(Ask::Put(Mode::Insert, 6), &new), (Outcome::Wrote { present: false }, 3));
    assert_eq!(ask(Ask::Put(Mode::Upsert, 7), &new), (Outcome::Wrote { present: true }, 3));
    for (i, entries) in (160..).zip(4..=SPAN) {
        assert_eq!(ask(Ask::Put(Mode::Upsert, i), &key(i)), (Outcome::Wrote { present: false }, entries));
    }
    assert_eq!(ask(Ask::Put(Mode::Upsert, 8), &key(170)), (Outcome::Full, 0));
    assert_eq!(ask(Ask::Remove, &key(101)), (Outcome::Wrote { present: true }, SPAN - 1));
    for (number, value) in [(100, Some(5)), (101, None), (150, Some(7)), (160, Some(160))] {
        let found = answer(&mut region, &request(Ask::Get, &key(number)));
        let expected = if value.is_some() { Outcome::Found } else { Outcome::Absent };
        assert_eq!((found.outcome, found.carried.first().copied()), (expected, value), "key {number}");
    }
}

/// Low key, high key, and what comes of a change.
type Bounds<'k> = (&'k [u8], Option<&'k [u8]>, Outcome);

#[test]
fn what_the_memory_node_may_not_change_it_leaves() {
    let fresh = region();
    let name = key(150);
    let upsert = || Request { start: at(LEAVES[1]), level: 0, ..request(Ask::Put(Mode::Upsert, 1), &name) };
    let bounds: [Bounds<'_>; 4] = [
        (&bound(1), Some(&bound(2)), Outcome::Wrote { present: false }),
        (&key(101), None, Outcome::Beyond),
        (&[], Some(&key(199)), Outcome::Beyond),
        (&[], Some(&key(200)), Outcome::Wrote { present: false }),
    ];
    for (from, to, expected) in bounds {
        let mut region = fresh.clone();
        assert_eq!(outcome(&mut region, &Request { bounds: (from, to), ..upsert() }), expected, "{from:?} to {to:?}");
        assert_eq!(region == fresh, expected == Outcome::Beyond);
    }
    let first = LEAVES[1] as usize / 8;
    let broken: [(usize, u64, Outcome); 4] = [
        (0, fresh[first] | 1, Outcome::Busy),
        (0, 0, Outcome::Moved),
        (0, 12, Outcome::Foreign),
        (CHECKSUM, 0, Outcome::Busy),
    ];
    for (word, to, expected) in broken {
        let mut region = fresh.clone();
        region[first + word] = to;
        let before = region.clone();
        assert_eq!((outcome(&mut region, &upsert()), region == before), (expected, true), "word {word}: {to:#x}");
    }
    // A memory node that does not look at checksums changes a leaf that is torn.
    let mut region = fresh.clone();
    region[first + CHECKSUM] = 0;
    plant(&[Fault::CallUnchecked]);
    let unchecked = outcome(&mut region, &upsert());
    plant(&[]);
    assert_eq!(unchecked, Outcome::Wrote { present: false });
    // And one that does not look at bounds changes a leaf of two owners.
    let mut region = fresh.clone();
    plant(&[Fault::CallAcrossBound]);
    let across = outcome(&mut region, &Request { bounds: (&key(101), None), ..upsert() });
    plant(&[]);
    assert_eq!(across, Outcome::Wrote { present: false });
    // Another key's leaf, another index, another memory node, another level, nothing at all.
    let mut region = fresh.clone();
    let wrong = [
        (Request { start: at(LEAVES[0]), ..upsert() }, Outcome::Moved),
        (Request { tag: TAG + 1, ..upsert() }, Outcome::Foreign),
        (Request { start: RemotePtr::new(NodeId::new(0), LEAVES[1]), ..upsert() }, Outcome::Crosses),
        (Request { start: at(ROOT), ..upsert() }, Outcome::Moved),
        (Request { start: at(LEN as u64 - 8), ..upsert() }, Outcome::Foreign),
        (Request { start: at(LEAVES[1] + 4), ..upsert() }, Outcome::Foreign),
    ];
    for (request, expected) in wrong {
        assert_eq!(outcome(&mut region, &request), expected, "{request:?}");
    }
    assert!(region == fresh);
    // A client that may not change the region.
    let bytes: Vec<u8> = upsert().encode().expect("short").iter().skip(1).flat_map(|word| word.to_le_bytes()).collect();
    let view = RegionView::exclusive(HERE, &mut region).read_only();
    let refused = Reply::decode(&handle(&view, &bytes).expect("an answer")).expect("a reply");
    assert!(!matches!(refused.outcome, Outcome::Wrote { .. }) && region == fresh);
}

#[test]
fn leaves_come_in_their_order_up_to_the_limit() {
    let mut region = region();
    for (from, most, expected) in [(0, 9, &LEAVES[..]), (0, 2, &LEAVES[..2]), (150, 9, &LEAVES[1..]), (0, 0, &[])] {
        let reply = answer(&mut region, &request(Ask::Leaves(most), &key(from)));
        let leaves: Vec<_> = reply.carried.chunks(1 + layout().len() / 8).collect();
        assert_eq!((reply.outcome, leaves.len()), (Outcome::Leaves, expected.len()));
        for (leaf, offset) in leaves.iter().zip(expected) {
            let first = *offset as usize / 8;
            assert_eq!((leaf[0], &leaf[1..]), (at(*offset).to_bits(), &region[first..][..layout().len() / 8]));
        }
    }
    // A torn one ends them.
    region[LEAVES[1] as usize / 8 + CHECKSUM] ^= 1;
    let reply = answer(&mut region, &request(Ask::Leaves(9), &key(0)));
    assert_eq!(reply.carried.len(), 1 + layout().len() / 8);
}

fn words() -> impl Strategy<Value = Vec<u64>> {
    proptest::collection::vec(any::<u64>(), 0..24)
}

proptest! {
    /// Whatever a request holds, it is answered or refused.
    #[test]
    fn any_request_is_answered_or_refused(request in words(), cut in 0..8_usize) {
        let mut region = region();
        let mut bytes: Vec<u8> = request.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(bytes.len().saturating_sub(cut));
        let view = RegionView::exclusive(HERE, &mut region);
        if let Ok(reply) = handle(&view, &bytes) {
            prop_assert!(Reply::decode(&reply).is_some());
        }
    }

    /// Whatever the region holds, a request is answered, and nothing changes but the words of a sound leaf.
    #[test]
    fn any_region_is_walked_to_an_end(
        flips in proptest::collection::vec((0..LEN / 8, any::<u64>(), any::<bool>()), 1..12),
        number in 0..400_u64,
        what in 0..6_u8,
        start in 0..LEN as u64,
        level in 0..4_u8,
        straight in any::<bool>(),
    ) {
        let mut region = region();
        for (word, to, resealed) in flips {
            region[word] = if to % 3 == 0 { to } else { region[word] ^ 1 << (to % 64) };
            // A checksum that is right does not make the rest right.
            for offset in [ROOT].into_iter().chain(LEAVES).filter(|_| resealed) {
                let first = offset as usize / 8;
                let node = region[first..first + layout().len() / 8].to_vec();
                region[first + CHECKSUM] = node::checksum(&node, layout(), at(offset), TAG);
            }
        }
        let name = key(number);
        let ask = match what {
            0 => Ask::Get,
            1 => Ask::Locate,
            2 => Ask::Put(Mode::Upsert, 9),
            3 => Ask::Remove,
            4 => Ask::Leaves(u64::MAX),
            _ => Ask::Put(Mode::Insert, 9),
        };
        let asked = request(ask, &name);
        let asked = if straight { asked } else { Request { start: at(start), level, ..asked } };
        let before = region.clone();
        let reply = answer(&mut region, &asked);
        if matches!(reply.outcome, Outcome::Wrote { .. }) {
            let first = reply.at.offset() as usize / 8;
            let len = layout().len() / 8;
            let leaf = &region[first..first + len];
            prop_assert!(node::is_sound(leaf, layout(), reply.at, TAG));
            prop_assert!(region[..first] == before[..first] && region[first + len..] == before[first + len..]);
        } else {
            prop_assert!(region == before);
        }
    }
}
