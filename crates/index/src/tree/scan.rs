//! Scans: the leaves of one parent are READ in one batch, and the blocks of all of their entries in another.
//!
//! Each leaf is a state between two changes (W2), or one that a reader cannot tell from such a state, and the next leaf
//! begins where it ends (B1). So a key that is present during the whole scan is found, and each entry was there at some
//! moment of the scan. Nothing is pinned between two batches of leaves: the scan descends again, to the first key that it
//! has not seen.

use super::entries::{SlotKey, SlotValue};
use super::faults::{Fault, planted};
use super::fence::Key;
use super::inner::Inner;
use super::node::Header;
use super::retry::{Retry, Step};
use super::skeleton::{Leaves, Tree};
use crate::maintenance::fetch_blocks;
use crate::traits::{Entry, KeyBounds};
use crate::{IndexError, Value};
use farindex_fabric::{OpKind, RemotePtr, SharedBuf, Span, Ticket};
use std::ops::{Bound, Range};
use std::sync::Arc;

/// Most leaves of one batch.
const LEAVES: usize = 32;

/// The parent of a leaf, and the leaf's position in it.
type Parent = (Arc<Inner>, usize);

/// The keys that a scan wants.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    bounds: KeyBounds<'a>,
    limit: usize,
}

impl Wanted<'_> {
    fn begins_at_or_below(self, key: &[u8]) -> bool {
        match self.bounds.0 {
            Bound::Included(bound) => key >= bound,
            Bound::Excluded(bound) => key > bound,
            Bound::Unbounded => true,
        }
    }
    fn ends_above(self, key: &[u8]) -> bool {
        match self.bounds.1 {
            Bound::Included(bound) => key <= bound,
            Bound::Excluded(bound) => key < bound,
            Bound::Unbounded => true,
        }
    }
    fn holds(self, key: &[u8]) -> bool {
        self.begins_at_or_below(key) && self.ends_above(key)
    }
}

/// Part of a scan: entries in ascending order, and the first key that it has not covered.
struct Part {
    entries: Vec<Entry>,
    next: Option<Vec<u8>>,
}

/// A leaf of a batch.
enum Ahead<N> {
    Copy(N),
    Read(Ticket),
}

impl Tree {
    /// Scans a range. Leaves hold `per_leaf` entries, as a rule.
    pub(super) async fn scan_range(
        &self,
        leaves: &impl Leaves,
        bounds: KeyBounds<'_>,
        limit: usize,
        per_leaf: usize,
    ) -> Result<Vec<Entry>, IndexError> {
        let mut next = Some(match bounds.0 {
            Bound::Included(key) | Bound::Excluded(key) => key.to_vec(),
            Bound::Unbounded => Vec::new(),
        });
        let (mut entries, mut span) = (Vec::new(), Some(self.session.span(OpKind::Scan)));
        let mut retry = Retry::default();
        loop {
            let wanted = Wanted { bounds, limit: limit - entries.len() };
            let Some(from) = next.take().filter(|from| wanted.limit > 0 && wanted.ends_above(from)) else {
                return Ok(entries);
            };
            let pin = self.session.pin(span.take().unwrap_or_else(|| self.session.span(OpKind::Scan)))?;
            let part = self.scan_part(leaves, pin.span(), (wanted, per_leaf), &from, &retry).await?;
            drop(pin);
            match part {
                // Every step goes to a larger key: no scan is endless.
                Ok(part) if part.next.as_ref().is_some_and(|next| *next <= from) => {
                    return Err(IndexError::corrupt(self.root, "a leaf of this tree has a high key below its keys"));
                }
                Ok(part) => {
                    retry = Retry::default();
                    entries.extend(part.entries);
                    next = part.next;
                }
                Err(trouble) => {
                    self.settle(leaves, &mut retry, trouble).await?;
                    next = Some(from);
                }
            }
        }
    }

