//! The memory node: one thread that serves the control channel.
//!
//! Invariants: the thread never blocks on a client: sockets do not block, what a client sends or leaves unread is
//! bounded, and a client that sends no valid Hello within [`NodeSettings::greeting`] is disconnected; a malformed
//! message ends its own connection and no other; requests of all clients are carried out in one order, so of two
//! clients that revoke each other one wins; when a connection is gone, all that was attached over it has been detached.

mod link;

use crate::control::{Code, Hello, Message, Welcome};
use crate::plane::{Inbox, Peer};
use crate::token::{Rights, random};
use crate::{Metrics, NodeMemory, Plane, Refusal, Tokens};
use farindex_fabric::{CallRefused, FabricError, Identity};
use link::{Link, Stage};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How a node serves.
#[derive(Debug, Clone)]
pub struct NodeSettings {
    /// Where it listens. Beyond loopback it takes tokens.
    pub listen: SocketAddr,
    /// The tokens, and what each allows.
    pub tokens: Tokens,
    /// Connections at once.
    pub max_links: usize,
    /// How long a connection may take to send Hello.
    pub greeting: Duration,
}

impl NodeSettings {
    /// The usual limits.
    pub fn new(listen: SocketAddr, tokens: Tokens) -> Self {
        NodeSettings { listen, tokens, max_links: 4096, greeting: Duration::from_secs(5) }
    }
}

/// A memory node at work.
pub struct Node {
    addr: SocketAddr,
    inbox: Arc<Inbox>,
    thread: Option<JoinHandle<()>>,
}

impl Node {
    /// Begins to serve.
    pub fn start(
        memory: Arc<NodeMemory>,
        plane: Arc<dyn Plane>,
        settings: NodeSettings,
        metrics: Metrics,
    ) -> Result<Node, FabricError> {
        let listen = settings.listen;
        if settings.tokens.is_open() && !listen.ip().is_loopback() {
            return Err(FabricError::Settings(format!(
                "{listen} can be reached from elsewhere: that takes --token-file (or listen on 127.0.0.1)"
            )));
        }
        let failed =
            |what: &str, error: &dyn std::fmt::Display| FabricError::Settings(format!("{listen}: {what}: {error}"));
        let listener = TcpListener::bind(listen).map_err(|error| failed("cannot be listened on", &error))?;
        let addr = listener.local_addr().map_err(|error| failed("has no address", &error))?;
        listener.set_nonblocking(true).map_err(|error| failed("cannot be polled", &error))?;
        let (waker, woken) = UnixStream::pair().map_err(|error| failed("no pipe", &error))?;
        for end in [&waker, &woken] {
            end.set_nonblocking(true).map_err(|error| failed("cannot be polled", &error))?;
        }
        let instance = u64::from_le_bytes(random().map_err(|why| failed("no name for this run", &why))?);
        let inbox = Arc::new(Inbox::new(waker));
        let shared = Arc::clone(&inbox);
        let mut server = ControlServer {
            memory,
            plane,
            settings,
            metrics,
            instance,
            inbox: shared,
            links: BTreeMap::new(),
            next: 1,
            swept: Instant::now(),
        };
        let run = move || server.run(&listener, woken);
        let thread = std::thread::Builder::new().name("farindex-control".to_owned()).spawn(run);
        let thread = thread.map_err(|error| failed("no thread", &error))?;
        Ok(Node { addr, inbox, thread: Some(thread) })
    }
    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
    /// Ends gracefully: every client gets a closing error, and nothing of theirs takes effect once this returns.
    pub fn stop(mut self) {
        self.end();
    }
    fn end(&mut self) {
        self.inbox.stop();
        if let Some(thread) = self.thread.take() {
            // Had it panicked, it would have said so.
            let _ = thread.join();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.end();
    }
}

/// State of the control thread.
struct ControlServer {
    memory: Arc<NodeMemory>,
    plane: Arc<dyn Plane>,
    settings: NodeSettings,
    metrics: Metrics,
    instance: u64,
    inbox: Arc<Inbox>,
    links: BTreeMap<u64, Link>,
    next: u64,
    /// When the connections were looked through last.
    swept: Instant,
}

/// The thread checks the clock this often even if nothing happens.
const LONGEST_WAIT: Duration = Duration::from_millis(250);
/// Without many clients, the thread wakes without an allocation.
type Few<T> = SmallVec<[T; 32]>;
/// How long closing may take.
const CLOSING_TIME: Duration = Duration::from_millis(500);

impl ControlServer {
    fn run(&mut self, listener: &TcpListener, mut woken: UnixStream) {
        loop {
            let (ready, incoming) = self.wait(listener, &woken);
            // What is in the pipe only wakes; orders are fetched below.
            while woken.read(&mut [0; 64]).is_ok_and(|len| len > 0) {}
            let orders = self.inbox.take();
            for (link, why) in orders.expelled {
                self.expel(link, Code::Malformed, &why);
            }
            if orders.stop {
                return self.close();
            }
            if incoming {
                self.admit(listener);
            }
            for id in ready {
                self.serve(id);
            }
            self.sweep();
        }
    }

