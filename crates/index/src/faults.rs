//! Planted faults, for checkers to convict.
//!
//! A check that has never found anything may be unable to. So each of these breaks one rule that a protocol rests on, in
//! the shipped code itself, at the place that keeps the rule; `convictions` in the tests counts the seeds until somebody
//! notices. They exist in unit tests and with the feature `marks`, for each thread on its own; elsewhere no fault is ever
//! planted, and the compiler knows it.

/// One rule broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// SHARD: who moves a bucket writes the whole of it back as it was read, over CASes that came in between.
    WholeBucket,
    /// SHARD: the lock of a bucket that was moved is released by a plain WRITE (N6).
    PlainUnlock,
    /// SHARD: a slot points to its block before the block is written.
    EarlyPointer,
    /// SHARD: nobody waits for the WRITE of a block before a slot points to it (N1, N5).
    UnawaitedBlock,
    /// SHARD: a block that was replaced or removed is free for reuse at once, whoever may still be reading it.
    NoGrace,
    /// SepHash: nobody waits until a slot has landed before the next one is taken, or before the pin ends (N5).
    LateFp2,
    /// SepHash: the directory names a segment before it is written.
    EarlyDirectory,
    /// SepHash: a lookup prefers what it finds in the MainSegment.
    MainFirst,
    /// SepHash: an update changes the entry in the MainSegment, whoever merges that meanwhile.
    UpdateInMain,
}

#[cfg(any(test, feature = "marks"))]
mod switch {
    use super::Fault;
    use std::cell::Cell;

    thread_local!(static PLANTED: Cell<Option<Fault>> = const { Cell::new(None) });

    /// Plants a fault in this thread's operations; `None` ends that.
    pub fn plant(fault: Option<Fault>) {
        PLANTED.set(fault);
    }
    pub(crate) fn planted(fault: Fault) -> bool {
        PLANTED.get() == Some(fault)
    }
}
#[cfg(any(test, feature = "marks"))]
pub use switch::plant;
#[cfg(any(test, feature = "marks"))]
pub(crate) use switch::planted;

#[cfg(not(any(test, feature = "marks")))]
pub(crate) const fn planted(_: Fault) -> bool {
    false
}
