//! Changing a node: lock, read again, write new contents, release; and the separators that splits owe their parents.
//!
//! ```text
//! change(key):
//!   loop, each round under its own pin:
//!     node = descend(key); if nothing is to be done: return
//!     [WRITE intent, CAS lock 0 -> 1]           lock held by another client: wait, take it over if that has crashed
//!     node = read(node) again                   split meanwhile: release, next round
//!     [WRITE block, WRITE new contents (of both halves), WRITE pointer, CAS lock 1 -> 0, CAS intent]
//!   add the separator to the parent, in the same way, one level up
//! ```
//!
//! The root never moves: when it is full, its entries move to two new children, and it becomes their parent.

use super::node::{CONTENTS, Contents, Entry, HEADER_LEN, LOCKED, Node, encode, lock_of, pointer};
use super::{BLink, Descent, Fault, Separator, planted};
use crate::IndexError;
use crate::backoff::Backoff;
use crate::block;
use crate::marks::mark;
use crate::recovery::{HeldLock, claim_and_recover};
use crate::write::{Guard, Mode, Wrote};
use farindex_fabric::{Buf, OpKind, RemotePtr, Span};
use farindex_pool::layout::HOME;
use farindex_pool::{Intent, IntentCell, Pin, PoolError};

/// First word of an intent: what its client does under the lock.
mod intent_kind {
    pub(super) const CHANGE: u64 = 1;
    pub(super) const TAKE_OVER: u64 = 2;
}

/// Rounds in which an operation waits for memory before it reports that the pool is full.
const FULL_ROUNDS: u32 = 8;

/// What is to become of a key in its node.
pub(super) enum Change<'a> {
    /// It gets a block with this value, at an address that is allocated already.
    Put {
        mode: Mode<'a>,
        block: RemotePtr,
        len: u64,
        value: &'a [u8],
    },
    Remove(Guard<'a>),
    /// It gets a child: this is a separator.
    Child(RemotePtr),
}

impl Change<'_> {
    /// Returns what the change does if the key is there or not; as an error if that is nothing.
    fn outcome(&self, found: bool) -> Result<Wrote, Wrote> {
        match (self, found) {
            (Change::Put { mode: Mode::Insert, .. } | Change::Child(_), true) => Err(Wrote::Exists),
            (Change::Put { mode: Mode::Update(_), .. } | Change::Remove(_), false) => Err(Wrote::Absent),
            (_, true) => Ok(Wrote::Updated),
            (_, false) => Ok(Wrote::Inserted),
        }
    }
    /// The condition on the value of a present key under which the key changes.
    fn guard(&self) -> Guard<'_> {
        match self {
            Change::Put { mode, .. } => mode.guard(),
            Change::Remove(guard) => *guard,
            Change::Child(_) => Guard::Any,
        }
    }
    /// Applies the change; returns the entry that is replaced or removed.
    fn apply(&self, contents: &mut Contents, key: &[u8]) -> Option<Entry> {
        let entry = match self {
            Change::Put { block, len, .. } => Entry::new(key, *block, *len),
            Change::Child(at) => Entry::new(key, *at, 0),
            Change::Remove(_) => return contents.find(key).ok().map(|i| contents.entries.remove(i)),
        };
        match contents.find(key) {
            Ok(i) => Some(std::mem::replace(&mut contents.entries[i], entry)),
            Err(i) => {
                contents.entries.insert(i, entry);
                None
            }
        }
    }
}

/// How one round of a change ended.
enum Round {
    Done(Wrote),
    /// The node was split before it was locked.
    Split,
    /// Another client holds the lock of this node.
    Held(RemotePtr),
}

/// What a change is about to write, in this order. Memory that is not linked goes back.
#[derive(Default)]
struct Plan {
    writes: Vec<(RemotePtr, Buf)>,
    allocated: Vec<(RemotePtr, u64)>,
}

