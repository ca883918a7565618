//! One endpoint's connection to one memory node.
//!
//! Invariants: requests enter the send queue in the order of their batches, and never more than it has room for:
//! batches that do not fit wait here; what was queued since the last flush is posted with one doorbell, as far as there
//! is room; a batch that fits the queue is posted whole, and has one completion, unless the client keeps the fences for
//! its device: then one for each part between fences, and those that wait for others ring again; after any
//! failure the queue pair is dropped before the batches that were in it are handed back, so the device no longer has
//! their buffers; what was posted is never posted again.
//!
//! ```text
//!        dial            answer                    error
//! Down --------> Dialing --------> Up ------------------------> Dialing ...
//!   ^              | the node refuses                              |
//!   +--------------+---------------------------------> Ended (revoked, other memory: for good)
//! ```
//!
//! A batch that failed in the queue is held until the control channel has reported the reason: a revoked client gets
//! [`FabricError::Revoked`], and not an error about lost packets.

use crate::counts::Counts;
use crate::device::Device;
use crate::flight::Inflight;
use crate::hello::{Hello, Reply};
use crate::memory::Scratch;
use crate::pair::Pair;
use crate::post::{Cursor, Manner, Target, append_batch, next_part, next_request};
use farindex_fabric::{FabricError, NodeId, VerbKind};
use farindex_remote::control::Message;
use farindex_remote::{Control, ControlError, Link, Pending};
use sideway::ibverbs::completion::GenericCompletionQueue;
use sideway::ibverbs::queue_pair::{PostSendGuard, QueuePair};
use std::collections::VecDeque;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// State that the lanes of one endpoint share.
pub(crate) struct Common {
    pub(crate) device: Arc<Device>,
    pub(crate) completions: GenericCompletionQueue,
    pub(crate) counts: Arc<Counts>,
    /// Requests that a send queue takes.
    pub(crate) depth: u32,
}

/// A batch, or the rest of one, that is not posted yet.
struct Job {
    flight: usize,
    cursor: Cursor,
    left: usize,
}

/// Requests of a batch that were posted together.
struct Piece {
    flight: usize,
    from: Cursor,
    first: u64,
    count: usize,
    /// Does the batch end with it?
    last: bool,
    /// The client keeps the fences, and nothing may follow before it has completed.
    alone: bool,
}

enum State {
    Down,
    Dialing(Pair, Pending),
    Up(Pair, Target),
    Ended(FabricError),
}

/// The connection.
pub(crate) struct Lane {
    // The queue pair is dropped before the memory that it writes to.
    state: State,
    scratch: Option<Scratch>,
    place: usize,
    node: NodeId,
    /// Number of the queue pair: identifies completions of an earlier one.
    turn: u64,
    /// Requests posted on this queue pair, and those that have completed.
    posted: u64,
    completed: u64,
    pieces: VecDeque<Piece>,
    waiting: VecDeque<Job>,
    /// Requests that were queued since the last flush.
    collected: usize,
    /// Failed in the queue; the control channel is asked why.
    failed: Vec<(usize, FabricError)>,
    generation: u64,
}

/// Fields of a completion's id: the lane, its turn, the number in its queue.
const ORDINAL_BITS: u32 = 40;
const TURN_BITS: u32 = 14;
/// Requests that are collected at most before a doorbell is rung: the device works on them while others are collected.
const FULL: usize = 64;
/// Bytes that travel within a request.
pub(crate) const INLINE: u32 = 64;

fn completion_id(place: usize, turn: u64, ordinal: u64) -> u64 {
    (place as u64) << (ORDINAL_BITS + TURN_BITS) | turn << ORDINAL_BITS | ordinal
}

/// The lane that a completion belongs to.
pub(crate) fn place_of(id: u64) -> usize {
    (id >> (ORDINAL_BITS + TURN_BITS)) as usize
}

impl Lane {
    pub(crate) fn new(place: usize, control: &Control) -> Self {
        Lane {
            state: State::Down,
            scratch: None,
            place,
            node: control.node(),
            turn: 0,
            posted: 0,
            completed: 0,
            pieces: VecDeque::new(),
            waiting: VecDeque::new(),
            collected: 0,
            failed: Vec::new(),
            generation: control.generation(),
        }
    }

