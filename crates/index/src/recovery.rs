//! Locks of crashed clients: how every kind of index claims, recovers and releases them.
//!
//! A lock's holder has declared an intent ahead of the CAS that takes the lock ([`farindex_pool::intent`]). A client
//! that has waited too long for a lock claims it ([`farindex_pool::takeover`]), and then finishes or undoes what the
//! crashed client left under it, from the state that it finds. Only that last part differs between kinds.
//!
//! Invariants:
//!
//! * A lock is not left held because the work under it has failed: the client releases it, or abandons it so that the
//!   next client can claim it. After a failed verb alone the state of the lock is unknown (N7), and the lock stays
//!   claimed until this client has been revoked.
//! * No wait for a lock holder exceeds two leases, unless the holder changes meanwhile. Others that try to take the lock do not
//!   count.
//! * A client that has claimed a lock looks 20 times at most, 50 us apart, whether another client that may be alive has released
//!   a lock that it needs. It does not wait longer under its own.

use crate::IndexError;
use crate::maintenance::read_word;
use crate::marks::mark;
use farindex_fabric::{Batch, Done, RemotePtr, Span};
use farindex_pool::{Claim, Intent, IntentCell, Lock, LockTimeout, Names, Pin, Session, Taken, intent};
use std::time::Duration;
use xxhash_rust::xxh3::Xxh3;

/// Pause between two looks at a lock that a claimed lock covers.
const COVERED_PAUSE: Duration = Duration::from_micros(50);
/// Looks at such a lock, until the client waits for it without the claimed lock. Its holder needs a few round trips.
const COVERED_LOOKS: u32 = 20;

/// A lock that clients hold which may be alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeldLock {
    /// The lock word.
    pub(crate) at: RemotePtr,
    /// The intents that name the lock.
    pub(crate) holders: Names,
}

/// What an attempt to take a lock has found.
pub(crate) struct Refused {
    /// The lock word.
    pub(crate) word: u64,
    /// Stands for everything that was READ in the same batch, to compare two attempts.
    pub(crate) seen: u64,
}

/// Takes a lock: declares `intent` in `cell`, CASes the lock word from `free` to `held`, and posts the READs that
/// `reads` adds, all in one batch. If the CAS fails, clears the intent and returns what was found as `Err`.
pub(crate) async fn acquire<'s, T>(
    span: &'s Span,
    cell: &IntentCell<'_>,
    intent: &Intent,
    (free, held): (u64, u64),
    reads: impl FnOnce(&mut Batch<'s>) -> T,
) -> Result<Result<(Done, T), Refused>, IndexError> {
    let mut batch = span.batch();
    cell.declare(&mut batch, intent);
    let taken = batch.cas(intent.lock.at, free, held);
    let reads = reads(&mut batch);
    let mut done = batch.post().await?;
    let old = done.old(taken);
    if old == free {
        return Ok(Ok((done, reads)));
    }
    let mut seen = Xxh3::new();
    done.bufs().for_each(|buf| seen.update(buf.bytes()));
    drop(done);
    clear_intent(span, cell).await?;
    Ok(Err(Refused { word: old, seen: seen.digest() }))
}

/// Clears an intent, in a batch of its own.
pub(crate) async fn clear_intent(span: &Span, cell: &IntentCell<'_>) -> Result<(), IndexError> {
    let mut batch = span.batch();
    cell.clear(&mut batch);
    batch.post().await?;
    cell.cleared();
    Ok(())
}

/// Calls `release` if the work under a lock has failed, unless a verb has failed: then it is unknown what holds (N7),
/// and nothing may be done under the lock any more. Returns `done`.
pub(crate) async fn release_on_error<T>(
    done: Result<T, IndexError>,
    release: impl AsyncFnOnce() -> Result<(), IndexError>,
) -> Result<T, IndexError> {
    if matches!(&done, Err(error) if !matches!(error, IndexError::Fabric(_))) {
        release().await?;
    }
    done
}

