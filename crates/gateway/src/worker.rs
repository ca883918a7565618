//! A worker thread: waits for its clients, and carries out their commands.
//!
//! The loop is one future of the thread's session, and the commands of each client that has sent something are another
//! one. In mapped memory a client's future ends when it is polled first. Over a network the loop keeps those that wait,
//! looks for other clients without blocking, and gives the executor its turn in between; so what several clients have
//! posted travels together.
//!
//! Why no runtime: with tokio each client is a task that is woken, polled and put aside by itself, and the session a
//! further one; here one call waits for all of them, and reads, carries out and answers one after the other without any
//! queue in between.
//!
//! Invariants: events are edge-triggered, so a client stays queued until a read has found nothing more; a client is either
//! in its slot or in a future that runs; each turn of a client reads at most one buffer, and ends when its replies are long, so
//! none keeps the others waiting.

use crate::client::{Buffers, Client};
use crate::gateway::{GatewayError, Shared, helps_to_renew};
use crate::pipeline::{self, Thread};
use crate::store::Store;
use crate::store::sorted::Generation;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use mio::event::Event;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use slab::Slab;
use std::cell::Cell;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind, Write};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::task;
use std::time::{Duration, Instant};

const LISTENER: Token = Token(usize::MAX - 1);
const WAKER: Token = Token(usize::MAX - 2);
/// How often clients are looked through for those that are silent or stalled.
const TICK: Duration = Duration::from_millis(500);
/// Rounds without anything new, while commands wait for far memory, after which the thread sleeps between looks.
const PATIENT_ROUNDS: u32 = 2_000;

/// Connections on their way to a worker.
pub(crate) struct Inbox {
    streams: Mutex<Vec<TcpStream>>,
    /// Clients that the worker has or is about to have.
    clients: AtomicUsize,
    waker: Waker,
}

