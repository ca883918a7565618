//! Settings of a gateway.

use crate::resp::RequestLimits;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// The names of the two indexes that a gateway works on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// The index of all keys.
    pub index: String,
    /// The ordered index, with the members of sorted sets.
    pub ordered: String,
}

impl Default for Names {
    fn default() -> Self {
        Names { index: "redis".to_owned(), ordered: "redis-sorted".to_owned() }
    }
}

/// What clients may use up. A client that exceeds a limit is answered by an error or disconnected; no other one is
/// affected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections that are open at once.
    pub clients: usize,
    /// Requests of a client that has shown the password, or needs none.
    pub requests: RequestLimits,
    /// Bytes of replies that may wait for one client. One that does not read them is disconnected.
    pub output: usize,
    /// Bytes of buffers that all clients may hold together. A client that needs more is disconnected.
    pub buffers: usize,
    /// How long a client may be silent; `None`: for ever.
    pub idle: Option<Duration>,
    /// How long a client may leave replies unread once its connection takes no more.
    pub stalled: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            clients: 10_000,
            requests: RequestLimits { arguments: 1 << 20, argument: 16 << 20, request: 64 << 20 },
            output: 256 << 20,
            buffers: 1 << 30,
            idle: None,
            stalled: Duration::from_secs(60),
        }
    }
}

/// A password.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(Vec<u8>);

impl Password {
    /// These bytes. A password of a file has the line end removed.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Password(bytes.into())
    }
    /// Compares in a time that depends on the lengths alone.
    pub(crate) fn is(&self, shown: &[u8]) -> bool {
        let differs = self.0.iter().zip(shown).fold(0, |differs, (a, b)| differs | (a ^ b));
        std::hint::black_box(differs) == 0 && self.0.len() == shown.len()
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(..)")
    }
}

/// Settings of a gateway.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where clients connect. Beyond loopback a password is required. Port 0 picks a free port.
    pub listen: SocketAddr,
    /// Worker threads; each has a session of its own.
    pub threads: usize,
    /// What clients must show, if anything.
    pub password: Option<Password>,
    /// The indexes.
    pub names: Names,
    /// What clients may use up.
    pub limits: Limits,
    /// The pause between two sweeps for what has expired or is garbage.
    pub sweep_pause: Duration,
}

impl Settings {
    /// Default settings, with clients that connect here.
    pub fn new(listen: SocketAddr) -> Self {
        Settings {
            listen,
            threads: 1,
            password: None,
            names: Names::default(),
            limits: Limits::default(),
            sweep_pause: Duration::from_secs(30),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_password_is_the_password() {
        let password = Password::new("secret");
        assert!(password.is(b"secret"));
        for wrong in [&b""[..], b"secre", b"secrets", b"Secret"] {
            assert!(!password.is(wrong));
        }
        assert_eq!(format!("{password:?}"), "Password(..)");
    }
}
