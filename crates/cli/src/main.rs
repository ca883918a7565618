//! The program `farindex`: pools, indexes and benchmarks of far memory.
//!
//! Invariants: each command is one module and returns its exit code or one line that says what went wrong; nothing panics
//! on any input; standard output is for results, standard error for everything else.

mod bench;
mod dump;
mod entry;
mod escape;
mod exit;
mod index;
mod load;
mod output;
mod place;
mod pool;
mod progress;
mod signals;

use clap::{CommandFactory, Parser, Subcommand};
use exit::Failure;
use std::process::ExitCode;

/// Indexes for far (disaggregated) memory, operated by one-sided READ, WRITE, compare-and-swap and fetch-and-add
///
/// Start with `farindex bench`. Sizes are bytes: 4096, 64KiB, 1.5GiB, 2GB.
#[derive(Debug, Parser)]
#[command(name = "farindex", version, after_help = exit::TABLE)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Bench(bench::Args),
    Pool(pool::Args),
    Index(index::Args),
    Load(load::Args),
    Dump(dump::Args),
    Get(entry::Get),
    Put(entry::Put),
    Del(entry::Del),
    Exists(entry::Exists),
    /// Write a completion script for a shell to standard output
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

fn run(command: &Command) -> Result<u8, Failure> {
    match command {
        Command::Bench(args) => bench::run(args),
        Command::Pool(args) => pool::run(args),
        Command::Index(args) => index::run(args),
        Command::Load(args) => load::run(args),
        Command::Dump(args) => dump::run(args),
        Command::Get(args) => entry::get(args),
        Command::Put(args) => entry::put(args),
        Command::Del(args) => entry::del(args),
        Command::Exists(args) => entry::exists(args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "farindex", &mut script);
            output::print(&String::from_utf8_lossy(&script))?;
            Ok(exit::OK)
        }
    }
}

fn main() -> ExitCode {
    let code = match run(&Cli::parse().command) {
        Ok(code) => code,
        Err(Failure { code, message }) => {
            if !message.is_empty() {
                output::note(format!("error: {message}"));
            }
            code
        }
    };
    ExitCode::from(code)
}
