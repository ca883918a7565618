//! Where clients crash in an ordered index over the skeleton.

use crate::crash_recovery::kinds::{CrashTested, EVERY_OP, Kind, Stage, everywhere};
use crate::trees::Tree;
use farindex_index::{Chime, IndexError, PointIndex, Remove, Sherman};
use farindex_pool::{Session, marks};
use farindex_testkit::alone::with_index;
use farindex_testkit::workload::Op;
use std::ops::Range;
use std::rc::Rc;
use std::sync::OnceLock;

/// What the operation finds, and what else it has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nothing but the operation.
    Plain,
    /// The key is there where it should not be, or is not where it should.
    Otherwise,
    /// A value of several units.
    Long,
    /// Key and values have 8 bytes: they lie in the leaf.
    Eight,
    /// A key of 8 bytes, whose value of 8 bytes becomes another one, and the other way round.
    ToBlock,
    ToInline,
    /// Other entries must move in the leaf.
    Hops,
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

use Place::{Eight, Grows, Hops, Long, Merges, Otherwise, Plain, Shrinks, Splits, SplitsTwice, ToBlock, ToInline};

/// The keys that bring a place about; the marks of `must_pass` show that they do.
pub(crate) struct Sizes {
    /// How many ascending keys make the next one move others, split a leaf, a leaf and its parent, or a leaf and the root.
    hops: Option<u64>,
    splits: u64,
    splits_twice: u64,
    grows: u64,
    /// Ascending keys, and the one whose removal merges leaves.
    merges: (u64, u64),
    /// Ascending keys, how many of which are removed at first, and the one whose removal lowers the root.
    shrinks: (u64, usize, u64),
}

/// A tree whose shape is known after ascending inserts into its smallest nodes.
pub(crate) trait KnownShape: Tree {
    /// Mark of a leaf's split.
    const SPLIT: &'static str;

    fn sizes() -> &'static Sizes;
    async fn merge_all(&self) -> Result<u64, IndexError>;
}

impl KnownShape for Sherman {
    const SPLIT: &'static str = "tree: node was split";

    /// A leaf that is split keeps half; so does an inner node. Ascending keys leave leaves of two entries, the first one
    /// with a parent of its own. `shrinks`: the last leaf but one of an inner node, whose neighbour has a single one.
    fn sizes() -> &'static Sizes {
        &Sizes { hops: None, splits: 4, splits_twice: 16, grows: 8, merges: (30, 2), shrinks: (9, 5, 5) }
    }

    async fn merge_all(&self) -> Result<u64, IndexError> {
        self.compact().await
    }
}

impl KnownShape for Chime {
    const SPLIT: &'static str = "chime: leaf was split";

    /// Two entries of a home and of the next one make a leaf full, so the numbers come of the keys' hashes: they are looked
    /// for.
    fn sizes() -> &'static Sizes {
        static SIZES: OnceLock<Sizes> = OnceLock::new();
        SIZES.get_or_init(|| Sizes {
            hops: Some(ascending(&["chime: insert READs beyond the neighbourhood"], &[Self::SPLIT]).expect("a hop")),
            splits: ascending(&[Self::SPLIT], &["tree: node was split", "tree: root has grown"]).expect("a split"),
            splits_twice: ascending(&[Self::SPLIT, "tree: node was split"], &[]).expect("two splits"),
            grows: ascending(&[Self::SPLIT, "tree: root has grown"], &[]).expect("a root that grows"),
            merges: (
                30,
                (2..30).find(|i| passed(30, *i..i + 1, "tree: nodes were merged") == Some(*i)).expect("a merge"),
            ),
            shrinks: (12..60)
                .find_map(|keys| Some((keys, passed(keys, 2..keys, "tree: root has shrunk")?)))
                .map(|(keys, last)| (keys, last as usize, last))
                .expect("a root that shrinks"),
        })
    }

    async fn merge_all(&self) -> Result<u64, IndexError> {
        self.compact().await
    }
}

/// Inserts so many ascending keys into the smallest CHIME tree, and then runs `body`.
fn with_ascending(keys: u64, body: impl AsyncFnOnce(&Chime)) {
    with_index(8 << 20, <Chime as Tree>::smallest(), async |index: &Chime| {
        for i in 0..keys {
            index.insert(name(i, Plain).as_bytes(), b"first").await.expect("an insert");
        }
        marks::take();
        body(index).await;
    });
    marks::take();
}

/// How many ascending keys make the next one pass the marks `all`, and `none` of the others; three or more.
fn ascending(all: &[&'static str], none: &[&'static str]) -> Option<u64> {
    let mut found = None;
    with_ascending(3, async |index| {
        for i in 3..100 {
            index.insert(name(i, Plain).as_bytes(), b"first").await.expect("an insert");
            let passed = marks::take();
            if all.iter().all(|mark| passed.contains_key(mark)) && !none.iter().any(|mark| passed.contains_key(mark)) {
                found = Some(i);
                return;
            }
        }
    });
    found
}

