//! Ctrl-C: the first one asks, the second one insists.

use crate::exit::{Failure, INTERRUPTED};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Becomes true at the first Ctrl-C (SIGINT); the second one ends the process at once. Other signals do what they always
/// do: SIGTERM ends the process.
pub(crate) fn stop_flag() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    let handler = move || {
        if told.swap(true, Ordering::SeqCst) {
            std::process::exit(i32::from(INTERRUPTED));
        }
        crate::output::note("interrupted: ending what is in flight (once more to end at once)");
    };
    ctrlc::set_handler(handler)
        .map_err(|error| Failure::new(crate::exit::BUG, format!("Ctrl-C cannot be watched: {error}")))?;
    Ok(stop)
}
