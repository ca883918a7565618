//! `farindex dump`.

use crate::entry;
use crate::escape::escape;
use crate::exit::{self, Failure};
use crate::index::Named;
use crate::output::{note, stdout};
use crate::signals;
use clap::ValueEnum;
use farindex::Damage;
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

/// Write every entry of an index, so that `load --escaped` reads it back
///
/// Entries of an ordered index come in ascending order of their keys, others in no particular order. tsv: key, tab,
/// value. lines: keys alone. In both, a backslash is written \\, tab, line feed and carriage return \t \n \r, other
/// control characters and bytes that are not UTF-8 \xHH. jsonl: one JSON object a line, {"key": ..., "value": ...};
/// what is not UTF-8 stands in hexadecimal under key_hex, value_hex.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    name: Named,
    /// How to write entries
    #[arg(long, value_enum, default_value = "tsv")]
    format: Format,
    /// Write to this file [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Leave out damaged places, report each on standard error, and continue; exit code 10 if there are any
    #[arg(long)]
    skip_damaged: bool,
}

/// Damaged places that are described one by one.
const IN_WORDS: u64 = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Tsv,
    Lines,
    Jsonl,
}

pub(crate) fn put(object: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => object.insert(name.to_owned(), text.into()),
        Err(_) => object.insert(format!("{name}_hex"), entry::hex(bytes).into()),
    };
}

/// An entry as a JSON object.
pub(crate) fn object(hex: bool, key: &[u8], value: &[u8]) -> Map<String, Value> {
    let mut object = Map::new();
    for (name, bytes) in [("key", key), ("value", value)] {
        match hex {
            true => _ = object.insert(format!("{name}_hex"), entry::hex(bytes).into()),
            false => put(&mut object, name, bytes),
        }
    }
    object
}

/// Writes an entry into `line`, with its end of line.
pub(crate) fn encode(format: Format, hex: bool, key: &[u8], value: &[u8], line: &mut Vec<u8>) {
    line.clear();
    let escape = |bytes: &[u8], line: &mut Vec<u8>| match hex {
        true => line.extend_from_slice(entry::hex(bytes).as_bytes()),
        false => escape(bytes, line),
    };
    match format {
        Format::Lines => escape(key, line),
        Format::Tsv => {
            escape(key, line);
            line.push(b'\t');
            escape(value, line);
        }
        Format::Jsonl => {
            line.extend_from_slice(Value::Object(object(hex, key, value)).to_string().as_bytes());
        }
    }
    line.push(b'\n');
}

/// Does this path name one of the pool's own files? Opening it for writing would empty it.
fn is_of_pool(args: &Args, path: &std::path::Path) -> Result<bool, Failure> {
    let farindex::PoolUrl::Shm { paths } = args.name.place.url()? else { return Ok(false) };
    let real = |path: &std::path::Path| std::fs::canonicalize(path).ok();
    Ok(real(path).is_some_and(|target| paths.iter().any(|path| real(path).as_ref() == Some(&target))))
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    let index = args.name.open()?;
    let stop = signals::stop_flag()?;
    let target = args.output.as_deref().filter(|path| path.as_os_str() != "-");
    let (name, out): (String, Box<dyn Write>) = match target {
        Some(path) if is_of_pool(args, path)? => {
            return Err(Failure::usage(format!("{}: this is the pool itself; choose another file", path.display())));
        }
        Some(path) => {
            let name = path.display().to_string();
            let file = File::create(path).map_err(|error| Failure::file(&name, "cannot be written", &error))?;
            (name, Box::new(file))
        }
        None => ("standard output".to_owned(), Box::new(stdout()?)),
    };
    let mut out = BufWriter::with_capacity(1 << 16, out);
    let (mut line, mut failed, mut without_value) = (Vec::new(), None, 0u64);
    let each = |key: &[u8], value: &[u8]| {
        without_value += u64::from(args.format == Format::Lines && !value.is_empty());
        encode(args.format, false, key, value, &mut line);
        failed = out.write_all(&line).err();
        if failed.is_some() || stop.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    let mut places = 0;
    let report = |damage: Damage| {
        places += 1;
        if places <= IN_WORDS {
            note(format!("left out: {} (at {})", damage.what, damage.at));
        }
    };
    let written = match args.skip_damaged {
        true => index.for_each_skipping_damage(each, report)?,
        false => index.for_each(each)?,
    };
    if let Some(error) = failed.or_else(|| out.flush().err()) {
        return Err(Failure::file(name, "cannot be written", &error));
    }
    if without_value > 0 {
        note(format!("{without_value} values that are not empty were left out: lines have keys alone"));
    }
    if stop.load(Ordering::Relaxed) {
        note(format!("interrupted after {written} entries"));
        return Ok(exit::INTERRUPTED);
    }
    if places > 0 {
        if places > IN_WORDS {
            note(format!("and {} more", places - IN_WORDS));
        }
        note(format!("{places} damaged place{} left out", if places == 1 { "" } else { "s" }));
        return Ok(exit::DAMAGED);
    }
    Ok(exit::OK)
}
