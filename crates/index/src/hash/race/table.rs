//! The table of one memory node: its directory, and what all of its segments have in common.
//!
//! Invariants: those of the [directory](crate::extendible); all segments lie on the node of the root.

use super::Config;
use super::segment::{SegmentRef, Shape, State};
use crate::IndexError;
use crate::extendible::directory::Directory;
use crate::extendible::first_segments::create_with_segments;
use crate::extendible::layout::Shape as DirectoryShape;
use crate::growth::Growth;
use farindex_fabric::{NodeId, RemotePtr, Span};
use farindex_pool::{Pin, Session};
use std::cell::Cell;

/// Largest number of bytes of a directory that a compute node caches.
const CACHE: u64 = 256 << 20;

/// A table, as one worker uses it.
pub struct Table {
    directory: Directory,
    index_tag: u64,
    shape: Shape,
    max_depth: u32,
    /// Local depth of the deepest segment that was visited.
    deepest: Cell<u32>,
    growth: Growth,
}

impl Table {
    /// Creates a table on a node; returns the root of its directory. After an error nothing of it is left.
    pub(super) async fn create(
        session: &Session,
        span: &Span,
        node: NodeId,
        index_tag: u64,
        config: &Config,
    ) -> Result<RemotePtr, IndexError> {
        let shape = Shape { groups: config.groups };
        let depth = config.initial_depth as u32;
        let contents = |suffix| session.endpoint().buf_from_words(&shape.empty(State::open(suffix, depth), index_tag));
        let directory = DirectoryShape { initial_depth: depth };
        create_with_segments(session, span, node, index_tag, directory, shape.bytes() as u64, contents).await
    }

    /// Opens the table with this root, for an operation that is pinned.
    pub(super) async fn open(
        pin: &Pin<'_>,
        root: RemotePtr,
        index_tag: u64,
        config: &Config,
    ) -> Result<Self, IndexError> {
        let directory = Directory::open(pin, root, index_tag, CACHE).await?;
        let shape = Shape { groups: config.groups };
        let deepest = Cell::new(config.initial_depth as u32);
        Ok(Table {
            directory,
            index_tag,
            shape,
            max_depth: config.max_depth as u32,
            deepest,
            growth: Growth::default(),
        })
    }

    /// Its directory.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }
    /// Shape of its segments.
    pub fn shape(&self) -> Shape {
        self.shape
    }
    /// The tag in all of its segments.
    pub(super) fn index_tag(&self) -> u64 {
        self.index_tag
    }
    /// Depth from which on a segment is not split.
    pub(super) fn max_depth(&self) -> u32 {
        self.max_depth
    }
    /// Counts of the splits of this worker.
    pub fn growth(&self) -> &Growth {
        &self.growth
    }
    /// Its memory node.
    pub fn node(&self) -> NodeId {
        self.directory.root().node()
    }
    /// Local depth of the deepest segment that this worker has visited.
    pub fn deepest(&self) -> u32 {
        self.deepest.get()
    }
    pub(super) fn note_depth(&self, depth: u32) {
        self.deepest.set(self.deepest.get().max(depth));
    }
    pub(super) fn cache_bytes(&self) -> u64 {
        self.directory.cache_bytes()
    }

    /// Returns the segment that the cached directory has for a hash.
    pub(super) fn find(&self, hash: u64) -> Option<SegmentRef> {
        self.directory.find(hash).map(|(suffix, entry)| SegmentRef { suffix, at: entry.at() })
    }

    /// Looks up the segment of a hash that was split off from `from`, which has reached `depth`; if `from` is `None`,
    /// the first segment of the hash.
    pub(super) async fn descend(
        &self,
        span: &Span,
        hash: u64,
        from: Option<SegmentRef>,
        depth: u32,
    ) -> Result<SegmentRef, IndexError> {
        let above = from.map_or(0, |segment_ref| self.creation_depth(segment_ref.suffix));
        match self.directory.look_up(span, hash, above, depth).await? {
            Some((suffix, entry)) => Ok(SegmentRef { suffix, at: entry.at() }),
            None => {
                let at = from.map_or(self.directory.root(), |segment_ref| segment_ref.at);
                let what = format!("the directory names no segment of depth {depth} for a hash that has one");
                Err(IndexError::corrupt(at, what))
            }
        }
    }

    /// Looks up the child that the split of a segment in this state creates; `None` if the directory does not name it.
    pub(super) async fn child(&self, span: &Span, state: State) -> Result<Option<SegmentRef>, IndexError> {
        let found = self.directory.look_up(span, state.child(), state.depth(), state.depth() + 1).await?;
        Ok(found.map(|(suffix, entry)| SegmentRef { suffix, at: entry.at() }))
    }

    /// Depth at which the segment of a suffix is created.
    pub(super) fn creation_depth(&self, suffix: u64) -> u32 {
        self.directory.shape().creation_depth(suffix)
    }
}