    /// Does nothing wait for time or for the control channel?
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.failed.is_empty() && !matches!(self.state, State::Dialing(..))
    }

    /// Has the control channel changed since it was last checked?
    pub(crate) fn is_stale(&self, control: &Control) -> bool {
        self.generation != control.generation()
    }

    /// Queues the verbs of a batch to this node: `requests` of them, at least one. They are posted by
    /// [`advance`](Self::advance), and now if that is not worth waiting for.
    pub(crate) fn enqueue(
        &mut self,
        common: &Common,
        control: &Control,
        flights: &mut Inflight,
        flight: usize,
        requests: usize,
    ) {
        self.waiting.push_back(Job { flight, cursor: Cursor::default(), left: requests });
        self.collected += requests;
        if self.collected >= FULL || !matches!(self.state, State::Up(..)) {
            self.advance(common, control, flights);
        }
    }

    /// Does all that can be done now.
    pub(crate) fn advance(&mut self, common: &Common, control: &Control, flights: &mut Inflight) {
        self.collected = 0;
        self.watch(control, common, flights);
        self.poll_dialing(common, control, flights);
        if matches!(self.state, State::Down) && !(self.waiting.is_empty() && self.failed.is_empty()) {
            self.dial(common, control, flights);
        }
        self.fill(common, control, flights);
        if let State::Ended(error) = &self.state {
            let error = error.clone();
            self.fail_all(&error, flights);
        }
    }

    /// Drops the queue pair if the control connection has ended, since it was attached over that.
    fn watch(&mut self, control: &Control, common: &Common, flights: &mut Inflight) {
        let generation = control.generation();
        if generation == self.generation {
            return;
        }
        self.generation = generation;
        match control.link() {
            Link::Ended(error) => {
                self.break_off("the connection ended");
                self.end(error.of_node(self.node), flights);
            }
            Link::Up | Link::Down(_) if matches!(self.state, State::Up(..)) => {
                self.break_off("the control connection was lost");
                self.dial(common, control, flights);
            }
            // The answer that is waited for has become an error.
            Link::Up | Link::Down(_) => {}
        }
    }

    fn dial(&mut self, common: &Common, control: &Control, flights: &mut Inflight) {
        let made = self.fresh_pair(common);
        match made {
            Ok(pair) => {
                let hello = Hello::new(&pair.describe(&common.device));
                self.state = State::Dialing(pair, control.attach(hello.as_bytes().to_vec()));
                self.poll_dialing(common, control, flights);
            }
            Err(error) => {
                self.state = State::Down;
                self.fail_all(&error, flights);
            }
        }
    }

    fn fresh_pair(&mut self, common: &Common) -> Result<Pair, FabricError> {
        if self.scratch.is_none() {
            self.scratch = Some(Scratch::new(&common.device, common.depth as usize)?);
        }
        Pair::new(&common.device, &common.completions, common.depth, INLINE)
    }

    /// Checks whether the control channel has answered the attach.
    fn poll_dialing(&mut self, common: &Common, control: &Control, flights: &mut Inflight) {
        let State::Dialing(_, pending) = &self.state else { return };
        let Some(answer) = pending.poll() else { return };
        let State::Dialing(mut pair, _) = std::mem::replace(&mut self.state, State::Down) else { return };
        let answer = match answer {
            Ok(Message::Attached(bytes)) => Ok(bytes),
            Ok(_) => Err(FabricError::Settings("RDMA verbs: the memory node gave a wrong answer".to_owned())),
            Err(error) => Err(self.refusal(error, control)),
        };
        let connected = answer.and_then(|bytes| {
            let (peer, reply) = Reply::parse(&bytes)?;
            pair.ask(&common.device, &peer)?;
            Ok(Target { start: reply.start.get(), key: reply.key.get() })
        });
        match connected {
            Ok(target) => {
                self.turn = (self.turn + 1) % (1 << TURN_BITS);
                (self.posted, self.completed) = (0, 0);
                self.state = State::Up(pair, target);
                // What failed did so because the connection was lost, and not for a reason that lasts.
                for (flight, error) in std::mem::take(&mut self.failed) {
                    flights.part_ended(flight, Err(error));
                }
            }
            Err(error) => {
                drop(pair);
                if matches!(control.link(), Link::Ended(_)) {
                    self.end(error, flights);
                } else {
                    self.fail_all(&error, flights);
                }
            }
        }
    }

    /// Returns why there is no connection: a reason that ended the link for good comes first.
    fn refusal(&self, error: ControlError, control: &Control) -> FabricError {
        match control.link() {
            Link::Ended(why) => why.of_node(self.node),
            Link::Up | Link::Down(_) => error.of_node(self.node),
        }
    }

    fn end(&mut self, error: FabricError, flights: &mut Inflight) {
        self.fail_all(&error, flights);
        self.state = State::Ended(error);
    }

    /// Fails all batches that wait. Those that failed in the queue keep their own reason, unless the client was
    /// revoked.
    fn fail_all(&mut self, error: &FabricError, flights: &mut Inflight) {
        let revoked = matches!(error, FabricError::Revoked);
        for (flight, own) in std::mem::take(&mut self.failed) {
            flights.part_ended(flight, Err(if revoked { error.clone() } else { own }));
        }
        for job in std::mem::take(&mut self.waiting) {
            flights.part_ended(job.flight, Err(error.clone()));
        }
    }

    fn note_failed(&mut self, flight: usize, why: &str) {
        if !self.failed.iter().any(|(failed, _)| *failed == flight) {
            self.failed.push((flight, FabricError::Unreachable { node: self.node, reason: why.to_owned() }));
        }
    }

    /// Drops the queue pair. Batches that were in it have failed; those that were not posted yet are not concerned.
    fn break_off(&mut self, why: &str) {
        self.state = State::Down;
        for piece in std::mem::take(&mut self.pieces) {
            self.note_failed(piece.flight, why);
        }
        // One may be half in the queue, or have been until now.
        if self.waiting.front().is_some_and(|job| job.cursor != Cursor::default())
            && let Some(job) = self.waiting.pop_front()
        {
            self.note_failed(job.flight, why);
        }
    }

    /// Handles a failed request, which breaks the queue pair.
    pub(crate) fn broke(&mut self, why: &str, common: &Common, control: &Control, flights: &mut Inflight) {
        self.break_off(why);
        self.advance(common, control, flights);
    }

    /// Does this completion belong to the queue pair that there is now?
    pub(crate) fn owns(&self, id: u64) -> bool {
        matches!(self.state, State::Up(..)) && id >> ORDINAL_BITS & ((1 << TURN_BITS) - 1) == self.turn
    }

    /// Requests up to this one have completed: their results are there.
    pub(crate) fn complete(&mut self, id: u64, flights: &mut Inflight) {
        let ordinal = id & ((1 << ORDINAL_BITS) - 1);
        while let Some(piece) = self.pieces.front().filter(|piece| piece.first <= ordinal) {
            let end = piece.first + piece.count as u64;
            self.completed = self.completed.max(end);
            if let (Some(chain), Some(scratch)) = (flights.chain(piece.flight), &self.scratch) {
                let (mut cursor, mut number) = (piece.from, piece.first);
                while number < end
                    && let Some(request) = next_request(chain, self.node, &mut cursor)
                {
                    if let Some(VerbKind::Cas { old, .. } | VerbKind::Faa { old, .. }) =
                        chain.get_mut(request.verb).map(|verb| &mut verb.kind)
                    {
                        *old = scratch.get(number);
                    }
                    number += 1;
                }
            }
            if piece.last {
                flights.part_ended(piece.flight, Ok(()));
            }
            self.pieces.pop_front();
        }
    }

    /// Posts as much as there is room for, with one doorbell.
    fn fill(&mut self, common: &Common, control: &Control, flights: &mut Inflight) {
        if let Err(why) = self.ring(common, flights) {
            // Some of its requests may have been posted; `break_off` sees by its cursor that it has begun.
            self.broke(&format!("its requests cannot be posted: {why}"), common, control, flights);
        }
    }

    #[allow(unsafe_code)]
    fn ring(&mut self, common: &Common, flights: &mut Inflight) -> Result<(), String> {
        let (State::Up(pair, target), Some(scratch)) = (&mut self.state, &self.scratch) else { return Ok(()) };
        let fences = common.device.keeps_fences();
        let (mut queue, mut guard, begun) = (Some(&mut pair.queue), None, self.posted);
        while let Some(job) = self.waiting.front_mut() {
            let (mut count, mut alone) = (job.left.min(common.depth as usize), false);
            let chain = flights.chain(job.flight).ok_or("the batch is gone")?;
            if !fences {
                let part = next_part(chain, self.node, job.cursor, count);
                if part.fenced && !self.pieces.is_empty() || self.pieces.iter().any(|piece| piece.alone) {
                    break;
                }
                (count, alone) = (part.count, part.writes);
            }
            let room = u64::from(common.depth) - (self.posted - self.completed);
            if count as u64 > room {
                break;
            }
            if let Some(queue) = queue.take() {
                guard = Some(queue.start_post_send());
            }
            let Some(guard) = &mut guard else { break };
            let (from, first) = (job.cursor, self.posted);
            let id = completion_id(self.place, self.turn, first);
            let manner = Manner { id, ordinal: first, inline: INLINE as usize, target: *target, scratch, fences };
            // SAFETY: the batch stays in `flights`, whose buffers nothing touches, until `part_ended` was called
            // for this lane. That happens once its last piece has completed, or after `break_off`, which drops the queue
            // pair first; and a transport that is dropped drops its lanes before its flights. `scratch` is dropped
            // behind the queue pair (field order), and is never replaced.
            unsafe { append_batch(guard, chain, self.node, &mut job.cursor, count, &manner) }?;
            self.posted += count as u64;
            job.left -= count;
            let last = job.left == 0;
            self.pieces.push_back(Piece { flight: job.flight, from, first, count, last, alone });
            if last {
                self.waiting.pop_front();
            }
        }
        let Some(guard) = guard else { return Ok(()) };
        guard.post().map_err(|error| error.to_string())?;
        common.counts.posted((self.posted - begun) as usize);
        Ok(())
    }

    /// Drops the queue pair and tells the node to drop its half.
    pub(crate) fn leave(&mut self, common: &Common, control: &Control) {
        if let State::Up(pair, _) | State::Dialing(pair, _) = std::mem::replace(&mut self.state, State::Down) {
            let ours = pair.describe(&common.device).queue_pair;
            drop(pair);
            control.detach(ours.to_le_bytes().to_vec());
        }
    }
}
