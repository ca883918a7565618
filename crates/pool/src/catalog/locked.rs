//! The lock of the catalog's names.
//!
//! Invariants: each taking of the lock has a lock word of its own, which has the client's slot in it. So an atomic that
//! releases one taking and lands late (N5, N7) does not release another. An intent names the holder. The lock is released
//! even if what runs under it has failed: whatever lands of that later is harmless, as the [catalog](super) says.

use crate::layout::{HOME, header, header_word};
use crate::session::Session;
use crate::takeover::held;
use crate::{Claim, Intent, Lock, LockTimeout, PoolError, Waited};
use farindex_fabric::Span;
use std::time::Duration;

const LOCK: Lock = Lock { at: header_word(HOME, header::CATALOG_LOCK), mask: u64::MAX };

/// Bits of the lock word that say which client has the lock.
const HOLDER: u64 = u32::MAX as u64;

/// Takes the catalog's lock, runs `body`, and releases the lock even if `body` fails. Whatever has taken effect of a change
/// under this lock leaves the catalog whole, so a new holder after a takeover has nothing to recover.
pub(super) async fn locked<T>(
    session: &Session,
    span: &Span,
    body: impl AsyncFnOnce() -> Result<T, PoolError>,
) -> Result<T, PoolError> {
    let (client, endpoint) = (session.client(), session.endpoint());
    let lease = session.pool().lease();
    let intent = Intent { index: 0, lock: LOCK, what: [0; 4] };
    let mut lock_timeout = LockTimeout::default();
    let mut waited = Waited::default();
    let mut pause = Duration::from_micros(50);
    // What the lock word is while it is free, or belongs to a cancelled operation of this client.
    let mut free = 0;
    let (_inside, held) = loop {
        if let Some(inside) = client.enter_catalog() {
            let mine = (client.slot() + 1) | client.next_taking() << 32;
            let cell = session.intent_cell(HOME).await?;
            let mut batch = span.batch();
            let attempt = cell.try_lock(&mut batch, &intent, std::mem::take(&mut free), mine);
            let mut done = batch.post().await?;
            let (word, cell) = match attempt.outcome(&mut done) {
                Ok(held) => break (inside, held),
                Err(lost) => (lost.word(), lost.clear(span).await?),
            };
            drop(cell);
            match session.claim(span, LOCK, None, 0, intent.what).await? {
                Claim::Taken(taken) => break (inside, taken.into_held()),
                // No operation of this client is in the catalog, so the lock belongs to a cancelled one.
                Claim::Busy { own: true, .. } if word & HOLDER == client.slot() + 1 => {
                    free = word;
                    continue;
                }
                Claim::Busy { names, .. } => {
                    if lock_timeout.held_for(LOCK.at, 0, names, (endpoint.now(), lease)) > lease * 2 {
                        return Err(held(session, span, LOCK, "the catalog").await?);
                    }
                }
                Claim::Free | Claim::Unsteady => {}
            }
        } else if waited.look(session) > lease * 2 {
            let what = "the catalog".to_owned();
            return Err(PoolError::Held { what, holder: "another operation of this client".to_owned() });
        }
        endpoint.sleep(pause).await;
        pause = (pause * 2).min(lease / 16).max(Duration::from_micros(50));
    };
    let result = body().await;
    let mut batch = span.batch();
    held.release_by_cas(&mut batch, 0);
    batch.post().await?;
    held.cleared();
    result
}
