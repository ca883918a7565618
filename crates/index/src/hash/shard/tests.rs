//! Rules that workloads rarely exercise, one by one. Each test also breaks its rule, and checks that this is detected.

use super::bucket::{Health, Level, Snapshot, fresh_word, version_bit};
use super::geometry::MAX_INITIAL_BITS;
use super::slot::{META, Slot, Stamp, freeze};
use super::split::freeze_slots;
use super::{Config, Variant};
use crate::faults::{Fault, plant};
use crate::kind::Settings;
use crate::kind::{decode, encode};
use farindex_fabric::{Endpoint, Executor, Fabric, MemoryFabric, NodeId, OpKind, RemotePtr};

const BUCKET: RemotePtr = RemotePtr::new(NodeId::new(0), 4096);

fn endpoint() -> Endpoint {
    let fabric = MemoryFabric::new(1, 1 << 16).expect("memory");
    fabric.connect(&fabric.new_identity()).expect("a connection")
}

#[test]
fn settings_survive_encoding() {
    for variant in [Variant::Repaired, Variant::Published] {
        let config = Config { initial_bits: MAX_INITIAL_BITS, threshold: 1.0, alpha: 0.0, variant };
        assert_eq!(decode(&encode(&config).unwrap()), Ok(config));
        for bad in [
            Config { initial_bits: MAX_INITIAL_BITS + 1, ..config },
            Config { threshold: 0.04, ..config },
            Config { threshold: f64::NAN, ..config },
            Config { alpha: 100.5, ..config },
        ] {
            assert!(bad.check().is_err() && decode::<Config>(&encode(&bad).unwrap()).is_err(), "{bad:?}");
        }
    }
}

/// A level-1 bucket of this version, all fresh.
fn fresh(version: u64) -> Vec<u64> {
    (0..Level::One.slots()).map(|slot| fresh_word(version) | version_bit(slot, version)).collect()
}

fn live(fp: u64, sid: u64) -> u64 {
    let ptr = RemotePtr::new(NodeId::new(0), 8192);
    Slot::Live(super::slot::Entry { fp, sid, len: 1, ptr }).encode()
}

/// A READ that overlapped a split shows an entry of another key still frozen, and all other words as the split left
/// them. If the split has freed the slot at once, an insert must go there, so nothing can be concluded. If it has left
/// a dead slot, the frozen slot says nothing about this key.
#[test]
fn bucket_with_a_frozen_slot_of_another_key_is_not_good_where_splits_free_at_once() {
    let (mine, other) = (7, 3);
    let mut words = fresh(1);
    words[9] = freeze(live(other, 1));
    let snapshot = Snapshot::new(BUCKET, endpoint().buf_from_words(&words));
    let side = Some((0, 0));
    assert_eq!(snapshot.health(1, mine, side), Health::Newer);
    assert_eq!(snapshot.health(1, mine, None), Health::Good);
    assert_eq!(snapshot.health(1, other, None), Health::Newer);
    plant(&[Fault::FrozenOfOthers]);
    let found = snapshot.health(1, mine, side);
    plant(&[]);
    assert_eq!(found, Health::Good, "the test must detect the planted fault");
}

/// Returns slots 10 to 12 of a bucket after a split has frozen it.
fn frozen_slots(words: &[u64]) -> Vec<Slot> {
    let endpoint = endpoint();
    let span = endpoint.span(OpKind::Other);
    Executor::new().block_on(&endpoint, async {
        span.write(BUCKET, endpoint.buf_from_words(words)).await.expect("written");
        let seen = Snapshot::new(BUCKET, span.read(BUCKET, Level::One.bytes()).await.expect("read"));
        let mut batch = span.batch();
        freeze_slots(&mut batch, &seen, Level::One, 0);
        batch.post().await.expect("posted");
        let after = span.read(BUCKET.add(80), 24).await.expect("read");
        after.words().iter().map(|word| Slot::decode(*word)).collect()
    })
}

