//! Lookups: from a copy of the leaf, if this compute node owns it, or by one READ.
//!
//! Invariant: D4 in `docs/protocols/dex.md`.

use super::Dex;
use super::offload::LOOKUP;
use super::ownership::{Gate, Inside};
use crate::marks::mark;
use crate::tree::change::Puts;
use crate::tree::descend::Found;
use crate::tree::faults::{Fault, planted};
use crate::tree::local_locks::{Arrival, Turn};
use crate::tree::lookups::{Answer, LooksUp};
use crate::tree::node::{Header, Node};
use crate::tree::skeleton::{Leaves, Retry, Step};
use crate::{IndexError, Value};
use farindex_fabric::{OpKind, RemotePtr, Span, cold};
use farindex_pool::Pin;

impl Dex {
    /// Takes the turn at a leaf, unless another operation has it.
    pub(super) fn try_turn(&self, at: RemotePtr) -> Option<Turn<'_, ()>> {
        match self.own.turns.arrive(at, 0) {
            Arrival::Turn(turn) => Some(turn),
            Arrival::Wait(_) => None,
        }
    }

    /// The copy of a leaf.
    pub(super) fn copy_of(&self, at: RemotePtr) -> Option<Node> {
        let words = self.own.leaves.get(at)?;
        Some(Node { at, layout: self.far.leaf, buf: self.session.endpoint().buf_from_words(&words) })
    }

    async fn look_up_once(&self, pin: &Pin<'_>, key: &[u8], retry: &Retry) -> Step<Option<Value>> {
        let (span, mut missing) = (pin.span(), Vec::new());
        let gate = self.enter(key);
        let inside = if let Gate::Inside(inside) = &gate { Some(inside) } else { None };
        let found = match self.descend_or_call(span, key, (retry, inside), LOOKUP, &mut missing).await? {
            Ok(found) => found,
            Err(trouble) => return Ok(Err(trouble)),
        };
        let offloaded = found.level > 0 || inside.is_some_and(|inside| self.offloads_leaf(inside, &found, retry));
        if offloaded && let Some(value) = cold(self.look_up_by_call(span, &found, key)).await? {
            return Ok(Ok(value));
        }
        let found = match found.level {
            0 => Ok(found),
            _ => self.tree().descend(span, retry.goal(key), 0, retry.fresh, &mut missing).await?,
        };
        let found = match found {
            Ok(found) => found,
            Err(trouble) => return Ok(Err(trouble)),
        };
        if let Some(inside) = inside
            && let Some(leaf) = self.own_leaf(span, inside, &found, key).await?
        {
            return Ok(Ok(self.value_of(span, self.far.answer(leaf, key), key).await?));
        }
        drop(gate);
        let began = self.session.endpoint().now();
        let leaf = self.far.leaf_of(span, &found, key, None, &mut missing).await?;
        self.read_took(found.at, began);
        match leaf {
            Ok(leaf) => Ok(Ok(self.value_of(span, self.far.answer(leaf, key), key).await?)),
            Err(trouble) => Ok(Err(trouble)),
        }
    }

    /// Is the memory node to look a key up in the leaf where a descent has ended?
    fn offloads_leaf(&self, inside: &Inside<'_>, found: &Found, retry: &Retry) -> bool {
        let parent = found.parent.as_ref().filter(|_| self.calls && !retry.fresh);
        let Some((parent, i)) = parent.filter(|_| !self.own.leaves.has(found.at)) else { return false };
        self.chooses_call(inside, parent, *i, LOOKUP)
    }

    /// Returns the leaf where a descent has ended, from the cache or READ to be put there. `None`: it is to be READ as by those
    /// who own nothing.
    async fn own_leaf(
        &self,
        span: &Span,
        inside: &Inside<'_>,
        found: &Found,
        key: &[u8],
    ) -> Result<Option<Node>, IndexError> {
        if let Some(leaf) = self.copy_of(found.at) {
            return Ok(self.holds(span, &leaf, found, key).await?.then_some(leaf));
        }
        if !self.admits() {
            return Ok(None);
        }
        let turn = self.try_turn(found.at);
        if turn.is_none() && !planted(Fault::AdmittedWithoutTurn) {
            mark!("dex: leaf in use was not admitted");
            return Ok(None);
        }
        let began = self.session.endpoint().now();
        let words = span.read(found.at, self.leaf_len()).await?;
        self.read_took(found.at, began);
        let Ok(leaf) = self.leaf(span, found.at, words) else { return Ok(None) };
        if leaf.is_locked() || leaf.is_dead() || !self.holds(span, &leaf, found, key).await? {
            return Ok(None);
        }
        if self.bound_inside(span, inside, &leaf, found).await?.is_none() {
            mark!("dex: leaf was admitted");
            self.own.leaves.insert(found.at, leaf.buf.words());
        }
        Ok(Some(leaf))
    }

    /// Does a key belong to a leaf?
    async fn holds(&self, span: &Span, leaf: &Node, found: &Found, key: &[u8]) -> Result<bool, IndexError> {
        let (tree, range) = (self.tree(), found.range());
        let low = range.as_ref().map(|(low, _)| (low.as_slice(), low.as_slice().cmp(key)));
        let high =
            range.as_ref().and_then(|(_, high)| high.as_ref()).map(|high| (high.as_slice(), high.as_slice().cmp(key)));
        Ok(tree.compare(span, leaf.low(), key, low).await?.is_le()
            && tree.compare(span, leaf.high(), key, high).await?.is_gt())
    }

    /// Returns a bound of the partition that lies within a leaf's range: then the leaf belongs to two owners.
    pub(super) async fn bound_inside<'i>(
        &self,
        span: &Span,
        inside: &'i Inside<'_>,
        leaf: &Node,
        found: &Found,
    ) -> Result<Option<&'i [u8]>, IndexError> {
        let ((from, to), range) = (inside.range(), found.range().filter(|_| leaf.at == found.at));
        if !from.is_empty() {
            let low = range.as_ref().map(|(low, _)| (low.as_slice(), low.as_slice().cmp(from)));
            if self.tree().compare(span, leaf.low(), from, low).await?.is_lt() {
                return Ok(Some(from));
            }
        }
        let Some(to) = to else { return Ok(None) };
        let high =
            range.as_ref().and_then(|(_, high)| high.as_ref()).map(|high| (high.as_slice(), high.as_slice().cmp(to)));
        Ok(self.tree().compare(span, leaf.high(), to, high).await?.is_gt().then_some(to))
    }

    /// What the copy of a key's leaf says about it, if copies of nodes lead there.
    async fn answer_of_copy(&self, span: &Span, key: &[u8]) -> Result<Option<Answer>, IndexError> {
        let Gate::Inside(_inside) = self.enter(key) else { return Ok(None) };
        let found = self.tree().descend(span, Retry::default().goal(key), 0, false, &mut Vec::new()).await?;
        let Ok(found) = found else { return Ok(None) };
        match self.copy_of(found.at) {
            Some(leaf) if self.holds(span, &leaf, &found, key).await? => Ok(Some(self.far.answer(leaf, key))),
            _ => Ok(None),
        }
    }
}

