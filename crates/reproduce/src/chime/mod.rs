//! CHIME (SOSP 2024), compared with Sherman.
//!
//! | Module | What it holds |
//! |---|---|
//! | `paper` | the paper's numbers |
//! | `leaf`, `schemes` | figures 3d, 16 and 19: the leaf alone, without a pool |
//! | `kinds` | which kinds are compared, with which settings |
//! | `filled` | an index with keys in it, and compute nodes that read it |
//! | `cache` | figures 3a and 14: bytes of the compute node's cache |
//! | `trips` | table 1: round trips |
//! | `speed` | figures 12 and 15: a simulated cluster |

mod cache;
mod filled;
pub(crate) mod kinds;
mod leaf;
mod paper;
mod schemes;
mod speed;
mod trips;

use crate::nic::Nic;
use crate::report::{Error, Report, Watch};
use clap::ValueEnum;
use farindex_bench::size::parse_count;

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Table {
    /// Round trips of each operation, with all inner nodes cached and with none
    #[value(name = "1")]
    RoundTrips,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Figure {
    /// Read amplification of a lookup and bytes of cache for each entry, by span
    #[value(name = "3a")]
    Amplification,
    /// Maximum load factor by amplification factor: hopscotch, FaRM, associative buckets, RACE
    #[value(name = "3d")]
    Schemes,
    /// YCSB: throughput and latency by clients
    #[value(name = "12")]
    Ycsb,
    /// Bytes of the compute node's cache by loaded keys
    #[value(name = "14")]
    Cache,
    /// What techniques contribute
    #[value(name = "15")]
    Steps,
    /// Metadata for each entry by key size, with sibling-based validation and with replicated fence keys
    #[value(name = "16")]
    Metadata,
    /// Maximum load factor of a leaf by span and by neighbourhood
    #[value(name = "19")]
    Leaves,
}

/// Options of CHIME's tables and figures.
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
    /// For figures 3d and 19: tables that are filled for each number, which is their mean
    #[arg(long, value_name = "N", default_value_t = 200)]
    trials: usize,
    /// Keys that are loaded; for figure 14 a list [default: 40K for figures 12 and 15; 100K for table 1; 1M for figure
    /// 3a; 1M,2M,4M for figure 14]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = parse_count)]
    keys: Vec<u64>,
    /// For figures 12 and 15: operations of each run [default: as many as keys]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    ops: Option<u64>,
    /// For figures 12 and 15: clients of the simulated cluster; for figure 12 a list [default: 320; for figure 12
    /// 160,640]
    #[arg(long, value_name = "C,...", value_delimiter = ',')]
    clients: Vec<usize>,
    /// For figures 3a and 14: bytes of the compute node's cache [default: enough for all inner nodes]
    #[arg(long, value_name = "BYTES", value_parser = parse_count)]
    cache: Option<u64>,
    /// For figure 12: workloads [default: the paper's]
    #[arg(long = "workload", value_name = "NAME,...", value_delimiter = ',')]
    workloads: Vec<String>,
    /// Kinds of index to compare, the one to compare with first; for figure 12 also KIND:SETTING=VALUE
    #[arg(long = "index", value_name = "KIND,...", value_delimiter = ',', default_value = "sherman,chime")]
    kinds: Vec<String>,
    #[command(flatten)]
    nic: Nic,
    /// Everything is drawn from this number
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
}

impl Args {
    /// The options of a command line, for tests.
    #[cfg(test)]
    fn example(arguments: &[&str]) -> Self {
        use clap::{Args as _, FromArgMatches};
        let command = Args::augment_args(clap::Command::new("chime").no_binary_name(true));
        let matches = command.try_get_matches_from(arguments).expect("a command line");
        Args::from_arg_matches(&matches).expect("options")
    }
    fn one_number_of_keys(&self, usual: u64) -> Result<u64, Error> {
        match self.keys.as_slice() {
            [] => Ok(usual),
            [keys] => Ok(*keys),
            _ => Err(Error::Usage("only figure 14 takes several numbers of keys".to_owned())),
        }
    }
    fn one_number_of_clients(&self, usual: usize) -> Result<usize, Error> {
        match self.clients.as_slice() {
            [] => Ok(usual),
            [clients] => Ok(*clients),
            _ => Err(Error::Usage("only figure 12 takes several numbers of clients".to_owned())),
        }
    }
}

/// Measures a table or figure.
pub(crate) fn run(args: &Args, watch: Watch<'_>) -> Result<Report, Error> {
    if args.trials == 0 {
        return Err(Error::Usage("it takes one trial at least".to_owned()));
    }
    match (args.table, args.figure) {
        (Some(Table::RoundTrips), _) => trips::table(args, watch),
        (None, Some(Figure::Amplification)) => cache::amplification(args, watch),
        (None, Some(Figure::Schemes)) => leaf::schemes(args, watch),
        (None, Some(Figure::Ycsb)) => speed::ycsb(args, watch),
        (None, Some(Figure::Cache)) => cache::consumption(args, watch),
        (None, Some(Figure::Steps)) => speed::steps(args, watch),
        (None, Some(Figure::Metadata)) => leaf::metadata(),
        (None, Some(Figure::Leaves)) => leaf::leaves(args, watch),
        (None, None) => Err(Error::Usage("it takes --table or --figure".to_owned())),
    }
}
