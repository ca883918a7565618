//! `farindex get|put|del|exists`.

use crate::dump;
use crate::escape::escape;
use crate::exit::{self, Failure};
use crate::index::Named;
use crate::load::engine::{Action, Counts, Course, Each, Reading, Source};
use crate::output::{Json, note, print, print_bytes};
use crate::signals;
use clap::ValueEnum;
use farindex::{Insert, Remove, Update, Upsert};
use serde_json::{Map, Value};
use std::ffi::OsString;
use std::io::{self, IsTerminal, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Bytes of lines that are written at once.
const LINES: usize = 1 << 16;

/// A key of an index.
#[derive(Debug, clap::Args)]
pub(crate) struct Key {
    #[command(flatten)]
    name: Named,
    /// The key, byte for byte as the shell passes it
    #[arg(value_name = "KEY", allow_hyphen_values = true)]
    key: OsString,
    /// Key and value are written in hexadecimal, such as 00ff
    #[arg(long)]
    hex: bool,
    #[command(flatten)]
    json: Json,
}

/// One key of an index, or those of a file.
#[derive(Debug, clap::Args)]
struct OneOrMany {
    #[command(flatten)]
    name: Named,
    /// The key, byte for byte as the shell passes it
    #[arg(value_name = "KEY", allow_hyphen_values = true, required_unless_present = "keys_from")]
    key: Option<OsString>,
    /// Key and value are written in hexadecimal, such as 00ff
    #[arg(long, conflicts_with = "keys_from")]
    hex: bool,
    /// In place of KEY: the keys of this file, one in each line, many at a time; - is standard input. Exit code 1 if
    /// one of them is absent
    #[arg(long, value_name = "FILE", conflicts_with = "key")]
    keys_from: Option<PathBuf>,
    #[command(flatten)]
    json: Json,
    #[command(flatten, next_help_heading = "How --keys-from reads its file")]
    reading: Reading,
}

impl OneOrMany {
    /// The one key, as the commands for one key take it.
    fn one(&self) -> Result<Key, Failure> {
        if !self.reading.is_usual() {
            return Err(Failure::usage("the flags for reading a file go with --keys-from"));
        }
        let key = self.key.clone().ok_or_else(|| Failure::usage("it takes KEY, or --keys-from FILE"))?;
        Ok(Key { name: self.name.clone(), key, hex: self.hex, json: self.json.clone() })
    }

    /// Works on the keys of the file. What is found goes to `each`.
    fn many(&self, path: &Path, action: Action, each: &mut Each<'_>) -> Result<Course, Failure> {
        let stop = signals::stop_flag()?;
        let source = Source::open(path, &self.reading, None, &stop)?;
        source.work(&self.name.open()?, action, each)
    }

    /// The exit code: rejects are worse than absent keys.
    fn finish(course: Course) -> Result<u8, Failure> {
        let absent = course.counts.absent;
        Ok(match course.finish()? {
            exit::OK if absent > 0 => exit::NO,
            code => code,
        })
    }
}

/// Write the value of a key to standard output; exit code 1 if the key is absent
///
/// The value comes out byte for byte; on a terminal a newline follows it. Of many keys (--keys-from), each that is
/// there comes out as a line, key, tab, value, escaped as `dump` does, in the order of the file.
#[derive(Debug, clap::Args)]
pub(crate) struct Get {
    #[command(flatten)]
    keys: OneOrMany,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Set the value, whether the key is there or not
    Upsert,
    /// Only if the key is absent
    Insert,
    /// Only if the key is present
    Update,
}

/// Set the value of a key
#[derive(Debug, clap::Args)]
pub(crate) struct Put {
    #[command(flatten)]
    key: Key,
    /// The value; - reads it from standard input, to the end
    #[arg(value_name = "VALUE", allow_hyphen_values = true)]
    value: OsString,
    /// What to do with a key that is there, and with one that is not; exit code 1 if it was not done
    #[arg(long, value_enum, default_value = "upsert")]
    mode: Mode,
}

/// Remove a key, or many (--keys-from); exit code 1 if one was absent
#[derive(Debug, clap::Args)]
pub(crate) struct Del {
    #[command(flatten)]
    keys: OneOrMany,
}

/// Report by the exit code whether a key is present: 0 present, 1 absent
#[derive(Debug, clap::Args)]
pub(crate) struct Exists {
    #[command(flatten)]
    key: Key,
}

pub(crate) fn unhex(what: &str, text: &[u8]) -> Result<Vec<u8>, Failure> {
    let bad = || {
        let shown = String::from_utf8_lossy(text);
        Failure::usage(format!("the {what} {shown:?} is not hexadecimal: it takes pairs of the digits 0-9 and a-f"))
    };
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    let (pairs, rest) = text.as_chunks::<2>();
    let bytes = pairs.iter().map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?)).collect::<Option<Vec<u8>>>();
    bytes.filter(|_| rest.is_empty()).ok_or_else(bad)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Key {
    fn bytes(&self, what: &str, text: &[u8]) -> Result<Vec<u8>, Failure> {
        if self.hex { unhex(what, text) } else { Ok(text.to_vec()) }
    }
    fn key(&self) -> Result<Vec<u8>, Failure> {
        self.bytes("key", self.key.as_bytes())
    }
}

