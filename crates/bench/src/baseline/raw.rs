//! The raw baseline: the verbs of an index without the index.
//!
//! Invariants: the same driver draws the same operations on the same keys; an operation posts the verbs of its
//! [`Shape`](super::Shape) in the same batches, each waiting for the one before; READs and atomics go to addresses that
//! are hashes of its key, so a hot key is hot here too, and WRITEs of blocks to one place after the other, as an
//! allocator has them; its memory is as large as the index's and written beforehand, so neither the caches nor
//! untouched pages flatter it. Nothing is parsed, compared, retried or allocated, and its answers mean nothing.
//!
//! A READ has completed when its bytes are there. On mapped memory a processor would run ahead of loads whose result is
//! not used, and fetch the next batch meanwhile, as if there were one round trip; no index can, for what the first READ
//! brings decides what the second one fetches. So here, too, the address of a batch depends on a word of each cache
//! line that the batch before has brought.
//!
//! It scribbles over the whole of its memory: give it a fabric of its own, never one that holds a pool.

use super::{Area, ShapeVerb, Shapes};
use crate::driver::{Bench, Worker};
use crate::workload::{Op, mix64};
use farindex_fabric::{Buf, Class, Endpoint, Executor, Fabric, FabricError, NodeId, OpKind, RemotePtr, Ticket};
use farindex_index::join::try_join_all;
use farindex_index::{
    Entry, IndexError, Insert, KeyBounds, Limits, OrderedIndex, PointIndex, Remove, RemoveIf, Replace, Update, Upsert,
    Value, upsert_each,
};
use smallvec::SmallVec;
use std::cell::Cell;
use std::ops::Bound;
use std::rc::Rc;

/// What the raw reference imitates.
#[derive(Debug, Clone)]
pub struct RawSettings {
    /// The verbs of each operation.
    pub shapes: Shapes,
    /// Bytes of buckets or nodes, on all memory nodes together.
    pub index_bytes: u64,
    /// Bytes of key-value blocks, on all memory nodes together.
    pub block_bytes: u64,
}

/// A part of each memory node that one area has.
#[derive(Debug, Clone, Copy)]
struct Part {
    base: u64,
    /// Places of `unit` bytes on each node.
    places: u64,
    unit: u64,
}

impl Part {
    /// Every place begins at a cache line, as buckets and blocks do.
    fn new(base: u64, bytes_on_node: u64, longest: usize) -> Self {
        let unit = (longest as u64).next_multiple_of(64).max(64);
        Part { base, places: (bytes_on_node / unit).max(1), unit }
    }
    fn at(self, place: u64, node: u64) -> RemotePtr {
        RemotePtr::new(NodeId::new(node as u16), self.base + place * self.unit)
    }
    fn end(self) -> u64 {
        self.base + self.places * self.unit
    }
}

/// The raw reference.
pub struct Raw<'f> {
    fabric: &'f dyn Fabric,
    shapes: Shapes,
    index: Part,
    block: Part,
    nodes: u64,
}

impl<'f> Raw<'f> {
    /// Lays the areas out on the fabric and writes all of their memory once.
    pub fn new(fabric: &'f dyn Fabric, settings: RawSettings) -> Result<Self, String> {
        let infos = fabric.nodes();
        let nodes = infos.len() as u64;
        let room = infos.iter().map(|info| info.len).min().ok_or("the fabric has no memory node")?;
        let part = |base, bytes: u64, area| Part::new(base, bytes / nodes, settings.shapes.longest(area));
        let index = part(64, settings.index_bytes, Area::Index);
        let block = part(index.end(), settings.block_bytes, Area::Block);
        if block.end() > room {
            return Err(format!(
                "the raw reference needs {} bytes on each memory node, the smallest has {room}",
                block.end()
            ));
        }
        let raw = Raw { fabric, shapes: settings.shapes, index, block, nodes };
        raw.touch().map_err(|error| format!("the raw reference cannot write its memory: {error}"))?;
        Ok(raw)
    }

