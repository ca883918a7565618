//! Where clients crash in SHARD.

use crate::crash_recovery::interleavings::{Act, interleave_everywhere};
use crate::crash_recovery::kinds::{CrashTested, EVERY_OP, Kind, MANY, Stage, everywhere, keys_at};
use farindex_fabric::OpKind;
use farindex_index::keyhash::KeyHash;
use farindex_index::shard::Config;
use farindex_index::shard::geometry::Places;
use farindex_index::{IndexError, Insert, PointIndex, PoolIndex, Shard};
use farindex_pool::Session;
use farindex_pool::audit::Audit;
use farindex_testkit::is_thorough;
use farindex_testkit::workload::Op;
use std::rc::Rc;

/// What the operation finds, and what else it has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nothing special.
    Plain,
    /// The key is there where it should not be, or is not where it should.
    Otherwise,
    /// The bucket is to be moved by one version.
    RegionMigrator,
    /// The same, with entries in levels 2 and 3.
    MovesAll,
    /// All entries of the three levels move, and the new bucket has no room for those of level 3.
    MovesThird,
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

use Place::{
    Chained, MovesAll, MovesThird, Otherwise, Plain, Recycles, RegionMigrator, Renews, Resizes, Second, Third, Twice,
};

/// Do both its choices in level 2 end in these bits?
fn chooses(name: &str, bits: u64, mask: u64) -> bool {
    Places::of(KeyHash::unseeded(name.as_bytes())).choices().iter().all(|choice| choice & mask == bits)
}

/// Are they the first of four buckets?
fn is_tight(name: &str) -> bool {
    chooses(name, 0, 3)
}

fn place_of(kind: Kind<Place>) -> Place {
    match kind {
        Kind::On(_, place) => place,
        Kind::Recover(_) => MovesAll,
        _ => Plain,
    }
}

/// Is the key there before?
fn is_present(kind: Kind<Place>) -> bool {
    match kind {
        Kind::On(Op::Insert, place) => place == Otherwise,
        Kind::On(Op::Upsert, place) => {
            matches!(place, Otherwise | RegionMigrator | MovesAll | MovesThird | Twice | Renews)
        }
        Kind::On(_, place) => place != Otherwise,
        _ => true,
    }
}

/// Further keys that belong to all the places of the first one.
fn neighbours(stage: &Stage) -> impl Iterator<Item = String> {
    let mask = (1 << (stage.initial_bits + 1)) - 1;
    let choices =
        move |name: &str| Places::of(KeyHash::unseeded(name.as_bytes())).choices().map(|choice| choice & mask);
    let of_key = choices(&stage.key);
    keys_at(0xF, 0xF)
        .filter(move |name| choices(name) == of_key)
        .filter(|name| *name != stage.key && !stage.keys.contains(name))
}

/// Each operation on a key, and what it may be interleaved with: others on that key, an insert next to it, growth. A quick run has
/// every third pair of them in each place.
#[test]
fn two_clients_meet_behind_any_batch() {
    let deep = std::env::var("FARINDEX_EVERY").is_ok();
    for place in [RegionMigrator, MovesAll, Twice, Renews, Second, Third, Chained, Recycles] {
        let (mut runs, mut pairs) = (0, place as usize);
        for (op, present) in
            [(Op::Get, true), (Op::Insert, false), (Op::Update, true), (Op::Remove, true), (Op::Replace, true)]
        {
            let kind = Kind::On(if present { Op::Update } else { Op::Insert }, place);
            let stage = Shard::stage(kind);
            let other = neighbours(&stage).next().unwrap_or_default();
            let on = |op| Act::On(op, stage.key.clone());
            for second in [
                vec![Act::On(Op::Insert, other)],
                vec![on(Op::Remove), on(Op::Insert)],
                vec![on(Op::Insert), on(Op::Update)],
                vec![on(Op::Replace)],
                vec![Act::Grow, on(Op::Get)],
            ] {
                pairs += 1;
                if !deep && !is_thorough() && pairs % 3 > 0 {
                    continue;
                }
                let depth = if deep && place != MovesAll { 2 } else { 1 };
                runs += interleave_everywhere::<Shard>(kind, &[vec![on(op)], second], depth);
            }
        }
        println!("{place:?}: {runs} interleavings");
    }
}

impl CrashTested for Shard {
    type Place = Place;
    const RECOVERED: Place = MovesAll;

    fn stage(kind: Kind<Place>) -> Stage {
        let place = place_of(kind);
        // Keys ahead of the operation's, and further ones that are tight: in a table of four buckets all of them belong
        // to the last one, whose 64 slots fill first, then one level-2 bucket of 8 slots, the slot of level 3, a node.
        let (initial_bits, others, tight) = match place {
            Plain | Otherwise | Resizes | Twice => (0, 20, 0),
            RegionMigrator | Renews => (0, 30, 0),
            MovesAll | MovesThird => (0, 82, 0),
            Second | Recycles => (2, 64, 0),
            Third => (2, 64, 8),
            Chained => (2, 64, 9),
        };
        let mask = (1 << initial_bits) - 1;
        // It belongs to the side that moves, in every split; in level 2 too, where that is moved.
        let suits =
            |name: &String| if matches!(place, MovesAll | MovesThird) { chooses(name, 1, 1) } else { is_tight(name) };
        let key = keys_at(0xF, 0xF).find(suits).unwrap_or_default();
        let others = keys_at(0xF, if place == MovesThird { 0xF } else { mask })
            .filter(|name| !is_tight(name) && *name != key)
            .take(others);
        let mut keys: Vec<_> = others.collect();
        keys.extend(keys_at(0xF, mask).filter(|name| is_tight(name) && *name != key).take(tight));
        if is_present(kind) {
            // In level 2, where all levels are full.
            keys.insert(if matches!(place, MovesAll | MovesThird) { 66 } else { keys.len() }, key.clone());
        }
        Stage {
            initial_bits,
            keys,
            key,
            removed: if place == Recycles { 20 } else { 0 },
            grows: match place {
                RegionMigrator | MovesAll | MovesThird | Twice => 1,
                Renews => 4,
                _ => 0,
            },
            behind: u64::from(place == Twice),
            epochs: 6,
            resizes: place == Resizes,
            ..Stage::default()
        }
    }

