//! One control connection, on the memory node's side.
//!
//! Invariants: at most one frame and one read more is held of what a client sends; at most [`MAX_UNREAD`] of what it
//! does not read; after the closing error nothing is read any more.

use crate::control::{Code, Frame, MAX_FRAME, Message};
use crate::token::{NONCE_LEN, Rights};
use crate::wire::Malformed;
use farindex_fabric::Identity;
use rustix::event::PollFlags;
use rustix::net::sockopt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Bytes that a client may leave unread.
const MAX_UNREAD: usize = 1 << 20;
/// How long a client may take to read the closing error.
const CLOSING_TIME: Duration = Duration::from_secs(1);
/// A peer whose machine is gone is noticed after about 25 seconds.
const KEEPALIVE: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(5)];

/// State of the connection.
#[derive(Clone, Copy)]
pub(super) enum Stage {
    /// The challenge was sent, and for so long Hello could have been read.
    Greeting { nonce: [u8; NONCE_LEN], waited: Duration },
    /// The client was admitted.
    Member(Identity, Rights),
    /// The closing error was sent, at this time.
    Closing(Instant),
}

pub(super) struct Link {
    stream: TcpStream,
    stage: Stage,
    inbound: Vec<u8>,
    outbound: Vec<u8>,
    /// The connection failed.
    broken: bool,
}

impl Link {
    pub(super) fn new(stream: TcpStream, nonce: [u8; NONCE_LEN]) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        let [idle, interval] = KEEPALIVE;
        sockopt::set_tcp_keepidle(&stream, idle)?;
        sockopt::set_tcp_keepintvl(&stream, interval)?;
        sockopt::set_tcp_keepcnt(&stream, 3)?;
        let stage = Stage::Greeting { nonce, waited: Duration::ZERO };
        let mut link = Link { stream, stage, inbound: Vec::new(), outbound: Vec::new(), broken: false };
        link.send(0, Message::Challenge(nonce));
        Ok(link)
    }
    pub(super) fn stage(&self) -> Stage {
        self.stage
    }
    /// Adds to the time for which Hello could have been read, and returns it; `None` if none is expected.
    pub(super) fn waited(&mut self, passed: Duration) -> Option<Duration> {
        let Stage::Greeting { waited, .. } = &mut self.stage else { return None };
        *waited += passed;
        Some(*waited)
    }
    pub(super) fn is_member(&self) -> bool {
        matches!(self.stage, Stage::Member(..))
    }
    pub(super) fn admitted(&mut self, identity: Identity, rights: Rights) {
        self.stage = Stage::Member(identity, rights);
    }
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
    /// The events to poll for.
    pub(super) fn wants(&self) -> PollFlags {
        let reads = if matches!(self.stage, Stage::Closing(_)) { PollFlags::empty() } else { PollFlags::IN };
        if self.outbound.is_empty() { reads } else { reads | PollFlags::OUT }
    }

    /// Reads what has arrived, as far as there is room.
    pub(super) fn fill(&mut self) {
        if matches!(self.stage, Stage::Closing(_)) {
            return;
        }
        let mut piece = [0; 4096];
        while self.inbound.len() < MAX_FRAME {
            match self.stream.read(&mut piece) {
                Ok(0) => {
                    self.broken = true;
                    return;
                }
                Ok(len) => self.inbound.extend_from_slice(piece.get(..len).unwrap_or_default()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.broken = true;
                    return;
                }
            }
        }
    }
    /// The next whole frame.
    pub(super) fn next_frame(&mut self) -> Result<Option<Frame>, Malformed> {
        if matches!(self.stage, Stage::Closing(_)) {
            return Ok(None);
        }
        let Some((frame, len)) = Frame::decode(&self.inbound)? else { return Ok(None) };
        self.inbound.drain(..len);
        Ok(Some(frame))
    }

    pub(super) fn send(&mut self, request: u32, message: Message) {
        Frame { request, message }.encode(&mut self.outbound);
        if self.outbound.len() > MAX_UNREAD {
            self.broken = true;
        }
        self.flush();
    }
    /// Has the client left so much unread that no more large answers should be added?
    pub(super) fn is_behind(&self) -> bool {
        self.outbound.len() > MAX_UNREAD / 2
    }
    /// Writes what the socket takes.
    pub(super) fn flush(&mut self) {
        while !self.outbound.is_empty() && !self.broken {
            match self.stream.write(&self.outbound) {
                Ok(len) => drop(self.outbound.drain(..len)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.broken = true,
            }
        }
    }
    /// Sends the closing error. Nothing is read from the connection any more.
    pub(super) fn close(&mut self, code: Code, why: &str) {
        if !matches!(self.stage, Stage::Closing(_)) {
            self.send(0, Message::error(code, why));
            self.stage = Stage::Closing(Instant::now());
            self.shut_down_if_flushed();
        }
    }
    /// Shuts the sending side down once the last byte was sent, so that the client sees the end.
    fn shut_down_if_flushed(&mut self) {
        if self.outbound.is_empty() {
            // It may be gone already.
            let _ = self.stream.shutdown(Shutdown::Write);
        }
    }
    /// Can the connection be dropped?
    pub(super) fn is_finished(&mut self, now: Instant) -> bool {
        let Stage::Closing(since) = self.stage else { return self.broken };
        self.shut_down_if_flushed();
        // What is left unread at the end would make the system discard the closing error: it is read and dropped, until
        // the other side has closed too, or has had its time.
        let mut piece = [0; 4096];
        loop {
            match self.stream.read(&mut piece) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => return true,
            }
        }
        self.broken || since + CLOSING_TIME < now
    }
}
