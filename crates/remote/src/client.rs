//! A client's control connection to one memory node.
//!
//! Invariants: a request gets an answer or an error within the deadline; a connection that is lost is made anew by
//! itself, as long as the node has the same memory and has not revoked the client; what was asked over a lost
//! connection is an error, never asked again; the generation grows with every change, so a data plane sees at the cost
//! of one load that what it attached is gone.

use crate::ControlError;
use crate::control::{Code, Frame, Hello, MAX_FRAME, Message, Welcome};
use crate::token::Token;
use crate::wire::Malformed;
use farindex_fabric::{Identity, NodeId};
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How a client connects.
#[derive(Debug, Clone)]
pub struct ControlSettings {
    /// The token it shows; an empty one where the node takes none.
    pub token: Token,
    /// How long connecting and every answer may take.
    pub deadline: Duration,
}

impl Default for ControlSettings {
    fn default() -> Self {
        ControlSettings { token: Token::default(), deadline: Duration::from_secs(5) }
    }
}

/// State of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Link {
    /// It stands.
    Up,
    /// It was lost, or never made, for this reason; reconnecting goes on.
    Down(ControlError),
    /// It will not come back: the client was revoked, or the memory is gone.
    Ended(ControlError),
}

/// How often an idle connection pings the node.
const PING_EVERY: Duration = Duration::from_secs(1);
/// How long to wait before trying again, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// A control connection. Shared by the threads of a client; dropping it closes it.
pub struct Control {
    shared: Arc<Shared>,
}

struct Shared {
    addr: String,
    node: NodeId,
    identity: Identity,
    region: [u8; 16],
    settings: ControlSettings,
    state: Mutex<State>,
    changed: Condvar,
    generation: AtomicU64,
    connections: AtomicU64,
}

struct State {
    link: Link,
    /// Where requests are written; there while the link is up.
    stream: Option<TcpStream>,
    welcome: Option<Welcome>,
    waiting: HashMap<u32, Arc<Slot>>,
    next: u32,
    /// The first attempt has ended.
    tried: bool,
    stop: bool,
}

/// Where an answer goes.
#[derive(Default)]
struct Slot {
    answer: Mutex<Option<Result<Message, ControlError>>>,
    there: Condvar,
}

impl Slot {
    fn put(&self, answer: Result<Message, ControlError>) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
        self.there.notify_all();
    }
}

/// An answer that may not have arrived yet.
pub struct Pending {
    slot: Arc<Slot>,
    asked: Instant,
    deadline: Duration,
    addr: String,
    generation: u64,
}

impl Pending {
    /// The [`generation`](Control::generation) that it was asked in: of the connection that it went over, if there was one.
    pub fn generation(&self) -> u64 {
        self.generation
    }
    fn silent(&self) -> ControlError {
        ControlError::Silent { addr: self.addr.clone(), after: self.deadline }
    }
    /// Takes the answer if it has arrived, or the error once the deadline has passed.
    pub fn poll(&self) -> Option<Result<Message, ControlError>> {
        let answer = self.slot.answer.lock().unwrap_or_else(PoisonError::into_inner).take();
        answer.or_else(|| (self.asked.elapsed() > self.deadline).then(|| Err(self.silent())))
    }
    /// Waits for the answer.
    pub fn wait(self) -> Result<Message, ControlError> {
        let answer = self.slot.answer.lock().unwrap_or_else(PoisonError::into_inner);
        let left = self.deadline.saturating_sub(self.asked.elapsed());
        let waited = self.slot.there.wait_timeout_while(answer, left, |answer| answer.is_none());
        let (mut answer, _) = waited.unwrap_or_else(PoisonError::into_inner);
        answer.take().unwrap_or_else(|| Err(self.silent()))
    }
}

impl Control {
    /// Asks a node for its Welcome: number, size, data plane. No connection stays open.
    pub fn look(addr: &str, settings: &ControlSettings) -> Result<Welcome, ControlError> {
        let (_, welcome) = greet(addr, None, &Identity::default(), settings)?;
        Ok(welcome)
    }

