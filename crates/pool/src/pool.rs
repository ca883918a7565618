//! Creating and opening a pool.
//!
//! Invariants: superblocks are written last, so an unfinished pool is not recognised as a pool. A pool is opened only
//! if the superblocks of all its nodes are valid and agree with each other and with the fabric.

use crate::PoolError;
use crate::layout::{
    FORMAT_VERSION, Geometry, HOME, MAGIC, MAX_CHUNK, MAX_INTENT_CELLS, MIN_CHUNK, Superblock, UNSEEDED, header,
    header_word,
};
use farindex_fabric::{Endpoint, Fabric, NodeId, OpKind, RemotePtr, Span, cold};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// Settings of a new pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolOptions {
    /// Most clients at a time, 2 to 1,024.
    pub client_slots: u64,
    /// Time without a heartbeat after which a client's lease has expired; at least 1 ms.
    pub lease: Duration,
    /// Bytes of one chunk; `None` chooses them by the size of the region.
    pub chunk_size: Option<u64>,
    /// Most locks that one client can hold at a time on one node, 1 to 64; `None` chooses the number by the size of the
    /// region. Each takes 64 bytes of every node for each client slot.
    pub intent_cells: Option<u64>,
    /// The key from which the seeds of the indexes are derived. `None` chooses it at random, so that no one can choose
    /// keys that collide. Tests, simulations and benchmarks fix it, so that each run is the same.
    pub hash_key: Option<u64>,
    /// The pool's identity, two words that no other pool has and that are not zero. `None` chooses it at random.
    /// Simulations fix it, so that a seed repeats a run to the last word.
    pub identity: Option<[u64; 2]>,
}

impl PoolOptions {
    /// The defaults with the seed 0 for every index, so that every run places keys alike.
    pub fn unseeded() -> Self {
        PoolOptions { hash_key: Some(UNSEEDED), ..PoolOptions::default() }
    }
}

impl Default for PoolOptions {
    fn default() -> Self {
        PoolOptions {
            client_slots: 64,
            lease: Duration::from_secs(10),
            chunk_size: None,
            intent_cells: None,
            hash_key: None,
            identity: None,
        }
    }
}

/// An open pool: its fabric and superblocks. A client [registers](crate::Client::register) to work with it.
#[derive(Clone)]
pub struct Pool {
    fabric: Arc<dyn Fabric>,
    superblocks: Arc<[Superblock]>,
}

impl Pool {
    /// Creates a pool on all memory nodes of a fabric.
    pub async fn create(
        fabric: Arc<dyn Fabric>,
        endpoint: &Endpoint,
        options: &PoolOptions,
    ) -> Result<Pool, PoolError> {
        cold(Self::create_inner(fabric, endpoint, options)).await
    }

