//! Lookups: from a copy of the leaf, if this compute node owns it, or by one READ.
//!
//! Invariant: D4 in `docs/protocols/dex.md`.

use super::Dex;
use super::offload::{Costs, LOOKUP};
use super::ownership::{Gate, Inside};
use crate::marks::mark;
use crate::tree::change::Puts;
use crate::tree::descend::Found;
use crate::tree::faults::{Fault, planted};
use crate::tree::local_locks::{Arrival, Turn};
use crate::tree::lookups::{Answer, LooksUp};
use crate::tree::node::{Header, Node};
use crate::tree::path_cache::{Leaf, LongFences, Seen, Wait};
use crate::tree::retry::{Retry, Step};
use crate::tree::skeleton::Leaves;
use crate::{IndexError, Value};
use farindex_fabric::{OpKind, RemotePtr, Span, cold};
use farindex_pool::Pin;
use std::sync::Arc;

/// How often a lookup waits for other operations that READ the key's leaf, before it READs the leaf itself.
const WAITS: u32 = 4;

/// What came of a look into a leaf of an own partition.
enum Own<'d> {
    Answer(Answer),
    /// Another operation READs the leaf, to put it into the cache.
    Busy(Wait<'d>),
    /// The leaf is to be READ as by those who own nothing.
    Nothing,
}

impl Dex {
    /// Takes the turn at a leaf, unless another operation has it.
    pub(super) fn try_turn(&self, at: RemotePtr) -> Option<Turn<'_, ()>> {
        match self.own.turns.arrive(at, 0) {
            Arrival::Turn(turn) => Some(turn),
            Arrival::Wait(_) => None,
        }
    }

    /// The copy of a leaf, with those of its fence keys that lie in blocks.
    pub(super) fn copy_of(&self, at: RemotePtr) -> Option<(Node, Option<Arc<LongFences>>)> {
        let copy = self.own.cache.leaf(at)?;
        let leaf = copy.leaf()?;
        let buf = self.session.endpoint().buf_from_words(leaf.words());
        Some((Node { at, layout: self.far.leaf, buf }, leaf.long().cloned()))
    }
    /// What the copy of a key's leaf says about it, if copies of nodes lead there. The caller is inside.
    pub(super) fn answer_of_copy(&self, key: &[u8]) -> Option<Answer> {
        self.own.cache.find(key, |at, leaf| self.far.answer_in(at, leaf.words(), key))
    }

    async fn look_up_once(&self, pin: &Pin<'_>, key: &[u8], retry: &Retry) -> Step<Option<Value>> {
        let (span, mut missing, mut waits) = (pin.span(), Vec::new(), 0);
        let found = loop {
            let gate = self.enter(key);
            let inside = if let Gate::Inside(inside) = &gate { Some(inside) } else { None };
            let found = match self.descend_or_call(span, key, (retry, inside), LOOKUP, &mut missing).await? {
                Ok(found) => found,
                Err(trouble) => return Ok(Err(trouble)),
            };
            let offloaded =
                found.level > 0 || inside.is_some_and(|inside| self.offloads_leaf(inside, &found, retry, LOOKUP));
            if offloaded && let Some(value) = cold(self.look_up_by_call(span, &found, key)).await? {
                return Ok(Ok(value));
            }
            let found = match found.level {
                0 => found,
                _ => match self.tree().descend(span, retry.goal(key), 0, retry.fresh, &mut missing).await? {
                    Ok(found) => found,
                    Err(trouble) => return Ok(Err(trouble)),
                },
            };
            let Some(inside) = inside else { break found };
            let wait = match self.own_leaf(span, inside, &found, key).await? {
                Own::Answer(answer) => return Ok(Ok(self.value_of(span, answer, key).await?)),
                Own::Busy(wait) if waits < WAITS => wait,
                Own::Busy(_) | Own::Nothing => break found,
            };
            // The partition can be given away meanwhile.
            drop(gate);
            waits = if self.tree().wait_for_read(wait).await { waits + 1 } else { WAITS };
            if let Gate::Inside(_inside) = self.enter(key)
                && let Some(answer) = self.answer_of_copy(key)
            {
                mark!("dex: a leaf was found after another operation had READ it");
                return Ok(Ok(self.value_of(span, answer, key).await?));
            }
        };
        let began = self.session.endpoint().now();
        let leaf = self.far.leaf_of(span, &found, key, None, &mut missing).await?;
        self.read_took(found.at, began);
        match leaf {
            Ok(leaf) => Ok(Ok(self.value_of(span, self.far.answer(leaf, key), key).await?)),
            Err(trouble) => Ok(Err(trouble)),
        }
    }

    /// Is the memory node to look a key up in the leaf where a descent has ended?
    pub(super) fn offloads_leaf(&self, inside: &Inside<'_>, found: &Found, retry: &Retry, costs: Costs) -> bool {
        let parent = found.parent.as_ref().filter(|_| self.calls && !retry.fresh);
        let Some((parent, i)) = parent.filter(|_| !self.own.cache.has(found.at)) else { return false };
        self.chooses_call(inside, parent, *i, costs)
    }

    /// Looks for a key in the leaf where a descent has ended: in its copy, or by a READ that puts one in.
    async fn own_leaf<'d>(
        &'d self,
        span: &Span,
        inside: &Inside<'_>,
        found: &Found,
        key: &[u8],
    ) -> Result<Own<'d>, IndexError> {
        let cache = &self.own.cache;
        if let Some(copy) = cache.leaf(found.at) {
            let leaf = copy.leaf().filter(|leaf| leaf.holds(key));
            let answer = leaf.map(|leaf| Own::Answer(self.far.answer_in(found.at, leaf.words(), key)));
            return Ok(answer.unwrap_or(Own::Nothing));
        }
        let turn = if self.admits() { self.try_turn(found.at) } else { None };
        if turn.is_none() && !planted(Fault::AdmittedWithoutTurn) {
            return Ok(match cache.busy(found.at) {
                Some(wait) => Own::Busy(wait),
                None => {
                    mark!("dex: leaf was READ and not admitted");
                    Own::Nothing
                }
            });
        }
        let _flag = match cache.look_at_leaf(found.at) {
            Seen::Copy(_) => return Ok(Own::Nothing),
            Seen::Busy(wait) => return Ok(Own::Busy(wait)),
            Seen::Nothing(flag) => flag,
        };
        let began = self.session.endpoint().now();
        let words = span.read(found.at, self.leaf_len()).await?;
        self.read_took(found.at, began);
        let Ok(leaf) = self.leaf(span, found.at, words) else { return Ok(Own::Nothing) };
        if leaf.is_locked() || leaf.is_dead() || !self.holds(span, &leaf, found, key).await? {
            return Ok(Own::Nothing);
        }
        if self.bound_inside(span, inside, &leaf, found).await?.is_none() {
            let long = self.long_fences(span, &leaf, found).await?;
            if self.keep(&leaf, long, found) {
                mark!("dex: leaf was admitted");
            }
        }
        Ok(Own::Answer(self.far.answer(leaf, key)))
    }

    /// Puts a copy of a leaf into the cache. The caller has the leaf's turn (D4).
    pub(super) fn keep(&self, leaf: &Node, long: Option<Arc<LongFences>>, found: &Found) -> bool {
        let Some((parent, _)) = &found.parent else { return false };
        self.own.cache.put_leaf(leaf.at, Leaf::new(leaf.buf.words(), long), parent.at)
    }
    /// READs those fence keys of a leaf that lie in blocks, unless its parent's copy has them.
    pub(super) async fn long_fences(
        &self,
        span: &Span,
        leaf: &Node,
        found: &Found,
    ) -> Result<Option<Arc<LongFences>>, IndexError> {
        let range = found.range().filter(|_| leaf.at == found.at);
        let (low, high) = range.map_or((None, None), |(low, high)| (Some(low), high));
        let (mut keys, mut any) = ([None, None], false);
        for (key, (fence, expected)) in keys.iter_mut().zip([(leaf.low(), low), (leaf.high(), high)]) {
            if fence.block().is_none() {
                continue;
            }
            any = true;
            *key = match expected {
                Some(expected) if fence.is(&expected) => Some(expected.to_vec()),
                _ => self.tree().fence_key(span, fence).await?,
            };
        }
        let [low, high] = keys.map(|key| key.map(Vec::into_boxed_slice));
        Ok(any.then(|| Arc::new(LongFences { low, high })))
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
}

