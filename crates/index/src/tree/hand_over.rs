//! Handing the lock of a leaf over to the next operation of the same compute node that waits for it.
//!
//! What is handed over is the lock, the cell with the intent that names it, and what the holder knows of the leaf: the
//! next holder neither takes the lock nor READs what is known. Where holders do not know all of a leaf, the last batch of
//! one READs what the next one will need. See `docs/protocols/tree.md`, section "Handing a lock over", and `local_locks`
//! for the queues.

use super::edit::Steps;
use super::faults::{Fault, planted};
use super::fence::Key;
use super::local_locks::{Arrival, LockTable, Turn, Waiting};
use super::node::{Header, Node};
use super::skeleton::{Locked, Tree};
use crate::IndexError;
use crate::marks::mark;
use farindex_fabric::{Batch, Done, OpKind, RemotePtr, Span, Ticket};
use farindex_pool::{IntentCell, IntentTransfer, Session};
use smallvec::SmallVec;
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// Least time for which an operation waits in a queue.
const LEAST_WAIT: Duration = Duration::from_millis(1);
/// Times that an operation waits in queues (H6). Where a hundred writers want one leaf and split it, some wait more than
/// eight times, and taking locks on their own would cost them more.
const MOST_WAITS: u32 = 64;

/// A leaf under its lock, as far as it was read, which can be handed over.
pub(super) trait HandsOver: Header {
    /// What is handed over of it, perhaps to another thread.
    type Kept: Send;

    /// Returns the byte ranges of the leaf that an operation with this wish needs.
    fn needs(&self, wish: usize) -> Ranges;
    /// Are the words of a range known?
    fn knows(&self, range: &Range<usize>) -> bool;
    /// Adds words that were READ under the lock, behind all WRITEs of its holder.
    fn add(&mut self, offset: usize, words: &[u64]);
    /// Returns what is known: the words as the holder has left them.
    fn keep(self) -> Self::Kept;

    /// Posts the READs of ranges of the leaf.
    fn post_reads(&self, batch: &mut Batch<'_>, ranges: Ranges) -> Posted {
        let read = |range: Range<usize>| (range.start, batch.read(self.at().add(range.start as u64), range.len()));
        ranges.into_iter().map(read).collect()
    }
    /// Adds what READs have brought.
    fn add_reads(&mut self, posted: Posted, done: &mut Done) {
        posted.into_iter().for_each(|(offset, ticket)| self.add(offset, done.buf(ticket).words()));
    }
    /// Returns what an operation with this wish must READ yet: nothing, or all that it needs.
    fn unknown(&self, wish: usize) -> Ranges {
        let needs = self.needs(wish);
        if needs.iter().all(|range| self.knows(range)) { Ranges::new() } else { needs }
    }
}

/// Byte ranges to READ.
pub(super) type Ranges = SmallVec<[Range<usize>; 2]>;
/// READs of ranges that were posted: their offsets.
pub(super) type Posted = SmallVec<[(usize, Ticket); 2]>;

/// The lock of a leaf on its way from one operation to the next one.
pub(super) struct Handed<N: HandsOver> {
    cell: IntentTransfer,
    /// What the last holder knows of the leaf, as it has left it. Nobody else writes to it (W1).
    kept: N::Kept,
}

/// The lock of a leaf that an operation has been handed with its turn, and has not taken yet. If it ends without (because it fails,
/// or is not polled any more), it hands the lock on, or releases it.
struct HandedTurn<'t, N: HandsOver> {
    tree: &'t Tree,
    held: Option<(Turn<'t, Handed<N>>, Handed<N>)>,
}

impl<N: HandsOver> Drop for HandedTurn<'_, N> {
    fn drop(&mut self) {
        let Some((turn, handed)) = self.held.take() else { return };
        mark!("tree: lock was handed over to an operation that is gone");
        let handed_on = if turn.next_wish().is_some() { turn.hand_over(handed) } else { Err((turn, handed)) };
        if let Err((turn, handed)) = handed_on {
            let span = self.tree.session.span(OpKind::Maintenance);
            let mut batch = span.batch();
            self.tree.add_release(&mut batch, turn.at());
            handed.cell.clear_detached(batch);
            drop(turn);
        }
    }
}

