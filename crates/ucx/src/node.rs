//! The memory node's loop: one thread receives requests, carries them out, and answers.
//!
//! Invariants: what has come is carried out message by message, and then answered: one message to each client, unless
//! the answers are many; answers do not wait for a call of another client; only this thread touches far memory, so once
//! it has dropped a connection, nothing of it takes effect any more (G6); a request of no connection is dropped; a
//! client that sends a malformed request, or does not read its replies, is disconnected, and no other client is
//! affected.

use crate::chain::{Front, Greeting, Refused, Served, check, serve};
use crate::ucp::{Context, ContextSettings, EpId, Worker};
use farindex_fabric::FabricError;
use farindex_remote::wire::Writer;
use farindex_remote::{Metrics, NodeMemory, Peer, Plane, PlaneKind, Refusal};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::fd::{AsFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How the loop waits for requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Poll {
    /// Polls all the time: uses a whole core, with the lowest latency.
    Busy,
    /// Polls for a while after the last request, then sleeps until the next one comes.
    #[default]
    Adaptive,
}

/// Reports to the operator.
pub type Report = dyn Fn(&str) + Send + Sync;

/// How a node serves over UCX.
#[derive(Clone, Default)]
pub struct UcxSettings {
    /// How it waits.
    pub poll: Poll,
    /// Serve this machine alone, unless UCX_NET_DEVICES names devices.
    pub loopback: bool,
    /// Called with the transports that UCX has chosen.
    pub report: Option<Arc<Report>>,
}

/// The data plane of a memory node. Dropping it ends its thread.
pub struct UcxPlane {
    orders: Sender<Order>,
    waker: UnixStream,
    thread: Mutex<Option<JoinHandle<()>>>,
}

enum Order {
    Attach(Peer, Vec<u8>, SyncSender<Result<Vec<u8>, Refusal>>),
    Release(u64, Vec<u8>),
    Detach(u64, SyncSender<()>),
    Stop,
}

/// How long the control thread waits for this one.
const ATTACH_TIME: Duration = Duration::from_secs(10);

impl UcxPlane {
    /// Starts the loop. An error says what is missing.
    pub fn start(memory: Arc<NodeMemory>, settings: UcxSettings, metrics: &Metrics) -> Result<Arc<Self>, FabricError> {
        let failed = |why: String| FabricError::Settings(why);
        let wakeup = settings.poll == Poll::Adaptive;
        let context = Context::new(ContextSettings { wakeup, loopback: settings.loopback }).map_err(failed)?;
        let (waker, woken) = UnixStream::pair().map_err(|error| failed(format!("no pipe: {error}")))?;
        for end in [&waker, &woken] {
            end.set_nonblocking(true).map_err(|error| failed(format!("no pipe: {error}")))?;
        }
        let (orders, received) = channel();
        let (ready, is_ready) = sync_channel(1);
        let counts = Counts::new(metrics);
        let run = move || {
            let made = Worker::new(&context).and_then(|worker| {
                let address = worker.address()?;
                let event = if wakeup { Some(worker.event_fd()?) } else { None };
                Ok((worker, address, event))
            });
            match made {
                Ok((worker, address, event)) => {
                    // The thread that started this one waits.
                    let _ = ready.send(Ok(()));
                    let (sessions, owed, refused, reported) = (HashMap::new(), Vec::new(), Vec::new(), Vec::new());
                    let served =
                        Loop { memory, worker, address, event, sessions, owed, refused, counts, settings, reported };
                    { served }.run(&received, woken);
                }
                Err(why) => drop(ready.send(Err(why))),
            }
        };
        let thread = std::thread::Builder::new().name("farindex-ucx".to_owned()).spawn(run);
        let thread = thread.map_err(|error| failed(format!("no thread: {error}")))?;
        is_ready.recv().map_err(|_| failed("the thread of UCX ended early".to_owned()))?.map_err(failed)?;
        Ok(Arc::new(UcxPlane { orders, waker, thread: Mutex::new(Some(thread)) }))
    }

    fn order(&self, order: Order) {
        // Were the thread gone, there would be nothing left to do.
        let _ = self.orders.send(order);
        // A full pipe means that it will wake anyway.
        let _ = (&self.waker).write(&[0]);
    }
}

impl Plane for UcxPlane {
    fn kind(&self) -> PlaneKind {
        PlaneKind::Ucx
    }
    fn attach(&self, peer: &Peer, request: &[u8]) -> Result<Vec<u8>, Refusal> {
        let (answer, answered) = sync_channel(1);
        self.order(Order::Attach(peer.clone(), request.to_vec(), answer));
        answered.recv_timeout(ATTACH_TIME).map_err(|_| Refusal("the memory node's loop does not answer".to_owned()))?
    }
    fn release(&self, link: u64, request: &[u8]) {
        self.order(Order::Release(link, request.to_vec()));
    }
    fn detach(&self, link: u64) {
        let (done, is_done) = sync_channel(1);
        self.order(Order::Detach(link, done));
        // It looks at its orders between any two requests. Without a promise to keep, waiting for ever is right: an
        // answer that is wrong would break G6. If the thread is gone, so is everything that it could do.
        let _ = is_done.recv();
    }
}

impl Drop for UcxPlane {
    fn drop(&mut self) {
        self.order(Order::Stop);
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // Had it panicked, it would have said so.
            let _ = thread.join();
        }
    }
}

