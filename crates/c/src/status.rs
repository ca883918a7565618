//! What functions return: a code; and a text for the last error of the thread.

use farindex::{Error, FabricError, IndexError, PoolError};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a function returns. Below FARINDEX_ERROR it is an outcome: the function did its work. From FARINDEX_ERROR on it is an
/// error, and farindex_error_message says what to do.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub enum farindex_status {
    /// Done.
    FARINDEX_OK = 0,
    /// The key is absent. A read found nothing; a change changed nothing.
    FARINDEX_ABSENT = 1,
    /// The key exists already, and is unchanged.
    FARINDEX_EXISTS = 2,
    /// The key has another value than the expected one, and is unchanged.
    FARINDEX_DIFFERS = 3,
    /// The value is longer than the caller's buffer, which is unchanged; the length says how long it is.
    FARINDEX_BUFFER_TOO_SMALL = 4,

    /// An error that has no code of its own.
    FARINDEX_ERROR = 100,
    /// A pointer is null, a text is not UTF-8, or a number makes no sense.
    FARINDEX_ERROR_INVALID_ARGUMENT = 101,
    /// A session or an index was used by another thread than the one that opened the session. Nothing was done.
    FARINDEX_ERROR_WRONG_THREAD = 102,
    /// A place of a pool, a kind of index, or settings that make no sense.
    FARINDEX_ERROR_CONFIG = 103,
    /// The pool is full, or its catalog, or the place of a key. Nothing was changed or lost.
    FARINDEX_ERROR_FULL = 104,
    /// The key is longer than the index takes.
    FARINDEX_ERROR_KEY_TOO_LONG = 105,
    /// The value is longer than the index takes.
    FARINDEX_ERROR_VALUE_TOO_LONG = 106,
    /// There is no index of this name, or no pool at this place.
    FARINDEX_ERROR_NOT_FOUND = 107,
    /// There is an index of this name, or a pool at this place, already.
    FARINDEX_ERROR_ALREADY_EXISTS = 108,
    /// The index is of another kind, or its kind cannot do this.
    FARINDEX_ERROR_WRONG_KIND = 109,
    /// The index was dropped while it was open.
    FARINDEX_ERROR_DROPPED = 110,
    /// A client that is alive has held a lock for longer than two leases.
    FARINDEX_ERROR_LOCKED = 111,
    /// This process was silent for longer than a lease, and was evicted. Close the pool and open it again. Writes in flight may
    /// have taken effect or not.
    FARINDEX_ERROR_LEASE_LOST = 112,
    /// As many processes have the pool open as it has client slots.
    FARINDEX_ERROR_NO_CLIENT_SLOT = 113,
    /// A memory node cannot be reached or did not answer in time. A write may have taken effect or not.
    FARINDEX_ERROR_UNREACHABLE = 114,
    /// The memory of a node could not be opened, created, mapped or written.
    FARINDEX_ERROR_REGION = 115,
    /// Far memory holds bytes that no client writes, or that another version has written.
    FARINDEX_ERROR_CORRUPTED = 116,
    /// This build lacks the fabric, or the fabric lacks what was asked for.
    FARINDEX_ERROR_UNSUPPORTED = 117,
    /// A defect of the library. Close what is open and report it.
    FARINDEX_ERROR_INTERNAL = 118,
    /// The handle is another process's, from which this one was forked. Nothing was done. Open the pool again in this process.
    FARINDEX_ERROR_FORKED = 119,
}

pub(crate) use farindex_status as Status;

/// Why a function failed.
#[derive(Debug)]
pub(crate) struct Failure {
    status: Status,
    message: String,
}

impl Failure {
    pub(crate) fn new(status: Status, message: impl Into<String>) -> Self {
        Failure { status, message: message.into() }
    }
    pub(crate) fn argument(message: impl Into<String>) -> Self {
        Failure::new(Status::FARINDEX_ERROR_INVALID_ARGUMENT, message)
    }
}

impl<E: Into<Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        let error = error.into();
        Failure::new(status_of(&error), error.to_string())
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs the body of a function. A failure and a panic become a code, and their text the thread's last error.
pub(crate) fn guard(body: impl FnOnce() -> Result<Status, Failure>) -> Status {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(status)) => return status,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let what = panic.downcast_ref::<String>().map(String::as_str);
            let what = what.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
            Failure::new(Status::FARINDEX_ERROR_INTERNAL, format!("a defect of the library: {what}"))
        }
    };
    let text = CString::new(failure.message.replace('\0', " ")).unwrap_or_default();
    // At the end of a thread its text is gone, and the code alone remains.
    let _: Result<(), _> = LAST.try_with(|last| last.replace(text)).map(drop);
    failure.status
}