impl LooksUp for Dex {
    async fn look_up(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        self.check_lengths(key, &[])?;
        let pin = self.session.pin(self.session.span(OpKind::Get))?;
        if self.tree().open_at.get() >= pin.epoch()
            && let Gate::Inside(_inside) = self.enter(key)
            && let Some(answer) = self.answer_of_copy(key)
        {
            return match answer {
                Answer::Value(_, value) => Ok(Some(value)),
                Answer::Absent => Ok(None),
                answer => self.value_of(pin.span(), answer, key).await,
            };
        }
        if self.writes_back() {
            drop(pin);
            return cold(self.look_up_owned(key)).await;
        }
        cold(self.look_up_in_far_memory(pin, key)).await
    }

    /// From copies of leaves; all other leaves are READ in one batch, or memory nodes look into them.
    async fn answers(&self, span: &Span, keys: &[&[u8]]) -> Result<Vec<Option<Answer>>, IndexError> {
        self.tree().check_open(span, self.session.client().epoch()).await?;
        let of_copy = |key: &&[u8]| match self.enter(key) {
            Gate::Inside(_inside) => self.answer_of_copy(key),
            _ => None,
        };
        if self.writes_back() {
            return self.answers_owned(span, keys).await;
        }
        let mut answers: Vec<_> = keys.iter().map(of_copy).collect();
        let far: Vec<_> =
            keys.iter().zip(&answers).filter(|(_, answer)| answer.is_none()).map(|(key, _)| *key).collect();
        if !far.is_empty() {
            let found = match self.calls {
                true => cold(self.answers_by_calls(span, &far)).await?,
                false => self.far.answers(span, &far).await?,
            };
            for (answer, found) in answers.iter_mut().filter(|answer| answer.is_none()).zip(found) {
                *answer = found;
            }
        }
        Ok(answers)
    }
}

impl Dex {
    /// Looks a key up whose leaf has no copy to which copies lead.
    pub(super) async fn look_up_in_far_memory(&self, pin: Pin<'_>, key: &[u8]) -> Result<Option<Value>, IndexError> {
        let (mut retry, mut pin) = (Retry::default(), Some(pin));
        loop {
            let pin = match pin.take() {
                Some(pin) => pin,
                None => self.session.pin(self.tree().maintenance())?,
            };
            self.tree().check_open(pin.span(), pin.epoch()).await?;
            let attempt = self.look_up_once(&pin, key, &retry).await?;
            drop(pin);
            match attempt {
                Ok(value) => return Ok(value),
                Err(trouble) => cold(self.tree().settle(self, &mut retry, trouble)).await?,
            }
        }
    }
}
