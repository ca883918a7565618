//! Checks whether a key-value store kept its promises: histories of its clients' operations, sequential models of the
//! store, and a search for an order of the operations that explains their outcomes.
//!
//! Guarantees of every [`Report`]:
//!
//! 1. a violation is certain: no order of the operations, each of them within its interval, explains the outcomes;
//! 2. [`Verdict::Ok`] is certain: for each key such an order was found;
//! 3. keys that could not be decided within the [`Limits`] are listed as undecided and counted as neither.
//!
//! ```
//! use farindex_check::{Call, Limits, Outcome, Recorder, Stamps, Verdict, check};
//!
//! let (recorder, stamps) = (Recorder::new(), Stamps::new());
//! let mut log = recorder.client(1);
//! let put = log.invoke(Call::Insert { key: b"k".to_vec(), value: b"v".to_vec() }, stamps.tick());
//! log.complete(put, stamps.tick(), Outcome::Inserted);
//! let get = log.invoke(Call::Get { key: b"k".to_vec() }, stamps.tick());
//! log.complete(get, stamps.tick(), Outcome::Value(None));
//! drop(log);
//!
//! let history = recorder.finish()?;
//! let report = check(&history, &Limits::default());
//! assert_eq!(report.verdict, Verdict::Violation);
//! println!("{report}");
//! # Ok::<(), farindex_check::HistoryError>(())
//! ```
//!
//! Definitions: the order of events, pending operations and clients in [`history`]; the promise of scans in [`scan`];
//! the file format in [`format`](mod@format).
//!
//! Each module uses only modules of earlier rows, or ahead of it in its own row:
//!
//! | Layer | Modules |
//! |---|---|
//! | histories | `history`, `recorder`, `format`, `scan` |
//! | model | `model` (the trait), `key_op` (operations on one key), `order` (of events), `zones`, `tighten` |
//! | map | `partition` (a part for each key), `map` (the model of a key-value map) |
//! | search | `plan` (its tables), `search` |
//! | results | `promise`, `text`, `explain`, `check`, `loss`, `timeline` |

mod check;
mod explain;
pub mod format;
pub mod history;
mod key_op;
mod loss;
pub mod map;
pub mod model;
mod order;
mod partition;
mod plan;
mod promise;
mod recorder;
pub mod scan;
pub mod search;
mod text;
mod tighten;
pub mod timeline;
mod zones;

pub use check::{KeyViolation, Limits, Report, Stats, Verdict, check};
pub use explain::Explanation;
pub use history::{Call, History, HistoryError, Operation, Outcome, Response, Stamps};
pub use loss::{Loss, check_with_losses};
pub use promise::Promise;
pub use recorder::{ClientLog, Recorder, Ticket};
