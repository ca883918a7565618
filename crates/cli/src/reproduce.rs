//! `farindex reproduce`.

mod beside;
mod figures;
mod lab;
mod linear;
mod missing;
mod probing;
mod sephash;

use crate::bench::worker_state::Subject;
use crate::bench::{FabricKind, Watch, make_pool, pool_size};
use crate::exit::{self, Failure};
use crate::output::{Json, note};
use clap::{Subcommand, ValueEnum};
use farindex::IndexConfig;
use farindex::shard::Config;
use farindex_bench::record::Identity;
use farindex_bench::reproduce::shard::{self, RoundTrips, Space};
use farindex_bench::size::parse_count;
use farindex_bench::{Plan, Row, Workload};
use serde_json::json;

/// Measure a paper's table or figure and print its numbers beside ours
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    paper: Paper,
}

#[derive(Debug, Subcommand)]
enum Paper {
    /// SHARD (PVLDB 19(4), 2025); exit code 1 if ours is worse, for the tables
    ///
    /// Tables count verbs and memory, which no hardware changes. Figures are predicted on a simulated cluster with the
    /// figures of SHARD's (`farindex sim`), in virtual time; what has no counterpart in the paper's terms is said.
    Shard(Box<Shard>),
    /// Linear probing with a variable read size (ADMS 2020); exit code 1 if a number is off
    ///
    /// For tables 1, 3 and 4 READs are counted on tables in far memory, which no hardware changes. Table 2 and the figures are
    /// predicted on a simulated cluster with the figures of the paper's, in virtual time.
    LinearProbing(linear::Linear),
    /// SepHash (PVLDB 17(5), 2024), beside RACE; exit code 1 if space, utilization or FPTables are worse
    ///
    /// Tables 2 and 3 and Figure 18 count memory. Table 1 and the other figures are predicted on a simulated cluster with the
    /// figures of the paper's, in virtual time, with what each operation cost: that is what a ratio that is off rests on.
    #[command(name = "sephash")]
    SepHash(sephash::SepHash),
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Table {
    /// Round trips for each operation, block reads apart, from the smallest table on
    #[value(name = "3")]
    RoundTrips,
    /// The same for RACE and SepHash as well, on a simulated cluster
    #[value(name = "3-all")]
    AllRoundTrips,
    /// Space: slots for each entry, utilization of buckets, cache of a client
    #[value(name = "4")]
    Space,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Figure {
    /// Throughput of READs: one larger against two smaller ones
    #[value(name = "1a")]
    Reads,
    /// Keys that RACE as published loses while it grows, and as repaired
    #[value(name = "6")]
    Missing,
    /// YCSB, beside RACE and SepHash
    #[value(name = "12")]
    Ycsb,
    /// Throughput over time while the table grows
    #[value(name = "16")]
    Course,
    /// What techniques contribute, as far as they can be switched off
    #[value(name = "17")]
    Steps,
}

#[derive(Debug, clap::Args)]
#[group(id = "what", required = true, multiple = false, args = ["table", "figure"])]
struct Shard {
    /// Which table
    #[arg(long, value_enum)]
    table: Option<Table>,
    /// Which figure
    #[arg(long, value_enum)]
    figure: Option<Figure>,
    /// With --figure 16: write OUT.csv, OUT.svg and OUT.html
    #[arg(long, value_name = "OUT", requires = "figure")]
    out: Option<std::path::PathBuf>,
    /// Keys to load; for table 4 a list [default: 1M; for table 4 1M,10M; for table 3-all and figures 6, 12 and 16 100K]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = parse_count)]
    keys: Vec<u64>,
    /// Clients (coroutines): of the one thread that works, or for figures of all cores of the cluster
    /// [default: 1; for figures 108, one on each core of the paper's]
    #[arg(long, value_name = "C")]
    clients: Option<usize>,
    /// Everything is drawn from this number
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    json: Json,
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    let shard = match &args.paper {
        Paper::Shard(shard) => shard,
        Paper::LinearProbing(linear) => return linear::run(linear),
        Paper::SepHash(args) => return sephash::run(args),
    };
    let watch = Watch::new(None)?;
    match (shard.table, shard.figure) {
        (Some(Table::RoundTrips), _) => round_trips(shard, &watch),
        (Some(Table::AllRoundTrips), _) => beside::round_trips(shard, &watch),
        (Some(Table::Space), _) => space(shard, &watch),
        (None, Some(Figure::Reads)) => figures::read_sizes(shard, &watch),
        (None, Some(Figure::Missing)) => missing::figure(shard, &watch),
        (None, Some(Figure::Ycsb)) => beside::figure(shard, &watch),
        (None, Some(Figure::Course)) => figures::course(shard, &watch),
        (None, Some(Figure::Steps)) => figures::steps(shard, &watch),
        (None, None) => Err(Failure::usage("it takes --table or --figure")),
    }
}

impl Shard {
    fn clients(&self) -> usize {
        self.clients.unwrap_or(1)
    }
    /// One number of keys, where a list makes no sense.
    fn one_number(&self, what: &str, usual: u64) -> Result<u64, Failure> {
        match self.keys.as_slice() {
            [] => Ok(usual),
            [keys] => Ok(*keys),
            _ => Err(Failure::usage(format!("{what} takes one number of keys"))),
        }
    }
}

/// The smallest table: one bucket.
fn smallest() -> Config {
    Config { initial_bits: 0, ..Config::default() }
}

fn plan(workload: &str, keys: u64, shard: &Shard) -> Result<Plan, Failure> {
    let workload: Workload = workload.parse().map_err(|why: String| Failure::new(exit::BUG, why))?;
    let plan = Plan { keys, clients: shard.clients(), seed: shard.seed, audit: false, ..Plan::new(workload) };
    plan.check()?;
    Ok(plan)
}

fn subject(load: &Plan) -> Result<Subject, Failure> {
    let pool = make_pool(FabricKind::Memory, None, pool_size(load).next_multiple_of(4096))?;
    Ok(Subject::create(pool, "reproduce", &IndexConfig::Shard(smallest()))?)
}

/// `None` once it was interrupted.
fn measure(subject: &Subject, plan: &Plan, watch: &Watch) -> Result<Option<Row>, Failure> {
    let outcome = watch.run(subject, plan)?;
    if watch.stopped() {
        return Ok(None);
    }
    let row = Row::new(Identity { index: "shard".to_owned(), fabric: "memory".to_owned() }, &outcome);
    match row.wrong_answers + row.errors {
        0 => Ok(Some(row)),
        _ => Err(Failure::new(exit::NO, format!("{}: {} {}", row.workload, outcome.wrong, outcome.errors))),
    }
}

fn round_trips(args: &Shard, watch: &Watch) -> Result<u8, Failure> {
    let keys = args.one_number("table 3", 1_000_000)?;
    let load = plan("ycsb-load", keys, args)?;
    let subject = subject(&load)?;
    let mut rows = Vec::new();
    for workload in ["ycsb-load", "get", "update", "remove"] {
        // Everything after the load works on what it left.
        let mut plan = Plan { load: rows.is_empty(), ..plan(workload, keys, args)? };
        if workload == "get" {
            // The last resize is lazy, and the first to come by a bucket moves it: that is growth, not search.
            plan.warmup = keys;
        }
        match measure(&subject, &plan, watch)? {
            Some(row) => rows.push(row),
            None => return Ok(exit::INTERRUPTED),
        }
    }
    let lines = RoundTrips::of(&rows.iter().collect::<Vec<_>>())
        .ok_or_else(|| Failure::new(exit::BUG, "an operation was not measured"))?;
    let result = json!({ "table": 3, "keys": keys, "clients": args.clients(), "seed": args.seed, "source": shard::TABLE_3, "operations": lines });
    args.json.give(&result, || {
        let head = format!(
            "SHARD, Table 3: {keys} keys of 8 + 8 bytes loaded into a table of one bucket, uniform keys,\n\
             search after as many gets to warm up\n\n"
        );
        head + &shard::table_3(&lines)
    })?;
    Ok(if lines.iter().all(RoundTrips::holds) { exit::OK } else { exit::NO })
}

fn space(args: &Shard, watch: &Watch) -> Result<u8, Failure> {
    let keys = if args.keys.is_empty() { vec![1_000_000, 10_000_000] } else { args.keys.clone() };
    let mut spaces = Vec::new();
    for keys in keys {
        let load = plan("ycsb-load", keys, args)?;
        let subject = subject(&load)?;
        let Some(row) = measure(&subject, &load, watch)? else { return Ok(exit::INTERRUPTED) };
        let session = subject.pool.session()?;
        let index = session.open_index(&subject.name)?;
        let audit = index.audit()?;
        if audit.entries != keys || !audit.problems.is_empty() {
            note(format!("{} entries after {keys} inserts; {:?}", audit.entries, audit.problems));
            return Ok(exit::NO);
        }
        spaces.push(Space {
            entries: keys,
            // Level 2 has 8 slots and level 3 has one for each 64 of level 1.
            slots: audit.figure("level1_slots") / 64 * 73,
            index_bytes: audit.index_bytes,
            block_bytes: audit.block_bytes,
            resizes: audit.resizes,
            cache_bytes: row.cache_bytes.max(index.cache_bytes()),
        });
    }
    let figures: Vec<_> = spaces
        .iter()
        .map(|space| {
            json!({
                "space": space,
                "slots_per_entry": space.slots_per_entry(),
                "utilization": space.utilization(),
                "far_bytes_per_entry": space.far_bytes_per_entry(),
            })
        })
        .collect();
    let paper = json!({
        "slots_per_entry": shard::ENTRIES_TI / shard::INSERTED_TI,
        "utilization": shard::UTILIZATION,
        "cache_mb": shard::CACHE_MB,
    });
    let logarithmic = shard::cache_is_logarithmic(&spaces);
    let result = json!({ "table": 4, "source": shard::TABLE_4, "paper": paper, "measured": figures, "cache_is_logarithmic": logarithmic });
    args.json.give(&result, || {
        let head = "SHARD, Table 4: keys of 8 + 8 bytes loaded into a table of one bucket\n\n".to_owned();
        let cache = if logarithmic { "grows with the number of segments" } else { "GROWS WITH THE NUMBER OF KEYS" };
        format!("{head}{}cache: {cache}\n", shard::table_4(&spaces, smallest().threshold))
    })?;
    Ok(if logarithmic { exit::OK } else { exit::NO })
}
