//! Planted faults, for checkers to convict.
//!
//! A check that has never found anything may be unable to. So each of these breaks one rule that a protocol rests on, in
//! the shipped code itself, at the place that keeps the rule; `convictions` in the tests of the indexes counts the seeds
//! until somebody notices. They exist in unit tests and with the feature `marks`, for each thread on its own; elsewhere no
//! fault is ever planted, and the compiler knows it.

/// One rule broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A lock is taken without an intent that names it (I1): nobody can tell whose it is, so nobody can claim it.
    NoIntent,
    /// An intent is cleared by a plain WRITE that nobody awaits, and its cell is used again at once (I2, I3, N5).
    LateClear,
    /// A client that has expired loses its slot and its locks, but is not revoked (G6).
    NoRevocation,
    /// A client that has expired loses its slot before it is revoked: for a while it counts as buried, and is not.
    FreedBeforeRevocation,
    /// Who claims a lock believes one look at the intents: it does not compare S1 and S2.
    SingleRead,
    /// The epoch passes over a client that has expired, although nobody has revoked it.
    EpochSkipsRevocation,
}

/// Makes the switch of a crate's faults: `plant`, which tests call, and `planted`, which the hooks ask. Both are of the
/// calling crate, and exist in its unit tests and with its feature `marks`.
#[macro_export]
macro_rules! fault_switch {
    () => {
        #[cfg(any(test, feature = "marks"))]
        mod switch {
            use super::Fault;
            use std::cell::Cell;

            thread_local!(static PLANTED: Cell<u64> = const { Cell::new(0) });

            /// Plants these faults in this thread's operations, and no others; none at all ends that.
            pub fn plant(faults: &[Fault]) {
                PLANTED.set(faults.iter().fold(0, |set, fault| set | 1 << *fault as u64));
            }
            pub(crate) fn planted(fault: Fault) -> bool {
                PLANTED.get() >> fault as u64 & 1 == 1
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
    };
}
fault_switch!();
