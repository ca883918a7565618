//! Signals that ask the program to end: SIGINT (Ctrl-C), SIGTERM and SIGHUP. The first one asks, the second one
//! insists.

use crate::exit::{self, Failure};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// The first of these signals that came.
static RECEIVED: AtomicI32 = AtomicI32::new(0);

/// Was SIGHUP ignored when the program started? `nohup` asks for that, and it stays so.
fn hangup_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    mask & 1 << (SIGHUP - 1) != 0
}

/// From here on these signals are queued in what this returns.
pub(crate) fn watch() -> Result<Signals, Failure> {
    let all: &[i32] = if hangup_is_ignored() { &[SIGINT, SIGTERM] } else { &[SIGINT, SIGTERM, SIGHUP] };
    Signals::new(all).map_err(|error| Failure::new(exit::BUG, format!("signals cannot be watched: {error}")))
}

/// Becomes true at the first signal; the second one ends the process at once.
pub(crate) fn stop_flag() -> Result<Arc<AtomicBool>, Failure> {
    let mut signals = watch()?;
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    let wait = move || {
        for signal in signals.forever() {
            if flag.load(Ordering::SeqCst) {
                std::process::exit(128 + signal);
            }
            RECEIVED.store(signal, Ordering::SeqCst);
            flag.store(true, Ordering::SeqCst);
            crate::output::note("interrupted: ending what is in flight (once more to end at once)");
        }
    };
    std::thread::Builder::new()
        .name("farindex-signals".to_owned())
        .spawn(wait)
        .map_err(|error| Failure::new(exit::BUG, format!("signals cannot be watched: {error}")))?;
    Ok(stop)
}

/// The exit code of a run that ended early names the signal, as a shell does: 128 and its number.
pub(crate) fn exit_code(code: u8) -> u8 {
    match (code, RECEIVED.load(Ordering::SeqCst)) {
        (exit::INTERRUPTED, signal @ 1..128) => 128 + signal as u8,
        _ => code,
    }
}
