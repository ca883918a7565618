//! The promises that a check can find broken.

use std::fmt;

/// A promise of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Promise {
    /// Each point operation takes effect at one moment between its invocation and its response.
    Linearizability,
    /// Each scan reads each key that it covers at some moment between its invocation and its response (see
    /// [`crate::scan`]).
    ScanContent,
}

/// The promise, broken.
impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Promise::Linearizability => "not linearizable",
            Promise::ScanContent => "a scan returned a state that never existed",
        })
    }
}