impl Inbox {
    /// Ends the worker's waiting.
    pub(crate) fn wake(&self) {
        // It fails if the worker is gone.
        let _ = self.waker.wake();
    }
    fn give(&self, stream: TcpStream) {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        self.wake();
    }
    fn take(&self) -> Vec<TcpStream> {
        std::mem::take(&mut self.streams.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A place for a client.
struct Slot {
    /// `None` while its commands run.
    client: Option<Box<Client>>,
    /// A read may find something.
    readable: bool,
    /// The client has ended its side: reads go on until one has seen the end, which has no event of its own when it came
    /// together with bytes.
    hung_up: bool,
    /// It is in the queue.
    queued: bool,
}

/// The commands of a client that run.
type Running<'t> = Pin<Box<dyn Future<Output = (usize, Box<Client>)> + 't>>;

/// Why a worker leaves its loop.
enum Left {
    Stopped,
    /// This process was evicted from the pool, or another thread has registered it again.
    Evicted,
}

/// A worker thread.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    poll: Poll,
    listener: Option<TcpListener>,
    inbox: Arc<Inbox>,
    slots: Slab<Slot>,
    queue: VecDeque<usize>,
    buffers: Buffers,
    tick: Instant,
    /// Accepting has failed, and is to be tried again.
    accept_again: bool,
    dropped: SyncSender<Generation>,
}

impl Worker {
    pub(crate) fn new(
        shared: Arc<Shared>,
        mut listener: Option<TcpListener>,
        dropped: SyncSender<Generation>,
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        if let Some(listener) = &mut listener {
            poll.registry().register(listener, LISTENER, Interest::READABLE)?;
        }
        let inbox = Arc::new(Inbox { streams: Mutex::default(), clients: AtomicUsize::new(0), waker });
        let (slots, queue, buffers) = (Slab::new(), VecDeque::new(), Buffers::default());
        Ok(Worker {
            shared,
            poll,
            listener,
            inbox,
            slots,
            queue,
            buffers,
            tick: Instant::now(),
            accept_again: false,
            dropped,
        })
    }
    pub(crate) fn inbox(&self) -> Arc<Inbox> {
        Arc::clone(&self.inbox)
    }

    /// Serves clients until the gateway ends.
    pub(crate) fn run(mut self) -> Result<(), GatewayError> {
        let shared = Arc::clone(&self.shared);
        loop {
            let (registration, pool) = shared.pools.current();
            match self.serve(registration, &pool) {
                Ok(Left::Stopped) => return Ok(()),
                Ok(Left::Evicted) => {}
                Err(why) if helps_to_renew(&why) => {}
                Err(why) => return Err(why),
            }
            drop(pool);
            shared.pools.renew(registration, &shared)?;
        }
    }

    fn serve(&mut self, registration: u64, pool: &farindex::Pool) -> Result<Left, GatewayError> {
        let shared = Arc::clone(&self.shared);
        let session = pool.session()?;
        let store = Store::open(&session, &shared.names, shared.periods)?;
        session.block_on(self.turn(&store, &shared, registration))
    }

    async fn turn(&mut self, store: &Store, shared: &Shared, registration: u64) -> Result<Left, GatewayError> {
        let evicted = Cell::new(false);
        let thread = &Thread { store, shared, evicted: &evicted };
        let mut running: FuturesUnordered<Running<'_>> = FuturesUnordered::new();
        let mut events = Events::with_capacity(1024);
        let mut quiet = 0;
        loop {
            let leaving = shared.stopping() || evicted.get();
            if leaving && running.is_empty() {
                self.write_all();
                return Ok(if evicted.get() && !shared.stopping() { Left::Evicted } else { Left::Stopped });
            }
            let wait = match (self.queue.is_empty(), running.is_empty()) {
                (false, _) => Duration::ZERO,
                (true, true) => TICK,
                (true, false) if quiet > PATIENT_ROUNDS => Duration::from_millis(1),
                (true, false) => Duration::ZERO,
            };
            match self.poll.poll(&mut events, Some(wait)) {
                Err(error) if error.kind() != ErrorKind::Interrupted => {
                    return Err(GatewayError::System { what: "waiting for clients", why: error });
                }
                _ => {}
            }
            quiet = if events.is_empty() { quiet + 1 } else { 0 };
            for event in &events {
                match event.token() {
                    LISTENER => self.accept(),
                    WAKER => self.inbox.take().into_iter().for_each(|stream| self.admit(stream)),
                    Token(at) => self.mark(at, event),
                }
            }
            for _ in 0..if leaving { 0 } else { self.queue.len() } {
                let Some(at) = self.queue.pop_front() else { break };
                let Some(mut client) = self.begin(at) else { continue };
                client.before_run(&mut self.buffers);
                let mut future: Running<'_> = Box::pin(async move {
                    pipeline::serve(&mut client, thread).await;
                    (at, client)
                });
                match poll_fn(|cx| task::Poll::Ready(future.as_mut().poll(cx))).await {
                    task::Poll::Ready((at, client)) => self.end(at, client),
                    task::Poll::Pending => running.push(future),
                }
            }
            while let task::Poll::Ready(Some((at, client))) =
                poll_fn(|cx| task::Poll::Ready(running.poll_next_unpin(cx))).await
            {
                quiet = 0;
                self.end(at, client);
            }
            self.publish(store);
            if self.tick.elapsed() >= TICK {
                self.tick = Instant::now();
                self.look_through();
                if self.accept_again {
                    self.accept();
                }
                if shared.pools.current().0 != registration {
                    evicted.set(true);
                }
            }
            // What an operation has left to be carried out later leaves now.
            farindex::yield_now().await;
        }
    }

    /// Notes that something has happened to a client.
    fn mark(&mut self, at: usize, event: &Event) {
        let Some(slot) = self.slots.get_mut(at) else { return };
        slot.hung_up |= event.is_read_closed() || event.is_error();
        slot.readable |= event.is_readable() || slot.hung_up;
        if !std::mem::replace(&mut slot.queued, true) {
            self.queue.push_back(at);
        }
    }

    /// A client's turn: sends what is waiting, and reads. Returns it if it has commands to carry out.
    fn begin(&mut self, at: usize) -> Option<Box<Client>> {
        let slot = self.slots.get_mut(at)?;
        slot.queued = false;
        // It comes back to the queue when its commands have ended.
        let mut client = slot.client.take()?;
        if !client.reply.is_empty() {
            self.shared.counters.bytes_out.inc_by(client.write() as u64);
        }
        if client.has_commands && !client.closing && !client.broken {
            return Some(client);
        }
        if slot.readable && !client.closing && !client.broken {
            let taken = client.read(&mut self.buffers, self.shared.limits.requests.request);
            slot.readable = taken.more || slot.hung_up && !client.end_of_input && !client.broken;
            self.shared.counters.bytes_in.inc_by(taken.bytes as u64);
            if taken.bytes > 0 {
                client.active = Instant::now();
                client.identity.row.touch(client.active);
                return Some(client);
            }
        }
        self.end(at, client);
        None
    }

