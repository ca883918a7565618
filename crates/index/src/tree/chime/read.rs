//! Lookups: one READ of a neighbourhood, or of one entry, and one of a key-value block.
//!
//! A lookup takes effect at a moment of the READ of the neighbourhood (R1, R2). What it expects of the leaf comes from
//! the parent's copy: the range, and the right sibling, which is the parent's next child. If the entries do not fit that,
//! the lookup READs the header with the neighbourhood, and the header decides (section 4.2.3).

use super::Chime;
use super::held::{is_retired, state};
use super::hotspot::Saved;
use super::leaf::layout::{ENTRY_LEN, HEADER_LEN};
use super::leaf::{self, Entry, Item, Key, Lookup, Pieces, Ranges, look_up, verify_entry};
use crate::marks::mark;
use crate::tree::descend::{Found, Separator};
use crate::tree::faults::{Fault, planted};
use crate::tree::fence::Fence;
use crate::tree::hand_over::Posted;
use crate::tree::lookups::{Answer, LooksUp};
use crate::tree::node::{DEAD, Header};
use crate::tree::retry::{Retry, Step};
use crate::tree::skeleton::Unread;
use crate::{IndexError, Value};
use farindex_fabric::{Batch, Buf, Done, OpKind, RemotePtr, Span, cold};
use smallvec::SmallVec;

/// A key, and where it is in a leaf.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) key: Key,
    pub(super) hash: u64,
    pub(super) home: usize,
}

/// A neighbourhood as it was read: offsets in the leaf, and the words from there.
pub(super) struct Near {
    layout: leaf::Layout,
    pieces: SmallVec<[(usize, Buf); 2]>,
}

impl Near {
    fn done(layout: leaf::Layout, posted: Posted, done: &mut Done) -> Near {
        Near { layout, pieces: posted.into_iter().map(|(start, ticket)| (start, done.buf(ticket))).collect() }
    }
    fn words(&self) -> Pieces<'_> {
        let piece = |(start, buf): &(usize, Buf)| (*start, buf.len());
        let mut found = self.pieces.iter().map(|part| (piece(part).0, part.1.words()));
        Pieces::new(self.layout, found.next().unwrap_or_default(), found.next())
    }
    /// The value in an entry.
    fn value(self, position: usize) -> Option<Value> {
        let at = self.layout.entry_offset(position) + 8;
        let (start, buf) = self.pieces.into_iter().find(|(start, buf)| (*start..*start + buf.len()).contains(&at))?;
        Some(Value::fetched(buf, at - start..at - start + 8))
    }
}

/// What a neighbourhood says about a key. `None`: read again.
fn answer_of(lookup: Lookup, near: Near) -> Option<Answer> {
    match lookup {
        Lookup::Hit { position, item: Item { word1, block: true, .. } } => {
            Some(Answer::Blocks(SmallVec::from_slice(&[(position, word1)])))
        }
        Lookup::Hit { position, .. } => near.value(position).map(|value| Answer::Value(position, value)),
        Lookup::Candidates(found) => Some(Answer::Blocks(found)),
        Lookup::Miss => Some(Answer::Absent),
        Lookup::Torn | Lookup::Moved(_) => None,
    }
}

/// A header, with what the leaf says about a key.
struct Seen {
    at: RemotePtr,
    header: Buf,
    node: leaf::Node,
    answer: Answer,
}

impl Header for Seen {
    fn at(&self) -> RemotePtr {
        self.at
    }
    fn word(&self, index: usize) -> u64 {
        self.header.words().get(index).copied().unwrap_or_default()
    }
}

impl Chime {
    pub(super) fn place(&self, key: &[u8]) -> Place {
        let key = self.key_of(key);
        Place { key, hash: key.hash(self.layout.hash_seed()), home: self.layout.home(key) }
    }

