//! A client: one compute node's (one process's) membership in a pool.
//!
//! Invariants: a client holds one slot, taken by CAS; while it lives, its heartbeat counts up and it publishes how far
//! its operations have quiesced (see [`epoch`](crate::epoch)); the slot tells everyone who it is to the fabric. The
//! operations of a client run in its [sessions](crate::Session), one for each worker thread. A slot says who holds it
//! before it counts as held: whoever arrives writes that down by CASes, which change nothing if the slot was taken back.

use crate::epoch::OldestPin;
use crate::faults::{Fault, planted};
use crate::intent::{Lock, cleared, describe, stands};
use crate::layout::{ACTIVE, CLIENT_SLOT_LEN, ClientSlot, HOME, INTENT_LEN, INTENTS, REGISTERING, header, header_word};
use crate::leaks::Leaks;
use crate::mark;
use crate::session::{RetireList, Session};
use crate::takeover::{Watch, evict};
use crate::{Pool, PoolError};
use farindex_fabric::{Buf, Endpoint, FabricError, Identity, NodeId, OpKind, RemotePtr, Span};
use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use zerocopy::FromBytes;

/// How long [`Client::close`] waits at most for other clients to quiesce. One that works does so every few milliseconds; one that
/// crashed where the fabric cannot tell would hold up the end of this program for a whole lease.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A compute node's membership in a pool. Shared by its threads.
pub struct Client {
    pool: Pool,
    identity: Identity,
    slot: u64,
    state: u64,
    /// The pool's epoch as this client last saw it.
    epoch: AtomicU64,
    heartbeat: AtomicU64,
    lost: AtomicBool,
    /// When the latest heartbeat was posted, in nanoseconds of the fabric's clock.
    beat_at: AtomicU64,
    missed_leases: AtomicU64,
    /// One tick at a time; who finds it taken goes on, because the other's tick serves it too.
    ticking: AtomicBool,
    pins: Mutex<Vec<Arc<OldestPin>>>,
    /// Sessions that were ever opened.
    opened: AtomicU64,
    /// What closed sessions could not give back themselves.
    orphans: Mutex<RetireList>,
    /// The words of all client slots when this one was taken.
    slots_before: Vec<u64>,
    /// One operation of this client in the catalog at a time.
    cataloguing: AtomicBool,
    /// This client's intent cells, for each node.
    intents: Vec<Cells>,
    /// Signs of life of the others.
    watch: Mutex<Watch>,
    /// What its threads share beside memory: see [`share`](Client::share).
    shares: Mutex<HashMap<(TypeId, u64), Weak<dyn Any + Send + Sync>>>,
}

/// The intent cells of one node: a bit for each.
#[derive(Default)]
struct Cells {
    /// In the hands of an operation.
    taken: AtomicU64,
    /// An intent stands in them that was never cleared, of a cancelled operation or of a former owner of the slot: its lock
    /// may be held still.
    stale: AtomicU64,
    /// Those of them that operations of this client have left, and not given up.
    own_stale: AtomicU64,
}

/// A flag that is up until this is dropped, as it also is when a future is cancelled.
pub(crate) struct Raised<'a>(&'a AtomicBool);

impl<'a> Raised<'a> {
    /// `None` if somebody else has raised it.
    fn raise(flag: &'a AtomicBool) -> Option<Self> {
        (!flag.swap(true, Ordering::AcqRel)).then_some(Raised(flag))
    }
}

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Who sits in a client slot, for people and checkers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientInfo {
    /// Number of the slot.
    pub slot: u64,
    /// What the slot says.
    pub record: ClientSlot,
    /// Who it is to the fabric.
    pub identity: Identity,
    /// Is it known to be gone? `None` where the fabric cannot tell.
    pub gone: Option<bool>,
}