/// Counters of the loop.
struct Counts {
    requests: Counter,
    batches: Counter,
    replies: Counter,
    reads: Counter,
    writes: Counter,
    cas: Counter,
    faa: Counter,
    calls: Counter,
    bytes_read: Counter,
    bytes_written: Counter,
    refused: Counter,
    malformed: Counter,
    strays: Counter,
    sleeps: Counter,
    sessions: Gauge,
}

impl Counts {
    fn new(metrics: &Metrics) -> Self {
        let counts = Counts {
            requests: Counter::default(),
            batches: Counter::default(),
            replies: Counter::default(),
            reads: Counter::default(),
            writes: Counter::default(),
            cas: Counter::default(),
            faa: Counter::default(),
            calls: Counter::default(),
            bytes_read: Counter::default(),
            bytes_written: Counter::default(),
            refused: Counter::default(),
            malformed: Counter::default(),
            strays: Counter::default(),
            sleeps: Counter::default(),
            sessions: Gauge::default(),
        };
        metrics.register(|registry| {
            let registry = registry.sub_registry_with_prefix("ucx");
            for (name, help, counter) in [
                ("requests", "Messages that held batches", &counts.requests),
                ("batches", "Batches, refused ones included", &counts.batches),
                ("replies", "Messages that answered batches", &counts.replies),
                ("reads", "READs", &counts.reads),
                ("writes", "WRITEs", &counts.writes),
                ("cas", "Compare-and-swaps", &counts.cas),
                ("faa", "Fetch-and-adds", &counts.faa),
                ("calls", "Calls, refused ones included", &counts.calls),
                ("bytes_read", "Bytes fetched by READs", &counts.bytes_read),
                ("bytes_written", "Bytes stored by WRITEs", &counts.bytes_written),
                ("refused", "Batches refused for bounds, alignment, rights or size", &counts.refused),
                ("malformed", "Messages that made no sense", &counts.malformed),
                ("strays", "Messages of no connection", &counts.strays),
                ("sleeps", "Times that the loop slept", &counts.sleeps),
            ] {
                registry.register(name, help, counter.clone());
            }
            registry.register("sessions", "Connections of worker threads", counts.sessions.clone());
        });
        counts
    }
    fn add(&self, served: &Served) {
        for (counter, by) in [
            (&self.batches, served.batches),
            (&self.refused, served.refused),
            (&self.reads, served.reads),
            (&self.writes, served.writes),
            (&self.cas, served.cas),
            (&self.faa, served.faa),
            (&self.calls, served.calls),
            (&self.bytes_read, served.bytes_read),
            (&self.bytes_written, served.bytes_written),
        ] {
            if by > 0 {
                counter.inc_by(by);
            }
        }
    }
}

/// A connection of one worker thread of a client.
struct Session {
    ep: EpId,
    peer: Peer,
    /// Of the client's worker.
    address: Vec<u8>,
    requests: u64,
    /// Answers that were not sent yet, and whether there are any.
    reply: Vec<u8>,
    owed: bool,
    /// It is being disconnected: nothing is carried out for it any more.
    expelled: bool,
    /// UCX has lost it, at this time and for this reason.
    lost: Option<(Instant, String)>,
}

struct Loop {
    memory: Arc<NodeMemory>,
    worker: Worker,
    address: Vec<u8>,
    event: Option<RawFd>,
    sessions: HashMap<u64, Session>,
    /// Those that have answers to be sent.
    owed: Vec<u64>,
    /// Batches of the present message that are refused: kept for its room.
    refused: Vec<Refused>,
    counts: Counts,
    settings: UcxSettings,
    /// Transports that were reported.
    reported: Vec<String>,
}

