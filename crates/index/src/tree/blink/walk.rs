//! Visiting every entry: scans, dumps, audits, recovery, drops. Each node is read under a pin of its own, by a descent
//! to its low key: nothing is pinned between two nodes.

use super::node::{Entry, HEADER_LEN, Node, lock_of};
use super::{BLink, Descent, Fault, Pair, Separator, planted};
use crate::audit::{Damage, Findings, IndexAudit, OnDamage};
use crate::block::UNIT;
use crate::maintenance::{astray, fetch_blocks};
use crate::recovery::recover_lock;
use crate::traits::KeyBounds;
use crate::visit::Entries;
use crate::{IndexError, Value};
use farindex_fabric::{OpKind, Span};
use farindex_pool::Pin;
use farindex_pool::audit::Audit;
use std::ops::Bound;

/// A node of a level, and where the next one begins.
struct Step {
    /// The node, or why it cannot be read.
    node: Result<Node, Damage>,
    missing: Vec<Separator>,
    /// Low key of the next node; `None` if this one is the last.
    next: Option<Vec<u8>>,
}

/// A key and its value.
type Found = (Vec<u8>, Value);

impl BLink {
    fn scan_pin(&self) -> Result<Pin<'_>, IndexError> {
        Ok(self.session.pin(self.session.span(OpKind::Scan))?)
    }

    /// Reads the node of this level that a key belongs to. A node that is damaged is skipped as far as its parent knows
    /// it.
    async fn step(&self, span: &Span, from: &[u8], level: u32) -> Result<Step, IndexError> {
        let mut bound = None;
        match self.descend(span, from, level, &mut bound).await {
            Ok(Descent { node, missing }) => {
                let next = node.contents.right.as_ref().map(|right| right.key.clone());
                let next = if planted(Fault::ScanByParent) && level == 0 { bound } else { next };
                Ok(Step { node: Ok(node), missing, next })
            }
            Err(error) => {
                let damage = Damage::of(error, self.root())?;
                Ok(Step { node: Err(damage), missing: Vec::new(), next: bound })
            }
        }
    }

    /// Reads the blocks of entries of a leaf, all in one batch.
    pub(super) async fn read_entries(
        &self,
        span: &Span,
        entries: &[Entry],
    ) -> Result<(Vec<Found>, Vec<Damage>), IndexError> {
        let (mut found, mut wrong) = (Vec::with_capacity(entries.len()), Vec::new());
        let mut wanted = Vec::with_capacity(entries.len());
        for entry in entries {
            match astray(self.session.pool(), entry.at(), entry.len.max(UNIT as u64)) {
                Some(what) => wrong.push(damage(entry, &what)),
                None => wanted.push((entry, (entry.at(), (entry.len / UNIT as u64).max(1)))),
            }
        }
        let places: Vec<_> = wanted.iter().map(|(_, place)| *place).collect();
        for ((entry, _), block) in wanted.into_iter().zip(fetch_blocks(span, &places).await?) {
            match block {
                Ok(block) if block.key() == entry.key && block.header.block_len() as u64 == entry.len => {
                    found.push((entry.key.clone(), block.into_value()));
                }
                Ok(_) => wrong.push(damage(entry, &format!("{}, where another key's block lies", entry.at()))),
                Err(what) => wrong.push(damage(entry, &what)),
            }
        }
        Ok((found, wrong))
    }

    pub(super) async fn scan_range(
        &self,
        (lower, upper): KeyBounds<'_>,
        limit: usize,
    ) -> Result<Vec<Pair>, IndexError> {
        let above = |key: &[u8]| match lower {
            Bound::Included(bound) => key >= bound,
            Bound::Excluded(bound) => key > bound,
            Bound::Unbounded => true,
        };
        let below = |key: &[u8]| match upper {
            Bound::Included(bound) => key <= bound,
            Bound::Excluded(bound) => key < bound,
            Bound::Unbounded => true,
        };
        let (Bound::Included(from) | Bound::Excluded(from)) = lower else {
            return self.scan_from(&[], above, below, limit).await;
        };
        self.scan_from(from, above, below, limit).await
    }

    async fn scan_from(
        &self,
        from: &[u8],
        above: impl Fn(&[u8]) -> bool,
        below: impl Fn(&[u8]) -> bool,
        limit: usize,
    ) -> Result<Vec<Pair>, IndexError> {
        let (mut pairs, mut next) = (Vec::new(), Some(from.to_vec()));
        while let Some(from) = next.filter(|next| pairs.len() < limit && below(next)) {
            let pin = self.scan_pin()?;
            let step = self.step(pin.span(), &from, 0).await?;
            let node = match step.node {
                Ok(node) => node,
                Err(damage) => return damage.fail().map(|()| pairs),
            };
            let wanted = |entry: &&Entry| entry.key >= from && above(&entry.key) && below(&entry.key);
            let entries = node.contents.entries.iter().filter(wanted).take(limit - pairs.len());
            let entries: Vec<_> = entries.cloned().collect();
            let (found, wrong) = self.read_entries(pin.span(), &entries).await?;
            wrong.into_iter().try_for_each(Damage::fail)?;
            pairs.extend(found.into_iter().map(|(key, value)| Pair { key: Value::from(key.as_slice()), value }));
            next = step.next;
        }
        Ok(pairs)
    }

    pub(super) async fn visit_all(&self, entries: &Entries, damaged: OnDamage<'_>) -> Result<u64, IndexError> {
        let (mut next, mut seen) = (Some(Vec::new()), 0);
        while let Some(from) = next {
            let pin = self.scan_pin()?;
            let step = self.step(pin.span(), &from, 0).await?;
            let (found, wrong) = match step.node {
                Ok(node) => self.read_entries(pin.span(), &node.contents.entries).await?,
                Err(damage) => (Vec::new(), vec![damage]),
            };
            drop(pin);
            wrong.into_iter().try_for_each(&mut *damaged)?;
            for (key, value) in found {
                entries.hand_out(key, value).await?;
                seen += 1;
            }
            next = step.next;
        }
        Ok(seen)
    }

    /// Calls `each` for every node, the root first, level by level.
    async fn each_node(
        &self,
        kind: OpKind,
        mut each: impl AsyncFnMut(&Pin<'_>, Result<Node, Damage>, Vec<Separator>) -> Result<(), IndexError>,
    ) -> Result<(), IndexError> {
        let pin = self.session.pin(self.session.span(kind))?;
        let height = match self.read_root(pin.span()).await {
            Ok(root) => root.contents.level,
            Err(error) => return each(&pin, Err(Damage::of(error, self.root())?), Vec::new()).await,
        };
        drop(pin);
        for level in (0..=height).rev() {
            let mut next = Some(Vec::new());
            while let Some(from) = next {
                let pin = self.session.pin(self.session.span(kind))?;
                let step = self.step(pin.span(), &from, level).await?;
                each(&pin, step.node, step.missing).await?;
                next = step.next;
            }
        }
        Ok(())
    }

    pub(super) async fn audit_all(&self, audit: &mut Audit, alone: bool) -> Result<IndexAudit, IndexError> {
        let figures = ["nodes", "empty_leaves", "missing_separators"];
        let mut findings = Findings::new(&self.session, audit, alone, &figures);
        let (mut nodes, mut separators) = (0, 0);
        self.each_node(OpKind::Scan, async |pin, node, _| {
            let node = match node {
                Ok(node) => node,
                Err(damage) => return findings.damage(damage),
            };
            nodes += 1;
            findings.reach(node.at, HEADER_LEN, "a node");
            findings.reach(node.place, node.len, "the contents of a node");
            findings.report.resizes = findings.report.resizes.max(u64::from(node.contents.level));
            if alone && node.lock != 0 {
                findings.problem(format!("the node at {} is locked, and no client is there to release it", node.at));
            }
            if let Some(what) = Audit::dangling(pin.session(), pin.span(), node.place, node.len).await? {
                findings.problem(format!("the node at {} has its contents at {}, but {what}", node.at, node.place));
            }
            let entries = &node.contents.entries;
            if node.contents.level > 0 {
                separators += entries.len() as u64;
                return Ok(());
            }
            findings.count("empty_leaves", u64::from(entries.is_empty()));
            let (found, wrong) = self.read_entries(pin.span(), entries).await?;
            findings.report.entries += found.len() as u64;
            wrong.into_iter().try_for_each(|damage| findings.damage(damage))?;
            for entry in entries {
                findings.reach_block(pin.span(), "a leaf", entry.at(), entry.len).await?;
            }
            Ok(())
        })
        .await?;
        findings.count("nodes", nodes);
        // Every node but the root has a separator.
        findings.count("missing_separators", (nodes - 1u64.min(nodes)).saturating_sub(separators));
        Ok(findings.finish())
    }

    /// Releases the locks that crashed clients hold, and adds missing separators; returns the number of repairs.
    pub(super) async fn recover_all(&self) -> Result<u64, IndexError> {
        let (mut held, mut missing) = (Vec::new(), Vec::new());
        self.each_node(OpKind::Maintenance, async |_, node, passed| {
            missing.extend(passed);
            if let Ok(node) = node
                && node.lock != 0
            {
                held.push(node.at);
            }
            Ok(())
        })
        .await?;
        let mut recovered = 0;
        for at in held {
            let pin = async || self.maintenance_pin().await.map(Some);
            let attempt = async |pin: &Pin<'_>| self.recover_locked(pin, at).await;
            recovered += recover_lock(&self.session, lock_of(at), pin, attempt).await?;
        }
        Ok(recovered + self.add_separators(missing).await?)
    }

    /// Pins the epoch for maintenance. While the index is not dropped, and this pin is held, a node is a node.
    pub(super) async fn maintenance_pin(&self) -> Result<Pin<'_>, IndexError> {
        let pin = self.session.pin(self.session.span(OpKind::Maintenance))?;
        self.read_root(pin.span()).await?;
        Ok(pin)
    }

    /// Frees every node and block of an index that has been marked as dropped, when no client can use it any more. What
    /// damage hides is left to the pool's reclamation.
    pub(super) async fn free_all(&self, span: &Span) -> Result<(), IndexError> {
        self.dropping.set(true);
        let mut objects = Vec::new();
        self.each_node(OpKind::Maintenance, async |_, node, _| {
            let Ok(node) = node else { return Ok(()) };
            objects.push((node.place, node.len));
            if node.at != self.root() {
                objects.push((node.at, HEADER_LEN));
            }
            if node.contents.level == 0 {
                objects.extend(node.contents.entries.iter().map(|entry| (entry.at(), entry.len)));
            }
            Ok(())
        })
        .await?;
        for (ptr, len) in objects {
            self.session.free(span, ptr, len).await?;
            if self.session.maintenance_due() {
                self.session.maintain().await?;
            }
        }
        span.write(self.root(), self.session.endpoint().buf_from_words(&[0; HEADER_LEN as usize / 8])).await?;
        Ok(self.session.free(span, self.root(), HEADER_LEN).await?)
    }
}

/// Damage of an entry of a leaf, in words that follow "points to".
fn damage(entry: &Entry, what: &str) -> Damage {
    Damage { at: entry.at(), what: format!("the entry of key {} points to {what}", entry.key.escape_ascii()) }
}