    /// Connects to the node that [`look`](Self::look) has described in `expected`. Waits for the first attempt only: if
    /// it fails, further ones follow in the background, and [`link`](Self::link) says so.
    pub fn open(
        addr: &str,
        identity: Identity,
        expected: &Welcome,
        settings: &ControlSettings,
    ) -> Result<Self, ControlError> {
        let state = State {
            link: Link::Down(ControlError::Local("it is not connected yet".to_owned())),
            stream: None,
            welcome: None,
            waiting: HashMap::new(),
            next: 1,
            tried: false,
            stop: false,
        };
        let shared = Arc::new(Shared {
            addr: addr.to_owned(),
            node: expected.node,
            identity,
            region: expected.region,
            settings: settings.clone(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            generation: AtomicU64::new(0),
            connections: AtomicU64::new(0),
        });
        let theirs = Arc::clone(&shared);
        let spawned = std::thread::Builder::new().name("farindex-link".to_owned()).spawn(move || theirs.run());
        spawned.map_err(|error| ControlError::Local(format!("cannot start a thread: {error}")))?;
        let control = Control { shared };
        let state = control.shared.lock();
        drop(control.shared.changed.wait_while(state, |state| !state.tried).unwrap_or_else(PoisonError::into_inner));
        match control.link() {
            Link::Ended(error) => Err(error),
            Link::Up | Link::Down(_) => Ok(control),
        }
    }

    /// How it is.
    pub fn link(&self) -> Link {
        self.shared.lock().link.clone()
    }
    /// Grows with every change of [`link`](Self::link).
    pub fn generation(&self) -> u64 {
        self.shared.generation.load(Ordering::Acquire)
    }
    /// How many times it was made. The node has ended all that was attached over earlier ones before it admits the client
    /// again, so nothing of that takes effect any more.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Acquire)
    }
    /// What the node said when it admitted this client; `None` while it is down.
    pub fn welcome(&self) -> Option<Welcome> {
        self.shared.lock().welcome.clone()
    }
    /// The node's number.
    pub fn node(&self) -> NodeId {
        self.shared.node
    }
    /// Where it is.
    pub fn addr(&self) -> &str {
        &self.shared.addr
    }
    /// Asks for one more connection of the data plane; the answer is [`Message::Attached`].
    pub fn attach(&self, request: Vec<u8>) -> Pending {
        self.shared.ask(Message::Attach(request))
    }
    /// Attaches, waits, and returns the node's half.
    pub fn attach_now(&self, request: Vec<u8>) -> Result<Vec<u8>, ControlError> {
        match self.attach(request).wait()? {
            Message::Attached(answer) => Ok(answer),
            _ => Err(ControlError::Lost { addr: self.shared.addr.clone(), why: "it gave a wrong answer".to_owned() }),
        }
    }
    /// Says that a connection of the data plane is not used any more. There is no answer, and none is needed: what was
    /// attached over a control connection ends with it.
    pub fn detach(&self, which: Vec<u8>) {
        drop(self.shared.ask(Message::Detach(which)));
    }
    /// Calls the node; the answer is [`Message::Called`].
    pub fn call(&self, request: Vec<u8>) -> Pending {
        self.shared.ask(Message::Call(request))
    }
    /// Asks to revoke a client (G6); the answer is [`Message::Revoked`].
    pub fn revoke(&self, identity: Identity) -> Pending {
        self.shared.ask(Message::Revoke(identity))
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.stop = true;
        if let Some(stream) = &state.stream {
            // Its thread finds the end. The connection may be gone already.
            let _ = stream.shutdown(Shutdown::Both);
        }
        drop(state);
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, message: Message) -> Pending {
        let slot = Arc::new(Slot::default());
        let mut state = self.lock();
        let pending = Pending {
            slot: Arc::clone(&slot),
            asked: Instant::now(),
            deadline: self.settings.deadline,
            addr: self.addr.clone(),
            // It changes under the lock alone.
            generation: self.generation.load(Ordering::Acquire),
        };
        if let Link::Down(error) | Link::Ended(error) = &state.link {
            slot.put(Err(error.clone()));
            return pending;
        }
        let request = state.next;
        state.next = state.next.wrapping_add(1).max(1);
        state.waiting.insert(request, Arc::clone(&slot));
        // Those whose deadline has passed have no more use for an answer.
        state.waiting.retain(|_, slot| Arc::strong_count(slot) > 1);
        let mut bytes = Vec::new();
        Frame { request, message }.encode(&mut bytes);
        // The reader sees a broken connection too, and fails all that wait.
        if let Some(Err(_)) = state.stream.as_ref().map(|mut stream| stream.write_all(&bytes)) {
            let lost = ControlError::Lost { addr: self.addr.clone(), why: "nothing can be sent".to_owned() };
            state.waiting.remove(&request);
            slot.put(Err(lost));
        }
        pending
    }

