//! Tables 2 and 3 and Figure 18 of Args, counted in far memory.

use super::paper::{RACE_2, SEPHASH_2, SOURCE, Space, TABLE_3, UTILIZATION};
use super::{Args, SIZES, ours, race, sephash};
use crate::report::{Error, Report, Watch};
use farindex::{AnyIndex, IndexConfig, Pool};
use farindex_bench::driver::pool_index::PoolIndexBench;
use farindex_bench::workload::{Keys, ValueSize};
use farindex_bench::{Plan, Workload};
use farindex_index::IndexAudit;
use farindex_index::sephash::Config;
use serde::Serialize;
use serde_json::json;

/// Entries for each key that SepHash may have room for, once its size is the paper's.
const SLOTS: f64 = 1.02;
/// With fewer keys a table is too small to be judged.
const JUDGED: u64 = 1_000_000;
/// Gets that FPTables are judged by.
const GETS: u64 = 100_000;
/// Share of gets for which one predicted range has to be enough.
const ENOUGH: f64 = 0.95;
/// What a record point cache has to save.
const SAVING: f64 = 0.67;
/// Bytes of a pool, and more for each key: blocks of 80, 20 at most for entries and tables, and room for what waits for
/// its epoch. Not more, for systems refuse to map what they have no memory for: 100 M keys fit 24 GB so.
const POOL: u64 = 128 << 20;
const ROOM: u64 = 160;
/// Bytes of a SepHash entry and its second fingerprint, and of a RACE slot.
const ENTRY: (u64, u64) = (9, 8);

/// An index that grows by as many keys as are wanted.
struct Growing {
    subject: PoolIndexBench,
    plan: Plan,
    keys: u64,
}

impl Growing {
    /// Room for `most` keys.
    fn new(config: &IndexConfig, most: u64, seed: u64) -> Result<Self, Error> {
        let workload: Workload = "insert".parse().map_err(|why: String| Error::Bug(why))?;
        let (key_size, value_size) = (SIZES.0, ValueSize::fixed(SIZES.1));
        let plan = Plan { keys: most, key_size, value_size, seed, audit: false, ..Plan::new(workload) };
        let pool =
            Pool::builder().unseeded().node_bytes(POOL.saturating_add(most.saturating_mul(ROOM))).in_memory(1)?;
        Ok(Growing { subject: PoolIndexBench::create(pool, "reproduce", config)?, plan, keys: 0 })
    }

    /// Inserts keys until there are so many.
    fn grow(&mut self, keys: u64, watch: Watch<'_>) -> Result<(), Error> {
        let (loaded, ops) = (Some(self.keys), Some(keys - self.keys));
        let plan = Plan { keys, loaded, ops, load: false, ..self.plan.clone() };
        let outcome = watch.run(&self.subject, &plan)?;
        self.keys = keys;
        match outcome.wrong.total() + outcome.errors.total() {
            0 => Ok(()),
            _ => Err(Error::Wrong(format!("{} {}", outcome.wrong, outcome.errors))),
        }
    }

    fn audit(&self) -> Result<IndexAudit, Error> {
        let session = self.subject.pool.session()?;
        let audit = session.open_index(&self.subject.name)?.audit()?;
        if audit.entries != self.keys || !audit.problems.is_empty() {
            let what = format!("{} entries after {} inserts; {:?}", audit.entries, self.keys, audit.problems);
            return Err(Error::Wrong(what));
        }
        Ok(audit)
    }

    /// Gets of present keys by a client with an empty cache; how many ranges were predicted, and how many fell short.
    fn look_up(&self, gets: u64) -> Result<(u64, u64), Error> {
        let session = self.subject.pool.session()?;
        let index = session.open_index(&self.subject.name)?;
        let plain = index.async_handle();
        let AnyIndex::SepHash(table) = &*plain else { return Ok((0, 0)) };
        table.inner().tables().iter().for_each(farindex_index::sephash::Table::forget);
        let keys = Keys::new(self.plan.key_size);
        let mut key = vec![0; keys.size()];
        for i in 0..gets {
            // Keys are hashed, so any stride is as good.
            keys.write(i * 7919 % self.keys, &mut key);
            if index.get(&key)?.is_none() {
                return Err(Error::Wrong(format!("key {} is missing", i * 7919 % self.keys)));
            }
        }
        let sum = |(made, short), table: &farindex_index::sephash::Table| {
            let predictions = table.predictions();
            (made + predictions.made, short + predictions.short)
        };
        Ok(table.inner().tables().iter().fold((0, 0), sum))
    }
}

/// A row of Table 2.
#[derive(Debug, Serialize)]
struct Row {
    index: &'static str,
    keys: u64,
    /// Per key, but for the depth.
    ours: Space,
    paper: Space,
    /// Entries and their places, as shares of all.
    entry_utilization: f64,
    space_utilization: f64,
}

