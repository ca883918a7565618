//! PATH: where a pool is.

use crate::exit::Failure;
use farindex::{Pool, PoolUrl, Session};
use std::ffi::OsString;
use std::path::PathBuf;

/// A pool in mapped files: a bare path, or a pool string such as `shm:/dev/shm/a,/dev/shm/b`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Place {
    /// The pool: a path such as /dev/shm/demo, or for several memory nodes shm:/dev/shm/a,/dev/shm/b, in the order of
    /// their creation
    #[arg(value_name = "PATH")]
    path: OsString,
}

impl Place {
    pub(crate) fn url(&self) -> Result<PoolUrl, Failure> {
        let url = match self.path.to_str() {
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
            PoolUrl::Shm { .. } => Ok(url),
        }
    }
    pub(crate) fn open(&self) -> Result<Pool, Failure> {
        Ok(Pool::open_at(&self.url()?)?)
    }
    /// A session, which keeps its pool open.
    pub(crate) fn session(&self) -> Result<Session, Failure> {
        Ok(self.open()?.session()?)
    }
    pub(crate) fn display(&self) -> std::path::Display<'_> {
        std::path::Path::new(&self.path).display()
    }
}

pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    farindex::url::parse_size(text)
}
