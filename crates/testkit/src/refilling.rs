//! Memory that is free can be used: the pool is filled with blocks of one size, some are freed, and it is filled with
//! blocks of another. Then one session fills and empties the pool, and others fill it again.
//!
//! Invariants: only one client is there, so nothing else allocates or frees meanwhile. When an allocation of a block is
//! refused, no chunk of its memory node is left that is unused or free: any one has room for the block. Of what a session
//! has freed it keeps no more than stated below; all else is there for another session, and what a session keeps that ends
//! is there for the others of its client. In the end everything is freed again.

use crate::worker::Shared;
use farindex_fabric::{NodeId, OpKind, RemotePtr};
use farindex_pool::audit::Audit;
use farindex_pool::{PoolError, Session};
use farindex_sim::{ODDS, SimRng};
use std::rc::Rc;

/// Sizes to draw from, each of another class; all fit into the smallest chunk.
const SIZES: [u64; 6] = [200, 500, 1000, 2000, 4000, 8000];

/// What a session keeps of one size in its free list, before it gives back what is more: so many blocks, or so many bytes of
/// them, or this share of the node; and four times as many until it has looked.
const KEPT_BLOCKS: u64 = 16;
const KEPT_BYTES: u64 = 32 << 10;
const KEPT_SHARE: u64 = 1024;
const UNTIL_IT_LOOKS: u64 = 4;
/// The share of a node that it keeps in objects of whole chunks.
const KEPT_SHARE_OF_CHUNKS: u64 = 256;

/// Blocks of one size.
type Blocks = Vec<(RemotePtr, u64)>;

/// Allocates blocks of this size until there is no room.
async fn fill(session: &Session, node: NodeId, bytes: u64, blocks: &mut Blocks) -> Result<(), PoolError> {
    loop {
        match session.alloc(&session.span(OpKind::Other), node, bytes).await {
            Ok(at) => blocks.push((at, bytes)),
            Err(PoolError::Full { .. }) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Frees these blocks, and gives the pool whatever the session keeps.
async fn free(session: &Session, blocks: impl IntoIterator<Item = (RemotePtr, u64)>) -> Result<(), PoolError> {
    for (at, bytes) in blocks {
        session.free(&session.span(OpKind::Other), at, bytes).await?;
    }
    session.flush().await
}

/// Fills each memory node twice, with blocks of two sizes, and judges whether free memory was left.
pub(crate) async fn fill_and_refill(shared: &Shared, session: &Session, mut rng: SimRng) -> Result<(), PoolError> {
    for node in session.pool().nodes() {
        let one = rng.pick(&SIZES).unwrap_or(SIZES[0]);
        let other = rng.pick(&SIZES).unwrap_or(SIZES[0]);
        let mut blocks = Blocks::new();
        fill(session, node, one, &mut blocks).await?;
        judge(shared, session, node, one).await?;
        // Blocks that lie next to each other are freed together, so that whole chunks become free, here and there.
        let run = 1 << rng.within(12, 17);
        let odds = rng.pick(&[ODDS, ODDS / 2, ODDS / 4]).unwrap_or(ODDS);
        let salt = rng.word();
        let is_freed = |at: RemotePtr| SimRng::new(salt, at.offset() / run).chance(odds);
        let (freed, mut kept): (Blocks, Blocks) = blocks.into_iter().partition(|(at, _)| is_freed(*at));
        free(session, freed).await?;
        fill(session, node, other, &mut kept).await?;
        judge(shared, session, node, other).await?;
        free(session, kept).await?;
    }
    Ok(())
}

/// Fills each memory node with objects of one size and frees them, which another session then finds; and after the end of that
/// session the first one finds all of them.
pub(crate) async fn lend(
    shared: &Shared,
    session: &Session,
    other: Rc<Session>,
    mut rng: SimRng,
) -> Result<(), PoolError> {
    let mut all = Vec::new();
    for node in session.pool().nodes() {
        let geometry = session.pool().geometry(node);
        let (chunk, of_node) = (geometry.chunk_size, geometry.chunks * geometry.chunk_size);
        let bytes = rng.pick(&SIZES).filter(|_| rng.chance(ODDS / 2)).unwrap_or(chunk * rng.within(1, 2));
        let kept = if bytes < chunk {
            KEPT_BLOCKS.max(KEPT_BYTES.max(of_node / KEPT_SHARE) / bytes) * UNTIL_IT_LOOKS
        } else {
            of_node / KEPT_SHARE_OF_CHUNKS / bytes
        };
        let count = fill_and_empty(session, node, bytes).await?;
        let lent = fill_and_empty(&other, node, bytes).await?;
        if lent + kept < count {
            shared.fail(format!(
                "pool: of {count} objects of {bytes} bytes on node {node} that a session has freed, another one finds {lent}"
            ));
        }
        all.push((node, bytes, count));
    }
    drop(other);
    for (node, bytes, count) in all {
        let found = fill_and_empty(session, node, bytes).await?;
        if found < count {
            shared.fail(format!(
                "pool: of {count} objects of {bytes} bytes on node {node}, {found} are found after the other session's end"
            ));
        }
    }
    session.flush().await
}

/// Allocates objects of this size until there is no room, frees them, and returns their number.
async fn fill_and_empty(session: &Session, node: NodeId, bytes: u64) -> Result<u64, PoolError> {
    let mut blocks = Blocks::new();
    fill(session, node, bytes, &mut blocks).await?;
    let count = blocks.len() as u64;
    for (at, bytes) in blocks {
        session.free(&session.span(OpKind::Other), at, bytes).await?;
    }
    Ok(count)
}

/// What is wrong if an allocation of a block was refused, and whole chunks are left.
async fn judge(shared: &Shared, session: &Session, node: NodeId, bytes: u64) -> Result<(), PoolError> {
    let audit = Audit::begin(session, &session.span(OpKind::Other)).await?;
    let report = audit.settle(session, &session.span(OpKind::Maintenance)).await?;
    let left = report.nodes.get(node.index()).map_or(0, |node| node.free_chunk_bytes);
    if left > 0 {
        shared.fail(format!("pool: node {node} has no room for {bytes} bytes, and chunks of {left} bytes are free"));
    }
    shared.refilled.set(shared.refilled.get() + 1);
    Ok(())
}