impl Client {
    /// Takes a client slot. If all are taken, those of clients that are gone, or that give no sign of life for a lease, are
    /// taken back.
    pub async fn register(pool: &Pool, identity: Identity, endpoint: &Endpoint) -> Result<Arc<Client>, PoolError> {
        let span = endpoint.span(OpKind::Other);
        let lease = pool.lease();
        let mut watch = Watch::default();
        let mut until = None;
        loop {
            let began = endpoint.now();
            let slots = read_slots(&span, pool).await?;
            let slots = parse_slots(&slots);
            watch.observe(slots, began, endpoint.now());
            let mut raced = false;
            for (slot, seen) in (0..).zip(slots).filter(|(_, slot)| slot.vacant()) {
                let state = seen.generation().wrapping_add(1) << 8 | REGISTERING;
                if span.cas(pool.geometry(HOME).client(slot), seen.state, state).await? == seen.state
                    && let Some(epoch) = Self::settle_in(pool, identity, &span, (slot, state), *seen).await?
                {
                    let state = state & !0xFF | ACTIVE;
                    let mut slots_before: Vec<u64> = slots.iter().map(|slot| slot.state).collect();
                    slots_before[slot as usize] = state;
                    let client = Client {
                        pool: pool.clone(),
                        identity,
                        slot,
                        state,
                        epoch: AtomicU64::new(epoch),
                        heartbeat: AtomicU64::new(1),
                        lost: AtomicBool::new(false),
                        beat_at: AtomicU64::new(nanos(began)),
                        missed_leases: AtomicU64::new(0),
                        ticking: AtomicBool::new(false),
                        slots_before,
                        cataloguing: AtomicBool::new(false),
                        pins: Mutex::default(),
                        opened: AtomicU64::new(0),
                        orphans: Mutex::default(),
                        intents: pool.nodes().map(|_| Cells::default()).collect(),
                        watch: Mutex::default(),
                        shares: Mutex::default(),
                    };
                    client.inherit_intents(&span).await?;
                    return Ok(Arc::new(client));
                }
                raced = true;
            }
            if raced {
                continue;
            }
            let gone = |slot: &ClientSlot| slot.active() && pool.fabric().is_gone(&identity_of(slot)) == Some(true);
            let over = slots.iter().enumerate().filter(|(_, slot)| slot.active() || slot.registering());
            let over = over.filter(|(i, slot)| gone(slot) || watch.expired(*i, lease));
            let mut evicted = false;
            for (slot, record) in over {
                evicted |= evict(pool, &span, slot as u64, record).await?;
            }
            if evicted {
                continue;
            }
            let now = endpoint.now();
            if now > *until.get_or_insert(now + lease + lease / 8) {
                return Err(PoolError::NoClientSlot(pool.client_slots() as usize));
            }
            endpoint.sleep((lease / 16).max(Duration::from_micros(20))).await;
        }
    }

