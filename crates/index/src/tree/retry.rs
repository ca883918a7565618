//! How an operation goes on where it could not: forget an old copy, go round a dead node, wait for a lock.
//!
//! Invariants: nothing is pinned while an operation waits. No wait for the holder of a lock exceeds two leases, unless the holder
//! changes meanwhile. An operation that waits for long does not keep others from taking the lock over from a client that was evicted
//! (H8).

use super::descend::{Detours, Goal};
use super::inner::Side;
use super::node::{Head, Header, magic};
use super::skeleton::{Leaves, Tree};
use crate::IndexError;
use crate::backoff::Backoff;
use crate::marks::mark;
use farindex_fabric::{RemotePtr, cold};

/// Looks at nodes that a descent through far memory finds unusable and [`Leaves::explain_unread`] does not call damaged,
/// before the tree counts as damaged: a node of another level, or none of this index, where a parent names one; or nodes that do
/// not lead to the key. They are a sixteenth of a lease apart: no client that goes on changes the tree under one operation so often
/// and for so long.
const LOOKS: u32 = 24;

/// Why an operation cannot go on from where it is.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The copy of this parent was old, or nobody knows which one was.
    Stale(Option<RemotePtr>),
    /// A parent that was read by this operation leads to a dead node.
    Dead { at: RemotePtr, level: u8, low: Vec<u8> },
    /// The leaf is in no state between two changes.
    Unsound(RemotePtr),
    /// The same of an inner node.
    UnsoundInner(RemotePtr),
    /// Another client holds the lock. `seen` stands for what was READ of the node meanwhile; 0 for nothing.
    Held { at: RemotePtr, seen: u64 },
    /// The tree has no such level any more.
    NoLevel,
}

/// The result of a step: a value, or why there is none.
pub(super) type Step<T> = Result<Result<T, Trouble>, IndexError>;

/// What an operation waits for at a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Awaited {
    /// That its lock is free.
    Lock,
    /// That it is a leaf in a state between two changes.
    Leaf,
    /// The same of an inner node.
    Inner,
}

/// How an operation goes on after troubles.
#[derive(Default)]
pub(super) struct Retry {
    backoff: Backoff,
    /// Descend through far memory, not through copies.
    pub(super) fresh: bool,
    /// Dead nodes that stand in the way.
    detours: Detours,
    stale: u32,
    /// Ways that led to no node of the key.
    lost: u32,
    unsound: u32,
    looks: u32,
    /// What was READ last of a node whose lock is held.
    seen: u64,
    /// A separator could not be added: the operation adds no more.
    pub(super) leaves_separators: bool,
    /// It ends after so many attempts, and does without what it has not done by then.
    gives_up_soon: bool,
}

impl Retry {
    /// For a descent through far memory.
    pub(super) fn fresh() -> Self {
        Retry::around(Detours::default())
    }
    /// The same, around these dead nodes.
    pub(super) fn around(detours: Detours) -> Self {
        Retry { fresh: true, detours, ..Retry::default() }
    }
    /// For an operation that gives up soon.
    pub(super) fn brief() -> Self {
        Retry { gives_up_soon: true, ..Retry::default() }
    }
    /// Where a descent for `key` is to end.
    pub(super) fn goal<'a>(&'a self, key: &'a [u8]) -> Goal<'a> {
        Goal::around((key, Side::At), &self.detours)
    }
}

