//! The port that shows counters to Prometheus.
//!
//! Invariants: nothing but `GET /metrics` is answered; no connection delays another one, or the program whose counters are
//! shown; at most `CONNECTIONS` are open, each for `CONNECTION_TIME` at most, and one more closes the oldest.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Connections that are open at once.
const CONNECTIONS: usize = 16;
/// How long a connection may take from its acceptance to the end of the answer.
const CONNECTION_TIME: Duration = Duration::from_secs(1);

/// What writes the counters in Prometheus's text format.
type Text = dyn Fn() -> String + Send + Sync;

/// A connection and the thread that answers it.
struct Connection {
    stream: TcpStream,
    thread: JoinHandle<()>,
}

impl Connection {
    fn start(stream: TcpStream, text: &Arc<Text>) -> io::Result<Self> {
        let (own, text) = (stream.try_clone()?, Arc::clone(text));
        let run = move || {
            // A client that breaks off or takes too long gets nothing.
            let _ = answer(&own, &*text);
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

fn accept(listener: &TcpListener, text: &Arc<Text>, stop: &AtomicBool) {
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
        open.extend(Connection::start(stream, text));
    }
    open.into_iter().for_each(Connection::end);
}

fn answer(mut stream: &TcpStream, text: &Text) -> io::Result<()> {
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
        ("200 OK", "application/openmetrics-text; version=1.0.0; charset=utf-8", text())
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
    /// Shows what `text` returns on a port, until the server is dropped.
    pub fn start(listen: SocketAddr, text: impl Fn() -> String + Send + Sync + 'static) -> io::Result<Self> {
        let listener = TcpListener::bind(listen)?;
        let addr = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, text): (_, Arc<Text>) = (Arc::clone(&stop), Arc::new(text));
        let run = move || accept(&listener, &text, &stopped);
        let thread = std::thread::Builder::new().name("farindex-metrics".to_owned()).spawn(run)?;
        Ok(MetricsServer { addr, stop, thread: Some(thread) })
    }
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
