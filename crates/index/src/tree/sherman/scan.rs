//! Scans: the leaves of one parent are READ in one batch, and the blocks of all of their entries in another.
//!
//! Each leaf is a state between two changes (W2), and the next leaf begins where it ends (B1). So a key that is present
//! during the whole scan is found, and each entry was there at some moment of the scan. Nothing is pinned between two
//! batches of leaves: the scan descends again, to the first key that it has not seen.

use super::Sherman;
use super::read::place;
use crate::block::Block;
use crate::maintenance::fetch_blocks;
use crate::traits::{Entry, KeyBounds};
use crate::tree::faults::{Fault, planted};
use crate::tree::fence::Key;
use crate::tree::node::{Header, Node};
use crate::tree::skeleton::{Leaves, Retry, Step};
use crate::{IndexError, Value};
use farindex_fabric::{OpKind, RemotePtr, Span};
use std::ops::Bound;

/// Most leaves of one batch.
const LEAVES: usize = 32;

/// The keys that a scan wants.
#[derive(Clone, Copy)]
struct Range<'a> {
    bounds: KeyBounds<'a>,
}

impl Range<'_> {
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

impl Sherman {
    pub(super) async fn scan_range(&self, bounds: KeyBounds<'_>, limit: usize) -> Result<Vec<Entry>, IndexError> {
        let range = Range { bounds };
        let mut next = Some(match bounds.0 {
            Bound::Included(key) | Bound::Excluded(key) => key.to_vec(),
            Bound::Unbounded => Vec::new(),
        });
        let (mut entries, mut span) = (Vec::new(), Some(self.session.span(OpKind::Scan)));
        let mut retry = Retry::default();
        while let Some(from) = next.take().filter(|from| entries.len() < limit && range.ends_above(from)) {
            let pin = self.session.pin(span.take().unwrap_or_else(|| self.session.span(OpKind::Scan)))?;
            let part = self.scan_part(pin.span(), range, &from, limit - entries.len(), &retry).await?;
            drop(pin);
            match part {
                Ok(part) => {
                    retry = Retry::default();
                    entries.extend(part.entries);
                    next = part.next;
                }
                Err(trouble) => {
                    self.tree.settle(self, &mut retry, trouble).await?;
                    next = Some(from);
                }
            }
        }
        Ok(entries)
    }

    async fn scan_part(&self, span: &Span, range: Range<'_>, from: &[u8], limit: usize, retry: &Retry) -> Step<Part> {
        let mut missing = Vec::new();
        let found = match self.tree.descend(span, retry.goal(from), 0, retry.fresh, &mut missing).await? {
            Ok(found) => found,
            Err(trouble) => return Ok(Err(trouble)),
        };
        // Leaves are half full at least, as a rule.
        let wanted = (1 + limit / (self.config.leaf_span / 2).max(1)).min(LEAVES);
        let mut ahead: Vec<RemotePtr> = Vec::new();
        if let Some((parent, i)) = &found.parent {
            let inside = |i: &usize| range.ends_above(&parent.key(*i));
            ahead.extend((i + 1..parent.len()).take(wanted - 1).take_while(inside).map(|i| parent.child(i)));
        }
        let mut batch = span.batch();
        let first = batch.read(found.at, self.leaf.len());
        let tickets: Vec<_> = ahead.iter().map(|at| batch.read(*at, self.leaf.len())).collect();
        let mut done = batch.post().await?;
        let first = Some(done.buf(first));
        let first = match self.leaf_of(span, &found, from, first, &mut missing).await? {
            Ok(first) => first,
            Err(trouble) => return Ok(Err(trouble)),
        };
        let mut leaves = vec![first];
        for (at, ticket) in ahead.into_iter().zip(tickets) {
            let Some(next) = self.leaf(span, at, done.buf(ticket)) else { break };
            let follows = leaves.last().is_some_and(|last| last.high() == next.low() && last.sibling() == at);
            if !follows || next.is_dead() {
                break;
            }
            leaves.push(next);
        }
        drop(done);
        let high = leaves.last().map(Header::high);
        let parent = found.parent.as_ref().filter(|_| planted(Fault::ScanSkipsSplit));
        let bound = parent.and_then(|(parent, i)| parent.high_of(i + leaves.len() - 1));
        let entries = self.entries(span, leaves, range, from, limit).await?;
        let next = match high {
            _ if planted(Fault::ScanSkipsSplit) && entries.len() < limit => bound.map(|key| key.to_vec()),
            Some(high) if entries.len() < limit => self.tree.fence_key(span, high).await?,
            _ => None,
        };
        Ok(Ok(Part { entries, next }))
    }

    /// Returns the first entries of consecutive leaves within a range, and not below `from`.
    async fn entries(
        &self,
        span: &Span,
        leaves: Vec<Node>,
        range: Range<'_>,
        from: &[u8],
        limit: usize,
    ) -> Result<Vec<Entry>, IndexError> {
        let holds = |key: &[u8]| key >= from && range.holds(key);
        let (mut places, mut in_blocks) = (Vec::new(), Vec::new());
        let mut all: Vec<(usize, Key, Entry)> = Vec::new();
        for (number, leaf) in leaves.into_iter().enumerate() {
            let slots: Vec<_> = leaf.used().collect();
            let layout = leaf.layout;
            let mut inline = Vec::new();
            for slot in slots {
                if leaf.is_inline(slot) {
                    let key = leaf.slot(slot).0.to_le_bytes();
                    if holds(&key) {
                        inline.push((slot, Key::from_slice(&key)));
                    }
                } else {
                    places.push(place(leaf.slot(slot).1));
                    in_blocks.push(number);
                }
            }
            let view = leaf.buf.share();
            for (slot, key) in inline {
                let at = layout.slot(slot) * 8;
                let part =
                    |at: usize| view.slice(at..at + 8).map(Value::shared).unwrap_or_else(|| Value::from(&[][..]));
                all.push((number, key, Entry { key: part(at), value: part(at + 8) }));
            }
        }
        for ((number, (at, _)), block) in in_blocks.into_iter().zip(&places).zip(fetch_blocks(span, &places).await?) {
            let block: Block =
                block.map_err(|what| IndexError::corrupt(*at, format!("an entry of a leaf points to {what}")))?;
            if holds(block.key()) {
                let key = Key::from_slice(block.key());
                all.push((number, key, Entry { key: Value::from(block.key()), value: block.into_value() }));
            }
        }
        all.sort_unstable_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        Ok(all.into_iter().take(limit).map(|(_, _, entry)| entry).collect())
    }
}
