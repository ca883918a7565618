//! Counters of a memory node, and the port that shows them to Prometheus.
//!
//! Invariants: nothing but `GET /metrics` is answered; no connection delays another one, or a client of the memory; at
//! most `CONNECTIONS` are open, each for `CONNECTION_TIME` at most, and one more closes the oldest.

use crate::control::Code;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Connections that are open at once.
const CONNECTIONS: usize = 16;
/// How long a connection may take from its acceptance to the end of the answer.
const CONNECTION_TIME: Duration = Duration::from_secs(1);

/// Counters of the control thread.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
    /// Control connections that are admitted.
    pub clients: Gauge,
    /// Connections that were ever admitted.
    pub admitted: Counter,
    /// Connections that were refused, or ended for a violation.
    pub refused: Counter,
    /// Those of them whose token was wrong.
    pub bad_tokens: Counter,
    /// Connections of the data plane that were set up.
    pub attached: Counter,
    /// Clients that were revoked.
    pub revoked: Counter,
    /// Calls that were answered over the control channel.
    pub called: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All at zero.
    pub fn new() -> Self {
        let metrics = Metrics {
            registry: Arc::new(Mutex::new(Registry::with_prefix("farindex"))),
            clients: Gauge::default(),
            admitted: Counter::default(),
            refused: Counter::default(),
            bad_tokens: Counter::default(),
            attached: Counter::default(),
            revoked: Counter::default(),
            called: Counter::default(),
        };
        metrics.register(|registry| {
            registry.register("clients", "Control connections that are admitted", metrics.clients.clone());
            registry.register("admitted", "Control connections admitted so far", metrics.admitted.clone());
            registry.register("refused", "Connections refused, or ended for a violation", metrics.refused.clone());
            registry.register("bad_tokens", "Connections refused for their token", metrics.bad_tokens.clone());
            registry.register("attached", "Connections of the data plane set up so far", metrics.attached.clone());
            registry.register("revoked", "Clients revoked so far", metrics.revoked.clone());
            registry.register("called", "Calls answered over the control channel so far", metrics.called.clone());
        });
        metrics
    }
    /// Registers the counters of a data plane.
    pub fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner));
    }
    /// All of them in Prometheus's text format.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut text, &self.registry.lock().unwrap_or_else(PoisonError::into_inner));
        text
    }
    pub(crate) fn count_refusal(&self, code: Code) {
        self.refused.inc();
        if code == Code::BadToken {
            self.bad_tokens.inc();
        }
    }
    /// Serves them on a port until the server is dropped.
    pub fn serve(&self, listen: SocketAddr) -> io::Result<MetricsServer> {
        let listener = TcpListener::bind(listen)?;
        let addr = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, metrics) = (Arc::clone(&stop), self.clone());
        let run = move || accept(&listener, &metrics, &stopped);
        let thread = std::thread::Builder::new().name("farindex-metrics".to_owned()).spawn(run)?;
        Ok(MetricsServer { addr, stop, thread: Some(thread) })
    }
}

/// A connection and the thread that answers it.
struct Connection {
    stream: TcpStream,
    thread: JoinHandle<()>,
}

impl Connection {
    fn start(stream: TcpStream, metrics: &Metrics) -> io::Result<Self> {
        let (own, metrics) = (stream.try_clone()?, metrics.clone());
        let run = move || {
            // A client that breaks off or takes too long gets nothing.
            let _ = answer(&own, &metrics);
            // The other handle would keep the connection open.
            let _ = own.shutdown(Shutdown::Both);
        };
        let thread = std::thread::Builder::new().name("farindex-metrics".to_owned()).spawn(run)?;
        Ok(Connection { stream, thread })
    }
    /// Closes it, which ends its thread.
    fn end(self) {
        // It may be closed already.
        let _ = self.stream.shutdown(Shutdown::Both);
        // Had it panicked, it would have said so.
        let _ = self.thread.join();
    }
}

fn accept(listener: &TcpListener, metrics: &Metrics, stop: &AtomicBool) {
    let mut open: VecDeque<Connection> = VecDeque::new();
    for stream in listener.incoming() {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        let Ok(stream) = stream else {
            // No descriptor is left, perhaps: asked again at once, it would be refused again at once.
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        open.retain(|connection| !connection.thread.is_finished());
        if open.len() >= CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            oldest.end();
        }
        // Without a thread there is no answer: the connection is closed.
        open.extend(Connection::start(stream, metrics));
    }
    open.into_iter().for_each(Connection::end);
}

fn answer(mut stream: &TcpStream, metrics: &Metrics) -> io::Result<()> {
    let deadline = Instant::now() + CONNECTION_TIME;
    let left = || {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::Error::from(ErrorKind::TimedOut)) } else { Ok(Some(left)) }
    };
    let mut asked = Vec::new();
    let mut piece = [0; 1024];
    while !asked.windows(4).any(|end| end == b"\r\n\r\n") && asked.len() < 16 << 10 {
        stream.set_read_timeout(left()?)?;
        match stream.read(&mut piece)? {
            0 => break,
            len => asked.extend_from_slice(piece.get(..len).unwrap_or_default()),
        }
    }
    let (status, kind, body) = if asked.starts_with(b"GET /metrics ") {
        ("200 OK", "application/openmetrics-text; version=1.0.0; charset=utf-8", metrics.text())
    } else {
        ("404 Not Found", "text/plain", "only GET /metrics is answered here\n".to_owned())
    };
    let len = body.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{body}"
    );
    stream.set_write_timeout(left()?)?;
    stream.write_all(answer.as_bytes())
}

/// The port that shows the counters. Dropping it closes the port.
pub struct MetricsServer {
    addr: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl MetricsServer {
    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // It waits for a connection: this is one.
        let woken = TcpStream::connect_timeout(&self.addr, Duration::from_secs(1)).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            // Had it panicked, it would have said so.
            let _ = thread.join();
        }
    }
}
