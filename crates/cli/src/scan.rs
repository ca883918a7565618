//! `farindex scan`.

use crate::dump::{Format, encode, object};
use crate::entry::unhex;
use crate::exit::{self, Failure};
use crate::index::Named;
use crate::output::{Json, note, stdout};
use crate::signals;
use farindex::{Index, KINDS};
use serde_json::Value;
use std::ffi::OsString;
use std::io::{BufWriter, Write};
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering;

/// Write the entries of a key range to standard output, in ascending order of their keys; takes an ordered index
///
/// Keys are ordered byte by byte. Without bounds the whole index is scanned. Entries are written as `dump` writes them.
/// A scan is not atomic: an entry that another client changes meanwhile may be missing, or have its former value; every
/// other entry of the range is written exactly once. `farindex index kinds` shows which kinds are ordered.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    name: Named,
    /// Begin at this key, which is part of the range
    #[arg(long, value_name = "KEY", allow_hyphen_values = true, conflicts_with_all = ["after", "prefix"])]
    from: Option<OsString>,
    /// Begin after this key, which is not part of the range
    #[arg(long, value_name = "KEY", allow_hyphen_values = true, conflicts_with = "prefix")]
    after: Option<OsString>,
    /// End at this key, which is part of the range
    #[arg(long, value_name = "KEY", allow_hyphen_values = true, conflicts_with_all = ["before", "prefix"])]
    to: Option<OsString>,
    /// End before this key, which is not part of the range
    #[arg(long, value_name = "KEY", allow_hyphen_values = true, conflicts_with = "prefix")]
    before: Option<OsString>,
    /// Write the entries whose keys begin with this
    #[arg(long, value_name = "PREFIX", allow_hyphen_values = true)]
    prefix: Option<OsString>,
    /// Write at most this many entries
    #[arg(long, value_name = "N", value_parser = farindex_bench::size::parse_count)]
    limit: Option<u64>,
    /// How to write entries
    #[arg(long, value_enum, default_value = "tsv")]
    format: Format,
    /// Keys and values are written in hexadecimal, in the bounds as well
    #[arg(long)]
    hex: bool,
    #[command(flatten)]
    json: Json,
}

type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The range of all keys that begin with `prefix`.
fn of_prefix(prefix: Vec<u8>) -> Bounds {
    let mut end = prefix.clone();
    // The first key behind them: the last byte that can grow grows, and nothing follows it.
    while let Some(last) = end.pop() {
        if let Some(next) = last.checked_add(1) {
            end.push(next);
            return (Bound::Included(prefix), Bound::Excluded(end));
        }
    }
    (Bound::Included(prefix), Bound::Unbounded)
}

impl Args {
    fn bounds(&self) -> Result<Bounds, Failure> {
        let bytes = |what: &str, text: &OsString| match self.hex {
            true => unhex(what, text.as_bytes()),
            false => Ok(text.as_bytes().to_vec()),
        };
        if let Some(prefix) = &self.prefix {
            return Ok(of_prefix(bytes("prefix", prefix)?));
        }
        let bound = |included: &Option<OsString>, excluded: &Option<OsString>| match (included, excluded) {
            (Some(key), _) => bytes("key", key).map(Bound::Included),
            (None, Some(key)) => bytes("key", key).map(Bound::Excluded),
            (None, None) => Ok(Bound::Unbounded),
        };
        Ok((bound(&self.from, &self.after)?, bound(&self.to, &self.before)?))
    }
}

/// Refuses an index whose keys have no order.
fn expect_ordered(index: &Index) -> Result<(), Failure> {
    if index.is_ordered() {
        return Ok(());
    }
    let ordered: Vec<_> = KINDS.iter().filter(|kind| kind.ordered).map(|kind| kind.name).collect();
    let choose = match ordered.as_slice() {
        [] => "this release has no ordered kind".to_owned(),
        kinds => format!("the ordered kinds are {}", kinds.join(", ")),
    };
    Err(Failure::usage(format!(
        "index {:?} is of kind {}, whose keys have no order: it cannot be scanned ({choose}). `farindex dump` writes all \
         entries",
        index.name(),
        index.kind()
    )))
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    let bounds = args.bounds()?;
    let index = args.name.open()?;
    expect_ordered(&index)?;
    let stop = signals::stop_flag()?;
    let failed = |error: std::io::Error| Failure::file("standard output", "cannot be written", &error);
    let mut out = match args.json.to_stdout() {
        true => None,
        false => Some(BufWriter::with_capacity(1 << 16, stdout()?)),
    };
    let (mut line, mut written, mut entries) = (Vec::new(), 0u64, Vec::new());
    let limit = args.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    for entry in index.range(bounds).take(limit) {
        let farindex::Entry { key, value } = entry?;
        if args.json.wanted() {
            entries.push(Value::Object(object(args.hex, &key, &value)));
        }
        if let Some(out) = &mut out {
            encode(args.format, args.hex, &key, &value, &mut line);
            out.write_all(&line).map_err(failed)?;
        }
        written += 1;
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    if let Some(out) = &mut out {
        out.flush().map_err(failed)?;
    }
    args.json.write(&serde_json::json!({ "index": args.name.name, "entries": entries }))?;
    if stop.load(Ordering::Relaxed) {
        note(format!("interrupted after {written} entries"));
        return Ok(exit::INTERRUPTED);
    }
    Ok(exit::OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_covers_exactly_the_keys_that_begin_with_it() {
        let end = |prefix: &[u8]| of_prefix(prefix.to_vec()).1;
        assert_eq!(end(b"ab"), Bound::Excluded(b"ac".to_vec()));
        assert_eq!(end(b"a\xff\xff"), Bound::Excluded(b"b".to_vec()));
        assert_eq!(end(b"\xff"), Bound::Unbounded);
        assert_eq!(of_prefix(Vec::new()), (Bound::Included(Vec::new()), Bound::Unbounded));
    }
}
