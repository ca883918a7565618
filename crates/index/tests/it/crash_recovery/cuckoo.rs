//! Where clients crash in cuckoo hashing.

use crate::crash_recovery::kinds::{CrashTested, EVERY_OP, Kind, MANY, Stage, everywhere, keys_at};
use farindex_fabric::{NodeId, OpKind, RemotePtr};
use farindex_index::cuckoo::Config;
use farindex_index::cuckoo::places::first_slots;
use farindex_index::keyhash::KeyHash;
use farindex_index::slotted::geometry::Segment;
use farindex_index::{Cuckoo, IndexError};
use farindex_pool::Session;
use farindex_testkit::workload::Op;
use std::rc::Rc;

/// What the operation finds, and what else it has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// A record that goes into the slot, and the first of its slot.
    Plain,
    /// The key is there where it should not be, or is not where it should.
    Otherwise,
    /// A record that lies out of band.
    Long,
    /// The record went out of band long ago, and goes into the slot again.
    Again,
    /// The table is to be moved, with records in slots.
    RegionMigrator,
    /// The same with records that go from blocks into slots.
    MovesBlocks,
    /// The key's part of the table has been moved, others have not.
    Half,
    /// The table is to grow.
    Resizes,
    /// All slots of the key's places are in use, by records in slots.
    Displaces,
    /// The same by records in blocks.
    DisplacesBlocks,
}

use Place::{Again, Displaces, DisplacesBlocks, Half, Long, MovesBlocks, Otherwise, Plain, RegionMigrator, Resizes};

/// Regions that every table has in the end.
const LARGE: u64 = 32;

fn place_of(kind: Kind<Place>) -> Place {
    match kind {
        Kind::On(_, place) => place,
        Kind::Recover(_) => Displaces,
        _ => Plain,
    }
}

/// Is the key there before?
fn is_present(kind: Kind<Place>) -> bool {
    match kind {
        Kind::On(Op::Insert, place) => place == Otherwise,
        Kind::On(Op::Upsert, place) => !matches!(place, Plain | Resizes | Displaces | DisplacesBlocks),
        Kind::On(_, place) => place != Otherwise,
        Kind::Recover(_) => false,
        _ => true,
    }
}

/// Keys whose first places are the places of this one in the smallest table, which they take if they come first.
fn squatters(key: &str) -> Vec<String> {
    let table = Segment { generation: 0, start: RemotePtr::new(NodeId::new(0), 64), regions: 1, width: 32 };
    let places = |name: &str| first_slots(KeyHash::unseeded(name.as_bytes()), &table, 1);
    let squatter = |place: u64| keys_at(0, 0).find(|name| name != key && places(name)[0] == place);
    places(key).into_iter().filter_map(squatter).collect()
}

impl CrashTested for Cuckoo {
    type Place = Place;
    const RECOVERED: Place = Displaces;

    fn kinds() -> Vec<Kind<Place>> {
        let everyplace = [Plain, Otherwise, Long, RegionMigrator, MovesBlocks, Half];
        let mut all = Vec::new();
        for op in EVERY_OP {
            all.extend(everyplace.map(|place| Kind::On(op, place)));
            if matches!(op, Op::Insert | Op::Upsert) {
                all.extend([Resizes, Displaces, DisplacesBlocks].map(|place| Kind::On(op, place)));
            }
            if matches!(op, Op::Update | Op::Upsert | Op::Replace) {
                all.push(Kind::On(op, Again));
            }
        }
        // Under the lock before the displacement; in it, with the entry live, frozen, copied; under the lock behind it.
        all.extend(everywhere(&[17, 33, 34, 35, 36, 48]));
        all
    }