    fn touch(&self) -> Result<(), FabricError> {
        const PIECE: u64 = 64 << 10;
        let endpoint = self.fabric.connect(&self.fabric.new_identity())?;
        let end = self.block.end();
        Executor::new().block_on(&endpoint, async {
            let span = endpoint.span(OpKind::Other);
            for node in 0..self.nodes {
                for at in (self.index.base..end).step_by(PIECE as usize) {
                    let mut buf = endpoint.buf(PIECE.min(end - at) as usize);
                    let words = buf.words_mut().iter_mut();
                    words.zip(at..).for_each(|(word, i)| *word = mix64(i));
                    span.write(RemotePtr::new(NodeId::new(node as u16), at), buf).await?;
                }
            }
            Ok(())
        })
    }
}

impl Bench for Raw<'_> {
    type Worker = RawWorker;
    fn worker(&self, thread: usize, _: &Executor) -> Result<RawWorker, String> {
        let endpoint = self.fabric.connect(&self.fabric.new_identity()).map_err(|error| error.to_string())?;
        Ok(RawWorker(Rc::new(RawIndex {
            endpoint,
            shapes: self.shapes.clone(),
            index: self.index,
            block: self.block,
            nodes: self.nodes,
            written: Cell::new(mix64(thread as u64) >> 32),
            nothing: std::hint::black_box(0),
        })))
    }
}

/// One thread's part.
pub struct RawWorker(Rc<RawIndex>);

impl Worker for RawWorker {
    type Index = RawIndex;
    fn index(&self) -> &RawIndex {
        &self.0
    }
    fn endpoint(&self) -> Option<&Endpoint> {
        Some(&self.0.endpoint)
    }
    fn answers(&self) -> bool {
        false
    }
}

/// Operations that are their verbs and nothing more.
pub struct RawIndex {
    endpoint: Endpoint,
    shapes: Shapes,
    index: Part,
    block: Part,
    nodes: u64,
    /// Blocks written, from some number on that differs between threads.
    written: Cell<u64>,
    /// Zero, but unknown to the compiler: what a READ brought is masked by it and added to the next address.
    nothing: u64,
}

impl RawIndex {
    fn place(&self, part: Part, hash: u64) -> RemotePtr {
        let at = ((u128::from(hash) * u128::from(part.places)) >> 64) as u64;
        // The low half is independent of the high bits that chose the place.
        let node = ((hash & 0xffff_ffff) * self.nodes) >> 32;
        part.at(at, node)
    }
    fn next_block(&self) -> RemotePtr {
        let number = self.written.get();
        self.written.set(number.wrapping_add(1));
        self.block.at(number / self.nodes % self.block.places, number % self.nodes)
    }

