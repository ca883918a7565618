//! The verdict of a history: the checker's, with what crashed compute nodes may have lost.

use crate::SeedReport;
use crate::worker::{LAST, Shared};
use farindex_check::{History, Limits, Loss, Recorder, Verdict, check_with_losses};
use std::time::Duration;

/// Configurations that the search of a key may enter, and those of a second search where the first one decides nothing: some
/// histories have a key that takes more.
const STEPS: u64 = 200_000;
const MOST_STEPS: u64 = 4_000_000;

/// What each client that has not closed may have lost: what it has acknowledged within the loss window. A client that misses
/// heartbeats acknowledges nothing after a lease.
fn losses(shared: &Shared, history: &History, window: Duration) -> Vec<Loss> {
    let window = (window + shared.lease * 2).as_nanos() as u64;
    let closed = shared.closed.borrow();
    let clients = history.clients().into_keys().filter(|client| (1..LAST).contains(client) && !closed.contains(client));
    clients.map(|client| Loss { client, window }).collect()
}

/// The verdict of a history.
pub(crate) fn judge(shared: &Shared, recorder: &Recorder, may_lose: Option<Duration>, report: &mut SeedReport) {
    let history = match recorder.finish() {
        Ok(history) => history,
        Err(error) => return report.failures.push(format!("no history: {error}")),
    };
    report.operations += history.operations().len() as u64;
    let losses = may_lose.map_or_else(Vec::new, |window| losses(shared, &history, window));
    let check = |steps_per_key| check_with_losses(&history, &Limits { steps_per_key, ..Limits::default() }, &losses);
    let mut verdict = check(STEPS);
    if verdict.verdict == Verdict::Unknown {
        verdict = check(MOST_STEPS);
    }
    match verdict.verdict {
        Verdict::Ok => {}
        Verdict::Unknown => {
            report.unknown += verdict.undecided.len() as u64;
            if !report.violation {
                report.history = None;
            }
        }
        Verdict::Violation => {
            // The history that is shown is the one that breaks a promise, or else the one that is undecided.
            if !report.violation {
                report.history = None;
            }
            report.violation = true;
            report.failures.push(verdict.to_string());
        }
    }
    report.history.get_or_insert(history);
}