    fn turn(&self, link: Link, stream: Option<TcpStream>, welcome: Option<Welcome>) {
        let mut state = self.lock();
        let why = match &link {
            Link::Down(error) | Link::Ended(error) => Some(error.clone()),
            Link::Up => None,
        };
        if link == Link::Up {
            self.connections.fetch_add(1, Ordering::AcqRel);
        }
        if state.link != link {
            state.link = link;
            self.generation.fetch_add(1, Ordering::AcqRel);
        }
        (state.stream, state.welcome, state.tried) = (stream, welcome, true);
        for (_, slot) in state.waiting.drain() {
            let lost = || ControlError::Lost { addr: self.addr.clone(), why: "it was made anew".to_owned() };
            slot.put(Err(why.clone().unwrap_or_else(lost)));
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Runs the connection's thread: connects, reads until the connection ends, and tries again.
    fn run(&self) {
        let mut pause = RETRY.0;
        loop {
            let error = match self.connect() {
                Ok((reader, welcome)) => match reader.stream.try_clone() {
                    Ok(writer) => {
                        self.turn(Link::Up, Some(writer), Some(welcome));
                        pause = RETRY.0;
                        self.read(reader)
                    }
                    Err(error) => ControlError::Local(format!("no more connections can be had: {error}")),
                },
                Err(error) => error,
            };
            let ended = matches!(
                error,
                ControlError::Revoked | ControlError::OtherMemory { .. } | ControlError::WrongNode { .. }
            );
            self.turn(if ended { Link::Ended(error) } else { Link::Down(error) }, None, None);
            let state = self.lock();
            let waited = self.changed.wait_timeout_while(state, pause, |state| !state.stop);
            let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if state.stop || ended {
                return;
            }
            pause = (pause * 2).min(RETRY.1);
        }
    }

    fn connect(&self) -> Result<(FrameReader, Welcome), ControlError> {
        let (reader, welcome) = greet(&self.addr, Some(self.node), &self.identity, &self.settings)?;
        if welcome.region != self.region {
            return Err(ControlError::OtherMemory { addr: self.addr.clone() });
        }
        if self.lock().stop {
            return Err(ControlError::Local("it is closed".to_owned()));
        }
        Ok((reader, welcome))
    }

    /// Delivers answers until the connection ends; says why it did.
    fn read(&self, mut reader: FrameReader) -> ControlError {
        let lost = |why: String| ControlError::Lost { addr: self.addr.clone(), why };
        // Counts turns and not time: a process that was stopped for long has read nothing meanwhile, and answers may
        // wait for it.
        let (mut unheard, patience) = (0, 1 + self.settings.deadline.as_millis() / PING_EVERY.as_millis().max(1));
        loop {
            match reader.next(PING_EVERY) {
                Ok(Some(frame)) => {
                    unheard = 0;
                    if let Err(error) = self.deliver(frame) {
                        return error;
                    }
                }
                Ok(None) if unheard >= patience => {
                    return ControlError::Silent { addr: self.addr.clone(), after: self.settings.deadline };
                }
                Ok(None) => {
                    unheard += 1;
                    let mut ping = Vec::new();
                    Frame::alone(Message::Ping).encode(&mut ping);
                    let state = self.lock();
                    if state.stop {
                        return lost("it was closed".to_owned());
                    }
                    if let Some(Err(error)) = state.stream.as_ref().map(|mut stream| stream.write_all(&ping)) {
                        return lost(error.to_string());
                    }
                }
                Err(error) => return error,
            }
        }
    }

    fn deliver(&self, frame: Frame) -> Result<(), ControlError> {
        let answer = match frame.message {
            Message::Error { code, text } => Err(refusal(&self.addr, code, text)),
            message => Ok(message),
        };
        if frame.request == 0 {
            // A closing error, or the answer to a ping.
            return answer.map(drop);
        }
        // The caller may have stopped waiting.
        if let Some(slot) = self.lock().waiting.remove(&frame.request) {
            slot.put(answer);
        }
        Ok(())
    }
}

fn refusal(addr: &str, code: Code, text: String) -> ControlError {
    match code {
        Code::Revoked => ControlError::Revoked,
        code => ControlError::Refused { addr: addr.to_owned(), code, text },
    }
}

/// Reads whole frames.
struct FrameReader {
    stream: TcpStream,
    bytes: Vec<u8>,
    addr: String,
}

impl FrameReader {
    fn new(stream: TcpStream, addr: &str) -> Self {
        FrameReader { stream, bytes: Vec::new(), addr: addr.to_owned() }
    }
    fn lost(&self, why: impl ToString) -> ControlError {
        ControlError::Lost { addr: self.addr.clone(), why: why.to_string() }
    }
    /// The next frame; `None` if none came within `patience`.
    fn next(&mut self, patience: Duration) -> Result<Option<Frame>, ControlError> {
        let begun = Instant::now();
        loop {
            let decoded = Frame::decode(&self.bytes);
            let decoded = decoded.map_err(|why| ControlError::Foreign { addr: self.addr.clone(), why })?;
            if let Some((frame, len)) = decoded {
                self.bytes.drain(..len);
                return Ok(Some(frame));
            }
            let left = patience.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            self.stream.set_read_timeout(Some(left)).map_err(|error| self.lost(error))?;
            let mut piece = [0; 4096];
            debug_assert!(self.bytes.len() <= MAX_FRAME);
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(self.lost("the memory node closed it")),
                Ok(len) => self.bytes.extend_from_slice(piece.get(..len).unwrap_or_default()),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    _ => return Err(self.lost(error)),
                },
            }
        }
    }
}

