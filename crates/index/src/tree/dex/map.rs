//! The partition map: which compute node owns which range of keys.
//!
//! Invariants: a map that is in far memory never changes. Its partitions cover all keys without gaps: the first one begins
//! at the empty key, and their low keys ascend. Every owner is a member, and members own nothing twice.
//!
//! In far memory a map is a key-value block. Its key names the index and the version of the map, so that a block which has
//! taken its place since is not taken for it.

use crate::IndexError;
use crate::block;
use crate::keyhash::KeyHash;
use crate::maintenance::fetch_blocks;
use farindex_fabric::{Buf, Endpoint, RemotePtr, Span};
use serde::{Deserialize, Serialize};

/// Most partitions of a map. Beyond that, whole partitions change their owners.
pub(super) const MOST: usize = 1024;
/// Units of a map's block that are READ at once. A longer one takes a second READ: the word does not say how long it is, and
/// what lies behind it may be the end of the memory.
const UNITS: u64 = 1;

const VERSION_SHIFT: u32 = 48;

/// A range of keys: from the low key of a partition up to that of the next one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Partition {
    pub(super) low: Vec<u8>,
    /// Owner record; null if nobody owns it.
    owner: u64,
    /// A former owner has crashed: a leaf may be in the middle of a change.
    pub(super) unclean: bool,
}

impl Partition {
    pub(super) fn owner(&self) -> RemotePtr {
        RemotePtr::from_bits(self.owner)
    }
    /// Does it begin within this range?
    fn begins_within(&self, (low, high): (&[u8], Option<&[u8]>)) -> bool {
        *self.low >= *low && high.is_none_or(|high| *self.low < *high)
    }
}

/// A partition map.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Map {
    /// The anchor's word of the map that it follows.
    pub(super) base: u64,
    members: Vec<u64>,
    partitions: Vec<Partition>,
}

/// The word of a map that lies at `at` and follows the one of the word `base`.
pub(super) fn word_after(base: u64, at: RemotePtr) -> u64 {
    let version = (base >> VERSION_SHIFT).wrapping_add(1) & 0xFFFF;
    version << VERSION_SHIFT | at.to_slot().unwrap_or_default()
}

/// Where the map of a word lies.
pub(super) fn place_of(word: u64) -> RemotePtr {
    RemotePtr::from_slot(word & ((1 << VERSION_SHIFT) - 1))
}

/// Does the map of the word `a` come after that of the word `b`? Versions are 16 bits: a client that is 32,768 changes
/// behind is wrong about this.
pub(super) fn is_later(a: u64, b: u64) -> bool {
    let ahead = (a >> VERSION_SHIFT).wrapping_sub(b >> VERSION_SHIFT) & 0xFFFF;
    ahead != 0 && ahead < 0x8000
}

fn block_key(tag: u64, word: u64) -> [u8; 10] {
    let mut key = [0; 10];
    key[..8].copy_from_slice(&tag.to_le_bytes());
    key[8..].copy_from_slice(&((word >> VERSION_SHIFT) as u16).to_le_bytes());
    key
}

impl Default for Map {
    /// The map of an index that nobody has used: no compute node owns anything.
    fn default() -> Self {
        let all = Partition { low: Vec::new(), owner: RemotePtr::NULL.to_bits(), unclean: false };
        Map { base: 0, members: Vec::new(), partitions: vec![all] }
    }
}

impl Map {
    /// READs the map of this word; `None` if it is there no more.
    pub(super) async fn read(span: &Span, tag: u64, word: u64) -> Result<Option<Map>, IndexError> {
        if place_of(word).is_null() {
            return Ok(Some(Map::default()));
        }
        let block = match fetch_blocks(span, &[(place_of(word), UNITS)]).await?.pop() {
            Some(Ok(block)) if block.key() == block_key(tag, word) => block,
            _ => return Ok(None),
        };
        Ok(Map::decode(&block.into_value()))
    }
    /// READs the map that counts of an index that was dropped, with the bytes of its block. Its word may have been sealed, so
    /// the version is not looked at. The caller knows that the block is there.
    pub(super) async fn read_sealed(span: &Span, tag: u64, word: u64) -> Result<Option<(Map, u64)>, IndexError> {
        if place_of(word).is_null() {
            return Ok(None);
        }
        let block = match fetch_blocks(span, &[(place_of(word), UNITS)]).await?.pop() {
            Some(Ok(block)) if block.key().starts_with(&tag.to_le_bytes()) => block,
            _ => return Ok(None),
        };
        let encoded = block.into_value();
        Ok(Map::decode(&encoded).map(|map| (map, Map::block_len(&encoded))))
    }
    /// Decodes a map; `None` if it makes no sense.
    pub(super) fn decode(bytes: &[u8]) -> Option<Map> {
        postcard::from_bytes::<Map>(bytes).ok().filter(Map::is_sound)
    }

