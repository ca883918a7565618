//! A memory node of its own for one run: `farindex serve` as a child process, as it would run elsewhere.

use crate::exit::{self, Failure};
use crate::pool_arg::remote;
use crate::serve::PollMode;
use clap::ValueEnum;
use farindex::PoolUrl;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// The process. It is ended when this is dropped.
pub(crate) struct Daemon {
    child: Child,
    addr: String,
}

impl Daemon {
    /// Starts it, and waits until it serves.
    pub(crate) fn start(fabric: &str, size: u64, poll: PollMode) -> Result<Self, Failure> {
        let failed = |why: String| Failure::new(exit::FILE, format!("no memory node could be started: {why}"));
        let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
        let poll = poll.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        let size = size.to_string();
        let mut child = Command::new(program)
            .args(["serve", "--fabric", fabric, "--listen", "127.0.0.1:0", "--size", &size, "--poll", &poll])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        let mut line = String::new();
        let read = child.stdout.take().map(|stdout| BufReader::new(stdout).read_line(&mut line));
        let daemon = Daemon { child, addr: line.trim_end().rsplit(' ').next().unwrap_or_default().to_owned() };
        match read {
            // It has said why on standard error.
            Some(Ok(0)) => Err(failed("see above".to_owned())),
            Some(Ok(_)) => Ok(daemon),
            Some(Err(error)) => Err(failed(error.to_string())),
            None => Err(failed("it has no output".to_owned())),
        }
    }
    /// The pool that it can hold.
    pub(crate) fn url(&self) -> Result<PoolUrl, Failure> {
        remote(&self.addr, None)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // No client uses its memory any more. It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
