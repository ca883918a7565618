//! Exceptions by kind. The classes are in `farindex/_errors.py`; this module says which error is which class.

use farindex::{Error, FabricError, HandleError, IndexError, PoolError};
use pyo3::prelude::*;

/// Why an operation failed, where no Python object may be made: the thread is detached from the interpreter.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The library's error.
    Library(Error),
    /// An exception of this class of `farindex._errors`, with this message.
    Own(&'static str, String),
}

impl Failure {
    pub(crate) fn closed() -> Self {
        Failure::Own("PoolClosed", "the pool is closed: open it again".to_owned())
    }
    pub(crate) fn forked() -> Self {
        let what = "this process was forked from the one that opened the pool, and is no client of it: open the pool again here, \
                    or start processes by the method 'spawn'";
        Failure::Own("ForkedProcess", what.to_owned())
    }
    pub(crate) fn settings(what: impl Into<String>) -> Self {
        Failure::Own("ConfigError", what.into())
    }
}

impl<E: Into<Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::Library(error.into())
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        Python::attach(|py| match failure {
            Failure::Library(error) => raise(py, class(&error), &error.to_string()),
            Failure::Own(class, what) => raise(py, class, &what),
        })
    }
}

/// An exception of a class of `farindex._errors`.
fn raise(py: Python<'_>, class: &str, what: &str) -> PyErr {
    let made = py.import("farindex._errors").and_then(|module| module.getattr(class)?.call1((what,)));
    made.map_or_else(|error| error, PyErr::from_value)
}

/// The class of a library error. An error that a later version adds is a `FarindexError`.
fn class(error: &Error) -> &'static str {
    match error {
        Error::Url { .. } | Error::NotStored | Error::SizeMissing | Error::SizeGiven { .. } | Error::NotRemote => {
            "ConfigError"
        }
        Error::FabricMissing { .. } | Error::FabricUnknown { .. } => "Unsupported",
        Error::TokenFile { .. } => "ConnectionFailed",
        #[cfg(any(feature = "ucx", feature = "verbs"))]
        Error::Remote(_) => "ConnectionFailed",
        Error::Handle(HandleError::WorkerPanicked | HandleError::NotStarted(_)) => "WorkerFailed",
        Error::Fabric(error) => fabric_class(error),
        Error::Pool(error) => pool_class(error),
        Error::Index(error) => index_class(error),
        _ => "FarindexError",
    }
}

fn fabric_class(error: &FabricError) -> &'static str {
    match error {
        FabricError::Deadline { .. } => "DeadlineExceeded",
        FabricError::Unreachable { .. } => "ConnectionFailed",
        FabricError::Revoked => "LeaseLost",
        FabricError::Unsupported { .. } => "Unsupported",
        FabricError::ReadOnly(_) => "ReadOnly",
        FabricError::Region { .. } => "RegionError",
        FabricError::Settings(_) => "ConfigError",
        _ => "FarindexError",
    }
}

fn pool_class(error: &PoolError) -> &'static str {
    match error {
        PoolError::Fabric(error) => fabric_class(error),
        PoolError::NotAPool { .. } => "NotAPool",
        PoolError::Damaged { .. } | PoolError::Corrupt { .. } => "Corrupted",
        PoolError::Version { .. } | PoolError::IndexVersion { .. } | PoolError::ConfigVersion { .. } => {
            "VersionMismatch"
        }
        PoolError::Mismatch(_) | PoolError::TooSmall(_) | PoolError::BadName(_) | PoolError::ConfigTooLong { .. } => {
            "ConfigError"
        }
        PoolError::Exists(_) => "PoolExists",
        PoolError::Full { .. } => "PoolFull",
        PoolError::CatalogFull(_) => "CatalogFull",
        PoolError::NoClientSlot(_) => "NoClientSlot",
        PoolError::NotWrittenBack => "NotWrittenBack",
        PoolError::LeaseLost => "LeaseLost",
        PoolError::NoSuchIndex(_) => "NoSuchIndex",
        PoolError::IndexExists(_) => "IndexExists",
        PoolError::WrongKind { .. } => "WrongKind",
        PoolError::Held { .. } => "Locked",
        PoolError::NotAlone(_) => "NotAlone",
        _ => "FarindexError",
    }
}

fn index_class(error: &IndexError) -> &'static str {
    match error {
        IndexError::Fabric(error) => fabric_class(error),
        IndexError::Pool(error) => pool_class(error),
        IndexError::KeyTooLong { .. } => "KeyTooLong",
        IndexError::ValueTooLong { .. } => "ValueTooLong",
        IndexError::Dropped => "IndexDropped",
        IndexError::BadConfig(_) => "ConfigError",
        IndexError::NotOrdered { .. } => "NotOrdered",
        IndexError::NotPartitioned { .. } => "NotPartitioned",
        IndexError::TooDeep { .. } => "IndexFull",
        IndexError::NotOwner { .. } => "NotOwner",
        IndexError::Locked { .. } => "Locked",
        _ => "FarindexError",
    }
}