impl BLink {
    /// Inserts, updates or upserts.
    pub(super) async fn put(&self, mode: Mode<'_>, key: &[u8], value: &[u8]) -> Result<Wrote, IndexError> {
        self.check_lengths(key, value)?;
        let (session, span) = (&self.session, self.session.span(mode.kind()));
        let len = block::block_len(key.len(), value.len()) as u64;
        let block = session.alloc(&span, HOME, len).await?;
        let wrote = self.change(span, key, &Change::Put { mode, block, len, value }).await;
        match &wrote {
            // After a failed verb it may be linked all the same (N7).
            Ok(Wrote::Inserted | Wrote::Updated) | Err(IndexError::Fabric(_)) => {}
            _ => session.discard(block, len),
        }
        wrote
    }

    /// Changes the leaf of a key, and then adds the separators that are missing on the way there.
    pub(super) async fn change(&self, span: Span, key: &[u8], change: &Change<'_>) -> Result<Wrote, IndexError> {
        let mut missing = Vec::new();
        let wrote = self.change_at(span, key, 0, change, &mut missing).await?;
        self.add_separators(missing).await?;
        self.reclaim().await?;
        Ok(wrote)
    }

    /// Adds separators to inner nodes; returns how many were missing. One that cannot be added is left to the next
    /// writer: only an error after which nothing else can be done is returned.
    pub(super) async fn add_separators(&self, mut missing: Vec<Separator>) -> Result<u64, IndexError> {
        let mut added = 0;
        while let Some(Separator { level, child }) = missing.pop() {
            let change = Change::Child(child.at());
            let span = self.session.span(OpKind::Maintenance);
            match self.change_at(span, &child.key, level, &change, &mut missing).await {
                Ok(Wrote::Inserted) => added += 1,
                Err(error @ (IndexError::Fabric(_) | IndexError::Pool(PoolError::LeaseLost))) => return Err(error),
                Ok(_) => {}
                Err(_) => {
                    mark!("blink: separator left out");
                }
            }
        }
        Ok(added)
    }

