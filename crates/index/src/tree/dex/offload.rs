//! Offloading: which operations memory nodes finish, and how they are asked.
//!
//! At a node of which there is no copy, the rest of an operation takes either READs of every level down to the leaf, or a
//! CALL. The expected latencies decide (section 6.1 of the paper): moving averages of the last [`SAMPLES`] READs and CALLs
//! of the memory node. Once in a hundred times the other way is taken, so that both averages stay recent.
//!
//! Invariants (`docs/protocols/dex.md`): the choice changes no result. Only ranges that this compute node owns are
//! offloaded, and only below the level from which on a subtree lies on one memory node. What a memory node does not finish,
//! the operation finishes by verbs.

use super::Dex;
use super::ownership::Inside;
use super::wire::{self, Ask, Outcome, Reply, Request};
use crate::marks::mark;
use crate::tree::change::{Change, Puts};
use crate::tree::descend::{Found, Separator};
use crate::tree::inner::Inner;
use crate::tree::lookups::{Answer, Candidates, LooksUp};
use crate::tree::node::{Header, Node};
use crate::tree::retry::{Retry, Step};
use crate::tree::skeleton::Leaves;
use crate::tree::walk::Any;
use crate::write::{Guard, Mode};
use crate::{IndexError, Value};
use farindex_fabric::{FabricError, NodeId, OpKind, RemotePtr, Span};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Samples of a moving average.
const SAMPLES: usize = 50;
/// One choice in so many is the one that seems to be worse.
const EXPLORES: u64 = 100;
/// Nanoseconds of a local search of a node. The paper has it as a constant, without a figure.
const LOCAL_NS: u64 = 100;

/// What a CALL that is refused counts as: it helps nobody, so that few more are tried.
const REFUSED_NS: u64 = 1_000_000_000;

/// Which operations memory nodes finish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Offload {
    /// Those that are expected to take longer by READs.
    #[default]
    Auto,
    /// None.
    Never,
    /// All that may be.
    Always,
}

/// How often operations were offloaded, why, and what came of it; the threads of a compute node share the counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OffloadCounts {
    /// Choices of a CALL because it was expected to be faster, or because the setting says so.
    pub calls: u64,
    /// Choices of READs because they were expected to be faster.
    pub reads: u64,
    /// Choices of the way that seemed to be worse, to measure it.
    pub explored: u64,
    /// READs because the subtree reaches beyond what this compute node owns.
    pub beyond: u64,
    /// READs because the subtree may lie on several memory nodes.
    pub spread: u64,
    /// CALLs after which the operation was finished, or its leaf was found.
    pub finished: u64,
    /// CALLs after which the operation went on by verbs: a node had moved, or lay on another memory node.
    pub moved: u64,
    /// The same: a node was torn or locked.
    pub busy: u64,
    /// The same: the shape of the tree had to change.
    pub full: u64,
    /// The same: an entry with a block had to be changed.
    pub blocks: u64,
    /// The same: the memory node refused the CALL, or its reply made no sense.
    pub refused: u64,
}

/// A moving average of latencies.
#[derive(Default)]
struct Average {
    samples: VecDeque<u64>,
    sum: u64,
}

impl Average {
    fn add(&mut self, ns: u64) {
        if self.samples.len() == SAMPLES {
            self.sum -= self.samples.pop_front().unwrap_or_default();
        }
        let ns = ns.min(u64::MAX >> 16);
        self.samples.push_back(ns);
        self.sum += ns;
    }
    fn get(&self) -> Option<u64> {
        self.sum.checked_div(self.samples.len() as u64)
    }
}

/// A memory node's latencies.
#[derive(Default)]
struct Latencies {
    read: Average,
    call: Average,
    /// A key's share of what a batch of READs, or a CALL for many keys, has taken.
    read_share: Average,
    call_share: Average,
}

