//! A walk reports what it cannot read, and goes on behind it.

use crate::slotted::kinds::{Entries, Kind, key, poke, value};
use farindex_fabric::{NodeId, OpKind, RemotePtr};
use farindex_index::audit::Damage;
use farindex_index::slotted::geometry::{REGION, ROOT_SEGMENTS};
use farindex_index::slotted::slot::{Slot, Stamp, heap};
use farindex_index::{Cuckoo, IndexError, Linear, Value};
use farindex_pool::PoolError;
use farindex_pool::audit::Audit;
use farindex_testkit::alone::with_index;

const KEYS: u32 = 100;

/// Keys and values that a walk visits, and the damage that it reports.
async fn salvage<I: Kind>(index: &I) -> (Entries, Vec<Damage>) {
    let (mut visited, mut reported) = (Entries::new(), Vec::new());
    let each = async |key: &[u8], value: Value| {
        assert!(visited.insert(key.to_vec(), value.to_vec()).is_none(), "{} is visited twice", key.escape_ascii());
        Ok(())
    };
    let mut damaged = |damage| {
        reported.push(damage);
        Ok(())
    };
    let seen = index.visit(each, &mut damaged).await.expect("a walk");
    assert_eq!(seen, visited.len() as u64);
    (visited, reported)
}

/// Damages one word: all other entries are visited, and the damage is reported once, with its place.
async fn is_told<I: Kind>(index: &I, at: RemotePtr, word: u64, slot: u64, says: &str) {
    let old = poke(index, at, word).await;
    let (visited, reported) = salvage(index).await;
    assert_eq!(visited.len() as u32, KEYS - 1, "{reported:?}");
    assert!((0..KEYS).all(|i| visited.get(&key(i)).is_none_or(|visited| *visited == value(i, "value"))));
    let node = index.geometry().current.start.node();
    let (region, slot) = (slot / REGION, slot % REGION);
    let place = format!("slot {slot} of region {region} of the table of generation 0 on memory node {node} ");
    let [damage] = reported.as_slice() else { panic!("reported {} times: {reported:?}", reported.len()) };
    assert!(damage.what.starts_with(&place) && damage.what.contains(says), "{}", damage.what);
    let failed = index.visit(async |_, _| Ok(()), &mut Damage::fail).await;
    let corrupt = PoolError::Corrupt { at: damage.at, what: damage.what.clone() };
    assert_eq!(failed, Err(IndexError::Pool(corrupt)));
    let report = index.audit(&mut Audit::default(), false).await.expect("an audit");
    assert_eq!((report.entries, report.problems), (u64::from(KEYS) - 1, vec![damage.what.clone()]));
    poke(index, at, old).await;
    let (visited, reported) = salvage(index).await;
    assert_eq!((visited.len() as u32, reported), (KEYS, vec![]));
}

fn damage_is_told<I: Kind>() {
    with_index(64 << 20, I::config(4 * REGION), async |index: &I| {
        for i in 0..KEYS {
            index.insert(&key(i), &value(i, "value")).await.expect("inserted");
        }
        let segment = index.geometry().current;
        let span = index.in_session().span(OpKind::Other);
        let slots = span.read(segment.start, segment.slots() as usize * segment.width).await.expect("all slots");
        let heads = slots.words().iter().step_by(segment.width / 8).map(|head| Slot::decode(*head));
        let mut blocks = (0..).zip(heads).filter_map(|(slot, head)| match head {
            Slot::Heap { ptr, signature, .. } => Some((slot, ptr, signature)),
            _ => None,
        });
        for _ in 0..3 {
            let (slot, ptr, signature) = blocks.next().expect("an entry out of band");
            let at = segment.slot(slot);
            let nowhere = RemotePtr::new(NodeId::new(9), 64 << 10);
            let lost = heap(nowhere, 256, signature, Stamp::CLAIMED);
            is_told(index, at, lost, slot, "points to memory node 9, which does not exist").await;
            let outside = heap(RemotePtr::new(ptr.node(), 64 << 20), 256, signature, Stamp::CLAIMED);
            is_told(index, at, outside, slot, "where no object can lie").await;
            is_told(index, at, 1, slot, "holds 0x0000000000000001").await;
            is_told(
                index,
                ptr.add(40),
                7,
                slot,
                &format!("points to {ptr}, where the key-value block has a wrong checksum"),
            )
            .await;
        }
    });
}

#[test]
fn linear_tells_damage() {
    damage_is_told::<Linear>();
}

#[test]
fn cuckoo_tells_damage() {
    damage_is_told::<Cuckoo>();
}

/// A root that makes no sense is damage of its whole table.
fn a_root_is_told<I: Kind>() {
    with_index(64 << 20, I::config(REGION), async |index: &I| {
        index.insert(b"key", b"value").await.expect("inserted");
        let root = index.root();
        let nowhere = RemotePtr::new(NodeId::new(9), 64 << 10).to_slot().expect("48 bits");
        for (word, broken, says) in [
            (0, 5 << 32, "no table has such a root"),
            (ROOT_SEGMENTS, nowhere, "memory node 9, which does not exist"),
            (ROOT_SEGMENTS + 1, 1 << 33, "where no object can lie"),
        ] {
            let at = root.add(8 * word as u64);
            let old = poke(index, at, broken).await;
            let (visited, reported) = salvage(index).await;
            assert!(visited.is_empty(), "{visited:?}");
            let [damage] = reported.as_slice() else { panic!("{reported:?}") };
            assert!(damage.at == root && damage.what.contains(says), "{damage:?}");
            let report = index.audit(&mut Audit::default(), false).await.expect("an audit");
            assert!(report.entries == 0 && report.problems.len() == 1, "{:?}", report.problems);
            poke(index, at, old).await;
            assert_eq!(salvage(index).await.0.len(), 1);
        }
    });
}

#[test]
fn linear_tells_a_broken_root() {
    a_root_is_told::<Linear>();
}

#[test]
fn cuckoo_tells_a_broken_root() {
    a_root_is_told::<Cuckoo>();
}