/// A lock that an operation has been handed.
pub(super) struct InHand<'s, N: HandsOver> {
    pub(super) at: RemotePtr,
    pub(super) cell: IntentCell<'s>,
    /// What the last holder knows of the leaf.
    pub(super) kept: N::Kept,
    /// Range of the leaf, as the parent had it before the operation waited.
    pub(super) range: Option<(Key, Option<Key>)>,
}

/// The queues of a compute node at the locks of its leaves.
pub(super) type LeafLocks<N> = LockTable<Handed<N>>;

/// The turn of an operation at a leaf, if it has one.
pub(super) type TurnOf<'t, N> = Option<Turn<'t, Handed<N>>>;

/// What an operation knows of its place at the lock of a leaf, from one round to the next.
pub(super) struct Place<'t, N: HandsOver> {
    /// What it needs of a leaf, for [`HandsOver::needs`].
    wish: usize,
    /// Its turn, unless it was handed the lock with it.
    turn: TurnOf<'t, N>,
    handed: Option<HandedTurn<'t, N>>,
    /// Range of the leaf, as the parent had it before the operation waited.
    range: Option<(Key, Option<Key>)>,
    /// Until when it waits in queues, from the first time on that it has waited.
    until: Option<Duration>,
    /// How often it has waited in one.
    waits: u32,
    /// It has waited long enough: it uses no queue any more.
    alone: bool,
}

/// A place in the queue for the lock of a leaf.
pub(super) struct Queued<'t, N: HandsOver> {
    tree: &'t Tree,
    wish: usize,
    waiting: Waiting<'t, Handed<N>>,
    range: Option<(Key, Option<Key>)>,
}

impl<'t, N: HandsOver> Place<'t, N> {
    pub(super) fn new(wish: usize) -> Self {
        Place { wish, turn: None, handed: None, range: None, until: None, waits: 0, alone: false }
    }
    pub(super) fn wish(&self) -> usize {
        self.wish
    }
    /// Ends the turn, if the operation has it. Must not be called while the operation holds the lock.
    pub(super) fn end_turn(&mut self) {
        self.turn = None;
    }
    /// Takes the turn, for the end of the work under the lock.
    pub(super) fn take_turn(&mut self) -> TurnOf<'t, N> {
        self.turn.take()
    }
    /// Asks for the turn at a leaf. `Err`: other operations of this compute node are ahead, and the caller waits for them
    /// after it has let go of its pin.
    pub(super) fn arrive(
        &mut self,
        tree: &'t Tree,
        locks: Option<&'t LeafLocks<N>>,
        at: RemotePtr,
        range: impl FnOnce() -> Option<(Key, Option<Key>)>,
    ) -> Result<(), Queued<'t, N>> {
        let Some(locks) = locks.filter(|_| !self.alone) else { return Ok(()) };
        if self.turn.as_ref().is_some_and(|turn| turn.at() == at) {
            return Ok(());
        }
        // Never waits while it has another turn (H1).
        self.turn = None;
        // A turn may be of no use: two operations whose ways lead by other leaves would pass it to each other for ever.
        if self.waits >= MOST_WAITS || self.until.is_some_and(|until| tree.session.endpoint().now() >= until) {
            mark!("tree: stopped waiting for another operation of this compute node");
            self.alone = true;
            return Ok(());
        }
        match locks.arrive(at, self.wish) {
            Arrival::Turn(turn) => {
                self.turn = Some(turn);
                Ok(())
            }
            Arrival::Wait(waiting) => Err(Queued { tree, wish: self.wish, waiting, range: range() }),
        }
    }
    /// Takes what the operation has been handed with the turn.
    pub(super) fn take_handed<'s>(&mut self, session: &'s Session) -> Option<InHand<'s, N>> {
        let (turn, Handed { cell, kept }) = self.handed.take()?.held.take()?;
        let at = self.turn.insert(turn).at();
        Some(InHand { at, cell: cell.into_cell(session)?, kept, range: self.range.take() })
    }
}

