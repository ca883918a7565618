//! What walks over an index share, whatever its kind: reading many blocks, checking addresses, freeing, and the grace
//! period of a drop.

use crate::IndexError;
use crate::audit::leads_nowhere;
use crate::block::{self, Block, Decoded, HEADER_LEN, Header, UNIT};
use crate::visit::Entries;
use farindex_fabric::ptr::BLOCK_ALIGN;
use farindex_fabric::{Buf, FabricError, NodeId, OpKind, RemotePtr, Span};
use farindex_pool::{Pool, PoolError, Session, Waited};
use std::time::Duration;

/// Waits, for an operation that is not pinned any more, until this node has the memory that an allocation without
/// waiting did not get; the error is that of the allocation.
pub(crate) async fn wait_for_room(session: &Session, node: NodeId, error: IndexError) -> Result<(), IndexError> {
    match error {
        IndexError::Pool(PoolError::Full { wanted, .. }) => await_room(session, node, wanted).await,
        error => Err(error),
    }
}

/// Waits until this many bytes can be allocated on a node.
pub(crate) async fn await_room(session: &Session, node: NodeId, bytes: u64) -> Result<(), IndexError> {
    let span = session.span(OpKind::Maintenance);
    let room = session.alloc(&span, node, bytes).await?;
    Ok(session.free(&span, room, bytes).await?)
}

/// READs whole blocks, given their addresses and lengths in units. One batch READs all of them; a block that is longer
/// than its number of units takes another READ. A pointer that leads to no sound block is an error of its own entry
/// alone, in words that follow "points to".
pub(crate) async fn fetch_blocks(
    span: &Span,
    entries: &[(RemotePtr, u64)],
) -> Result<Vec<Result<Block, String>>, IndexError> {
    let bufs = read_each(span, entries).await?.into_iter().zip(entries);
    let blocks = bufs.map(|(buf, (ptr, _))| {
        Block::decode(buf?).ok_or_else(|| format!("{ptr}, where the key-value block has a wrong checksum"))
    });
    Ok(blocks.collect())
}

async fn read_each(span: &Span, entries: &[(RemotePtr, u64)]) -> Result<Vec<Result<Buf, String>>, IndexError> {
    let mut bufs = Vec::with_capacity(entries.len());
    match read_batch(span, entries).await {
        Ok(all) => bufs.extend(all.into_iter().map(Ok)),
        // The fabric refuses the whole batch because of one bad pointer, before it posts anything.
        Err(error) if leads_nowhere(&error).is_some() => {
            for entry in entries {
                let one = read_batch(span, std::slice::from_ref(entry)).await;
                bufs.push(per_entry(one.map(|mut one| one.pop().unwrap_or_else(|| span.endpoint().buf(0))))?);
            }
        }
        Err(error) => return Err(error.into()),
    }
    for (buf, (ptr, _)) in bufs.iter_mut().zip(entries) {
        if let Ok(head) = buf
            && let Decoded::Longer(len) = block::decode(head)
        {
            *buf = per_entry(block::read_tail(span, *ptr, head, len).await)?;
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

/// Distinguishes a pointer that leads nowhere, an error of one entry, from a READ that has failed.
fn per_entry(read: Result<Buf, FabricError>) -> Result<Result<Buf, String>, IndexError> {
    match read {
        Ok(buf) => Ok(Ok(buf)),
        Err(error) => leads_nowhere(&error).map(Err).ok_or_else(|| error.into()),
    }
}

/// Returns why no object of `bytes` bytes can lie at `ptr`, in words that follow "points to". Call it before a READ
/// whose length comes from far memory.
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

/// Blocks that are read in one batch.
pub(crate) const BLOCKS_PER_BATCH: usize = 64;

/// READs the headers of blocks, in one batch; `None` where no block begins.
pub(crate) async fn read_headers(span: &Span, blocks: &[RemotePtr]) -> Result<Vec<Option<Header>>, FabricError> {
    let mut batch = span.block_batch();
    let tickets: Vec<_> = blocks.iter().map(|ptr| batch.read(*ptr, HEADER_LEN)).collect();
    let mut done = batch.post().await?;
    Ok(tickets.into_iter().map(|ticket| Header::decode(done.buf(ticket).words())).collect())
}

/// Frees blocks of a dropped index. Skips an address where no block begins.
pub(crate) async fn free_blocks(session: &Session, span: &Span, blocks: &[RemotePtr]) -> Result<(), IndexError> {
    for part in blocks.chunks(BLOCKS_PER_BATCH) {
        for (ptr, header) in part.iter().zip(read_headers(span, part).await?) {
            if let Some(header) = header {
                session.free(span, *ptr, header.block_len() as u64).await?;
            }
        }
    }
    Ok(())
}

/// Hands out the keys and values of blocks; returns their number.
pub(crate) async fn hand_out(blocks: Vec<Block>, entries: &Entries) -> Result<u64, IndexError> {
    let count = blocks.len() as u64;
    for block in blocks {
        let key = block.key().to_vec();
        entries.hand_out(key, block.into_value()).await?;
    }
    Ok(count)
}

/// Waits until every operation has ended that began before the index was marked as dropped. A client that does not
/// quiesce for two leases is an error.
pub(crate) async fn wait_for_grace_period(session: &Session, span: &Span, name: &str) -> Result<(), IndexError> {
    let mut waited = Waited::default();
    if grace_period(session, || waited.look(session) <= session.pool().lease() * 2).await? {
        return Ok(());
    }
    let what = format!("the memory of index {name:?}");
    let holder = session.client().laggards(span).await?;
    Err(PoolError::Held { what, holder }.into())
}

/// Sends heartbeats until the grace period of what was retired so far has elapsed, as long as the caller goes on; returns whether
/// it has elapsed. The others publish in heartbeats of their own how far they have come: to ask them more and more often helps
/// nobody.
pub(crate) async fn grace_period(session: &Session, mut goes_on: impl FnMut() -> bool) -> Result<bool, IndexError> {
    let (client, endpoint) = (session.client(), session.endpoint());
    let marked = client.epoch() + 1;
    let most = (session.pool().lease() / 16).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
    let mut pause = SHORTEST_PAUSE;
    while !farindex_pool::epoch::grace_period_elapsed(marked, client.epoch()) {
        if !goes_on() {
            return Ok(false);
        }
        client.tick(endpoint).await?;
        endpoint.sleep(pause).await;
        pause = (pause * 2).min(most);
    }
    Ok(true)
}

/// Pauses between two heartbeats of a client that waits for a grace period: no longer than a sixteenth of a lease.
const SHORTEST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// READs one word.
pub(crate) async fn read_word(span: &Span, at: RemotePtr) -> Result<u64, IndexError> {
    Ok(first_word(&span.read(at, 8).await?))
}

/// Returns the first word of a buffer; 0 if it is empty.
pub(crate) fn first_word(buf: &Buf) -> u64 {
    buf.words().first().copied().unwrap_or_default()
}