/// Returns what the last error of the calling thread was, in words that say what to do: UTF-8, empty if there was none. The
/// text is valid until the thread's next error.
#[unsafe(no_mangle)]
pub extern "C" fn farindex_error_message() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Returns the version of the library, such as "0.1.0". The text is valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn farindex_version() -> *const c_char {
    const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"",
    };
    VERSION.as_ptr()
}

fn status_of(error: &Error) -> Status {
    match error {
        Error::Url { .. } | Error::NotStored | Error::SizeMissing | Error::SizeGiven { .. } | Error::NotRemote => {
            Status::FARINDEX_ERROR_CONFIG
        }
        Error::FabricMissing { .. } | Error::FabricUnknown { .. } => Status::FARINDEX_ERROR_UNSUPPORTED,
        Error::TokenFile { .. } => Status::FARINDEX_ERROR_UNREACHABLE,
        #[cfg(any(feature = "ucx", feature = "verbs"))]
        Error::Remote(_) => Status::FARINDEX_ERROR_UNREACHABLE,
        Error::Fabric(error) => of_fabric(error),
        Error::Pool(error) => of_pool(error),
        Error::Index(error) => of_index(error),
        _ => Status::FARINDEX_ERROR,
    }
}

fn of_fabric(error: &FabricError) -> Status {
    match error {
        FabricError::Deadline { .. } | FabricError::Unreachable { .. } => Status::FARINDEX_ERROR_UNREACHABLE,
        FabricError::Revoked => Status::FARINDEX_ERROR_LEASE_LOST,
        FabricError::Unsupported { .. } => Status::FARINDEX_ERROR_UNSUPPORTED,
        FabricError::ReadOnly(_) | FabricError::Region { .. } => Status::FARINDEX_ERROR_REGION,
        FabricError::Settings(_) => Status::FARINDEX_ERROR_CONFIG,
        _ => Status::FARINDEX_ERROR,
    }
}

fn of_pool(error: &PoolError) -> Status {
    match error {
        PoolError::Fabric(error) => of_fabric(error),
        PoolError::NotAPool { .. } | PoolError::NoSuchIndex(_) => Status::FARINDEX_ERROR_NOT_FOUND,
        PoolError::Damaged { .. }
        | PoolError::Corrupt { .. }
        | PoolError::Version { .. }
        | PoolError::IndexVersion { .. }
        | PoolError::ConfigVersion { .. } => Status::FARINDEX_ERROR_CORRUPTED,
        PoolError::Mismatch(_) | PoolError::TooSmall(_) | PoolError::BadName(_) | PoolError::ConfigTooLong { .. } => {
            Status::FARINDEX_ERROR_CONFIG
        }
        PoolError::Exists(_) | PoolError::IndexExists(_) => Status::FARINDEX_ERROR_ALREADY_EXISTS,
        PoolError::Full { .. } | PoolError::CatalogFull(_) => Status::FARINDEX_ERROR_FULL,
        PoolError::NoClientSlot(_) => Status::FARINDEX_ERROR_NO_CLIENT_SLOT,
        PoolError::LeaseLost => Status::FARINDEX_ERROR_LEASE_LOST,
        PoolError::WrongKind { .. } => Status::FARINDEX_ERROR_WRONG_KIND,
        PoolError::Held { .. } => Status::FARINDEX_ERROR_LOCKED,
        _ => Status::FARINDEX_ERROR,
    }
}

fn of_index(error: &IndexError) -> Status {
    match error {
        IndexError::Fabric(error) => of_fabric(error),
        IndexError::Pool(error) => of_pool(error),
        IndexError::KeyTooLong { .. } => Status::FARINDEX_ERROR_KEY_TOO_LONG,
        IndexError::ValueTooLong { .. } => Status::FARINDEX_ERROR_VALUE_TOO_LONG,
        IndexError::Dropped => Status::FARINDEX_ERROR_DROPPED,
        IndexError::BadConfig(_) => Status::FARINDEX_ERROR_CONFIG,
        IndexError::NotOrdered { .. } | IndexError::NotPartitioned { .. } => Status::FARINDEX_ERROR_WRONG_KIND,
        IndexError::TooDeep { .. } => Status::FARINDEX_ERROR_FULL,
        IndexError::Locked { .. } => Status::FARINDEX_ERROR_LOCKED,
        _ => Status::FARINDEX_ERROR,
    }
}
