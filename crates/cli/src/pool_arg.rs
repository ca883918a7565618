//! PATH: where a pool is.
//!
//! `--connect ADDR` stands anywhere behind the command, in place of PATH. Positional arguments have fixed places, so
//! [`rewrite`] turns it into a pool string at PATH's place before the command line is read.

use crate::exit::Failure;
use farindex::{Pool, PoolUrl, Session};
use std::ffi::OsString;
use std::path::PathBuf;

/// A pool: a bare path, or a pool string such as `shm:/dev/shm/a,/dev/shm/b`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Place {
    /// The pool: a path such as /dev/shm/demo, or for several memory nodes shm:/dev/shm/a,/dev/shm/b, in the order of
    /// their creation; or --connect in its place
    #[arg(value_name = "PATH")]
    path: OsString,
    /// In place of PATH: the memory nodes of the pool, as `farindex serve` named them, in the order of --node-id
    #[arg(long, value_name = "ADDR[,ADDR...]")]
    connect: Option<String>,
    /// With --connect: the file whose first token is shown to the memory nodes
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

const SCHEME: &str = "connect:";

/// Commands that take PATH, and how many words name them.
fn words_before_path(args: &[OsString]) -> Option<usize> {
    match args.get(1)?.to_str()? {
        "load" | "dump" | "scan" | "get" | "put" | "del" | "exists" | "calibrate" | "gateway" => Some(2),
        "pool" | "index" if !args.get(2)?.to_str()?.starts_with('-') && args.get(2)? != "kinds" => Some(3),
        _ => None,
    }
}

/// Puts what `--connect` says where PATH stands.
pub(crate) fn rewrite(mut args: Vec<OsString>) -> Vec<OsString> {
    let Some(place) = words_before_path(&args).filter(|place| *place <= args.len()) else { return args };
    let end = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
    let flag = |arg: &OsString| arg.to_str().is_some_and(|arg| arg == "--connect" || arg.starts_with("--connect="));
    let Some(at) = args.get(..end).and_then(|args| args.iter().position(flag)) else { return args };
    let value = match args.get(at).and_then(|arg| arg.to_str()).and_then(|arg| arg.split_once('=')) {
        Some((_, value)) => value.to_owned(),
        // Without a value it is left for the parser to complain about.
        None if at + 1 < end => args.remove(at + 1).to_string_lossy().into_owned(),
        None => return args,
    };
    args.remove(at);
    args.insert(place, format!("{SCHEME}{value}").into());
    args
}

/// The pool behind these addresses.
pub(crate) fn remote(addrs: &str, token_file: Option<&PathBuf>) -> Result<PoolUrl, Failure> {
    let mut url = format!("{SCHEME}{addrs}").parse::<PoolUrl>()?;
    if let (PoolUrl::Remote { token_file: of_url, .. }, Some(path)) = (&mut url, token_file) {
        *of_url = Some(path.clone());
    }
    Ok(url)
}

impl Place {
    pub(crate) fn url(&self) -> Result<PoolUrl, Failure> {
        if self.connect.is_some() {
            return Err(Failure::usage("--connect stands once, and stands for PATH"));
        }
        let url = match self.path.to_str() {
            Some(text) if text.starts_with(SCHEME) => {
                return remote(text.get(SCHEME.len()..).unwrap_or_default(), self.token_file.as_ref());
            }
            _ if self.token_file.is_some() => return Err(Failure::usage("--token-file goes with --connect")),
            Some(text) if text.starts_with("shm:") || text.starts_with("memory:") => text.parse::<PoolUrl>()?,
            // A bare path is taken as it is: it may have commas and bytes that are not UTF-8.
            _ => PoolUrl::Shm { paths: vec![PathBuf::from(&self.path)] },
        };
        match &url {
            PoolUrl::Memory { .. } => Err(Failure::usage(format!(
                "{}: a memory: pool ends with the process that made it, so only `farindex bench` has a use for one; give a \
                 path such as /dev/shm/demo",
                self.path.display()
            ))),
            PoolUrl::Shm { paths } if paths.iter().any(|path| path.as_os_str().is_empty()) => {
                Err(Failure::usage("the path of the pool is empty"))
            }
            PoolUrl::Shm { .. } | PoolUrl::Remote { .. } => Ok(url),
        }
    }
    pub(crate) fn open(&self) -> Result<Pool, Failure> {
        Ok(Pool::open(&self.url()?)?)
    }
    /// A session, which keeps its pool open.
    pub(crate) fn session(&self) -> Result<Session, Failure> {
        Ok(self.open()?.session()?)
    }
    /// The same, with the pool as crashed clients have left it.
    pub(crate) fn session_as_it_is(&self) -> Result<Session, Failure> {
        Ok(Pool::open_without_recovery(&self.url()?)?.session()?)
    }
    pub(crate) fn display(&self) -> std::path::Display<'_> {
        std::path::Path::new(&self.path).display()
    }
}

pub(crate) use farindex::size::parse_count as parse_size;

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(line: &str) -> String {
        let args = rewrite(line.split(' ').map(OsString::from).collect());
        args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn connect_takes_the_place_of_the_path() {
        for (line, rewritten_line) in [
            ("farindex get --connect a:1,b:2 idx key", "farindex get connect:a:1,b:2 idx key"),
            ("farindex get idx --connect=a:1 key", "farindex get connect:a:1 idx key"),
            ("farindex pool check --json - --connect a:1", "farindex pool check connect:a:1 --json -"),
            ("farindex index list --connect a:1", "farindex index list connect:a:1"),
            ("farindex calibrate --dry-run --connect a:1", "farindex calibrate connect:a:1 --dry-run"),
            ("farindex gateway --listen a:2 --connect a:1", "farindex gateway connect:a:1 --listen a:2"),
            ("farindex get /p idx key", "farindex get /p idx key"),
            ("farindex put /p idx -- --connect x", "farindex put /p idx -- --connect x"),
            ("farindex bench --connect a:1", "farindex bench --connect a:1"),
            ("farindex get --connect", "farindex get --connect"),
            ("farindex pool --connect a:1", "farindex pool --connect a:1"),
            ("farindex", "farindex"),
        ] {
            assert_eq!(rewritten(line), rewritten_line);
        }
    }
}