fn row(index: &'static str, keys: u64, audit: &IndexAudit) -> Row {
    let each = |bytes: u64| bytes as f64 / keys as f64;
    let is_race = index == "race";
    let (depth, buckets, directory) = match is_race {
        // A bucket of eight slots has a header.
        true => (audit.figure("depth"), audit.figure("slots"), audit.figure("directory_bytes")),
        false => {
            let meta = audit.figure("segments") * farindex_index::sephash::layout::META_LEN as u64;
            (audit.figure("deepest"), meta, audit.figure("directory_bytes") + audit.figure("table_bytes"))
        }
    };
    let (entry, paper) = if is_race { (ENTRY.1, RACE_2) } else { (ENTRY.0, SEPHASH_2) };
    let slots = audit.figure("slots");
    let ours = Space {
        depth,
        bucket_meta: each(buckets),
        directory_meta: each(directory),
        total: each(audit.index_bytes),
        slots: each(slots),
    };
    let space_utilization = (keys * entry) as f64 / audit.index_bytes.max(1) as f64;
    Row { index, keys, ours, paper, entry_utilization: keys as f64 / slots.max(1) as f64, space_utilization }
}

/// Table 2.
pub(super) fn table(args: &Args, watch: Watch<'_>) -> Result<Report, Error> {
    let numbers = if args.keys.is_empty() { vec![1_000_000] } else { args.keys.clone() };
    let mut rows = Vec::new();
    for (name, config) in [("sephash", sephash(ours())), ("race", race())] {
        for keys in &numbers {
            let mut growing = Growing::new(&config, *keys, args.seed)?;
            growing.grow(*keys, watch)?;
            rows.push(row(name, *keys, &growing.audit()?));
        }
    }
    let holds = rows.iter().all(|row| row.index == "race" || row.keys < JUDGED || row.ours.slots <= SLOTS);
    let result = json!({ "table": 2, "source": SOURCE, "seed": args.seed, "rows": rows, "paper_keys": 100_000_000, "holds": holds });
    let text = {
        let mut text = "SepHash, Table 2: bytes for each key, key-value blocks apart; in brackets the paper's, after 100 M inserts\n\n".to_owned();
        for Row { index, keys, ours, paper, entry_utilization, space_utilization } in &rows {
            text += &format!(
                "  {index:8} {keys:>10} keys  depth {} ({})  in buckets {:.3} ({:.3})  directory {:.3} ({:.3})  all {:.2} ({:.2})  entries {:.3} ({:.2})\n",
                ours.depth,
                paper.depth,
                ours.bucket_meta,
                paper.bucket_meta,
                ours.directory_meta,
                paper.directory_meta,
                ours.total,
                paper.total,
                ours.slots,
                paper.slots
            );
            text += &format!(
                "  {:19}  utilization: {:.1} % of entries, {:.1} % of space\n",
                "",
                entry_utilization * 100.0,
                space_utilization * 100.0
            );
        }
        text += "SepHash: depth and buckets are CurSegMeta's; the directory includes record points as a client keeps them\n";
        text + &format!("paper: {SOURCE}, Table 2\n")
    };
    Report::new(&result, text, holds)
}

/// A column of Table 3.
#[derive(Debug, Serialize)]
struct Cache {
    ratio: u64,
    segments: u64,
    naive_bytes: u64,
    points_bytes: u64,
    /// Record points of a table, and those of them that overflow.
    points: f64,
    overflow: f64,
    saving: f64,
    paper_naive_mb: f64,
    paper_points_mb: f64,
    /// Ranges that gets predicted, and for how many of them that was enough.
    predicted: u64,
    enough: f64,
}

/// Table 3.
pub(super) fn fp_tables(args: &Args, watch: Watch<'_>) -> Result<Report, Error> {
    let keys = args.keys(1_000_000)?;
    let mut columns = Vec::new();
    for (ratio, paper_naive_mb, paper_points_mb) in TABLE_3 {
        let mut growing = Growing::new(&sephash(Config { ratio, ..ours() }), keys, args.seed)?;
        growing.grow(keys, watch)?;
        let audit = growing.audit()?;
        let (predicted, short) = growing.look_up(GETS.min(keys))?;
        let segments = audit.figure("segments");
        // A count for each fingerprint, of two bytes: the paper's 9 MB are 549 bytes for each of 2^14 segments.
        let (naive_bytes, points_bytes) = (segments * 512, audit.figure("table_bytes"));
        let each = |count: u64| count as f64 / segments.max(1) as f64;
        columns.push(Cache {
            ratio,
            segments,
            naive_bytes,
            points_bytes,
            points: each(audit.figure("table_points")),
            overflow: each(audit.figure("table_overflow")),
            saving: 1.0 - points_bytes as f64 / naive_bytes.max(1) as f64,
            paper_naive_mb,
            paper_points_mb,
            predicted,
            enough: 1.0 - short as f64 / predicted.max(1) as f64,
        });
    }
    let holds = columns.iter().all(|cache| cache.saving >= SAVING && cache.enough >= ENOUGH);
    let result =
        json!({ "table": 3, "source": SOURCE, "keys": keys, "seed": args.seed, "columns": columns, "holds": holds });
    let text = {
        let mut text = format!(
            "SepHash, Table 3: FPTables that a client keeps after {keys} inserts, and gets that one predicted range was enough for\n\n  \
             ratio  segments  naive bytes  record points  saved (paper)      points (overflow)  enough\n"
        );
        for cache in &columns {
            text += &format!(
                "  {:>5}  {:>8}  {:>11}  {:>13}  {:>5.1} % ({:>4.1} %)  {:>7.1} ({:.2})  {:>9.2} %\n",
                cache.ratio,
                cache.segments,
                cache.naive_bytes,
                cache.points_bytes,
                cache.saving * 100.0,
                (1.0 - cache.paper_points_mb / cache.paper_naive_mb) * 100.0,
                cache.points,
                cache.overflow,
                cache.enough * 100.0
            );
        }
        text + &format!("naive: two bytes for each fingerprint\npaper: {SOURCE}, Table 3 (100 M keys)\n")
    };
    Report::new(&result, text, holds)
}

