//! The program `farindex`: pools, indexes and benchmarks of far memory.
//!
//! Invariants: each command is one module and returns its exit code or one line that says what went wrong; nothing panics
//! on any input; standard output is for results, standard error for everything else.

mod bench;
mod exit;
mod output;
mod place;
mod progress;
mod signals;

use clap::{Parser, Subcommand};
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
}

fn run(command: &Command) -> Result<u8, Failure> {
    match command {
        Command::Bench(args) => bench::run(args),
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