    /// What the copies of inner nodes say about the leaf where a descent has ended, if that is the key's; it is another
    /// one on the way around a dead leaf.
    fn expected(&self, found: &Found, key: &[u8]) -> Option<leaf::Node> {
        let (parent, i) = found.parent.as_ref()?;
        let high = parent.high_of(*i);
        if parent.key(*i).as_slice() > key || high.as_ref().is_some_and(|high| high.as_slice() <= key) {
            return None;
        }
        let sibling = match &high {
            _ if i + 1 < parent.len() => parent.child(i + 1),
            None => RemotePtr::NULL,
            // The first child of the next node, if that is the next node.
            Some(high) => {
                let next = self.tree.cache.peek(parent.sibling)?;
                (next.level == parent.level && !next.dead && *next.low == **high).then(|| next.child(0))?
            }
        };
        let fence = |key: &[u8]| Fence::new(key, RemotePtr::NULL);
        let high = high.map_or(Fence::INFINITE, |high| fence(&high));
        Some(state((self.tree.tag, found.at), sibling, (fence(&parent.key(*i)), high)))
    }

    /// Posts the READs of ranges of a leaf.
    pub(super) fn post_ranges(batch: &mut Batch<'_>, at: RemotePtr, ranges: &Ranges) -> Posted {
        ranges.iter().map(|range| (range.start, batch.read(at.add(range.start as u64), range.len()))).collect()
    }

    async fn look_up_once(&self, span: &Span, key: &[u8], place: Place, retry: &Retry) -> Step<Option<Value>> {
        let mut missing = Vec::new();
        let found = match self.tree.descend(span, retry.goal(key), 0, retry.fresh, &mut missing).await? {
            Ok(found) => found,
            Err(trouble) => return Ok(Err(trouble)),
        };
        let ranges = self.layout.neighbourhood_ranges(place.home);
        let expected = if self.config.replicas { self.expected(&found, key) } else { None };
        if let Some(node) = &expected {
            let expected = node.expected();
            let saved = Saved { entry: ENTRY_LEN, neighbourhood: ranges.iter().map(ExactSizeIterator::len).sum() };
            if let Some(position) = self.hotspots.position(self.policy, saved, place.hash, found.at) {
                let value = self.speculate(span, found.at, &expected, key, (place, position)).await?;
                self.hotspots.record(place.hash, value.is_some());
                if value.is_some() {
                    return Ok(Ok(value));
                }
                mark!("chime: wrong speculation");
            }
            let mut batch = span.batch();
            let posted = Self::post_ranges(&mut batch, found.at, &ranges);
            let near = Near::done(self.layout, posted, &mut self.tree.post_open(batch).await?);
            let lookup = look_up(&near.words(), &expected, place.key);
            let stays = planted(Fault::NoMoveRight) && matches!(lookup, Lookup::Moved(_));
            let lookup = if stays { Lookup::Miss } else { lookup };
            if let Some(answer) = answer_of(lookup, near) {
                return self.finish(span, key, (found.at, place), answer).await.map(Ok);
            }
            mark!("chime: neighbourhood is not as the parent says");
        }
        match cold(self.look_up_by_header(span, key, place, (&found, expected), &ranges, &mut missing)).await? {
            Ok((at, answer)) => self.finish(span, key, (at, place), answer).await.map(Ok),
            Err(trouble) => Ok(Err(trouble)),
        }
    }

    /// READs one entry alone.
    async fn speculate(
        &self,
        span: &Span,
        at: RemotePtr,
        expected: &leaf::Expected,
        key: &[u8],
        (place, position): (Place, usize),
    ) -> Result<Option<Value>, IndexError> {
        if position >= self.layout.span() {
            return Ok(None);
        }
        let range = self.layout.entry(position);
        let buf = self.tree.read_open(span, at.add(range.start as u64), range.len()).await?;
        let &[word0, word1, state] = buf.words() else { return Ok(None) };
        let entry = Entry { word0, word1, state: leaf::entry::State::from_bits(state) };
        let item = verify_entry(&entry, position, expected).filter(|item| item.key == place.key);
        match item {
            None => Ok(None),
            Some(Item { block: false, .. }) => Ok(Some(Value::fetched(buf, 8..16))),
            Some(Item { word1, .. }) => {
                let found = self.block_of(span, &SmallVec::from_slice(&[(position, word1)]), key).await?;
                Ok(found.map(|(_, block)| block.into_value()))
            }
        }
    }

