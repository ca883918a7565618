//! The memory node: one thread that serves the control channel.
//!
//! Invariants: the thread waits for nobody: sockets do not block, what a client sends or leaves unread is bounded, and
//! whoever says nothing of sense within [`NodeSettings::greeting`] is shown out; a message that makes no sense ends its
//! own connection and no other; requests of all clients are carried out in one order, so of two clients that revoke
//! each other one wins; when a connection is gone, all that was attached over it has been detached.

mod link;

use crate::control::{Code, Hello, Message, Welcome};
use crate::plane::{Door, Peer};
use crate::token::{Rights, random};
use crate::{Metrics, NodeMemory, Plane, Refusal, Tokens};
use farindex_fabric::{CallRefused, FabricError, Identity};
use link::{Link, Stage};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
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
    /// Who may do what.
    pub tokens: Tokens,
    /// Connections at once.
    pub max_links: usize,
    /// How long a connection may take to say who it is.
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
    door: Arc<Door>,
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
        let door = Arc::new(Door::new(waker));
        let shared = Arc::clone(&door);
        let mut warden =
            Warden { memory, plane, settings, metrics, instance, door: shared, links: BTreeMap::new(), next: 1 };
        let run = move || warden.run(&listener, woken);
        let thread = std::thread::Builder::new().name("farindex-control".to_owned()).spawn(run);
        let thread = thread.map_err(|error| failed("no thread", &error))?;
        Ok(Node { addr, door, thread: Some(thread) })
    }
    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
    /// Ends gracefully: every client is told, and nothing of theirs takes effect once this returns.
    pub fn stop(mut self) {
        self.end();
    }
    fn end(&mut self) {
        self.door.stop();
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

/// What the thread holds.
struct Warden {
    memory: Arc<NodeMemory>,
    plane: Arc<dyn Plane>,
    settings: NodeSettings,
    metrics: Metrics,
    instance: u64,
    door: Arc<Door>,
    links: BTreeMap<u64, Link>,
    next: u64,
}

/// The thread looks at the clock this often even if nothing happens.
const GLANCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };
/// How long farewells may take.
const FAREWELL: Duration = Duration::from_millis(500);

impl Warden {
    fn run(&mut self, listener: &TcpListener, mut woken: UnixStream) {
        loop {
            let (ready, knock) = self.wait(listener, &woken);
            // What is in the pipe only wakes; orders are fetched below.
            while woken.read(&mut [0; 64]).is_ok_and(|len| len > 0) {}
            let orders = self.door.take();
            for (link, why) in orders.expelled {
                self.show_out(link, Code::Malformed, &why);
            }
            if orders.stop {
                return self.close();
            }
            if knock {
                self.admit(listener);
            }
            for id in ready {
                self.serve(id);
            }
            self.sweep();
        }
    }

    /// Waits until something can be done; says for which links, and whether somebody knocks.
    fn wait(&self, listener: &TcpListener, woken: &UnixStream) -> (Vec<u64>, bool) {
        let mut fds = vec![
            PollFd::from_borrowed_fd(woken.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN),
        ];
        fds.extend(self.links.values().map(|link| PollFd::from_borrowed_fd(link.as_fd(), link.wants())));
        if poll(&mut fds, Some(&GLANCE)).is_err() {
            // A signal, or no memory: look at everything, and do not spin.
            std::thread::sleep(Duration::from_millis(1));
            return (self.links.keys().copied().collect(), true);
        }
        let knock = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
        let ids = self.links.keys().zip(fds.iter().skip(2));
        (ids.filter(|(_, fd)| !fd.revents().is_empty()).map(|(id, _)| *id).collect(), knock)
    }

