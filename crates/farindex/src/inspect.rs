//! Inspecting a pool from outside, without registering as a client and without writing.

use crate::heartbeat::once;
use crate::net::connect;
use crate::pool::open_files;
use crate::url::PoolUrl;
use crate::{Error, IndexInfo};
use farindex_fabric::{Endpoint, Fabric, OpKind, Span};
use farindex_pool::alloc::bitmap::Chunk;
use farindex_pool::alloc::chunks::all_chunks;
use farindex_pool::alloc::classes;
use farindex_pool::layout::{ChunkUse, Superblock};
use farindex_pool::{ClientInfo, Pool, PoolError, catalog, clients};
use serde::Serialize;
use std::sync::Arc;

/// How full one memory node is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct NodeUsage {
    /// Bytes of all chunks: what the node offers to indexes.
    pub data_bytes: u64,
    /// Bytes that are allocated: reachable, in the free lists of a client, or retired and waiting for their grace
    /// period.
    pub used_bytes: u64,
    /// Bytes that lie free in chunks of blocks.
    pub free_block_bytes: u64,
    /// Bytes of chunks that were never used or are free again.
    pub free_chunk_bytes: u64,
}

impl NodeUsage {
    fn add(&mut self, chunk: &Chunk, chunk_size: u64) {
        match chunk.used {
            ChunkUse::Free => self.free_chunk_bytes += chunk_size,
            ChunkUse::Blocks { class, .. } => {
                let blocks = classes::blocks(class, chunk_size);
                let marked: u64 = chunk.free.iter().map(|word| u64::from(word.count_ones())).sum();
                let free = marked.min(blocks) * classes::bytes(class);
                self.free_block_bytes += free;
                self.used_bytes += blocks * classes::bytes(class) - free;
            }
            // The first chunk of a span and its tails count one by one, as does what makes no sense.
            _ => self.used_bytes += chunk_size,
        }
    }
}

/// Returns how full each memory node is, according to the allocator. While clients are at work, this is a snapshot.
pub async fn usage(pool: &Pool, span: &Span) -> Result<Vec<NodeUsage>, PoolError> {
    let mut nodes = Vec::new();
    for node in pool.nodes() {
        let geometry = pool.geometry(node);
        let chunks = all_chunks(pool, span, node).await?;
        let mut usage = NodeUsage { data_bytes: geometry.chunks * geometry.chunk_size, ..NodeUsage::default() };
        let never_used = geometry.chunks.saturating_sub(chunks.len() as u64);
        usage.free_chunk_bytes = never_used * geometry.chunk_size;
        chunks.iter().for_each(|chunk| usage.add(chunk, geometry.chunk_size));
        nodes.push(usage);
    }
    Ok(nodes)
}

/// State of a pool.
#[derive(Debug, Clone)]
pub struct Inspection {
    /// The superblock of each memory node.
    pub superblocks: Vec<Superblock>,
    /// How full each memory node is.
    pub usage: Vec<NodeUsage>,
    /// Every registered client.
    pub clients: Vec<ClientInfo>,
    /// Every index.
    pub indexes: Vec<IndexInfo>,
}

impl Inspection {
    /// Inspects a pool in mapped files or on memory nodes. This takes no client slot, and needs no more than permission
    /// to read the files, or a token for reading.
    pub fn of(url: &PoolUrl) -> Result<Self, Error> {
        let fabric: Arc<dyn Fabric> = match url {
            PoolUrl::Shm { paths } => Arc::new(open_files(paths, true)?),
            PoolUrl::Remote { addrs, token_file } => connect(addrs, token_file.as_deref())?,
            PoolUrl::Memory { .. } => return Err(Error::NotStored),
        };
        let identity = fabric.new_identity();
        let look = async |endpoint: &Endpoint| {
            let pool = Pool::open(Arc::clone(&fabric), endpoint).await?;
            let span = endpoint.span(OpKind::Other);
            let usage = usage(&pool, &span).await?;
            let clients = clients(&pool, &span).await?;
            let indexes = catalog::list(&pool, &span).await?;
            let superblocks = pool.nodes().map(|node| *pool.superblock(node)).collect();
            Ok::<_, PoolError>(Inspection { superblocks, usage, clients, indexes })
        };
        Ok(once(&fabric, &identity, look)??)
    }
}