    /// A client's commands have ended: sends the replies.
    fn end(&mut self, at: usize, mut client: Box<Client>) {
        if !client.reply.is_empty() {
            self.shared.counters.bytes_out.inc_by(client.write() as u64);
        }
        client.after_run(&mut self.buffers);
        let most = self.shared.limits.buffers / self.shared.threads;
        let holds = client.holds();
        if client.reply.len() > self.shared.limits.output
            || self.buffers.held > most && holds > 2 * crate::client::BUFFER
        {
            self.shared.counters.overrun.inc();
            client.broken = true;
        }
        let has_commands = client.has_commands && !client.closing;
        let done = (client.closing || client.end_of_input && !has_commands) && client.reply.is_empty();
        if client.broken || done {
            return self.close(at, client);
        }
        let Some(slot) = self.slots.get_mut(at) else { return };
        slot.client = Some(client);
        if (slot.readable || has_commands) && !std::mem::replace(&mut slot.queued, true) {
            self.queue.push_back(at);
        }
    }

    fn close(&mut self, at: usize, mut client: Box<Client>) {
        client.forget(&mut self.buffers);
        // The descriptor is closed anyway.
        let _ = self.poll.registry().deregister(client.stream());
        self.shared.clients.remove(client.identity.row.id);
        self.shared.counters.clients.dec();
        self.inbox.clients.fetch_sub(1, Relaxed);
        self.slots.try_remove(at);
    }

    /// Accepts connections, and gives each to the worker with the fewest.
    fn accept(&mut self) {
        self.accept_again = false;
        let mut own = Vec::new();
        let Some(listener) = &self.listener else { return };
        loop {
            match listener.accept() {
                Ok((mut stream, _)) => {
                    let inboxes = self.shared.inboxes();
                    let all: usize = inboxes.iter().map(|inbox| inbox.clients.load(Relaxed)).sum();
                    if all >= self.shared.limits.clients || self.shared.stopping() {
                        self.shared.counters.rejected.inc();
                        // A client that does not take this line learns it from the end of the connection.
                        let _ = stream.write(b"-ERR max number of clients reached\r\n");
                        continue;
                    }
                    if let Some(inbox) = inboxes.iter().min_by_key(|inbox| inbox.clients.load(Relaxed)) {
                        inbox.clients.fetch_add(1, Relaxed);
                        if Arc::ptr_eq(inbox, &self.inbox) { own.push(stream) } else { inbox.give(stream) }
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
                // No descriptor is left, perhaps. There may be no further event: the listener is asked again in a while.
                Err(_) => {
                    self.accept_again = true;
                    break;
                }
            }
        }
        own.into_iter().for_each(|stream| self.admit(stream));
    }

    /// Takes in a connection that was given to this worker.
    fn admit(&mut self, mut stream: TcpStream) {
        let entry = self.slots.vacant_entry();
        let both = Interest::READABLE | Interest::WRITABLE;
        let addresses = stream.peer_addr().and_then(|peer| Ok((peer, stream.local_addr()?)));
        let registered = self.poll.registry().register(&mut stream, Token(entry.key()), both);
        let (Ok((peer, local)), Ok(())) = (addresses, registered) else {
            self.inbox.clients.fetch_sub(1, Relaxed);
            return;
        };
        // Replies that wait for further ones would wait long.
        let _ = stream.set_nodelay(true);
        let row = self.shared.clients.add(peer, local);
        let client = Box::new(Client::new(stream, row, self.shared.password.is_none()));
        entry.insert(Slot { client: Some(client), readable: false, hung_up: false, queued: false });
        self.shared.counters.accepted.inc();
        self.shared.counters.clients.inc();
    }

    /// Disconnects clients that have been silent for too long, or do not read their replies.
    fn look_through(&mut self) {
        let limits = self.shared.limits;
        let late = |client: &Client| {
            limits.idle.is_some_and(|idle| client.active.elapsed() > idle)
                || client.blocked.is_some_and(|since| since.elapsed() > limits.stalled)
        };
        let overdue: Vec<usize> = self
            .slots
            .iter()
            .filter(|(_, slot)| slot.client.as_ref().is_some_and(|client| late(client)))
            .map(|(at, _)| at)
            .collect();
        for at in overdue {
            if let Some(client) = self.slots.get_mut(at).and_then(|slot| slot.client.take()) {
                self.shared.counters.overrun.inc();
                self.close(at, client);
            }
        }
    }

    /// Sends what clients take, before the gateway ends.
    fn write_all(&mut self) {
        for (_, slot) in &mut self.slots {
            if let Some(client) = &mut slot.client {
                client.write();
            }
        }
    }

    /// Adds what this thread's store has counted, and hands on what is to be swept.
    fn publish(&self, store: &Store) {
        let counters = &self.shared.counters;
        counters.retries.inc_by(store.retries.take());
        counters.expired.inc_by(store.expired.take());
        for generation in store.dropped.borrow_mut().drain(..) {
            // If there is no room, the next sweep finds it.
            let _ = self.dropped.try_send(generation);
        }
    }
}