    async fn create_inner(
        fabric: Arc<dyn Fabric>,
        endpoint: &Endpoint,
        options: &PoolOptions,
    ) -> Result<Pool, PoolError> {
        let infos = fabric.nodes();
        let slots = options.client_slots;
        if !(2..=1024).contains(&slots) {
            return Err(PoolError::TooSmall(format!("{slots} client slots: a pool takes 2 to 1024")));
        }
        let lease_ms = u64::try_from(options.lease.as_millis()).unwrap_or(u64::MAX);
        if lease_ms == 0 {
            return Err(PoolError::TooSmall("a lease of 0 ms: it takes at least 1 ms".to_owned()));
        }
        if let Some(cells) = options.intent_cells.filter(|cells| !(1..=MAX_INTENT_CELLS).contains(cells)) {
            return Err(PoolError::TooSmall(format!("{cells} intent cells: a client has 1 to {MAX_INTENT_CELLS}")));
        }
        let span = endpoint.span(OpKind::Other);
        for info in &infos {
            let first = span.read(RemotePtr::new(info.node, 0), 128).await?;
            if first.parse::<Superblock>().is_some_and(|block| block.magic == MAGIC) {
                return Err(PoolError::Exists(info.node));
            }
        }
        let [hash_key, id, more_id] = random_words(endpoint, &fabric);
        let pool_id = options.identity.unwrap_or([id, more_id]).map(|word| word.max(1));
        let hash_key = options.hash_key.unwrap_or(hash_key);
        let mut superblocks = Vec::with_capacity(infos.len());
        for info in &infos {
            let chunk_size = match options.chunk_size {
                Some(size) if size.is_power_of_two() && (MIN_CHUNK..=MAX_CHUNK).contains(&size) => size,
                Some(size) => {
                    return Err(PoolError::TooSmall(format!(
                        "chunks of {size} bytes: a chunk is a power of two from {MIN_CHUNK} to {MAX_CHUNK}"
                    )));
                }
                None => (info.len / 1024).next_power_of_two().clamp(MIN_CHUNK, MAX_CHUNK),
            };
            let intent_cells = options.intent_cells.unwrap_or(Geometry::intent_cells_for(info.len, slots));
            let least = Geometry { chunk_size, chunks: 8, client_slots: slots, intent_cells }.end();
            let geometry = Geometry::fit(info.len, chunk_size, slots, intent_cells)
                .filter(|geometry| geometry.chunks >= 8)
                .ok_or_else(|| {
                    PoolError::TooSmall(format!(
                        "memory node {} offers {} bytes: a pool with {slots} client slots takes at least {least}",
                        info.node, info.len
                    ))
                })?;
            let superblock = Superblock {
                magic: MAGIC,
                version: FORMAT_VERSION,
                pool_id,
                node: info.node.index() as u64,
                nodes: infos.len() as u64,
                region_len: info.len,
                chunk_size,
                chunks: geometry.chunks,
                client_slots: slots,
                lease_ms,
                zeroed: 0,
                hash_key,
                intent_cells,
                reserved: 0,
                checksum: 0,
            };
            superblocks.push(superblock);
        }
        for (info, superblock) in infos.iter().zip(&mut superblocks) {
            // The fabric knows whether unused memory is zero, not whether this memory is unused: an earlier pool whose
            // superblock was overwritten may have left its descriptors.
            let start = RemotePtr::new(info.node, 0);
            let len = geometry_of(superblock).data();
            if fabric.capabilities().zeroed && is_zero(&span, start, len).await? {
                superblock.zeroed = 1;
            } else {
                zero(&span, start, len).await?;
            }
            superblock.checksum = superblock.expected_checksum();
        }
        span.write(header_word(HOME, header::EPOCH), endpoint.buf_from_words(&[1])).await?;
        let mut batch = span.batch();
        for (info, superblock) in infos.iter().zip(&superblocks) {
            batch.write(RemotePtr::new(info.node, 0), endpoint.buf_from(superblock.as_bytes()));
        }
        batch.post().await?;
        Ok(Pool { fabric, superblocks: superblocks.into() })
    }

    /// Opens the pool on the memory nodes of a fabric.
    pub async fn open(fabric: Arc<dyn Fabric>, endpoint: &Endpoint) -> Result<Pool, PoolError> {
        cold(Self::open_inner(fabric, endpoint)).await
    }

    async fn open_inner(fabric: Arc<dyn Fabric>, endpoint: &Endpoint) -> Result<Pool, PoolError> {
        let infos = fabric.nodes();
        let span = endpoint.span(OpKind::Other);
        let mut superblocks: Vec<Superblock> = Vec::with_capacity(infos.len());
        for info in &infos {
            let node = info.node;
            if info.len < header::END {
                return Err(PoolError::NotAPool { node, found: format!("only {} bytes", info.len) });
            }
            let block = Self::recognise(node, span.read(RemotePtr::new(node, 0), 128).await?.bytes())?;
            let damaged = |what: String| PoolError::Damaged { node, what };
            let geometry = geometry_of(&block);
            if block.region_len > info.len || geometry.end() > info.len {
                let has = info.len;
                let wants = block.region_len;
                return Err(damaged(format!("the pool was made with {wants} bytes, the region has {has}: truncated?")));
            }
            if block.node != node.index() as u64 {
                let was = block.node;
                return Err(PoolError::Mismatch(format!(
                    "memory node {node} was made as node {was}: give the nodes in the order they had at creation"
                )));
            }
            if block.nodes != infos.len() as u64 {
                let was = block.nodes;
                return Err(PoolError::Mismatch(format!(
                    "the pool has {was} memory nodes, {} were given: give them all",
                    infos.len()
                )));
            }
            if let Some(first) = superblocks.first()
                && first.pool_id != block.pool_id
            {
                return Err(PoolError::Mismatch(format!("memory node {node} belongs to another pool than node 0")));
            }
            superblocks.push(block);
        }
        Ok(Pool { fabric, superblocks: superblocks.into() })
    }

