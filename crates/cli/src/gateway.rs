//! `farindex gateway`.

use crate::exit::{self, Failure};
use crate::output::{Json, note};
use crate::pool_arg::{Place, parse_size};
use crate::signals;
use farindex::Pool;
use farindex_gateway::{Gateway, GatewayError, Limits, Names, Password, Settings};
use serde_json::json;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Serve a pool to clients of Redis: any number of gateways serve the same keys
///
/// Prints one line once clients can connect: `gateway at ADDR`. Ends gracefully on SIGINT, SIGTERM and SIGHUP. It keeps
/// nothing that ends with it: the keys are in the pool, for every other gateway, and it may be killed at any moment.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    /// Address at which clients connect. Any address but loopback takes --password-file too. Port 0 picks a free port
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:6379")]
    listen: SocketAddr,
    /// The index that has the keys; created if it is not there
    #[arg(long, value_name = "NAME", default_value = "redis")]
    index: String,
    /// The ordered index that has the members of sorted sets; created if it is not there
    #[arg(long, value_name = "NAME", default_value = "redis-sorted")]
    ordered: String,
    /// Worker threads: each has a session and clients of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// The password that clients show (AUTH): the first line of this file
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Show Prometheus metrics here, as http://ADDR/metrics
    #[arg(long, value_name = "ADDR")]
    metrics: Option<SocketAddr>,
    /// Most connections at once
    #[arg(long, value_name = "N", default_value = "10000", value_parser = parse_size)]
    max_clients: u64,
    /// Most bytes of one request
    #[arg(long, value_name = "BYTES", default_value = "64MiB", value_parser = parse_size)]
    max_request: u64,
    /// Most bytes of replies that may wait for a client: one that does not read them is disconnected
    #[arg(long, value_name = "BYTES", default_value = "256MiB", value_parser = parse_size)]
    max_output: u64,
    /// Most bytes of buffers of all clients together: one that needs more is disconnected
    #[arg(long, value_name = "BYTES", default_value = "1GiB", value_parser = parse_size)]
    client_memory: u64,
    /// Disconnect clients that have sent nothing for so long, such as 10min; for ever unless set
    #[arg(long, value_name = "TIME", value_parser = farindex::size::parse_duration)]
    idle: Option<Duration>,
    /// The pause between two sweeps for expired keys and garbage
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = farindex::size::parse_duration)]
    sweep_pause: Duration,
    #[command(flatten)]
    json: Json,
}

/// The password in a file: its first line.
fn password(path: &Path) -> Result<Password, Failure> {
    let bytes = std::fs::read(path).map_err(|error| Failure::file(path.display(), "cannot be read", &error))?;
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.is_empty() {
        return Err(Failure::new(
            exit::FILE,
            format!("{}: its first line is empty: write the password there", path.display()),
        ));
    }
    Ok(Password::new(line))
}

impl Args {
    fn settings(&self) -> Result<Settings, Failure> {
        if self.index == self.ordered {
            return Err(Failure::usage("--index and --ordered name the same index: it takes two"));
        }
        let bytes = |what: &str, bytes: u64, most: u64| match bytes {
            bytes if (1 << 16..=most).contains(&bytes) => Ok(usize::try_from(bytes).unwrap_or(usize::MAX)),
            bytes => Err(Failure::usage(format!("{what} {bytes}: it takes 64KiB to {most} bytes"))),
        };
        let mut limits = Limits {
            clients: usize::try_from(self.max_clients).unwrap_or(usize::MAX),
            output: bytes("--max-output", self.max_output, 1 << 40)?,
            buffers: bytes("--client-memory", self.client_memory, 1 << 40)?,
            idle: self.idle,
            ..Limits::default()
        };
        limits.requests.request = bytes("--max-request", self.max_request, 2 << 30)?;
        limits.requests.argument = limits.requests.argument.min(limits.requests.request);
        Ok(Settings {
            threads: self.threads.into(),
            password: self.password_file.as_deref().map(password).transpose()?,
            names: Names { index: self.index.clone(), ordered: self.ordered.clone() },
            limits,
            sweep_pause: self.sweep_pause,
            ..Settings::new(self.listen)
        })
    }
}

impl From<GatewayError> for Failure {
    fn from(error: GatewayError) -> Self {
        let code = match &error {
            GatewayError::Pool(why) => exit::code_of(why),
            GatewayError::NoPassword { .. } => exit::USAGE,
            GatewayError::Panicked => exit::BUG,
            _ => exit::FILE,
        };
        Failure::new(code, error.to_string())
    }
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    let settings = args.settings()?;
    let url = args.place.url()?;
    // From here on a signal is queued until the thread below takes it.
    let mut signals = signals::watch()?;
    let gateway = Gateway::start(move || Pool::open(&url), settings)?;
    let metrics = args.metrics.map(|addr| gateway.serve_metrics(addr)).transpose();
    let metrics = metrics.map_err(|error| Failure::file("--metrics", "cannot be listened on", &error))?;
    if let Some(metrics) = &metrics {
        note(format!("metrics at http://{}/metrics", metrics.addr()));
    }
    let stopper = gateway.stopper();
    let wait = move || {
        if let Some(signal) = signals.forever().next() {
            note(format!("ending on signal {signal}"));
            stopper.stop();
        }
    };
    std::thread::Builder::new()
        .name("farindex-signals".to_owned())
        .spawn(wait)
        .map_err(|error| Failure::new(exit::BUG, format!("signals cannot be watched: {error}")))?;
    let address = gateway.address();
    let ready = json!({
        "address": address.to_string(), "index": args.index, "ordered": args.ordered,
        "metrics": metrics.as_ref().map(|metrics| metrics.addr().to_string()),
    });
    args.json.give(&ready, || format!("gateway at {address}\n"))?;
    gateway.wait()?;
    Ok(exit::OK)
}
