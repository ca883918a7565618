//! The program `farindex`: pools, indexes and benchmarks of far memory.
//!
//! Invariants: each command is one module and returns its exit code or one line that says what went wrong; nothing
//! panics on any input; standard output is for results, standard error for everything else.

mod bench;
mod calibrate;
mod check;
mod check_history;
mod dump;
mod entry;
mod escape;
mod exit;
mod gateway;
mod index;
mod kind;
mod load;
mod output;
mod pool;
mod pool_arg;
mod progress;
mod reproduce;
mod scan;
mod serve;
mod signals;
mod sim;

use clap::{CommandFactory, Parser, Subcommand};
use exit::Failure;
use std::process::ExitCode;

/// Indexes for far (disaggregated) memory, operated by one-sided READ, WRITE, compare-and-swap and fetch-and-add
///
/// Start with `farindex bench`. Sizes are bytes: 4096, 64KiB, 1.5GiB, 2GB. In all numbers K, M, G and T are
/// powers of 1000, Ki, Mi, Gi and Ti powers of 1024.
#[derive(Debug, Parser)]
#[command(name = "farindex", version, after_help = exit::TABLE)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Bench(Box<bench::Args>),
    Calibrate(calibrate::Args),
    Check(check::Args),
    CheckHistory(check_history::Args),
    Pool(pool::Args),
    Index(index::Args),
    Load(load::Args),
    Dump(dump::Args),
    Scan(scan::Args),
    Get(entry::Get),
    Put(entry::Put),
    Del(entry::Del),
    Exists(entry::Exists),
    Sim(Box<sim::Args>),
    Reproduce(reproduce::Args),
    Serve(serve::Args),
    Gateway(Box<gateway::Args>),
    /// Write a completion script for a shell to standard output
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

fn run(command: &Command) -> Result<u8, Failure> {
    match command {
        Command::Bench(args) => bench::run(args),
        Command::Calibrate(args) => calibrate::run(args),
        Command::Check(args) => check::run(args),
        Command::CheckHistory(args) => check_history::run(args),
        Command::Pool(args) => pool::run(args),
        Command::Index(args) => index::run(args),
        Command::Load(args) => load::run(args),
        Command::Dump(args) => dump::run(args),
        Command::Scan(args) => scan::run(args),
        Command::Get(args) => entry::get(args),
        Command::Put(args) => entry::put(args),
        Command::Del(args) => entry::del(args),
        Command::Exists(args) => entry::exists(args),
        Command::Sim(args) => sim::run(args),
        Command::Reproduce(args) => reproduce::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Gateway(args) => gateway::run(args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "farindex", &mut script);
            output::print(&String::from_utf8_lossy(&script))?;
            Ok(exit::OK)
        }
    }
}

fn main() -> ExitCode {
    // A bug is reported in one line like any other error, not as a backtrace.
    std::panic::set_hook(Box::new(|info| {
        let text = info.to_string().replace('\n', " ");
        output::note(format!("error: a bug in farindex, please report it: {text}"));
    }));
    let command = Cli::parse_from(pool_arg::rewrite(std::env::args_os().collect())).command;
    let code = match std::panic::catch_unwind(|| run(&command)) {
        Err(_) => exit::BUG,
        Ok(Ok(code)) => code,
        Ok(Err(Failure { code, message })) => {
            if !message.is_empty() {
                output::note(format!("error: {message}"));
            }
            code
        }
    };
    ExitCode::from(signals::exit_code(code))
}