    fn must_pass(kind: Kind<Place>) -> &'static [&'static str] {
        let puts = matches!(kind, Kind::On(Op::Insert | Op::Upsert, _));
        match kind {
            Kind::Recover(_) => &["recovery: lock claimed"],
            Kind::On(_, RegionMigrator) => &["split: level 1"],
            Kind::On(Op::Insert, MovesAll) => &["split: level 1", "level 3: entry moved"],
            Kind::On(_, MovesAll) => &["split: level 1", "split: level 2", "level 3: entry moved"],
            Kind::On(_, MovesThird) => &["split: level 1", "level 3: entry moved to level 3"],
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

    fn budget(kind: Kind<Place>) -> u64 {
        let writes = matches!(kind, Kind::On(Op::Insert | Op::Update | Op::Upsert | Op::Replace, _));
        // A write from a session without a stock takes a chunk first.
        let fetches = if writes { 9 } else { 0 };
        match kind {
            Kind::On(Op::Get | Op::Remove | Op::RemoveIf, Plain | Otherwise) => 2,
            Kind::On(_, Plain | Otherwise) => 12,
            Kind::On(_, RegionMigrator) => fetches + 39,
            Kind::On(_, MovesAll | MovesThird) => fetches + 60,
            Kind::On(_, Twice) => fetches + 60,
            Kind::On(_, Renews) => fetches + 22,
            Kind::On(Op::Insert | Op::Upsert, Second | Third | Chained | Resizes) => 25,
            Kind::On(Op::Update | Op::Replace, Second | Third | Chained) => 16,
            Kind::On(_, Second | Third | Chained | Resizes) => 6,
            Kind::On(_, Recycles) => 40,
            Kind::Open => 3,
            Kind::Create => 130,
            Kind::Drop => 71,
            Kind::Recover(_) => 80,
            Kind::Register => 10,
            Kind::Tick => 12,
            Kind::Close => 21,
        }
    }

    fn kinds() -> Vec<Kind<Place>> {
        let everyplace = [Plain, Otherwise, RegionMigrator, MovesAll, Twice, Renews, Second, Third, Chained];
        let mut all = Vec::new();
        for op in EVERY_OP {
            all.extend(everyplace.map(|place| Kind::On(op, place)));
            if matches!(op, Op::Insert | Op::Upsert) {
                all.extend([Resizes, Recycles, MovesThird].map(|place| Kind::On(op, place)));
            }
        }
        all.extend(everywhere(&[20, 30, 45]));
        all
    }

    fn config(initial_bits: u64) -> Config {
        Config { initial_bits, threshold: 1.0, alpha: 0.0, ..Config::default() }
    }

    fn swell(&self, entries: i64) {
        self.tables()[0].note(entries);
    }

    async fn enlarge(&self, session: &Rc<Session>) -> Result<(), IndexError> {
        self.swell(2 * MANY);
        let pin = session.pin(session.span(OpKind::Maintenance))?;
        let table = &self.tables()[0];
        let before = table.geometry().version;
        table.grow(&pin, self.uid()).await?;
        assert_eq!(table.geometry().version, before + 1);
        self.swell(-2 * MANY);
        // Tells the root.
        table.sync(pin.span(), pin.epoch()).await?;
        Ok(())
    }

    /// The first client that needs a bucket moves it.
    async fn move_parts(&self, _: &Rc<Session>, _: u64, keys: &[String]) -> Result<(), IndexError> {
        for key in keys {
            self.get(key.as_bytes()).await?;
        }
        Ok(())
    }

    /// Values of one length take as much in any table, but for level 3: one run waits for the epoch, and finds room in
    /// level 1, where another, whose epoch a crashed client holds up, links a node. Here every full table gets one.
    async fn level_out(&self, _: &Rc<Session>) -> Result<(), IndexError> {
        let geometry = self.tables()[0].geometry();
        if geometry.initial_bits() != 2 {
            return Ok(());
        }
        self.swell(-(1 << 20));
        let segments: u64 = geometry.spans().map(|(_, bytes)| bytes).sum();
        let mut added = Vec::new();
        for key in keys_at(0xF, 3).filter(|name| is_tight(name)).take(150) {
            if self.audit(&mut Audit::default(), true).await?.index_bytes > segments {
                break;
            }
            if self.insert(key.as_bytes(), b"").await? == Insert::Inserted {
                added.push(key);
            }
        }
        for key in added {
            self.remove(key.as_bytes()).await?;
        }
        Ok(())
    }
}
