//! `farindex reproduce`.

use crate::bench::Watch;
use crate::exit::{self, Failure};
use crate::output::Json;
use crate::sim::sweep::write;
use farindex_reproduce::{Error, Paper, Report};
use serde_json::Value;

/// Measure a paper's table or figure and print its numbers next to ours
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    paper: Paper,
    #[command(flatten)]
    json: Json,
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    let watch = Watch::new(None)?;
    let Report { mut text, mut json, files, holds } = match watch.show(|control| args.paper.run(control)) {
        Err(Error::Interrupted) => return Ok(exit::INTERRUPTED),
        done => done?,
    };
    let mut written = Vec::new();
    for (ending, content) in &files {
        let Some(out) = args.paper.out() else { break };
        written.push(write(out, ending, content)?.display().to_string());
    }
    if !written.is_empty() {
        text += &format!("written: {}\n", written.join(", "));
        json["files"] = Value::from(written);
    }
    args.json.give(&json, || text)?;
    Ok(if holds { exit::OK } else { exit::NO })
}
