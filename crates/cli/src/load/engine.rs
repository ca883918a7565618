//! From the records of a file to operations of an index.
//!
//! Invariants: records of the same key are worked on one after the other, in the order of the file; nothing is in
//! flight while the program waits for input, so a slow pipe does not delay the reuse of memory; every line before the
//! one that an early end names has been processed.

use super::records::{Column, Record, Records, Reject, Rules};
use crate::exit::{self, Failure};
use crate::output::note;
use crate::progress;
use clap::ValueEnum;
use farindex::{AnyIndex, Error, Index, IndexError, Insert, PointIndex, Remove, Upsert};
use indicatif::ProgressBar;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// How records are read, and how many are worked on at once.
#[derive(Debug, clap::Args)]
pub(crate) struct Reading {
    /// lines: the whole line is a key with an empty value. tsv: columns separated by tabs, nothing quoted. csv: RFC
    /// 4180. jsonl: as `dump` writes it
    #[arg(long, value_enum, default_value = "tsv")]
    format: Format,
    /// Column of the key: its number, from 1, or with --header its name
    #[arg(long, value_name = "COLUMN", default_value = "1")]
    key_column: Column,
    /// The first line has the names of the columns
    #[arg(long)]
    header: bool,
    /// Undo the escapes of `dump`: \\ \t \n \r \xHH (tsv and lines)
    #[arg(long)]
    escaped: bool,
    /// Lines end in CR LF: the CR belongs to the end (tsv and lines; csv takes both)
    #[arg(long)]
    crlf: bool,
    /// Write rejects to this file, not to standard error: line number, tab, reason
    #[arg(long, value_name = "FILE")]
    rejects: Option<PathBuf>,
    /// Operations in flight at once
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    in_flight: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Lines,
    Tsv,
    Csv,
    Jsonl,
}

impl Reading {
    /// Is everything as it is if no flag is given?
    pub(crate) fn is_usual(&self) -> bool {
        let Reading { format, key_column, header, escaped, crlf, rejects, in_flight } = self;
        let flags = *header || *escaped || *crlf || rejects.is_some();
        !flags && *format == Format::Tsv && *key_column == Column::Number(0) && *in_flight == IN_FLIGHT
    }
}

/// What is done with each record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Upsert,
    /// A key that is there already is a reject.
    Insert,
    Remove,
    Get,
}

/// Takes an entry that was found.
pub(crate) type Each<'a> = dyn FnMut(&[u8], &[u8]) -> Result<(), Failure> + 'a;

/// How many records came to which end.
#[derive(Debug, Default, Clone)]
pub(crate) struct Counts {
    pub(crate) inserted: u64,
    pub(crate) updated: u64,
    /// Upserts of an index that does not look whether the key was there.
    pub(crate) written: u64,
    pub(crate) removed: u64,
    pub(crate) found: u64,
    /// Keys that were not there to be removed or found.
    pub(crate) absent: u64,
}

/// What has come of the lines so far.
#[derive(Debug, Default)]
struct Tally {
    counts: Counts,
    rejects: Vec<Reject>,
    /// Entries that were found, with their lines.
    found: Vec<Record>,
    /// The first line that was not processed, and why.
    ended: Option<(u64, Option<Error>)>,
}

impl Tally {
    fn end(&mut self, line: u64, error: Option<Error>) {
        match &mut self.ended {
            Some((first, why)) => {
                *first = line.min(*first);
                // An error says more than that another worker has stopped.
                *why = why.take().or(error);
            }
            ended => *ended = Some((line, error)),
        }
    }
}

/// Rejects are spelled out on standard error up to this many.
const SPELLED_OUT: u64 = 20;
/// Operations in flight at once, unless a flag says otherwise.
const IN_FLIGHT: u16 = 64;
/// Records read before they are worked on, and bytes of them.
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

/// An input that ends its waiting once a signal has come.
struct Interruptible {
    file: File,
    stop: Arc<AtomicBool>,
}

impl Read for Interruptible {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        while !self.stop.load(Ordering::Relaxed) {
            match poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&PAUSE)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                // What cannot be polled can be read, or says why not.
                _ => return self.file.read(buf),
            }
        }
        Err(io::Error::other("interrupted"))
    }
}