impl Tree {
    /// Waits, or forgets what is old, so that the operation can be tried again. Nothing is pinned meanwhile.
    pub(super) async fn settle(
        &self,
        leaves: &impl Leaves,
        retry: &mut Retry,
        trouble: Trouble,
    ) -> Result<(), IndexError> {
        if matches!(trouble, Trouble::Stale(_) | Trouble::Dead { .. } | Trouble::NoLevel) {
            retry.lost += 1;
            if retry.lost.is_multiple_of(8) {
                self.pause_lost(retry).await?;
            }
        }
        let awaited = if matches!(trouble, Trouble::Unsound(_)) { Awaited::Leaf } else { Awaited::Inner };
        match trouble {
            Trouble::Stale(parent) => {
                mark!("tree: descended through an old copy");
                if let Some(parent) = parent {
                    self.cache.remove(parent);
                }
                retry.stale += 1;
                retry.fresh |= retry.stale > 2 || parent.is_none();
            }
            Trouble::Dead { at, level, low } => {
                retry.fresh = true;
                retry.detours.add(&low, level);
                if self.dropping.get() {
                    // It is freed with all others: what is removed here would be freed twice.
                    return if low.is_empty() { cold(self.undo_root_change(leaves)).await } else { Ok(()) };
                }
                match cold(self.remove_dead(leaves, (at, level, &low), &retry.detours)).await? {
                    Ok(true) => retry.detours.remove(level),
                    // Its left neighbour is being merged with it.
                    Err(Trouble::Held { at: left, .. }) => {
                        cold(self.wait_for(leaves, retry, left, Awaited::Lock)).await?
                    }
                    Ok(false) | Err(_) => drop(retry.backoff.wait(&self.session).await),
                }
            }
            Trouble::NoLevel => retry.fresh = true,
            Trouble::Held { at, seen } => {
                if seen != 0 && std::mem::replace(&mut retry.seen, seen) != seen {
                    // Its holders come and go. One that looks rarely would wait for long (bug 200).
                    retry.backoff.look_sooner();
                }
                self.wait_for(leaves, retry, at, Awaited::Lock).await?;
            }
            Trouble::Unsound(at) | Trouble::UnsoundInner(at) => {
                // Writers of a hot leaf are no reason to distrust the way there, at first.
                retry.unsound += 1;
                retry.fresh |= retry.unsound > 3;
                if retry.unsound.is_multiple_of(8) {
                    // A node of an index that was dropped is zeros.
                    self.check_dropped().await?;
                }
                self.wait_for(leaves, retry, at, awaited).await?;
            }
        }
        Ok(())
    }

    /// Pauses an operation that has lost its way again and again: others change the tree faster than it descends. Fails if that
    /// lasts for too long: then the tree is damaged (bug 242).
    async fn pause_lost(&self, retry: &mut Retry) -> Result<(), IndexError> {
        self.check_dropped().await?;
        if retry.backoff.wait(&self.session).await && retry.fresh {
            retry.looks += 1;
        }
        match retry.looks > LOOKS {
            true => Err(IndexError::corrupt(self.root, "no way from this root leads to the key")),
            false => Ok(()),
        }
    }

    /// Pauses; now and then looks whether the client that holds the lock has crashed. Where nothing has changed for long, goes on
    /// until the lock is free, or something has: each attempt to take a lock declares an intent, and while those of clients
    /// that live name the lock, nobody can tell that its holder has crashed (bug 228).
    async fn wait_for(
        &self,
        leaves: &impl Leaves,
        retry: &mut Retry,
        at: RemotePtr,
        awaited: Awaited,
    ) -> Result<(), IndexError> {
        let mut before: Option<Head> = None;
        loop {
            if retry.backoff.wait(&self.session).await {
                self.check_node(leaves, retry, at, awaited).await?;
            }
            if awaited != Awaited::Lock || retry.gives_up_soon || !retry.backoff.is_at_rest() {
                return Ok(());
            }
            let pin = self.session.pin(self.maintenance())?;
            let head = self.read_head(pin.span(), at).await?;
            if head.word(0) != magic(self.tag, at) | 1 {
                return Ok(());
            }
            if before.is_some_and(|before| before.buf.words() != head.buf.words()) {
                retry.backoff.look_sooner();
                return Ok(());
            }
            mark!("tree: looked at a lock instead of trying to take it");
            before = Some(head);
        }
    }

    /// Finds out why an operation waits for a node: fails if its lock has had the same holder for two leases, or if it is damaged.
    async fn check_node(
        &self,
        leaves: &impl Leaves,
        retry: &mut Retry,
        at: RemotePtr,
        awaited: Awaited,
    ) -> Result<(), IndexError> {
        self.check_dropped().await?;
        let pin = self.session.pin(self.maintenance())?;
        let lock = self.look_at_lock(leaves, &pin, at).await?;
        let (foreign, held) = (lock.is_err(), lock.ok().flatten());
        if held.is_none()
            && match awaited {
                Awaited::Lock => foreign,
                Awaited::Leaf => !leaves.explain_unread(&pin, at).await?,
                // That is no explanation if it turns out to be a leaf.
                Awaited::Inner => leaves.explain_unread(&pin, at).await.map(|_| true)?,
            }
        {
            retry.looks += 1;
            if retry.looks > LOOKS {
                let waited_ms = (self.session.pool().lease() / 16 * LOOKS).as_millis() as u64;
                return Err(match cold(leaves.slow_owner(&pin, at)).await? {
                    Some(holder) => IndexError::Locked { at, waited_ms, holder },
                    None => IndexError::corrupt(at, "a node that its parent does not describe"),
                });
            }
        }
        retry.backoff.check_holder(&pin, held).await
    }
}
