//! Where clients crash in a Sherman tree.

use crate::crash_recovery::kinds::{CrashTested, Kind, Stage, everywhere};
use farindex_index::sherman::Config;
use farindex_index::{IndexError, PointIndex, PoolIndex, Remove, Sherman};
use farindex_pool::Session;
use farindex_testkit::workload::Op;
use std::rc::Rc;

/// What the operation finds, and what else it has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nothing but the operation.
    Plain,
    /// The key is there where it should not be, or is not where it should.
    Otherwise,
    /// A value of several units.
    Long,
    /// The leaf is full.
    Splits,
    /// The leaf and its parent are full.
    SplitsTwice,
    /// The leaf and the root above it are full.
    Grows,
    /// The leaf is nearly empty, and so is its neighbour.
    Merges,
    /// The same, and the parent has no other children.
    Shrinks,
}

use Place::{Grows, Long, Merges, Otherwise, Plain, Shrinks, Splits, SplitsTwice};

/// Slots of a leaf, and of an inner node.
const SPANS: (usize, usize) = (4, 5);

fn place_of(kind: Kind<Place>) -> Place {
    match kind {
        Kind::On(_, place) => place,
        Kind::Recover(_) => Grows,
        _ => Plain,
    }
}

/// Is the key there before?
fn is_present(kind: Kind<Place>) -> bool {
    match kind {
        Kind::On(Op::Insert, place) => place == Otherwise,
        Kind::On(Op::Upsert, place) => matches!(place, Otherwise | Long),
        Kind::On(_, place) => place != Otherwise,
        Kind::Recover(_) => false,
        _ => true,
    }
}

fn name(i: u64) -> String {
    format!("k{i:04}")
}

/// How many ascending keys make the next one split a leaf, a leaf and its parent, or a leaf and the root. A leaf that is
/// split keeps half; so does an inner node. The tests of `must_pass` show that the numbers are right.
fn ascending(place: Place) -> u64 {
    match place {
        Splits => 4,
        Grows => 8,
        SplitsTwice => 16,
        _ => 30,
    }
}

impl CrashTested for Sherman {
    type Place = Place;
    const RECOVERED: Place = Grows;

    fn kinds() -> Vec<Kind<Place>> {
        let mut all = Vec::new();
        for op in [Op::Get, Op::Insert, Op::Update, Op::Upsert, Op::Remove] {
            all.extend([Plain, Otherwise, Long].map(|place| Kind::On(op, place)));
            if matches!(op, Op::Insert | Op::Upsert) {
                all.extend([Splits, SplitsTwice, Grows].map(|place| Kind::On(op, place)));
            }
        }
        all.extend([Merges, Shrinks].map(|place| Kind::On(Op::Remove, place)));
        // Under the leaf's lock, among the WRITEs of its split, under the root's lock.
        all.extend(everywhere(&[12, 14, 16, 18, 20]));
        all
    }

    fn stage(kind: Kind<Place>) -> Stage {
        let place = place_of(kind);
        let mut keys: Vec<_> = (0..ascending(place)).map(name).collect();
        let (mut key, mut removed) = (name(keys.len() as u64), 0);
        match place {
            // Ascending keys leave leaves of two entries, the first one with a parent of its own.
            Merges => key = name(2),
            // The last leaf but one of an inner node, whose neighbour has a single one.
            Shrinks => {
                keys.truncate(9);
                (key, removed) = (name(5), 5);
            }
            _ if is_present(kind) => keys.push(key.clone()),
            _ => {}
        }
        Stage { epochs: 3, padded: if place == Long { 200 } else { 0 }, keys, key, removed, ..Stage::default() }
    }

    fn must_pass(kind: Kind<Place>) -> &'static [&'static str] {
        match kind {
            Kind::Recover(_) => &["tree: lock of a crashed client was taken over"],
            Kind::On(Op::Insert | Op::Upsert, Splits | SplitsTwice) => &["tree: node was split"],
            Kind::On(Op::Insert | Op::Upsert, Grows) => &["tree: root has grown"],
            Kind::On(Op::Remove, Merges) => &["tree: nodes were merged"],
            Kind::On(Op::Remove, Shrinks) => &["tree: root has shrunk"],
            _ => &[],
        }
    }

    fn budget(kind: Kind<Place>) -> u64 {
        match kind {
            Kind::On(Op::Get, _) => 3,
            Kind::On(_, Splits | SplitsTwice | Grows | Merges | Shrinks) => 20,
            Kind::On(..) => 5,
            Kind::Open => 3,
            Kind::Create => 100,
            Kind::Drop => 30,
            Kind::Recover(_) => 30,
            Kind::Register => 10,
            Kind::Tick => 12,
            Kind::Close => 12,
        }
    }

    fn config(_: u64) -> Config {
        Config { leaf_span: SPANS.0, inner_span: SPANS.1, ..Config::default() }
    }

    fn swell(&self, _: i64) {}

    async fn enlarge(&self, _: &Rc<Session>) -> Result<(), IndexError> {
        Ok(())
    }

    async fn move_parts(&self, _: &Rc<Session>, _: u64, _: &[String]) -> Result<(), IndexError> {
        Ok(())
    }

    /// The tree that comes of inserting the entries in their order.
    async fn level_out(&self, _: &Rc<Session>) -> Result<(), IndexError> {
        let mut entries = Vec::new();
        let note = async |key: &[u8], value: farindex_index::Value| {
            entries.push((key.to_vec(), value.to_vec()));
            Ok(())
        };
        self.visit(note, &mut farindex_index::audit::Damage::fail).await?;
        for (key, _) in &entries {
            assert_eq!(self.remove(key).await?, Remove::Removed);
        }
        self.compact().await?;
        let report = self.audit(&mut farindex_pool::audit::Audit::default(), false).await?;
        assert_eq!(report.figure("nodes"), 2, "an empty tree is a root and a leaf: {report:?}");
        for (key, value) in &entries {
            self.insert(key, value).await?;
        }
        Ok(())
    }
}
