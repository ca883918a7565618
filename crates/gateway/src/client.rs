//! A client of this gateway: its connection, what it has sent, and the replies that it has not read.
//!
//! Invariants: a client holds no buffer while nothing of a request and nothing of a reply is waiting, so ten thousand
//! idle ones cost little; the bytes that all clients of a thread hold are counted, and a client that would exceed the
//! limits is disconnected, never another one.

use crate::resp::{Parser, Protocol, Reply};
use mio::net::TcpStream;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Bytes that one read takes at most, and the length of buffers that clients share.
pub(crate) const BUFFER: usize = 64 << 10;

/// What commands know and change about their client.
pub(crate) struct Identity {
    pub(crate) row: Arc<Row>,
    /// It has shown the password, or needs none.
    pub(crate) known: bool,
    /// It has said QUIT: the connection ends behind the replies.
    pub(crate) leaving: bool,
    /// Its last command.
    pub(crate) last: &'static str,
}

/// What a client has sent and has not been carried out.
#[derive(Default)]
pub(crate) struct Input {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    pub(crate) fn bytes(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).unwrap_or_default()
    }
    pub(crate) fn consume(&mut self, len: usize) {
        self.start = (self.start + len).min(self.end);
    }
}

/// A client.
pub(crate) struct Client {
    stream: TcpStream,
    pub(crate) input: Input,
    pub(crate) parser: Parser,
    pub(crate) reply: Reply,
    pub(crate) identity: Identity,
    /// Bytes of it that the thread has counted.
    counted: usize,
    /// When it last sent something, and since when it has not taken what is to be sent.
    pub(crate) active: Instant,
    pub(crate) blocked: Option<Instant>,
    /// The connection is to be closed: at once, or behind the replies.
    pub(crate) broken: bool,
    pub(crate) closing: bool,
    pub(crate) end_of_input: bool,
    /// There may be whole commands in the input: the last turn was long enough.
    pub(crate) has_commands: bool,
}

/// What one read has brought.
pub(crate) struct Taken {
    pub(crate) bytes: usize,
    /// There may be more.
    pub(crate) more: bool,
}

/// Buffers that clients of a thread share, and how much memory all of them hold.
#[derive(Default)]
pub(crate) struct Buffers {
    /// Of `BUFFER` bytes each, for requests; they are not zeroed again.
    for_input: Vec<Vec<u8>>,
    /// Empty ones, for replies.
    for_replies: Vec<Vec<u8>>,
    pub(crate) held: usize,
}

/// Spare buffers that are kept.
const SPARE: usize = 64;

impl Buffers {
    fn input(&mut self) -> Vec<u8> {
        self.for_input.pop().unwrap_or_else(|| vec![0; BUFFER])
    }
    fn give_input(&mut self, buffer: Vec<u8>) {
        if self.for_input.len() < SPARE && buffer.len() == BUFFER {
            self.for_input.push(buffer);
        }
    }
    fn replies(&mut self) -> Vec<u8> {
        self.for_replies.pop().unwrap_or_default()
    }
    fn give_replies(&mut self, buffer: Vec<u8>) {
        if self.for_replies.len() < SPARE && buffer.capacity() <= 2 * BUFFER {
            self.for_replies.push(buffer);
        }
    }
}