/// A client whose READ was torn by a recycling has barred slot 11, and lost the lock. An insert may have seen slot 10
/// fresh, and the split would overwrite the entry that the insert puts there.
#[test]
fn split_bars_the_first_fresh_slot_even_if_a_later_slot_is_barred() {
    let mut words = fresh(0);
    words[..10].iter_mut().for_each(|word| *word = live(5, 0));
    words[11] = Slot::Barrier(0, Stamp::NEVER).encode();
    let (barred, fresh) = (Slot::Barrier(0, Stamp::NEVER), Slot::Fresh(0, Stamp::NEVER));
    assert_eq!(frozen_slots(&words), [barred, barred, fresh]);
    // A barrier before the first fresh slot is enough.
    words[10] = live(5, 0);
    assert_eq!(frozen_slots(&words)[1..], [barred, fresh]);
    words[10] = fresh_word(0);
    plant(&[Fault::AnyBarrier]);
    let held = frozen_slots(&words);
    plant(&[]);
    assert_eq!(held, [fresh, barred, fresh], "the test must detect the planted fault");
}

/// Each rule by itself: a bucket of one version in which one slot differs, and what a client that expects this version
/// concludes.
#[test]
fn health_of_a_bucket_follows_from_each_word() {
    const MINE: u64 = 7;
    const EXPECTED: u64 = 2;
    let side = Some((0, 0));
    let stamp = Stamp::of_pin(40);
    let ptr = RemotePtr::new(NodeId::new(0), 8192);
    let of = |version: u64, changed: &[(usize, u64)]| {
        let mut words = fresh(version);
        for (slot, word) in changed {
            words[*slot] = *word | words[*slot] & META;
        }
        Snapshot::new(BUCKET, endpoint().buf_from_words(&words))
    };
    let with = |slot: usize, word: u64| of(EXPECTED, &[(slot, word)]);
    let (here, there) = (live(3, 2), live(3, 1));
    let nothing = freeze(live(3, 0)) | 5 << 52;
    for (what, snapshot, side, verdict) in [
        ("all fresh", of(EXPECTED, &[]), side, Health::Good),
        ("an entry of this side", with(9, here), side, Health::Good),
        ("an entry of the other side", with(9, there), side, Health::Mixed),
        ("such an entry where no side is known", with(9, there), None, Health::Good),
        ("a word that was never written", with(9, 0), side, Health::Unwritten),
        ("a barrier", with(9, Slot::Barrier(EXPECTED, stamp).encode()), side, Health::Newer),
        (
            "a barrier behind an entry of the other side",
            of(EXPECTED, &[(9, there), (10, Slot::Barrier(EXPECTED, stamp).encode())]),
            side,
            Health::Newer,
        ),
        ("the key's own frozen slot", with(9, freeze(live(MINE, 2))), None, Health::Newer),
        ("a slot removed here", with(9, Slot::Dead(EXPECTED, stamp).encode()), side, Health::Good),
        ("a slot removed in an older version", with(9, Slot::Dead(EXPECTED - 1, stamp).encode()), side, Health::Good),
        ("a slot removed in a newer version", with(9, Slot::Dead(EXPECTED + 1, stamp).encode()), side, Health::Newer),
        ("a fresh slot of a newer version", with(9, Slot::Fresh(EXPECTED + 1, stamp).encode()), side, Health::Newer),
        ("a fresh slot of an older version", with(9, Slot::Fresh(EXPECTED - 1, stamp).encode()), side, Health::Mixed),
        (
            "a fresh slot of an older version behind a frozen one",
            of(EXPECTED, &[(9, freeze(live(MINE, 2))), (10, Slot::Fresh(EXPECTED - 1, stamp).encode())]),
            side,
            Health::Newer,
        ),
        (
            "an entry of the other side behind a frozen slot",
            of(EXPECTED, &[(9, freeze(live(MINE, 2))), (10, there)]),
            side,
            Health::Newer,
        ),
        ("a link in a bucket", with(9, Slot::Link(ptr).encode()), side, Health::Corrupt(9)),
        ("a marker of no kind", with(9, Slot::Dead(0, stamp).encode() | 0xF << 52), side, Health::Corrupt(9)),
        ("an entry of no length", with(9, nothing), side, Health::Corrupt(9)),
        ("lock of another client", with(0, fresh_word(EXPECTED) | META), side, Health::Locked),
        ("an older version", of(EXPECTED - 1, &[]), side, Health::Older(EXPECTED - 1)),
        ("a newer version", of(EXPECTED + 1, &[]), side, Health::Newer),
    ] {
        assert_eq!(snapshot.health(EXPECTED, MINE, side), verdict, "{what}");
    }
}
