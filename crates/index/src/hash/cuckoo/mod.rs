//! Cuckoo hashing with three places for each key, in a table that clients change and that grows.
//!
//! T. Wang et al. (ADMS 2020, sections 2.2 and 4.5) compare linear probing with it, after Pilaf, MemC3 and FaRM; their
//! tables are read-only. docs/protocols/cuckoo.md has the protocol, its linearization points, and the numbered
//! deviations.
//!
//! | Module | What it holds | Paper |
//! |---|---|---|
//! | [`slotted`](crate::slotted) | slots, segments and the root, shared with linear probing | 4.1 |
//! | [`places`] | the places of a key | 2.2 |
//! | `table` | buckets | 2.2 |
//! | `lookup` | lookup of a key | Algorithm 3 |
//! | `many` | many lookups at once | Algorithm 1 |
//! | `write` | insert, update, remove | |
//! | `displace` | makes room for a key | 2.2 |
//! | `migrate` | moves a region to the next table; recovers a region of a crashed client | |
//! | `walk` | visits every entry, for dumps and audits | |

mod displace;
mod lookup;
mod many;
mod migrate;
pub mod places;
mod table;
mod walk;
mod write;

pub use table::{Buckets, Table};

use crate::audit::OnDamage;
use crate::backoff::Backoff;
use crate::handle::{Handle, has_handle};
use crate::keyhash::KeyHash;
use crate::kind::Settings;
use crate::maintenance::wait_for_room;
use crate::marks::mark;
use crate::recovery::HeldLock;
use crate::root_sync::{free_root, mark_root_dropped};
use crate::slotted::geometry::Geometry;
use crate::slotted::geometry::{self, REGION};
use crate::slotted::index::{Attempt, SlottedIndex};
use crate::slotted::mover::{Region, RegionMigrator};
use crate::slotted::record::{PiggybackedWrite, Record};
use crate::slotted::slot;
use crate::slotted::walk::{Step, free_table};
use crate::table_per_node::{Creation, Opening, TablePerNode};
use crate::traits::{Insert, Limits, PointIndex, Remove, RemoveIf, Replace, Update, Upsert};
use crate::visit::Entries;
use crate::write::{Guard, Mode, upsert_each};
use crate::{IndexAudit, IndexError, Value};
use displace::{Displacer, Room};
use farindex_fabric::{NodeId, OpKind, RemotePtr, Span, apart};
use farindex_pool::Pin;
use farindex_pool::audit::Audit;
use lookup::Op;
use migrate::Mover;
use places::MAX_ASSOCIATIVITY;
use serde::{Deserialize, Serialize};

/// This kind's number in the catalog.
pub const KIND: u32 = 5;
/// Version of its format.
pub const FORMAT: u32 = 1;

/// Order in which a lookup READs a key's places.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lookup {
    /// All in one batch.
    #[default]
    Parallel,
    /// One after the other, until the key is found.
    Sequential,
}

/// Settings of a cuckoo index.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Slots of a new table on each memory node; rounded up to whole regions.
    pub slots: u64,
    /// Bytes of a slot: 8 to 128. A key and a value of 6 bytes together fit in any slot; each 8-byte word behind the
    /// first takes 7 bytes more. A longer entry is stored out of band.
    pub width: usize,
    /// Slots of a bucket: 1, 2 or 4.
    pub associativity: u64,
    /// Order in which lookups READ.
    pub lookup: Lookup,
    /// Share of slots in use at which a table is moved to a larger one.
    pub threshold: f64,
    /// How rarely workers READ the root, as in SHARD's section 3.4.
    pub alpha: f64,
}

impl Default for Config {
    fn default() -> Self {
        Config { slots: 1024, width: 32, associativity: 4, lookup: Lookup::Parallel, threshold: 0.8, alpha: 0.1 }
    }
}

impl Config {
    fn regions(&self) -> u64 {
        self.slots.div_ceil(REGION).max(1)
    }
}

impl Settings for Config {
    const VERSION: u32 = 1;

    fn check(&self) -> Result<(), IndexError> {
        let bad = |what: String| Err(IndexError::BadConfig(what));
        if self.regions() > geometry::MAX_REGIONS {
            return bad(format!("{} slots: a table has at most {}", self.slots, geometry::MAX_REGIONS * REGION));
        }
        if !(8..=slot::MAX_WIDTH).contains(&self.width) || !self.width.is_multiple_of(8) {
            let (width, most) = (self.width, slot::MAX_WIDTH);
            return bad(format!("slots of {width} bytes: it takes a multiple of 8 from 8 to {most}"));
        }
        if ![1, 2, MAX_ASSOCIATIVITY as u64].contains(&self.associativity) {
            return bad(format!("buckets of {} slots: they have 1, 2 or {MAX_ASSOCIATIVITY}", self.associativity));
        }
        if !(0.05..=0.98).contains(&self.threshold) {
            return bad(format!("a load threshold of {}: it takes 0.05 to 0.98", self.threshold));
        }
        if !(0.0..=100.0).contains(&self.alpha) {
            return bad(format!("alpha {}: it takes 0 to 100", self.alpha));
        }
        Ok(())
    }
}

