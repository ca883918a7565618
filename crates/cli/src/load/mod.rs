//! `farindex load`.
//!
//! Invariants: lines of the same key take effect in the order of the file, so the last upsert and the first insert wins;
//! nothing is in flight while the program waits for input, so a slow pipe holds up nobody's memory; every line before the
//! one that an early end names has been dealt with.

mod records;

use crate::exit::{self, Failure};
use crate::index::{Named, New};
use crate::output::{Json, note};
use crate::{progress, signals};
use clap::ValueEnum;
use farindex::{AnyIndex, Error, HashIndex, Index, IndexError, Insert, Upsert};
use records::{Column, Record, Records, Reject, Rules};
use serde_json::json;
use std::cell::RefCell;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

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
    /// lines: the whole line is a key with an empty value. tsv: columns separated by tabs, nothing quoted. csv: RFC 4180.
    /// jsonl: as `dump` writes it
    #[arg(long, value_enum, default_value = "tsv")]
    format: Format,
    /// Column of the key: its number, from 1, or with --header its name
    #[arg(long, value_name = "COLUMN", default_value = "1")]
    key_column: Column,
    /// Column of the value [default: the rest of the line behind the key]
    #[arg(long, value_name = "COLUMN")]
    value_column: Option<Column>,
    /// The first line has the names of the columns
    #[arg(long)]
    header: bool,
    /// Undo the escapes of `dump`: \\ \t \n \r \xHH (tsv and lines)
    #[arg(long)]
    escaped: bool,
    /// Lines end in CR LF: the CR belongs to the end (tsv and lines; csv takes both)
    #[arg(long)]
    crlf: bool,
    /// What to do with a key that is there already: upsert sets its value, insert rejects the line
    #[arg(long, value_enum, default_value = "upsert")]
    mode: Mode,
    /// Make the index if there is none of this name
    #[arg(long)]
    create: bool,
    #[command(flatten)]
    new: New,
    /// Write rejects to this file, not to standard error: line number, tab, reason
    #[arg(long, value_name = "FILE")]
    rejects: Option<PathBuf>,
    /// Operations in flight at once
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    in_flight: u16,
    #[command(flatten)]
    json: Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Lines,
    Tsv,
    Csv,
    Jsonl,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    Upsert,
    Insert,
}

/// What has come of the lines so far.
#[derive(Debug, Default)]
struct Tally {
    inserted: u64,
    updated: u64,
    /// Upserts of an index that does not look whether the key was there.
    written: u64,
    rejects: Vec<Reject>,
    /// The first line that was not dealt with, and why.
    ended: Option<(u64, Option<Error>)>,
}

impl Tally {
    fn end(&mut self, line: u64, error: Option<Error>) {
        match &mut self.ended {
            Some((first, why)) => {
                *first = line.min(*first);
                // An error says more than that somebody else has stopped.
                *why = why.take().or(error);
            }
            ended => *ended = Some((line, error)),
        }
    }
}

/// Rejects are spelled out on standard error up to this many.
const SPELLED_OUT: u64 = 20;
/// Records read before they are loaded, and bytes of them.
const BATCH: usize = 2048;
const BATCH_BYTES: usize = 8 << 20;

struct Rejects {
    file: Option<(PathBuf, BufWriter<File>)>,
    count: u64,
}

impl Rejects {
    fn report(&mut self, Reject { line, why }: &Reject) -> Result<(), Failure> {
        self.count += 1;
        match &mut self.file {
            Some((path, file)) => {
                let written = writeln!(file, "{line}\t{why}");
                written.map_err(|error| Failure::file(path.display(), "cannot be written", &error))?;
            }
            None if self.count <= SPELLED_OUT => note(format!("line {line}: {why}")),
            None if self.count == SPELLED_OUT + 1 => {
                note("further rejects are only counted; --rejects FILE has them all");
            }
            None => {}
        }
        Ok(())
    }
    fn flush(&mut self) -> Result<(), Failure> {
        let Some((path, file)) = &mut self.file else { return Ok(()) };
        file.flush().map_err(|error| Failure::file(path.display(), "cannot be written", &error))
    }
}

