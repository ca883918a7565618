//! What looking after an index takes, whatever its kind: reading many blocks, keys that are there twice, patience with those who
//! hold locks, the grace of a drop.

use crate::IndexError;
use crate::Value;
use crate::audit::{Problems, leads_nowhere};
use crate::block::{self, Decoded, Header, UNIT};
use farindex_fabric::ptr::BLOCK_ALIGN;
use farindex_fabric::{Buf, FabricError, OpKind, RemotePtr, Span};
use farindex_pool::{LockTimeout, Pool, PoolError, Session, intent};
use std::ops::Range;
use std::time::Duration;

/// A key-value block that was read whole, and whose checksum is right.
pub(crate) struct Block {
    pub(crate) header: Header,
    buf: Buf,
    key: Range<usize>,
    value: Range<usize>,
}

impl Block {
    fn of(buf: Buf) -> Option<Self> {
        match block::decode(&buf) {
            Decoded::Sound(header, key, value) => Some(Block { header, buf, key, value }),
            _ => None,
        }
    }
    pub(crate) fn key(&self) -> &[u8] {
        self.buf.bytes().get(self.key.clone()).unwrap_or_default()
    }
    pub(crate) fn into_value(self) -> Value {
        Value::fetched(self.buf, self.value)
    }
}

/// Reads whole blocks, all in one batch but for those that are longer than so many units. A pointer that leads to no sound block is
/// an error of its own entry alone, in words that follow "points to".
pub(crate) async fn fetch_blocks(
    span: &Span,
    entries: &[(RemotePtr, u64)],
) -> Result<Vec<Result<Block, String>>, IndexError> {
    let bufs = read_each(span, entries).await?.into_iter().zip(entries);
    let blocks = bufs.map(|(buf, (ptr, _))| {
        Block::of(buf?).ok_or_else(|| format!("{ptr}, where the key-value block has a wrong checksum"))
    });
    Ok(blocks.collect())
}

/// The same for those who decode blocks themselves: what cannot be read is an empty buffer, which is no sound block.
pub(crate) async fn read_blocks(span: &Span, entries: &[(RemotePtr, u64)]) -> Result<Vec<Buf>, IndexError> {
    let bufs = read_each(span, entries).await?;
    Ok(bufs.into_iter().map(|buf| buf.unwrap_or_else(|_| span.endpoint().buf(0))).collect())
}

async fn read_each(span: &Span, entries: &[(RemotePtr, u64)]) -> Result<Vec<Result<Buf, String>>, IndexError> {
    let mut bufs = Vec::with_capacity(entries.len());
    match read_batch(span, entries).await {
        Ok(all) => bufs.extend(all.into_iter().map(Ok)),
        // A pointer that leads nowhere makes the fabric refuse the whole batch. It says so before anything is posted.
        Err(error) if leads_nowhere(&error).is_some() => {
            for entry in entries {
                let one = read_batch(span, std::slice::from_ref(entry)).await;
                bufs.push(of_its_own(one.map(|mut one| one.pop().unwrap_or_else(|| span.endpoint().buf(0))))?);
            }
        }
        Err(error) => return Err(error.into()),
    }
    for (buf, (ptr, _)) in bufs.iter_mut().zip(entries) {
        if let Ok(head) = buf
            && let Decoded::Longer(len) = block::decode(head)
        {
            *buf = of_its_own(block::read_tail(span, *ptr, head, len).await)?;
        }
    }
    Ok(bufs)
}

async fn read_batch(span: &Span, entries: &[(RemotePtr, u64)]) -> Result<Vec<Buf>, FabricError> {
    let mut batch = span.block_batch();
    let tickets: Vec<_> = entries.iter().map(|(ptr, units)| batch.read(*ptr, *units as usize * UNIT)).collect();
    let mut done = batch.post().await?;
    Ok(tickets.into_iter().map(|ticket| done.buf(ticket)).collect())
}

/// Tells a pointer that leads nowhere from a READ that has failed.
fn of_its_own(read: Result<Buf, FabricError>) -> Result<Result<Buf, String>, IndexError> {
    match read {
        Ok(buf) => Ok(Ok(buf)),
        Err(error) => leads_nowhere(&error).map(Err).ok_or_else(|| error.into()),
    }
}

/// Why no object of `bytes` bytes can lie at `ptr`, in words that follow "points to". Ask before a READ whose length comes from far
/// memory as well.
pub(crate) fn astray(pool: &Pool, ptr: RemotePtr, bytes: u64) -> Option<String> {
    let node = ptr.node();
    if node.index() >= pool.nodes().len() {
        return Some(format!("memory node {node}, which does not exist"));
    }
    let geometry = pool.geometry(node);
    let end = geometry.data() + geometry.chunks * geometry.chunk_size;
    let fits = ptr.offset() >= geometry.data() && ptr.offset().checked_add(bytes).is_some_and(|last| last <= end);
    let aligned = ptr.offset().is_multiple_of(BLOCK_ALIGN);
    (!fits || !aligned).then(|| format!("{bytes} bytes at {ptr}, where no object can lie"))
}

/// Keys that have two entries, among blocks that are told with their hashes.
pub(crate) async fn find_duplicate_keys(
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
        let blocks = fetch_blocks(pin.span(), &[(first, 1), (second, 1)]).await?;
        if let [Ok(one), Ok(two)] = blocks.as_slice()
            && one.key() == two.key()
        {
            problems.add(format!("the blocks at {first} and {second} have the same key"));
        }
    }
    Ok(())
}

/// Waits a little for somebody who may be alive and holds the lock at `at`; `names` changes when others do. After two leases of the
/// same it is an error.
pub(crate) async fn wait_for_lock_holder(
    session: &Session,
    lock_timeout: &mut LockTimeout,
    at: RemotePtr,
    names: u64,
) -> Result<(), IndexError> {
    let waited = lock_timeout.held_for(names, session.endpoint().now());
    if waited > session.pool().lease() * 2 {
        let holder = intent::holders(session, &session.span(OpKind::Maintenance), at).await?;
        return Err(IndexError::Locked { at, waited_ms: waited.as_millis() as u64, holder });
    }
    session.endpoint().sleep(session.pool().lease() / 16).await;
    Ok(())
}

/// Waits until every operation has ended that began before the index was marked as dropped.
pub(crate) async fn wait_for_grace_period(session: &Session, span: &Span, name: &str) -> Result<(), IndexError> {
    let endpoint = session.endpoint();
    let marked = session.client().epoch() + 1;
    let lease = session.pool().lease();
    let (mut since, mut looked) = (endpoint.now(), endpoint.now());
    while !farindex_pool::epoch::grace_period_elapsed(marked, session.client().epoch()) {
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
