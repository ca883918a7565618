//! Processes as clients: their identity, whether they have ended, and how they are killed.
//!
//! Invariants: a process is reported as gone only where that is proved; in doubt the answer is "cannot tell"; a signal
//! is sent to the very process that the identity names, never to one that got its number later.
//!
//! A process is named by its number and by when it started:
//!
//! ```text
//! started   63          48 47        36 35                                  0
//!           | pid space    | boot      | start time, clock ticks since boot |
//! ```
//!
//! Start times count from boot, and files persist across boots: the hash of the boot's id identifies clients of an
//! earlier boot.
//! Process numbers mean something within one PID namespace only, so its number is kept too, and of a client of another
//! namespace (another container, say) nothing can be proved here.

use crate::transport::Identity;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, test_kill_process};
use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const TICK_BITS: u32 = 36;
const BOOT_BITS: u32 = 12;
const TICK_MASK: u64 = (1 << TICK_BITS) - 1;
const BOOT_MASK: u64 = (1 << BOOT_BITS) - 1;

/// How long a process that was killed may take to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// What `/proc/<pid>/stat` says.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    pid: u64,
    state: char,
    threads: u64,
    start_ticks: u64,
}

impl Stat {
    /// Parses the line. The program chooses the name in brackets, which may hold spaces and brackets: fields count from
    /// the last one.
    fn parse(text: &str) -> Option<Stat> {
        let (head, tail) = text.rsplit_once(')')?;
        let mut fields = tail.split_ascii_whitespace();
        Some(Stat {
            pid: head.split_once(" (")?.0.trim().parse().ok()?,
            state: fields.next()?.chars().next()?,
            // Fields 20 and 22 of proc(5), where the state is field 3.
            threads: fields.nth(16)?.parse().ok()?,
            start_ticks: fields.nth(1)?.parse().ok()?,
        })
    }
    fn of(pid: &str) -> Option<Stat> {
        Stat::parse(&String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/stat")).ok()?))
    }
    /// No thread of it will run again. A first thread that has ended is a zombie while the others still run.
    fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x') && self.threads <= 1
    }
}

/// Where and when a process started, as far as the system reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Start {
    space: u64,
    boot: u64,
    ticks: u64,
}

impl Start {
    fn pack(self) -> u64 {
        self.space << (TICK_BITS + BOOT_BITS) | (self.boot & BOOT_MASK) << TICK_BITS | self.ticks & TICK_MASK
    }
    fn unpack(bits: u64) -> Start {
        Start { space: bits >> (TICK_BITS + BOOT_BITS), boot: bits >> TICK_BITS & BOOT_MASK, ticks: bits & TICK_MASK }
    }
    /// Of this process; `None` where `/proc` is missing or shows another PID namespace than ours.
    fn own() -> Option<Start> {
        let stat = Stat::of("self").filter(|stat| stat.pid == u64::from(std::process::id()))?;
        let boot = fs::read("/proc/sys/kernel/random/boot_id").ok()?;
        let space = fs::read_link("/proc/self/ns/pid").ok()?;
        // "pid:[4026531836]": the kernel numbers namespaces consecutively, so the low bits tell them apart.
        let space: u64 = space.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()?;
        Some(Start { space: space & 0xffff, boot: fold(&boot) & BOOT_MASK, ticks: stat.start_ticks & TICK_MASK })
    }
}

/// FNV-1a: it must come out the same in every process and every build, which std's hashers do not promise.
fn fold(bytes: &[u8]) -> u64 {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
    hash ^ hash >> 32
}

/// A fresh identity of this process.
///
/// The token is a hash, keyed with 128 bits from the system's random source, of everything that tells clients apart:
/// process, boot, start time, a counter and the time. The counter differs within a process, the number between a
/// process and its fork (which shares key and counter), the key between processes. So tokens are 64 random bits: of a
/// million clients, any two are the same with a probability of 3 in 10^8.
pub(crate) fn new_identity() -> Identity {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let pid = u64::from(std::process::id());
    let started = Start::own().map_or(0, Start::pack);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let state = RandomState::new();
    let token = loop {
        let token = state.hash_one((pid, started, COUNTER.fetch_add(1, Ordering::Relaxed), since));
        // Zero is what memory that was never written holds.
        if token != 0 {
            break token;
        }
    };
    Identity { token, pid, started }
}

/// Is it a client of this very process?
pub(crate) fn is_own(identity: &Identity) -> bool {
    identity.pid == u64::from(std::process::id()) && Start::own().map_or(0, Start::pack) == identity.started
}

/// State of the process of an identity, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Proved gone.
    Gone,
    /// Proved alive.
    Alive,
    /// Neither, and why.
    Unknown(&'static str),
}