/// Loads the records of one lane one after the other.
async fn lane(index: Rc<AnyIndex>, mode: Mode, records: Vec<Record>, tally: Rc<RefCell<Tally>>, stop: Arc<AtomicBool>) {
    for Record { line, key, value } in records {
        // Nothing is borrowed while an operation waits.
        let over = stop.load(Ordering::Relaxed) || tally.borrow().ended.is_some();
        if over {
            return tally.borrow_mut().end(line, None);
        }
        let done = match mode {
            Mode::Upsert => index.upsert(&key, &value).await,
            Mode::Insert => match index.insert(&key, &value).await {
                Ok(Insert::Inserted) => Ok(Upsert::Inserted),
                Ok(Insert::Exists) => {
                    let why = "the key is there already".to_owned();
                    tally.borrow_mut().rejects.push(Reject { line, why });
                    continue;
                }
                Err(error) => Err(error),
            },
        };
        let mut tally = tally.borrow_mut();
        match done {
            Ok(Upsert::Inserted) => tally.inserted += 1,
            Ok(Upsert::Updated) => tally.updated += 1,
            Ok(Upsert::Written) => tally.written += 1,
            Err(error @ (IndexError::KeyTooLong { .. } | IndexError::ValueTooLong { .. })) => {
                tally.rejects.push(Reject { line, why: error.to_string() });
            }
            Err(error) => return tally.end(line, Some(error.into())),
        }
    }
}

struct Loader {
    index: Index,
    mode: Mode,
    lanes: usize,
    /// Random, so that no file can be written whose keys all go to one lane.
    hasher: RandomState,
    stop: Arc<AtomicBool>,
    tally: Rc<RefCell<Tally>>,
}

impl Loader {
    /// Loads a batch; when this returns, nothing of it is in flight.
    fn load(&self, batch: Vec<Record>) {
        let mut lanes: Vec<Vec<Record>> = (0..self.lanes).map(|_| Vec::new()).collect();
        for record in batch {
            // All lines of a key go to the same lane.
            let lane = (self.hasher.hash_one(&record.key) % self.lanes as u64) as usize;
            lanes[lane].push(record);
        }
        let session = self.index.session();
        let index = self.index.concurrent();
        let start = |records| {
            let (tally, stop) = (Rc::clone(&self.tally), Arc::clone(&self.stop));
            session.spawn(lane(Rc::clone(&index), self.mode, records, tally, stop))
        };
        let tasks: Vec<_> = lanes.into_iter().filter(|lane| !lane.is_empty()).map(start).collect();
        session.block_on(async {
            for task in tasks {
                task.await;
            }
        });
    }
}

