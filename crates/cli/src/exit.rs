//! How the program ends: exit codes that scripts can use, and one line that says what to do.

use farindex::Error;
use farindex::IndexError;
use farindex::PoolError;
use farindex_bench::BenchError;
use farindex_bench::driver::cluster;
use farindex_fabric::FabricError;
use std::fmt;
use std::io;

/// Done; found; sound.
pub(crate) const OK: u8 = 0;
/// A negative result.
pub(crate) const NO: u8 = 1;
/// The command line is invalid.
pub(crate) const USAGE: u8 = 2;
/// The pool or a file cannot be used.
pub(crate) const FILE: u8 = 3;
/// The index cannot be used.
pub(crate) const INDEX: u8 = 4;
/// An entry was refused.
pub(crate) const REFUSED: u8 = 5;
/// No room.
pub(crate) const FULL: u8 = 6;
/// Another client prevents the command.
pub(crate) const BUSY: u8 = 7;
/// Nothing is wrong, but crashed clients have left something behind.
pub(crate) const LEFT_BEHIND: u8 = 9;
/// Part of an index was damaged, and left out.
pub(crate) const DAMAGED: u8 = 10;
/// A bug of the program.
pub(crate) const BUG: u8 = 70;
/// Ended early by a signal; [`crate::signals::exit_code`] says by which.
pub(crate) const INTERRUPTED: u8 = 130;
/// The reader of the output has gone.
pub(crate) const PIPE: u8 = 141;

/// The table of `--help`; docs/cli.md has the same.
pub(crate) const TABLE: &str = "\
Exit codes:
    0  done; the key was found; the pool is sound; all answers were right
    1  a negative result: key absent (or present, for an insert), problems found,
       wrong answers or failed operations, an expectation that does not hold
    2  the command line or a scenario is invalid
    3  the pool or a file cannot be used: missing, foreign, damaged, of another
       version, read-only
    4  the index cannot be used: there is none of this name, or one already, or
       of another kind
    5  entries were refused: too long a key or value, or rejects of a load
    6  no room: the pool is full, or its client slots, or its catalog
    7  another client prevents the command: it held a lock too long; or this
       client's lease has expired
    9  the pool is sound, but crashed clients have left memory or unfinished steps
       behind (pool check)
   10  damaged places of an index were left out, as requested
   70  a bug in this program
  129  ended by SIGHUP; 130 by Ctrl-C (SIGINT); 143 by SIGTERM
  141  the reader of the output has closed it";

/// Why a command did not do what it was asked to.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    /// Without `error: `; empty if everything has been said.
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Failure { code, message: message.into() }
    }
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Failure::new(USAGE, message)
    }
    /// A file could not be read or written.
    pub(crate) fn file(path: impl fmt::Display, doing: &str, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::new(PIPE, ""),
            _ => Failure::new(FILE, format!("{path}: {doing}: {error}")),
        }
    }
    /// The message with what was being worked on before it.
    pub(crate) fn about(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }
}

fn of_pool(error: &PoolError) -> u8 {
    match error {
        PoolError::Full { .. } | PoolError::NoClientSlot(_) | PoolError::CatalogFull(_) => FULL,
        PoolError::LeaseLost
        | PoolError::NotWrittenBack
        | PoolError::SessionsOpen(_)
        | PoolError::Held { .. }
        | PoolError::NotAlone(_) => BUSY,
        PoolError::NoSuchIndex(_)
        | PoolError::IndexExists(_)
        | PoolError::WrongKind { .. }
        | PoolError::IndexVersion { .. }
        | PoolError::ConfigVersion { .. }
        | PoolError::BadName(_) => INDEX,
        PoolError::TooSmall(_) => USAGE,
        PoolError::Fabric(error) => of_fabric(error),
        _ => FILE,
    }
}

fn of_fabric(error: &FabricError) -> u8 {
    match error {
        FabricError::Settings(_) => USAGE,
        FabricError::Deadline { .. } | FabricError::Revoked | FabricError::CannotRevoke(_) => BUSY,
        _ => FILE,
    }
}

/// The code of an error of the library.
pub(crate) fn code_of(error: &Error) -> u8 {
    match error {
        Error::Url { .. }
        | Error::NotStored
        | Error::SizeMissing
        | Error::SizeGiven { .. }
        | Error::NotRemote
        | Error::FabricMissing { .. }
        | Error::FabricUnknown { .. }
        | Error::TokenFile { .. } => USAGE,
        Error::NotReplaced { why, .. } => code_of(why),
        Error::Fabric(error) => of_fabric(error),
        Error::Pool(error) => of_pool(error),
        Error::Index(error) => match error {
            IndexError::KeyTooLong { .. } | IndexError::ValueTooLong { .. } => REFUSED,
            IndexError::Dropped => INDEX,
            IndexError::BadConfig(_) | IndexError::NotOrdered { .. } | IndexError::NotPartitioned { .. } => USAGE,
            IndexError::Locked { .. } => BUSY,
            IndexError::Pool(error) => of_pool(error),
            IndexError::Fabric(error) => of_fabric(error),
            _ => FILE,
        },
        _ => FILE,
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::new(code_of(&error), error.to_string())
    }
}

impl From<farindex_reproduce::Error> for Failure {
    fn from(error: farindex_reproduce::Error) -> Self {
        use farindex_reproduce::Error;
        let code = match error {
            Error::Farindex(error) => return error.into(),
            Error::Bench(error) => return error.into(),
            Error::Usage(_) => USAGE,
            Error::Wrong(_) => NO,
            Error::Interrupted => INTERRUPTED,
            _ => BUG,
        };
        Failure::new(code, error.to_string())
    }
}

impl From<cluster::Error> for Failure {
    fn from(error: cluster::Error) -> Self {
        match error {
            cluster::Error::Farindex(error) => error.into(),
            cluster::Error::Bench(error) => error.into(),
            other => Failure::new(BUG, other.to_string()),
        }
    }
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Self {
        let code = match error {
            BenchError::Panicked { .. } => BUG,
            BenchError::Worker { .. } => FILE,
            _ => USAGE,
        };
        // A complaint about a scenario has several lines, which show the place.
        Failure::new(code, error.to_string())
    }
}