    /// The bytes of a map, without those that name it.
    pub(super) fn encode(&self) -> Result<Vec<u8>, IndexError> {
        postcard::to_allocvec(self).map_err(|error| IndexError::BadConfig(format!("a map of partitions: {error}")))
    }
    /// The block of an encoded map with this word.
    pub(super) fn block(endpoint: &Endpoint, tag: u64, word: u64, encoded: &[u8]) -> Buf {
        block::encode(endpoint, KeyHash::from_bits(tag), &block_key(tag, word), encoded)
    }
    /// Bytes of the block of an encoded map.
    pub(super) fn block_len(encoded: &[u8]) -> u64 {
        block::block_len(block_key(0, 0).len(), encoded.len()) as u64
    }

    fn is_sound(&self) -> bool {
        let ascend = self.partitions.is_sorted_by(|a, b| a.low < b.low);
        let owned = |partition: &Partition| partition.owner().is_null() || self.members.contains(&partition.owner);
        ascend && self.partitions.first().is_some_and(|first| first.low.is_empty()) && self.partitions.iter().all(owned)
    }

    /// Addresses of all owner records that this map keeps in use.
    pub(super) fn members(&self) -> impl Iterator<Item = RemotePtr> + '_ {
        self.members.iter().map(|member| RemotePtr::from_bits(*member))
    }
    pub(super) fn is_member(&self, record: RemotePtr) -> bool {
        self.members.contains(&record.to_bits())
    }
    /// The partitions, and the high key of each.
    pub(super) fn partitions(&self) -> impl Iterator<Item = (&Partition, Option<&[u8]>)> {
        let highs = self.partitions.iter().skip(1).map(|next| Some(&*next.low)).chain([None]);
        self.partitions.iter().zip(highs)
    }
    /// The partition that a key belongs to, and its high key.
    pub(super) fn find(&self, key: &[u8]) -> (&Partition, Option<&[u8]>) {
        self.partition(self.number_of(key))
    }
    /// The number of the partition that a key belongs to.
    pub(super) fn number_of(&self, key: &[u8]) -> usize {
        // The first one begins at the empty key. It is left out because a comparison with no bytes is slow where the bytes have no
        // address: on a processor with AVX-512, libc then loads from that address under an empty mask, which takes 100 ns.
        self.partitions.get(1..).unwrap_or_default().partition_point(|partition| *partition.low <= *key)
    }
    /// The partition with a number that [`number_of`](Self::number_of) has returned, and its high key.
    pub(super) fn partition(&self, number: usize) -> (&Partition, Option<&[u8]>) {
        (&self.partitions[number], self.partitions.get(number + 1).map(|next| &*next.low))
    }
    /// Does a record own all of a range, in one partition?
    pub(super) fn has_whole(&self, record: RemotePtr, (low, high): (&[u8], Option<&[u8]>)) -> bool {
        let (partition, end) = self.find(low);
        partition.owner() == record && end.is_none_or(|end| high.is_some_and(|high| high <= end))
    }
    /// Does this record own something?
    pub(super) fn owns(&self, record: RemotePtr) -> bool {
        self.partitions.iter().any(|partition| partition.owner() == record)
    }

    /// The next map, in which `to` owns these keys.
    pub(super) fn give(&self, base: u64, range: (&[u8], Option<&[u8]>), to: RemotePtr) -> Map {
        let mut next = Map { base, ..self.clone() };
        next.split_at(range);
        let inside = next.partitions.iter_mut().filter(|partition| partition.begins_within(range));
        inside.for_each(|partition| partition.owner = to.to_bits());
        next.join(to)
    }
    /// Makes partitions begin at both ends of a range.
    fn split_at(&mut self, (low, high): (&[u8], Option<&[u8]>)) {
        for bound in [Some(low), high].into_iter().flatten() {
            let i = self.partitions.partition_point(|partition| *partition.low < *bound);
            if self.partitions.get(i).is_none_or(|partition| *partition.low != *bound)
                && let Some(before) = i.checked_sub(1).and_then(|i| self.partitions.get(i))
            {
                let split = Partition { low: bound.to_vec(), ..before.clone() };
                self.partitions.insert(i, split);
            }
        }
    }
    /// The next map, in which nobody owns what `of` owns of these keys.
    pub(super) fn give_up(&self, base: u64, range: (&[u8], Option<&[u8]>), of: RemotePtr) -> Map {
        let mut next = Map { base, ..self.clone() };
        next.split_at(range);
        let owned =
            next.partitions.iter_mut().filter(|partition| partition.owner() == of && partition.begins_within(range));
        owned.for_each(|partition| partition.owner = RemotePtr::NULL.to_bits());
        next.join(of)
    }
    /// The next map, in which `to` owns what `from` has owned, which has crashed and is no member any more.
    pub(super) fn take_over(&self, base: u64, from: RemotePtr, to: RemotePtr) -> Map {
        let mut next = Map { base, ..self.clone() };
        for partition in next.partitions.iter_mut().filter(|partition| partition.owner() == from) {
            (partition.owner, partition.unclean) = (to.to_bits(), true);
        }
        next.members.retain(|member| *member != from.to_bits());
        next.join(to)
    }
    /// The next map, in which everything that `of` owns is clean.
    pub(super) fn clean(&self, base: u64, of: RemotePtr) -> Map {
        let mut next = Map { base, ..self.clone() };
        let own = next.partitions.iter_mut().filter(|partition| partition.owner() == of);
        own.for_each(|partition| partition.unclean = false);
        next.join(of)
    }
    /// The same map without members that own nothing and are among `gone`.
    pub(super) fn without(mut self, gone: &[RemotePtr]) -> Map {
        let owners: Vec<_> = self.partitions.iter().map(|partition| partition.owner).collect();
        self.members.retain(|member| owners.contains(member) || !gone.contains(&RemotePtr::from_bits(*member)));
        self
    }
    /// Makes `to` a member, and one partition of neighbours that are equal.
    fn join(mut self, to: RemotePtr) -> Map {
        if !self.is_member(to) {
            self.members.push(to.to_bits());
        }
        self.partitions.dedup_by(|next, last| (next.owner, next.unclean) == (last.owner, last.unclean));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farindex_fabric::{Executor, Fabric, MemoryFabric, NodeId, OpKind};

    fn record(number: u64) -> RemotePtr {
        RemotePtr::new(NodeId::new(0), number * 64)
    }
    fn owners(map: &Map) -> Vec<(&[u8], u64, bool)> {
        let number = |of: RemotePtr| if of.is_null() { 0 } else { of.offset() / 64 };
        map.partitions.iter().map(|part| (&*part.low, number(part.owner()), part.unclean)).collect()
    }

    #[test]
    fn a_range_changes_its_owner_and_nothing_else_does() {
        let map = Map::default().give(7, (b"", None), record(1)).give(8, (b"f", Some(b"k")), record(2));
        assert_eq!(owners(&map), [(&b""[..], 1, false), (b"f", 2, false), (b"k", 1, false)]);
        assert!(map.is_sound());
        assert_eq!(map.base, 8);
        let (part, high) = map.find(b"g");
        assert_eq!((part.owner(), high), (record(2), Some(&b"k"[..])));
        assert_eq!(map.find(b"k").0.owner(), record(1));
        assert_eq!(map.find(b"").0.owner(), record(1));
        let map = map.give(9, (b"a", Some(b"z")), record(2));
        assert_eq!(owners(&map), [(&b""[..], 1, false), (b"a", 2, false), (b"z", 1, false)]);
        let map = map.give(10, (b"", None), record(2));
        assert_eq!(owners(&map), [(&b""[..], 2, false)]);
        assert!(map.is_member(record(1)) && !map.owns(record(1)));
        assert!(!map.without(&[record(1), record(2)]).is_member(record(1)));
    }

    #[test]
    fn a_range_that_is_given_back_has_no_owner_and_stays_unclean() {
        let map = Map::default().give(1, (b"", None), record(1)).give(2, (b"m", None), record(2));
        let map = map.take_over(3, record(1), record(2));
        let map = map.give(4, (b"x", None), record(3)).give_up(5, (b"f", None), record(2));
        assert_eq!(owners(&map), [(&b""[..], 2, true), (b"f", 0, true), (b"m", 0, false), (b"x", 3, false)]);
        assert!(map.is_sound() && map.is_member(record(2)) && !map.members.contains(&0));
        let map = map.give(6, (b"f", Some(b"g")), record(3));
        assert_eq!(map.find(b"f").0.owner(), record(3));
        assert!(map.find(b"f").0.unclean);
    }

    #[test]
    fn what_a_crashed_owner_leaves_is_unclean_until_it_was_recovered() {
        let map = Map::default().give(1, (b"", None), record(1)).give(2, (b"m", None), record(2));
        let map = map.take_over(3, record(1), record(2));
        assert_eq!(owners(&map), [(&b""[..], 2, true), (b"m", 2, false)]);
        assert!(!map.is_member(record(1)));
        assert_eq!(owners(&map.clean(4, record(2))), [(&b""[..], 2, false)]);
    }

    #[test]
    fn versions_wrap() {
        let at = record(5);
        let last = 0xFFFF << VERSION_SHIFT;
        assert!(is_later(word_after(last, at), last));
        assert!(!is_later(last, word_after(last, at)));
        assert!(!is_later(last, last));
        assert_eq!(place_of(word_after(last, at)), at);
    }

    /// A checksum can be right by chance, or by intent. Whatever is decoded then can be used: no key is without a partition, and
    /// the maps that follow are sound.
    #[test]
    fn whatever_is_decoded_can_be_used() {
        let map = Map::default().give(7, (b"", None), record(1)).give(8, (b"f", Some(b"k")), record(2));
        let bytes =
            map.take_over(9, record(1), record(3)).give_up(10, (b"g", None), record(2)).encode().expect("bytes");
        assert!(Map::decode(&bytes).is_some());
        let (mut refused, mut used) = (0, 0);
        let flipped = (0..bytes.len()).flat_map(|i| (0..=u8::MAX).map(move |byte| (i, byte)));
        let flipped = flipped.map(|(i, byte)| [&bytes[..i], &[byte], &bytes[i + 1..]].concat());
        for bytes in flipped.chain((0..bytes.len()).map(|len| bytes[..len].to_vec())) {
            let Some(map) = Map::decode(&bytes) else {
                refused += 1;
                continue;
            };
            used += 1;
            let owners: Vec<_> = map.partitions().map(|(partition, _)| partition.owner()).collect();
            for key in [&b""[..], b"a", b"f", b"g", b"zz"] {
                let (partition, high) = map.find(key);
                assert!(*partition.low <= *key && high.is_none_or(|high| *key < *high), "{key:?} in {map:?}");
                for owner in owners.iter().copied().chain([record(9)]) {
                    let range = (key, Some(&b"zzz"[..]));
                    let next = [map.give(1, range, record(9)), map.give_up(1, range, owner), map.clean(1, owner)];
                    assert!(next.iter().all(Map::is_sound), "{next:?} after {map:?}");
                    assert!(map.take_over(1, owner, record(9)).is_sound() || owner.is_null());
                    assert!(map.pieces(range).next().is_some());
                }
            }
        }
        assert!(refused > 0 && used > 0, "{refused} refused, {used} used");
    }

    #[test]
    fn maps_that_make_no_sense_are_refused() {
        let map = Map::default().give(1, (b"b", Some(b"c")), record(1));
        assert!(map.is_sound());
        let mut wrong = map.clone();
        wrong.members.clear();
        assert!(!wrong.is_sound());
        let mut wrong = map.clone();
        wrong.partitions.swap(0, 1);
        assert!(!wrong.is_sound());
        let mut wrong = map;
        wrong.partitions.remove(0);
        assert!(!wrong.is_sound());
    }

    /// A word may name memory in which another map lies by now, or that of another index.
    #[test]
    fn a_map_is_read_by_its_own_word_alone() {
        let fabric = MemoryFabric::new(1, 1 << 12).expect("memory");
        let endpoint = fabric.connect(&fabric.new_identity()).expect("a connection");
        let (map, span) = (Map::default().give(1, (b"b", Some(b"c")), record(1)), endpoint.span(OpKind::Other));
        let (at, tag) = (RemotePtr::new(NodeId::new(0), 1024), 77);
        let word = word_after(5 << VERSION_SHIFT, at);
        Executor::new().block_on(&endpoint, async {
            let block = Map::block(&endpoint, tag, word, &map.encode().expect("bytes"));
            span.write(at, block).await.expect("written");
            assert_eq!(Map::read(&span, tag, word).await, Ok(Some(map.clone())));
            assert_eq!(Map::read(&span, tag, word_after(word, at)).await, Ok(None), "the version that follows");
            assert_eq!(Map::read(&span, tag + 1, word).await, Ok(None), "another index");
            let sealed = Map::read_sealed(&span, tag, word_after(word, at)).await.expect("READs");
            assert_eq!(sealed.map(|(of, _)| of), Some(map));
            assert_eq!(Map::read_sealed(&span, tag + 1, word).await, Ok(None), "another index, dropped");
        });
    }
}
