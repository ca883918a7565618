//! Handing the lock of a leaf over to the next operation of the same compute node that waits for it.
//!
//! What is handed over is the lock, the cell with the intent that names it, and what the holder keeps of the leaf, for
//! Sherman all of its words: the next holder neither takes the lock nor READs the leaf. See `docs/protocols/tree.md`,
//! section "Handing a lock over", and `local_locks` for the queues.

use super::edit::{Edit, Steps};
use super::fence::Key;
use super::local_locks::{Arrival, LockTable, Turn, Waiting};
use super::node::Header;
use super::skeleton::{Locked, Tree};
use crate::IndexError;
use crate::marks::mark;
use farindex_fabric::{OpKind, RemotePtr, Span};
use farindex_pool::{IntentCell, IntentTransfer, Session};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// Least time for which an operation waits in a queue.
const LEAST_WAIT: Duration = Duration::from_millis(1);

/// The lock of a leaf on its way from one operation to the next one.
pub(super) struct Handed {
    cell: IntentTransfer,
    /// What the last holder has kept of the leaf, as it has left it. Nobody else writes to it (W1).
    words: Box<[u64]>,
}

/// A lock that an operation has been handed.
pub(super) struct InHand<'s> {
    pub(super) at: RemotePtr,
    pub(super) cell: IntentCell<'s>,
    /// What the last holder has kept of the leaf.
    pub(super) words: Box<[u64]>,
    /// Range of the leaf, as the parent had it before the operation waited.
    pub(super) range: Option<(Key, Option<Key>)>,
}

/// The queues of a compute node at the locks of its leaves.
pub(super) type LeafLocks = LockTable<Handed>;

/// What an operation knows of its place at the lock of a leaf, from one round to the next.
#[derive(Default)]
pub(super) struct Place<'t> {
    /// Its turn, and the lock if that was handed over.
    turn: Option<Turn<'t, Handed>>,
    handed: Option<Handed>,
    /// Range of the leaf, as the parent had it before the operation waited.
    range: Option<(Key, Option<Key>)>,
    /// It has waited long enough: it uses no queue any more.
    alone: bool,
}

/// A place in the queue for the lock of a leaf.
pub(super) struct Queued<'t> {
    tree: &'t Tree,
    at: RemotePtr,
    waiting: Waiting<'t, Handed>,
    range: Option<(Key, Option<Key>)>,
}

impl<'t> Place<'t> {
    /// Ends the turn, if the operation has it. Must not be called while the operation holds the lock.
    pub(super) fn end_turn(&mut self) {
        self.turn = None;
    }
    /// Takes the turn, for the end of the work under the lock.
    pub(super) fn take_turn(&mut self) -> Option<Turn<'t, Handed>> {
        self.turn.take()
    }
    /// Asks for the turn at a leaf. `Err`: other operations of this compute node are ahead, and the caller waits for them
    /// after it has let go of its pin.
    pub(super) fn arrive(
        &mut self,
        tree: &'t Tree,
        locks: Option<&'t LeafLocks>,
        at: RemotePtr,
        range: impl FnOnce() -> Option<(Key, Option<Key>)>,
    ) -> Result<(), Queued<'t>> {
        let Some(locks) = locks.filter(|_| !self.alone) else { return Ok(()) };
        if self.turn.as_ref().is_some_and(|turn| turn.at() == at) {
            return Ok(());
        }
        // Never waits while it has another turn (H1).
        self.turn = None;
        match locks.arrive(at) {
            Arrival::Turn(turn) => {
                self.turn = Some(turn);
                Ok(())
            }
            Arrival::Wait(waiting) => Err(Queued { tree, at, waiting, range: range() }),
        }
    }
    /// Takes what the operation has been handed with the turn.
    pub(super) fn take_handed<'s>(&mut self, session: &'s Session) -> Option<InHand<'s>> {
        let (Handed { cell, words }, at) = (self.handed.take()?, self.turn.as_ref()?.at());
        Some(InHand { at, cell: cell.into_cell(session)?, words, range: self.range.take() })
    }
}

impl<'t> Queued<'t> {
    /// Waits for the turn, but not for longer than an operation waits until it checks the holder of a lock. Nothing
    /// is pinned meanwhile.
    pub(super) async fn wait(mut self) -> Place<'t> {
        mark!("tree: waited for another operation of this compute node");
        let (endpoint, lease) = (self.tree.session.endpoint(), self.tree.session.pool().lease());
        let mut limit = pin!(endpoint.sleep((lease / 16).max(LEAST_WAIT)));
        let granted = poll_fn(|cx| match self.waiting.poll(cx) {
            Poll::Ready(granted) => Poll::Ready(Some(granted)),
            Poll::Pending => limit.as_mut().poll(cx).map(|()| None),
        });
        let granted = granted.await.or_else(|| self.waiting.leave());
        let range = self.range.take();
        match granted {
            Some((turn, handed)) => Place { turn: Some(turn), handed, range, alone: false },
            None => {
                mark!("tree: stopped waiting for another operation of this compute node");
                Place { alone: true, ..Place::default() }
            }
        }
    }
}

impl Drop for Queued<'_> {
    /// An operation that is dropped before it has taken the lock that it was handed hands it on, or releases it.
    fn drop(&mut self) {
        let Some((turn, Some(handed))) = self.waiting.leave() else { return };
        mark!("tree: lock was handed over to an operation that is gone");
        let handed_on = if turn.wants_hand_over() { turn.hand_over(handed) } else { Err((turn, handed)) };
        if let Err((turn, handed)) = handed_on {
            let span = self.tree.session.span(OpKind::Maintenance);
            let mut batch = span.batch();
            self.tree.add_release(&mut batch, self.at);
            handed.cell.clear_detached(batch);
            drop(turn);
        }
    }
}

impl Tree {
    /// Carries out steps under the lock of a leaf. Then hands the lock over to the next operation of this compute node that
    /// waits for it, with the words that `keep` returns, or releases it.
    pub(super) async fn release_to_next<N: Header>(
        &self,
        span: &Span,
        locked: Locked<'_, N>,
        steps: Steps,
        keep: impl FnOnce(&N) -> Box<[u64]>,
        turn: Option<Turn<'_, Handed>>,
    ) -> Result<(), IndexError> {
        let turn = match turn {
            Some(turn) if turn.wants_hand_over() => turn,
            turn => {
                let released = self.carry_out(span, locked, steps).await;
                // The next one finds the lock free.
                drop(turn);
                return released;
            }
        };
        if !steps.is_empty() {
            self.begin_steps(span, locked.node.at(), steps).await?.post().await?;
        }
        let Locked { node, cell } = locked;
        let handed = Handed { cell: cell.into_transfer(), words: keep(&node) };
        let Err((turn, handed)) = turn.hand_over(handed) else {
            mark!("tree: lock was handed over");
            return Ok(());
        };
        // Those that waited have left meanwhile.
        mark!("tree: nobody was there to take the lock over");
        if let Some(cell) = handed.cell.into_cell(&self.session) {
            self.release(span, Locked { node, cell }, Edit::default()).await?;
        }
        drop(turn);
        Ok(())
    }
}
