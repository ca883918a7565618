//! Owner records, and proposals: how a partition changes its owner while that is alive.
//!
//! ```text
//! owner record   word 0   lock: magic (free), magic + 1 (held)
//!                word 1   0: no proposal; 1 to 3: the answer to the last one; otherwise the word of the proposed map
//!                then     zeros up to 64 bytes
//! ```
//!
//! The owner answers with its heartbeat ([`OnTick`]).

use super::map::Map;
use super::ownership::Ownership;
use crate::IndexError;
use crate::maintenance::first_word;
use crate::marks::mark;
use crate::recovery::{HeldLock, check_timeout_of};
use crate::tree::faults::{Fault, planted};
use crate::tree::node::magic;
use farindex_fabric::{Endpoint, FabricError, OpKind, RemotePtr, Span};
use farindex_pool::{Lock, LockTimeout, OnTick, Pin, Waited};
use std::future::Future;
use std::pin::Pin as Pinned;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Bytes of an owner record.
pub(super) const RECORD_LEN: u64 = 64;
/// Word of a record with the proposal.
pub(super) const PROPOSAL: u64 = 8;
/// Word of the anchor with the map.
pub(super) const MAP: u64 = 16;
/// No proposal.
pub(super) const NONE: u64 = 0;
/// The proposal was accepted.
pub(super) const ACCEPTED: u64 = 1;
/// It was accepted or not: a verb has failed, and the map is another one by now.
pub(super) const UNKNOWN: u64 = 2;
/// It was refused: it follows another map than the one that counts.
pub(super) const REFUSED: u64 = 3;

/// A map that this compute node has proposed to an owner, and whose answer it does not know yet.
pub(super) struct Proposal {
    /// The owner's record.
    pub(super) to: RemotePtr,
    /// The word of the proposed map, and the bytes of its block.
    pub(super) word: u64,
    pub(super) len: u64,
    /// The block of the map that it follows, and its bytes.
    pub(super) base: (RemotePtr, u64),
    /// When it was posted, or looked for, and then found at the record; `None` if its answer may have been taken (D10).
    pub(super) seen: Option<Duration>,
    /// What the operations that have waited for the answer, one after the other, know of the time that this takes.
    pub(super) patience: Patience,
}

/// Measures for how long an owner that is alive has not answered one proposal, whichever operations have waited for that: each of
/// them would else wait for two leases more, and others behind it (bug 189).
#[derive(Default)]
pub(super) struct Patience {
    waited: Waited,
    timeout: LockTimeout,
}

impl Patience {
    /// Fails if the owner has not answered for two leases.
    pub(super) async fn check(&mut self, pin: &Pin<'_>, alive: HeldLock, word: u64) -> Result<(), IndexError> {
        let session = pin.session();
        if self.waited.look(session).is_zero() {
            // Nobody has looked for a lease.
            self.timeout = LockTimeout::default();
        }
        check_timeout_of(session, pin.span(), &mut self.timeout, (alive, word), 2).await
    }
}

/// The lock of an owner record.
pub(super) fn lock_of(record: RemotePtr) -> Lock {
    Lock { at: record, mask: 1 }
}

/// The lock words of an owner record: free, held.
pub(super) fn lock_words(tag: u64, record: RemotePtr) -> (u64, u64) {
    let free = magic(tag, record);
    (free, free | 1)
}