/// Which of these keys is the first whose removal passes the mark, if they are removed one after the other. The keys before
/// them are removed if there are more than one.
fn passed(keys: u64, removed: Range<u64>, mark: &'static str) -> Option<u64> {
    let mut found = None;
    with_ascending(keys, async |index| {
        let from = if removed.end - removed.start > 1 { 0 } else { removed.start };
        for i in from..removed.end {
            assert_eq!(index.remove(name(i, Plain).as_bytes()).await, Ok(Remove::Removed));
            if marks::take().contains_key(mark) {
                found = found.or(Some(i));
            }
        }
    });
    found.filter(|found| removed.contains(found))
}

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
        Kind::On(Op::Upsert, place) => matches!(place, Otherwise | Long | ToBlock | ToInline),
        Kind::On(_, place) => place != Otherwise,
        Kind::Recover(_) => false,
        _ => true,
    }
}

/// A key of 5 bytes, or of 8.
fn name(i: u64, place: Place) -> String {
    if matches!(place, Eight | ToBlock | ToInline) { format!("key{i:05}") } else { format!("k{i:04}") }
}

impl Sizes {
    fn ascending(&self, place: Place) -> u64 {
        match place {
            Hops => self.hops.unwrap_or_default(),
            Splits => self.splits,
            Grows => self.grows,
            SplitsTwice => self.splits_twice,
            Merges => self.merges.0,
            Shrinks => self.shrinks.0,
            _ => 30,
        }
    }
}

impl<T: KnownShape> CrashTested for T {
    type Place = Place;
    const RECOVERED: Place = Grows;

    fn kinds() -> Vec<Kind<Place>> {
        let mut all = Vec::new();
        for op in EVERY_OP {
            all.extend([Plain, Otherwise, Long, Eight].map(|place| Kind::On(op, place)));
            if matches!(op, Op::Insert | Op::Upsert) {
                all.extend([Splits, SplitsTwice, Grows].map(|place| Kind::On(op, place)));
                all.extend(T::sizes().hops.map(|_| Kind::On(op, Hops)));
            }
            if matches!(op, Op::Update | Op::Upsert | Op::Replace) {
                all.extend([ToBlock, ToInline].map(|place| Kind::On(op, place)));
            }
        }
        for op in [Op::Remove, Op::RemoveIf] {
            all.extend([Merges, Shrinks].map(|place| Kind::On(op, place)));
        }
        // Under the leaf's lock, among the WRITEs of its split, under the root's lock.
        all.extend(everywhere(&[12, 14, 16, 18, 20]));
        all
    }

    fn stage(kind: Kind<Place>) -> Stage {
        let (place, sizes) = (place_of(kind), T::sizes());
        let mut keys: Vec<_> = (0..sizes.ascending(place)).map(|i| name(i, place)).collect();
        let (mut key, mut removed) = (name(keys.len() as u64, place), 0);
        match place {
            Merges => key = name(sizes.merges.1, place),
            Shrinks => (removed, key) = (sizes.shrinks.1, name(sizes.shrinks.2, place)),
            _ if is_present(kind) => keys.push(key.clone()),
            _ => {}
        }
        let padded = match place {
            Long => 200,
            // "second.." has 8 bytes.
            Eight | ToInline => 2,
            _ => 0,
        };
        let eight = matches!(place, Eight | ToBlock);
        Stage { epochs: 3, padded, eight, keys, key, removed, ..Stage::default() }
    }

    fn must_pass(kind: Kind<Place>) -> &'static [&'static str] {
        match kind {
            Kind::Recover(_) => &["tree: lock of a crashed client was taken over"],
            Kind::On(Op::Insert | Op::Upsert, Hops) => &["chime: insert READs beyond the neighbourhood"],
            Kind::On(Op::Insert | Op::Upsert, Splits) => const { &[T::SPLIT] },
            Kind::On(Op::Insert | Op::Upsert, SplitsTwice) => const { &[T::SPLIT, "tree: node was split"] },
            Kind::On(Op::Insert | Op::Upsert, Grows) => const { &[T::SPLIT, "tree: root has grown"] },
            Kind::On(Op::Remove | Op::RemoveIf, Merges) => &["tree: nodes were merged"],
            Kind::On(Op::Remove | Op::RemoveIf, Shrinks) => &["tree: root has shrunk"],
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

    fn config(_: u64) -> T::Config {
        T::smallest()
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
        self.merge_all().await?;
        let report = self.audit(&mut farindex_pool::audit::Audit::default(), false).await?;
        assert_eq!(report.figure("nodes"), 2, "an empty tree is a root and a leaf: {report:?}");
        for (key, value) in &entries {
            self.insert(key, value).await?;
        }
        Ok(())
    }
}