impl LooksUp for Dex {
    async fn look_up(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        self.check_lengths(key, &[])?;
        let (mut retry, mut span) = (Retry::default(), Some(self.session.span(OpKind::Get)));
        loop {
            let pin = self.session.pin(span.take().unwrap_or_else(|| self.tree().maintenance()))?;
            let attempt = self.look_up_once(&pin, key, &retry).await?;
            drop(pin);
            match attempt {
                Ok(value) => return Ok(value),
                Err(trouble) => cold(self.tree().settle(self, &mut retry, trouble)).await?,
            }
        }
    }

    /// From copies of leaves, and all other leaves in one batch.
    async fn answers(&self, span: &Span, keys: &[&[u8]]) -> Result<Vec<Option<Answer>>, IndexError> {
        let mut answers = Vec::with_capacity(keys.len());
        for key in keys {
            answers.push(self.answer_of_copy(span, key).await?);
        }
        let far: Vec<_> =
            keys.iter().zip(&answers).filter(|(_, answer)| answer.is_none()).map(|(key, _)| *key).collect();
        if !far.is_empty() {
            let found = self.far.answers(span, &far).await?;
            for (answer, found) in answers.iter_mut().filter(|answer| answer.is_none()).zip(found) {
                *answer = found;
            }
        }
        Ok(answers)
    }
}