impl Ownership {
    /// Answers a proposal, if there is one.
    async fn answer(&self, endpoint: &Endpoint) -> Result<(), IndexError> {
        let Some(answering) = self.answering(endpoint) else { return Ok(()) };
        let record = answering.record;
        let span = endpoint.span(OpKind::Maintenance);
        let mut batch = span.batch();
        let (proposal, anchor) = (batch.read(record.add(PROPOSAL), 8), batch.read(self.anchor, 8));
        let mut done = batch.post().await?;
        let (proposal, anchor) = (first_word(&done.buf(proposal)), done.buf(anchor));
        if first_word(&anchor) != self.tag && !planted(Fault::DropUnseen) {
            // The index was dropped: the record has another use by now, or will have. Operations that wait learn of it, too.
            mark!("dex: heartbeat found the index dropped");
            self.end_answer();
            self.open();
            return Ok(());
        }
        let tried = self.is_in_answer(proposal);
        if !tried {
            self.end_answer();
        }
        if proposal <= REFUSED {
            self.open();
            let since = Duration::from_nanos(self.answered_at.load(Ordering::Relaxed));
            if proposal != NONE && endpoint.now().saturating_sub(since) > self.lease {
                mark!("dex: an answer that nobody has taken was removed");
                span.cas(record.add(PROPOSAL), proposal, NONE).await?;
            }
            return Ok(());
        }
        let Some(client) = self.client() else { return Ok(()) };
        let session = client.session(endpoint.clone());
        let pin = session.pin(span)?;
        let span = pin.span();
        let anchor = span.read(self.anchor, MAP as usize + 8).await?;
        let &[tag, _, word] = anchor.words() else { return Ok(()) };
        if tag != self.tag && !planted(Fault::DropUnseen) {
            // As above. If the index is there now, the anchor and the record are there as long as the pin stands.
            self.end_answer();
            self.open();
            return Ok(());
        }
        let Some(next) = Map::read(span, self.tag, proposal).await? else {
            // It is damaged.
            self.end_answer();
            return Ok(());
        };
        let next = Arc::new(next);
        // An earlier heartbeat may have carried it out without learning of it.
        let done_before = word == proposal;
        if next.base != word && !done_before {
            if tried {
                // It may have counted, and others have changed the map since. Whatever it has given away is to be known before
                // operations begin again (bug 223). Where the map that counts is damaged, the proposal itself says what that is.
                let latest = Map::read(span, self.tag, word).await?;
                let (known, latest) = latest.map_or((proposal, next), |latest| (word, Arc::new(latest)));
                mark!("dex: what a heartbeat has given away was learned of by a later map");
                self.learn(known, &latest);
            }
            // As long as it cannot give anything away, it is not to look like an owner that answers (bug 219).
            if self.leaves_standing(proposal, endpoint.now()) && !self.drain(endpoint).await {
                mark!("dex: held up, so a proposal is not refused");
                self.open();
                return Ok(());
            }
            mark!("dex: proposal follows another map");
            self.open();
            return self.reply(span, record, proposal, if tried { UNKNOWN } else { REFUSED }).await;
        }
        // It may keep what it has, unless it is giving something away already. Then operations must be able to begin, to use what
        // it has got: an earlier heartbeat may have stopped them.
        if !done_before && !tried && self.keeps(endpoint, word, &next, record) {
            self.open();
            return Ok(());
        }
        if !self.drain(endpoint).await {
            mark!("dex: operations are in progress on what is to be given away");
            return Ok(());
        }
        let gone = self.dirty.list(|low, leaf| !next.has_whole(record, (low, leaf.high.as_deref())));
        if !planted(Fault::BoundBeforeFlush) {
            self.flush_closed(endpoint, &gone).await?;
            self.forget_foreign(&next, record);
        }
        self.begin_answer(proposal);
        // An earlier heartbeat that was dropped may have posted the same CAS, and it lands now.
        let given = done_before || [word, proposal].contains(&span.cas(self.anchor.add(MAP), word, proposal).await?);
        if given {
            mark!("dex: partition was given away");
            self.learn(proposal, &next);
        }
        let replied = if planted(Fault::BoundBeforeFlush) {
            // The next owner begins meanwhile.
            let replied = self.reply(span, record, proposal, if given { ACCEPTED } else { REFUSED }).await;
            self.flush_closed(endpoint, &gone).await?;
            self.forget_foreign(&next, record);
            Some(replied)
        } else {
            None
        };
        self.open();
        match replied {
            Some(replied) => replied,
            None => self.reply(span, record, proposal, if given { ACCEPTED } else { REFUSED }).await,
        }
    }

    /// Does the owner keep for a while what it has got, although a proposal takes something away (D6, D7)? `counts` is the word of
    /// the map that the proposal follows.
    fn keeps(&self, endpoint: &Endpoint, counts: u64, next: &Map, record: RemotePtr) -> bool {
        let now = endpoint.now();
        if self.is_unread(now, counts) {
            mark!("dex: an operation has yet to learn of what it has got");
            return true;
        }
        if self.is_fresh(now) {
            mark!("dex: an operation has yet to use what it has got");
            return true;
        }
        let for_command = self.keeps_for_command(endpoint, next, record);
        if for_command {
            mark!("dex: a command keeps what it has got");
        }
        for_command
    }

    /// Forgets the copies of leaves that are not its own any more by this map.
    fn forget_foreign(&self, next: &Map, record: RemotePtr) {
        if !planted(Fault::CopiesKept) {
            // What stays its own it may keep.
            self.cache.retain_leaves(|low, high| next.has_whole(record, (low, high)));
        }
    }

    async fn reply(&self, span: &Span, record: RemotePtr, proposal: u64, answer: u64) -> Result<(), IndexError> {
        // Also where the CAS fails. It is the time after it that counts: an answer stays for a lease (D10).
        let answered = || self.answered_at.store(span.endpoint().now().as_nanos() as u64, Ordering::Relaxed);
        answered();
        span.cas(record.add(PROPOSAL), proposal, answer).await?;
        answered();
        self.end_answer();
        Ok(())
    }
}

impl OnTick for Ownership {
    fn tick<'a>(&'a self, endpoint: &'a Endpoint) -> Pinned<Box<dyn Future<Output = Result<(), FabricError>> + 'a>> {
        Box::pin(async {
            let answered = self.answer(endpoint).await;
            for done in [answered, self.write_back_due(endpoint).await] {
                if let Err(IndexError::Fabric(error)) = done {
                    return Err(error);
                }
            }
            Ok(())
        })
    }
    fn is_done(&self) -> bool {
        self.is_ended()
    }
}