impl Latencies {
    /// Are so many CALLs expected to take less time than so many READs? What was never measured is tried.
    fn prefer_calls(&self, calls: u64, reads: u64) -> bool {
        match (self.read.get(), self.call.get()) {
            (_, None) => true,
            (None, _) => false,
            (Some(read), Some(call)) => calls * call < reads * (read + LOCAL_NS),
        }
    }
    /// The same of a lookup among many, from a node of this level on: inner nodes are READ one after the other, leaves in one
    /// batch.
    fn prefer_shared_call(&self, level: u64) -> bool {
        match (self.read_share.get(), self.call_share.get()) {
            (_, None) => true,
            (None, _) => false,
            (Some(leaf), Some(call)) => {
                let inner = self.read.get().unwrap_or(leaf);
                call < leaf + LOCAL_NS + level * (inner + LOCAL_NS)
            }
        }
    }
    /// Are CALLs expected to take less time, from a node of this level on?
    fn prefer(&self, costs: Costs, level: u64) -> bool {
        match costs {
            Costs::Alone(costs) => {
                let (calls, reads) = costs(level);
                self.prefer_calls(calls, reads)
            }
            Costs::Shared(_) => self.prefer_shared_call(level),
        }
    }
}

/// Latencies and counts.
#[derive(Default)]
pub(super) struct Offloading {
    nodes: Mutex<Vec<Latencies>>,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    calls: AtomicU64,
    reads: AtomicU64,
    explored: AtomicU64,
    beyond: AtomicU64,
    spread: AtomicU64,
    finished: AtomicU64,
    moved: AtomicU64,
    busy: AtomicU64,
    full: AtomicU64,
    blocks: AtomicU64,
    refused: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Offloading {
    fn with<T>(&self, node: NodeId, then: impl FnOnce(&mut Latencies) -> T) -> T {
        // No code panics while it holds this mutex.
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        if nodes.len() <= node.index() {
            nodes.resize_with(node.index() + 1, Latencies::default);
        }
        match nodes.get_mut(node.index()) {
            Some(node) => then(node),
            None => then(&mut Latencies::default()),
        }
    }
    /// Notes the time of a batch of READs of a memory node's leaves, or of a CALL, for so many keys.
    pub(super) fn shared(&self, node: NodeId, by_call: bool, took: Duration, keys: usize) {
        let share = took.as_nanos() as u64 / keys.max(1) as u64;
        self.with(
            node,
            |Latencies { read_share, call_share, .. }| {
                if by_call { call_share.add(share) } else { read_share.add(share) }
            },
        );
    }
    /// Notes that a memory node has refused a CALL for many keys.
    pub(super) fn refused_shared(&self, node: NodeId) {
        self.with(node, |latencies| latencies.call_share.add(REFUSED_NS));
        count(&self.counts.refused);
    }
    /// Counts what came of a CALL, or of a key of one.
    pub(super) fn came(&self, ask: Ask, outcome: Outcome) {
        let counts = &self.counts;
        count(match outcome {
            Outcome::Moved | Outcome::Crosses | Outcome::Foreign => &counts.moved,
            Outcome::Busy => &counts.busy,
            Outcome::Full | Outcome::Beyond => &counts.full,
            Outcome::Blocks if !matches!(ask, Ask::Get) => &counts.blocks,
            _ => &counts.finished,
        });
    }
    fn choose(&self, node: NodeId, (costs, level): (Costs, u64), draw: u64) -> bool {
        let better = self.with(node, |latencies| latencies.prefer(costs, level));
        if draw.is_multiple_of(EXPLORES) {
            count(&self.counts.explored);
            return !better;
        }
        count(if better { &self.counts.calls } else { &self.counts.reads });
        better
    }
    fn counts(&self) -> OffloadCounts {
        let (get, of) = (|counter: &AtomicU64| counter.load(Ordering::Relaxed), &self.counts);
        OffloadCounts {
            calls: get(&of.calls),
            reads: get(&of.reads),
            explored: get(&of.explored),
            beyond: get(&of.beyond),
            spread: get(&of.spread),
            finished: get(&of.finished),
            moved: get(&of.moved),
            busy: get(&of.busy),
            full: get(&of.full),
            blocks: get(&of.blocks),
            refused: get(&of.refused),
        }
    }
}

/// What a way to a leaf costs.
#[derive(Clone, Copy)]
pub(super) enum Costs {
    /// CALLs and READs of an operation, given the level of the node at which its way begins.
    Alone(fn(u64) -> (u64, u64)),
    /// A share in a CALL, or in a batch of READs, for many keys. They have this draw together, so that all of them go the way
    /// that is tried.
    Shared(u64),
}

/// A lookup: one CALL, or a READ of each level.
pub(super) const LOOKUP: Costs = Costs::Alone(|level| (1, level + 1));
/// The way of a write to its leaf, if the memory node can change that: two CALLs, or READs and a WRITE.
pub(super) const CHANGE: Costs = Costs::Alone(|level| if level == 0 { (1, 2) } else { (2, level + 2) });
/// The way of a write to its leaf, if the compute node READs and WRITEs that: one CALL, or READs of the inner nodes.
pub(super) const WAY: Costs = Costs::Alone(|level| (1, level));

impl Dex {
    /// Returns how often operations were offloaded, and why.
    pub fn offload_counts(&self) -> OffloadCounts {
        self.own.offloading.counts()
    }