impl<'t, N: HandsOver> Queued<'t, N> {
    /// Waits for the turn. In all queues together an operation waits no longer than until it checks the holder of a lock.
    /// Nothing is pinned meanwhile. `before` is what it has known of its place.
    pub(super) async fn wait(mut self, before: &Place<'t, N>) -> Place<'t, N> {
        mark!("tree: waited for another operation of this compute node");
        let (endpoint, lease) = (self.tree.session.endpoint(), self.tree.session.pool().lease());
        let now = endpoint.now();
        let until = before.until.unwrap_or(now + (lease / 16).max(LEAST_WAIT));
        let mut limit = pin!(endpoint.sleep(until.saturating_sub(now)));
        let granted = poll_fn(|cx| match self.waiting.poll(cx) {
            Poll::Ready(granted) => Poll::Ready(Some(granted)),
            Poll::Pending => limit.as_mut().poll(cx).map(|()| None),
        });
        let granted = granted.await.or_else(|| self.waiting.leave());
        let place = Place { until: Some(until), waits: before.waits + 1, ..Place::new(self.wish) };
        match granted {
            Some((turn, Some(handed))) => {
                let handed = HandedTurn { tree: self.tree, held: Some((turn, handed)) };
                Place { handed: Some(handed), range: self.range.take(), ..place }
            }
            Some((turn, None)) => Place { turn: Some(turn), range: self.range.take(), ..place },
            None => {
                mark!("tree: stopped waiting for another operation of this compute node");
                Place { alone: true, ..place }
            }
        }
    }
}

impl<N: HandsOver> Drop for Queued<'_, N> {
    /// An operation may be dropped before it has learned that it was handed the lock.
    fn drop(&mut self) {
        if let Some((turn, Some(handed))) = self.waiting.leave() {
            drop(HandedTurn { tree: self.tree, held: Some((turn, handed)) });
        }
    }
}

impl Tree {
    /// Carries out steps under the lock of a leaf. Then hands the lock over to the next operation of this compute node that
    /// waits for it, with what is known of the leaf, or releases it.
    pub(super) async fn release_to_next<N: HandsOver>(
        &self,
        span: &Span,
        locked: Locked<'_, N>,
        steps: Steps,
        turn: TurnOf<'_, N>,
    ) -> Result<(), IndexError> {
        let (wish, turn) = match turn.map(|turn| (turn.next_wish(), turn)) {
            Some((Some(wish), turn)) => (wish, turn),
            turn => {
                let released = self.carry_out(span, locked, steps).await;
                // The next one finds the lock free.
                drop(turn);
                return released;
            }
        };
        let (at, Locked { mut node, cell }) = (locked.node.at(), locked);
        if !steps.is_empty() {
            let before = if planted(Fault::HandOverOld) { node.needs(wish) } else { Ranges::new() };
            let mut batch = span.batch();
            let posted = node.post_reads(&mut batch, before);
            if !posted.is_empty() {
                node.add_reads(posted, &mut batch.post().await?);
            }
            let mut batch = self.begin_steps(span, at, steps).await?;
            // The READs come behind the WRITEs (G4), and spare the next one a round trip.
            let posted = node.post_reads(&mut batch, node.unknown(wish));
            node.add_reads(posted, &mut batch.post().await?);
        }
        let handed = Handed { cell: cell.into_transfer(), kept: node.keep() };
        let Err((turn, handed)) = turn.hand_over(handed) else {
            mark!("tree: lock was handed over");
            return Ok(());
        };
        // Those that waited have left meanwhile.
        mark!("tree: nobody was there to take the lock over");
        if let Some(cell) = handed.cell.into_cell(&self.session) {
            let mut batch = span.batch();
            self.add_release(&mut batch, at);
            cell.clear(&mut batch);
            batch.post().await?;
            cell.cleared();
        }
        drop(turn);
        Ok(())
    }
}

/// A leaf that is read whole is handed over whole.
impl HandsOver for Node {
    type Kept = Box<[u64]>;

    fn needs(&self, _: usize) -> Ranges {
        std::iter::once(0..self.layout.len()).collect()
    }
    fn knows(&self, _: &Range<usize>) -> bool {
        true
    }
    fn add(&mut self, offset: usize, words: &[u64]) {
        let own = self.buf.words_mut().iter_mut().skip(offset / 8);
        own.zip(words).for_each(|(own, word)| *own = *word);
    }
    fn keep(self) -> Box<[u64]> {
        self.buf.words().into()
    }
}
