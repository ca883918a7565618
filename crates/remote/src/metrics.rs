//! Counters of a memory node.

use crate::control::Code;
pub use farindex_metrics::MetricsServer;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

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
        let metrics = self.clone();
        MetricsServer::start(listen, move || metrics.text())
    }
}