impl Client {
    pub(crate) fn new(stream: TcpStream, row: Arc<Row>, known: bool) -> Self {
        Client {
            stream,
            input: Input::default(),
            parser: Parser::default(),
            reply: Reply::default(),
            identity: Identity { row, known, leaving: false, last: "NULL" },
            counted: 0,
            active: Instant::now(),
            blocked: None,
            broken: false,
            closing: false,
            end_of_input: false,
            has_commands: false,
        }
    }
    pub(crate) fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// Reads once. `most` is how long an unfinished request may be.
    pub(crate) fn read(&mut self, buffers: &mut Buffers, most: usize) -> Taken {
        let input = &mut self.input;
        if input.buffer.is_empty() {
            input.buffer = buffers.input();
        }
        if input.start > 0 {
            input.buffer.copy_within(input.start..input.end, 0);
            (input.start, input.end) = (0, input.end - input.start);
        }
        if input.end == input.buffer.len() {
            // It grows with what has come, not with what was announced; but not beyond what the request needs.
            let wanted = (2 * input.end).min(self.parser.wants().max(input.end) + BUFFER).min(most + BUFFER);
            input.buffer.resize(wanted.max(input.end + 1), 0);
        }
        let room = input.buffer.get_mut(input.end..).unwrap_or_default();
        let len = room.len();
        loop {
            match self.stream.read(room) {
                Ok(0) => {
                    self.end_of_input = true;
                    return Taken { bytes: 0, more: false };
                }
                Ok(bytes) => {
                    input.end += bytes;
                    return Taken { bytes, more: bytes == len };
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Taken { bytes: 0, more: false },
                Err(_) => {
                    self.broken = true;
                    return Taken { bytes: 0, more: false };
                }
            }
        }
    }

    /// Sends what can be sent; returns how many bytes that were.
    pub(crate) fn write(&mut self) -> usize {
        let mut sent = 0;
        let result = loop {
            let rest = self.reply.bytes().get(sent..).unwrap_or_default();
            if rest.is_empty() {
                break Ok(());
            }
            match self.stream.write(rest) {
                Ok(0) => break Err(io::Error::from(ErrorKind::WriteZero)),
                Ok(bytes) => sent += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        self.reply.sent(sent);
        self.broken |= result.is_err();
        self.blocked = match self.reply.is_empty() {
            true => None,
            false if sent > 0 => Some(Instant::now()),
            false => self.blocked.or_else(|| Some(Instant::now())),
        };
        sent
    }

    /// Takes a buffer for replies.
    pub(crate) fn before_run(&mut self, buffers: &mut Buffers) {
        if self.reply.memory() == 0 {
            self.reply.give_buffer(buffers.replies());
        }
    }
    /// Gives back the buffers that it needs no more, and counts the others.
    pub(crate) fn after_run(&mut self, buffers: &mut Buffers) {
        if self.input.start == self.input.end {
            buffers.give_input(std::mem::take(&mut self.input).buffer);
        }
        if let Some(buffer) = self.reply.take_buffer() {
            buffers.give_replies(buffer);
        }
        let holds = self.input.buffer.len() + self.reply.memory() + self.parser.memory();
        buffers.held = buffers.held - self.counted + holds;
        self.counted = holds;
    }
    /// Bytes of buffers that it holds.
    pub(crate) fn holds(&self) -> usize {
        self.counted
    }
    /// Takes it out of the count.
    pub(crate) fn forget(&mut self, buffers: &mut Buffers) {
        buffers.held -= std::mem::take(&mut self.counted);
    }
}

/// A client, as `CLIENT LIST` shows it from any thread.
pub(crate) struct Row {
    pub(crate) id: i64,
    peer: SocketAddr,
    local: SocketAddr,
    since: Instant,
    /// Seconds after `since` at which it last sent something.
    active: AtomicU64,
    about: Mutex<About>,
}

/// What a client says about itself.
#[derive(Default)]
pub(crate) struct About {
    pub(crate) name: String,
    pub(crate) library: String,
    pub(crate) library_version: String,
}

impl Row {
    pub(crate) fn with<T>(&self, look: impl FnOnce(&mut About) -> T) -> T {
        look(&mut self.about.lock().unwrap_or_else(PoisonError::into_inner))
    }
    pub(crate) fn touch(&self, now: Instant) {
        self.active.store(now.saturating_duration_since(self.since).as_secs(), Relaxed);
    }
    /// The line about it.
    pub(crate) fn line(&self, protocol: Protocol, last: &str) -> String {
        let age = self.since.elapsed().as_secs();
        let idle = age.saturating_sub(self.active.load(Relaxed));
        let resp = if protocol == Protocol::Resp2 { 2 } else { 3 };
        let (id, peer, local) = (self.id, self.peer, self.local);
        self.with(|About { name, library, library_version }| {
            format!(
                "id={id} addr={peer} laddr={local} fd=0 name={name} age={age} idle={idle} flags=N db=0 sub=0 psub=0 ssub=0 \
                 multi=-1 qbuf=0 qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll=0 omem=0 tot-mem=0 events=r \
                 cmd={last} user=default redir=-1 resp={resp} lib-name={library} lib-ver={library_version}"
            )
        })
    }
}

/// The clients of this gateway.
#[derive(Default)]
pub(crate) struct Clients {
    rows: Mutex<BTreeMap<i64, Arc<Row>>>,
    last: AtomicI64,
}

impl Clients {
    pub(crate) fn add(&self, peer: SocketAddr, local: SocketAddr) -> Arc<Row> {
        let id = self.last.fetch_add(1, Relaxed) + 1;
        let (active, about) = (AtomicU64::new(0), Mutex::default());
        let row = Arc::new(Row { id, peer, local, since: Instant::now(), active, about });
        self.lock().insert(id, Arc::clone(&row));
        row
    }
    pub(crate) fn remove(&self, id: i64) {
        self.lock().remove(&id);
    }
    pub(crate) fn all(&self) -> Vec<Arc<Row>> {
        self.lock().values().cloned().collect()
    }
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<i64, Arc<Row>>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