    async fn run(&self, op: Op, kind: OpKind, key: &[u8]) -> Result<(), IndexError> {
        let Some(shape) = self.shapes.get(op) else {
            let name = op.name();
            return Err(IndexError::BadConfig(format!("the raw reference was given no shape of {name}")));
        };
        // Keys are at least eight bytes. The atomics of an index go to the bucket it has read before, each READ of a
        // block to another block.
        let seed = key.first_chunk().map_or(0, |first| u64::from_le_bytes(*first));
        let home = self.place(self.index, mix64(seed));
        let (mut blocks, mut arrived) = (0, 0);
        let of = |lines: &Buf| lines.words().iter().step_by(8).fold(0, |all, word| all | word) & self.nothing;
        let span = self.endpoint.span(kind);
        for step in &shape.steps {
            let verbs: SmallVec<[(RemotePtr, ShapeVerb); 4]> = step
                .iter()
                .map(|verb| {
                    let ptr = match verb.area {
                        Area::Index => home.add(arrived),
                        Area::Block if matches!(verb.verb, ShapeVerb::Write(_)) => self.next_block(),
                        Area::Block => {
                            blocks += 1;
                            self.place(self.block, mix64(seed.wrapping_add(blocks)) ^ arrived)
                        }
                    };
                    (ptr, verb.verb)
                })
                .collect();
            let class = if step.iter().all(|verb| verb.area == Area::Block) { Class::Block } else { Class::Index };
            // As indexes do, so that mapped memory is used as well as it can be.
            let mut along = match verbs[..] {
                [(to, ShapeVerb::Write(bytes)), (_, ShapeVerb::Read(_))] => Some((to, self.endpoint.buf(bytes))),
                _ => None,
            };
            let now = match verbs[..] {
                [(ptr, ShapeVerb::Read(len))] => span.read_now(class, ptr, len),
                [(_, ShapeVerb::Write(_)), (ptr, ShapeVerb::Read(len))] => {
                    span.read_behind_now(class, &mut along, ptr, len)
                }
                [(ptr, ShapeVerb::Cas)] => {
                    span.cas(ptr, 0, 1).await?;
                    continue;
                }
                _ => None,
            };
            if let Some(lines) = now {
                arrived |= of(&lines);
                continue;
            }
            let mut batch = if class == Class::Block { span.block_batch() } else { span.batch() };
            let mut reads = SmallVec::<[Ticket; 4]>::new();
            for (ptr, verb) in verbs {
                match verb {
                    ShapeVerb::Read(len) => reads.push(batch.read(ptr, len)),
                    ShapeVerb::Write(len) => _ = batch.write(ptr, self.endpoint.buf(len)),
                    ShapeVerb::Cas => _ = batch.cas(ptr, 0, 1),
                    ShapeVerb::Faa => _ = batch.faa(ptr, 1),
                }
            }
            let mut done = batch.post().await?;
            for read in reads {
                arrived |= of(&done.buf(read));
            }
        }
        Ok(())
    }
}

impl PointIndex for RawIndex {
    fn limits(&self) -> Limits {
        Limits { key: usize::MAX, value: usize::MAX }
    }
    async fn get(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        self.run(Op::Get, OpKind::Get, key).await.map(|()| None)
    }
    async fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>, IndexError> {
        try_join_all(keys.iter().map(|key| self.get(key))).await
    }
    async fn insert(&self, key: &[u8], _: &[u8]) -> Result<Insert, IndexError> {
        self.run(Op::Insert, OpKind::Insert, key).await.map(|()| Insert::Inserted)
    }
    async fn update(&self, key: &[u8], _: &[u8]) -> Result<Update, IndexError> {
        self.run(Op::Update, OpKind::Update, key).await.map(|()| Update::Updated)
    }
    async fn upsert(&self, key: &[u8], _: &[u8]) -> Result<Upsert, IndexError> {
        self.run(Op::Upsert, OpKind::Upsert, key).await.map(|()| Upsert::Updated)
    }
    async fn upsert_with_outcome(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        self.upsert(key, value).await
    }
    async fn upsert_many(&self, pairs: &[(&[u8], &[u8])]) -> Vec<Result<Upsert, IndexError>> {
        upsert_each(self, pairs).await
    }
    async fn remove(&self, key: &[u8]) -> Result<Remove, IndexError> {
        self.run(Op::Remove, OpKind::Remove, key).await.map(|()| Remove::Removed)
    }
    async fn replace(&self, key: &[u8], _: &[u8], _: &[u8]) -> Result<Replace, IndexError> {
        self.run(Op::Update, OpKind::Update, key).await.map(|()| Replace::Replaced)
    }
    async fn remove_if(&self, key: &[u8], _: &[u8]) -> Result<RemoveIf, IndexError> {
        self.run(Op::Remove, OpKind::Remove, key).await.map(|()| RemoveIf::Removed)
    }
    fn cache_bytes(&self) -> u64 {
        0
    }
}

impl OrderedIndex for RawIndex {
    async fn scan(&self, (from, _): KeyBounds<'_>, limit: usize) -> Result<Vec<Entry>, IndexError> {
        if self.shapes.get(Op::Scan).is_none() {
            return Err(IndexError::NotOrdered { kind: "raw" });
        }
        let (Bound::Included(key) | Bound::Excluded(key)) = from else { return Ok(Vec::new()) };
        if limit > 0 {
            self.run(Op::Scan, OpKind::Scan, key).await?;
        }
        Ok(Vec::new())
    }
}
