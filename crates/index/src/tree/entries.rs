//! Entries of leaves, whatever their format: what dumps, audits, drops and scans need of them.

use super::node::Header;
use super::skeleton::{Leaves, Tree};
use crate::audit::{Damage, Findings, IndexAudit, OnDamage};
use crate::block::UNIT;
use crate::maintenance::{fetch_blocks, free_blocks};
use crate::visit::Entries;
use crate::{IndexError, Value};
use farindex_fabric::{Buf, OpKind, RemotePtr, Span};
use farindex_pool::Pin;
use farindex_pool::audit::Audit;
use std::cell::RefCell;
use std::collections::HashSet;
use std::ops::Range;

/// A used slot of a leaf.
pub(super) struct Slot {
    pub(super) number: usize,
    /// Its first byte in the leaf.
    pub(super) offset: usize,
    pub(super) key: SlotKey,
    pub(super) value: SlotValue,
}

/// What a slot says about its key.
pub(super) enum SlotKey {
    /// These bytes of the leaf are the key.
    Inline(Range<usize>),
    /// The hash of the key ([`Leaves::slot_hash`]), which lies in the block.
    Hash(u64),
}

/// Where a slot's value is.
pub(super) enum SlotValue {
    /// In these bytes of the leaf.
    Inline(Range<usize>),
    /// In the block at this address, of so many units.
    Block(RemotePtr, u64),
}

impl Slot {
    pub(super) fn block(&self) -> Option<(RemotePtr, u64)> {
        match self.value {
            SlotValue::Inline(_) => None,
            SlotValue::Block(at, units) => Some((at, units)),
        }
    }
    /// Is this the slot of a key?
    fn is_of(&self, leaves: &impl Leaves, words: &Buf, key: &[u8]) -> bool {
        match &self.key {
            SlotKey::Inline(range) => words.bytes().get(range.clone()) == Some(key),
            SlotKey::Hash(hash) => leaves.slot_hash(key) == *hash,
        }
    }
}

/// Address and units of the block in a word: 16 bits of units, 48 bits of address.
pub(super) fn place(word: u64) -> (RemotePtr, u64) {
    (RemotePtr::from_slot(word), (word >> 48).max(1))
}

/// The word of a block of so many bytes.
pub(super) fn place_word(block: RemotePtr, len: u64) -> u64 {
    (len / UNIT as u64).min(u64::from(u16::MAX)) << 48 | block.to_slot().unwrap_or_default()
}

/// An entry as a walk finds it.
struct Found {
    key: Vec<u8>,
    value: Value,
    offset: usize,
    /// Its block and that block's bytes; null for a value that lies in the leaf.
    block: (RemotePtr, u64),
}

fn damage(at: RemotePtr, number: usize, what: &str) -> Damage {
    Damage { at, what: format!("entry {number} of a leaf points to {what}") }
}

/// What a walk finds in a leaf.
struct Contents {
    /// The entries up to the high key of the leaf, in the order of their keys.
    entries: Vec<Found>,
    /// How many there are that belong to the right sibling: in the midst of a split or a merge, a leaf may hold such entries.
    of_sibling: usize,
    wrong: Vec<Damage>,
}

async fn read_entries<L: Leaves>(
    leaves: &L,
    span: &Span,
    leaf: &L::Leaf,
    high: Option<&[u8]>,
) -> Result<Contents, IndexError> {
    let (at, words) = (leaf.at(), L::words(leaf));
    let bytes = |range: &Range<usize>| words.bytes().get(range.clone()).unwrap_or_default();
    let (mut found, mut wrong, mut in_blocks, mut places) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for slot in leaves.slots(leaf) {
        match (&slot.key, &slot.value) {
            (SlotKey::Inline(key), SlotValue::Inline(value)) => {
                let (key, value) = (bytes(key).to_vec(), Value::from(bytes(value)));
                found.push(Found { key, value, offset: slot.offset, block: (RemotePtr::NULL, 0) });
            }
            _ => {
                places.extend(slot.block());
                in_blocks.push(slot);
            }
        }
    }
    for ((slot, (block_at, _)), block) in in_blocks.iter().zip(&places).zip(fetch_blocks(span, &places).await?) {
        match block {
            Ok(block) if slot.is_of(leaves, words, block.key()) => {
                let (key, len) = (block.key().to_vec(), block.len());
                found.push(Found { key, value: block.into_value(), offset: slot.offset, block: (*block_at, len) });
            }
            Ok(_) => wrong.push(damage(at, slot.number, &format!("{block_at}, where another key's block lies"))),
            Err(what) => wrong.push(damage(at, slot.number, &what)),
        }
    }
    found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    let inside = high.map_or(found.len(), |high| found.partition_point(|found| *found.key < *high));
    let of_sibling = found.len() - inside;
    found.truncate(inside);
    Ok(Contents { entries: found, of_sibling, wrong })
}