/// A worker thread's handle to a cuckoo index.
pub struct Cuckoo {
    handle: Handle<Config, Table>,
}

has_handle!(Cuckoo, Handle<Config, Table>);

impl Cuckoo {
    /// Moves one region of a table that is being moved, if there is one that no client moves; settles the table if none
    /// is left.
    pub async fn advance(&self, table: &Table, pin: &Pin<'_>) -> Result<(), IndexError> {
        SlottedIndex::advance(self, table, pin).await.map(drop)
    }

    fn mover<'a>(&'a self, table: &'a Table, pin: &'a Pin<'a>) -> Mover<'a> {
        Mover { cuckoo: self, table, pin }
    }

    /// Displaces entries until one of the key's places has a free slot; `false` if that takes a larger table.
    pub async fn displace(&self, key: &[u8]) -> Result<bool, IndexError> {
        let hash = self.hash(key);
        let (table, pin) = (self.table(hash), self.session.pin(self.session.span(OpKind::Maintenance))?);
        if !table.is_checked(pin.epoch()) {
            table.sync(pin.span(), pin.epoch()).await?;
        }
        Ok(Displacer { cuckoo: self, table, pin: &pin }.make_room(hash).await? != Room::None)
    }
}

impl TablePerNode for Cuckoo {
    type Settings = Config;
    type Table = Table;
    type Shared = ();
    const KIND: u32 = KIND;
    const NAME: &'static str = "cuckoo";
    const FORMAT: u32 = FORMAT;
    const ROOT_LEN: usize = geometry::ROOT_LEN;

    async fn create_table(new: &Creation<'_, Config>, node: NodeId) -> Result<RemotePtr, IndexError> {
        let Creation { session, span, index_tag, config } = *new;
        Table::create(session, span, node, index_tag, (config.regions(), config.width)).await
    }

    async fn free_new_table(new: &Creation<'_, Config>, root: RemotePtr) -> Result<(), IndexError> {
        let Creation { session, span, config, .. } = *new;
        free_root::<Geometry>(session, span, root, config.width).await
    }

    async fn prepare(_: &Span, _: &Config) -> Result<Self::Shared, IndexError> {
        Ok(())
    }

    async fn open_table(of: &Opening<'_, Config, ()>, root: RemotePtr) -> Result<Table, IndexError> {
        let Opening { pin, index_tag, config, .. } = *of;
        Table::open(pin, root, index_tag, config.width, config.pacing(), config.buckets()).await
    }

    fn from_handle(handle: Handle<Config, Table>) -> Self {
        Cuckoo { handle }
    }

    fn root_of(table: &Table) -> RemotePtr {
        table.root()
    }

    async fn mark_root_dropped(span: &Span, root: RemotePtr, index_tag: u64) -> Result<(), IndexError> {
        mark_root_dropped::<Geometry>(span, root, index_tag).await
    }

    async fn free_table(&self, span: &Span, table: &Table) -> Result<(), IndexError> {
        free_table(&self.session, span, table, self.config.width).await
    }

    fn resizes(&self) -> u64 {
        self.handle.resizes()
    }

    async fn recover(&self) -> Result<u64, IndexError> {
        self.recover().await
    }

    async fn audit(&self, audit: &mut Audit, alone: bool) -> Result<IndexAudit, IndexError> {
        self.audit(audit, alone).await
    }

    async fn visit_entries(&self, entries: &Entries, damaged: OnDamage<'_>) -> Result<u64, IndexError> {
        self.visit_entries(entries, damaged).await
    }
}

impl SlottedIndex for Cuckoo {
    type Own = Buckets;
    type Progress = walk::Progress;

