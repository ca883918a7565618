//! `farindex load`.
//!
//! Invariant: lines of the same key take effect in the order of the file, so the last upsert and the first insert wins.

pub(crate) mod engine;
mod records;

use crate::exit::Failure;
use crate::index::{Named, New};
use crate::output::Json;
use crate::signals;
use clap::ValueEnum;
use engine::{Action, Reading, Source};
use farindex::{Error, Index};
use records::Column;
use serde_json::json;
use std::path::PathBuf;

/// Load a file into an index
///
/// Bytes are taken as they are, UTF-8 or not. A line that cannot be loaded is reported with its number and counted, and
/// loading goes on; exit code 5 says that there were such lines.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    name: Named,
    /// The file; - is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    reading: Reading,
    /// Column of the value [default: the rest of the line behind the key]
    #[arg(long, value_name = "COLUMN")]
    value_column: Option<Column>,
    /// What to do with a key that is there already: upsert sets its value, insert rejects the line
    #[arg(long, value_enum, default_value = "upsert")]
    mode: Mode,
    /// Make the index if there is none of this name
    #[arg(long)]
    create: bool,
    #[command(flatten)]
    new: New,
    #[command(flatten)]
    json: Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    Upsert,
    Insert,
}

fn open_index(args: &Args) -> Result<Index, Failure> {
    let session = args.name.place.session()?;
    let name = &args.name.name;
    if args.create && !session.indexes()?.iter().any(|info| info.name == *name && !info.dropping) {
        match session.create_index(name, args.new.config()?) {
            // Somebody else was quicker: so it is there.
            Err(Error::Pool(farindex::PoolError::IndexExists(_))) => {}
            made => return Ok(made?),
        }
    }
    Ok(session.open_index(name)?)
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    let stop = signals::stop_flag()?;
    let source = Source::open(&args.file, &args.reading, args.value_column.as_ref(), &stop)?;
    let index = open_index(args)?;
    let action = match args.mode {
        Mode::Upsert => Action::Upsert,
        Mode::Insert => Action::Insert,
    };
    let course = source.work(&index, action, &mut |_, _| Ok(()))?;
    let counts = &course.counts;
    let (inserted, updated, written, seconds) = (counts.inserted, counts.updated, counts.written, course.seconds);
    let mut result = course.json(&args.name.name);
    result["inserted"] = json!(inserted);
    result["updated"] = json!(updated);
    result["written"] = json!(written);
    args.json.give(&result, || {
        let rate = (inserted + updated + written) as f64 / seconds.max(1e-9);
        let rejected = course.rejected;
        let blind = if written > 0 { format!("{written} written, ") } else { String::new() };
        format!(
            "{inserted} inserted, {updated} updated, {blind}{rejected} rejected in {seconds:.2} s ({rate:.0} a second)\n"
        )
    })?;
    course.finish()
}
