//! What a client can be at when it dies, and how to bring each about.

use farindex_index::keyhash::KeyHash;
use farindex_index::shard::geometry::Places;
use farindex_testkit::workload::Op;

/// What the dying client is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An operation on one key.
    On(Op, Place),
    /// Opens an index.
    Open,
    /// Creates one, and fills it.
    Create,
    /// Drops one.
    Drop,
    /// Looks for the dead, evicts them, and puts right what one has left that died at this verb of an upsert which moves
    /// buckets of all levels.
    Mend(u64),
    /// Joins the pool.
    Register,
    /// Three ticks.
    Tick,
    /// Leaves, with memory to give back.
    Close,
}

/// What the operation meets, and what it has to do by the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nothing special.
    Plain,
    /// The key is there where it should not be, or is not where it should.
    Otherwise,
    /// The bucket is to be moved by one version.
    Moves,
    /// The same, with entries in levels 2 and 3.
    MovesAll,
    /// The bucket is two versions behind.
    Twice,
    /// Moving it renews the sids.
    Renews,
    /// The table is to grow.
    Resizes,
    /// The bucket is full: level 2.
    Second,
    /// Level 2 is full as well.
    Third,
    /// And level 3's own slot is taken: a node is to be linked.
    Chained,
    /// The bucket is full of dead slots that may be used again.
    Recycles,
}

use Place::{Chained, Moves, MovesAll, Otherwise, Plain, Recycles, Renews, Resizes, Second, Third, Twice};

/// How an index is made ready for a kind.
pub(crate) struct Stage {
    /// Buckets of a new table, as a power of two.
    pub(crate) initial_bits: u64,
    /// Keys put in at first, in this order; the table does not grow meanwhile.
    pub(crate) keys: Vec<String>,
    /// The key of the operation, which may be among them.
    pub(crate) key: String,
    /// Keys to remove then.
    pub(crate) removed: usize,
    /// How often the table grows then. Each time but the last, all buckets are moved at once.
    pub(crate) grows: u64,
    /// How often it grows behind each other without a bucket being moved.
    pub(crate) behind: u64,
}

/// Keys whose hashes end in these bits, one after the other.
fn keys_at(bits: u64, mask: u64) -> impl Iterator<Item = String> {
    let names = (0u64..).map(|i| format!("k{i}"));
    names.filter(move |name| KeyHash::of(name.as_bytes()).bits() & mask == bits & mask)
}

/// Do both its choices in level 2 end in these bits?
fn chooses(name: &str, bits: u64, mask: u64) -> bool {
    Places::of(KeyHash::of(name.as_bytes())).choices.iter().all(|choice| choice & mask == bits)
}

/// Are they the first of four buckets?
fn is_tight(name: &str) -> bool {
    chooses(name, 0, 3)
}

impl Kind {
    fn place(self) -> Place {
        match self {
            Kind::On(_, place) => place,
            Kind::Mend(_) => MovesAll,
            _ => Plain,
        }
    }

    /// Is the key there before?
    fn is_present(self) -> bool {
        match self {
            Kind::On(Op::Insert, place) => place == Otherwise,
            Kind::On(Op::Upsert, place) => matches!(place, Otherwise | Moves | MovesAll | Twice | Renews),
            Kind::On(_, place) => place != Otherwise,
            _ => true,
        }
    }