/// How long an adaptive loop polls after the last request before it sleeps.
const SPIN_TIME: Duration = Duration::from_micros(100);
/// It wakes this often even if nothing comes.
const MAX_SLEEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
/// Idle rounds after which a busy loop lets other threads of the machine run.
const ROUNDS: u32 = 256;
/// Bytes of replies that a client may leave unread.
const MAX_UNREAD: usize = 256 << 20;
/// Bytes of replies that ended connections may hold together before new connections are refused.
const MAX_LEFT: usize = 1 << 30;
/// A client whose connection UCX has lost, and which has not released it, is disconnected after this time.
const GRACE: Duration = Duration::from_secs(1);

/// Sends answers. False if the client leaves too many unread.
fn send(worker: &mut Worker, ep: EpId, reply: Vec<u8>, replies: &Counter) -> bool {
    replies.inc();
    // If it cannot be sent, the endpoint has failed, and that is reported as such.
    let _ = worker.send(ep, reply);
    worker.unsent(ep) <= MAX_UNREAD
}

impl Loop {
    fn run(&mut self, orders: &Receiver<Order>, mut woken: UnixStream) {
        let mut last = Instant::now();
        let mut idle: u32 = 0;
        loop {
            let mut any = self.worker.progress();
            loop {
                // Orders come first, between any two requests: what was let go must not take effect any more.
                while let Ok(order) = orders.try_recv() {
                    if !self.obey(order) {
                        return;
                    }
                    any = true;
                }
                let Some(request) = self.worker.received() else { break };
                self.handle(request);
                any = true;
            }
            self.answer_all();
            while let Some((ep, why)) = self.worker.failed() {
                self.lost(ep, &why);
            }
            if any {
                idle = 0;
                continue;
            }
            idle = idle.saturating_add(1);
            if idle == 1 {
                last = Instant::now();
            } else if idle.is_multiple_of(ROUNDS) {
                self.sweep();
                match self.event {
                    Some(event) if last.elapsed() > SPIN_TIME => self.sleep(event, &mut woken),
                    _ => std::thread::yield_now(),
                }
            } else {
                std::hint::spin_loop();
            }
        }
    }

    fn sleep(&self, event: RawFd, woken: &mut UnixStream) {
        // What has come meanwhile is seen by arming, and orders that were sent before it by the pipe.
        if !self.worker.arm().unwrap_or(false) {
            return;
        }
        self.counts.sleeps.inc();
        let mut fds = [
            PollFd::from_borrowed_fd(self.worker.borrow_fd(event), PollFlags::IN),
            PollFd::from_borrowed_fd(woken.as_fd(), PollFlags::IN),
        ];
        // A signal wakes it too.
        let _ = poll(&mut fds, Some(&MAX_SLEEP));
        while woken.read(&mut [0; 64]).is_ok_and(|len| len > 0) {}
    }

    fn handle(&mut self, request: Vec<u8>) {
        self.counts.requests.inc();
        let front = Front::peek(&request).ok();
        let known = |front: &Front| self.sessions.get(&front.session).filter(|session| !session.expelled);
        let Some((id, rights)) = front.and_then(|front| Some((front.session, known(&front)?.peer.rights))) else {
            self.counts.strays.inc();
            return self.worker.recycle(request);
        };
        let memory = Arc::clone(&self.memory);
        let words = memory.region().as_words();
        self.refused.clear();
        let checked = check(&request, words, rights, &mut self.refused);
        if checked.is_ok_and(|checked| checked.calls > 0) {
            // A handler may take long.
            self.answer_all();
        }
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.requests += 1;
        if !std::mem::replace(&mut session.owed, true) {
            session.reply = self.worker.buffer();
            self.owed.push(id);
        }
        let served = checked.and_then(|_| {
            let (worker, ep, replies) = (&mut self.worker, session.ep, &self.counts.replies);
            let mut full = |reply: &mut Vec<u8>| {
                let next = worker.buffer();
                send(worker, ep, std::mem::replace(reply, next), replies)
            };
            let calls = |call: &[u8]| memory.call(call, rights);
            serve(&request, words, &calls, &self.refused, &mut session.reply, &mut full)
        });
        self.worker.recycle(request);
        match served {
            Ok(served) => self.counts.add(&served),
            Err(why) => {
                self.counts.malformed.inc();
                session.expelled = true;
                session.peer.expel(format!("a request made no sense: {why}"));
                return;
            }
        }
        if session.requests == 2
            && let Some(report) = &self.settings.report
        {
            let text = self.worker.transports(session.ep).join(", ");
            if !self.reported.contains(&text) {
                report(&text);
                self.reported.push(text);
            }
        }
        // `full` has noticed it in the middle of the message.
        if self.worker.unsent(session.ep) > MAX_UNREAD {
            session.expelled = true;
            session.peer.expel("it does not read its replies");
        }
    }