    /// Counts pointers to another memory node within subtrees that are to lie on one; there are some if a memory node was full.
    pub async fn crossing_pointers(&self) -> Result<u64, IndexError> {
        let mut crossing = 0;
        self.tree()
            .each_node(self, OpKind::Maintenance, async |level, visited| {
                let Ok(Any::Inner(node)) = visited.node else { return Ok(()) };
                if level <= self.config.subtree_levels {
                    let children = node.used().map(|slot| node.separator(slot).child());
                    crossing += children.filter(|child| child.node() != node.at.node()).count() as u64;
                }
                Ok(())
            })
            .await?;
        Ok(crossing)
    }

    /// Notes how long a READ has taken.
    pub(super) fn read_took(&self, at: RemotePtr, since: Duration) {
        if self.calls {
            let took = self.session.endpoint().now().saturating_sub(since).as_nanos() as u64;
            self.own.offloading.with(at.node(), |latencies| latencies.read.add(took));
        }
    }

    /// Is the memory node to finish an operation, from this child of a parent on?
    pub(super) fn chooses_call(&self, inside: &Inside<'_>, parent: &Inner, i: usize, costs: Costs) -> bool {
        let (counts, level) = (&self.own.offloading.counts, parent.level.saturating_sub(1));
        if self.session.pool().nodes().len() > 1 && level > self.config.subtree_levels {
            count(&counts.spread);
            return false;
        }
        let ((from, to), low, high) = (inside.range(), parent.key(i), parent.high_of(i));
        let within = *low >= *from && to.is_none_or(|to| high.is_some_and(|high| *high <= *to));
        if !within {
            count(&counts.beyond);
            return false;
        }
        match self.config.offload {
            Offload::Never => false,
            Offload::Always => {
                count(&counts.calls);
                true
            }
            Offload::Auto => {
                let draw = if let Costs::Shared(draw) = costs { draw } else { self.draw() };
                self.own.offloading.choose(parent.child(i).node(), (costs, u64::from(level)), draw)
            }
        }
    }

