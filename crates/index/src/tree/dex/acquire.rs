//! Becoming the owner of a partition: of one that nobody owns, of one whose owner has crashed, or of one whose owner gives it
//! away.
//!
//! Invariant: D2 in `docs/protocols/dex.md`. One operation of a compute node at a time does this.

use super::map::{MOST, Map, is_later, place_of, word_after};
use super::ownership::Record;
use super::priority::{Asking, PRIORITY};
use super::proposal::{
    ACCEPTED, MAP, NONE, PROPOSAL, Patience, Proposal, RECORD_LEN, REFUSED, UNKNOWN, lock_of, lock_words,
};
use super::{Dex, Foreign, Moves};
use crate::IndexError;
use crate::backoff::Backoff;
use crate::maintenance::{first_word, read_word};
use crate::marks::mark;
use crate::recovery::{HeldLock, acquire, claim_and_recover};
use crate::tree::change::Puts;
use crate::tree::faults::{Fault, planted};
use crate::tree::inner::Side;
use crate::tree::local_locks::{Arrival, Turn};
use farindex_fabric::{RemotePtr, Span};
use farindex_pool::layout::HOME;
use farindex_pool::{Intent, Pin, PoolError};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// First word of the intent of a client that holds its owner record.
const OWN: u64 = 1;
/// First word of the intent of a client that takes over what a crashed one has owned.
pub(super) const TAKE_OVER: u64 = 2;
/// Least time between two looks at the queue for a turn.
const LEAST_WAIT: Duration = Duration::from_millis(1);

