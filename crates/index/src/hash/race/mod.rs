//! RACE: extendible hashing with two choices and shared overflow buckets, for one-sided verbs.
//!
//! After P. Zuo et al., USENIX ATC 2021, as two papers describe it that use it as their baseline: X. Min et al.
//! (SepHash), PVLDB 17(5), and H. Zha et al. (SHARD), PVLDB 19(4). docs/protocols/race.md has the protocol, its
//! linearization points, and the numbered deviations.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`slot`] | the 8-byte slot |
//! | [`segment`] | segments, the buckets of a key, and what a READ of them shows |
//! | [`table`] | the table of one memory node: the directory, and the shape of its segments |
//! | `lookup` | search |
//! | `many` | many lookups at once |
//! | `insert` | insert, which begins with a tentative entry |
//! | `split` | split of a segment into two |
//! | `recovery` | recovery of a segment after a crash |
//! | `published` | insert and split as published, whose faults the checks must detect |
//! | `walk` | visits of every entry: dumps, audits, recovery and drops |

mod insert;
mod lookup;
mod many;
#[cfg(feature = "published")]
mod published;
mod recovery;
pub mod segment;
pub mod slot;
mod split;
pub mod table;
mod walk;

use crate::audit::OnDamage;
use crate::block;
use crate::extendible::Directory;
use crate::extendible::first_segments::free_new_directory;
use crate::extendible::layout::{self, MAX_DEPTH};
use crate::faults::{Fault, planted};
use crate::handle::{Handle, has_handle};
use crate::keyhash::KeyHash;
use crate::kind::Settings;
use crate::marks::mark;
use crate::table_per_node::{Creation, Opening, TablePerNode};
use crate::traits::{Insert, Limits, PointIndex, Remove, RemoveIf, Replace, Update, Upsert};
use crate::visit::Entries;
use crate::write::{Guard, Mode, Wrote, upsert_each};
use crate::{IndexAudit, IndexError, Value};
use farindex_fabric::{Buf, NodeId, OpKind, RemotePtr, Span, apart, cold};
use farindex_pool::audit::Audit;
use insert::Put;
use lookup::{Hit, LookupPurpose, LookupResult, Op};
use serde::{Deserialize, Serialize};
use slot::{EMPTY, Entry};
use table::Table;

/// This kind's number in the catalog.
pub const KIND: u32 = 3;
/// Version of its format.
pub const FORMAT: u32 = 1;

/// Settings of a RACE index.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// A new table has `2^initial_depth` segments on each memory node; at least 2.
    pub initial_depth: u64,
    /// Groups of a segment, each of two main buckets and an overflow bucket (64 in SepHash's comparison).
    pub groups: u64,
    /// Bits of the longest suffix: a segment of that depth is not split any more.
    pub max_depth: u64,
    /// The protocol: repaired or as published.
    pub variant: Variant,
}

/// The protocol that an index runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Variant {
    /// The repaired protocol, which is linearizable.
    #[default]
    Repaired,
    /// Inserts and splits as published: an insert is visible before it has looked for duplicates, and a split moves
    /// entries one by one while inserts continue. It loses keys; the checks must detect that.
    #[cfg(feature = "published")]
    Published,
}

impl Default for Config {
    fn default() -> Self {
        Config { initial_depth: 2, groups: 64, max_depth: u64::from(MAX_DEPTH), variant: Variant::Repaired }
    }
}

impl Settings for Config {
    const VERSION: u32 = 1;

    fn check(&self) -> Result<(), IndexError> {
        let bad = |what: String| Err(IndexError::BadConfig(what));
        if !(1..=16).contains(&self.initial_depth) {
            return bad(format!("an initial depth of {}: it takes 1 to 16", self.initial_depth));
        }
        if !(1..=segment::MAX_GROUPS).contains(&self.groups) {
            return bad(format!("segments of {} groups: it takes 1 to {}", self.groups, segment::MAX_GROUPS));
        }
        if !(self.initial_depth..=u64::from(MAX_DEPTH)).contains(&self.max_depth) {
            return bad(format!("a depth of at most {}: it takes the initial depth to {MAX_DEPTH}", self.max_depth));
        }
        Ok(())
    }