    /// Fills in a slot that this client has just won, and begins its lease; returns the epoch. `None` if the slot was taken
    /// back meanwhile.
    async fn settle_in(
        pool: &Pool,
        identity: Identity,
        span: &Span,
        (slot, state): (u64, u64),
        seen: ClientSlot,
    ) -> Result<Option<u64>, PoolError> {
        let at = pool.geometry(HOME).client(slot);
        // Until `quiesced` is set it is zero, which holds the epoch where it is: from before this client reads the epoch
        // until it has published it, G cannot pass what it read by more than one.
        let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let mine = [1, 0, identity.token, identity.pid, identity.started, wall.as_secs()];
        const SINCE: u64 = offset_of!(ClientSlot, since) as u64 / 8;
        let words = |slot: &ClientSlot| {
            let [token, pid, started] = slot.identity;
            [slot.heartbeat, slot.quiesced, token, pid, started, slot.since]
        };
        let mut seen = words(&seen);
        let epoch = loop {
            let mut batch = span.batch();
            for (i, (seen, mine)) in (1..).zip(seen.into_iter().zip(mine)) {
                // The time of day is set even where it is there already: a run whose verbs depended on it could not be repeated.
                if seen != mine || i == SINCE {
                    batch.cas(at.add(i * 8), seen, mine);
                }
            }
            let epoch = batch.read(header_word(HOME, header::EPOCH), 8);
            let again = batch.read(at, CLIENT_SLOT_LEN as usize);
            let mut done = batch.post().await?;
            let epoch = checked_epoch(first_word(&done.buf(epoch)), 1)?;
            let again = done.buf(again);
            let Some(record) = parse_slots(&again).first().filter(|record| record.state == state) else {
                return Ok(None);
            };
            seen = words(record);
            if seen == mine {
                break epoch;
            }
        };
        let mut batch = span.batch();
        batch.cas(at.add(offset_of!(ClientSlot, quiesced) as u64), 0, epoch);
        let begun = batch.cas(at, state, state & !0xFF | ACTIVE);
        let mut done = batch.post().await?;
        Ok((done.old(begun) == state).then_some(epoch))
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }
    /// Who this client is to the fabric.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }
    /// Number of its slot.
    pub fn slot(&self) -> u64 {
        self.slot
    }
    /// The pool's epoch as last seen.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }
    pub(crate) fn epoch_word(&self) -> &AtomicU64 {
        &self.epoch
    }
    /// Has another client taken this one's slot back?
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// How often others may have seen this client expired although it was alive: more than a lease passed from the posting of
    /// one heartbeat to the completion of the next. It holds its slot still, or [`is_lost`](Self::is_lost) would say so; but
    /// others may have been refused the locks that it held, or have waited for the epoch.
    pub fn missed_leases(&self) -> u64 {
        self.missed_leases.load(Ordering::Relaxed)
    }

    /// Opens a session on the calling thread.
    pub fn session(self: &Arc<Self>, endpoint: Endpoint) -> Session {
        self.opened.fetch_add(1, Ordering::SeqCst);
        let oldest = Arc::new(OldestPin::default());
        let mut pins = lock(&self.pins);
        pins.retain(|pin| Arc::strong_count(pin) > 1);
        pins.push(Arc::clone(&oldest));
        drop(pins);
        Session::new(Arc::clone(self), endpoint, oldest)
    }

    /// The one `T` that all sessions of this client share under `key`; made by whoever asks first, and dropped with its last
    /// holder. For caches that a compute node's threads have in common.
    pub fn share<T: Any + Send + Sync>(&self, key: u64, make: impl FnOnce() -> T) -> Arc<T> {
        let mut shares = lock(&self.shares);
        let at = (TypeId::of::<T>(), key);
        let standing = shares.get(&at).and_then(Weak::upgrade).and_then(|any| any.downcast::<T>().ok());
        standing.unwrap_or_else(|| {
            shares.retain(|_, share| share.strong_count() > 0);
            let made = Arc::new(make());
            let any: Arc<dyn Any + Send + Sync> = made.clone();
            shares.insert(at, Arc::downgrade(&any));
            made
        })
    }