    async fn change_at(
        &self,
        span: Span,
        key: &[u8],
        level: u32,
        change: &Change<'_>,
        missing: &mut Vec<Separator>,
    ) -> Result<Wrote, IndexError> {
        let (session, mut span) = (&self.session, Some(span));
        let (mut backoff, mut full_rounds) = (Backoff::default(), 0);
        loop {
            let pin = session.pin(span.take().unwrap_or_else(|| session.span(OpKind::Maintenance)))?;
            let round = self.round(&pin, key, level, change, missing).await;
            // Nothing is pinned between rounds, so that memory comes back while this one waits.
            drop(pin);
            match round {
                Ok(Round::Done(wrote)) => return Ok(wrote),
                Ok(Round::Split) => {
                    mark!("blink: node was split before it was locked");
                }
                Ok(Round::Held(at)) => {
                    if backoff.wait(session).await {
                        let pin = self.maintenance_pin().await?;
                        let held = self.recover_locked(&pin, at).await?;
                        backoff.check_holder(&pin, held).await?;
                    }
                }
                Err(IndexError::Pool(PoolError::Full { wanted, .. })) if full_rounds < FULL_ROUNDS => {
                    full_rounds += 1;
                    let span = session.span(OpKind::Maintenance);
                    let room = session.alloc(&span, HOME, wanted).await?;
                    session.free(&span, room, wanted).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn round(
        &self,
        pin: &Pin<'_>,
        key: &[u8],
        level: u32,
        change: &Change<'_>,
        missing: &mut Vec<Separator>,
    ) -> Result<Round, IndexError> {
        let Descent { node, missing: passed } = self.descend(pin.span(), key, level, &mut None).await?;
        missing.extend(passed);
        if let Err(nothing) = change.outcome(node.contents.find(key).is_ok()) {
            return Ok(Round::Done(nothing));
        }
        let Some(cell) = self.lock(pin, node.at).await? else { return Ok(Round::Held(node.at)) };
        match self.change_locked(pin, &cell, node, key, change, missing).await {
            Ok(Some(wrote)) => Ok(Round::Done(wrote)),
            // Nothing was written: the lock is released.
            Ok(None) => Ok(Round::Split),
            Err(error) => Err(error),
        }
    }

    /// Takes the lock of a node; `None` if another client holds it.
    async fn lock<'p>(&self, pin: &Pin<'p>, at: RemotePtr) -> Result<Option<IntentCell<'p>>, IndexError> {
        let cell = pin.session().intent_cell(at.node()).await?;
        let mut batch = pin.span().batch();
        cell.declare(&mut batch, &Intent { index: self.uid, lock: lock_of(at), what: [intent_kind::CHANGE, 0, 0, 0] });
        let taken = batch.cas(at, 0, LOCKED);
        if batch.post().await?.old(taken) == 0 {
            return Ok(Some(cell));
        }
        mark!("blink: lock is held");
        let mut batch = pin.span().batch();
        cell.clear(&mut batch);
        batch.post().await?;
        cell.cleared();
        Ok(None)
    }

    async fn release(&self, span: &Span, at: RemotePtr, cell: &IntentCell<'_>) -> Result<(), IndexError> {
        let mut batch = span.batch();
        batch.cas(at, LOCKED, 0);
        cell.clear(&mut batch);
        batch.post().await?;
        cell.cleared();
        Ok(())
    }

    /// Changes a node under its lock, and releases the lock. `None` if the key belongs to another node by now. After a
    /// failed verb the lock stays held (N7): the client is evicted before another one goes on.
    async fn change_locked(
        &self,
        pin: &Pin<'_>,
        cell: &IntentCell<'_>,
        seen: Node,
        key: &[u8],
        change: &Change<'_>,
        missing: &mut Vec<Separator>,
    ) -> Result<Option<Wrote>, IndexError> {
        let (span, at, level) = (pin.span(), seen.at, seen.contents.level);
        let mut plan = Plan::default();
        let planned = async {
            let node = if planted(Fault::StaleWrite) { seen } else { self.read_again(span, &seen).await? };
            if node.contents.level != level || !node.contents.covers(key) {
                return Ok(Err(None));
            }
            let wrote = match change.outcome(node.contents.find(key).is_ok()) {
                Ok(wrote) => wrote,
                Err(nothing) => return Ok(Err(Some(nothing))),
            };
            if let (guard @ Guard::Equals(_), Ok(found)) = (change.guard(), node.contents.find(key)) {
                let (pairs, wrong) = self.read_entries(span, &node.contents.entries[found..=found]).await?;
                wrong.into_iter().try_for_each(|damage| damage.fail())?;
                if !pairs.iter().all(|(_, value)| guard.admits(value)) {
                    return Ok(Err(Some(Wrote::Differs)));
                }
            }
            let mut contents = node.contents.clone();
            let replaced = change.apply(&mut contents, key);
            if let Change::Put { block, value, .. } = change {
                let hash = self.hash(key);
                plan.writes.push((*block, block::encode(self.session.endpoint(), hash, key, value)));
            }
            let separator = self.plan(span, &node, contents, &mut plan).await?;
            Ok::<_, IndexError>(Ok((node, wrote, replaced, separator)))
        };
        let planned = planned.await;
        if !matches!(planned, Ok(Ok(_)) | Err(IndexError::Fabric(_))) {
            plan.allocated.iter().for_each(|(ptr, len)| self.session.discard(*ptr, *len));
            self.release(span, at, cell).await?;
        }
        let (node, wrote, replaced, separator) = match planned? {
            Ok(planned) => planned,
            Err(nothing) => return Ok(nothing),
        };
        let mut batch = span.batch();
        for (ptr, buf) in plan.writes {
            batch.write(ptr, buf);
        }
        batch.cas(at, LOCKED, 0);
        cell.clear(&mut batch);
        batch.post().await?;
        cell.cleared();
        pin.retire(node.place, node.len);
        if let Some(entry) = replaced.filter(|entry| entry.len > 0) {
            pin.retire(entry.at(), entry.len);
        }
        missing.extend(separator);
        Ok(Some(wrote))
    }

    /// Reads a node under its lock. Only the root may have another level by now.
    async fn read_again(&self, span: &Span, seen: &Node) -> Result<Node, IndexError> {
        match seen.at == self.root() {
            true => self.read_root(span).await,
            false => self.read_node(span, &Entry::new(&seen.contents.low, seen.at, 0), seen.contents.level).await,
        }
    }

    /// Plans the WRITEs that give a node new contents, which splits it if there are too many entries; returns the
    /// separator that its parent is to get then.
    async fn plan(
        &self,
        span: &Span,
        node: &Node,
        mut contents: Contents,
        plan: &mut Plan,
    ) -> Result<Option<Separator>, IndexError> {
        let mut separator = None;
        if contents.entries.len() > self.config.fanout {
            let right = split(&mut contents);
            let at = self.plan_node(span, &right, plan).await?;
            let child = Entry::new(&right.low, at, 0);
            contents.right = Some(child.clone());
            if node.at == self.root() {
                mark!("blink: root was split");
                let left = self.plan_node(span, &contents, plan).await?;
                let level = contents.level + 1;
                let entries = vec![Entry::new(&[], left, 0), child];
                contents = Contents { level, low: Vec::new(), right: None, entries };
            } else {
                mark!("blink: node was split");
                separator = Some(Separator { level: contents.level + 1, child });
            }
        }
        let (place, len) = self.plan_contents(span, &contents, plan).await?;
        let word = self.session.endpoint().buf_from_words(&[pointer(place, len)]);
        plan.writes.push((node.at.add(CONTENTS), word));
        Ok(separator)
    }

    async fn plan_node(&self, span: &Span, contents: &Contents, plan: &mut Plan) -> Result<RemotePtr, IndexError> {
        let (place, len) = self.plan_contents(span, contents, plan).await?;
        let at = self.session.alloc_now(span, HOME, HEADER_LEN).await?;
        plan.allocated.push((at, HEADER_LEN));
        plan.writes.push((at, self.session.endpoint().buf_from_words(&[0, pointer(place, len), 0, 0, 0, 0, 0, 0])));
        Ok(at)
    }

    async fn plan_contents(
        &self,
        span: &Span,
        contents: &Contents,
        plan: &mut Plan,
    ) -> Result<(RemotePtr, u64), IndexError> {
        let buf = encode(self.session.endpoint(), self.tag, contents)?;
        let len = buf.len() as u64;
        let place = self.session.alloc_now(span, HOME, len).await?;
        plan.allocated.push((place, len));
        plan.writes.push((place, buf));
        Ok((place, len))
    }

    /// Releases the lock of a node if its holder has crashed. There is nothing else to repair (L2). Returns the lock if
    /// its holder may be alive.
    pub(super) async fn recover_locked(&self, pin: &Pin<'_>, at: RemotePtr) -> Result<Option<HeldLock>, IndexError> {
        let what = [intent_kind::TAKE_OVER, 0, 0, 0];
        claim_and_recover(pin, self.uid, lock_of(at), what, async |_, cell| {
            mark!("blink: lock of a crashed client was released");
            self.release(pin.span(), at, cell).await
        })
        .await
    }
}

/// Moves the upper half of the entries to a new right sibling. In leaves its low key is the shortest one that separates
/// the halves.
fn split(contents: &mut Contents) -> Contents {
    let entries = contents.entries.split_off(contents.entries.len() / 2);
    let first = entries.first().map(|entry| entry.key.as_slice()).unwrap_or_default();
    let last = contents.entries.last().map(|entry| entry.key.as_slice()).unwrap_or_default();
    let common = first.iter().zip(last).take_while(|(a, b)| a == b).count();
    let len = if contents.level == 0 { common + 1 } else { first.len() };
    let low = first.get(..len).unwrap_or(first).to_vec();
    Contents { level: contents.level, low, right: contents.right.take(), entries }
}
