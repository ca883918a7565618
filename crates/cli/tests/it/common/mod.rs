//! What the tests of the program share: running it, and files that are removed.

#![allow(dead_code)]

pub(crate) mod gateways;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// The program.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_farindex");

/// A directory of its own, removed with everything in it.
pub(crate) struct Dir(PathBuf);

impl Dir {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("farindex-cli-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory for the test");
        Dir(path)
    }
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
    /// A file with this content.
    pub(crate) fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).expect("a file for the test");
        path
    }
    /// A pool, with an empty index `demo`.
    pub(crate) fn pool(&self, name: &str, size: &str) -> PathBuf {
        let path = self.path(name);
        run(&[OsStr::new("pool"), OsStr::new("create"), path.as_os_str(), OsStr::new("--size"), OsStr::new(size)]).ok();
        run(&[OsStr::new("index"), OsStr::new("create"), path.as_os_str(), OsStr::new("demo")]).ok();
        path
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// How a run of the program ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) out: Vec<u8>,
    pub(crate) err: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!err.contains("a bug in farindex"), "{err}");
        Ended { code: output.status.code(), out: output.stdout, err }
    }
}

impl Ended {
    #[track_caller]
    pub(crate) fn ok(self) -> Vec<u8> {
        assert_eq!(self.code, Some(0), "{}", self.err);
        self.out
    }
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }
}

fn command(args: &[impl AsRef<OsStr>]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs the program to its end.
#[track_caller]
pub(crate) fn run(args: &[impl AsRef<OsStr>]) -> Ended {
    command(args).output().expect("the program starts").into()
}

/// Starts the program with its input open.
pub(crate) fn start(args: &[impl AsRef<OsStr>]) -> Child {
    command(args).stdin(Stdio::piped()).spawn().expect("the program starts")
}

/// A path as text: those of tests are.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are UTF-8")
}
