//! Where clients crash in SepHash.

use crate::crash_recovery::kinds::{CrashTested, EVERY_OP, Kind, Stage, everywhere, keys_at};
use farindex_index::keyhash::KeyHash;
use farindex_index::sephash::{Config, Table};
use farindex_index::{IndexError, PointIndex, SepHash};
use farindex_pool::Session;
use farindex_testkit::workload::Op;
use std::rc::Rc;

/// What the operation finds, and what else it has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nothing special.
    Plain,
    /// The key is there where it should not be, or is not where it should.
    Otherwise,
    /// A block of several units.
    Long,
    /// It takes the last slot, and merges.
    Merges,
    /// It merges, and entries are dropped.
    Drops,
    /// It takes the last slot, and splits.
    Splits,
    /// Splitting doubles the directory, and takes the next four bits out of the blocks.
    Renews,
}

use Place::{Drops, Long, Merges, Otherwise, Plain, Renews, Splits};

/// Slots of a CurSegment.
const SLOTS: usize = 7;

fn place_of(kind: Kind<Place>) -> Place {
    match kind {
        Kind::On(_, place) => place,
        Kind::Recover(_) => SepHash::RECOVERED,
        _ => Plain,
    }
}

/// Is the key there before?
fn is_present(kind: Kind<Place>) -> bool {
    match kind {
        Kind::On(Op::Insert, place) => place == Otherwise,
        Kind::On(Op::Upsert, place) => matches!(place, Otherwise | Splits),
        Kind::On(_, place) => place != Otherwise,
        _ => true,
    }
}

/// Does it append an entry?
fn appends(kind: Kind<Place>) -> bool {
    match kind {
        Kind::On(Op::Get, _) => false,
        Kind::On(Op::Upsert, _) => true,
        Kind::On(op, _) => is_present(kind) != (op == Op::Insert),
        _ => false,
    }
}

/// Names that no other part of these tests uses, of keys of one segment.
fn dummies(suffix: u64, depth: u32) -> impl Iterator<Item = Vec<u8>> {
    let names = (0_u64..).map(|i| format!("dummy {i}").into_bytes());
    names.filter(move |name| KeyHash::unseeded(name).bits() & ((1 << depth) - 1) == suffix)
}

fn taken(table: &Table, suffix: u64) -> usize {
    table.views().get(suffix).map_or(0, |view| view.occupancy.count)
}

impl CrashTested for SepHash {
    type Place = Place;
    const RECOVERED: Place = Splits;

    fn kinds() -> Vec<Kind<Place>> {
        let mut all = Vec::new();
        for op in EVERY_OP {
            all.extend([Plain, Otherwise, Long, Merges, Drops, Splits, Renews].map(|place| Kind::On(op, place)));
        }
        all.extend(everywhere(&[28, 34, 40]));
        all
    }

    fn stage(kind: Kind<Place>) -> Stage {
        let place = place_of(kind);
        let initial_bits = if place == Renews { 3 } else { 0 };
        // All keys belong to one segment.
        let mut names = keys_at(0, (1 << initial_bits) - 1);
        let key = names.next().unwrap_or_default();
        let count = match place {
            Plain | Otherwise | Long => 3,
            Merges => SLOTS - 1,
            Drops => SLOTS - 3,
            // One merge has been, and the next one is due.
            Splits | Renews => 2 * SLOTS - 1,
        };
        let mut keys: Vec<_> = names.take(count - usize::from(is_present(kind))).collect();
        if is_present(kind) {
            keys.push(key.clone());
        }
        Stage {
            initial_bits,
            keys,
            key,
            updated: if place == Drops { 2 } else { 0 },
            epochs: 3,
            padded: if place == Long { 600 } else { 0 },
            ..Stage::default()
        }
    }

    fn must_pass(kind: Kind<Place>) -> &'static [&'static str] {
        match kind {
            Kind::Recover(_) => &["sephash recovery: lock claimed"],
            Kind::On(_, Merges) if appends(kind) => &["merge"],
            Kind::On(_, Drops) if appends(kind) => &["merge", "merge: slots emptied"],
            Kind::On(_, Splits) if appends(kind) => &["split"],
            Kind::On(_, Renews) if appends(kind) => &["split", "split: headers read"],
            _ => &[],
        }
    }

    fn budget(kind: Kind<Place>) -> u64 {
        match kind {
            Kind::On(_, Merges | Drops) if appends(kind) => 30,
            Kind::On(_, Splits | Renews) if appends(kind) => 40,
            Kind::On(..) if appends(kind) => 12,
            Kind::On(..) => 5,
            Kind::Open => 3,
            Kind::Create => 130,
            Kind::Drop => 20,
            Kind::Recover(_) => 60,
            Kind::Register => 10,
            Kind::Tick => 12,
            Kind::Close => 20,
        }
    }

    /// Segments are split once.
    fn config(initial_bits: u64) -> Config {
        let initial_depth = initial_bits as u32;
        Config { cur_bytes: 64, ratio: 1, initial_depth, max_depth: initial_depth + 1, ..Config::default() }
    }

    fn swell(&self, _: i64) {}

    async fn enlarge(&self, _: &Rc<Session>) -> Result<(), IndexError> {
        unreachable!("segments are split one by one")
    }

    async fn move_parts(&self, _: &Rc<Session>, _: u64, _: &[String]) -> Result<(), IndexError> {
        Ok(())
    }

    /// Splits all segments that have not been split, and empties all CurSegments.
    async fn level_out(&self, _: &Rc<Session>) -> Result<(), IndexError> {
        let table = &self.tables()[0];
        let (first, depth) = (self.config().initial_depth, self.config().max_depth);
        for suffix in 0..1 << first {
            let mut filled = Vec::new();
            for key in dummies(suffix, first) {
                if !table.directory().mirror().get(suffix | 1 << first).is_none() {
                    break;
                }
                self.upsert(&key, b"").await?;
                filled.push(key);
            }
            for key in filled {
                self.remove(&key).await?;
            }
        }
        for suffix in 0..1 << depth {
            let key = dummies(suffix, depth).next().unwrap_or_default();
            // A removal has to take the last slot: the merge behind an upsert that takes it would keep the key.
            loop {
                self.upsert(&key, b"").await?;
                self.remove(&key).await?;
                if taken(table, suffix) == 0 {
                    break;
                }
            }
        }
        Ok(())
    }
}
