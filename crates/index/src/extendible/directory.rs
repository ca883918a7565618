//! The directory in far memory, as one worker uses it.
//!
//! Invariants: X1 to X4 of the [module](super). An operation that begins in an epoch in which this worker has not read
//! the root reads it in its first batch. So when a dropped index is freed two epochs later, no operation uses it.

use super::layout::{
    DROPPED, Entry, MAX_DEPTH, ROOT_CHUNKS, ROOT_INDEX_TAG, ROOT_LEN, ROOT_SHAPE, Shape, suffix, width,
};
use super::mirror::Mirror;
use crate::IndexError;
use crate::audit::{Damage, Findings, OnDamage};
use crate::maintenance::{astray, first_word};
use crate::table_per_node::retire_root;
use farindex_fabric::{Batch, Done, NodeId, OpKind, RemotePtr, Span, Ticket};
use farindex_pool::{Pin, Pool, Session};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Bytes of one WRITE of zeros.
const ZEROS: u64 = 32 << 10;
/// Words that one READ of a walk fetches.
const STEP: u64 = 4096;

/// A directory, as one worker uses it.
pub struct Directory {
    root: RemotePtr,
    index_tag: u64,
    mirror: Arc<Mirror>,
    /// The latest epoch in which an operation has read the root and found that the index exists.
    checked: Cell<u64>,
}

/// A READ of the root in a batch, which checks that the index exists.
#[derive(Debug)]
pub struct Guard {
    root: Ticket,
    epoch: u64,
}

/// The guards of a batch that several operations share: one for each directory and epoch.
#[derive(Default)]
pub(crate) struct Guards<'a>(Vec<(&'a Directory, Guard)>);

impl<'a> Guards<'a> {
    /// Adds the guard of an operation that is pinned at `epoch`, ahead of the operation's READs.
    pub(crate) fn add(&mut self, directory: &'a Directory, batch: &mut Batch<'_>, epoch: u64) {
        let known = |(of, guard): &(&Directory, Guard)| std::ptr::eq(*of, directory) && guard.epoch >= epoch;
        if !self.0.iter().any(known) {
            self.0.extend(directory.guard(batch, epoch).map(|guard| (directory, guard)));
        }
    }

    /// Evaluates the guards. Call it before anything is concluded from the rest of the batch.
    pub(crate) fn finish(self, done: &mut Done) -> Result<(), IndexError> {
        self.0.into_iter().try_for_each(|(directory, guard)| directory.finish_guard(Some(guard), done))
    }
}

impl Directory {
    /// Creates a directory whose first segments are `first`, one for each suffix of `shape.initial_depth` bits; their
    /// WRITEs have completed (X1). Returns its root. After an error nothing of it is left.
    pub async fn create(
        session: &Session,
        span: &Span,
        node: NodeId,
        index_tag: u64,
        shape: Shape,
        first: &[Entry],
    ) -> Result<RemotePtr, IndexError> {
        debug_assert_eq!(first.len(), 1 << shape.initial_depth);
        let root = session.alloc(span, node, ROOT_LEN as u64).await?;
        let bytes = shape.words_of(0) * 8;
        let chunk = match session.alloc(span, node, bytes).await {
            Ok(chunk) => chunk,
            Err(error) => {
                session.free(span, root, ROOT_LEN as u64).await?;
                return Err(error.into());
            }
        };
        zero(span, chunk, bytes).await?;
        let mut words: Vec<u64> = first.iter().map(|entry| entry.to_bits()).collect();
        words.resize(shape.words_of(0) as usize, 0);
        span.write(chunk, session.endpoint().buf_from_words(&words)).await?;
        let mut words = [0; ROOT_LEN / 8];
        words[ROOT_INDEX_TAG] = index_tag;
        words[ROOT_SHAPE] = shape.encode();
        words[ROOT_CHUNKS] = chunk.to_bits();
        span.write(root, session.endpoint().buf_from_words(&words)).await?;
        Ok(root)
    }

    /// Opens the directory with this root, for an operation that is pinned. The cached copy keeps at most `bound`
    /// bytes; all sessions of the client share it.
    pub async fn open(pin: &Pin<'_>, root: RemotePtr, index_tag: u64, bound: u64) -> Result<Self, IndexError> {
        let words = pin.span().read(root, ROOT_LEN).await?;
        let word = |i: usize| words.words().get(i).copied().unwrap_or_default();
        if word(0) & DROPPED != 0 {
            return Err(IndexError::Dropped);
        }
        let shape = Shape::decode(word(ROOT_SHAPE)).filter(|_| word(ROOT_INDEX_TAG) == index_tag);
        let shape = shape.ok_or_else(|| IndexError::corrupt(root, "no index has such a root"))?;
        let mirror = pin.session().client().share(root.to_bits() ^ index_tag, || Mirror::new(shape, bound));
        let directory = Directory { root, index_tag, mirror, checked: Cell::new(pin.epoch()) };
        directory.learn_chunks(words.words());
        Ok(directory)
    }