    async fn scan_part<L: Leaves>(
        &self,
        leaves: &L,
        span: &Span,
        (wanted, per_leaf): (Wanted<'_>, usize),
        from: &[u8],
        retry: &Retry,
    ) -> Step<Part> {
        let mut missing = Vec::new();
        let most = (1 + wanted.limit / per_leaf.max(1)).min(LEAVES);
        if let Some(all) = leaves.sent_leaves(span, from, most, retry).await? {
            return Ok(Ok(self.part_of(leaves, span, (all, None), wanted, from).await?));
        }
        let found = match self.descend(span, retry.goal(from), 0, retry.fresh, &mut missing).await? {
            Ok(found) => found,
            Err(trouble) => return Ok(Err(trouble)),
        };
        let mut ahead: Vec<RemotePtr> = Vec::new();
        if let Some((parent, i)) = &found.parent {
            let inside = |i: &usize| wanted.ends_above(&parent.key(*i));
            ahead.extend((i + 1..parent.len()).take(most - 1).take_while(inside).map(|i| parent.child(i)));
        }
        // What there is no copy of is READ in one batch.
        let mut batch = None;
        let mut get = |at| match leaves.copy(at) {
            Some(copy) => Ahead::Copy(copy),
            None => Ahead::Read(batch.get_or_insert_with(|| span.batch()).read(at, leaves.leaf_len())),
        };
        let first = get(found.at);
        let tickets: Vec<_> = ahead.iter().map(|at| get(*at)).collect();
        let mut done = match batch {
            Some(batch) => Some(self.post_open(batch).await?),
            None => None,
        };
        let mut sound = |at, ahead: Ahead<L::Leaf>| match (ahead, &mut done) {
            (Ahead::Copy(copy), _) => Some(copy),
            (Ahead::Read(ticket), Some(done)) => leaves.leaf(span, at, done.buf(ticket)).ok(),
            (Ahead::Read(_), None) => None,
        };
        let first = sound(found.at, first);
        // A copy may be newer than what far memory has.
        let read = async |at| match leaves.copy(at) {
            Some(copy) => Ok(Ok(copy)),
            None => self.read_leaf_open(leaves, span, at).await,
        };
        let first = match self.node_of(span, &found, from, first, &mut missing, read).await? {
            Ok(first) => first,
            Err(trouble) => return Ok(Err(trouble)),
        };
        let mut all = vec![first];
        for (at, ticket) in ahead.into_iter().zip(tickets) {
            let Some(next) = sound(at, ticket) else { break };
            let follows = all.last().is_some_and(|last| last.high() == next.low() && last.sibling() == at);
            if !follows || next.is_dead() {
                break;
            }
            all.push(next);
        }
        drop(done);
        Ok(Ok(self.part_of(leaves, span, (all, found.parent.as_ref()), wanted, from).await?))
    }

    /// What consecutive leaves have of a scan. `parent` is that of the first one, and its position there.
    async fn part_of<L: Leaves>(
        &self,
        leaves: &L,
        span: &Span,
        (all, parent): (Vec<L::Leaf>, Option<&Parent>),
        wanted: Wanted<'_>,
        from: &[u8],
    ) -> Result<Part, IndexError> {
        let (mut parts, mut high) = (Vec::with_capacity(all.len()), None);
        for (number, leaf) in all.into_iter().enumerate() {
            let known = parent.and_then(|(parent, i)| parent.high_of(i + number));
            high = match known {
                _ if leaf.high().is_infinite() => None,
                Some(known) if leaf.high().is(&known) || planted(Fault::ScanSkipsSplit) => Some(known.to_vec()),
                _ => self.fence_key(span, leaf.high()).await?,
            };
            parts.push((leaf, high.clone()));
        }
        let entries = entries_of(leaves, span, parts, wanted, from).await?;
        let next = high.filter(|_| entries.len() < wanted.limit);
        Ok(Part { entries, next })
    }
}

/// Returns the first entries of consecutive leaves, each with its high key, that a scan wants, and that are not below
/// `from`. In the midst of a split or a merge, a leaf may hold entries beyond its high key, which its right sibling holds.
async fn entries_of<L: Leaves>(
    leaves: &L,
    span: &Span,
    all: Vec<(L::Leaf, Option<Vec<u8>>)>,
    wanted: Wanted<'_>,
    from: &[u8],
) -> Result<Vec<Entry>, IndexError> {
    let holds =
        |key: &[u8], high: Option<&[u8]>| key >= from && high.is_none_or(|high| key < high) && wanted.holds(key);
    let (mut places, mut in_blocks) = (Vec::new(), Vec::new());
    let mut found: Vec<(usize, Key, Entry)> = Vec::new();
    let mut highs = Vec::with_capacity(all.len());
    for (number, (leaf, high)) in all.into_iter().enumerate() {
        let slots = leaves.slots(&leaf);
        let view = L::into_words(leaf).share();
        for slot in slots {
            let key = match &slot.key {
                SlotKey::Inline(range) => {
                    let key = part(&view, range);
                    if !holds(&key, high.as_deref()) {
                        continue;
                    }
                    Some(key)
                }
                SlotKey::Hash(_) => None,
            };
            match (key, &slot.value) {
                (Some(key), SlotValue::Inline(range)) => {
                    let value = part(&view, range);
                    found.push((number, Key::from_slice(&key), Entry { key, value }));
                }
                _ => {
                    places.extend(slot.block());
                    in_blocks.push(number);
                }
            }
        }
        highs.push(high);
    }
    for ((number, (at, _)), block) in in_blocks.into_iter().zip(&places).zip(fetch_blocks(span, &places).await?) {
        let block = block.map_err(|what| IndexError::corrupt(*at, format!("an entry of a leaf points to {what}")))?;
        let high = highs.get(number).and_then(|high| high.as_deref());
        if holds(block.key(), high) {
            let key = Key::from_slice(block.key());
            found.push((number, key, Entry { key: Value::from(block.key()), value: block.into_value() }));
        }
    }
    found.sort_unstable_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
    Ok(found.into_iter().take(wanted.limit).map(|(_, _, entry)| entry).collect())
}

fn part(view: &SharedBuf, range: &Range<usize>) -> Value {
    view.slice(range.clone()).map(Value::shared).unwrap_or_else(|| Value::from(&[][..]))
}
