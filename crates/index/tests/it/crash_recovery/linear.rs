//! Where clients crash in linear probing.

use crate::crash_recovery::kinds::{CrashTested, EVERY_OP, Kind, MANY, Stage, everywhere, keys_at};
use farindex_fabric::OpKind;
use farindex_index::linear::Config;
use farindex_index::{IndexError, Linear};
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
    /// The table is to be moved to one as large.
    Cleans,
    /// The key's part of the table has been moved, others have not.
    Half,
    /// The table is to grow.
    Resizes,
}

use Place::{Again, Cleans, Half, Long, MovesBlocks, Otherwise, Plain, RegionMigrator, Resizes};

/// Regions that every table has in the end.
const LARGE: u64 = 32;

fn place_of(kind: Kind<Place>) -> Place {
    match kind {
        Kind::On(_, place) => place,
        Kind::Recover(_) => MovesBlocks,
        _ => Plain,
    }
}

/// Is the key there before?
fn is_present(kind: Kind<Place>) -> bool {
    match kind {
        Kind::On(Op::Insert, place) => place == Otherwise,
        Kind::On(Op::Upsert, place) => !matches!(place, Plain | Resizes | Cleans),
        Kind::On(_, place) => place != Otherwise,
        _ => true,
    }
}

impl CrashTested for Linear {
    type Place = Place;
    const RECOVERED: Place = MovesBlocks;

    fn kinds() -> Vec<Kind<Place>> {
        let everyplace = [Plain, Otherwise, Long, RegionMigrator, MovesBlocks, Cleans, Half];
        let mut all = Vec::new();
        for op in EVERY_OP {
            all.extend(everyplace.map(|place| Kind::On(op, place)));
            if matches!(op, Op::Insert | Op::Upsert) {
                all.push(Kind::On(op, Resizes));
            }
            if matches!(op, Op::Update | Op::Upsert | Op::Replace) {
                all.push(Kind::On(op, Again));
            }
        }
        all.extend(everywhere(&[45, 100, 190]));
        all
    }

    fn stage(kind: Kind<Place>) -> Stage {
        let place = place_of(kind);
        // Low bits of hashes are high bits of places: four regions, and all keys in the first one.
        let initial_bits = if place == Half { 2 } else { 0 };
        let mut names = keys_at(0, (1 << initial_bits) - 1);
        let key = names.next().unwrap_or_default();
        let mut keys: Vec<_> = names.take(if place == Cleans { 45 } else { 30 }).collect();
        if is_present(kind) {
            keys.push(key.clone());
        }
        Stage {
            initial_bits,
            removed: if place == Cleans { 30 } else { 0 },
            updated: match place {
                MovesBlocks => keys.len() / 2,
                Again => 1,
                _ => 0,
            },
            grows: u64::from(matches!(place, RegionMigrator | MovesBlocks | Cleans | Half)),
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
            Kind::Recover(_) => &["table recovery: region claimed"],
            Kind::On(Op::Get, Half) => &["linear lookup: on to the next table"],
            Kind::On(Op::Get, _) => &[],
            Kind::On(_, RegionMigrator | MovesBlocks) => &["linear move"],
            Kind::On(Op::Insert, Cleans) => &["linear move", "table grow: settled"],
            Kind::On(_, Cleans) => &["linear move"],
            Kind::On(_, Half) => &["linear lookup: on to the next table", "linear move"],
            Kind::On(_, Again) => &["linear replace: inline again"],
            Kind::On(_, Resizes) => &["grow", "linear move", "table grow: settled"],
            _ => &[],
        }
    }

    fn budget(kind: Kind<Place>) -> u64 {
        match kind {
            Kind::On(Op::Get, Half) => 6,
            Kind::On(Op::Get, _) => 10,
            Kind::On(Op::Remove | Op::RemoveIf, Plain | Otherwise | Long) => 10,
            Kind::On(_, Plain | Otherwise | Long) => 16,
            Kind::On(_, Again) => 20,
            Kind::On(_, RegionMigrator | MovesBlocks | Resizes) => 200,
            Kind::On(_, Cleans) => 110,
            Kind::On(_, Half) => 75,
            Kind::Open => 4,
            Kind::Create => 190,
            Kind::Drop => 35,
            Kind::Recover(_) => 100,
            Kind::Register => 10,
            Kind::Tick => 12,
            Kind::Close => 20,
        }
    }

    fn config(initial_bits: u64) -> Config {
        Config { slots: 64 << initial_bits, threshold: 0.95, alpha: 0.0, ..Config::default() }
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
