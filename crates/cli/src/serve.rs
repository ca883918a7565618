//! `farindex serve`: the memory-node daemon.

use crate::exit::Failure;
use crate::output::Json;
use crate::pool_arg::parse_size;
use clap::ValueEnum;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Serve memory to clients elsewhere: one memory node of a pool
///
/// Prints one line once clients can connect: `memory node N serves BYTES bytes over FABRIC at ADDR`. Ends gracefully on
/// SIGINT, SIGTERM and SIGHUP. Without --file, its memory is lost when it ends; a file keeps the pool, and can be
/// served again. Clients use it by `--connect ADDR[,ADDR...]`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What carries the verbs
    #[arg(long, value_enum)]
    fabric: Network,
    /// Address at which clients connect. Any address but loopback takes --token-file too. Port 0 picks a free port
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:4040")]
    listen: SocketAddr,
    /// Bytes to serve, such as 8GiB; an existing file is served in its own length
    #[arg(long, value_name = "BYTES", value_parser = parse_size, required_unless_present = "file")]
    size: Option<u64>,
    /// Keep the memory in this file; PATH.node next to it records revoked clients
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// The tokens that clients may show, and their rights: lines `read-write TOKEN` and `read-only TOKEN`
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Number of this memory node within its pool, from 0
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..1023))]
    node_id: u16,
    /// How it waits for requests (ucx): busy occupies a core and answers soonest, adaptive sleeps while none arrive
    #[arg(long, value_enum, default_value = "adaptive")]
    poll: PollMode,
    /// Show Prometheus metrics here, as http://ADDR/metrics
    #[arg(long, value_name = "ADDR")]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    json: Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Network {
    /// UCX active messages: any network, and shared memory
    Ucx,
    /// RDMA verbs
    Verbs,
}

/// How a memory node waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PollMode {
    /// Polls without a pause
    Busy,
    /// Sleeps while no requests arrive
    Adaptive,
}

#[cfg(not(feature = "remote"))]
pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    let Args { listen: _, size: _, file: _, token_file: _, node_id: _, poll: _, metrics: _, json: _, fabric } = args;
    Err(missing(*fabric))
}

/// This build does not have that fabric.
fn missing(fabric: Network) -> Failure {
    let (name, needs) = match fabric {
        Network::Ucx => ("ucx", "running needs UCX (package libucx0)"),
        Network::Verbs => {
            ("verbs", "building needs cmake and libclang, running needs libibverbs (package libibverbs1)")
        }
    };
    Failure::usage(format!(
        "this farindex was built without the {name} fabric: build it with `cargo build --release --features {name}`; {needs}"
    ))
}

#[cfg(feature = "remote")]
pub(crate) use daemon::run;

#[cfg(feature = "remote")]
mod daemon {
    use super::{Args, Network, PollMode, missing};
    use crate::exit::{self, Failure};
    use crate::output::note;
    use crate::signals;
    use farindex_fabric::NodeId;
    use farindex_remote::{Metrics, Node, NodeMemory, NodeSettings, Plane, Tokens};
    use serde_json::json;
    use std::sync::Arc;

    fn plane(args: &Args, memory: &Arc<NodeMemory>, metrics: &Metrics) -> Result<Arc<dyn Plane>, Failure> {
        match args.fabric {
            #[cfg(feature = "ucx")]
            Network::Ucx => {
                use farindex_ucx::{Poll, UcxPlane, UcxSettings};
                let poll = match args.poll {
                    PollMode::Busy => Poll::Busy,
                    PollMode::Adaptive => Poll::Adaptive,
                };
                let report = |transports: &str| note(format!("ucx has chosen {transports}"));
                let loopback = args.listen.ip().is_loopback();
                let settings = UcxSettings { poll, loopback, report: Some(Arc::new(report)) };
                Ok(UcxPlane::start(Arc::clone(memory), settings, metrics).map_err(farindex::Error::from)?)
            }
            #[cfg(all(feature = "verbs", target_os = "linux"))]
            Network::Verbs => {
                use farindex_verbs::{DeviceOptions, VerbsPlane};
                let options = DeviceOptions::from_environment().map_err(farindex::Error::from)?;
                let plane = VerbsPlane::new(Arc::clone(memory), &options).map_err(farindex::Error::from)?;
                note(format!("verbs go through device {}", plane.device().name()));
                Ok(Arc::new(plane))
            }
            #[allow(unreachable_patterns)]
            fabric => {
                let _ = (memory, metrics, PollMode::Busy);
                Err(missing(fabric))
            }
        }
    }

    pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
        let tokens = match &args.token_file {
            Some(path) => Tokens::read(path).map_err(|why| Failure::new(exit::FILE, why))?,
            None => Tokens::open(),
        };
        // From here on a signal is queued until the loop below takes it.
        let mut signals = signals::watch()?;
        let node = NodeId::new(args.node_id);
        let memory = match (&args.file, args.size) {
            (Some(path), size) => NodeMemory::file(node, path, size),
            (None, Some(size)) => NodeMemory::anonymous(node, size),
            (None, None) => return Err(Failure::usage("it takes --size or --file")),
        };
        // Calls read and change what a client may READ and WRITE anyway.
        let handler = farindex_index::call_table().into_handler();
        let memory = memory.map_err(farindex::Error::from)?.with_call_handler(handler);
        let memory = Arc::new(memory);
        let metrics = Metrics::new();
        let plane = plane(args, &memory, &metrics)?;
        let settings = NodeSettings::new(args.listen, tokens);
        let served =
            Node::start(Arc::clone(&memory), plane, settings, metrics.clone()).map_err(farindex::Error::from)?;
        let shown = args.metrics.map(|addr| metrics.serve(addr)).transpose();
        let shown = shown.map_err(|error| Failure::file("--metrics", "cannot be listened on", &error))?;
        if let Some(shown) = &shown {
            note(format!("metrics at http://{}/metrics", shown.addr()));
        }
        let (bytes, fabric, addr) = (memory.region().len(), super::name(args.fabric), served.addr());
        let ready = json!({
            "node": args.node_id, "bytes": bytes, "fabric": fabric, "address": addr.to_string(),
            "metrics": shown.as_ref().map(|shown| shown.addr().to_string()),
        });
        args.json.give(&ready, || format!("memory node {node} serves {bytes} bytes over {fabric} at {addr}\n"))?;
        let signal = signals.forever().next();
        note(format!("ending on signal {}", signal.unwrap_or_default()));
        served.stop();
        Ok(exit::OK)
    }
}

#[cfg(feature = "remote")]
fn name(fabric: Network) -> &'static str {
    match fabric {
        Network::Ucx => "ucx",
        Network::Verbs => "verbs",
    }
}
