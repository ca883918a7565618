//! A client: one compute node's (one process's) membership in a pool.
//!
//! Invariants: a client holds one slot, taken by CAS; while it lives, its heartbeat counts up and it publishes how far
//! its operations have quiesced (see [`epoch`](crate::epoch)); the slot tells everyone who it is to the fabric. The
//! operations of a client run in its [sessions](crate::Session), one for each worker thread.

use crate::epoch::OldestPin;
use crate::layout::{CLIENT_SLOT_LEN, ClientSlot, HOME, INTENTS, header, header_word};
use crate::session::{Limbo, Session};
use crate::{Pool, PoolError};
use farindex_fabric::{Buf, Endpoint, Identity, OpKind, Span};
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use zerocopy::FromBytes;

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
    /// One tick at a time; who finds it taken goes on, because the other's tick serves it too.
    ticking: AtomicBool,
    pins: Mutex<Vec<Arc<OldestPin>>>,
    /// What closed sessions could not give back themselves.
    orphans: Mutex<Limbo>,
    /// The words of all client slots when this one was taken.
    slots_before: Vec<u64>,
    /// One operation of this client in the catalog at a time.
    cataloguing: AtomicBool,
    /// This client's intent cells, for each node.
    intents: Vec<Cells>,
}

/// The intent cells of one node: a bit for each.
#[derive(Default)]
struct Cells {
    /// In the hands of an operation.
    taken: AtomicU64,
    /// Left with an intent in them that was never cleared: its lock may be held still.
    stale: AtomicU64,
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
    /// Takes a client slot.
    pub async fn register(pool: &Pool, identity: Identity, endpoint: &Endpoint) -> Result<Arc<Client>, PoolError> {
        let span = endpoint.span(OpKind::Other);
        loop {
            let slots = read_slots(&span, pool).await?;
            let mut words: Vec<u64> = parse_slots(&slots).iter().map(|slot| slot.state).collect();
            let mut raced = false;
            for (slot, seen) in (0..).zip(parse_slots(&slots)).filter(|(_, slot)| slot.vacant()) {
                let state = seen.generation().wrapping_add(1) << 8 | 1;
                if span.cas(pool.geometry(HOME).client(slot), seen.state, state).await? == seen.state {
                    words[slot as usize] = state;
                    return Self::settle_in(pool, identity, &span, (slot, state), words).await;
                }
                raced = true;
            }
            if !raced {
                return Err(PoolError::NoClientSlot(pool.client_slots() as usize));
            }
        }
    }

    /// Fills in a slot that this client has just won.
    async fn settle_in(
        pool: &Pool,
        identity: Identity,
        span: &Span,
        (slot, state): (u64, u64),
        slots_before: Vec<u64>,
    ) -> Result<Arc<Client>, PoolError> {
        let at = pool.geometry(HOME).client(slot);
        // Until `quiesced` is set it is zero, which holds the epoch where it is: from before this client reads the epoch
        // until it has published it, G cannot pass what it read by more than one.
        let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let words = [1, 0, identity.token, identity.pid, identity.started, wall.as_secs(), 0];
        let endpoint = span.endpoint();
        span.write(at.add(offset_of!(ClientSlot, heartbeat) as u64), endpoint.buf_from_words(&words)).await?;
        let epoch = checked_epoch(first_word(&span.read(header_word(HOME, header::EPOCH), 8).await?), 1)?;
        let quiesced = at.add(offset_of!(ClientSlot, quiesced) as u64);
        span.write(quiesced, endpoint.buf_from_words(&[epoch])).await?;
        Ok(Arc::new(Client {
            pool: pool.clone(),
            identity,
            slot,
            state,
            epoch: AtomicU64::new(epoch),
            heartbeat: AtomicU64::new(1),
            lost: AtomicBool::new(false),
            ticking: AtomicBool::new(false),
            slots_before,
            cataloguing: AtomicBool::new(false),
            pins: Mutex::default(),
            orphans: Mutex::default(),
            intents: pool.nodes().map(|_| Cells::default()).collect(),
        }))
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

    /// Opens a session on the calling thread.
    pub fn session(self: &Arc<Self>, endpoint: Endpoint) -> Session {
        let oldest = Arc::new(OldestPin::default());
        let mut pins = lock(&self.pins);
        pins.retain(|pin| Arc::strong_count(pin) > 1);
        pins.push(Arc::clone(&oldest));
        drop(pins);
        Session::new(Arc::clone(self), endpoint, oldest)
    }

    pub(crate) fn orphans(&self) -> MutexGuard<'_, Limbo> {
        lock(&self.orphans)
    }