impl Tree {
    /// Hands out every entry, in the order of the keys; returns their number.
    pub(super) async fn visit_entries(
        &self,
        leaves: &impl Leaves,
        entries: &Entries,
        damaged: OnDamage<'_>,
    ) -> Result<u64, IndexError> {
        self.check_dropped().await?;
        let (mut next, mut seen) = (Some(Vec::new()), 0);
        while let Some(from) = next {
            let visited = self.visit_leaf(leaves, OpKind::Scan, &from).await?;
            let Contents { entries: found, wrong, .. } = match visited.node {
                Ok(leaf) => read_entries(leaves, visited.pin.span(), &leaf, visited.next.as_deref()).await?,
                Err(damage) => Contents { entries: Vec::new(), of_sibling: 0, wrong: vec![damage] },
            };
            drop(visited.pin);
            wrong.into_iter().try_for_each(&mut *damaged)?;
            for Found { key, value, .. } in found.into_iter().filter(|found| found.key >= from) {
                entries.hand_out(key, value).await?;
                seen += 1;
            }
            next = visited.next.filter(|next| *next > from);
        }
        Ok(seen)
    }

    /// Audits nodes and entries; `hash` is the hash of a key by which the audit finds it twice.
    pub(super) async fn audit_entries<L: Leaves>(
        &self,
        leaves: &L,
        audit: &mut Audit,
        alone: bool,
        hash: impl Fn(&[u8]) -> crate::keyhash::KeyHash,
    ) -> Result<IndexAudit, IndexError> {
        self.check_dropped().await?;
        let figures = ["nodes", "empty_leaves", "dead_nodes", "missing_separators"];
        let mut findings = Findings::new(&self.session, audit, alone, &figures);
        let leaf = async |findings: &mut Findings<'_>, pin: &Pin<'_>, (leaf, high): (L::Leaf, Option<Vec<u8>>)| {
            let Contents { entries: found, of_sibling, wrong } =
                read_entries(leaves, pin.span(), &leaf, high.as_deref()).await?;
            wrong.into_iter().try_for_each(|damage| findings.damage(damage))?;
            if findings.alone && of_sibling > 0 {
                let at = leaf.at();
                findings.problem(format!("the leaf at {at} has {of_sibling} entries that belong to its right sibling"));
            }
            findings.report.entries += found.len() as u64;
            findings.count("empty_leaves", u64::from(found.is_empty()));
            for Found { key, offset, block, .. } in found {
                findings.key(hash(&key), &key, leaf.at().add(offset as u64));
                if block.1 > 0 {
                    findings.reach_block(pin.span(), "a leaf", block.0, block.1).await?;
                }
            }
            Ok(())
        };
        self.audit_tree(leaves, &mut findings, leaf).await?;
        findings.report.resizes = u64::from(self.height.get());
        Ok(findings.finish())
    }

    /// Frees every node and every block of an index that has been marked as dropped.
    pub(super) async fn free_entries<L: Leaves>(&self, leaves: &L, span: &Span) -> Result<(), IndexError> {
        // A client that crashed in a split has left its leaf locked, and what the leaf points to may be found in the new one.
        let twice = RefCell::new(HashSet::<RemotePtr>::new());
        let leaf = async |leaf: &L::Leaf| {
            let slots = leaves.slots(leaf);
            let blocks = slots.iter().filter_map(|slot| Some(slot.block()?.0));
            let blocks: Vec<_> = blocks.filter(|block| !twice.borrow().contains(block)).collect();
            if leaf.is_locked() {
                twice.borrow_mut().extend(&blocks);
            }
            free_blocks(&self.session, span, &blocks).await
        };
        self.free_tree(leaves, span, leaf).await
    }
}