    /// READs the header with the neighbourhood, and goes where the header leads.
    async fn look_up_by_header(
        &self,
        span: &Span,
        key: &[u8],
        place: Place,
        (found, expected): (&Found, Option<leaf::Node>),
        ranges: &Ranges,
        missing: &mut Vec<Separator>,
    ) -> Step<(RemotePtr, Answer)> {
        let read = async |at| self.tree.read_until(async || self.read_by_header(span, at, place, ranges).await).await;
        let seen = match self.tree.node_of(span, found, key, None, missing, read).await? {
            Ok(seen) => seen,
            Err(trouble) => return Ok(Err(trouble)),
        };
        if let (true, Some((parent, _))) = (expected.is_some_and(|expected| !expected.is(&seen.node)), &found.parent) {
            // The copies have misled this lookup: the next one reads them anew.
            self.tree.cache.remove(parent.at);
            self.tree.cache.remove(parent.sibling);
        }
        Ok(Ok((seen.at, seen.answer)))
    }

    async fn read_by_header(
        &self,
        span: &Span,
        at: RemotePtr,
        place: Place,
        ranges: &Ranges,
    ) -> Result<Result<Seen, Unread>, IndexError> {
        let mut batch = span.batch();
        let header = batch.read(at, HEADER_LEN);
        let posted = Self::post_ranges(&mut batch, at, ranges);
        let mut done = self.tree.post_open(batch).await?;
        let header = done.buf(header);
        let near = Near::done(self.layout, posted, &mut done);
        if is_retired(header.words()) {
            return Ok(Err(Unread::Dead));
        }
        let node = leaf::Node::read(&Pieces::new(self.layout, (0, header.words()), None), self.tree.tag, at.to_bits());
        let lookup = node.map(|node| look_up(&near.words(), &node.expected(), place.key));
        let answer = lookup.and_then(|lookup| answer_of(lookup, near));
        match (node, answer) {
            (Some(node), Some(answer)) => Ok(Ok(Seen { at, header, node, answer })),
            (Some(_), None) if header.words().first() == Some(&DEAD) => Ok(Err(Unread::Dead)),
            _ => Ok(Err(self.tree.why_unread(at, header.words().first().copied().unwrap_or_default()))),
        }
    }

    async fn finish(
        &self,
        span: &Span,
        key: &[u8],
        (at, place): (RemotePtr, Place),
        answer: Answer,
    ) -> Result<Option<Value>, IndexError> {
        let (position, value) = match answer {
            Answer::Absent => return Ok(None),
            Answer::Value(position, value) => (position, value),
            Answer::Blocks(places) => match self.block_of(span, &places, key).await? {
                Some((position, block)) => (position, block.into_value()),
                None => return Ok(None),
            },
        };
        self.hotspots.found(self.policy, place.hash, at, position);
        Ok(Some(value))
    }
}

impl LooksUp for Chime {
    async fn look_up(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        self.check_lengths(key, &[])?;
        let (mut retry, mut span) = (Retry::default(), Some(self.session.span(OpKind::Get)));
        let place = self.place(key);
        loop {
            let pin = self.session.pin(span.take().unwrap_or_else(|| self.tree.maintenance()))?;
            let attempt = self.look_up_once(pin.span(), key, place, &retry).await?;
            drop(pin);
            match attempt {
                Ok(value) => return Ok(value),
                Err(trouble) => cold(self.tree.settle(self, &mut retry, trouble)).await?,
            }
        }
    }

    /// Each key takes a neighbourhood, of a leaf of which the copies of inner nodes say enough.
    async fn answers(&self, span: &Span, keys: &[&[u8]]) -> Result<Vec<Option<Answer>>, IndexError> {
        let (mut posted, mut missing) = (Vec::with_capacity(keys.len()), Vec::new());
        let mut batch = span.batch();
        for key in keys {
            let found = self.tree.descend(span, Retry::default().goal(key), 0, false, &mut missing).await?.ok();
            posted.push(found.and_then(|found| {
                let expected = self.expected(&found, key)?.expected();
                let place = self.place(key);
                let ranges = self.layout.neighbourhood_ranges(place.home);
                Some((expected, place, Self::post_ranges(&mut batch, found.at, &ranges)))
            }));
        }
        let mut done = if batch.is_empty() { None } else { Some(self.tree.post_open(batch).await?) };
        let answer = |posted: Option<(leaf::Expected, Place, Posted)>| {
            let ((expected, place, posted), done) = posted.zip(done.as_mut())?;
            let near = Near::done(self.layout, posted, done);
            answer_of(look_up(&near.words(), &expected, place.key), near)
        };
        Ok(posted.into_iter().map(answer).collect())
    }
}
