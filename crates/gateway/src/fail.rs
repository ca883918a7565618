//! Why a command fails, as its client reads it.
//!
//! Invariant: the first word is what clients of Redis map to exceptions (`ERR`, `WRONGTYPE`, `OOM`, `NOAUTH`); the rest
//! says what to do.

use farindex::{Error, FabricError, IndexError, PoolError};
use std::borrow::Cow;

/// An error reply.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum Fail {
    #[error("WRONGTYPE Operation against a key holding the wrong kind of value")]
    WrongType,
    #[error("ERR value is not an integer or out of range")]
    NotAnInteger,
    #[error("ERR value is not a valid float")]
    NotAFloat,
    #[error("ERR syntax error")]
    Syntax,
    #[error("ERR {0}")]
    Text(Cow<'static, str>),
    /// A text with a first word of its own.
    #[error("{0}")]
    Coded(Cow<'static, str>),
    /// The reply is longer than the client may have waiting: the connection ends.
    #[error("ERR the reply is larger than the limit for the replies of one client")]
    ReplyTooLarge,
    /// Far memory.
    #[error("{}", of_index(.0))]
    Index(Error),
}

impl Fail {
    pub(crate) fn text(text: impl Into<Cow<'static, str>>) -> Self {
        Fail::Text(text.into())
    }
    /// Has this process lost its place in the pool? Then only a new registration helps.
    pub(crate) fn is_eviction(&self) -> bool {
        match self {
            Fail::Index(error) => is_eviction(error),
            _ => false,
        }
    }
}

impl<E: Into<Error>> From<E> for Fail {
    fn from(error: E) -> Self {
        Fail::Index(error.into())
    }
}

/// Does this error mean that this client of the pool was evicted?
pub(crate) fn is_eviction(error: &Error) -> bool {
    matches!(
        error,
        Error::Fabric(FabricError::Revoked)
            | Error::Pool(PoolError::LeaseLost | PoolError::Fabric(FabricError::Revoked))
            | Error::Index(
                IndexError::Fabric(FabricError::Revoked)
                    | IndexError::Pool(PoolError::LeaseLost | PoolError::Fabric(FabricError::Revoked))
            )
    )
}

fn of_index(error: &Error) -> String {
    match error {
        error if is_eviction(error) => {
            "ERR this gateway was evicted from the pool because its lease had expired, and registers again; the \
             command may have taken effect or not: read the key before you send it again"
                .to_owned()
        }
        Error::Pool(PoolError::Full { .. }) | Error::Index(IndexError::Pool(PoolError::Full { .. })) => {
            format!("OOM command not allowed: {error}")
        }
        Error::Fabric(_) | Error::Index(IndexError::Fabric(_)) => {
            format!("ERR {error}; the command may have taken effect or not")
        }
        error => format!("ERR {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_far_memory_say_what_to_do() {
        let full = PoolError::Full { node: farindex::lower::fabric::NodeId::new(0), wanted: 64, size: 4096 };
        assert!(Fail::from(full).to_string().starts_with("OOM command not allowed: the pool is full"));
        let lost = Fail::from(PoolError::LeaseLost);
        assert!(lost.is_eviction() && lost.to_string().contains("may have taken effect or not"));
        assert!(Fail::from(IndexError::Fabric(FabricError::Revoked)).is_eviction());
        let long = Fail::from(IndexError::ValueTooLong { len: 20, max: 10 });
        assert_eq!(long.to_string(), "ERR a value of 20 bytes is longer than the limit of 10");
    }
}
