//! Linear probing with a variable read size, in a table that clients change and that grows.
//!
//! After T. Wang et al., ADMS 2020, whose tables are read-only. docs/protocols/linear.md has the protocol, its
//! linearization points, and the numbered deviations from the paper.
//!
//! | Module | What it holds | Paper |
//! |---|---|---|
//! | [`slotted`](crate::slotted) | slots, segments and the root, shared with cuckoo hashing | 4.1 |
//! | `table` | growth | |
//! | `lookup` | lookup of a key | Algorithms 1 and 2 |
//! | `many` | many lookups at once | Algorithm 1 |
//! | `write` | insert, update, remove | |
//! | `migrate` | moving a region to the next table | |
//! | [`clusters`] | the longest clusters that a worker has seen | 4.4 |
//! | [`read_size`] | the number of slots of a READ | 3 |
//! | `walk` | visits every entry, for dumps and audits | |

pub mod clusters;
mod lookup;
mod many;
mod migrate;
pub mod read_size;
mod table;
mod walk;
mod write;

use crate::audit::OnDamage;
use crate::backoff::Backoff;
use crate::handle::{Handle, has_handle};
use crate::keyhash::KeyHash;
use crate::kind::Settings;
use crate::recovery::HeldLock;
use crate::root_sync::{free_root, mark_root_dropped};
use crate::slotted::geometry::Geometry;
use crate::slotted::index::{Attempt, SlottedIndex};
use crate::slotted::mover::RegionMigrator;
use crate::slotted::record::{PiggybackedWrite, Record};
use crate::slotted::walk::{Step, free_table};
use crate::slotted::{geometry, slot};
use crate::table_per_node::{Creation, Opening, TablePerNode};
use crate::traits::{Insert, Limits, PointIndex, Remove, RemoveIf, Replace, Update, Upsert};
use crate::visit::Entries;
use crate::write::{Guard, Mode, upsert_each};
use crate::{IndexAudit, IndexError, Value};
use farindex_fabric::{NodeId, OpKind, RemotePtr, Span, apart};
use farindex_pool::audit::Audit;
use farindex_pool::{Calibration, Pin};
use lookup::{LookupResult, Op, Purpose};
use migrate::Mover;
use read_size::Network;
use serde::{Deserialize, Serialize};
pub use table::{Reading, Table};

/// This kind's number in the catalog.
pub const KIND: u32 = 4;
/// Version of its format.
pub const FORMAT: u32 = 1;

/// Settings of a linear-probing index.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Slots of a new table on each memory node; rounded up to whole regions.
    pub slots: u64,
    /// Bytes of a slot: 8 to 128. A key and a value of 6 bytes together fit in any slot; each 8-byte word behind the
    /// first takes 7 bytes more. A longer entry is stored out of band.
    pub width: usize,
    /// Share of slots in use, dead slots included, at which a table is moved to one that is larger or has no dead
    /// slots.
    pub threshold: f64,
    /// How rarely workers READ the root, as in SHARD's section 3.4.
    pub alpha: f64,
    /// Bytes of one READ if that is fixed; 0 if the model of section 3 chooses.
    pub read_bytes: u32,
    /// The model's `c`: nanoseconds of a READ of no bytes. If this and the next two are 0, the model uses the pool's
    /// measured figures (`farindex calibrate`), or else the paper's ConnectX-5.
    pub read_ns: f64,
    /// The model's `rho_0`: READs of no bytes for each second.
    pub reads_per_s: f64,
    /// The model's `l`: bytes for each second.
    pub bytes_per_s: f64,
    /// Share of lookups that find their key, for the model.
    pub hits: f64,
    /// Number of clusters that each worker remembers (section 4.4; 1000 in the paper); 0 turns that off.
    pub clusters: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            slots: 1024,
            width: 32,
            threshold: 0.75,
            alpha: 0.1,
            read_bytes: 0,
            read_ns: 0.0,
            reads_per_s: 0.0,
            bytes_per_s: 0.0,
            hits: 0.5,
            clusters: 0,
        }
    }
}

impl Config {
    fn regions(&self) -> u64 {
        self.slots.div_ceil(geometry::REGION).max(1)
    }
    /// Returns the network of the settings, if they state one.
    fn network(&self) -> Option<Network> {
        Network::measured(self.read_ns, self.reads_per_s, self.bytes_per_s)
    }
    /// Returns the network for the model: of the settings, or as measured, or the paper's.
    async fn network_of(&self, span: &Span) -> Result<Network, IndexError> {
        if let Some(network) = self.network() {
            return Ok(network);
        }
        let measured = Calibration::load(span).await?;
        let network = measured.and_then(|of| Network::measured(of.read_ns, of.reads_per_s, of.bytes_per_s));
        Ok(network.unwrap_or(Network::CONNECTX5_EDR))
    }
}

impl Settings for Config {
    const VERSION: u32 = 1;

