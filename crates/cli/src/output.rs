//! What goes to standard output, and what goes to files for machines.

use crate::exit::{self, Failure};
use serde::Serialize;
use std::fs::File;
use std::io::{self, Stdout, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where a machine wants its JSON: `-` is standard output.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Json {
    /// Write the result as one JSON object: to standard output (-), in place of the text for people, or to a file, in
    /// addition to that text
    #[arg(long, value_name = "-|FILE", global = true)]
    json: Option<PathBuf>,
}

impl Json {
    pub(crate) fn wanted(&self) -> bool {
        self.json.is_some()
    }
    pub(crate) fn to_stdout(&self) -> bool {
        self.json.as_ref().is_some_and(|path| path.as_os_str() == "-")
    }

    /// Hands a result to the machine that wants it, if one does.
    pub(crate) fn write(&self, result: &impl Serialize) -> Result<(), Failure> {
        let Some(path) = &self.json else { return Ok(()) };
        let json = serde_json::to_string_pretty(result)
            .map_err(|error| Failure::new(exit::BUG, format!("a result that is no JSON: {error}")))?;
        if self.to_stdout() {
            return print(&(json + "\n"));
        }
        let written = File::create(path).and_then(|mut file| writeln!(file, "{json}"));
        written.map_err(|error| Failure::file(path.display(), "cannot be written", &error))
    }

    /// Writes a result as JSON where that was asked for, and as text to standard output otherwise.
    pub(crate) fn give(&self, result: &impl Serialize, text: impl FnOnce() -> String) -> Result<(), Failure> {
        self.write(result)?;
        if self.to_stdout() { Ok(()) } else { print(&text()) }
    }
}

/// Was the program started without standard output (`>&-`)?
static CLOSED: AtomicBool = AtomicBool::new(false);

// Before `main`, Rust's runtime opens /dev/null in place of a standard output that is closed, and results would vanish
// without an error. This runs before the runtime does, and makes a single system call.
ctor::declarative::ctor! {
    #[ctor]
    fn look_at_stdout() {
        let closed = rustix::io::fcntl_getfd(rustix::stdio::stdout()).is_err();
        CLOSED.store(closed, Ordering::Relaxed);
    }
}

/// Standard output, if there is one.
pub(crate) fn stdout() -> Result<Stdout, Failure> {
    if CLOSED.load(Ordering::Relaxed) {
        return Err(Failure::new(exit::FILE, "standard output: cannot be written: it is closed"));
    }
    Ok(io::stdout())
}

/// Writes to standard output. A reader that has gone is no error worth a word.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    print_bytes(text.as_bytes())
}

/// The same for bytes. Nothing to write needs no standard output.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    if bytes.is_empty() {
        return Ok(());
    }
    let mut out = stdout()?.lock();
    let written = out.write_all(bytes).and_then(|()| out.flush());
    written.map_err(|error| Failure::file("standard output", "cannot be written", &error))
}

/// A line for people, on standard error; it is no failure if it cannot be written.
pub(crate) fn note(text: impl std::fmt::Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Bytes as people read them, with the number itself where it was rounded.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.iter().find(|(_, unit)| count >= *unit) {
        Some((name, unit)) if count.is_multiple_of(*unit) => format!("{} {name}", count / unit),
        Some((name, unit)) => format!("{:.1} {name}", count as f64 / *unit as f64),
        None => format!("{count} B"),
    }
}

/// A share in percent.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    format!("{:.1} %", part as f64 / whole as f64 * 100.0)
}
