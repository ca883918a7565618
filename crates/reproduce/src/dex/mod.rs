//! DEX (PVLDB 17(10), 2024), compared with Sherman and with Sherman whose keys are divided.
//!
//! | Module | What it holds |
//! |---|---|
//! | `paper` | the paper's numbers |
//! | `variants` | what is compared, and how one run is made |
//! | `costs` | table 2: the cost of an operation in verbs and bytes |
//! | `speed` | figures 6, 7, 8, 12, 13 and 17: a simulated cluster |
//! | `repartition` | figure 10: a boundary is moved under load |
//! | `local` | figure 11: all nodes in the cache, compared with an ordered map in local memory |

mod costs;
mod local;
mod paper;
mod repartition;
mod speed;
mod variants;

use crate::report::{Error, Report, Watch};
use clap::ValueEnum;
use farindex_bench::size::parse_count;

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Table {
    /// Verbs and bytes of an operation, read-only and write-intensive
    #[value(name = "2")]
    Costs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Figure {
    /// Throughput by threads, skewed, five workloads
    #[value(name = "6")]
    Skewed,
    /// The same, uniform
    #[value(name = "7")]
    Uniform,
    /// What partitioning, caching and offloading contribute, with a cache of 1 % of the data
    #[value(name = "8")]
    Steps,
    /// Time to move a boundary under load
    #[value(name = "10")]
    Repartition,
    /// All nodes in the cache, compared with an ordered map in local memory, on the cores of this machine
    #[value(name = "11")]
    Local,
    /// Throughput by size of the cache
    #[value(name = "12")]
    Cache,
    /// Throughput by threads of a memory node that answer calls, with a cache of 1 % of the data
    #[value(name = "13")]
    MemoryThreads,
    /// Throughput by skew
    #[value(name = "17")]
    Skew,
}

/// Options of DEX's tables and figures.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(false).args(["table", "figure"]))]
pub struct Args {
    /// Which table
    #[arg(long, value_enum)]
    table: Option<Table>,
    /// Which figure
    #[arg(long, value_enum)]
    figure: Option<Figure>,
    /// Keys that are loaded [default: 400K; 1600K for figures 8 and 13; 1M for figure 11]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    keys: Option<u64>,
    /// Operations of each run; of scans an eighth [default: as many as keys; 400K for figures 8 and 13]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    ops: Option<u64>,
    /// Clients, 36 on each compute node; a list for figures 6, 7 and 8 [default: 144; 36,144 for figures 6 and 7, 2,144
    /// for figure 8]. For figure 11: threads [default: 1 and the cores of this machine]
    #[arg(long, value_name = "C,...", value_delimiter = ',')]
    clients: Vec<usize>,
    /// For figures 6, 7 and 11: workloads [default: the paper's]
    #[arg(long = "workload", value_name = "NAME,...", value_delimiter = ',')]
    workloads: Vec<String>,
    /// For figures 10 and 12: cache of a compute node, in percent of the data [default: 8,16,32 for figure 10;
    /// 2,4,8,16,32,64 for figure 12]
    #[arg(long, value_name = "PERCENT,...", value_delimiter = ',')]
    cache: Vec<f64>,
    /// For figure 17: skews [default: 0.6,0.8,0.9,0.99]
    #[arg(long, value_name = "THETA,...", value_delimiter = ',')]
    theta: Vec<f64>,
    /// What to compare: sherman, p-sherman, dex, dex:SETTING=VALUE
    #[arg(long = "index", value_name = "NAME,...", value_delimiter = ',', default_value = "sherman,p-sherman,dex")]
    kinds: Vec<String>,
    /// READs of a lookup and of an update in Sherman: 1 is ours; 3 is the paper's, which READs the leaf's lock word
    /// before and after the leaf
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,3")]
    sherman_reads: Vec<u32>,
    /// Nanoseconds of the client's CPU for each operation in addition to its verbs: an assumption, the paper has no
    /// number
    #[arg(long, value_name = "NS", default_value_t = 1000)]
    local_ns: u64,
    /// Put the local lock table in front of each index: operations of a compute node on one key share their verbs
    #[arg(long)]
    coalesce: bool,
    /// Everything is drawn from this number
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
}

impl Args {
    /// The options of a command line, for tests.
    #[cfg(test)]
    fn example(arguments: &[&str]) -> Self {
        use clap::{Args as _, FromArgMatches};
        let command = Args::augment_args(clap::Command::new("dex").no_binary_name(true));
        let matches = command.try_get_matches_from(arguments).expect("a command line");
        Args::from_arg_matches(&matches).expect("options")
    }
    fn one_number_of_clients(&self) -> Result<usize, Error> {
        match self.clients.as_slice() {
            [] => Ok(144),
            [clients] => Ok(*clients),
            _ => Err(Error::Usage("only figures 6, 7, 8 and 11 take several numbers of clients".to_owned())),
        }
    }
    /// What the text of a prediction says about its scale.
    fn scale(&self, keys: u64) -> String {
        format!(
            "the paper: {} M keys; here {keys}, the cache in proportion to the data, and {} ns of CPU for each operation \
             (an assumption).\nThe shape counts, not the absolute numbers.",
            paper::KEYS / 1_000_000,
            self.local_ns
        )
    }
}

/// Measures a table or figure.
pub(crate) fn run(args: &Args, watch: Watch<'_>) -> Result<Report, Error> {
    if args.sherman_reads.iter().any(|reads| !(1..=8).contains(reads)) {
        return Err(Error::Usage("sherman-reads takes 1 to 8".to_owned()));
    }
    if args.cache.iter().any(|percent| !(*percent > 0.0 && *percent <= 1000.0)) {
        return Err(Error::Usage("a cache takes a percentage above 0, and 1000 at most".to_owned()));
    }
    match (args.table, args.figure) {
        (Some(Table::Costs), _) => costs::table(args, watch),
        (None, Some(Figure::Skewed)) => speed::scaling(args, watch, true),
        (None, Some(Figure::Uniform)) => speed::scaling(args, watch, false),
        (None, Some(Figure::Steps)) => speed::steps(args, watch),
        (None, Some(Figure::Repartition)) => repartition::figure(args, watch),
        (None, Some(Figure::Local)) => local::figure(args, watch),
        (None, Some(Figure::Cache)) => speed::caches(args, watch),
        (None, Some(Figure::MemoryThreads)) => speed::memory_threads(args, watch),
        (None, Some(Figure::Skew)) => speed::skews(args, watch),
        (None, None) => Err(Error::Usage("it takes --table or --figure".to_owned())),
    }
}
