//! What looking after an index takes, whatever its kind: reading many blocks, keys that are there twice, patience with those who
//! hold locks, the grace of a drop.

use crate::IndexError;
use crate::audit::Problems;
use crate::block::{self, Decoded, UNIT};
use farindex_fabric::{Buf, OpKind, RemotePtr, Span};
use farindex_pool::{PoolError, Session, Vigil, intent};
use std::time::Duration;

/// Reads whole blocks, all in one batch but for those that are longer than so many units.
pub(crate) async fn read_blocks(span: &Span, entries: &[(RemotePtr, u64)]) -> Result<Vec<Buf>, IndexError> {
    let mut batch = span.block_batch();
    let tickets: Vec<_> = entries.iter().map(|(ptr, len)| batch.read(*ptr, *len as usize * UNIT)).collect();
    let mut done = batch.post().await?;
    let mut bufs: Vec<_> = tickets.into_iter().map(|ticket| done.buf(ticket)).collect();
    drop(done);
    for (buf, (ptr, _)) in bufs.iter_mut().zip(entries) {
        if let Decoded::Longer(len) = block::decode(buf) {
            *buf = span.read(*ptr, len).await?;
        }
    }
    Ok(bufs)
}

/// Keys that have two entries, among blocks that are told with their hashes.
pub(crate) async fn find_twins(
    session: &Session,
    mut hashes: Vec<(u64, RemotePtr)>,
    problems: &mut Problems,
) -> Result<(), IndexError> {
    hashes.sort_unstable();
    for pair in hashes.windows(2) {
        let &[(one, first), (two, second)] = pair else { continue };
        if one != two {
            continue;
        }
        let pin = session.pin(session.span(OpKind::Scan))?;
        let bufs = read_blocks(pin.span(), &[(first, 1), (second, 1)]).await?;
        let key = |buf: &Buf| match block::decode(buf) {
            Decoded::Sound(_, key, _) => buf.bytes().get(key).map(<[u8]>::to_vec),
            _ => None,
        };
        if let [one, two] = bufs.as_slice()
            && key(one) == key(two)
        {
            problems.add(format!("the blocks at {first} and {second} have the same key"));
        }
    }
    Ok(())
}

/// Waits a little for somebody who may be alive and holds the lock at `at`; `names` changes when others do. After two leases of the
/// same it is an error.
pub(crate) async fn bear(session: &Session, vigil: &mut Vigil, at: RemotePtr, names: u64) -> Result<(), IndexError> {
    let waited = vigil.lasts(names, session.endpoint().now());
    if waited > session.pool().lease() * 2 {
        let holder = intent::holders(session, &session.span(OpKind::Maintenance), at).await?;
        return Err(IndexError::Locked { at, waited_ms: waited.as_millis() as u64, holder });
    }
    session.endpoint().sleep(session.pool().lease() / 16).await;
    Ok(())
}

/// Waits until every operation has ended that began before the index was marked as dropped.
pub(crate) async fn outlast(session: &Session, span: &Span, name: &str) -> Result<(), IndexError> {
    let endpoint = session.endpoint();
    let marked = session.client().epoch() + 1;
    let lease = session.pool().lease();
    let (mut since, mut looked) = (endpoint.now(), endpoint.now());
    while !farindex_pool::epoch::graced(marked, session.client().epoch()) {
        let now = endpoint.now();
        // Who was stopped itself has waited for nobody meanwhile.
        if now.saturating_sub(std::mem::replace(&mut looked, now)) > lease {
            since = now;
        }
        if now.saturating_sub(since) > lease * 2 {
            let what = format!("the memory of index {name:?}");
            let holder = session.client().laggards(span).await?;
            return Err(PoolError::Held { what, holder }.into());
        }
        session.client().tick(endpoint).await?;
        endpoint.sleep(Duration::from_micros(20)).await;
    }
    Ok(())
}