impl Dex {
    /// Waits for the turn at a leaf. Nothing may be pinned, and the caller must have no other turn. An operation that was
    /// cancelled in the middle of a write has its turn for ever: after two leases that is an error.
    pub(super) async fn turn(&self, at: RemotePtr) -> Result<Turn<'_, ()>, IndexError> {
        let mut waiting = match self.own.turns.arrive(at, 0) {
            Arrival::Turn(turn) => return Ok(turn),
            Arrival::Wait(waiting) => waiting,
        };
        let (endpoint, lease) = (self.session.endpoint(), self.session.pool().lease());
        let limit = (lease * 2).max(LEAST_WAIT);
        let granted = loop {
            let (began, mut limit_passed) = (endpoint.now(), pin!(endpoint.sleep(limit)));
            let granted = poll_fn(|cx| match waiting.poll(cx) {
                Poll::Ready(granted) => Poll::Ready(Some(granted)),
                Poll::Pending => limit_passed.as_mut().poll(cx).map(|()| None),
            });
            let granted = granted.await;
            // If this process was stopped meanwhile, the operation that has the turn had no time either.
            if granted.is_some() || endpoint.now().saturating_sub(began) <= limit + lease {
                break granted;
            }
        };
        match granted.or_else(|| waiting.leave()) {
            Some((turn, _)) => Ok(turn),
            None => {
                let holder = "an operation of this compute node, which was cancelled".to_owned();
                Err(IndexError::Locked { at, waited_ms: limit.as_millis() as u64, holder })
            }
        }
    }
    /// Waits for the turn to change what this compute node owns. Each operation that has it waits for a limited time. Nobody leaves
    /// the queue to begin again at its end: then others could always be first.
    pub(super) async fn turn_to_acquire(&self) -> Turn<'_, ()> {
        match self.own.turns.arrive(self.tree().anchor, 0) {
            Arrival::Turn(turn) => turn,
            Arrival::Wait(mut waiting) => poll_fn(|cx| waiting.poll(cx)).await.0,
        }
    }

    /// Makes this compute node the owner of the partition that a key belongs to. Nothing may be pinned.
    pub(super) async fn acquire(&self, key: &[u8]) -> Result<(), IndexError> {
        let mut asking = self.begin_to_ask();
        let acquired = self.acquire_as(key, &mut asking).await;
        let ended = self.end_priority(asking).await;
        acquired.and(ended)
    }

    async fn acquire_as(&self, key: &[u8], asking: &mut Asking) -> Result<(), IndexError> {
        let (mut backoff, mut full) = (Backoff::default(), 0);
        loop {
            let turn = self.turn_to_acquire().await;
            let round = self.acquire_once(key, &mut backoff, asking).await;
            drop(turn);
            match round {
                Ok(true) => return Ok(()),
                Ok(false) => drop(backoff.wait(&self.session).await),
                Err(error) => self.tree().wait_for_room(&mut full, error).await?,
            }
        }
    }

    /// Makes one attempt; returns whether this compute node is the owner now.
    async fn acquire_once(&self, key: &[u8], backoff: &mut Backoff, asking: &mut Asking) -> Result<bool, IndexError> {
        let pin = self.tree().pin(self.tree().maintenance()).await?;
        self.settle_pending(&pin, backoff).await?;
        let ((word, map), first) = self.map_and_priority(pin.span()).await?;
        let me = self.own_record(&pin).await?;
        let (partition, high) = map.find(key);
        let (owner, whole) = (partition.owner(), (&*partition.low, high));
        if owner == me {
            return Ok(true);
        }
        let lock = if owner.is_null() { None } else { Some(read_word(pin.span(), owner).await?) };
        let (free, held) = lock_words(self.tree().tag, owner);
        match lock {
            // The word is written anew only after the map has changed.
            Some(lock) if lock != free && lock != held => return Ok(false),
            Some(lock) if lock == held => {}
            _ => {
                mark!("dex: partition without an owner was taken");
                let next = map.give(word, whole, me);
                return self.install(&pin, (word, &map), next).await;
            }
        }
        let Some(alive) = self.take_over(&pin, owner).await? else { return Ok(false) };
        if self.config.foreign == Foreign::Refuse {
            let holder = farindex_pool::intent::holders(&self.session, pin.span(), owner).await?;
            return Err(IndexError::NotOwner { holder });
        }
        if !self.goes_first(&pin, me, first, asking).await? {
            return Ok(false);
        }
        let wanted = self.wanted(&pin, key, whole).await?;
        let range = wanted.as_ref().map_or(whole, |(low, high)| (&**low, high.as_deref()));
        let next = map.give(word, range, me);
        let proposal = match self.propose(&pin, owner, (word, &map), next).await? {
            Ok(proposal) => proposal,
            Err(ahead) => {
                mark!("dex: another client's proposal is ahead");
                check_owner(&pin, backoff, alive, ahead).await?;
                return Ok(false);
            }
        };
        self.await_answer(&pin, self.pending(proposal), backoff).await?;
        // Also where the gate is closed: the operation that waits at the gate begins sooner than one that asks again.
        Ok(self.own.map().1.find(key).0.owner() == me)
    }

    /// Waits for the answer to a proposal whose operation has not waited for it.
    pub(super) async fn settle_pending(&self, pin: &Pin<'_>, backoff: &mut Backoff) -> Result<(), IndexError> {
        let Some(proposal) = self.own.take_pending() else { return Ok(()) };
        mark!("dex: waited for the answer to an earlier proposal");
        let to = proposal.to;
        let pending = self.pending(proposal);
        match self.latest_map(pin.span()).await {
            Ok((_, map)) if map.is_member(to) => self.await_answer(pin, pending, backoff).await,
            // The owner is there no more.
            Ok((counts, _)) => {
                self.settle(pin, pending, None, counts);
                Ok(())
            }
            Err(IndexError::Dropped) => self.settle_dropped(pin, pending, None).await,
            Err(error) => Err(error),
        }
    }

    /// READs the map, if it is not the one that is known.
    pub(super) async fn latest_map(&self, span: &Span) -> Result<(u64, Arc<Map>), IndexError> {
        Ok(self.map_and_priority(span).await?.0)
    }

    /// As [`Self::latest_map`], with the anchor's word of priority.
    async fn map_and_priority(&self, span: &Span) -> Result<((u64, Arc<Map>), u64), IndexError> {
        loop {
            let anchor = span.read(self.tree().anchor, PRIORITY as usize + 8).await?;
            let &[tag, _, word, _, first] = anchor.words() else { return Err(IndexError::Dropped) };
            if tag != self.tree().tag {
                return Err(IndexError::Dropped);
            }
            let known = self.own.map();
            if known.0 == word {
                return Ok((known, first));
            }
            if let Some(map) = Map::read(span, self.tree().tag, word).await? {
                let map = Arc::new(map);
                self.own.learn(word, &map);
                return Ok(((word, map), first));
            }
            // Under the pin its memory has no other use, and a word that was sealed meanwhile comes with the mark of a drop.
            let again = span.read(self.tree().anchor, MAP as usize + 8).await?;
            if anchor.words().starts_with(again.words()) {
                return Err(IndexError::corrupt(place_of(word), "the map of partitions has a wrong checksum"));
            }
        }
    }

    /// Returns this compute node's owner record; makes one if there is none.
    pub(super) async fn own_record(&self, pin: &Pin<'_>) -> Result<RemotePtr, IndexError> {
        if let Some(record) = self.own.record() {
            return Ok(record);
        }
        let span = pin.span();
        let at = self.session.alloc_now(span, HOME, RECORD_LEN).await?;
        let (free, held) = lock_words(self.tree().tag, at);
        let mut words = [0; RECORD_LEN as usize / 8];
        words[0] = free;
        let cell = match self.session.intent_cell(HOME).await {
            Ok(cell) => cell,
            Err(error) => {
                self.session.discard(at, RECORD_LEN);
                return Err(error.into());
            }
        };
        span.write(at, self.session.endpoint().buf_from_words(&words)).await?;
        let intent = Intent { index: self.uid, lock: lock_of(at), what: [OWN, 0, 0, 0] };
        match acquire(span, &cell, &intent, (free, held), |_| ()).await? {
            Ok(_) => {}
            Err(_) => return Err(IndexError::corrupt(at, "a new owner record is not free")),
        }
        self.own.set_record(Record { at, intent: cell.into_transfer() });
        Ok(at)
    }

    /// What of a partition to ask its owner for; `None`: all of it.
    async fn wanted(
        &self,
        pin: &Pin<'_>,
        key: &[u8],
        (low, high): (&[u8], Option<&[u8]>),
    ) -> Result<Option<(Vec<u8>, Option<Vec<u8>>)>, IndexError> {
        let level = match self.config.moves {
            Moves::Partition => return Ok(None),
            Moves::Subtree => 1,
            Moves::Leaf => 0,
        };
        if self.own.map().1.partitions().count() >= MOST {
            return Ok(None);
        }
        let found = self.tree().descend(pin.span(), (key, Side::At), level, false, &mut Vec::new()).await?;
        let Some((node_low, node_high)) = found.ok().and_then(|found| found.range()) else { return Ok(None) };
        let from = node_low.to_vec().max(low.to_vec());
        let to = match (node_high.map(|key| key.to_vec()), high) {
            (Some(a), Some(b)) => Some(a.min(b.to_vec())),
            (a, b) => a.or(b.map(<[u8]>::to_vec)),
        };
        // A copy of an inner node may be old.
        Ok((*from <= *key && to.as_ref().is_none_or(|to| **to > *key)).then_some((from, to)))
    }

    /// Writes a map, and makes it the one that counts if `base` still is. Returns whether it is.
    pub(super) async fn install(&self, pin: &Pin<'_>, base: (u64, &Map), next: Map) -> Result<bool, IndexError> {
        let (span, (word, map)) = (pin.span(), base);
        let (next, gone) = self.without_gone(span, next).await?;
        let encoded = next.encode()?;
        let len = Map::block_len(&encoded);
        let at = self.session.alloc_now(span, HOME, len).await?;
        let new = word_after(word, at);
        self.own.publish();
        let mut batch = span.batch();
        batch.write(at, Map::block(self.session.endpoint(), self.tree().tag, new, &encoded));
        let installed = batch.cas(self.tree().anchor.add(MAP), word, new);
        let installed = batch.post().await?.old(installed) == word;
        if !installed {
            self.own.decided();
            self.session.discard(at, len);
            return Ok(false);
        }
        self.own.acquired(self.session.endpoint().now());
        self.own.learn(new, &Arc::new(next));
        self.own.decided();
        self.retire_map(pin, base_of(word, map)?);
        gone.into_iter().for_each(|record| pin.retire(record, RECORD_LEN));
        Ok(true)
    }

    pub(super) fn retire_map(&self, pin: &Pin<'_>, (at, len): (RemotePtr, u64)) {
        if at.is_null() {
            return;
        }
        match planted(Fault::MapFreed) {
            true => self.session.discard(at, len),
            false => pin.retire(at, len),
        }
    }

    /// Drops members that own nothing and whose compute nodes have left; returns their records as well.
    async fn without_gone(&self, span: &Span, next: Map) -> Result<(Map, Vec<RemotePtr>), IndexError> {
        let me = self.own.record();
        let idle: Vec<_> = next.members().filter(|of| !next.owns(*of) && Some(*of) != me).collect();
        if idle.is_empty() {
            return Ok((next, Vec::new()));
        }
        let mut batch = span.batch();
        let records: Vec<_> = idle.iter().map(|record| batch.read(*record, PROPOSAL as usize + 8)).collect();
        let mut done = batch.post().await?;
        // Who has made a proposal to it reads it until it has an answer.
        let is_unused = |(record, words)| {
            let free = lock_words(self.tree().tag, record).0;
            (done.buf(words).words() == [free, NONE]).then_some(record)
        };
        let gone: Vec<_> = idle.into_iter().zip(records).filter_map(is_unused).collect();
        Ok((next.without(&gone), gone))
    }

    /// Takes over what the client of an owner record owns, if it has crashed. Returns the record's lock if the client may be
    /// alive.
    pub(super) async fn take_over(&self, pin: &Pin<'_>, record: RemotePtr) -> Result<Option<HeldLock>, IndexError> {
        let span = pin.span();
        let me = self.own_record(pin).await?;
        let what = [TAKE_OVER, 0, 0, 0];
        claim_and_recover(pin, self.uid, lock_of(record), what, async |_, cell| {
            mark!("dex: partitions of a crashed client were taken over");
            loop {
                let (word, map) = self.latest_map(span).await?;
                if !map.is_member(record) || self.install(pin, (word, &map), map.take_over(word, record, me)).await? {
                    break;
                }
            }
            // A client that has proposed something to the crashed one does not learn what has become of it.
            let proposal = read_word(span, record.add(PROPOSAL)).await?;
            let (free, held) = lock_words(self.tree().tag, record);
            let mut batch = span.batch();
            if proposal > REFUSED {
                batch.cas(record.add(PROPOSAL), proposal, UNKNOWN);
            }
            batch.cas(record, held, free);
            cell.clear(&mut batch);
            batch.post().await?;
            cell.cleared();
            pin.retire(record, RECORD_LEN);
            Ok(())
        })
        .await
    }

    /// Proposes a map to the owner of a partition. If another proposal is there, or the answer to one, returns that word as
    /// `Err`.
    pub(super) async fn propose(
        &self,
        pin: &Pin<'_>,
        to: RemotePtr,
        base: (u64, &Map),
        next: Map,
    ) -> Result<Result<Proposal, u64>, IndexError> {
        let (span, (word, map)) = (pin.span(), base);
        let encoded = next.encode()?;
        let len = Map::block_len(&encoded);
        let at = self.session.alloc_now(span, HOME, len).await?;
        let new = word_after(word, at);
        self.own.publish();
        let seen = Some(self.session.endpoint().now());
        let mut batch = span.batch();
        batch.write(at, Map::block(self.session.endpoint(), self.tree().tag, new, &encoded));
        let proposed = batch.cas(to.add(PROPOSAL), NONE, new);
        let ahead = batch.post().await?.old(proposed);
        if ahead != NONE {
            self.own.decided();
            self.session.discard(at, len);
            return Ok(Err(ahead));
        }
        Ok(Ok(Proposal { to, word: new, len, base: base_of(word, map)?, seen, patience: Patience::default() }))
    }

    /// Notes that the answer to a proposal is awaited.
    pub(super) fn pending(&self, proposal: Proposal) -> Pending<'_> {
        Pending { dex: self, proposal: Some(proposal) }
    }

    /// Waits until the owner has answered, has left, or has crashed. Its record was in use under this pin.
    pub(super) async fn await_answer(
        &self,
        pin: &Pin<'_>,
        mut pending: Pending<'_>,
        backoff: &mut Backoff,
    ) -> Result<(), IndexError> {
        let Some(&Proposal { to, word, len, .. }) = pending.proposal.as_ref() else { return Ok(()) };
        if Some(to) != self.own.record() {
            self.own.set_awaited(word);
        }
        loop {
            let due = backoff.wait(&self.session).await;
            let looked = self.session.endpoint().now();
            let mut batch = pin.span().batch();
            let (record, anchor) = (batch.read(to, PROPOSAL as usize + 8), batch.read(self.tree().anchor, 8));
            let mut done = batch.post().await?;
            let (record, anchor) = (done.buf(record), first_word(&done.buf(anchor)));
            let &[lock, answer] = record.words() else { return Ok(()) };
            if answer != word {
                let accepted = self.take_answer(pin, &mut pending, (to, answer)).await?;
                return match self.latest_map(pin.span()).await {
                    Ok((counts, _)) => {
                        self.settle(pin, pending, accepted, counts);
                        Ok(())
                    }
                    Err(IndexError::Dropped) => self.settle_dropped(pin, pending, accepted).await,
                    Err(error) => Err(error),
                };
            }
            pending.seen(Some(looked));
            if anchor != self.tree().tag {
                return self.settle_dropped(pin, pending, None).await;
            }
            // If the owner has left, it answers no more.
            if lock == lock_words(self.tree().tag, to).0 && pin.span().cas(to.add(PROPOSAL), word, NONE).await? == word
            {
                mark!("dex: proposal was withdrawn");
                pending.end();
                self.retire_map(pin, (place_of(word), len));
                return Ok(());
            }
            if due {
                // Otherwise it was taken over, also what was proposed; or the owner has just left.
                if let Some(alive) = self.take_over(pin, to).await?
                    && let Some(proposal) = pending.proposal.as_mut()
                {
                    proposal.patience.check(pin, alive, word).await?;
                }
            }
        }
    }

    /// Takes the answer to a proposal from the owner's record, if it is certain that this is the answer to that one (D10). Returns
    /// whether it says that the proposal was accepted.
    pub(super) async fn take_answer(
        &self,
        pin: &Pin<'_>,
        pending: &mut Pending<'_>,
        (to, answer): (RemotePtr, u64),
    ) -> Result<Option<bool>, IndexError> {
        let now = self.session.endpoint().now();
        let seen = pending.proposal.as_ref().and_then(|proposal| proposal.seen);
        if !(ACCEPTED..=REFUSED).contains(&answer)
            || seen.is_none_or(|seen| now.saturating_sub(seen) >= self.session.pool().lease())
        {
            mark!("dex: nobody knows whose answer it is");
            return Ok(None);
        }
        pending.seen(None);
        pin.span().cas(to.add(PROPOSAL), answer, NONE).await?;
        Ok((answer != UNKNOWN).then_some(answer == ACCEPTED))
    }

    /// Notes what has become of a proposal, `accepted` if its answer says so; `counts` is the word of the latest map, which was READ
    /// when the proposal was at the owner's record no more.
    fn settle(&self, pin: &Pin<'_>, mut pending: Pending<'_>, accepted: Option<bool>, counts: u64) {
        let Some(Proposal { word, len, base, .. }) = pending.end() else { return };
        let refused = counts != word && !is_later(counts, word);
        match accepted.or((counts == word || refused).then_some(!refused)) {
            Some(true) => {
                self.retire_map(pin, base);
                self.own.acquired(self.session.endpoint().now());
            }
            Some(false) => {
                mark!("dex: proposal was refused");
                self.retire_map(pin, (place_of(word), len));
            }
            // One of the two maps is not in use, and nobody knows which. Its memory is left to an audit.
            None => {}
        }
    }

    /// Takes over what crashed clients own; returns from how many.
    pub(super) async fn take_over_all(&self) -> Result<u64, IndexError> {
        let pin = self.tree().pin(self.tree().maintenance()).await?;
        let (_, map) = self.latest_map(pin.span()).await?;
        drop(pin);
        let others: Vec<_> = map.members().filter(|record| Some(*record) != self.own.record()).collect();
        if others.is_empty() {
            return Ok(0);
        }
        let mut taken = 0;
        let turn = self.turn_to_acquire().await;
        for record in others {
            let pin = self.tree().pin(self.tree().maintenance()).await?;
            let (_, map) = self.latest_map(pin.span()).await?;
            let held = lock_words(self.tree().tag, record).1;
            if map.is_member(record) && read_word(pin.span(), record).await? == held {
                match self.take_over(&pin, record).await {
                    // The next one that needs it takes it over.
                    Err(IndexError::Pool(PoolError::Full { .. })) => {
                        mark!("dex: no room to take a partition over");
                    }
                    held => taken += u64::from(held?.is_none()),
                }
            }
        }
        drop(turn);
        Ok(taken)
    }

    /// Says of everything that this compute node owns that no leaf is in the middle of a change.
    pub(super) async fn mark_clean(&self) -> Result<(), IndexError> {
        let Some(me) = self.own.record() else { return Ok(()) };
        let is_clean = |map: &Map| map.partitions().all(|(part, _)| part.owner() != me || !part.unclean);
        // This compute node has learned each map that gave it something.
        if is_clean(&self.own.map().1) {
            return Ok(());
        }
        let turn = self.turn_to_acquire().await;
        let pin = self.tree().pin(self.tree().maintenance()).await?;
        loop {
            let (word, map) = self.latest_map(pin.span()).await?;
            if is_clean(&map) || self.install(&pin, (word, &map), map.clean(word, me)).await? {
                drop((pin, turn));
                return Ok(());
            }
        }
    }
}