    /// Decodes the superblock at the beginning of a memory node's bytes. Memory without a pool, another format version
    /// and damage are errors.
    pub fn recognise(node: NodeId, head: &[u8]) -> Result<Superblock, PoolError> {
        let damaged = |what: &str| PoolError::Damaged { node, what: what.to_owned() };
        let (block, _) = Superblock::read_from_prefix(head).map_err(|_| damaged("it cannot be read"))?;
        if block.magic != MAGIC {
            let found = if block.as_bytes().iter().all(|byte| *byte == 0) {
                "all zeros".to_owned()
            } else {
                format!("it begins with {:016x}", block.magic.swap_bytes())
            };
            return Err(PoolError::NotAPool { node, found });
        }
        if block.version != FORMAT_VERSION {
            return Err(PoolError::Version { found: block.version, expected: FORMAT_VERSION });
        }
        if block.checksum != block.expected_checksum() {
            return Err(damaged("its checksum is wrong"));
        }
        match (1..=MAX_INTENT_CELLS).contains(&block.intent_cells) {
            true => Ok(block),
            false => Err(damaged("its number of intent cells is impossible")),
        }
    }

    /// The fabric.
    pub fn fabric(&self) -> &Arc<dyn Fabric> {
        &self.fabric
    }
    /// The memory nodes.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = NodeId> + use<> {
        (0..self.superblocks.len()).map(|i| NodeId::new(i as u16))
    }
    /// The superblock of a node.
    pub fn superblock(&self, node: NodeId) -> &Superblock {
        &self.superblocks[node.index().min(self.superblocks.len() - 1)]
    }
    /// The geometry of a node.
    pub fn geometry(&self, node: NodeId) -> Geometry {
        geometry_of(self.superblock(node))
    }
    /// Time without a heartbeat after which a client's lease has expired.
    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.superblock(HOME).lease_ms)
    }
    /// Number of client slots.
    pub fn client_slots(&self) -> u64 {
        self.superblock(HOME).client_slots
    }
}

fn geometry_of(block: &Superblock) -> Geometry {
    let Superblock { chunk_size, chunks, client_slots, intent_cells, .. } = *block;
    Geometry { chunk_size, chunks, client_slots, intent_cells }
}

/// Returns random words that no other pool has; none is zero. The standard library seeds its hasher with random bits of
/// the system, so the words are random even on a fabric whose identities are consecutive numbers.
fn random_words(endpoint: &Endpoint, fabric: &Arc<dyn Fabric>) -> [u64; 3] {
    let identity = fabric.new_identity();
    let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let unique = (identity.token, identity.pid, identity.started, endpoint.now(), wall);
    let random = RandomState::new();
    std::array::from_fn(|i| random.hash_one((i, unique)).max(1))
}

/// Bytes of one READ or WRITE of a large area.
const STEP: u64 = 64 << 10;

/// Returns whether these bytes are all zero.
async fn is_zero(span: &Span, ptr: RemotePtr, len: u64) -> Result<bool, PoolError> {
    let mut done = 0;
    while done < len {
        let step = STEP.min(len - done);
        if span.read(ptr.add(done), step as usize).await?.words().iter().any(|word| *word != 0) {
            return Ok(false);
        }
        done += step;
    }
    Ok(true)
}

/// Overwrites bytes with zeros.
pub(crate) async fn zero(span: &Span, ptr: RemotePtr, len: u64) -> Result<(), PoolError> {
    let mut done = 0;
    while done < len {
        let mut batch = span.batch();
        while done < len && batch.len() < 8 {
            let step = STEP.min(len - done);
            let mut buf = span.endpoint().buf(step as usize);
            buf.words_mut().fill(0);
            batch.write(ptr.add(done), buf);
            done += step;
        }
        batch.post().await?;
    }
    Ok(())
}