/// Is the process gone? `across_hosts`: other machines may use this memory too, so another boot need not be an earlier
/// one.
pub(crate) fn fate(identity: &Identity, across_hosts: bool) -> Fate {
    let Some(pid) = i32::try_from(identity.pid).ok().and_then(Pid::from_raw).filter(|_| identity.started != 0) else {
        return Fate::Unknown("its identity names no process");
    };
    let Some(own) = Start::own() else {
        return Fate::Unknown("/proc is missing or shows the processes of another PID namespace");
    };
    let start = Start::unpack(identity.started);
    if start.boot != own.boot {
        if across_hosts {
            return Fate::Unknown("it belongs to another machine or to an earlier boot of this one");
        }
        return Fate::Gone;
    }
    if start.space != own.space {
        return Fate::Unknown("it belongs to another PID namespace (another container, perhaps)");
    }
    // Ask the kernel first: /proc may hide the processes of other users.
    if test_kill_process(pid) == Err(Errno::SRCH) {
        return Fate::Gone;
    }
    match Stat::of(&identity.pid.to_string()) {
        Some(stat) if stat.start_ticks & TICK_MASK != start.ticks || stat.has_ended() => Fate::Gone,
        Some(_) => Fate::Alive,
        // It may have ended between the two questions; else it is hidden.
        None if test_kill_process(pid) == Err(Errno::SRCH) => Fate::Gone,
        None => Fate::Unknown("/proc hides it"),
    }
}

/// Ends the process of an identity, and waits until it has ended. The error says why that could not be done.
pub(crate) fn kill(identity: &Identity, across_hosts: bool) -> Result<(), String> {
    let pid = i32::try_from(identity.pid).ok().and_then(Pid::from_raw).ok_or("it has no process number")?;
    // From here on `handle` means one process, even if its number is reused later. If that process is not the one which
    // the identity names, the named one ended before, and its start time is not found under the number any more.
    let handle = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(handle) => handle,
        Err(Errno::SRCH) => return Ok(()),
        Err(error) => return Err(format!("it cannot be held by pidfd_open: {error}")),
    };
    match fate(identity, across_hosts) {
        Fate::Gone => return Ok(()),
        Fate::Unknown(why) => return Err(why.to_owned()),
        Fate::Alive => {}
    }
    match pidfd_send_signal(&handle, Signal::KILL) {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(error) => return Err(format!("it cannot be killed: {error}")),
    }
    let begun = Instant::now();
    while fate(identity, across_hosts) != Fate::Gone {
        if begun.elapsed() > KILL_TIMEOUT {
            return Err(format!("it was killed and has not ended within {KILL_TIMEOUT:?}"));
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn names_of_programs_do_not_confuse_the_parser() {
        let stat = "77 (a) b (Z 1) R) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 3 18 4242 20 21";
        assert_eq!(Stat::parse(stat), Some(Stat { pid: 77, state: 'S', threads: 3, start_ticks: 4242 }));
        for broken in ["", "77", "77 (x", "77 (x)", "77 (x) S 1 2", "x (x) S 1 2 3"] {
            assert_eq!(Stat::parse(broken), None, "{broken:?}");
        }
    }

    #[test]
    fn a_first_thread_that_ended_is_not_the_end_of_its_process() {
        let with = |state, threads| Stat { pid: 1, state, threads, start_ticks: 0 };
        assert!(with('Z', 1).has_ended() && with('X', 0).has_ended());
        assert!(!with('Z', 2).has_ended() && !with('S', 1).has_ended());
    }

    #[test]
    fn doubt_is_not_taken_for_proof() {
        let me = new_identity();
        assert_eq!(fate(&me, false), Fate::Alive);
        let start = Start::unpack(me.started);
        assert_eq!(start.pack(), me.started);
        let other = |start: Start| Identity { started: start.pack(), ..me };
        assert_eq!(fate(&other(Start { ticks: start.ticks ^ 1, ..start }), false), Fate::Gone);
        assert_eq!(fate(&other(Start { boot: start.boot ^ 1, ..start }), false), Fate::Gone);
        assert!(matches!(fate(&other(Start { boot: start.boot ^ 1, ..start }), true), Fate::Unknown(_)));
        assert!(matches!(fate(&other(Start { space: start.space ^ 1, ..start }), false), Fate::Unknown(_)));
        for pid in [0, u64::MAX, 1 << 31] {
            assert!(matches!(fate(&Identity { pid, ..me }, false), Fate::Unknown(_)), "{pid}");
        }
        assert!(matches!(fate(&Identity::default(), false), Fate::Unknown(_)));
    }

    #[test]
    fn tokens_differ() {
        let mut tokens: Vec<u64> = (0..1000).map(|_| new_identity().token).collect();
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), 1000);
    }
}