    fn mover<'a>(&'a self, table: &'a Table, pin: &'a Pin<'a>) -> impl RegionMigrator {
        self.mover(table, pin)
    }

    async fn grow(&self, table: &Table, pin: &Pin<'_>, full: bool) -> Result<Option<HeldLock>, IndexError> {
        table.try_grow(pin, self.uid, full).await
    }

    async fn attempt(
        &self,
        table: &Table,
        pin: Pin<'_>,
        mode: Mode<'_>,
        record: &Record<'_>,
        piggyback: &mut PiggybackedWrite,
    ) -> Result<Attempt, IndexError> {
        Op::new(self, table, &pin, record.hash, record.key).write(mode, record, piggyback).await
    }

    async fn step(
        &self,
        table: &Table,
        pin: &Pin<'_>,
        progress: &mut walk::Progress,
    ) -> Result<Option<Step>, IndexError> {
        self.step_on(table, pin, progress).await
    }

    /// Moves the regions of the key's places if the table is being moved. Otherwise displaces entries to later places
    /// of their keys, or begins to move to a larger table if that makes no room.
    async fn make_room(&self, table: &Table, hash: KeyHash, _: bool, backoff: &mut Backoff) -> Result<(), IndexError> {
        let pin = self.session.pin(self.session.span(OpKind::Maintenance))?;
        if !table.is_checked(pin.epoch()) {
            table.sync(pin.span(), pin.epoch()).await?;
        }
        let mut held = None;
        if let Some(next) = table.geometry().next {
            let from = table.geometry().current;
            for first in places::first_slots(hash, &from, table.own.associativity) {
                mark!("cuckoo put: moves what is in the way");
                let region = first / REGION;
                if self.mover(table, &pin).move_region(from, next, region).await? == Region::Busy {
                    held = Some(Room::Held(from, region));
                }
            }
        }
        let room = match held {
            Some(held) => held,
            None => match (Displacer { cuckoo: self, table, pin: &pin }).make_room(hash).await {
                Err(error) => {
                    drop(pin);
                    return wait_for_room(&self.session, table.root().node(), error).await;
                }
                Ok(room) => room,
            },
        };
        let resizer = match room {
            Room::Made => return Ok(()),
            Room::Held(segment, region) => {
                mark!("cuckoo put: waits for a region in the way");
                return self.mover(table, &pin).await_lock(backoff, segment, region).await;
            }
            Room::None if !table.geometry().state.growing() => table.try_grow(&pin, self.uid, true).await?,
            Room::None | Room::Changed => None,
        };
        let mover = SlottedIndex::advance(self, table, &pin).await?;
        backoff.check_holder(&pin, resizer.or(mover)).await?;
        drop(pin);
        backoff.wait(&self.session).await;
        Ok(())
    }
}

/// Operations on a key.
impl Cuckoo {
    async fn look_up(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        let (hash, table, pin) = self.begin(OpKind::Get, key)?;
        Ok(Op::new(self, table, &pin, hash, key).find().await?.map(|hit| hit.value))
    }

    async fn delete(&self, key: &[u8], guard: Guard<'_>) -> Result<RemoveIf, IndexError> {
        let (hash, table, pin) = self.begin(OpKind::Remove, key)?;
        let (removed, generation) = Op::new(self, table, &pin, hash, key).remove(guard).await?;
        drop(pin);
        if removed == RemoveIf::Removed {
            table.note(-1, generation, -1);
        }
        self.after(table, false).await?;
        Ok(removed)
    }
}

impl PointIndex for Cuckoo {
    fn limits(&self) -> Limits {
        Limits::BLOCK
    }

    async fn get(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        apart(self.look_up(key)).await
    }

    async fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>, IndexError> {
        apart(crate::many::get_many::<many::Lookup<'_>>(self, keys)).await
    }

    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<Insert, IndexError> {
        apart(self.write(Mode::Insert, key, value)).await.map(Insert::from)
    }

    async fn update(&self, key: &[u8], value: &[u8]) -> Result<Update, IndexError> {
        apart(self.write(Mode::UPDATE, key, value)).await.map(Update::from)
    }

    async fn upsert(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        apart(self.write(Mode::Upsert, key, value)).await.map(Upsert::from)
    }

    async fn upsert_with_outcome(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        self.upsert(key, value).await
    }

    async fn upsert_many(&self, pairs: &[(&[u8], &[u8])]) -> Vec<Result<Upsert, IndexError>> {
        upsert_each(self, pairs).await
    }

    async fn remove(&self, key: &[u8]) -> Result<Remove, IndexError> {
        apart(self.delete(key, Guard::Any)).await.map(Remove::from)
    }

    async fn replace(&self, key: &[u8], expected: &[u8], value: &[u8]) -> Result<Replace, IndexError> {
        let mode = Mode::Update(Guard::Equals(expected));
        apart(self.write(mode, key, value)).await.map(Replace::from)
    }

    async fn remove_if(&self, key: &[u8], expected: &[u8]) -> Result<RemoveIf, IndexError> {
        apart(self.delete(key, Guard::Equals(expected))).await
    }

    fn cache_bytes(&self) -> u64 {
        (self.tables.len() * size_of::<Table>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::{decode, encode};

    #[test]
    fn config_survives_encoding_and_refuses_bad_settings() {
        let config =
            Config { slots: 77, width: 128, associativity: 1, lookup: Lookup::Sequential, ..Config::default() };
        assert_eq!(decode(&encode(&config).unwrap()), Ok(config));
        for bad in [
            Config { width: 12, ..config },
            Config { width: 136, ..config },
            Config { associativity: 3, ..config },
            Config { associativity: 8, ..config },
            Config { threshold: 1.0, ..config },
            Config { alpha: f64::NAN, ..config },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
            assert!(decode::<Config>(&encode(&bad).unwrap()).is_err(), "{bad:?}");
        }
    }
}