    fn check(&self) -> Result<(), IndexError> {
        let bad = |what: String| Err(IndexError::BadConfig(what));
        if self.regions() > geometry::MAX_REGIONS {
            let most = geometry::MAX_REGIONS * geometry::REGION;
            return bad(format!("{} slots: a table has at most {most}", self.slots));
        }
        if !(8..=slot::MAX_WIDTH).contains(&self.width) || !self.width.is_multiple_of(8) {
            return bad(format!(
                "slots of {} bytes: it takes a multiple of 8 from 8 to {}",
                self.width,
                slot::MAX_WIDTH
            ));
        }
        if !(0.05..=0.95).contains(&self.threshold) {
            return bad(format!("a load threshold of {}: it takes 0.05 to 0.95", self.threshold));
        }
        if !(0.0..=100.0).contains(&self.alpha) {
            return bad(format!("alpha {}: it takes 0 to 100", self.alpha));
        }
        if self.read_bytes > 1 << 20 {
            return bad(format!("READs of {} bytes: they take 1 MiB at most", self.read_bytes));
        }
        if [self.read_ns, self.reads_per_s, self.bytes_per_s] != [0.0; 3] && self.network().is_none() {
            return bad("a network takes times and rates above zero, or zero for all three".to_owned());
        }
        if !(0.0..=1.0).contains(&self.hits) {
            return bad(format!("a share of hits of {}: it takes 0 to 1", self.hits));
        }
        if self.clusters > 1 << 24 {
            return bad(format!("{} clusters: a worker remembers at most {}", self.clusters, 1 << 24));
        }
        Ok(())
    }
}

/// A worker thread's handle to a linear-probing index.
pub struct Linear {
    handle: Handle<Config, Table>,
}

has_handle!(Linear, Handle<Config, Table>);

impl Linear {
    /// Moves one region of a table that is being moved, if there is one that no client moves; settles the table if none
    /// is left.
    pub async fn advance(&self, table: &Table, pin: &Pin<'_>) -> Result<(), IndexError> {
        SlottedIndex::advance(self, table, pin).await.map(drop)
    }
}

impl TablePerNode for Linear {
    type Settings = Config;
    type Table = Table;
    type Shared = Network;
    const KIND: u32 = KIND;
    const NAME: &'static str = "linear";
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

    async fn prepare(span: &Span, config: &Config) -> Result<Self::Shared, IndexError> {
        config.network_of(span).await
    }

    async fn open_table(of: &Opening<'_, Config, Network>, root: RemotePtr) -> Result<Table, IndexError> {
        let Opening { pin, index_tag, config, shared } = *of;
        Table::open(pin, root, index_tag, config.width, config.pacing(), config.reading(*shared)).await
    }

    fn from_handle(handle: Handle<Config, Table>) -> Self {
        Linear { handle }
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

impl SlottedIndex for Linear {
    type Own = Reading;
    type Progress = walk::Progress;

    fn mover<'a>(&'a self, table: &'a Table, pin: &'a Pin<'a>) -> impl RegionMigrator {
        Mover { index: self.uid, seed: self.seed, table, pin }
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
        Op::new(self, table, pin, record.hash, record.key).write(mode, record, piggyback).await
    }

    async fn step(
        &self,
        table: &Table,
        pin: &Pin<'_>,
        progress: &mut walk::Progress,
    ) -> Result<Option<Step>, IndexError> {
        self.step_on(table, pin, progress).await
    }

    /// Moves regions, or reports that the pool is full.
    async fn make_room(&self, table: &Table, _: KeyHash, full: bool, backoff: &mut Backoff) -> Result<(), IndexError> {
        let pin = self.session.pin(self.session.span(OpKind::Maintenance))?;
        let resizer = if full { table.try_grow(&pin, self.uid, true).await? } else { None };
        let mover = SlottedIndex::advance(self, table, &pin).await?;
        backoff.check_holder(&pin, resizer.or(mover)).await?;
        drop(pin);
        backoff.wait(&self.session).await;
        Ok(())
    }
}

/// Operations on a key.
impl Linear {
    async fn look_up(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        let (hash, table, pin) = self.begin(OpKind::Get, key)?;
        let mut op = Op::new(self, table, pin, hash, key);
        match op.look(Purpose::Read, &mut None).await? {
            LookupResult::Hit(hit) => Ok(Some(hit.value)),
            LookupResult::Absent(_) | LookupResult::Full => Ok(None),
        }
    }

    async fn delete(&self, key: &[u8], guard: Guard<'_>) -> Result<RemoveIf, IndexError> {
        let (hash, table, pin) = self.begin(OpKind::Remove, key)?;
        let removed = Op::new(self, table, pin, hash, key).remove(guard).await?;
        if removed == RemoveIf::Removed {
            table.note(-1, 0, 0);
        }
        self.after(table, false).await?;
        Ok(removed)
    }
}

impl PointIndex for Linear {
    fn limits(&self) -> Limits {
        Limits::BLOCK
    }

    async fn get(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        apart(self.look_up(key)).await
    }

    async fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>, IndexError> {
        apart(crate::many::get_many::<Op<'_>>(self, keys)).await
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
        self.tables.iter().map(Table::cache_bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::{decode, encode};

    #[test]
    fn config_survives_encoding_and_refuses_bad_settings() {
        let config = Config { slots: 77, width: 128, read_bytes: 256, clusters: 1000, hits: 0.25, ..Config::default() };
        assert_eq!(decode(&encode(&config).unwrap()), Ok(config));
        for bad in [
            Config { width: 12, ..config },
            Config { width: 136, ..config },
            Config { threshold: 1.0, ..config },
            Config { read_ns: f64::NAN, ..config },
            Config { hits: 1.5, ..config },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
            assert!(decode::<Config>(&encode(&bad).unwrap()).is_err(), "{bad:?}");
        }
    }
}