    /// Sends the answers that one client is owed.
    fn answer(&mut self, id: u64) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.owed = false;
        let reply = std::mem::take(&mut session.reply);
        if session.expelled || reply.is_empty() {
            self.worker.recycle(reply);
        } else if !send(&mut self.worker, session.ep, reply, &self.counts.replies) {
            session.expelled = true;
            session.peer.expel("it does not read its replies");
        }
    }

    /// Sends all answers.
    fn answer_all(&mut self) {
        let mut owed = std::mem::take(&mut self.owed);
        owed.drain(..).for_each(|id| self.answer(id));
        self.owed = owed;
    }

    /// False if the loop is to end.
    fn obey(&mut self, order: Order) -> bool {
        match order {
            Order::Attach(peer, address, answer) => {
                // A client that does not wait any more is detached soon.
                let _ = answer.send(self.attach(peer, &address));
            }
            Order::Release(link, which) => {
                // Its number; or the address of the client's worker, while the client does not know the number.
                let number = which.as_slice().try_into().ok().map(u64::from_le_bytes);
                self.end_those(link, |id, session| number.map_or(session.address == which, |number| number == id));
            }
            Order::Detach(link, done) => {
                self.end_those(link, |_, _| true);
                // The control thread waits.
                let _ = done.send(());
            }
            Order::Stop => return false,
        }
        true
    }

    fn attach(&mut self, peer: Peer, address: &[u8]) -> Result<Vec<u8>, Refusal> {
        let (left, unread) = self.worker.leaving();
        if unread > MAX_LEFT {
            return Err(Refusal(format!(
                "{left} connections that were ended still hold {} MiB of replies that their clients do not read; end those clients",
                unread >> 20
            )));
        }
        // The number is the right to use the connection, so it cannot be guessed.
        let id = farindex_remote::token::random_u64().map_err(Refusal)?;
        let ep = self.worker.connect(address).map_err(Refusal)?;
        // The client waits for it before it uses UCX: docs/bugs/192. If it cannot be sent, the endpoint has failed, and
        // that is reported as such.
        let mut greeting = self.worker.buffer();
        Greeting { session: id, node: self.memory.node() }.encode(&mut greeting);
        let _ = self.worker.greet(ep, greeting);
        let address = address.to_vec();
        let (requests, reply, owed, expelled, lost) = (0, Vec::new(), false, false, None);
        self.sessions.insert(id, Session { ep, peer, address, requests, reply, owed, expelled, lost });
        self.counts.sessions.inc();
        let mut answer = Vec::new();
        answer.put_u64(id);
        answer.put_counted(&self.address);
        Ok(answer)
    }

    fn end(&mut self, id: u64) {
        if let Some(session) = self.sessions.remove(&id) {
            self.worker.recycle(session.reply);
            self.worker.close(session.ep);
            self.counts.sessions.dec();
        }
    }

    /// Ends connections of one client.
    fn end_those(&mut self, link: u64, which: impl Fn(u64, &Session) -> bool) {
        let those = self.sessions.iter().filter(|(id, session)| session.peer.link == link && which(**id, session));
        let those: Vec<u64> = those.map(|(id, _)| *id).collect();
        those.into_iter().for_each(|id| self.end(id));
    }

    fn lost(&mut self, ep: EpId, why: &str) {
        if let Some(session) = self.sessions.values_mut().find(|session| session.ep == ep) {
            session.lost.get_or_insert((Instant::now(), why.to_owned()));
        }
    }

    fn sweep(&mut self) {
        let late = |session: &Session| session.lost.as_ref().is_some_and(|(since, _)| since.elapsed() > GRACE);
        let late: Vec<u64> = self.sessions.iter().filter(|(_, session)| late(session)).map(|(id, _)| *id).collect();
        for id in late {
            if let Some(Session { peer, lost: Some((_, why)), .. }) = self.sessions.get(&id) {
                peer.expel(format!("its data connection was lost: {why}"));
            }
            self.end(id);
        }
    }
}