    /// How to bring it about.
    pub(crate) fn stage(self) -> Stage {
        let place = self.place();
        // Keys ahead of the operation's, and further ones that are tight: in a table of four buckets all of them belong to
        // the last one, whose 64 slots fill first, then one level-2 bucket of 8 slots, the slot of level 3, a node.
        let (initial_bits, others, tight) = match place {
            Plain | Otherwise | Resizes | Twice => (0, 20, 0),
            Moves | Renews => (0, 30, 0),
            MovesAll => (0, 82, 0),
            Second | Recycles => (2, 64, 0),
            Third => (2, 64, 8),
            Chained => (2, 64, 9),
        };
        let mask = (1 << initial_bits) - 1;
        // It belongs to the side that moves, in every split; in level 2 too, where that is moved.
        let suits = |name: &String| if place == MovesAll { chooses(name, 1, 1) } else { is_tight(name) };
        let key = keys_at(0xF, 0xF).find(suits).unwrap_or_default();
        let others = keys_at(0xF, mask).filter(|name| !is_tight(name) && *name != key).take(others);
        let mut keys: Vec<_> = others.collect();
        keys.extend(keys_at(0xF, mask).filter(|name| is_tight(name) && *name != key).take(tight));
        if self.is_present() {
            // In level 2, where all levels are full.
            keys.insert(if place == MovesAll { 66 } else { keys.len() }, key.clone());
        }
        Stage {
            initial_bits,
            keys,
            key,
            removed: if place == Recycles { 20 } else { 0 },
            grows: match place {
                Moves | MovesAll | Twice => 1,
                Renews => 4,
                _ => 0,
            },
            behind: u64::from(place == Twice),
        }
    }

    /// Marks of the paths that it must take if it lives.
    pub(crate) fn must_pass(self) -> &'static [&'static str] {
        let puts = matches!(self, Kind::On(Op::Insert | Op::Upsert, _));
        match self {
            Kind::Mend(_) => &["rescue: lock claimed"],
            Kind::On(_, Moves) => &["split: level 1"],
            Kind::On(Op::Insert, MovesAll) => &["split: level 1", "level 3: entry moved"],
            Kind::On(_, MovesAll) => &["split: level 1", "split: level 2", "level 3: entry moved"],
            Kind::On(_, Twice) => &["split: several versions"],
            Kind::On(_, Renews) => &["split: sids renewed"],
            Kind::On(_, Resizes) => &["grow"],
            Kind::On(_, Second) if puts => &["put_second"],
            Kind::On(_, Third) if puts => &["level 3: slot filled"],
            Kind::On(_, Chained) if puts => &["level 3: link"],
            Kind::On(_, Recycles) => &["recycle"],
            _ => &[],
        }
    }

    /// Verbs that it has at least, in a calm run: with fewer, it would not be what it is meant to be.
    pub(crate) fn budget(self) -> u64 {
        let writes = matches!(self, Kind::On(Op::Insert | Op::Update | Op::Upsert, _));
        // A write from a session without a stock takes a chunk first.
        let fetches = if writes { 9 } else { 0 };
        match self {
            Kind::On(op, Plain | Otherwise) if op == Op::Get || op == Op::Remove => 2,
            Kind::On(_, Plain | Otherwise) => 12,
            Kind::On(_, Moves) => fetches + 39,
            Kind::On(_, MovesAll) => fetches + 60,
            Kind::On(_, Twice) => fetches + 60,
            Kind::On(_, Renews) => fetches + 22,
            Kind::On(Op::Insert | Op::Upsert, Second | Third | Chained | Resizes) => 25,
            Kind::On(Op::Update, Second | Third | Chained) => 16,
            Kind::On(_, Second | Third | Chained | Resizes) => 6,
            Kind::On(_, Recycles) => 40,
            Kind::Open => 3,
            Kind::Create => 130,
            Kind::Drop => 71,
            Kind::Mend(_) => 80,
            Kind::Register => 10,
            Kind::Tick => 12,
            Kind::Close => 21,
        }
    }

    /// All of them.
    pub(crate) fn all() -> Vec<Kind> {
        let everywhere = [Plain, Otherwise, Moves, MovesAll, Twice, Renews, Second, Third, Chained];
        let mut all = Vec::new();
        for op in [Op::Get, Op::Insert, Op::Update, Op::Upsert, Op::Remove] {
            all.extend(everywhere.map(|place| Kind::On(op, place)));
            if matches!(op, Op::Insert | Op::Upsert) {
                all.extend([Resizes, Recycles].map(|place| Kind::On(op, place)));
            }
        }
        all.extend([Kind::Open, Kind::Create, Kind::Drop, Kind::Register, Kind::Tick, Kind::Close]);
        all.extend([Kind::Mend(20), Kind::Mend(30), Kind::Mend(45)]);
        all
    }
}
