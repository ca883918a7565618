//! Lookups: one READ of a leaf, and one of a key-value block.
//!
//! A lookup takes effect at a moment of the READ of the leaf that the key belongs to (W2, B1).

use super::Sherman;
use crate::tree::descend::{Found, Separator};
use crate::tree::lookups::{Answer, Candidates, LooksUp};
use crate::tree::node::{Node, Words};
use crate::tree::retry::{Retry, Step};
use crate::tree::skeleton::Leaves;
use crate::{IndexError, Value};
use farindex_fabric::{Buf, OpKind, RemotePtr, Span, cold};
use std::collections::HashMap;

impl Sherman {
    /// The key's slot, if the entry is inline; otherwise the slots with blocks that have the key's hash.
    pub(in crate::tree) fn candidates<B: Words>(&self, node: &Node<B>, key: &[u8]) -> Result<usize, Candidates> {
        let slots = || node.used().filter(|slot| node.is_whole(*slot));
        if let Ok(bytes) = <[u8; 8]>::try_from(key) {
            let word = u64::from_le_bytes(bytes);
            // Most slots have another key: what is compared first are the words of all slots.
            let is_it = |slot: &usize| node.slot(*slot).0 == word && node.holds(*slot) && node.is_whole(*slot);
            if let Some(slot) = (0..node.layout.span).find(is_it) {
                return Ok(slot);
            }
        }
        let hash = self.hash(key).bits();
        let candidate = |slot| Some((slot, node.slot(slot).1)).filter(|_| node.slot(slot).0 == hash);
        Err(slots().filter(|slot| !node.is_inline(*slot)).filter_map(candidate).collect())
    }

    /// What a leaf says about its key.
    pub(in crate::tree) fn answer(&self, node: Node, key: &[u8]) -> Answer {
        match self.candidates(&node, key) {
            Ok(slot) => {
                let at = (node.layout.slot(slot) + 1) * 8;
                Answer::Value(slot, Value::fetched(node.buf, at..at + 8))
            }
            Err(candidates) => Answer::Blocks(candidates),
        }
    }

    /// What the words of a leaf say about its key. No more than a value is copied.
    pub(in crate::tree) fn answer_in(&self, at: RemotePtr, words: &[u64], key: &[u8]) -> Answer {
        let node = Node { at, layout: self.leaf, buf: words };
        match self.candidates(&node, key) {
            Ok(slot) => {
                let value = self.session.endpoint().buf_from_words(&[node.slot(slot).1]);
                Answer::Value(slot, Value::fetched(value, 0..8))
            }
            Err(candidates) => Answer::Blocks(candidates),
        }
    }

    /// READs the leaf that a key belongs to. `first` are the words of the leaf where the descent has ended, if they have
    /// been read.
    pub(in crate::tree) async fn leaf_of(
        &self,
        span: &Span,
        found: &Found,
        key: &[u8],
        first: Option<Buf>,
        missing: &mut Vec<Separator>,
    ) -> Step<Node> {
        let first = first.and_then(|buf| self.leaf(span, found.at, buf).ok());
        let read = async |at| self.tree.read_leaf_open(self, span, at).await;
        self.tree.node_of(span, found, key, first, missing, read).await
    }

    async fn look_up_once(&self, span: &Span, key: &[u8], retry: &Retry) -> Step<Option<Value>> {
        let mut missing = Vec::new();
        let found = match self.tree.descend(span, retry.goal(key), 0, retry.fresh, &mut missing).await? {
            Ok(found) => found,
            Err(trouble) => return Ok(Err(trouble)),
        };
        match self.leaf_of(span, &found, key, None, &mut missing).await? {
            Ok(node) => Ok(Ok(self.value_of(span, self.answer(node, key), key).await?)),
            Err(trouble) => Ok(Err(trouble)),
        }
    }
}

impl Sherman {
    /// READs the leaves of these keys where their descents have ended, each leaf once and all in one batch. `None` for a key
    /// that takes more.
    pub(in crate::tree) async fn answers_of(
        &self,
        span: &Span,
        keys: &[(&[u8], Option<&Found>)],
        missing: &mut Vec<Separator>,
    ) -> Result<Vec<Option<Answer>>, IndexError> {
        let (mut places, mut batch) = (HashMap::new(), span.batch());
        for at in keys.iter().filter_map(|(_, found)| found.map(|found| found.at)) {
            places.entry(at).or_insert_with(|| batch.read(at, self.leaf.len()));
        }
        let mut done = self.tree.post_open(batch).await?;
        let leaves: HashMap<_, _> = places.into_iter().map(|(at, ticket)| (at, done.buf(ticket))).collect();
        let mut answers = Vec::with_capacity(keys.len());
        for (key, found) in keys {
            let node = match found {
                Some(found) => {
                    let buf = leaves.get(&found.at).map(|buf| self.session.endpoint().buf_from_words(buf.words()));
                    self.leaf_of(span, found, key, buf, missing).await?.ok()
                }
                None => None,
            };
            answers.push(node.map(|node| self.answer(node, key)));
        }
        Ok(answers)
    }
}

impl LooksUp for Sherman {
    async fn look_up(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        self.check_lengths(key, &[])?;
        let (mut retry, mut span) = (Retry::default(), Some(self.session.span(OpKind::Get)));
        loop {
            let pin = self.session.pin(span.take().unwrap_or_else(|| self.tree.maintenance()))?;
            let attempt = self.look_up_once(pin.span(), key, &retry).await?;
            drop(pin);
            match attempt {
                Ok(value) => return Ok(value),
                Err(trouble) => cold(self.tree.settle(self, &mut retry, trouble)).await?,
            }
        }
    }

    async fn answers(&self, span: &Span, keys: &[&[u8]]) -> Result<Vec<Option<Answer>>, IndexError> {
        let (mut missing, mut found) = (Vec::new(), Vec::with_capacity(keys.len()));
        for key in keys {
            found.push(self.tree.descend(span, Retry::default().goal(key), 0, false, &mut missing).await?.ok());
        }
        let found: Vec<_> = keys.iter().zip(&found).map(|(key, found)| (*key, found.as_ref())).collect();
        self.answers_of(span, &found, &mut missing).await
    }
}