    /// Descends to the leaf of a key, or to a node above it of which there is no copy, and from which on the memory node is
    /// to go on.
    pub(super) async fn descend_or_call(
        &self,
        span: &Span,
        key: &[u8],
        (retry, inside): (&Retry, Option<&Inside<'_>>),
        costs: Costs,
        missing: &mut Vec<Separator>,
    ) -> Step<Found> {
        let inside = inside.filter(|_| self.calls && !retry.fresh);
        let ends = |parent: &Inner, i| inside.is_some_and(|inside| self.chooses_call(inside, parent, i, costs));
        self.tree().descend_until(span, retry.goal(key), 0, retry.fresh, missing, ends).await
    }

    /// Asks the memory node of `start`. `None`: it has refused, and nothing has changed.
    async fn ask(
        &self,
        span: &Span,
        ask: Ask,
        (start, level): (RemotePtr, u8),
        key: &[u8],
        bounds: (&[u8], Option<&[u8]>),
    ) -> Result<Option<Reply>, IndexError> {
        let request = Request {
            ask,
            start,
            level,
            inner: self.tree().inner,
            leaf: self.far.leaf,
            tag: self.tree().tag,
            hash: self.hash(key).bits(),
            key,
            bounds,
        };
        let Some(words) = request.encode() else { return Ok(None) };
        let (endpoint, counts) = (self.session.endpoint(), &self.own.offloading.counts);
        let began = endpoint.now();
        let answer = span.call(start.node(), endpoint.buf_from_words(&words)).await;
        let took = endpoint.now().saturating_sub(began).as_nanos() as u64;
        self.own.offloading.with(start.node(), |latencies| latencies.call.add(took));
        let reply = match answer {
            Ok(bytes) => Reply::decode(&bytes),
            Err(FabricError::CallRefused { .. } | FabricError::Unsupported { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        let Some(reply) = reply else {
            self.own.offloading.with(start.node(), |latencies| latencies.call.add(REFUSED_NS));
            count(&counts.refused);
            return Ok(None);
        };
        self.own.offloading.came(ask, reply.outcome);
        Ok(Some(reply))
    }

    /// Lets a memory node look a key up, from the node on where a descent has ended. `None`: it is to be looked up by verbs.
    pub(super) async fn look_up_by_call(
        &self,
        span: &Span,
        found: &Found,
        key: &[u8],
    ) -> Result<Option<Option<Value>>, IndexError> {
        let Some(reply) = self.ask(span, Ask::Get, (found.at, found.level), key, (&[], None)).await? else {
            return Ok(None);
        };
        Ok(match reply.outcome {
            Outcome::Found => {
                mark!("dex: memory node found a value");
                let bytes: Vec<u8> = reply.carried.iter().flat_map(|word| word.to_le_bytes()).collect();
                Some(Some(Value::from(bytes.get(..reply.len).unwrap_or_default())))
            }
            Outcome::Absent => Some(None),
            Outcome::Blocks => {
                mark!("dex: memory node found blocks elsewhere");
                let slots = reply.carried.as_chunks::<2>().0;
                let candidates: Candidates = slots.iter().map(|[slot, word]| (*slot as usize, *word)).collect();
                Some(self.value_of(span, Answer::Blocks(candidates), key).await?)
            }
            _ => None,
        })
    }

    /// Lets a memory node find the leaf of a key, from the node on where a descent has ended. `None`: by verbs.
    pub(super) async fn locate_by_call(
        &self,
        span: &Span,
        found: &Found,
        key: &[u8],
    ) -> Result<Option<Found>, IndexError> {
        let reply = self.ask(span, Ask::Locate, (found.at, found.level), key, (&[], None)).await?;
        let leaf = reply.filter(|reply| reply.outcome == Outcome::Leaf);
        Ok(leaf.map(|leaf| Found { at: leaf.at, level: 0, parent: None, cached: true }))
    }

    /// What a memory node is to be asked to change a key in its leaf; `None` if it cannot.
    pub(super) fn change_to_ask(&self, key: &[u8], change: &Change<'_>) -> Option<Ask> {
        match change {
            // A memory node does not compare values.
            _ if !self.calls || key.len() != 8 || change.guard() != Guard::Any => None,
            Change::Remove(_) => Some(Ask::Remove),
            Change::Put { mode, value, len: 0, .. } => {
                let mode = match mode {
                    Mode::Insert => Mode::Insert,
                    Mode::Update(_) => Mode::UPDATE,
                    Mode::Upsert => Mode::Upsert,
                };
                let value = <[u8; 8]>::try_from(*value).ok()?;
                Some(Ask::Put(mode, u64::from_le_bytes(value)))
            }
            Change::Put { .. } => None,
        }
    }

    /// Lets a memory node change a key in its leaf. The caller has the leaf's turn, and keeps it if this fails: nobody knows
    /// then whether the memory node still changes the leaf (N7).
    pub(super) async fn change_by_call(
        &self,
        span: &Span,
        ask: Ask,
        at: RemotePtr,
        (key, inside): (&[u8], &Inside<'_>),
    ) -> Result<Option<Reply>, IndexError> {
        let bounds = inside.range();
        if bounds.0.len().max(bounds.1.map_or(0, <[u8]>::len)) > wire::MAX_KEY {
            return Ok(None);
        }
        self.ask(span, ask, (at, 0), key, bounds).await
    }

    /// Lets a memory node send consecutive leaves, from the one of `from` on. `None`: they are to be READ.
    pub(super) async fn leaves_by_call(
        &self,
        span: &Span,
        from: &[u8],
        most: usize,
        retry: &Retry,
    ) -> Result<Option<Vec<Node>>, IndexError> {
        let super::Gate::Inside(inside) = self.enter(from) else { return Ok(None) };
        // What the memory node sends from this key on may be older than the copies.
        let dirty = self.first_dirty(from);
        if dirty.as_ref().is_some_and(|low| **low <= *from) {
            return Ok(None);
        }
        // What is missing is found again by the READs.
        let found = self.descend_or_call(span, from, (retry, Some(&inside)), LOOKUP, &mut Vec::new()).await?;
        let Ok(found) = found else { return Ok(None) };
        // A scan that begins with a copy looks at copies first.
        let parent = found.parent.as_ref().filter(|_| !self.own.cache.has(found.at));
        let chosen =
            found.level > 0 || parent.is_some_and(|(parent, i)| self.chooses_call(&inside, parent, *i, LOOKUP));
        drop(inside);
        if !chosen {
            return Ok(None);
        }
        let ask = Ask::Leaves(most as u64);
        let Some(reply) = self.ask(span, ask, (found.at, found.level), from, (&[], None)).await? else {
            return Ok(None);
        };
        if reply.outcome != Outcome::Leaves {
            return Ok(None);
        }
        let mut leaves: Vec<Node> = Vec::new();
        for words in reply.carried.chunks_exact(1 + self.leaf_len() / 8) {
            let Some((at, words)) = words.split_first() else { break };
            let at = RemotePtr::from_bits(*at);
            let Ok(leaf) = self.leaf(span, at, self.session.endpoint().buf_from_words(words)) else { break };
            let follows = leaves.last().is_none_or(|last| last.high() == leaf.low() && last.sibling() == at);
            if !follows || leaf.is_dead() {
                break;
            }
            leaves.push(leaf);
        }
        let tree = self.tree();
        if let Some(dirty) = &dirty {
            for (number, leaf) in leaves.iter().enumerate() {
                if !tree.compare(span, leaf.low(), dirty, None).await?.is_lt() {
                    mark!("write-back: leaves that a memory node has sent were dirty");
                    leaves.truncate(number);
                    break;
                }
            }
        }
        let Some(first) = leaves.first() else { return Ok(None) };
        let holds = tree.compare(span, first.low(), from, None).await?.is_le()
            && tree.compare(span, first.high(), from, None).await?.is_gt();
        mark!("dex: memory node sent leaves");
        Ok(holds.then_some(leaves))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn average(samples: impl IntoIterator<Item = u64>) -> Average {
        let mut average = Average::default();
        samples.into_iter().for_each(|ns| average.add(ns));
        average
    }

    #[test]
    fn averages_are_those_of_the_last_samples() {
        assert_eq!(average([]).get(), None);
        assert_eq!(average([5, 7]).get(), Some(6));
        assert_eq!(average([1_000_000; 7].into_iter().chain([3; SAMPLES])).get(), Some(3));
        assert!(average([u64::MAX; SAMPLES]).get().is_some());
    }

    #[test]
    fn calls_are_chosen_where_they_save_time() {
        let read = || average([2000]);
        let latencies = |call| Latencies { read: read(), call: average([call]), ..Latencies::default() };
        // A READ and its share of local work take 2,100 ns.
        for (call, level, calls) in [(2099, 0, true), (2100, 0, false), (6299, 2, true), (6300, 2, false)] {
            assert_eq!(latencies(call).prefer(LOOKUP, level), calls, "{call} ns at level {level}");
        }
        assert!(Latencies { read: read(), ..Latencies::default() }.prefer(LOOKUP, 0));
        assert!(!Latencies { call: average([1]), ..Latencies::default() }.prefer(LOOKUP, 0));
    }

    /// A share of 50 ns in a batch of READs, and 2,000 ns for each inner node; 100 ns of local work for each.
    #[test]
    fn a_call_for_many_keys_is_compared_with_a_batch_of_reads() {
        let latencies = |call| Latencies {
            read: average([2000]),
            call: average([1]),
            read_share: average([50]),
            call_share: average([call]),
        };
        for (call, level, calls) in [(149, 0, true), (150, 0, false), (2249, 1, true), (2250, 1, false)] {
            assert_eq!(latencies(call).prefer(Costs::Shared(7), level), calls, "{call} ns at level {level}");
        }
        let offloading = Offloading::default();
        let (node, prefers) = (NodeId::new(1), || offloading.choose(NodeId::new(1), (Costs::Shared(7), 0), 7));
        assert!(prefers());
        offloading.shared(node, true, Duration::from_nanos(12_800), 128);
        assert!(!prefers());
        offloading.shared(node, false, Duration::from_nanos(12_800), 64);
        assert!(prefers());
        offloading.refused_shared(node);
        assert!(!prefers());
    }

    #[test]
    fn the_other_way_is_tried_once_in_a_hundred_times() {
        let (offloading, node) = (Offloading::default(), NodeId::new(2));
        offloading.with(node, |latencies| {
            latencies.read.add(1000);
            latencies.call.add(1_000_000);
        });
        let calls = (0..300).filter(|draw| offloading.choose(node, (LOOKUP, 3), *draw)).count();
        let counts = offloading.counts();
        assert_eq!((calls, counts.explored, counts.reads, counts.calls), (3, 3, 297, 0));
    }
}
