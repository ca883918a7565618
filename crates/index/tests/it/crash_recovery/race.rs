//! Where clients crash in RACE.

use crate::crash_recovery::kinds::{CrashTested, EVERY_OP, Kind, Stage, everywhere, keys_at};
use farindex_index::keyhash::KeyHash;
use farindex_index::race::Config;
use farindex_index::{IndexError, PointIndex, Race};
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
    /// A block that is longer than a slot can say.
    Long,
    /// The segment is full.
    Splits,
    /// The same, and the directory is doubled for it.
    Doubles,
}

use Place::{Doubles, Long, Otherwise, Plain, Splits};

/// Slots of a segment.
const SLOTS: usize = 24;

fn place_of(kind: Kind<Place>) -> Place {
    match kind {
        Kind::On(_, place) => place,
        Kind::Recover(_) => Race::RECOVERED,
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

/// Does it split a segment?
fn splits(kind: Kind<Place>) -> bool {
    matches!(kind, Kind::On(Op::Insert | Op::Upsert, Splits | Doubles) | Kind::Recover(_))
}

impl CrashTested for Race {
    type Place = Place;
    const RECOVERED: Place = Splits;

    fn kinds() -> Vec<Kind<Place>> {
        let mut all = Vec::new();
        for op in EVERY_OP {
            all.extend([Plain, Otherwise, Long].map(|place| Kind::On(op, place)));
        }
        for op in [Op::Insert, Op::Upsert] {
            all.extend([Splits, Doubles].map(|place| Kind::On(op, place)));
        }
        all.extend(everywhere(&[30, 45, 60]));
        all
    }

    fn stage(kind: Kind<Place>) -> Stage {
        let place = place_of(kind);
        // From eight segments on, the next one is in another chunk of the directory.
        let initial_bits = if place == Doubles { 3 } else { 1 };
        // All keys belong to one segment, and the operation's to the half that moves.
        let key = keys_at(1 << initial_bits, (2 << initial_bits) - 1).next().unwrap_or_default();
        let names = keys_at(0, (1 << initial_bits) - 1).filter(|name| *name != key);
        let mut keys: Vec<_> = names.take(if splits(kind) { SLOTS } else { 12 }).collect();
        if is_present(kind) {
            keys.push(key.clone());
        }
        let padded = if place == Long { 5000 } else { 0 };
        Stage { initial_bits, keys, key, epochs: 3, padded, ..Stage::default() }
    }

    fn must_pass(kind: Kind<Place>) -> &'static [&'static str] {
        match kind {
            Kind::Recover(_) => &["race: recovery: lock claimed"],
            _ if splits(kind) => &["race: split"],
            _ => &[],
        }
    }

    fn budget(kind: Kind<Place>) -> u64 {
        match kind {
            _ if matches!(kind, Kind::On(..)) && splits(kind) => 70,
            Kind::On(Op::Get | Op::Remove | Op::RemoveIf, _) => 2,
            Kind::On(..) => 9,
            Kind::Open => 3,
            Kind::Create => 100,
            Kind::Drop => 20,
            Kind::Recover(_) => 40,
            Kind::Register => 10,
            Kind::Tick => 12,
            Kind::Close => 20,
        }
    }

    /// Segments are split once.
    fn config(initial_bits: u64) -> Config {
        Config { initial_depth: initial_bits, groups: 1, max_depth: initial_bits + 1, ..Config::default() }
    }

    fn swell(&self, _: i64) {}

    async fn enlarge(&self, _: &Rc<Session>) -> Result<(), IndexError> {
        unreachable!("segments are split one by one")
    }

    async fn move_parts(&self, _: &Rc<Session>, _: u64, _: &[String]) -> Result<(), IndexError> {
        Ok(())
    }

    /// All segments that may be split have been.
    async fn level_out(&self, _: &Rc<Session>) -> Result<(), IndexError> {
        let depth = self.config().max_depth;
        for suffix in 0..1 << depth {
            let names = (0u64..).map(|i| format!("dummy {i}").into_bytes());
            let names = names.filter(|name| KeyHash::unseeded(name).bits() & ((1 << depth) - 1) == suffix);
            let mut filled = Vec::new();
            for name in names {
                match self.insert(&name, b"").await {
                    Ok(_) => filled.push(name),
                    // It is full, and as deep as can be.
                    Err(IndexError::TooDeep { .. }) => break,
                    Err(error) => return Err(error),
                }
            }
            for name in filled {
                self.remove(&name).await?;
            }
        }
        Ok(())
    }
}
