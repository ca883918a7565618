//! Where a pool is, as a string.
//!
//! | Form | Meaning |
//! |---|---|
//! | `memory:1GiB` | one memory node inside this process; gone when the pool is closed |
//! | `memory:1GiB,nodes=3` | three such nodes of 1 GiB each |
//! | `shm:/dev/shm/demo` | a file that several processes map: /dev/shm, hugetlbfs, a DAX device, any disk |
//! | `shm:/dev/shm/a,/dev/shm/b` | several files, one for each memory node, always in the same order |
//! | `connect:host:4040` | a memory node that is reached over a network (`farindex serve`); it says which fabric it serves |
//! | `connect:a:4040,b:4040,token-file=FILE` | several, in the order of their numbers; the first token of FILE is shown |

use crate::Error;
use crate::size::parse_count;
use std::path::PathBuf;
use std::str::FromStr;

/// A parsed pool string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PoolUrl {
    /// Inside this process.
    Memory {
        /// Bytes of each memory node.
        len: u64,
        /// Memory nodes.
        nodes: usize,
    },
    /// Mapped files.
    Shm {
        /// One for each memory node.
        paths: Vec<PathBuf>,
    },
    /// Processes elsewhere that serve memory.
    Remote {
        /// `HOST:PORT` of each memory node.
        addrs: Vec<String>,
        /// Where the token is that is shown to them.
        token_file: Option<PathBuf>,
    },
}

impl FromStr for PoolUrl {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self, Error> {
        let bad = |why: &str| Error::Url { url: url.to_owned(), why: why.to_owned() };
        let (scheme, rest) = url.split_once(':').ok_or_else(|| bad("it lacks a scheme like memory: or shm:"))?;
        match scheme {
            "memory" => {
                let mut parts = rest.split(',');
                let len = parse_count(parts.next().unwrap_or_default()).map_err(|why| bad(&why))?;
                let mut nodes = 1;
                for part in parts {
                    let count =
                        part.strip_prefix("nodes=").ok_or_else(|| bad("behind the size only nodes=N may stand"))?;
                    nodes = count.parse().map_err(|_| bad("nodes= takes a whole number"))?;
                }
                Ok(PoolUrl::Memory { len: len.next_multiple_of(4096), nodes })
            }
            "shm" => {
                let paths: Vec<PathBuf> = rest.split(',').map(PathBuf::from).collect();
                if paths.iter().any(|path| path.as_os_str().is_empty()) {
                    return Err(bad("behind shm: stand paths, separated by commas"));
                }
                Ok(PoolUrl::Shm { paths })
            }
            "connect" => {
                let (mut addrs, mut token_file) = (Vec::new(), None);
                for part in rest.split(',') {
                    match part.strip_prefix("token-file=") {
                        Some(path) => token_file = Some(PathBuf::from(path)),
                        None if part.rsplit_once(':').is_some_and(|(host, port)| {
                            !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0)
                        }) =>
                        {
                            addrs.push(part.to_owned());
                        }
                        None => {
                            return Err(bad(
                                "behind connect: stand HOST:PORT, separated by commas, and token-file=PATH",
                            ));
                        }
                    }
                }
                if addrs.is_empty() {
                    return Err(bad("behind connect: stands at least one HOST:PORT"));
                }
                Ok(PoolUrl::Remote { addrs, token_file })
            }
            _ => Err(bad("the schemes are memory:, shm: and connect:")),
        }
    }
}

impl TryFrom<&str> for PoolUrl {
    type Error = Error;
    fn try_from(url: &str) -> Result<Self, Error> {
        url.parse()
    }
}

impl TryFrom<&String> for PoolUrl {
    type Error = Error;
    fn try_from(url: &String) -> Result<Self, Error> {
        url.parse()
    }
}

impl From<&PoolUrl> for PoolUrl {
    fn from(url: &PoolUrl) -> Self {
        url.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let paths = |paths: &[&str]| PoolUrl::Shm { paths: paths.iter().map(PathBuf::from).collect() };
        assert_eq!("memory:1MiB".parse::<PoolUrl>().ok(), Some(PoolUrl::Memory { len: 1 << 20, nodes: 1 }));
        assert_eq!("memory:1MiB,nodes=3".parse::<PoolUrl>().ok(), Some(PoolUrl::Memory { len: 1 << 20, nodes: 3 }));
        assert_eq!("shm:/dev/shm/a".parse::<PoolUrl>().ok(), Some(paths(&["/dev/shm/a"])));
        assert_eq!("shm:/a,/b".parse::<PoolUrl>().ok(), Some(paths(&["/a", "/b"])));
        let remote = |addrs: &[&str], token_file: Option<&str>| PoolUrl::Remote {
            addrs: addrs.iter().map(ToString::to_string).collect(),
            token_file: token_file.map(PathBuf::from),
        };
        assert_eq!("connect:[::1]:80".parse::<PoolUrl>().ok(), Some(remote(&["[::1]:80"], None)));
        assert_eq!("connect:a:1,b:2,token-file=/t".parse::<PoolUrl>().ok(), Some(remote(&["a:1", "b:2"], Some("/t"))));
        for url in [
            "connect:",
            "connect:host",
            "connect:a:1,",
            "connect:a:0",
            "connect:token-file=x",
            "",
            "memory",
            "memory:",
            "memory:1MiB,node=3",
            "memory:1MiB,nodes=x",
            "shm:",
            "shm:/a,",
            "rdma:host",
        ] {
            assert!(url.parse::<PoolUrl>().is_err(), "{url}");
        }
    }
}
