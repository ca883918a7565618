//! SHARD (PVLDB 19(4), 2025).

mod compare;
mod course;
mod figures;
mod missing;
mod reads;
mod tables;

use crate::report::{Error, Report, Watch};
use clap::ValueEnum;
use farindex::shard::Config;
use farindex::{IndexConfig, Pool};
use farindex_bench::driver::pool_index::PoolIndexBench;
use farindex_bench::record::Identity;
use farindex_bench::size::parse_count;
use farindex_bench::{Plan, Row, Workload};
use serde_json::json;
use tables::{RoundTrips, Space};

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
    /// YCSB, compared with RACE and SepHash
    #[value(name = "12")]
    Ycsb,
    /// Throughput over time while the table grows
    #[value(name = "16")]
    Course,
    /// What techniques contribute, as far as they can be switched off
    #[value(name = "17")]
    Steps,
}

/// What is wanted of it.
#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(false).args(["table", "figure"]))]
pub struct Args {
    /// Which table
    #[arg(long, value_enum)]
    table: Option<Table>,
    /// Which figure
    #[arg(long, value_enum)]
    figure: Option<Figure>,
    /// With --figure 16: write OUT.csv, OUT.svg and OUT.html
    #[arg(long, value_name = "OUT", requires = "figure")]
    pub(crate) out: Option<std::path::PathBuf>,
    /// Keys to load; for table 4 a list [default: 1M; for table 4 1M,10M; for table 3-all and figures 6, 12 and 16
    /// 100K]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = parse_count)]
    keys: Vec<u64>,
    /// Clients (coroutines): for tables on one thread, for figures on all cores of the cluster
    /// [default: 1; for figures 108, one on each core of the paper's cluster]
    #[arg(long, value_name = "C")]
    clients: Option<usize>,
    /// Everything is drawn from this number
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
}

/// Measures a table or figure.
pub(crate) fn run(args: &Args, watch: Watch<'_>) -> Result<Report, Error> {
    match (args.table, args.figure) {
        (Some(Table::RoundTrips), _) => round_trips(args, watch),
        (Some(Table::AllRoundTrips), _) => compare::round_trips(args, watch),
        (Some(Table::Space), _) => space(args, watch),
        (None, Some(Figure::Reads)) => figures::read_sizes(args, watch),
        (None, Some(Figure::Missing)) => missing::figure(args, watch),
        (None, Some(Figure::Ycsb)) => compare::figure(args, watch),
        (None, Some(Figure::Course)) => figures::course(args, watch),
        (None, Some(Figure::Steps)) => figures::steps(args, watch),
        (None, None) => Err(Error::Usage("it takes --table or --figure".to_owned())),
    }
}

impl Args {
    fn clients(&self) -> usize {
        self.clients.unwrap_or(1)
    }
    /// One number of keys, where a list makes no sense.
    fn one_number(&self, what: &str, usual: u64) -> Result<u64, Error> {
        match self.keys.as_slice() {
            [] => Ok(usual),
            [keys] => Ok(*keys),
            _ => Err(Error::Usage(format!("{what} takes one number of keys"))),
        }
    }
}

/// The smallest table: one bucket.
fn smallest() -> Config {
    Config { initial_bits: 0, ..Config::default() }
}

fn plan(workload: &str, keys: u64, args: &Args) -> Result<Plan, Error> {
    let workload: Workload = workload.parse().map_err(|why: String| Error::Bug(why))?;
    let plan = Plan { keys, clients: args.clients(), seed: args.seed, audit: false, ..Plan::new(workload) };
    plan.check()?;
    Ok(plan)
}

fn subject(load: &Plan) -> Result<PoolIndexBench, Error> {
    let pool = Pool::builder().unseeded().node_bytes(load.pool_bytes()).in_memory(1)?;
    Ok(PoolIndexBench::create(pool, "reproduce", &IndexConfig::Shard(smallest()))?)
}

fn measure(subject: &PoolIndexBench, plan: &Plan, watch: Watch<'_>) -> Result<Row, Error> {
    let outcome = watch.run(subject, plan)?;
    let row = Row::new(Identity { index: "shard".to_owned(), fabric: "memory".to_owned() }, &outcome);
    match row.wrong_answers + row.errors {
        0 => Ok(row),
        _ => Err(Error::Wrong(format!("{}: {} {}", row.workload, outcome.wrong, outcome.errors))),
    }
}

fn round_trips(args: &Args, watch: Watch<'_>) -> Result<Report, Error> {
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
        let row = measure(&subject, &plan, watch)?;
        rows.push(row);
    }
    let lines = RoundTrips::of(&rows.iter().collect::<Vec<_>>())
        .ok_or_else(|| Error::Bug("an operation was not measured".to_owned()))?;
    let result = json!({ "table": 3, "keys": keys, "clients": args.clients(), "seed": args.seed, "source": tables::TABLE_3, "operations": lines });
    let text = {
        let head = format!(
            "SHARD, Table 3: {keys} keys of 8 + 8 bytes loaded into a table of one bucket, uniform keys,\n\
             search after as many gets to warm up\n\n"
        );
        head + &tables::table_3(&lines)
    };
    Report::new(&result, text, lines.iter().all(RoundTrips::holds))
}

fn space(args: &Args, watch: Watch<'_>) -> Result<Report, Error> {
    let keys = if args.keys.is_empty() { vec![1_000_000, 10_000_000] } else { args.keys.clone() };
    let mut spaces = Vec::new();
    for keys in keys {
        let load = plan("ycsb-load", keys, args)?;
        let subject = subject(&load)?;
        let row = measure(&subject, &load, watch)?;
        let session = subject.pool.session()?;
        let index = session.open_index(&subject.name)?;
        let audit = index.audit()?;
        if audit.entries != keys || !audit.problems.is_empty() {
            return Err(Error::Wrong(format!("{} entries after {keys} inserts; {:?}", audit.entries, audit.problems)));
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
        "slots_per_entry": tables::ENTRIES_TI / tables::INSERTED_TI,
        "utilization": tables::UTILIZATION,
        "cache_mb": tables::CACHE_MB,
    });
    let logarithmic = tables::cache_is_logarithmic(&spaces);
    let result = json!({ "table": 4, "source": tables::TABLE_4, "paper": paper, "measured": figures, "cache_is_logarithmic": logarithmic });
    let text = {
        let head = "SHARD, Table 4: keys of 8 + 8 bytes loaded into a table of one bucket\n\n".to_owned();
        let cache = if logarithmic { "grows with the number of segments" } else { "GROWS WITH THE NUMBER OF KEYS" };
        format!("{head}{}cache: {cache}\n", tables::table_4(&spaces, smallest().threshold))
    };
    Report::new(&result, text, logarithmic)
}