/// Fails if an owner that is alive has not answered for so long that it cannot: two leases with the same proposal at its record,
/// three with the same answer. An answer that its proposer has not taken, because it has crashed, is removed by the owner after
/// a lease; if the owner crashes just before that, another lease passes until it is known to have crashed.
pub(super) async fn check_owner(
    pin: &Pin<'_>,
    backoff: &mut Backoff,
    alive: HeldLock,
    at_record: u64,
) -> Result<(), IndexError> {
    let leases = if at_record > REFUSED { 2 } else { 3 };
    backoff.check_answerer(pin, alive, (at_record, leases)).await
}

/// The block of the map of this word, and its bytes.
fn base_of(word: u64, map: &Map) -> Result<(RemotePtr, u64), IndexError> {
    Ok((place_of(word), Map::block_len(&map.encode()?)))
}

/// A proposal whose answer is awaited. The next operation goes on waiting for it if this one fails or is dropped.
pub(super) struct Pending<'d> {
    dex: &'d Dex,
    pub(super) proposal: Option<Proposal>,
}

impl Pending<'_> {
    /// It is known whether the proposed map counts, and if it does, the latest map is known too.
    pub(super) fn end(&mut self) -> Option<Proposal> {
        let proposal = self.proposal.take()?;
        self.dex.own.decided();
        Some(proposal)
    }
    /// Notes when the proposal was looked for, and then found at the record.
    fn seen(&mut self, at: Option<Duration>) {
        if let Some(proposal) = self.proposal.as_mut() {
            proposal.seen = at;
        }
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.dex.own.set_awaited(NONE);
        if let Some(proposal) = self.proposal.take() {
            self.dex.own.set_pending(proposal);
        }
    }
}