    /// Waits until something can be done; returns for which links, and whether a client connects.
    fn wait(&self, listener: &TcpListener, woken: &UnixStream) -> (Few<u64>, bool) {
        let first = [woken.as_fd(), listener.as_fd()];
        let mut fds: Few<_> = first.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).into_iter().collect();
        fds.extend(self.links.values().map(|link| PollFd::from_borrowed_fd(link.as_fd(), link.wants())));
        let longest = Timespec { tv_sec: 0, tv_nsec: LONGEST_WAIT.subsec_nanos().into() };
        if poll(&mut fds, Some(&longest)).is_err() {
            // A signal, or no memory: look at everything, and do not spin.
            std::thread::sleep(Duration::from_millis(1));
            return (self.links.keys().copied().collect(), true);
        }
        let incoming = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
        let ids = self.links.keys().zip(fds.iter().skip(2));
        (ids.filter(|(_, fd)| !fd.revents().is_empty()).map(|(id, _)| *id).collect(), incoming)
    }

    fn admit(&mut self, listener: &TcpListener) {
        // Each round takes a few, so that many new connections do not starve the admitted ones.
        for _ in 0..16 {
            // Out of descriptors, or gone already: those that wait are seen in the next round.
            let Ok((stream, _)) = listener.accept() else { return };
            let Ok(nonce) = random() else { return };
            let Ok(mut link) = Link::new(stream, nonce) else { continue };
            if self.links.len() >= self.settings.max_links {
                self.metrics.count_refusal(Code::Busy);
                link.close(Code::Busy, "this memory node has reached its limit of connections");
            }
            self.links.insert(self.next, link);
            self.next += 1;
        }
    }

    fn serve(&mut self, id: u64) {
        let Some(link) = self.links.get_mut(&id) else { return };
        link.flush();
        link.fill();
        // A client may send many requests at once, and each is carried out before the next is looked at.
        while let Some(link) = self.links.get_mut(&id) {
            match link.next_frame() {
                Ok(None) => return,
                Ok(Some(frame)) => self.handle(id, frame.request, frame.message),
                Err(why) => {
                    let code = match why {
                        crate::wire::Malformed::Version { .. } => Code::Version,
                        _ => Code::Malformed,
                    };
                    return self.expel(id, code, &why.to_string());
                }
            }
        }
    }

    fn reply(&mut self, id: u64, request: u32, message: Message) {
        if let Some(link) = self.links.get_mut(&id) {
            link.send(request, message);
        }
    }

    /// Ends a connection for a violation, and counts it.
    fn expel(&mut self, id: u64, code: Code, why: &str) {
        self.metrics.count_refusal(code);
        self.end_link(id, code, why);
    }

    /// Ends a connection: when this returns, nothing of what it attached takes effect any more.
    fn end_link(&mut self, id: u64, code: Code, why: &str) {
        let Some(link) = self.links.get_mut(&id) else { return };
        if link.is_member() {
            self.metrics.clients.dec();
            self.plane.detach(id);
        }
        link.close(code, why);
    }

    fn handle(&mut self, id: u64, request: u32, message: Message) {
        let Some(link) = self.links.get(&id) else { return };
        match (link.stage(), message) {
            (Stage::Greeting { nonce, .. }, Message::Hello(hello)) => self.greet(id, request, nonce, &hello),
            (Stage::Member(_, rights), Message::Revoke(_)) if rights != Rights::ReadWrite => {
                self.reply(id, request, Message::error(Code::ReadOnly, "a read-only token cannot revoke a client"));
            }
            (Stage::Member(..), Message::Revoke(victim)) => self.revoke(id, request, victim),
            (Stage::Member(identity, rights), Message::Attach(asked)) => {
                let answer = self.attach(id, identity, rights, &asked);
                self.reply(id, request, answer);
            }
            (Stage::Member(..), Message::Detach(which)) => self.plane.release(id, &which),
            (Stage::Member(identity, rights), Message::Call(asked)) => {
                let answer = self.call(id, identity, rights, &asked);
                self.reply(id, request, answer);
            }
            (Stage::Member(..), Message::Ping) => self.reply(id, request, Message::Pong),
            (Stage::Greeting { .. }, _) => self.expel(id, Code::Malformed, "send Hello first"),
            (Stage::Member(..), _) => self.expel(id, Code::Malformed, "a client does not send this message"),
            (Stage::Closing(_), _) => {}
        }
    }