    /// Its root.
    pub fn root(&self) -> RemotePtr {
        self.root
    }
    /// Its shape.
    pub fn shape(&self) -> Shape {
        self.mirror.shape()
    }
    /// The cached copy.
    pub fn mirror(&self) -> &Mirror {
        &self.mirror
    }
    /// Bytes of the cached copy.
    pub fn cache_bytes(&self) -> u64 {
        self.mirror.bytes()
    }

    /// Adds a READ of the root to an operation's first batch, if this worker has not read it in this epoch.
    pub fn guard(&self, batch: &mut Batch<'_>, epoch: u64) -> Option<Guard> {
        (self.checked.get() < epoch).then(|| Guard { root: batch.read(self.root, (ROOT_INDEX_TAG + 1) * 8), epoch })
    }

    /// Evaluates a guard: [`IndexError::Dropped`] if the index does not exist any more. Call it before anything is
    /// concluded from the rest of the batch.
    pub fn finish_guard(&self, guard: Option<Guard>, done: &mut Done) -> Result<(), IndexError> {
        let Some(Guard { root, epoch }) = guard else { return Ok(()) };
        let words = done.buf(root);
        self.check_alive(words.words())?;
        self.checked.set(self.checked.get().max(epoch));
        Ok(())
    }

    /// Reads the root, if this worker has not read it in the pin's epoch: [`IndexError::Dropped`] if the index has been
    /// dropped.
    pub(crate) async fn check_open(&self, pin: &Pin<'_>) -> Result<(), IndexError> {
        let mut batch = pin.span().batch();
        let guard = self.guard(&mut batch, pin.epoch());
        self.finish_guard(guard, &mut batch.post().await?)
    }