    fn loses_data(&self) -> bool {
        self.variant != Variant::Repaired
    }
}

/// A RACE index, as one worker thread uses it.
pub struct Race {
    handle: Handle<Config, Table>,
}

has_handle!(Race, Handle<Config, Table>);

impl Race {
    /// Returns the local depth of the deepest segment minus the initial depth, as far as this worker knows.
    pub fn resizes(&self) -> u64 {
        let deepest = self.tables.iter().map(|table| u64::from(table.deepest())).max().unwrap_or(0);
        deepest.saturating_sub(self.config.initial_depth)
    }
    fn published(&self) -> bool {
        self.config.variant != Variant::Repaired
    }

    /// Writes a block, looks up the key, and carries out the write of this mode.
    async fn write(&self, mode: Mode<'_>, key: &[u8], value: &[u8]) -> Result<Wrote, IndexError> {
        self.check_lengths(key, value)?;
        let hash = self.hash(key);
        let table = self.table(hash);
        let span = self.session.span(mode.kind());
        let ptr = self.session.alloc(&span, table.node(), block::block_len(key.len(), value.len()) as u64).await?;
        let buf = block::encode(self.session.endpoint(), hash, key, value);
        let wrote = self.write_block(table, span, mode, hash, key, (ptr, buf)).await;
        self.reclaim().await?;
        wrote
    }

    async fn write_block(
        &self,
        table: &Table,
        span: Span,
        mode: Mode<'_>,
        hash: KeyHash,
        key: &[u8],
        (ptr, buf): (RemotePtr, Buf),
    ) -> Result<Wrote, IndexError> {
        let block_len = buf.len();
        let pin = match self.session.pin(span) {
            Ok(pin) => pin,
            Err(error) => {
                self.session.discard(ptr, block_len as u64);
                return Err(error.into());
            }
        };
        let mut op = Op::new(self, table, pin, hash, key);
        let mut piggybacked = Some((ptr, buf));
        let late = if planted(Fault::EarlyPointer) { piggybacked.take() } else { None };
        if planted(Fault::UnawaitedBlock)
            && let Some((ptr, buf)) = piggybacked.take()
        {
            let mut batch = op.span().batch();
            batch.write(ptr, buf);
            batch.post_detached();
        }
        let wrote = op.write(mode, &mut piggybacked, (ptr, block_len)).await;
        if let (Some((ptr, buf)), Ok(Wrote::Inserted | Wrote::Updated)) = (late, &wrote) {
            op.span().write(ptr, buf).await?;
        }
        match &wrote {
            Ok(Wrote::Inserted | Wrote::Updated) => {}
            // After a failed verb it may be linked all the same (N7), or its WRITE may land later (N5).
            Err(IndexError::Fabric(_)) => {}
            // Other clients may have read its address in a tentative slot (R8).
            _ if op.was_seen() && !planted(Fault::DiscardsSeen) => op.pin.retire(ptr, block_len as u64),
            _ => self.session.discard(ptr, block_len as u64),
        }
        wrote
    }
}

impl TablePerNode for Race {
    type Settings = Config;
    type Table = Table;
    type Shared = ();
    const KIND: u32 = KIND;
    const NAME: &'static str = "race";
    const FORMAT: u32 = FORMAT;
    const ROOT_LEN: usize = layout::ROOT_LEN;

    async fn create_table(new: &Creation<'_, Config>, node: NodeId) -> Result<RemotePtr, IndexError> {
        let Creation { session, span, index_tag, config } = *new;
        Table::create(session, span, node, index_tag, config).await
    }

    async fn free_new_table(new: &Creation<'_, Config>, root: RemotePtr) -> Result<(), IndexError> {
        let Creation { session, span, index_tag, config } = *new;
        let bytes = segment::Shape { groups: config.groups }.bytes() as u64;
        free_new_directory(session, span, root, index_tag, bytes).await
    }

    async fn prepare(_: &Span, _: &Config) -> Result<Self::Shared, IndexError> {
        Ok(())
    }

