//! A running gateway: its threads, and what they share.
//!
//! Invariants: a worker thread has a session of its own and the clients that it was given, and takes no lock while it
//! serves them; what ends one thread ends the gateway, with a reason.

use crate::client::Clients;
use crate::counters::Counters;
use crate::fail::is_eviction;
use crate::settings::{Limits, Names, Password, Settings};
use crate::store::Store;
use crate::store::sorted::Periods;
use crate::sweep;
use crate::worker::{Inbox, Worker};
use farindex::{Error, Pool};
use farindex_metrics::MetricsServer;
use mio::net::TcpListener;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Why a gateway does not start, or has ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GatewayError {
    /// The address cannot be listened on.
    #[error("{addr} cannot be listened on: {why}")]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// The reason.
        why: io::Error,
    },
    /// Anybody could read and change everything.
    #[error("{addr} is not a loopback address: clients from elsewhere need a password (--password-file FILE)")]
    NoPassword {
        /// The address.
        addr: SocketAddr,
    },
    /// A system call failed that a gateway cannot do without.
    #[error("{what}: {why}")]
    System {
        /// What was to be done.
        what: &'static str,
        /// The reason.
        why: io::Error,
    },
    /// The pool or its indexes.
    #[error(transparent)]
    Pool(#[from] Error),
    /// A thread has panicked: a bug.
    #[error("a thread of the gateway has panicked")]
    Panicked,
}

/// What all threads of a gateway share.
pub(crate) struct Shared {
    pub(crate) address: SocketAddr,
    pub(crate) threads: usize,
    pub(crate) password: Option<Password>,
    pub(crate) limits: Limits,
    pub(crate) names: Names,
    pub(crate) sweep_pause: Duration,
    /// What the rules of sorted sets wait for.
    pub(crate) periods: Periods,
    pub(crate) started: Instant,
    pub(crate) clients: Clients,
    pub(crate) counters: Counters,
    pub(crate) pools: Pools,
    stopping: AtomicBool,
    ended: Mutex<Option<GatewayError>>,
    /// Signalled when `stopping` or `ended` has changed.
    changed: Condvar,
    inboxes: Mutex<Vec<Arc<Inbox>>>,
}

impl Shared {
    pub(crate) fn new(address: SocketAddr, settings: Settings, pools: Pools) -> Self {
        Shared {
            address,
            threads: settings.threads.max(1),
            password: settings.password,
            limits: settings.limits,
            names: settings.names,
            sweep_pause: settings.sweep_pause,
            periods: Periods::REAL,
            started: Instant::now(),
            clients: Clients::default(),
            counters: Counters::default(),
            pools,
            stopping: AtomicBool::new(false),
            ended: Mutex::new(None),
            changed: Condvar::new(),
            inboxes: Mutex::default(),
        }
    }
    pub(crate) fn stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }
    /// Ends all threads.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        drop(self.lock_ended());
        self.changed.notify_all();
        for inbox in self.inboxes().iter() {
            inbox.wake();
        }
    }
    /// Ends all threads for this reason, unless there is one.
    pub(crate) fn fail(&self, why: GatewayError) {
        self.lock_ended().get_or_insert(why);
        self.stop();
    }
    /// Waits for so long, or until the gateway is to end.
    pub(crate) fn rest(&self, time: Duration) {
        let ended = self.lock_ended();
        drop(self.changed.wait_timeout_while(ended, time, |_| !self.stopping()));
    }
    fn lock_ended(&self) -> MutexGuard<'_, Option<GatewayError>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
    pub(crate) fn inboxes(&self) -> MutexGuard<'_, Vec<Arc<Inbox>>> {
        self.inboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens a pool, at the start and after this process was evicted from it.
pub type OpenPool = dyn Fn() -> Result<Pool, Error> + Send + Sync;

/// This process's place in the pool.
pub(crate) struct Pools {
    open: Box<OpenPool>,
    current: Mutex<(u64, Pool)>,
}

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;

/// How long a gateway tries to register again.
const REGISTER_AGAIN: Duration = Duration::from_secs(30);

impl Pools {
    pub(crate) fn new(open: Box<OpenPool>) -> Result<Self, Error> {
        let pool = open()?;
        Ok(Pools { open, current: Mutex::new((0, pool)) })
    }
    /// The pool, and how often it was opened before.
    pub(crate) fn current(&self) -> (u64, Pool) {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        (current.0, current.1.clone())
    }
    /// Registers again, unless another thread has done so since registration `seen`.
    pub(crate) fn renew(&self, seen: u64, shared: &Shared) -> Result<(), Error> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.0 != seen {
            return Ok(());
        }
        let until = Instant::now() + REGISTER_AGAIN;
        loop {
            match (self.open)() {
                Ok(pool) => {
                    *current = (seen + 1, pool);
                    shared.counters.evictions.inc();
                    return Ok(());
                }
                Err(error) if Instant::now() > until || shared.stopping() => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(200)),
            }
        }
    }
}