fn open_index(args: &Args) -> Result<Index, Failure> {
    let session = args.name.place.session()?;
    let name = &args.name.name;
    if args.create && !session.indexes()?.iter().any(|info| info.name == *name && !info.dropping) {
        match session.create_index(name, &args.new.config()?) {
            // Somebody else was quicker: so it is there.
            Err(Error::Pool(farindex::PoolError::IndexExists(_))) => {}
            made => return Ok(made?),
        }
    }
    Ok(session.open_index(name)?)
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    let name = args.file.display().to_string();
    let unreadable = |error: &io::Error| Failure::file(&name, "cannot be read", error);
    let (input, total): (Box<dyn BufRead>, Option<u64>) = if args.file.as_os_str() == "-" {
        (Box::new(BufReader::with_capacity(1 << 16, io::stdin())), None)
    } else {
        let file = File::open(&args.file).map_err(|error| unreadable(&error))?;
        let meta = file.metadata().map_err(|error| unreadable(&error))?;
        if meta.is_dir() {
            return Err(Failure::new(exit::FILE, format!("{name}: it is a directory; name a file")));
        }
        (Box::new(BufReader::with_capacity(1 << 16, file)), meta.is_file().then_some(meta.len()))
    };
    let bar = progress::bar(None, "{msg} [{bar:30}] {bytes} of {total_bytes}, {elapsed}, {eta} left");
    let input: Box<dyn BufRead> = match &bar {
        Some(bar) => {
            bar.set_length(total.unwrap_or_default());
            Box::new(bar.wrap_read(input))
        }
        None => input,
    };
    let rules = Rules {
        format: args.format,
        key: args.key_column.clone(),
        value: args.value_column.clone(),
        header: args.header,
        escaped: args.escaped,
        crlf: args.crlf,
    };
    let mut records = match Records::new(input, &rules).map_err(|error| unreadable(&error))? {
        Ok(records) => records,
        Err(why) => return Err(Failure::usage(format!("{name}: {why}"))),
    };
    let file = match &args.rejects {
        Some(path) => {
            let made =
                File::create(path).map_err(|error| Failure::file(path.display(), "cannot be written", &error))?;
            Some((path.clone(), BufWriter::new(made)))
        }
        None => None,
    };
    let mut rejects = Rejects { file, count: 0 };
    let index = open_index(args)?;
    let stop = signals::stop_flag()?;
    let tally = Rc::new(RefCell::new(Tally::default()));
    let loader = Loader {
        index,
        mode: args.mode,
        lanes: usize::from(args.in_flight),
        hasher: RandomState::new(),
        stop: Arc::clone(&stop),
        tally: Rc::clone(&tally),
    };
    let began = Instant::now();
    let (mut lines, mut failed, mut at_end) = (0, None, false);
    while !at_end && !stop.load(Ordering::Relaxed) && tally.borrow().ended.is_none() {
        let (mut batch, mut bytes) = (Vec::with_capacity(BATCH), 0);
        while batch.len() < BATCH && bytes < BATCH_BYTES {
            match records.next() {
                Ok(Some(Ok(record))) => {
                    lines = record.line;
                    bytes += record.key.len() + record.value.len();
                    batch.push(record);
                }
                Ok(Some(Err(reject))) => {
                    lines = reject.line;
                    tally.borrow_mut().rejects.push(reject);
                }
                Ok(None) => {
                    at_end = true;
                    break;
                }
                Err(error) => {
                    failed = Some(unreadable(&error).about(format!("behind line {lines}")));
                    at_end = true;
                    break;
                }
            }
        }
        loader.load(batch);
        let mut found = std::mem::take(&mut tally.borrow_mut().rejects);
        found.sort_by_key(|reject| reject.line);
        for reject in &found {
            rejects.report(reject)?;
        }
        if let Some(bar) = &bar {
            bar.set_message(format!("line {lines}"));
        }
    }
    if let Some(bar) = &bar {
        bar.finish_and_clear();
    }
    rejects.flush()?;
    let seconds = began.elapsed().as_secs_f64();
    let Tally { inserted, updated, written, ended, .. } = tally.take();
    let interrupted = stop.load(Ordering::Relaxed) && !(at_end && ended.is_none());
    // Lines below this number have been dealt with.
    let next_line = ended.as_ref().map_or(lines + 1, |(line, _)| *line);
    let result = json!({
        "file": name,
        "index": args.name.name,
        "lines": lines,
        "inserted": inserted,
        "updated": updated,
        "written": written,
        "rejected": rejects.count,
        "next_line": next_line,
        "complete": at_end && ended.is_none() && failed.is_none(),
        "interrupted": interrupted,
        "seconds": seconds,
    });
    args.json.give(&result, || {
        let rate = (inserted + updated + written) as f64 / seconds.max(1e-9);
        let rejected = rejects.count;
        let blind = if written > 0 { format!("{written} written, ") } else { String::new() };
        format!(
            "{inserted} inserted, {updated} updated, {blind}{rejected} rejected in {seconds:.2} s ({rate:.0} a second)\n"
        )
    })?;
    if let Some((line, Some(error))) = ended {
        let failure = Failure::from(error);
        return Err(failure.about(format!("{name}, line {line}: all lines before it are dealt with, it is not")));
    }
    if let Some(failure) = failed {
        return Err(failure);
    }
    if interrupted {
        note(format!("interrupted: all lines before line {next_line} are dealt with"));
        return Ok(exit::INTERRUPTED);
    }
    Ok(if rejects.count > 0 { exit::REFUSED } else { exit::OK })
}
