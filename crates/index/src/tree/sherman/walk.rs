//! Visiting every entry: dumps, audits, recovery, drops.

use super::Sherman;
use super::read::place;
use crate::audit::{Damage, Findings, IndexAudit, OnDamage};
use crate::maintenance::{fetch_blocks, free_blocks};
use crate::tree::node::Node;
use crate::{IndexError, Value};
use farindex_fabric::{OpKind, RemotePtr, Span};
use farindex_pool::audit::Audit;

/// An entry of a leaf as a walk finds it.
struct Found {
    key: Vec<u8>,
    value: Value,
    slot: usize,
    /// Its block and that block's bytes; null for an inline entry.
    block: (RemotePtr, u64),
}

impl Sherman {
    /// READs the entries of a leaf, in the order of their keys.
    async fn read_entries(&self, span: &Span, node: &Node) -> Result<(Vec<Found>, Vec<Damage>), IndexError> {
        let (mut found, mut wrong) = (Vec::with_capacity(node.count()), Vec::new());
        let (mut slots, mut places) = (Vec::new(), Vec::new());
        for slot in node.used() {
            let (key, value) = node.slot(slot);
            if node.is_inline(slot) {
                let (key, value) = (key.to_le_bytes().to_vec(), Value::from(&value.to_le_bytes()[..]));
                found.push(Found { key, value, slot, block: (RemotePtr::NULL, 0) });
            } else {
                slots.push(slot);
                places.push(place(value));
            }
        }
        for ((slot, (at, _)), block) in slots.into_iter().zip(&places).zip(fetch_blocks(span, &places).await?) {
            match block {
                Ok(block) if self.hash(block.key()).bits() == node.slot(slot).0 => {
                    let (key, block_len) = (block.key().to_vec(), block.len());
                    found.push(Found { key, value: block.into_value(), slot, block: (*at, block_len) });
                }
                Ok(_) => wrong.push(damage(node, slot, &format!("{at}, where another key's block lies"))),
                Err(what) => wrong.push(damage(node, slot, &what)),
            }
        }
        found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok((found, wrong))
    }

    pub(super) async fn visit_all(
        &self,
        mut each: impl AsyncFnMut(&[u8], Value) -> Result<(), IndexError>,
        damaged: OnDamage<'_>,
    ) -> Result<u64, IndexError> {
        self.tree.check_dropped().await?;
        let (mut next, mut seen) = (Some(Vec::new()), 0);
        while let Some(from) = next {
            let visited = self.tree.visit_leaf(self, OpKind::Scan, &from).await?;
            let (found, wrong) = match visited.node {
                Ok(node) => self.read_entries(visited.pin.span(), &node).await?,
                Err(damage) => (Vec::new(), vec![damage]),
            };
            drop(visited.pin);
            wrong.into_iter().try_for_each(&mut *damaged)?;
            for Found { key, value, .. } in found.into_iter().filter(|found| found.key >= from) {
                each(&key, value).await?;
                seen += 1;
            }
            next = visited.next.filter(|next| *next > from);
        }
        Ok(seen)
    }

    pub(super) async fn audit_all(&self, audit: &mut Audit, alone: bool) -> Result<IndexAudit, IndexError> {
        self.tree.check_dropped().await?;
        let figures = ["nodes", "empty_leaves", "dead_nodes", "missing_separators"];
        let mut findings = Findings::new(&self.session, audit, alone, &figures);
        let leaf = async |findings: &mut Findings<'_>, pin: &farindex_pool::Pin<'_>, node: Node| {
            let (found, wrong) = self.read_entries(pin.span(), &node).await?;
            wrong.into_iter().try_for_each(|damage| findings.damage(damage))?;
            findings.report.entries += found.len() as u64;
            findings.count("empty_leaves", u64::from(node.count() == 0));
            for Found { key, slot, block, .. } in found {
                findings.key(self.hash(&key), &key, node.at.add(node.layout.slot(slot) as u64 * 8));
                if block.1 > 0 {
                    findings.reach_block(pin.span(), "a leaf", block.0, block.1).await?;
                }
            }
            Ok(())
        };
        self.tree.audit_tree(self, &mut findings, leaf).await?;
        findings.report.resizes = u64::from(self.tree.height.get());
        Ok(findings.finish())
    }

    pub(super) async fn recover_all(&self) -> Result<u64, IndexError> {
        self.tree.recover_tree(self).await
    }

    pub(super) async fn free_all(&self, span: &Span) -> Result<(), IndexError> {
        let leaf = async |node: &Node| {
            let blocks = node.used().filter(|slot| !node.is_inline(*slot)).map(|slot| place(node.slot(slot).1).0);
            let blocks: Vec<_> = blocks.collect();
            free_blocks(&self.session, span, &blocks).await
        };
        self.tree.free_tree(self, span, leaf).await
    }
}

fn damage(node: &Node, slot: usize, what: &str) -> Damage {
    Damage { at: node.at, what: format!("entry {slot} of a leaf points to {what}") }
}