/// Works on the records of one lane one after the other.
async fn lane(
    index: Rc<AnyIndex>,
    action: Action,
    records: Vec<Record>,
    tally: Rc<RefCell<Tally>>,
    stop: Arc<AtomicBool>,
) {
    for Record { line, key, value } in records {
        // Nothing is borrowed while an operation waits.
        let over = stop.load(Ordering::Relaxed) || tally.borrow().ended.is_some();
        if over {
            return tally.borrow_mut().end(line, None);
        }
        let reject = |why: String| tally.borrow_mut().rejects.push(Reject { line, why });
        let count = |add: fn(&mut Counts) -> &mut u64| *add(&mut tally.borrow_mut().counts) += 1;
        let done = match action {
            Action::Upsert => index.upsert(&key, &value).await.map(|done| match done {
                Upsert::Inserted => count(|counts| &mut counts.inserted),
                Upsert::Updated => count(|counts| &mut counts.updated),
                Upsert::Written => count(|counts| &mut counts.written),
            }),
            Action::Insert => index.insert(&key, &value).await.map(|done| match done {
                Insert::Inserted => count(|counts| &mut counts.inserted),
                Insert::Exists => reject("the key is there already".to_owned()),
            }),
            Action::Remove => index.remove(&key).await.map(|done| match done {
                Remove::Removed => count(|counts| &mut counts.removed),
                Remove::Absent => count(|counts| &mut counts.absent),
            }),
            Action::Get => index.get(&key).await.map(|value| match value {
                Some(value) => {
                    count(|counts| &mut counts.found);
                    tally.borrow_mut().found.push(Record { line, key, value: value.to_vec() });
                }
                None => count(|counts| &mut counts.absent),
            }),
        };
        match done {
            Ok(()) => {}
            Err(error @ (IndexError::KeyTooLong { .. } | IndexError::ValueTooLong { .. })) => reject(error.to_string()),
            Err(error) => return tally.borrow_mut().end(line, Some(error.into())),
        }
    }
}

/// A file of records, open.
pub(crate) struct Source {
    name: String,
    records: Records,
    rejects: Rejects,
    lanes: usize,
    bar: Option<ProgressBar>,
    stop: Arc<AtomicBool>,
}

/// How the work on a file went.
pub(crate) struct Course {
    name: String,
    pub(crate) counts: Counts,
    pub(crate) rejected: u64,
    pub(crate) seconds: f64,
    lines: u64,
    /// Lines below this number have been processed.
    next_line: u64,
    ended: Option<(u64, Option<Error>)>,
    failed: Option<Failure>,
    complete: bool,
    interrupted: bool,
}

fn unreadable(name: &str, error: &io::Error) -> Failure {
    Failure::file(name, "cannot be read", error)
}

impl Source {
    /// Opens a file, or standard input for `-`, and reads its header, if it has one.
    pub(crate) fn open(
        path: &Path,
        reading: &Reading,
        value: Option<&Column>,
        stop: &Arc<AtomicBool>,
    ) -> Result<Source, Failure> {
        let name = path.display().to_string();
        let bad = |error: io::Error| unreadable(&name, &error);
        let (file, total) = if path.as_os_str() == "-" {
            (File::from(io::stdin().as_fd().try_clone_to_owned().map_err(bad)?), None)
        } else {
            let file = File::open(path).map_err(bad)?;
            let meta = file.metadata().map_err(bad)?;
            if meta.is_dir() {
                return Err(Failure::new(exit::FILE, format!("{name}: it is a directory; name a file")));
            }
            (file, meta.is_file().then_some(meta.len()))
        };
        let input = BufReader::with_capacity(1 << 16, Interruptible { file, stop: Arc::clone(stop) });
        let bar = progress::bar(None, "{msg} [{bar:30}] {bytes} of {total_bytes}, {elapsed}, {eta} left");
        let input: Box<dyn BufRead> = match &bar {
            Some(bar) => {
                bar.set_length(total.unwrap_or_default());
                Box::new(bar.wrap_read(input))
            }
            None => Box::new(input),
        };
        let rules = Rules {
            format: reading.format,
            key: reading.key_column.clone(),
            value: value.cloned(),
            header: reading.header,
            escaped: reading.escaped,
            crlf: reading.crlf,
        };
        let records = Records::new(input, &rules).map_err(|error| match stop.load(Ordering::Relaxed) {
            true => Failure::new(exit::INTERRUPTED, ""),
            false => bad(error),
        })?;
        let records = records.map_err(|why| Failure::usage(format!("{name}: {why}")))?;
        let made = |path: &PathBuf| {
            let made =
                File::create(path).map_err(|error| Failure::file(path.display(), "cannot be written", &error))?;
            Ok::<_, Failure>((path.clone(), BufWriter::new(made)))
        };
        let rejects = Rejects { file: reading.rejects.as_ref().map(made).transpose()?, count: 0 };
        let lanes = usize::from(reading.in_flight);
        Ok(Source { name, records, rejects, lanes, bar, stop: Arc::clone(stop) })
    }

    /// The next records, as many as are worked on at once. `None` for an error means that the end has been reached.
    fn batch(&mut self, lines: &mut u64, tally: &RefCell<Tally>) -> (Vec<Record>, Option<Option<io::Error>>) {
        let (mut batch, mut bytes) = (Vec::with_capacity(BATCH), 0);
        while batch.len() < BATCH && bytes < BATCH_BYTES {
            match self.records.next() {
                Ok(Some(Ok(record))) => {
                    *lines = record.line;
                    bytes += record.key.len() + record.value.len();
                    batch.push(record);
                }
                Ok(Some(Err(reject))) => {
                    *lines = reject.line;
                    tally.borrow_mut().rejects.push(reject);
                }
                Ok(None) => return (batch, Some(None)),
                Err(error) => return (batch, Some(Some(error))),
            }
        }
        (batch, None)
    }