    fn admit(&mut self, listener: &TcpListener) {
        // Each round takes a few, so that a crowd at the door does not starve those inside.
        for _ in 0..16 {
            // Out of descriptors, or gone already: those that wait are seen in the next round.
            let Ok((stream, _)) = listener.accept() else { return };
            let Ok(nonce) = random() else { return };
            let Ok(mut link) = Link::new(stream, nonce) else { continue };
            if self.links.len() >= self.settings.max_links {
                self.metrics.count_refusal(Code::Busy);
                link.farewell(Code::Busy, "this memory node has as many connections as it may");
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
                    return self.show_out(id, code, &why.to_string());
                }
            }
        }
    }

    fn reply(&mut self, id: u64, request: u32, message: Message) {
        if let Some(link) = self.links.get_mut(&id) {
            link.send(request, message);
        }
    }

    /// Ends a connection for what it did.
    fn show_out(&mut self, id: u64, code: Code, why: &str) {
        self.metrics.count_refusal(code);
        self.part(id, code, why);
    }

    /// Ends a connection: when this returns, nothing of what it attached takes effect any more.
    fn part(&mut self, id: u64, code: Code, why: &str) {
        let Some(link) = self.links.get_mut(&id) else { return };
        if link.is_member() {
            self.metrics.clients.dec();
            self.plane.detach(id);
        }
        link.farewell(code, why);
    }

    fn handle(&mut self, id: u64, request: u32, message: Message) {
        let Some(link) = self.links.get(&id) else { return };
        match (link.stage(), message) {
            (Stage::Greeting { nonce, .. }, Message::Hello(hello)) => self.greet(id, request, nonce, &hello),
            (Stage::Member(_, rights), Message::Revoke(_)) if rights != Rights::ReadWrite => {
                self.reply(id, request, Message::error(Code::ReadOnly, "a read-only token revokes nobody"));
            }
            (Stage::Member(..), Message::Revoke(victim)) => self.revoke(id, request, victim),
            (Stage::Member(identity, rights), Message::Attach(asked)) => {
                let answer = self.attach(id, identity, rights, &asked);
                self.reply(id, request, answer);
            }
            (Stage::Member(..), Message::Detach(which)) => self.plane.release(id, &which),
            (Stage::Member(identity, _), Message::Call(asked)) => {
                let answer = self.call(id, identity, &asked);
                self.reply(id, request, answer);
            }
            (Stage::Member(..), Message::Ping) => self.reply(id, request, Message::Pong),
            (Stage::Greeting { .. }, _) => self.show_out(id, Code::Malformed, "say who you are first"),
            (Stage::Member(..), _) => self.show_out(id, Code::Malformed, "this is nothing that a client sends"),
            (Stage::Leaving(_), _) => {}
        }
    }

    fn greet(&mut self, id: u64, request: u32, nonce: [u8; 32], hello: &Hello) {
        let Some(rights) = self.settings.tokens.rights(&hello.proof, &nonce, hello.node, &hello.identity) else {
            return self.show_out(id, Code::BadToken, "the token is none of this memory node's: check --token-file");
        };
        let node = self.memory.node();
        if hello.node.is_some_and(|wanted| wanted != node) {
            return self.show_out(id, Code::WrongNode, &format!("this is memory node {node}"));
        }
        if self.memory.is_revoked(&hello.identity) {
            return self.show_out(id, Code::Revoked, "this client was revoked");
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
            link.let_in(hello.identity, rights);
            self.metrics.admitted.inc();
            self.metrics.clients.inc();
        }
        self.reply(id, request, Message::Welcome(welcome));
    }

    fn attach(&self, id: u64, identity: Identity, rights: Rights, asked: &[u8]) -> Message {
        if identity.token == 0 {
            return Message::error(Code::Refused, "who has no identity attaches nothing");
        }
        let peer = Peer { link: id, identity, rights, door: Arc::clone(&self.door) };
        match self.plane.attach(&peer, asked) {
            Ok(answer) => {
                self.metrics.attached.inc();
                Message::Attached(answer)
            }
            Err(Refusal(why)) => Message::error(Code::Refused, why),
        }
    }

    fn call(&self, id: u64, identity: Identity, asked: &[u8]) -> Message {
        if identity.token == 0 {
            return Message::error(Code::Refused, "a client without an identity calls nothing");
        }
        if self.links.get(&id).is_some_and(Link::is_behind) {
            return Message::error(Code::Busy, "too many replies are unread: wait for some of them");
        }
        match self.memory.call(asked) {
            Ok(reply) => {
                self.metrics.called.inc();
                Message::Called(reply)
            }
            Err(CallRefused(why)) => Message::error(Code::Refused, why),
        }
    }

    fn revoke(&mut self, id: u64, request: u32, victim: Identity) {
        if victim.token == 0 {
            return self.reply(id, request, Message::error(Code::Refused, "token 0 is nobody's"));
        }
        if let Err(why) = self.memory.revoke(&victim) {
            return self.reply(id, request, Message::error(Code::Refused, format!("the revocation {why}")));
        }
        self.metrics.revoked.inc();
        let of_victim =
            |link: &Link| matches!(link.stage(), Stage::Member(identity, _) if identity.token == victim.token);
        let theirs: Vec<u64> = self.links.iter().filter(|(_, link)| of_victim(link)).map(|(id, _)| *id).collect();
        // Who revokes itself hears that it worked, and then that it is shut out.
        for other in theirs.iter().filter(|other| **other != id) {
            self.part(*other, Code::Revoked, "this client was revoked by another one");
        }
        if theirs.contains(&id) {
            self.plane.detach(id);
            self.reply(id, request, Message::Revoked);
            self.part(id, Code::Revoked, "this client revoked itself");
        } else {
            self.reply(id, request, Message::Revoked);
        }
    }

    /// Forgets connections that have ended, and shows out those that say nothing.
    fn sweep(&mut self) {
        let now = Instant::now();
        let late =
            |link: &Link| matches!(link.stage(), Stage::Greeting { since, .. } if since + self.settings.greeting < now);
        let late: Vec<u64> = self.links.iter().filter(|(_, link)| late(link)).map(|(id, _)| *id).collect();
        for id in late {
            self.show_out(id, Code::Malformed, "say who you are sooner");
        }
        let (plane, metrics) = (&self.plane, &self.metrics);
        self.links.retain(|id, link| {
            link.flush();
            let gone = link.is_gone(now);
            if gone && link.is_member() {
                metrics.clients.dec();
                plane.detach(*id);
            }
            !gone
        });
    }

    fn close(&mut self) {
        let everybody: Vec<u64> = self.links.keys().copied().collect();
        for id in everybody {
            self.part(id, Code::Stopping, "the memory node ends");
        }
        let begun = Instant::now();
        while !self.links.is_empty() && begun.elapsed() < FAREWELL {
            self.sweep();
            std::thread::sleep(Duration::from_millis(1));
        }
        self.links.clear();
    }
}
