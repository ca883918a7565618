//! Did a key-value store behave? Histories of what its clients saw, sequential models of what they may see, and a
//! search that decides whether the two agree.
//!
//! What holds of every [`Report`]:
//!
//! 1. a violation is certain: no order of the operations, none of them moved outside its interval, explains the answers;
//! 2. [`Verdict::Ok`] is certain too: for each key such an order was found;
//! 3. what could not be decided within the [`Limits`] is named as undecided, never counted as either.
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
//! The order of events, pending operations and clients are defined in [`history`]; the promise of scans in [`scan`];
//! the file format in [`format`](mod@format).

mod check;
mod explain;
pub mod format;
pub mod history;
pub mod model;
mod order;
mod partition;
mod plan;
mod recorder;
pub mod scan;
pub mod search;
mod text;
mod tighten;
pub mod timeline;
mod zones;

pub use check::{KeyViolation, Limits, Promise, Report, Stats, Verdict, check};
pub use explain::Explanation;
pub use history::{Call, History, HistoryError, Operation, Outcome, Response, Stamps};
pub use recorder::{ClientLog, Recorder, Ticket};