/// A result for machines: the key, what became of it, and perhaps its value.
fn object(key: &[u8], (what, yes): (&str, bool), value: Option<&[u8]>) -> Value {
    let mut object = Map::new();
    dump::put(&mut object, "key", key);
    object.insert(what.to_owned(), yes.into());
    if let Some(value) = value {
        dump::put(&mut object, "value", value);
    }
    Value::Object(object)
}

fn found(yes: bool) -> u8 {
    if yes { exit::OK } else { exit::NO }
}

fn report(key: &Key, bytes: &[u8], what: &str, yes: bool) -> Result<u8, Failure> {
    if key.json.wanted() {
        key.json.write(&object(bytes, (what, yes), None))?;
    }
    Ok(found(yes))
}

pub(crate) fn get(Get { keys }: &Get) -> Result<u8, Failure> {
    if let Some(path) = &keys.keys_from {
        return get_many(keys, path);
    }
    let key = &keys.one()?;
    let bytes = key.key()?;
    let value = key.name.open()?.get(&bytes)?;
    if key.json.wanted() {
        key.json.write(&object(&bytes, ("found", value.is_some()), value.as_deref()))?;
    }
    let Some(value) = value else { return Ok(exit::NO) };
    if key.json.to_stdout() {
        return Ok(exit::OK);
    }
    if key.hex {
        print(&(hex(&value) + "\n"))?;
        return Ok(exit::OK);
    }
    print_bytes(&value)?;
    if io::stdout().is_terminal() {
        print("\n")?;
    }
    Ok(exit::OK)
}

fn get_many(keys: &OneOrMany, path: &Path) -> Result<u8, Failure> {
    let to_stdout = keys.json.to_stdout();
    let (mut entries, mut lines) = (Vec::new(), Vec::new());
    let mut show = |key: &[u8], value: &[u8]| {
        if keys.json.wanted() {
            entries.push(object(key, ("found", true), Some(value)));
        }
        if !to_stdout {
            escape(key, &mut lines);
            lines.push(b'\t');
            escape(value, &mut lines);
            lines.push(b'\n');
        }
        if lines.len() < LINES {
            return Ok(());
        }
        let full = print_bytes(&lines);
        lines.clear();
        full
    };
    let course = keys.many(path, Action::Get, &mut show)?;
    print_bytes(&lines)?;
    let Counts { found, absent, .. } = course.counts;
    let mut result = course.json(&keys.name.name);
    result["found"] = found.into();
    result["absent"] = absent.into();
    result["entries"] = entries.into();
    keys.json.write(&result)?;
    note(format!("{found} found, {absent} absent, {} rejected in {:.2} s", course.rejected, course.seconds));
    OneOrMany::finish(course)
}

pub(crate) fn put(Put { key, value, mode }: &Put) -> Result<u8, Failure> {
    let value = if value.as_bytes() == b"-" {
        let mut bytes = Vec::new();
        // One byte more than any index takes is enough to be refused.
        let read = io::stdin().lock().take(64 << 20).read_to_end(&mut bytes);
        read.map_err(|error| Failure::file("standard input", "cannot be read", &error))?;
        if key.hex { unhex("value", bytes.trim_ascii())? } else { bytes }
    } else {
        key.bytes("value", value.as_bytes())?
    };
    let bytes = key.key()?;
    let index = key.name.open()?;
    let (outcome, done) = match mode {
        Mode::Upsert => match index.upsert(&bytes, value)? {
            Upsert::Inserted => ("inserted", true),
            Upsert::Updated => ("updated", true),
            Upsert::Written => ("written", true),
        },
        Mode::Insert => match index.insert(&bytes, value)? {
            Insert::Inserted => ("inserted", true),
            Insert::Exists => ("exists", false),
        },
        Mode::Update => match index.update(&bytes, value)? {
            Update::Updated => ("updated", true),
            Update::Absent => ("absent", false),
        },
    };
    if key.json.wanted() {
        let mut result = object(&bytes, ("done", done), None);
        if let Value::Object(result) = &mut result {
            result.insert("outcome".to_owned(), outcome.into());
        }
        key.json.write(&result)?;
    }
    Ok(found(done))
}

pub(crate) fn del(Del { keys }: &Del) -> Result<u8, Failure> {
    if let Some(path) = &keys.keys_from {
        return del_many(keys, path);
    }
    let key = &keys.one()?;
    let bytes = key.key()?;
    let removed = key.name.open()?.remove(&bytes)? == Remove::Removed;
    report(key, &bytes, "removed", removed)
}

fn del_many(keys: &OneOrMany, path: &Path) -> Result<u8, Failure> {
    let course = keys.many(path, Action::Remove, &mut |_, _| Ok(()))?;
    let Counts { removed, absent, .. } = course.counts;
    let mut result = course.json(&keys.name.name);
    result["removed"] = removed.into();
    result["absent"] = absent.into();
    keys.json.give(&result, || {
        let (rejected, seconds) = (course.rejected, course.seconds);
        let rate = (removed + absent) as f64 / seconds.max(1e-9);
        format!("{removed} removed, {absent} absent, {rejected} rejected in {seconds:.2} s ({rate:.0} a second)\n")
    })?;
    OneOrMany::finish(course)
}

pub(crate) fn exists(Exists { key }: &Exists) -> Result<u8, Failure> {
    let bytes = key.key()?;
    let present = key.name.open()?.get(&bytes)?.is_some();
    report(key, &bytes, "found", present)
}
