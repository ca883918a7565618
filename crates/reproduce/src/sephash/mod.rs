//! SepHash (PVLDB 17(5), 2024), compared with RACE.

pub(crate) mod paper;
mod space;
mod speed;

use crate::lab::{Lab, Run, SCANS};
use crate::report::{Error, Report, Watch};
use clap::ValueEnum;
use farindex::IndexConfig;
use farindex_bench::size::parse_count;
use farindex_index::{race, sephash};
use farindex_sim::Preset;

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Table {
    /// Merges and splits, the time they take, attempts of an insert: predicted, with one client and with many
    #[value(name = "1")]
    Resizes,
    /// Space after so many inserts, compared with RACE
    #[value(name = "2")]
    Space,
    /// Bytes of FPTables by size of MainSegments, and how often one predicted range is enough
    #[value(name = "3")]
    Predictions,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Figure {
    /// Insert throughput by clients, compared with RACE, with the latencies of one client
    #[value(name = "12")]
    Inserts,
    /// Mixes of inserts and searches
    #[value(name = "14")]
    Hybrid,
    /// Utilization of entries and of space while keys are inserted
    #[value(name = "18")]
    Utilization,
    /// What techniques contribute
    #[value(name = "19")]
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
    /// Keys to insert; for table 2 a list [default: 1M for tables; 200K for figures; 60K for figure 18]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = parse_count)]
    keys: Vec<u64>,
    /// For figures 12 and 19: keys that are there before, so that there are more segments; else tables begin empty
    #[arg(long, value_name = "N", value_parser = parse_count)]
    loaded: Option<u64>,
    /// Clients of the simulated cluster; for figure 12 a list [default: 128; for figure 12 1,2,4,...,128]
    #[arg(long, value_name = "C,...", value_delimiter = ',')]
    clients: Vec<usize>,
    /// Everything is drawn from this number
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
}

/// Threads of one compute node in the paper (5.2).
const PER_NODE: usize = 16;
/// Bytes of keys and values in the paper (5.1).
const SIZES: (usize, usize) = (16, 32);

impl Args {
    fn keys(&self, usual: u64) -> Result<u64, Error> {
        match self.keys.as_slice() {
            [] => Ok(usual),
            [keys] => Ok(*keys),
            _ => Err(Error::Usage("only table 2 takes several numbers of keys".to_owned())),
        }
    }
    fn clients(&self) -> Result<usize, Error> {
        match self.clients.as_slice() {
            [] => Ok(128),
            [clients] => Ok(*clients),
            _ => Err(Error::Usage("only figure 12 takes several numbers of clients".to_owned())),
        }
    }
    /// Inserts so many keys, behind those that are there before.
    fn inserts(&self, config: IndexConfig, keys: u64, clients: usize) -> Run {
        match self.loaded {
            Some(loaded) => Run::load(config, loaded, clients).then("insert", keys),
            None => Run::load(config, keys, clients),
        }
    }
    fn before(&self) -> String {
        self.loaded.map_or("from scratch".to_owned(), |loaded| format!("behind {loaded} that are there"))
    }
    fn lab<'a>(&self, watch: Watch<'a>) -> Lab<'a> {
        let (key_size, value_size) = SIZES;
        Lab {
            preset: Preset::sephash(),
            per_node: PER_NODE,
            key_size,
            value_size,
            scan_length: SCANS,
            seed: self.seed,
            watch,
        }
    }
}

/// The paper's sizes; about as many entries in the beginning as RACE has.
fn ours() -> sephash::Config {
    sephash::Config::default()
}

fn sephash(config: sephash::Config) -> IndexConfig {
    IndexConfig::SepHash(config)
}

/// Segments of 64 groups, as in the paper; 64 of them have room for 98,304 entries, SepHash's 16 for 117,520.
fn race() -> IndexConfig {
    IndexConfig::Race(race::Config { initial_depth: 6, ..race::Config::default() })
}

/// Measures a table or figure.
pub(crate) fn run(args: &Args, watch: Watch<'_>) -> Result<Report, Error> {
    match (args.table, args.figure) {
        (Some(Table::Resizes), _) => speed::resizes(args, &args.lab(watch)),
        (Some(Table::Space), _) => space::table(args, watch),
        (Some(Table::Predictions), _) => space::fp_tables(args, watch),
        (None, Some(Figure::Inserts)) => speed::inserts(args, &args.lab(watch)),
        (None, Some(Figure::Hybrid)) => speed::hybrid(args, &args.lab(watch)),
        (None, Some(Figure::Utilization)) => space::utilization(args, watch),
        (None, Some(Figure::Steps)) => speed::steps(args, &args.lab(watch)),
        (None, None) => Err(Error::Usage("it takes --table or --figure".to_owned())),
    }
}