/// Claims `lock` if its holder has crashed, under an intent that says `what`, and calls `recover` with the lock word as
/// it was found and the intent's cell; `recover` releases the lock and clears the intent. If `recover` fails, the lock
/// is abandoned. Returns the lock if its holder may be alive; `None` if the lock was recovered, is free, or changes hands.
pub(crate) async fn claim_and_recover(
    pin: &Pin<'_>,
    index: u64,
    lock: Lock,
    what: [u64; 4],
    recover: impl AsyncFnOnce(u64, &IntentCell<'_>) -> Result<(), IndexError>,
) -> Result<Option<HeldLock>, IndexError> {
    let recover = async |word, cell: &IntentCell<'_>| recover(word, cell).await.map(|()| None);
    claim_and_recover_all(pin, index, (lock, None), what, recover).await
}

/// Like [`claim_and_recover`], for locks that cover others. `under` is a lock that may cover this one ([`Session::claim`]). If
/// `recover` returns a covered lock that is in its way ([`recover_covered`]), the lock is abandoned, and that one is returned.
pub(crate) async fn claim_and_recover_all(
    pin: &Pin<'_>,
    index: u64,
    (lock, under): (Lock, Option<Lock>),
    what: [u64; 4],
    recover: impl AsyncFnOnce(u64, &IntentCell<'_>) -> Result<Option<HeldLock>, IndexError>,
) -> Result<Option<HeldLock>, IndexError> {
    match pin.session().claim(pin.span(), lock, under, index, what).await? {
        Claim::Busy { names, .. } => Ok(Some(HeldLock { at: lock.at, holders: names })),
        Claim::Taken(Taken { cell: Some(cell), word, .. }) => {
            let done = recover(word, &cell).await;
            if let Ok(Some(_)) = done {
                mark!("recovery: a live client holds a covered lock");
                cell.abandon_lock(pin.span()).await?;
            }
            release_on_error(done, async || Ok(cell.abandon_lock(pin.span()).await?)).await
        }
        Claim::Free | Claim::Unsteady | Claim::Taken(_) => Ok(None),
    }
}

/// Looks until a lock is free that a lock of the caller covers, or claims it if its holder has crashed, and calls `recover`: then
/// the caller holds it under the covering lock's intent. Returns the lock if a client that may be alive keeps it: nobody waits
/// for that under a lock, because each one that gives up would leave the lock to the next one (docs/bugs/236).
pub(crate) async fn recover_covered(
    pin: &Pin<'_>,
    lock: Lock,
    recover: impl AsyncFnOnce() -> Result<Option<HeldLock>, IndexError>,
) -> Result<Option<HeldLock>, IndexError> {
    let (session, span) = (pin.session(), pin.span());
    let mut holders = Names::NONE;
    for _ in 0..COVERED_LOOKS {
        if !lock.held(read_word(span, lock.at).await?) {
            return Ok(None);
        }
        holders = match session.claim_covered(span, lock).await? {
            Claim::Taken(_) => return recover().await,
            Claim::Busy { names, .. } => names,
            Claim::Free | Claim::Unsteady => Names::NONE,
        };
        session.endpoint().sleep(COVERED_PAUSE).await;
    }
    Ok(Some(HeldLock { at: lock.at, holders }))
}

/// Recovers one lock for a walk: calls `attempt`, each time under a new pin of `pin`, until the lock is free, `pin`
/// returns `None`, or a client that may be alive has held the lock for two leases, which is an error. Returns the
/// number of attempts that have not found the lock held by such a client.
pub(crate) async fn recover_lock<'s>(
    session: &Session,
    lock: Lock,
    mut pin: impl AsyncFnMut() -> Result<Option<Pin<'s>>, IndexError>,
    mut attempt: impl AsyncFnMut(&Pin<'s>) -> Result<Option<HeldLock>, IndexError>,
) -> Result<u64, IndexError> {
    let (mut timeout, mut recovered) = (LockTimeout::default(), 0);
    while let Some(pin) = pin().await? {
        if !lock.held(read_word(pin.span(), lock.at).await?) {
            break;
        }
        let held = attempt(&pin).await?;
        drop(pin);
        recovered += u64::from(held.is_none());
        let held = held.unwrap_or(HeldLock { at: lock.at, holders: Names::NONE });
        wait_for_lock_holder(session, &mut timeout, held).await?;
    }
    Ok(recovered)
}

/// Waits for a sixteenth of a lease. Fails if the lock has had the same holder for two leases.
pub(crate) async fn wait_for_lock_holder(
    session: &Session,
    timeout: &mut LockTimeout,
    held: HeldLock,
) -> Result<(), IndexError> {
    let span = session.span(farindex_fabric::OpKind::Maintenance);
    check_timeout(session, &span, timeout, held).await?;
    session.endpoint().sleep(session.pool().lease() / 16).await;
    Ok(())
}

/// Fails if the lock has had the same holder for two leases.
pub(crate) async fn check_timeout(
    session: &Session,
    span: &Span,
    timeout: &mut LockTimeout,
    held: HeldLock,
) -> Result<(), IndexError> {
    check_timeout_of(session, span, timeout, (held, 0), 2).await
}

/// Fails if the lock has had the same holder for so many leases, in the same `state`.
pub(crate) async fn check_timeout_of(
    session: &Session,
    span: &Span,
    timeout: &mut LockTimeout,
    (held, state): (HeldLock, u64),
    leases: u32,
) -> Result<(), IndexError> {
    let lease = session.pool().lease();
    let waited = timeout.held_for(held.at, state, held.holders, (session.endpoint().now(), lease));
    if waited <= lease * leases {
        return Ok(());
    }
    let holder = intent::holders(session, span, held.at).await?;
    Err(IndexError::Locked { at: held.at, waited_ms: waited.as_millis() as u64, holder })
}