    /// Pins a step of a walk, which goes on with what an earlier step has read: [`IndexError::Dropped`] if the index has
    /// been dropped.
    pub(crate) async fn pin_step<'s>(&self, session: &'s Session, kind: OpKind) -> Result<Pin<'s>, IndexError> {
        let pin = session.pin(session.span(kind))?;
        self.check_open(&pin).await?;
        Ok(pin)
    }

    /// The memory of a dropped root is reused in the end; then it does not have this index's tag.
    fn check_alive(&self, words: &[u64]) -> Result<(), IndexError> {
        let alive =
            words.first().is_some_and(|word| word & DROPPED == 0) && words.get(ROOT_INDEX_TAG) == Some(&self.index_tag);
        if alive {
            return Ok(());
        }
        // Every later operation reads the root, and fails in the same way.
        self.checked.set(0);
        Err(IndexError::Dropped)
    }

    fn learn_chunks(&self, words: &[u64]) {
        for (chunk, word) in words.iter().skip(ROOT_CHUNKS).take(self.shape().chunks()).enumerate() {
            self.mirror.learn_chunk(chunk, RemotePtr::from_bits(*word));
        }
    }

    /// Reads the whole root.
    async fn read_root(&self, span: &Span) -> Result<(), IndexError> {
        let words = span.read(self.root, ROOT_LEN).await?;
        self.check_alive(words.words())?;
        self.learn_chunks(words.words());
        Ok(())
    }

    /// Reads the root without checking it: who drops the index walks it, too.
    async fn learn_root(&self, span: &Span) -> Result<(), IndexError> {
        let words = span.read(self.root, ROOT_LEN).await?;
        self.learn_chunks(words.words());
        Ok(())
    }

    /// Returns the longest suffix of a hash in the cached copy, and its word. `None` if there is none: see
    /// [`look_up`](Self::look_up).
    pub fn find(&self, hash: u64) -> Option<(u64, Entry)> {
        self.mirror.find(hash)
    }

    /// READs the words of all suffixes of a hash that are longer than `above` bits and at most `depth` long, in one
    /// batch, and caches them. Returns the longest suffix that has a word; `None` if none has. If `above` is zero, the
    /// first segment is included. If a segment has shown `depth`, the directory has the words up to it (X3).
    pub async fn look_up(
        &self,
        span: &Span,
        hash: u64,
        above: u32,
        depth: u32,
    ) -> Result<Option<(u64, Entry)>, IndexError> {
        let shape = self.shape();
        let unknown = |suffix: u64| self.mirror.chunk(shape.place(suffix).0).is_none();
        if shape.candidates(hash, above, depth).any(unknown) {
            // The chunk of a segment that was split off is in the root before the segment is (X3).
            self.read_root(span).await?;
        }
        let mut batch = span.batch();
        let mut asked = Vec::new();
        for suffix in shape.candidates(hash, above, depth) {
            if let Some(at) = self.address(suffix) {
                asked.push((suffix, batch.read(at, 8)));
            }
        }
        let mut done = batch.post().await?;
        let mut longest = None;
        for (suffix, ticket) in asked {
            let entry = Entry::from_bits(first_word(&done.buf(ticket)));
            self.mirror.learn(suffix, entry);
            if longest.is_none() && !entry.is_none() {
                longest = Some((suffix, entry));
            }
        }
        Ok(longest)
    }

    /// Returns the address of a suffix's word, if its chunk is known.
    pub fn address(&self, suffix: u64) -> Option<RemotePtr> {
        let (chunk, i) = self.shape().place(suffix);
        self.mirror.chunk(chunk).map(|at| at.add(i * 8))
    }

    /// Returns the address of a suffix's word; doubles the directory until it has such a word. `None` beyond
    /// [`MAX_DEPTH`]. No lock is taken: a client that loses the race frees its chunk.
    pub async fn ensure(&self, pin: &Pin<'_>, suffix: u64) -> Result<Option<RemotePtr>, IndexError> {
        if width(suffix) > MAX_DEPTH {
            return Ok(None);
        }
        if let Some(at) = self.address(suffix) {
            return Ok(Some(at));
        }
        self.read_root(pin.span()).await?;
        if let Some(at) = self.address(suffix) {
            return Ok(Some(at));
        }
        let (session, span) = (pin.session(), pin.span());
        let (chunk, i) = self.shape().place(suffix);
        let bytes = self.shape().words_of(chunk) * 8;
        let made = session.alloc_now(span, self.root.node(), bytes).await?;
        zero(span, made, bytes).await?;
        let old = span.cas(self.root.add((ROOT_CHUNKS + chunk) as u64 * 8), 0, made.to_bits()).await?;
        let at = if old == 0 {
            made
        } else {
            session.free(span, made, bytes).await?;
            RemotePtr::from_bits(old)
        };
        self.mirror.learn_chunk(chunk, at);
        Ok(Some(at.add(i * 8)))
    }

    /// Caches the word of a suffix that was published.
    pub fn published(&self, suffix: u64, entry: Entry) {
        self.mirror.learn(suffix, entry);
    }

    /// Calls `each` with every word, in ascending order of suffixes, and caches the words. The words of longer suffixes
    /// are READ after `each` has returned for all shorter ones, so for all of their parents. So a child that is split
    /// off before `each` reads its parent is visited after the parent: a walk misses no segment while other clients
    /// work, if `each` reads the segment at once. A chunk that cannot be read is reported to `damaged`.
    pub async fn walk(
        &self,
        pool: &Pool,
        span: &Span,
        mut each: impl AsyncFnMut(u64, Entry) -> Result<(), IndexError>,
        damaged: OnDamage<'_>,
    ) -> Result<(), IndexError> {
        let mut lost = None;
        for suffixes in self.shape().generations() {
            let (chunk, first) = self.shape().place(suffixes.start);
            if self.mirror.chunk(chunk).is_none() {
                self.learn_root(span).await?;
            }
            let Some(start) = self.mirror.chunk(chunk) else { return Ok(()) };
            // If the pointer is wrong, nothing of the chunk is read.
            if let Some(what) = astray(pool, start, self.shape().words_of(chunk) * 8) {
                if lost.replace(chunk) != Some(chunk) {
                    let word = self.root.add((ROOT_CHUNKS + chunk) as u64 * 8);
                    damaged(Damage { at: word, what: format!("chunk {chunk} of the directory points to {what}") })?;
                }
                continue;
            }
            let at = start.add(first * 8);
            let len = suffixes.end - suffixes.start;
            for start in (0..len).step_by(STEP as usize) {
                let words = span.read(at.add(start * 8), STEP.min(len - start) as usize * 8).await?;
                for (suffix, word) in (suffixes.start + start..).zip(words.words()) {
                    let entry = Entry::from_bits(*word);
                    if !entry.is_none() {
                        self.mirror.learn(suffix, entry);
                        each(suffix, entry).await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads every segment that the directory names, in ascending order of suffixes: see [`walk`](Self::walk). A first
    /// segment without a word is reported to `damaged`.
    pub(crate) async fn segments(
        &self,
        pool: &Pool,
        span: &Span,
        damaged: OnDamage<'_>,
    ) -> Result<Vec<(u64, Entry)>, IndexError> {
        let mut segments = Vec::new();
        let note = async |suffix, entry| {
            segments.push((suffix, entry));
            Ok(())
        };
        self.walk(pool, span, note, damaged).await?;
        let known: BTreeSet<u64> = segments.iter().map(|(suffix, _)| *suffix).collect();
        for suffix in (0..1 << self.shape().initial_depth).filter(|suffix| !known.contains(suffix)) {
            damaged(self.lost_segment(suffix))?;
        }
        Ok(segments)
    }

    /// The damage of a segment that must exist, and that the directory does not name.
    pub(crate) fn lost_segment(&self, suffix: u64) -> Damage {
        let at = self.address(suffix).unwrap_or(self.root);
        Damage { at, what: format!("the directory names no segment of suffix {suffix:#b}, and there was one") }
    }

    /// READs whether there is a segment of this suffix now.
    async fn has(&self, pool: &Pool, span: &Span, suffix: u64) -> Result<bool, IndexError> {
        let (chunk, i) = self.shape().place(suffix);
        let start = self.mirror.chunk(chunk).filter(|at| astray(pool, *at, self.shape().words_of(chunk) * 8).is_none());
        match start {
            Some(start) => Ok(!Entry::from_bits(first_word(&span.read(start.add(i * 8), 8).await?)).is_none()),
            None => Ok(false),
        }
    }

    /// Records the memory of the directory itself, and checks its words.
    pub(crate) async fn audit(&self, span: &Span, findings: &mut Findings<'_>) -> Result<(), IndexError> {
        let pool = findings.session.pool();
        self.read_root(span).await?;
        let mut own = vec![(self.root, ROOT_LEN as u64, "the root of a directory")];
        for chunk in 0..self.shape().chunks() {
            let len = self.shape().words_of(chunk) * 8;
            let chunk = self.mirror.chunk(chunk).filter(|at| astray(pool, *at, len).is_none());
            own.extend(chunk.map(|at| (at, len, "a chunk of a directory")));
        }
        for (at, len, what) in own {
            findings.count("directory_bytes", len);
            findings.reach(at, len, what);
        }
        let mut note = |damage: Damage| {
            findings.problem(damage.what);
            Ok(())
        };
        let segments = self.segments(pool, span, &mut note).await?;
        let mut known = BTreeSet::new();
        for (suffix, entry) in segments {
            // A parent that was split off after its word had been READ is there by now.
            if let Some(parent) = self.shape().parent(suffix)
                && !known.contains(&parent)
                && !self.has(pool, span, parent).await?
            {
                findings.problem(format!("the segment of suffix {suffix:#b} has no parent"));
            }
            if entry.at().node() != self.root.node() {
                findings.problem(format!("the segment of suffix {suffix:#b} lies on another node, at {}", entry.at()));
            }
            known.insert(suffix);
        }
        Ok(())
    }

    /// Marks the index with this tag as dropped, if this is its root.
    pub async fn mark_dropped(span: &Span, root: RemotePtr, index_tag: u64) -> Result<(), IndexError> {
        let words = span.read(root, (ROOT_INDEX_TAG + 1) * 8).await?;
        let word = first_word(&words);
        if words.words().get(ROOT_INDEX_TAG) == Some(&index_tag) && word & DROPPED == 0 {
            // Nothing but this mark ever changes the word: if the CAS fails, another client has set it.
            span.cas(root, word, word | DROPPED).await?;
        }
        Ok(())
    }

    /// Frees the memory of a dropped directory that no operation uses any more. Its segments have been freed before, so it was
    /// [walked](Self::walk), and every chunk is known.
    pub async fn free(&self, session: &Session, span: &Span) -> Result<(), IndexError> {
        for chunk in 0..self.shape().chunks() {
            if let Some(at) = self.mirror.chunk(chunk) {
                session.free(span, at, self.shape().words_of(chunk) * 8).await?;
            }
        }
        retire_root(session, span, self.root, ROOT_LEN, ROOT_INDEX_TAG).await
    }
}

/// Does a segment with this suffix and local depth hold a hash?
pub const fn holds(of: u64, depth: u32, hash: u64) -> bool {
    suffix(hash, depth) == of
}

async fn zero(span: &Span, at: RemotePtr, bytes: u64) -> Result<(), IndexError> {
    for start in (0..bytes).step_by(ZEROS as usize) {
        let mut buf = span.endpoint().buf(ZEROS.min(bytes - start) as usize);
        buf.words_mut().fill(0);
        span.write(at.add(start), buf).await?;
    }
    Ok(())
}