    async fn open_table(of: &Opening<'_, Config, ()>, root: RemotePtr) -> Result<Table, IndexError> {
        let Opening { pin, index_tag, config, .. } = *of;
        Table::open(pin, root, index_tag, config).await
    }

    fn from_handle(handle: Handle<Config, Table>) -> Self {
        Race { handle }
    }

    fn root_of(table: &Table) -> RemotePtr {
        table.directory().root()
    }

    async fn mark_root_dropped(span: &Span, root: RemotePtr, index_tag: u64) -> Result<(), IndexError> {
        Directory::mark_dropped(span, root, index_tag).await
    }

    async fn free_table(&self, span: &Span, table: &Table) -> Result<(), IndexError> {
        self.free_table(span, table).await
    }

    fn resizes(&self) -> u64 {
        self.resizes()
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

impl Op<'_> {
    async fn write(
        &mut self,
        mode: Mode<'_>,
        piggybacked: &mut Option<(RemotePtr, Buf)>,
        (ptr, block_len): (RemotePtr, usize),
    ) -> Result<Wrote, IndexError> {
        let purpose = if mode.is_update() { LookupPurpose::Change } else { LookupPurpose::Add };
        let mut check = mode.guard().begin();
        loop {
            match self.look(piggybacked, purpose).await? {
                LookupResult::Hit(_) if mode == Mode::Insert => return Ok(Wrote::Exists),
                LookupResult::Hit(hit) if !check.admits(hit.block.value()) => return Ok(Wrote::Differs),
                LookupResult::Hit(hit) => {
                    let entry = Entry { state: slot::State::Live, fp: self.fp(), len: slot::units(block_len), ptr };
                    if self.replace(&hit, entry.encode()).await? {
                        return Ok(Wrote::Updated);
                    }
                }
                LookupResult::Absent(_) if mode.is_update() => return Ok(Wrote::Absent),
                LookupResult::Absent(absence) => match self.put(absence, ptr, block_len).await? {
                    Put::Done => return Ok(Wrote::Inserted),
                    #[cfg(feature = "published")]
                    Put::Exists => return Ok(Wrote::Exists),
                    Put::Again => {}
                    Put::Crowded(segment_ref, depth) => cold(self.split(segment_ref, depth)).await?,
                },
            }
        }
    }

    /// CASes the slot of a key that was found; on success the old block is retired.
    async fn replace(&mut self, hit: &Hit, word: u64) -> Result<bool, IndexError> {
        let done = self.span().cas(hit.slot, hit.word, word).await? == hit.word;
        if !done {
            mark!("race: replace: CAS lost");
        }
        if done && planted(Fault::NoGrace) {
            self.pin.session().discard(hit.ptr, hit.block.len());
        } else if done {
            self.pin.retire(hit.ptr, hit.block.len());
        }
        Ok(done)
    }
}

/// Operations on a key.
impl Race {
    async fn look_up(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        let (hash, table, pin) = self.begin(OpKind::Get, key)?;
        let mut op = Op::new(self, table, pin, hash, key);
        match op.look(&mut None, LookupPurpose::Read).await? {
            LookupResult::Hit(hit) => Ok(Some(hit.block.into_value())),
            LookupResult::Absent(_) => Ok(None),
        }
    }

    async fn delete(&self, key: &[u8], guard: Guard<'_>) -> Result<RemoveIf, IndexError> {
        let (hash, table, pin) = self.begin(OpKind::Remove, key)?;
        let (mut op, mut check) = (Op::new(self, table, pin, hash, key), guard.begin());
        let removed = loop {
            match op.look(&mut None, LookupPurpose::Change).await? {
                LookupResult::Absent(_) => break RemoveIf::Absent,
                LookupResult::Hit(hit) if !check.admits(hit.block.value()) => break RemoveIf::Differs,
                LookupResult::Hit(hit) if op.replace(&hit, EMPTY).await? => break RemoveIf::Removed,
                LookupResult::Hit(_) => {}
            }
        };
        drop(op);
        self.reclaim().await?;
        Ok(removed)
    }
}

impl PointIndex for Race {
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
