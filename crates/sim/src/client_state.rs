//! The state of one simulated client: whether it runs, what it has posted, and the crash that is scheduled for it.

use crate::model::ClientCpu;
use crate::stall::StallState;
use farindex_fabric::RemotePtr;
use std::task::Waker;

/// What happens to the verbs that a client had in flight when it crashed (N7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CrashOutcome {
    /// None of them takes effect any more.
    Lost,
    /// All of them take effect, at the moments that they would have had.
    Landed,
    /// Of the batch that the client was posting, the verbs up to the one at which it crashed take effect, and none
    /// after that one. All verbs of its other batches take effect.
    Prefix,
    /// The seed decides for each memory node: any of the above, or a cut at any moment, and perhaps much later.
    Drawn,
}

/// Whether a client runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunState {
    Running,
    /// Until this moment (`u64::MAX`: until it is resumed).
    Frozen(u64),
    Crashed,
}

/// A crash at a verb. It takes effect when the client's coroutine next waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Crash {
    pub(crate) outcome: CrashOutcome,
    /// The flight that the client was posting, and the last of that flight's verbs that was sent.
    pub(crate) at: Option<(u32, u32)>,
}

/// Batches in which a client may crash.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Batches {
    /// Those that look like a change under a lock: at least three verbs, with WRITEs and atomics.
    Changes,
    /// Those with a WRITE and at least so many verbs.
    Long(usize),
}

/// The batch in which a client crashes.
#[derive(Debug)]
pub(crate) struct CrashInBatch {
    /// Such batches up to it, itself included.
    pub(crate) left: u64,
    pub(crate) of: Batches,
    pub(crate) outcome: CrashOutcome,
}

/// One client: a process with its own connections and coroutines.
pub(crate) struct ClientState {
    pub(crate) run_state: RunState,
    /// A crash that has been decided on and has not taken effect yet.
    pub(crate) crashing: Option<Crash>,
    /// Wakers of the coroutines that were woken while the client was frozen.
    pub(crate) parked: Vec<Waker>,
    pub(crate) open_tasks: u64,
    pub(crate) in_flight: u64,
    pub(crate) batches: u64,
    pub(crate) verbs: u64,
    /// The last verb posted: name, target, moment.
    pub(crate) last: Option<(&'static str, RemotePtr, u64)>,
    /// Odds of a crash at each verb.
    pub(crate) crash_odds: u32,
    /// The client crashes at its verb of this number.
    pub(crate) crash_at: Option<(u64, CrashOutcome)>,
    /// The client crashes in a batch.
    pub(crate) crash_in_batch: Option<CrashInBatch>,
    /// Odds of freezing at each batch, for less than 2 to how many nanoseconds.
    pub(crate) freeze_odds: (u32, u32),
    /// Odds that a batch fails (N7).
    pub(crate) error_odds: u32,
    /// Odds that a part of a batch lags that no coroutine awaits any more, and the exponent of its delay.
    pub(crate) lag_odds: (u32, u32),
    pub(crate) stall: StallState,
    pub(crate) cpu: ClientCpu,
}

impl ClientState {
    pub(crate) fn new(host: usize) -> Self {
        ClientState {
            run_state: RunState::Running,
            crashing: None,
            parked: Vec::new(),
            open_tasks: 0,
            in_flight: 0,
            batches: 0,
            verbs: 0,
            last: None,
            crash_odds: 0,
            crash_at: None,
            crash_in_batch: None,
            freeze_odds: (0, 0),
            error_odds: 0,
            lag_odds: (0, 0),
            stall: StallState::default(),
            cpu: ClientCpu { host, busy_until: 0 },
        }
    }
}
