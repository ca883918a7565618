//! Revocation inside one process (G6).
//!
//! Invariants: an endpoint carries out verbs only between [`Gate::enter`] and the drop of its pass; once
//! [`Gates::revoke`] has returned, no endpoint of that client is at work on the memory, and none enters again.
//! Revocations are ordered by one lock, so of two clients that revoke each other one wins, and the other's has no
//! effect.
//!
//! The pair of flags is Dekker's: the endpoint raises `busy` and then looks at `revoked`, the revoker raises `revoked`
//! and then waits for `busy` to fall. Both are sequentially consistent, so at least one of them sees the other.

use crate::FabricError;
use crate::transport::Identity;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Admits one endpoint to the memory, until its client is revoked.
#[derive(Default)]
pub(crate) struct Gate {
    busy: AtomicBool,
    revoked: AtomicBool,
}

/// The endpoint may touch the memory until this is dropped.
pub(crate) struct Pass<'a>(&'a Gate);

impl Gate {
    #[inline]
    pub(crate) fn enter(&self) -> Result<Pass<'_>, Box<FabricError>> {
        self.busy.store(true, Ordering::SeqCst);
        let pass = Pass(self);
        if self.revoked.load(Ordering::SeqCst) {
            return Err(Box::new(FabricError::Revoked));
        }
        Ok(pass)
    }
}

impl Drop for Pass<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}

/// The gates of all endpoints of this process, by client.
#[derive(Default)]
pub(crate) struct Gates(Mutex<HashMap<u64, Client>>);

#[derive(Default)]
struct Client {
    revoked: bool,
    gates: Vec<Arc<Gate>>,
}

impl Gates {
    /// Registers a new endpoint of a client.
    pub(crate) fn open(&self, identity: &Identity) -> Arc<Gate> {
        let gate = Arc::new(Gate::default());
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let client = clients.entry(identity.token).or_default();
        gate.revoked.store(client.revoked, Ordering::SeqCst);
        client.gates.retain(|gate| Arc::strong_count(gate) > 1);
        client.gates.push(Arc::clone(&gate));
        gate
    }
    /// Closes the gates of all endpoints of a client, and waits until each has left the memory. `by` is the gate of the
    /// endpoint that asks. It is outside the memory while it waits, or two clients that revoke each other would wait
    /// for ever; so the lock decides whether it may still act.
    pub(crate) fn revoke(&self, by: &Gate, identity: &Identity) -> Result<(), FabricError> {
        let gates = {
            let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if by.revoked.load(Ordering::SeqCst) {
                return Err(FabricError::Revoked);
            }
            let client = clients.entry(identity.token).or_default();
            client.revoked = true;
            for gate in &client.gates {
                gate.revoked.store(true, Ordering::SeqCst);
            }
            client.gates.clone()
        };
        for gate in &gates {
            while gate.busy.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        }
        Ok(())
    }
}
