//! A Redis-protocol gateway: clients of Redis work, unmodified, on indexes in far memory that no process owns.
//!
//! Any number of gateways serve the same keys on one pool, on one machine or on several, and any of them may be killed:
//! nothing is lost, and nothing has to be restarted. `docs/gateway.md` says what is atomic and what is stored where.
//!
//! ```
//! use farindex::Pool;
//! use farindex_gateway::{Gateway, Settings};
//! use std::io::{Read, Write};
//!
//! let pool = Pool::in_memory(64 << 20)?;
//! let gateway = Gateway::start(move || Ok(pool.clone()), Settings::new("127.0.0.1:0".parse()?))?;
//! let mut client = std::net::TcpStream::connect(gateway.address())?;
//! client.write_all(b"SET far memory\r\nGET far\r\n")?;
//! let mut replies = [0; 17];
//! client.read_exact(&mut replies)?;
//! assert_eq!(&replies, b"+OK\r\n$6\r\nmemory\r\n");
//! gateway.stop()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | Module | What it holds |
//! |---|---|
//! | `gateway` | the threads of a gateway, and what they share |
//! | `worker` | one thread: waits for clients, carries out their commands |
//! | `client` | a connection with its buffers |
//! | `pipeline` | the commands of a client, in order |
//! | `command` | the table of commands, and a module for each family |
//! | `store` | records, hashes, sorted sets and cursors in the two indexes |
//! | `sweep` | removal of what has expired, and of garbage |
//! | [`resp`] | the protocol |

mod client;
mod command;
mod counters;
mod fail;
mod gateway;
mod glob;
mod number;
mod pipeline;
pub mod resp;
mod settings;
mod store;
mod sweep;
mod worker;

pub(crate) use fail::Fail;
pub use farindex_metrics::MetricsServer;
pub use gateway::{Gateway, GatewayError, OpenPool, Stopper};
pub use settings::{Limits, Names, Password, Settings};
