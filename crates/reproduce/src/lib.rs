//! The papers' tables and figures, measured again and compared.
//!
//! A folder for each paper has the paper's numbers, the runs, and what is compared; every number of a paper stands with
//! its source. A run returns a [`Report`]: text, JSON, files, and whether ours holds. Ratios that are far off are
//! explained by counters in the report itself.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`shard`] | SHARD: tables 3 and 4, figures 1a, 6, 12, 16 and 17 |
//! | [`linear`] | linear probing with a variable read size, and cuckoo hashing: tables 1 to 4, figures 6, 7, 9, 11 to 13 |
//! | [`sephash`] | SepHash: tables 1 to 3, figures 12, 14, 18 and 19 |
//! | [`chime`] | CHIME: table 1, figures 3a, 3d, 12, 14 to 16, and 19 |
//! | [`dex`] | DEX: table 2, figures 6 to 8, 10 to 13, and 17 |
//! | `lab`, `nic` | runs of several kinds on one simulated cluster, with its NIC or another one |
//! | `report` | what a run returns |

pub mod chime;
pub mod dex;
mod lab;
pub mod linear;
mod nic;
mod report;
pub mod sephash;
pub mod shard;

pub use report::{Error, Report};

use clap::Subcommand;
use farindex_bench::Control;
use report::Watch;

/// A paper, with the table or figure of it that is wanted.
#[derive(Debug, Subcommand)]
pub enum Paper {
    /// SHARD (PVLDB 19(4), 2025); exit code 1 if ours is worse, for the tables
    ///
    /// Tables count verbs and memory, which are the same on all hardware. Figures are predicted in virtual time on a
    /// simulated cluster with the parameters of SHARD's (`farindex sim`). The output names what cannot be compared with
    /// the paper.
    Shard(Box<shard::Args>),
    /// Linear probing with a variable read size (ADMS 2020); exit code 1 if a number differs from the paper
    ///
    /// Tables 1, 3 and 4 count READs of tables in far memory, which are the same on all hardware. Table 2 and the
    /// figures are predicted in virtual time on a simulated cluster with the parameters of the paper's.
    LinearProbing(linear::Args),
    /// SepHash (PVLDB 17(5), 2024), compared with RACE; exit code 1 if space, utilization or FPTables are worse
    ///
    /// Tables 2 and 3 and Figure 18 count memory. Table 1 and the other figures are predicted in virtual time on a
    /// simulated cluster with the parameters of the paper's. The cost of each operation is shown next to its
    /// throughput.
    #[command(name = "sephash")]
    SepHash(sephash::Args),
    /// CHIME (SOSP 2024), compared with Sherman; exit code 1 if a number is off
    ///
    /// Load factors, metadata, READ bytes, cache bytes and round trips are counted, which are the same on all hardware.
    /// Figures 12 and 15 are predicted in virtual time on a simulated cluster with the parameters of the paper's.
    Chime(chime::Args),
    /// DEX (PVLDB 17(10), 2024), compared with Sherman, and with Sherman whose keys are divided
    ///
    /// Table 2 counts verbs and bytes, on a simulated cluster with the parameters of the paper's. The figures are
    /// predicted on it in virtual time; figure 11 runs on the cores of this machine.
    Dex(dex::Args),
}

impl Paper {
    /// Where files of the report are to be written, as a path without its ending; `None` for nowhere.
    pub fn out(&self) -> Option<&std::path::Path> {
        match self {
            Paper::Shard(args) => args.out.as_deref(),
            Paper::LinearProbing(_) | Paper::SepHash(_) | Paper::Chime(_) | Paper::Dex(_) => None,
        }
    }
    /// Measures it.
    pub fn run(&self, control: &Control<'_>) -> Result<Report, Error> {
        let watch = Watch(control);
        match self {
            Paper::Shard(args) => shard::run(args, watch),
            Paper::LinearProbing(args) => linear::run(args, watch),
            Paper::SepHash(args) => sephash::run(args, watch),
            Paper::Chime(args) => chime::run(args, watch),
            Paper::Dex(args) => dex::run(args, watch),
        }
    }
}
