//! The retire list: unlinked objects that wait for their grace period.

use farindex_fabric::RemotePtr;
use std::collections::VecDeque;

/// An unlinked object. Its grace period is that of `tag` (E2, E3 in [`epoch`](crate::epoch)).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Retired {
    pub(crate) tag: u64,
    pub(crate) ptr: RemotePtr,
    pub(crate) bytes: u64,
}

/// What closed sessions of a client leave to the client: unlinked objects, and free blocks with their size classes.
#[derive(Default)]
pub(crate) struct RetireList {
    pub(crate) retired: VecDeque<Retired>,
    pub(crate) free: Vec<(RemotePtr, usize)>,
}

impl RetireList {
    pub(crate) fn is_empty(&self) -> bool {
        self.retired.is_empty() && self.free.is_empty()
    }
}