    fn stage(kind: Kind<Place>) -> Stage {
        let place = place_of(kind);
        // Low bits of hashes are high bits of first places: four regions, and all first places in the first one.
        let initial_bits = if place == Half { 2 } else { 0 };
        let mut names = keys_at(0, (1 << initial_bits) - 1);
        let key = names.next().unwrap_or_default();
        let mut keys: Vec<_> = match place {
            Displaces | DisplacesBlocks => squatters(&key),
            _ => names.take(30).collect(),
        };
        if is_present(kind) {
            keys.push(key.clone());
        }
        Stage {
            initial_bits,
            updated: match place {
                MovesBlocks => keys.len() / 2,
                DisplacesBlocks => keys.len(),
                Again => 1,
                _ => 0,
            },
            grows: u64::from(matches!(place, RegionMigrator | MovesBlocks | Half)),
            moved: u64::from(place == Half),
            epochs: 3,
            resizes: place == Resizes,
            padded: if place == Long { 200 } else { 0 },
            keys,
            key,
            ..Stage::default()
        }
    }

    fn must_pass(kind: Kind<Place>) -> &'static [&'static str] {
        match kind {
            Kind::Recover(_) => &["cuckoo recovery: region claimed"],
            Kind::On(Op::Get, _) => &[],
            Kind::On(Op::Insert | Op::Upsert, Displaces | DisplacesBlocks) => &["cuckoo displace"],
            Kind::On(_, RegionMigrator | MovesBlocks | Half) => &["cuckoo move"],
            Kind::On(_, Again) => &["cuckoo replace: inline again"],
            Kind::On(_, Resizes) => &["grow", "cuckoo move", "table grow: settled"],
            _ => &[],
        }
    }

    fn budget(kind: Kind<Place>) -> u64 {
        match kind {
            Kind::On(Op::Get, _) => 3,
            Kind::On(Op::Remove | Op::RemoveIf, Plain | Otherwise | Long) => 4,
            Kind::On(_, Plain | Otherwise | Long) => 6,
            Kind::On(_, Again) => 10,
            Kind::On(_, Displaces | DisplacesBlocks) => 40,
            Kind::On(_, Half) => 75,
            Kind::On(_, RegionMigrator | MovesBlocks | Resizes) => 130,
            Kind::Open => 3,
            Kind::Create => 190,
            Kind::Drop => 35,
            Kind::Recover(_) => 70,
            Kind::Register => 10,
            Kind::Tick => 12,
            Kind::Close => 20,
        }
    }

    fn config(initial_bits: u64) -> Config {
        Config { slots: 64 << initial_bits, associativity: 1, threshold: 0.98, alpha: 0.0, ..Config::default() }
    }

    fn swell(&self, entries: i64) {
        let table = &self.tables()[0];
        table.note(0, table.geometry().current.generation, entries);
    }

    async fn enlarge(&self, session: &Rc<Session>) -> Result<(), IndexError> {
        self.swell(2 * MANY);
        let pin = session.pin(session.span(OpKind::Maintenance))?;
        let table = &self.tables()[0];
        table.grow(&pin, self.uid(), false).await?;
        self.swell(-2 * MANY);
        let geometry = table.sync(pin.span(), pin.epoch()).await?;
        assert!(geometry.next.is_some());
        Ok(())
    }

    async fn move_parts(&self, session: &Rc<Session>, parts: u64, _: &[String]) -> Result<(), IndexError> {
        for _ in 0..parts {
            let pin = session.pin(session.span(OpKind::Maintenance))?;
            self.advance(&self.tables()[0], &pin).await?;
        }
        Ok(())
    }

    /// Everything in slots that it was moved to, in a table of one size.
    async fn level_out(&self, session: &Rc<Session>) -> Result<(), IndexError> {
        let table = &self.tables()[0];
        while table.geometry().next.is_some() || table.geometry().current.regions < LARGE {
            let pin = session.pin(session.span(OpKind::Maintenance))?;
            table.grow(&pin, self.uid(), true).await?;
            self.advance(table, &pin).await?;
        }
        assert_eq!(table.geometry().current.regions, LARGE);
        Ok(())
    }
}
