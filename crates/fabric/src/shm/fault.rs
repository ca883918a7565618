//! Turns SIGBUS into an error of a verb. A mapped file may fail when it is touched: it was cut, its file system has no
//! room for a page that was never written, or the memory is faulty.
//!
//! The handler maps zeros over the whole region in which the fault lies, and marks the region as lost. The access that
//! faulted then goes on with those zeros, and its verb fails, because every access checks the mark afterwards.
//!
//! Invariants: a region is entered in [`SLOTS`] after it was mapped and taken out before it is unmapped; a slot that is
//! read while it changes is passed over; the mark is set before the zeros are mapped, so a verb that has read them
//! finds the mark. Faults elsewhere, and signals that were sent, go to the handler that was there before.
#![allow(unsafe_code)]

use libc::{c_int, c_void, siginfo_t};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// A region that is guarded.
struct Slot {
    taken: AtomicBool,
    /// Odd while the range changes.
    version: AtomicUsize,
    start: AtomicUsize,
    end: AtomicUsize,
    lost: AtomicBool,
}

impl Slot {
    const fn empty() -> Slot {
        Slot {
            taken: AtomicBool::new(false),
            version: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            lost: AtomicBool::new(false),
        }
    }
    fn set(&self, start: usize, end: usize) {
        self.version.fetch_add(1, Ordering::SeqCst);
        self.start.store(start, Ordering::SeqCst);
        self.end.store(end, Ordering::SeqCst);
        self.version.fetch_add(1, Ordering::SeqCst);
    }
    /// The range, if this address is in it. That of a region in which a thread has faulted does not change meanwhile:
    /// a thread that touches a region borrows it.
    fn range_around(&self, address: usize) -> Option<(usize, usize)> {
        let version = self.version.load(Ordering::SeqCst);
        let range = (self.start.load(Ordering::SeqCst), self.end.load(Ordering::SeqCst));
        let steady = version.is_multiple_of(2) && self.version.load(Ordering::SeqCst) == version;
        (steady && (range.0..range.1).contains(&address)).then_some(range)
    }
}

/// Every guarded region of this process. Those that find no room in it are not guarded.
static SLOTS: [Slot; 2048] = [const { Slot::empty() }; 2048];
/// Is any region lost?
static ANY_LOST: AtomicBool = AtomicBool::new(false);
/// The previous action for SIGBUS.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Guards a region for as long as it lives. It must be dropped before the region is unmapped.
pub(crate) struct Guard(&'static Slot);

impl Guard {
    /// Guards these words, which fill a mapping; `None` if there is no room for one more.
    pub(crate) fn of(words: &[AtomicU64]) -> Option<Guard> {
        install();
        let free = |slot: &&Slot| !slot.taken.swap(true, Ordering::SeqCst);
        let slot = SLOTS.iter().find(free)?;
        slot.lost.store(false, Ordering::SeqCst);
        let range = words.as_ptr_range();
        slot.set(range.start.addr(), range.end.addr());
        Some(Guard(slot))
    }
    /// Was the region's content lost?
    pub(crate) fn is_lost(&self) -> bool {
        self.0.lost.load(Ordering::SeqCst)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.set(0, 0);
        self.0.taken.store(false, Ordering::SeqCst);
    }
}

/// Is any region of this process lost? Then ask its guard.
#[inline]
pub(crate) fn any_lost() -> bool {
    ANY_LOST.load(Ordering::SeqCst)
}

type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

/// Installs the handler for SIGBUS, once.
fn install() {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        // SAFETY: `sigaction` is a plain C structure, of which all-zero bytes are a value; it is only read once the
        // calls have filled it in or its fields were set. The handler has the signature that SA_SIGINFO asks for, and
        // does nothing but what is safe in a signal handler (see there). SA_ONSTACK keeps it off the stack of a thread
        // that has overflowed it.
        unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) != 0 {
                return;
            }
            // A fault between these two calls is not ours yet; behind them, what was there before is known.
            let _: Result<(), _> = PREVIOUS.set(before);
            let mut ours: libc::sigaction = std::mem::zeroed();
            ours.sa_sigaction = on_fault as Handler as libc::sighandler_t;
            ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
            libc::sigemptyset(&raw mut ours.sa_mask);
            libc::sigaction(libc::SIGBUS, &raw const ours, std::ptr::null_mut());
        }
    });
}

extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel hands a valid `siginfo_t` to a handler that was installed with SA_SIGINFO, and for these codes
    // of SIGBUS it holds the address of the fault.
    let address = unsafe {
        let code = (*info).si_code;
        matches!(code, libc::BUS_ADRERR | libc::BUS_MCEERR_AR).then(|| (*info).si_addr().addr())
    };
    let found = address.and_then(|address| SLOTS.iter().find_map(|slot| Some((slot, slot.range_around(address)?))));
    if !found.is_some_and(|(slot, range)| lose(slot, range)) {
        pass_on(signal, info, context);
    }
}

/// Maps zeros in the place of a region. Runs in a signal handler: atomics and a system call only.
fn lose(slot: &Slot, (start, end): (usize, usize)) -> bool {
    slot.lost.store(true, Ordering::SeqCst);
    ANY_LOST.store(true, Ordering::SeqCst);
    // SAFETY: `start..end` is a whole mapping of this process that its owner touches at this moment, so it lives, and
    // it is replaced by memory of the same range that may be read and written: no reference into it becomes invalid. It
    // is only touched as atomics, for which other values are what other processes may cause as well. `errno` belongs to
    // this thread, and is put back because the handler interrupts code that may be about to read it.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let at = std::ptr::without_provenance_mut::<c_void>(start);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        let mapped = libc::mmap(at, end - start, access, flags, -1, 0);
        *errno = before;
        mapped == at
    }
}

/// Hands the signal to the handler that was there before, or lets it end the process.
fn pass_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let previous = PREVIOUS.get().filter(|before| ![libc::SIG_DFL, libc::SIG_IGN].contains(&before.sa_sigaction));
    // SAFETY: what the kernel reported as the handler is a function of the signature that its flags say, made for this
    // signal, and it is called in a handler for this signal with the kernel's arguments. Otherwise the default is put
    // back, under which the raised signal ends the process as soon as this handler returns.
    unsafe {
        match previous {
            Some(before) if before.sa_flags & libc::SA_SIGINFO != 0 => {
                std::mem::transmute::<libc::sighandler_t, Handler>(before.sa_sigaction)(signal, info, context);
            }
            Some(before) => {
                std::mem::transmute::<libc::sighandler_t, extern "C" fn(c_int)>(before.sa_sigaction)(signal);
            }
            None => {
                libc::signal(signal, libc::SIG_DFL);
                libc::raise(signal);
            }
        }
    }
}