/// Connects and is admitted, or not.
fn greet(
    addr: &str,
    node: Option<NodeId>,
    identity: &Identity,
    settings: &ControlSettings,
) -> Result<(FrameReader, Welcome), ControlError> {
    let unreachable = |why: String| ControlError::Unreachable { addr: addr.to_owned(), why };
    let silent = || ControlError::Silent { addr: addr.to_owned(), after: settings.deadline };
    let places = addr.to_socket_addrs().map_err(|error| unreachable(error.to_string()))?;
    let mut last = unreachable("the name has no address".to_owned());
    let connected = places.into_iter().find_map(|place| {
        let stream = TcpStream::connect_timeout(&place, settings.deadline);
        stream.map_err(|error| last = unreachable(error.to_string())).ok()
    });
    let Some(stream) = connected else { return Err(last) };
    let prepared = stream.set_nodelay(true).and_then(|()| stream.set_write_timeout(Some(settings.deadline)));
    prepared.map_err(|error| unreachable(error.to_string()))?;
    let writer = stream.try_clone().map_err(|error| unreachable(error.to_string()))?;
    let mut reader = FrameReader::new(stream, addr);
    let foreign = || ControlError::Foreign { addr: addr.to_owned(), why: Malformed::Magic };

    let nonce = match reader.next(settings.deadline)?.ok_or_else(silent)?.message {
        Message::Challenge(nonce) => nonce,
        Message::Error { code, text } => return Err(refusal(addr, code, text)),
        _ => return Err(foreign()),
    };
    let mut bytes = Vec::new();
    let proof = settings.token.prove(&nonce, node, identity);
    Frame { request: 1, message: Message::Hello(Hello { node, identity: *identity, proof }) }.encode(&mut bytes);
    (&writer).write_all(&bytes).map_err(|error| unreachable(error.to_string()))?;
    match reader.next(settings.deadline)?.ok_or_else(silent)?.message {
        Message::Welcome(welcome) => Ok((reader, welcome)),
        Message::Error { code, text } => Err(refusal(addr, code, text)),
        _ => Err(foreign()),
    }
}
