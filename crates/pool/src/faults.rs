//! Planted faults: rules of the protocols that tests break on purpose.
//!
//! A check that has never failed may be unable to fail. Each fault breaks one rule of a protocol in the shipped code,
//! at the place that keeps the rule, and a test shows that a check detects it. Faults exist in unit tests and with the
//! feature `marks`, for each thread separately. Elsewhere no fault is ever planted, and the compiler removes the hooks.

/// A rule that is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A lock is taken without an intent that names it (I1): its holder is unknown, so no client can take it over.
    NoIntent,
    /// An intent is cleared by a detached WRITE, and its cell is used again at once (I2, I3, N5).
    LateClear,
    /// An expired client loses its slot and its locks without being revoked (G6).
    NoRevocation,
    /// An expired client loses its slot before it is revoked: for some time it counts as evicted although its verbs
    /// still take effect.
    FreedBeforeRevocation,
    /// A takeover reads the intents once: it does not compare those before and after the lock word (S1, S2).
    SingleRead,
    /// A takeover does not ask whether an intent was read whole (S3): its first word may be older than the others.
    TornIntents,
    /// The epoch advances past an expired client that was not revoked.
    EpochSkipsRevocation,
    /// A client is evicted after half a lease without a heartbeat.
    EvictsEarly,
    /// A client counts every heartbeat, also one that landed after its lease had expired.
    LateHeartbeatCounts,
    /// Retired memory is free for reuse one epoch too early (E3).
    FreesEarly,
    /// An operation that waits for an intent cell does not join the queue for one.
    ForgetsWaiters,
    /// A search for free chunks finds none that was in use before.
    KeepsFreeChunks,
    /// A session keeps whatever it has freed.
    KeepsSurplus,
    /// A creation leaves the reservations of others in the catalog as they are (docs/bugs/233).
    KeepsReservations,
    /// A pin ends with its operation, also while a batch that was given up is in flight, or has failed and may land.
    UnpinsEarly,
    /// A client that finds no vacant slot evicts nobody.
    RegistersOnly,
    /// Who waits for a lock takes those that try to get it for its holders (docs/bugs/162).
    TriersHold,
}

/// Defines the switch of a crate's faults: `plant`, which tests call, and `planted`, which the hooks call. `plant`
/// exists in the unit tests of the calling crate and with its feature `marks`.
#[macro_export]
macro_rules! fault_switch {
    () => {
        #[cfg(any(test, feature = "marks"))]
        mod switch {
            use super::Fault;
            use std::cell::Cell;

            thread_local!(static PLANTED: Cell<u64> = const { Cell::new(0) });

            /// Plants these faults, and no others, in the operations of this thread. An empty list removes all faults.
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
