//! Creating and opening pools, and all reasons for which either fails.

use crate::common::{CHUNK, create, open, peek, poke, region, small};
use farindex_fabric::{MemoryFabric, NodeId, RemotePtr};
use farindex_pool::layout::{HOME, MAGIC, Superblock, UNSEEDED, header};
use farindex_pool::{PoolError, PoolOptions};
use std::collections::BTreeSet;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

const LEN: u64 = 1 << 20;

fn memory(nodes: usize, len: u64) -> MemoryFabric {
    MemoryFabric::new(nodes, len).expect("enough memory")
}

fn at(node: u16) -> RemotePtr {
    RemotePtr::new(NodeId::new(node), 0)
}

/// Copies some nodes of a fabric, cut to `len` bytes.
fn copy(from: &MemoryFabric, nodes: &[u16], len: u64) -> MemoryFabric {
    let to = memory(nodes.len(), len);
    for (i, node) in (0..).zip(nodes) {
        poke(&to, at(i), &peek(from, at(*node), (len / 8) as usize));
    }
    to
}

fn refusal(fabric: &MemoryFabric) -> String {
    open(fabric).err().expect("refused").to_string()
}

#[test]
fn pool_opens_as_it_was_created() {
    for nodes in [1, 3] {
        let fabric = memory(nodes, LEN);
        let created = create(&fabric, &small()).expect("created");
        let opened = open(&fabric).expect("opened");
        assert_eq!(opened.nodes().len(), nodes);
        for node in created.nodes() {
            assert_eq!(created.superblock(node), opened.superblock(node));
            assert_eq!(opened.superblock(node).zeroed, 1);
        }
        assert_eq!((opened.lease(), opened.client_slots()), (Duration::from_millis(200), 8));
    }
}

#[test]
fn open_refuses_every_bad_pool_with_its_reason() {
    let good = memory(2, LEN);
    create(&good, &small()).expect("created");
    let other = memory(2, LEN);
    create(&other, &small()).expect("created");
    let hint = "create one with `farindex pool create`";

    assert_eq!(refusal(&memory(1, LEN)), format!("memory node 0 holds no farindex pool (all zeros); {hint}"));

    let foreign = memory(1, LEN);
    poke(&foreign, at(0), &[u64::from_le_bytes(*b"SQLite f")]);
    assert_eq!(
        refusal(&foreign),
        format!("memory node 0 holds no farindex pool (it begins with 53514c6974652066); {hint}")
    );

    assert_eq!(
        refusal(&copy(&good, &[0], 512)),
        format!("memory node 0 holds no farindex pool (only 512 bytes); {hint}")
    );
    assert_eq!(
        refusal(&copy(&good, &[0, 1], LEN / 2)),
        "the superblock of memory node 0 is damaged: the pool was made with 1048576 bytes, the region has 524288: \
         truncated?; restore the pool from a copy or create it anew"
    );

    let damaged = copy(&good, &[0, 1], LEN);
    poke(&damaged, at(1).add(48), &[LEN * 2]);
    assert_eq!(
        refusal(&damaged),
        "the superblock of memory node 1 is damaged: its checksum is wrong; restore the pool from a copy or create it anew"
    );

    for version in [3, 8] {
        let other = copy(&good, &[0, 1], LEN);
        poke(&other, at(0).add(8), &[version]);
        assert_eq!(
            refusal(&other),
            format!(
                "the pool has format version {version}, this program reads version 7; use the farindex release that \
                 wrote it, or dump and reload"
            )
        );
    }

    let prefix = "the memory nodes do not form one pool: ";
    assert_eq!(
        refusal(&copy(&good, &[1, 0], LEN)),
        format!("{prefix}memory node 0 was made as node 1: give the nodes in the order they had at creation")
    );
    assert_eq!(
        refusal(&copy(&good, &[0], LEN)),
        format!("{prefix}the pool has 2 memory nodes, 1 were given: give them all")
    );
    let mixed = copy(&good, &[0, 1], LEN);
    poke(&mixed, at(1), &peek(&other, at(1), 16));
    assert_eq!(refusal(&mixed), format!("{prefix}memory node 1 belongs to another pool than node 0"));
}

#[test]
fn open_refuses_every_flipped_bit_of_a_superblock() {
    let fabric = memory(1, region(8, 8));
    create(&fabric, &small()).expect("created");
    let block = peek(&fabric, at(0), 16);
    for bit in 0..1024 {
        let mut flipped = block.clone();
        flipped[bit / 64] ^= 1 << (bit % 64);
        poke(&fabric, at(0), &flipped);
        let error = open(&fabric).err().unwrap_or_else(|| panic!("bit {bit} was not detected"));
        match bit / 64 {
            0 => assert!(matches!(error, PoolError::NotAPool { .. }), "{error}"),
            1 => assert!(matches!(error, PoolError::Version { .. }), "{error}"),
            _ => assert!(matches!(error, PoolError::Damaged { .. }), "{error}"),
        }
    }
    poke(&fabric, at(0), &block);
    open(&fabric).expect("whole again");
}