    fn greet(&mut self, id: u64, request: u32, nonce: [u8; 32], hello: &Hello) {
        let Some(rights) = self.settings.tokens.rights(&hello.proof, &nonce, hello.node, &hello.identity) else {
            return self.expel(id, Code::BadToken, "this memory node does not know the token: check --token-file");
        };
        let node = self.memory.node();
        if hello.node.is_some_and(|wanted| wanted != node) {
            return self.expel(id, Code::WrongNode, &format!("this is memory node {node}"));
        }
        if self.memory.is_revoked(&hello.identity) {
            return self.expel(id, Code::Revoked, "this client was revoked");
        }
        // What it has sent before it connects again has taken effect, or never does.
        for earlier in self.links_of(&hello.identity) {
            self.end_link(earlier, Code::Malformed, "this client has connected again");
        }
        let welcome = Welcome {
            node,
            rights,
            plane: self.plane.kind(),
            zeroed: self.memory.region().zeroed(),
            calls: self.memory.answers_calls(),
            len: self.memory.region().len(),
            region: self.memory.name(),
            instance: self.instance,
            parameters: self.plane.parameters(),
        };
        if let Some(link) = self.links.get_mut(&id) {
            link.admitted(hello.identity, rights);
            self.metrics.admitted.inc();
            self.metrics.clients.inc();
        }
        self.reply(id, request, Message::Welcome(welcome));
    }

    fn attach(&self, id: u64, identity: Identity, rights: Rights, asked: &[u8]) -> Message {
        if identity.token == 0 {
            return Message::error(Code::Refused, "a client without an identity cannot attach");
        }
        let peer = Peer { link: id, identity, rights, inbox: Arc::clone(&self.inbox) };
        match self.plane.attach(&peer, asked) {
            Ok(answer) => {
                self.metrics.attached.inc();
                Message::Attached(answer)
            }
            Err(Refusal(why)) => Message::error(Code::Refused, why),
        }
    }

    fn call(&self, id: u64, identity: Identity, rights: Rights, asked: &[u8]) -> Message {
        if identity.token == 0 {
            return Message::error(Code::Refused, "a client without an identity cannot call");
        }
        if self.links.get(&id).is_some_and(Link::is_behind) {
            return Message::error(Code::Busy, "too many replies are unread: wait for some of them");
        }
        match self.memory.call(asked, rights) {
            Ok(reply) => {
                self.metrics.called.inc();
                Message::Called(reply)
            }
            Err(CallRefused(why)) => Message::error(Code::Refused, why),
        }
    }

    fn revoke(&mut self, id: u64, request: u32, victim: Identity) {
        if victim.token == 0 {
            return self.reply(id, request, Message::error(Code::Refused, "token 0 names no client"));
        }
        if let Err(why) = self.memory.revoke(&victim) {
            return self.reply(id, request, Message::error(Code::Refused, format!("the revocation {why}")));
        }
        self.metrics.revoked.inc();
        let theirs = self.links_of(&victim);
        // A client that revokes itself gets Revoked, and then the closing error.
        for other in theirs.iter().filter(|other| **other != id) {
            self.end_link(*other, Code::Revoked, "this client was revoked by another one");
        }
        if theirs.contains(&id) {
            self.plane.detach(id);
            self.reply(id, request, Message::Revoked);
            self.end_link(id, Code::Revoked, "this client revoked itself");
        } else {
            self.reply(id, request, Message::Revoked);
        }
    }

    /// The connections of an admitted client; none without an identity.
    fn links_of(&self, client: &Identity) -> Vec<u64> {
        let of_client = |link: &Link| match link.stage() {
            Stage::Member(identity, _) => identity.token == client.token && client.token != 0,
            Stage::Greeting { .. } | Stage::Closing(_) => false,
        };
        self.links.iter().filter(|(_, link)| of_client(link)).map(|(id, _)| *id).collect()
    }

    /// Drops connections that have ended, and disconnects those that sent no Hello in time.
    fn sweep(&mut self) {
        let now = Instant::now();
        // While this thread was held up it has read nothing, and a Hello may wait for it: that is not the client's time.
        let passed = now.saturating_duration_since(self.swept).min(2 * LONGEST_WAIT);
        self.swept = now;
        let greeting = self.settings.greeting;
        let late = |link: &mut Link| link.waited(passed).is_some_and(|waited| waited > greeting);
        let late: Vec<u64> = self.links.iter_mut().filter_map(|(id, link)| late(link).then_some(*id)).collect();
        for id in late {
            self.expel(id, Code::Malformed, "no Hello came in time");
        }
        let (plane, metrics) = (&self.plane, &self.metrics);
        self.links.retain(|id, link| {
            link.flush();
            let gone = link.is_finished(now);
            if gone && link.is_member() {
                metrics.clients.dec();
                plane.detach(*id);
            }
            !gone
        });
    }

    fn close(&mut self) {
        let all: Vec<u64> = self.links.keys().copied().collect();
        for id in all {
            self.end_link(id, Code::Stopping, "the memory node ends");
        }
        let begun = Instant::now();
        while !self.links.is_empty() && begun.elapsed() < CLOSING_TIME {
            self.sweep();
            std::thread::sleep(Duration::from_millis(1));
        }
        self.links.clear();
    }
}