    pub(crate) fn orphans(&self) -> MutexGuard<'_, RetireList> {
        lock(&self.orphans)
    }

    /// Takes one of this client's intent cells on a node; `None` if all are taken, or left with an intent that stands.
    pub(crate) fn take_intent(&self, node: usize) -> Option<u64> {
        let cells = self.intents.get(node)?;
        let stale = cells.stale.load(Ordering::Acquire);
        let pick = |taken: u64| u64::from((!(taken | stale)).trailing_zeros());
        let taken = cells.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, |taken| {
            let cell = pick(taken);
            (cell < INTENTS).then(|| taken | 1 << cell)
        });
        Some(pick(taken.ok()?))
    }
    pub(crate) fn give_intent(&self, node: usize, cell: u64, stale: bool, given_up: bool) {
        if let Some(cells) = self.intents.get(node) {
            cells.own_stale.fetch_or(u64::from(stale && !given_up) << cell, Ordering::AcqRel);
            cells.stale.fetch_or(u64::from(stale) << cell, Ordering::AcqRel);
            cells.taken.fetch_and(!(1 << cell), Ordering::AcqRel);
        }
    }
    /// Looks at the cells of its slot for intents of former owners, and leaves those alone whose locks may be held.
    async fn inherit_intents(&self, span: &Span) -> Result<(), PoolError> {
        for (node, cells) in self.pool.nodes().zip(&self.intents) {
            cells.stale.store((1 << INTENTS) - 1, Ordering::Release);
            self.reclaim_intents(span.endpoint(), node).await?;
        }
        Ok(())
    }

    /// Looks whether cells that were left with an intent have been cleared, and clears those of former owners of the slot
    /// whose locks are free: they are buried, so they never hold them again. Did any cell become usable?
    pub(crate) async fn reclaim_intents(&self, endpoint: &Endpoint, node: NodeId) -> Result<bool, PoolError> {
        let Some(cells) = self.intents.get(node.index()) else { return Ok(false) };
        let stale = cells.stale.load(Ordering::Acquire) & !cells.taken.load(Ordering::Acquire);
        if stale == 0 {
            return Ok(false);
        }
        let span = endpoint.span(OpKind::Maintenance);
        let at = self.pool.geometry(node).intent(node, self.slot, 0);
        let words = span.read(at, (INTENTS * INTENT_LEN) as usize).await?;
        let mut usable = 0;
        for (cell, words) in (0..INTENTS).zip(words.words().chunks_exact(INTENT_LEN as usize / 8)) {
            let &[word, _, lock, mask, ..] = words else { continue };
            if stale >> cell & 1 == 0 {
                continue;
            }
            let former = word >> 40 != self.generation() & 0xFF_FFFF;
            if !stands(word) {
                usable |= 1 << cell;
            } else if former {
                let lock = Lock { at: RemotePtr::from_bits(lock), mask };
                let held = match span.read(lock.at, 8).await {
                    Ok(now) => lock.held(first_word(&now)),
                    Err(FabricError::NoSuchNode(_) | FabricError::OutOfBounds { .. }) => true,
                    Err(error) => return Err(error.into()),
                };
                if !held && span.cas(at.add(cell * INTENT_LEN), word, cleared(word)).await? == word {
                    mark!("takeover: intent of a former owner cleared");
                    usable |= 1 << cell;
                }
            }
        }
        cells.own_stale.fetch_and(!usable, Ordering::AcqRel);
        cells.stale.fetch_and(!usable, Ordering::AcqRel);
        Ok(usable != 0)
    }
    /// Does an intent of this client stand that no operation of its has in hand?
    fn leaves_intents(&self) -> bool {
        self.intents.iter().any(|cells| cells.own_stale.load(Ordering::Acquire) != 0)
    }
    pub(crate) fn watch(&self) -> MutexGuard<'_, Watch> {
        lock(&self.watch)
    }
    /// How often the slot has been taken, this time included: with the slot's number it identifies this registration.
    pub fn generation(&self) -> u64 {
        self.state >> 8
    }
    /// Enters the catalog; `None` while another operation of this client is there.
    pub(crate) fn enter_catalog(&self) -> Option<Raised<'_>> {
        Raised::raise(&self.cataloguing)
    }

    pub(crate) fn slots_at_registration(&self) -> &[u64] {
        &self.slots_before
    }

    /// Sessions that are open.
    pub(crate) fn sessions(&self) -> usize {
        lock(&self.pins).iter().filter(|pin| Arc::strong_count(pin) > 1 && !pin.is_closed()).count()
    }
    /// Sessions that were opened since this client registered.
    pub(crate) fn sessions_opened(&self) -> u64 {
        self.opened.load(Ordering::SeqCst)
    }
    /// Verbs of closed sessions that nobody waits for, and that may land yet.
    fn trails(&self) -> bool {
        lock(&self.pins).iter().any(|pin| pin.is_closed() && pin.get().is_some())
    }

    /// One heartbeat: learns the epoch, publishes how far this client has quiesced, and moves the epoch on if everyone
    /// has come so far. Costs two round trips. Returns at once if another thread is at it.
    pub async fn tick(&self, endpoint: &Endpoint) -> Result<(), PoolError> {
        if self.is_lost() {
            return Err(PoolError::LeaseLost);
        }
        let Some(_ticking) = Raised::raise(&self.ticking) else { return Ok(()) };
        match self.tick_alone(endpoint).await {
            Err(PoolError::Fabric(FabricError::Revoked)) => {
                self.lost.store(true, Ordering::Relaxed);
                Err(PoolError::LeaseLost)
            }
            done => done,
        }
    }

    async fn tick_alone(&self, endpoint: &Endpoint) -> Result<(), PoolError> {
        let span = endpoint.span(OpKind::Maintenance);
        let geometry = self.pool.geometry(HOME);
        let known = self.epoch();
        let mut batch = span.batch();
        let began = endpoint.now();
        let epoch = batch.read(header_word(HOME, header::EPOCH), 8);
        let slots = batch.read(geometry.client(0), (self.pool.client_slots() * CLIENT_SLOT_LEN) as usize);
        let mut done = batch.post().await?;
        let epoch = checked_epoch(first_word(&done.buf(epoch)), known)?;
        let slots = done.buf(slots);
        let slots = parse_slots(&slots);
        self.watch().observe(slots, began, endpoint.now());
        let mine = slots.get(self.slot as usize);
        if mine.is_none_or(|slot| slot.state != self.state) {
            self.lost.store(true, Ordering::Relaxed);
            return Err(PoolError::LeaseLost);
        }
        // The epoch first, then the pins: see the module `epoch`.
        self.epoch.fetch_max(epoch, Ordering::SeqCst);
        let quiesced = {
            let pins = lock(&self.pins);
            pins.iter().filter_map(|pin| pin.get()).fold(epoch, u64::min)
        };
        let mut all_quiesced = quiesced >= epoch;
        for (slot, record) in slots.iter().enumerate() {
            let there = slot as u64 != self.slot && (record.active() || record.registering());
            if all_quiesced && there && record.quiesced < epoch {
                // Nobody is passed over whose verbs may still take effect.
                all_quiesced = self.is_over(slot, record)
                    && (planted(Fault::EpochSkipsRevocation) || evict(&self.pool, &span, slot as u64, record).await?);
            }
        }
        let beat_at = nanos(endpoint.now());
        let mut batch = span.batch();
        let heartbeat = self.heartbeat.fetch_add(1, Ordering::Relaxed) + 1;
        let at = geometry.client(self.slot).add(offset_of!(ClientSlot, heartbeat) as u64);
        batch.write_words(at, &[heartbeat, quiesced]);
        let advance = all_quiesced.then(|| batch.cas(header_word(HOME, header::EPOCH), epoch, epoch + 1));
        let mut done = batch.post().await?;
        let silent = nanos(endpoint.now()).saturating_sub(self.beat_at.swap(beat_at, Ordering::Relaxed));
        if silent > nanos(self.pool.lease()) {
            self.missed_leases.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(advance) = advance
            && done.old(advance) == epoch
        {
            self.epoch.fetch_max(epoch + 1, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Those who keep the epoch from moving on, in words: they have not quiesced at the epoch that this client knows.
    pub async fn laggards(&self, span: &Span) -> Result<String, PoolError> {
        let (epoch, all) = (self.epoch(), clients(&self.pool, span).await?);
        let behind = all.iter().filter(|other| other.slot != self.slot && other.record.quiesced < epoch);
        let who: Vec<_> = behind.map(|other| describe(&all, other.slot, None)).collect();
        Ok(if who.is_empty() { "a client that has just quiesced".to_owned() } else { who.join(" or ") })
    }

    /// Gives back all that closed sessions left, and then the slot. Refuses while sessions are open: their pins would no
    /// longer count. It takes no longer than [`CLOSE_TIMEOUT`], or than a lease if that is shorter: memory that cannot be given back
    /// because another client has not quiesced by then is left to the next audit of the pool.
    pub async fn close(self: Arc<Self>, endpoint: &Endpoint) -> Result<(), PoolError> {
        match self.sessions() {
            0 => {}
            open => return Err(PoolError::SessionsOpen(open)),
        }
        let until = endpoint.now() + self.pool.lease().min(CLOSE_TIMEOUT);
        let mut pause = Duration::from_micros(50);
        loop {
            self.tick(endpoint).await?;
            let session = self.session(endpoint.clone());
            session.adopt_orphans();
            session.flush().await?;
            drop(session);
            if self.orphans().is_empty() && !self.trails() || endpoint.now() >= until {
                break;
            }
            endpoint.sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(5));
        }
        let span = endpoint.span(OpKind::Maintenance);
        for node in self.pool.nodes() {
            self.reclaim_intents(endpoint, node).await?;
        }
        // A lock may be held under such an intent, and verbs may be on their way. Whoever frees the slot later has shut this
        // client out by then.
        if !self.leaves_intents() && !self.trails() {
            let mut batch = span.batch();
            if !self.orphans().is_empty() {
                Leaks::count(&mut batch);
            }
            batch.cas(self.pool.geometry(HOME).client(self.slot), self.state, self.state & !0xFF);
            batch.post().await?;
        }
        self.lost.store(true, Ordering::Relaxed);
        Ok(())
    }
}

/// Everyone who is registered.
pub async fn clients(pool: &Pool, span: &Span) -> Result<Vec<ClientInfo>, PoolError> {
    let slots = read_slots(span, pool).await?;
    let active = parse_slots(&slots).iter().enumerate().filter(|(_, slot)| slot.active());
    Ok(active
        .map(|(i, record)| {
            let identity = identity_of(record);
            ClientInfo { slot: i as u64, record: *record, identity, gone: pool.fabric().is_gone(&identity) }
        })
        .collect())
}

/// The state word of every client slot: who is there, and how often each has been taken. Of a client that is proved
/// gone it is what the slot says once the client was evicted, whenever that happens.
pub(crate) async fn slot_words(pool: &Pool, span: &Span) -> Result<Vec<u64>, PoolError> {
    let slots = read_slots(span, pool).await?;
    let gone = |slot: &ClientSlot| slot.active() && pool.fabric().is_gone(&identity_of(slot)) == Some(true);
    Ok(parse_slots(&slots).iter().map(|slot| if gone(slot) { slot.state & !0xFF } else { slot.state }).collect())
}

pub(crate) fn identity_of(slot: &ClientSlot) -> Identity {
    let [token, pid, started] = slot.identity;
    Identity { token, pid, started }
}

pub(crate) fn parse_slots(buf: &Buf) -> &[ClientSlot] {
    <[ClientSlot]>::ref_from_bytes(buf.bytes()).unwrap_or_default()
}

pub(crate) async fn read_slots(span: &Span, pool: &Pool) -> Result<Buf, PoolError> {
    let len = (pool.client_slots() * CLIENT_SLOT_LEN) as usize;
    Ok(span.read(pool.geometry(HOME).client(0), len).await?)
}

/// The pool's epoch as it was read, unless it cannot be that: it begins at 1, only grows, and will not wrap in a lifetime.
fn checked_epoch(epoch: u64, known: u64) -> Result<u64, PoolError> {
    if (known..1 << 62).contains(&epoch) {
        return Ok(epoch);
    }
    let what = format!("the epoch is {epoch}, after {known}");
    Err(PoolError::Corrupt { at: header_word(HOME, header::EPOCH), what })
}

pub(crate) fn first_word(buf: &Buf) -> u64 {
    buf.words().first().copied().unwrap_or_default()
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