/// A running gateway. Dropping it ends it.
pub struct Gateway {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Gateway {
    /// Opens the pool and its indexes, creates the indexes that are not there, and serves clients from then on. `open` is
    /// called again if this process is evicted from the pool.
    pub fn start(
        open: impl Fn() -> Result<Pool, Error> + Send + Sync + 'static,
        settings: Settings,
    ) -> Result<Gateway, GatewayError> {
        let listen = settings.listen;
        if !listen.ip().is_loopback() && settings.password.is_none() {
            return Err(GatewayError::NoPassword { addr: listen });
        }
        let pools = Pools::new(Box::new(open))?;
        // What is wrong with the indexes shows here, not in a thread.
        Store::open(&pools.current().1.session()?, &settings.names, Periods::REAL)?;
        let listener = TcpListener::bind(listen).map_err(|why| GatewayError::Listen { addr: listen, why })?;
        // The library lets 128 wait: of a crowd that connects at once, the others would try again a second later. The
        // system's own limit applies, and a refusal leaves what was there.
        let _ = rustix::net::listen(&listener, BACKLOG);
        let address = listener.local_addr().map_err(|why| GatewayError::Listen { addr: listen, why })?;
        let shared = Arc::new(Shared::new(address, settings, pools));
        let mut gateway = Gateway { shared: Arc::clone(&shared), threads: Vec::new() };
        let (dropped, to_erase) = std::sync::mpsc::sync_channel(1 << 12);
        let mut workers = Vec::new();
        let mut listener = Some(listener);
        for _ in 0..shared.threads {
            let worker = Worker::new(Arc::clone(&shared), listener.take(), dropped.clone());
            workers.push(worker.map_err(|why| GatewayError::System { what: "waiting for connections", why })?);
        }
        *shared.inboxes() = workers.iter().map(Worker::inbox).collect();
        for worker in workers {
            gateway.spawn("farindex-gateway", move || worker.run())?;
        }
        gateway.spawn("farindex-sweep", move || sweep::run(&shared, &to_erase))?;
        Ok(gateway)
    }

    /// Starts a thread whose error or panic ends the gateway.
    fn spawn(
        &mut self,
        name: &str,
        run: impl FnOnce() -> Result<(), GatewayError> + Send + 'static,
    ) -> Result<(), GatewayError> {
        /// Notices that its thread panics.
        struct Guard(Arc<Shared>);
        impl Drop for Guard {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    self.0.fail(GatewayError::Panicked);
                }
            }
        }
        let guard = Guard(Arc::clone(&self.shared));
        let body = move || {
            if let Err(why) = run() {
                guard.0.fail(why);
            }
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(body);
        self.threads.push(thread.map_err(|why| GatewayError::System { what: "starting a thread", why })?);
        Ok(())
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }
    /// Shows the counters to Prometheus, as `http://ADDR/metrics`, until the server is dropped.
    pub fn serve_metrics(&self, listen: SocketAddr) -> io::Result<MetricsServer> {
        let shared = Arc::clone(&self.shared);
        MetricsServer::start(listen, move || shared.counters.text())
    }
    /// What ends it from another thread.
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.shared))
    }
    /// Blocks until it was stopped or has failed, and all its threads have ended.
    pub fn wait(mut self) -> Result<(), GatewayError> {
        while !self.shared.stopping() {
            self.shared.rest(Duration::from_secs(3600));
        }
        self.join();
        match self.shared.lock_ended().take() {
            Some(why) => Err(why),
            None => Ok(()),
        }
    }
    /// Ends it: commands that have begun are carried out, and their replies sent as far as clients take them.
    pub fn stop(self) -> Result<(), GatewayError> {
        self.shared.stop();
        self.wait()
    }
    fn join(&mut self) {
        for thread in self.threads.drain(..) {
            // A panic is noted already.
            let _ = thread.join();
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.shared.stop();
        self.join();
    }
}

/// Ends a gateway from any thread.
#[derive(Clone)]
pub struct Stopper(Arc<Shared>);

impl Stopper {
    /// Lets [`Gateway::wait`] return.
    pub fn stop(&self) {
        self.0.stop();
    }
}

/// Is this an error after which registering again helps?
pub(crate) fn helps_to_renew(why: &GatewayError) -> bool {
    matches!(why, GatewayError::Pool(error) if is_eviction(error))
}