/// What is recorded each time in Figure 18.
#[derive(Debug, Serialize)]
struct Point {
    keys: u64,
    sephash_entries: f64,
    sephash_space: f64,
    /// Entries of MainSegments that no newer one supersedes.
    main_segments: f64,
    race_entries: f64,
    race_space: f64,
}

/// Keys between two records.
const STEP: u64 = 1000;
/// From which on they count: "close to when the index triggers the first resize operation".
const FIRST: u64 = 10_000;

/// Figure 18.
pub(super) fn utilization(args: &Args, watch: Watch<'_>) -> Result<Report, Error> {
    let keys = args.keys(60_000)?;
    if keys < FIRST + STEP {
        return Err(Error::Usage(format!("figure 18 takes at least {} keys", FIRST + STEP)));
    }
    // About 10,000 entries in the beginning: one segment of ours, eight of RACE's.
    let mine = sephash(Config { initial_depth: 0, ..ours() });
    let theirs = IndexConfig::Race(race::Config { initial_depth: 3, ..race::Config::default() });
    let mut mine = Growing::new(&mine, keys, args.seed)?;
    let mut theirs = Growing::new(&theirs, keys, args.seed)?;
    let mut points = Vec::new();
    for keys in (FIRST..=keys).step_by(STEP as usize) {
        mine.grow(keys, watch)?;
        theirs.grow(keys, watch)?;
        let (audit, other) = (mine.audit()?, theirs.audit()?);
        let (ours, race) = (row("sephash", keys, &audit), row("race", keys, &other));
        let in_main = keys - audit.figure("in_cur");
        // Slots of CurSegments are the others.
        let geometry = farindex_index::sephash::layout::Geometry::of(super::ours().cur_bytes);
        let main_slots = audit.figure("slots").saturating_sub(audit.figure("segments") * geometry.slots as u64);
        points.push(Point {
            keys,
            sephash_entries: ours.entry_utilization,
            sephash_space: ours.space_utilization,
            main_segments: in_main as f64 / main_slots.max(1) as f64,
            race_entries: race.entry_utilization,
            race_space: race.space_utilization,
        });
    }
    let least = |of: fn(&Point) -> f64| points.iter().map(of).fold(f64::INFINITY, f64::min);
    let holds = least(|point| point.sephash_entries) > UTILIZATION
        && least(|point| point.sephash_space) > UTILIZATION
        && least(|point| point.main_segments) >= 1.0;
    let result = json!({ "figure": 18, "source": SOURCE, "seed": args.seed, "points": points, "holds": holds });
    let text = {
        let mut text = "SepHash, Figure 18: utilization while keys are inserted, per cent\n\n      keys  SepHash: entries, space, MainSegments   RACE: entries, space\n".to_owned();
        for point in points.iter().step_by((points.len() / 24).max(1)) {
            let shares =
                [point.sephash_entries, point.sephash_space, point.main_segments, point.race_entries, point.race_space];
            let [a, b, c, d, e] = shares.map(|share| share * 100.0);
            text += &format!("  {:>8}  {a:>16.1}  {b:>5.1}  {c:>12.1}  {d:>14.1}  {e:>5.1}\n", point.keys);
        }
        text += &format!(
            "\nleast: SepHash {:.1} % of entries, {:.1} % of space (paper: above 90 %), MainSegments {:.1} % (100 %); RACE {:.1} %, {:.1} %\n",
            least(|point| point.sephash_entries) * 100.0,
            least(|point| point.sephash_space) * 100.0,
            least(|point| point.main_segments) * 100.0,
            least(|point| point.race_entries) * 100.0,
            least(|point| point.race_space) * 100.0
        );
        text + &format!("paper: {SOURCE}, Figure 18, section 5.4.1\n")
    };
    Report::new(&result, text, holds)
}