    /// Does the same with all records. What is found is handed to `each`, in the order of the file.
    pub(crate) fn work(mut self, index: &Index, action: Action, each: &mut Each<'_>) -> Result<Course, Failure> {
        let stop = Arc::clone(&self.stop);
        let tally = Rc::new(RefCell::new(Tally::default()));
        let crew = Crew { index, action, lanes: self.lanes, hasher: Default::default(), stop: &stop, tally: &tally };
        let began = Instant::now();
        let (mut lines, mut failed, mut at_end) = (0, None, false);
        while !at_end && !stop.load(Ordering::Relaxed) && tally.borrow().ended.is_none() {
            let (batch, end) = self.batch(&mut lines, &tally);
            match end {
                None => {}
                Some(None) => at_end = true,
                // The input has stopped waiting: that is no failure, and not the end.
                Some(Some(_)) if stop.load(Ordering::Relaxed) => {}
                Some(Some(error)) => {
                    failed = Some(unreadable(&self.name, &error).about(format!("behind line {lines}")));
                    at_end = true;
                }
            }
            crew.work(batch);
            let mut found = std::mem::take(&mut tally.borrow_mut().rejects);
            found.sort_by_key(|reject| reject.line);
            for reject in &found {
                self.rejects.report(reject)?;
            }
            let mut found = std::mem::take(&mut tally.borrow_mut().found);
            found.sort_by_key(|record| record.line);
            for Record { key, value, .. } in &found {
                each(key, value)?;
            }
            if let Some(bar) = &self.bar {
                bar.set_message(format!("line {lines}"));
            }
        }
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        self.rejects.flush()?;
        let Tally { counts, ended, .. } = tally.take();
        Ok(Course {
            name: self.name,
            counts,
            rejected: self.rejects.count,
            seconds: began.elapsed().as_secs_f64(),
            lines,
            next_line: ended.as_ref().map_or(lines + 1, |(line, _)| *line),
            complete: at_end && ended.is_none() && failed.is_none(),
            interrupted: stop.load(Ordering::Relaxed) && !(at_end && ended.is_none()),
            ended,
            failed,
        })
    }
}

/// Runs the records of a batch on coroutines ("lanes").
struct Crew<'a> {
    index: &'a Index,
    action: Action,
    lanes: usize,
    /// Random, so that no file can be written whose keys all go to one lane.
    hasher: RandomState,
    stop: &'a Arc<AtomicBool>,
    tally: &'a Rc<RefCell<Tally>>,
}

impl Crew<'_> {
    /// Works on a batch; when this returns, nothing of it is in flight.
    fn work(&self, batch: Vec<Record>) {
        let mut lanes: Vec<Vec<Record>> = (0..self.lanes).map(|_| Vec::new()).collect();
        for record in batch {
            // All lines of a key go to the same lane.
            let lane = (self.hasher.hash_one(&record.key) % self.lanes as u64) as usize;
            lanes[lane].push(record);
        }
        let session = self.index.session();
        let index = self.index.async_handle();
        let start = |records| {
            let (tally, stop) = (Rc::clone(self.tally), Arc::clone(self.stop));
            session.spawn(lane(Rc::clone(&index), self.action, records, tally, stop))
        };
        let tasks: Vec<_> = lanes.into_iter().filter(|lane| !lane.is_empty()).map(start).collect();
        session.block_on(async {
            for task in tasks {
                task.await;
            }
        });
    }
}

impl Course {
    /// What machines get, but for what was done.
    pub(crate) fn json(&self, index: &str) -> Value {
        json!({
            "file": self.name,
            "index": index,
            "lines": self.lines,
            "rejected": self.rejected,
            "next_line": self.next_line,
            "complete": self.complete,
            "interrupted": self.interrupted,
            "seconds": self.seconds,
        })
    }

    /// The exit code, if nothing has failed.
    pub(crate) fn finish(self) -> Result<u8, Failure> {
        if let Some((line, Some(error))) = self.ended {
            let name = &self.name;
            let failure = Failure::from(error);
            return Err(failure.about(format!("{name}, line {line}: not processed, unlike all lines before it")));
        }
        if let Some(failure) = self.failed {
            return Err(failure);
        }
        if self.interrupted {
            note(format!(
                "interrupted: all lines before line {} are processed; load the file from there on",
                self.next_line
            ));
            return Ok(exit::INTERRUPTED);
        }
        Ok(if self.rejected > 0 { exit::REFUSED } else { exit::OK })
    }
}