/// The seeds of indexes are derived from it.
#[test]
fn hash_key_is_random_unless_chosen_and_the_same_for_every_client() {
    let key_of = |options: &PoolOptions| {
        let fabric = memory(1, region(8, 8));
        let made = create(&fabric, options).expect("created").superblock(HOME).hash_key;
        assert_eq!(open(&fabric).expect("opened").superblock(HOME).hash_key, made);
        made
    };
    let random: BTreeSet<u64> = (0..100).map(|_| key_of(&small())).collect();
    assert_eq!(random.len(), 100, "no two pools have the same");
    // Half of all bits of random words are set: 3,200, and with a standard deviation of 40 certainly between these.
    let ones: u32 = random.iter().map(|key| key.count_ones()).sum();
    assert!((2800..3600).contains(&ones), "{ones}");
    assert!(!random.contains(&UNSEEDED));
    for hash_key in [UNSEEDED, 1, u64::MAX] {
        assert_eq!(key_of(&PoolOptions { hash_key: Some(hash_key), ..small() }), hash_key);
    }
}

#[test]
fn index_seeds_differ_unless_the_pool_is_unseeded() {
    let seeds = |hash_key| {
        let pool = create(&memory(1, region(8, 8)), &PoolOptions { hash_key, ..small() }).expect("created");
        (1..=1000).map(|uid| pool.superblock(HOME).seed_of(uid)).collect::<BTreeSet<u64>>()
    };
    assert_eq!(seeds(Some(UNSEEDED)), BTreeSet::from([0]));
    assert_eq!(seeds(Some(7)).len(), 1000);
    assert_eq!(seeds(Some(7)), seeds(Some(7)));
    assert!(seeds(Some(7)).is_disjoint(&seeds(Some(8))));
    assert!(seeds(None).is_disjoint(&seeds(None)));
}

#[test]
fn create_refuses_every_bad_option_with_its_reason() {
    let refused = |len, options| create(&memory(1, len), &options).err().expect("refused").to_string();
    let slots = |client_slots| PoolOptions { client_slots, ..small() };
    let chunk = |size| PoolOptions { chunk_size: Some(size), ..small() };
    assert_eq!(refused(LEN, slots(1)), "1 client slots: a pool takes 2 to 1024");
    assert_eq!(refused(LEN, slots(1025)), "1025 client slots: a pool takes 2 to 1024");
    assert_eq!(
        refused(LEN, PoolOptions { lease: Duration::ZERO, ..small() }),
        "a lease of 0 ms: it takes at least 1 ms"
    );
    for size in [0, 8 << 10, 128 << 10, 20_000] {
        let wanted = format!("chunks of {size} bytes: a chunk is a power of two from 16384 to 65536");
        assert_eq!(refused(LEN, chunk(size)), wanted);
    }
    for cells in [0, 65] {
        let refused = refused(LEN, PoolOptions { intent_cells: Some(cells), ..small() });
        assert_eq!(refused, format!("{cells} intent cells: a client has 1 to 64"));
    }
    // The size that the message names is enough.
    let least = region(8, 8);
    let wanted = format!("memory node 0 offers {} bytes: a pool with 8 client slots takes at least {least}", least - 8);
    assert_eq!(refused(least - 8, small()), wanted);
    let pool = create(&memory(1, least), &small()).expect("just enough");
    assert_eq!(pool.superblock(HOME).chunks, 8);
}

#[test]
fn create_refuses_to_overwrite_a_pool() {
    let fabric = memory(2, LEN);
    create(&fabric, &small()).expect("created");
    let error = create(&fabric, &small()).err().expect("refused");
    assert_eq!(error.to_string(), "memory node 0 holds a pool already; remove it first if it is no longer wanted");
    poke(&fabric, at(0), &[0]);
    assert_eq!(create(&fabric, &small()).err(), Some(PoolError::Exists(NodeId::new(1))));
}

#[test]
fn create_clears_the_remains_of_a_former_pool() {
    let fabric = memory(1, LEN);
    let former = create(&fabric, &small()).expect("created");
    let geometry = former.geometry(HOME);
    // Its superblock is overwritten; cursor, a client slot and a descriptor are not.
    poke(&fabric, at(0), &[0; 16]);
    poke(&fabric, at(0).add(header::CURSOR), &[17]);
    poke(&fabric, geometry.client(0), &[1 << 8 | 1]);
    poke(&fabric, geometry.descriptor(HOME, 3), &[1]);
    let pool = create(&fabric, &small()).expect("created");
    assert_eq!(pool.superblock(HOME).zeroed, 0, "its data is undefined");
    let all = peek(&fabric, at(0), (geometry.data() / 8) as usize);
    let written: Vec<_> = (0..all.len()).filter(|i| *i >= 16 && all[*i] != 0).map(|i| i as u64 * 8).collect();
    assert_eq!(written, [header::EPOCH]);
}

#[test]
fn superblock_reads_back_from_its_bytes() {
    let fabric = memory(1, LEN);
    let pool = create(&fabric, &small()).expect("created");
    let words = peek(&fabric, at(0), 16);
    let block = Superblock::read_from_bytes(words.as_bytes()).expect("128 bytes");
    assert_eq!(&block, pool.superblock(HOME));
    assert_eq!((block.magic, block.chunk_size, block.checksum), (MAGIC, CHUNK, block.expected_checksum()));
}
