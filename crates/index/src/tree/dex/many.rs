//! Lookups of many keys: from copies of leaves, by one CALL for each memory node, and by one batch of READs.
//!
//! Invariants (`docs/protocols/dex.md`): what is looked up by a CALL is what a lookup of its own might have been: within what
//! this compute node owns, from a node on whose subtree lies on one memory node. The operation stays inside until the replies
//! are there. A key that a reply does not answer is looked up by READs.

use super::Dex;
use super::offload::Costs;
use super::ownership::Gate;
use super::wire::{Ask, Outcome, Reply, gets};
use crate::tree::change::Puts;
use crate::tree::descend::Found;
use crate::tree::lookups::{Answer, LooksUp};
use crate::tree::retry::Retry;
use crate::{IndexError, Value, join, marks::mark};
use farindex_fabric::{FabricError, NodeId, Span};
use std::collections::BTreeMap;

/// A key, with its number among those that are looked up.
type Numbered<'k> = (usize, &'k [u8]);

/// What is posted together: one CALL, or one batch of READs.
enum Part<'k> {
    Call(NodeId, gets::Gets, Vec<Numbered<'k>>),
    Reads(Vec<(usize, &'k [u8], Option<Found>)>),
}

impl Dex {
    /// Looks keys up in leaves of which there is no copy, or to which no copies lead. `None` for a key that takes more.
    pub(super) async fn answers_by_calls(
        &self,
        span: &Span,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Answer>>, IndexError> {
        let (retry, costs) = (Retry::default(), Costs::Shared(self.draw()));
        let (mut missing, mut insides, mut reads) = (Vec::new(), Vec::new(), Vec::new());
        let mut calls: BTreeMap<NodeId, Vec<(Numbered<'_>, Found)>> = BTreeMap::new();
        for (number, key) in keys.iter().enumerate() {
            let gate = self.enter(key);
            let inside = if let Gate::Inside(inside) = &gate { Some(inside) } else { None };
            let found = self.descend_or_call(span, key, (&retry, inside), costs, &mut missing).await?.ok();
            let calls_for = |found: &Found| {
                found.level > 0 || inside.is_some_and(|inside| self.offloads_leaf(inside, found, &retry, costs))
            };
            match found {
                Some(found) if calls_for(&found) => {
                    calls.entry(found.at.node()).or_default().push(((number, key), found));
                    insides.push(gate);
                }
                found => reads.push((number, *key, found)),
            }
        }
        let mut parts: Vec<Part<'_>> = calls.into_iter().flat_map(|(node, keys)| self.calls_for(node, keys)).collect();
        if !reads.is_empty() {
            parts.push(Part::Reads(reads));
        }
        let parts = parts.into_iter().map(|part| async move {
            match part {
                Part::Call(node, gets, keys) => self.gets_by_call(span, node, &gets, &keys).await,
                Part::Reads(keys) => self.gets_by_reads(span, &keys).await,
            }
        });
        let mut answers: Vec<Option<Answer>> = Vec::new();
        answers.resize_with(keys.len(), || None);
        let mut left = Vec::new();
        for (number, answer) in join::try_join_all(parts).await?.into_iter().flatten() {
            match (answer, answers.get_mut(number)) {
                (Some(found), Some(answer)) => *answer = found,
                _ => left.extend(keys.get(number).map(|key| (number, *key))),
            }
        }
        drop(insides);
        if left.is_empty() {
            return Ok(answers);
        }
        mark!("dex: memory nodes left keys of many to READs");
        let names: Vec<_> = left.iter().map(|(_, key)| *key).collect();
        for ((number, _), found) in left.iter().zip(self.far.answers(span, &names).await?) {
            if let Some(answer) = answers.get_mut(*number) {
                *answer = found;
            }
        }
        Ok(answers)
    }

    /// Distributes keys over as few CALLs as hold them.
    fn calls_for<'k>(&self, node: NodeId, keys: Vec<(Numbered<'k>, Found)>) -> Vec<Part<'k>> {
        let new = || gets::Gets::new(self.tree().tag, self.tree().inner, self.far.leaf);
        let (mut parts, mut alone) = (Vec::new(), Vec::new());
        let (mut gets, mut within) = (new(), Vec::new());
        for ((number, key), found) in keys {
            let (hash, start) = (self.hash(key).bits(), (found.at, found.level));
            if !gets.add(key, hash, start) {
                if !within.is_empty() {
                    parts.push(Part::Call(node, std::mem::replace(&mut gets, new()), std::mem::take(&mut within)));
                }
                if !gets.add(key, hash, start) {
                    // It is too long.
                    alone.push((number, key, None));
                    continue;
                }
            }
            within.push((number, key));
        }
        if !within.is_empty() {
            parts.push(Part::Call(node, gets, within));
        }
        if !alone.is_empty() {
            parts.push(Part::Reads(alone));
        }
        parts
    }

    /// Asks a memory node for many keys. For each of them: what the reply says, or `None` if READs are to say it.
    async fn gets_by_call(
        &self,
        span: &Span,
        node: NodeId,
        gets: &gets::Gets,
        keys: &[Numbered<'_>],
    ) -> Result<Vec<(usize, Option<Option<Answer>>)>, IndexError> {
        let (endpoint, offloading) = (self.session.endpoint(), &self.own.offloading);
        let began = endpoint.now();
        let answer = span.call(node, endpoint.buf_from_words(gets.words())).await;
        offloading.shared(node, true, endpoint.now().saturating_sub(began), keys.len());
        let replies = match answer {
            Ok(bytes) => gets::decode_answers(&bytes),
            Err(FabricError::CallRefused { .. } | FabricError::Unsupported { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        let Some(replies) = replies else {
            offloading.refused_shared(node);
            return Ok(keys.iter().map(|(number, _)| (*number, None)).collect());
        };
        mark!("dex: memory node looked many keys up");
        let mut replies = replies.into_iter();
        let answer = |(number, _): &Numbered<'_>| {
            let answer = replies.next().and_then(|reply| {
                offloading.came(Ask::Get, reply.outcome);
                answer_in(&reply)
            });
            (*number, answer.map(Some))
        };
        Ok(keys.iter().map(answer).collect())
    }

    /// READs the leaves where descents have ended.
    async fn gets_by_reads(
        &self,
        span: &Span,
        keys: &[(usize, &[u8], Option<Found>)],
    ) -> Result<Vec<(usize, Option<Option<Answer>>)>, IndexError> {
        let endpoint = self.session.endpoint();
        let found: Vec<_> = keys.iter().map(|(_, key, found)| (*key, found.as_ref())).collect();
        let began = endpoint.now();
        let answers = self.far.answers_of(span, &found, &mut Vec::new()).await?;
        let took = endpoint.now().saturating_sub(began);
        let mut read: BTreeMap<NodeId, usize> = BTreeMap::new();
        for (_, found) in &found {
            if let Some(found) = found {
                *read.entry(found.at.node()).or_default() += 1;
            }
        }
        read.into_iter().for_each(|(node, keys)| self.own.offloading.shared(node, false, took, keys));
        Ok(keys.iter().zip(answers).map(|((number, ..), answer)| (*number, Some(answer))).collect())
    }
}

/// What a reply says about its key; `None` if READs are to say it.
fn answer_in(reply: &Reply) -> Option<Answer> {
    match reply.outcome {
        Outcome::Found => {
            let bytes: Vec<u8> = reply.carried.iter().flat_map(|word| word.to_le_bytes()).collect();
            Some(Answer::Value(0, Value::from(bytes.get(..reply.len).unwrap_or_default())))
        }
        Outcome::Absent => Some(Answer::Absent),
        Outcome::Blocks => {
            let slots = reply.carried.as_chunks::<2>().0;
            Some(Answer::Blocks(slots.iter().map(|[slot, word]| (*slot as usize, *word)).collect()))
        }
        _ => None,
    }
}