    /// Takes one of this client's intent cells on a node; `None` if all are taken. A cell that an operation left without
    /// clearing its intent is taken only if there is no other: the intent stays readable that long.
    pub(crate) fn take_intent(&self, node: usize) -> Option<u64> {
        let cells = self.intents.get(node)?;
        let stale = cells.stale.load(Ordering::Acquire);
        let pick = |taken: u64| {
            let clean = u64::from((!(taken | stale)).trailing_zeros());
            if clean < INTENTS { clean } else { u64::from((!taken).trailing_zeros()) }
        };
        let taken = cells.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, |taken| {
            let cell = pick(taken);
            (cell < INTENTS).then(|| taken | 1 << cell)
        });
        let cell = pick(taken.ok()?);
        cells.stale.fetch_and(!(1 << cell), Ordering::AcqRel);
        Some(cell)
    }
    pub(crate) fn give_intent(&self, node: usize, cell: u64, stale: bool) {
        if let Some(cells) = self.intents.get(node) {
            cells.stale.fetch_or(u64::from(stale) << cell, Ordering::AcqRel);
            cells.taken.fetch_and(!(1 << cell), Ordering::AcqRel);
        }
    }
    /// How often the slot has been taken, this time included.
    pub(crate) fn generation(&self) -> u64 {
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
        lock(&self.pins).iter().filter(|pin| Arc::strong_count(pin) > 1).count()
    }

    /// One heartbeat: learns the epoch, publishes how far this client has quiesced, and moves the epoch on if everyone
    /// has come so far. Costs two round trips. Returns at once if another thread is at it.
    pub async fn tick(&self, endpoint: &Endpoint) -> Result<(), PoolError> {
        if self.is_lost() {
            return Err(PoolError::LeaseLost);
        }
        let Some(_ticking) = Raised::raise(&self.ticking) else { return Ok(()) };
        self.tick_alone(endpoint).await
    }

    async fn tick_alone(&self, endpoint: &Endpoint) -> Result<(), PoolError> {
        let span = endpoint.span(OpKind::Maintenance);
        let geometry = self.pool.geometry(HOME);
        let known = self.epoch();
        let mut batch = span.batch();
        let epoch = batch.read(header_word(HOME, header::EPOCH), 8);
        let slots = batch.read(geometry.client(0), (self.pool.client_slots() * CLIENT_SLOT_LEN) as usize);
        let mut done = batch.post().await?;
        let epoch = checked_epoch(first_word(&done.buf(epoch)), known)?;
        let slots = done.buf(slots);
        let slots = parse_slots(&slots);
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
        let mut others = slots.iter().enumerate().filter(|(i, slot)| *i != self.slot as usize && slot.active());
        // A client that is proved gone has no operations left to wait for.
        let gone = |slot: &ClientSlot| self.pool.fabric().is_gone(&identity_of(slot)) == Some(true);
        let all_quiesced = quiesced >= epoch && others.all(|(_, slot)| slot.quiesced >= epoch || gone(slot));
        let mut batch = span.batch();
        let heartbeat = self.heartbeat.fetch_add(1, Ordering::Relaxed) + 1;
        let at = geometry.client(self.slot).add(offset_of!(ClientSlot, heartbeat) as u64);
        batch.write_words(at, &[heartbeat, quiesced]);
        let advance = all_quiesced.then(|| batch.cas(header_word(HOME, header::EPOCH), epoch, epoch + 1));
        let mut done = batch.post().await?;
        if let Some(advance) = advance
            && done.old(advance) == epoch
        {
            self.epoch.fetch_max(epoch + 1, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Gives back all that closed sessions left, and then the slot. Refuses while sessions are open: their pins would no
    /// longer count. What cannot be given back because another client does not quiesce within a lease is left to
    /// `pool check`.
    pub async fn close(self: Arc<Self>, endpoint: &Endpoint) -> Result<(), PoolError> {
        match self.sessions() {
            0 => {}
            open => return Err(PoolError::SessionsOpen(open)),
        }
        let until = endpoint.now() + self.pool.lease();
        let mut pause = Duration::from_micros(50);
        loop {
            self.tick(endpoint).await?;
            let session = self.session(endpoint.clone());
            session.adopt_orphans();
            session.flush().await?;
            drop(session);
            if self.orphans().is_empty() || endpoint.now() >= until {
                break;
            }
            endpoint.sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(5));
        }
        let span = endpoint.span(OpKind::Maintenance);
        let at = self.pool.geometry(HOME).client(self.slot);
        let mut batch = span.batch();
        batch.write_words(at.add(offset_of!(ClientSlot, heartbeat) as u64), &[0, 0, 0, 0, 0]);
        batch.cas(at, self.state, self.state & !0xFF);
        batch.post().await?;
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

/// The state word of every client slot: who is there, and how often each has been taken.
pub(crate) async fn slot_words(pool: &Pool, span: &Span) -> Result<Vec<u64>, PoolError> {
    let slots = read_slots(span, pool).await?;
    Ok(parse_slots(&slots).iter().map(|slot| slot.state).collect())
}

fn identity_of(slot: &ClientSlot) -> Identity {
    let [token, pid, started] = slot.identity;
    Identity { token, pid, started }
}

fn parse_slots(buf: &Buf) -> &[ClientSlot] {
    <[ClientSlot]>::ref_from_bytes(buf.bytes()).unwrap_or_default()
}

async fn read_slots(span: &Span, pool: &Pool) -> Result<Buf, PoolError> {
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
