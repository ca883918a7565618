//! One endpoint's connections to all memory nodes.
//!
//! Invariants: a batch is checked whole (nodes, bounds, alignment, rights) before any of it is posted; what coroutines
//! post in one round rings one doorbell for each queue pair, when the endpoint is flushed; one poll of one
//! completion queue serves all nodes and all coroutines of the worker; queue pairs are dropped before buffers.

use crate::counts::Ledger;
use crate::device::Device;
use crate::flight::Inflight;
use crate::lane::{Common, INLINE, Lane, place_of};
use crate::memory::Buffers;
use crate::post::{is_reachable, requests_of};
use farindex_fabric::slab::Registrar;
use farindex_fabric::transport::{Completions, Post, Traffic};
use farindex_fabric::{CallRefused, Capabilities, Chain, FabricError, NodeId, Transport, Verb, VerbKind};
use farindex_remote::control::{Code, Message};
use farindex_remote::{Cluster, ClusterClient, Control, ControlError, Pending, Rights};
use sideway::ibverbs::completion::{GenericCompletionQueue, GenericPoller, WorkCompletionStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Requests of one send queue at most.
const DEPTH: u32 = 256;

pub(crate) struct VerbsTransport {
    // Dropped in this order: queue pairs, then what completes into them, then buffers.
    lanes: Vec<Lane>,
    common: Common,
    flights: Inflight,
    client: Arc<ClusterClient>,
    lens: Vec<u64>,
    rights: Rights,
    capabilities: Capabilities,
    epoch: Instant,
    /// Revocations and calls that the control channel has not answered yet.
    asked: Vec<Asked>,
    /// Completions of one poll: kept for its room.
    polled: Vec<(u64, u32)>,
    /// The nodes of the batch that is being posted: kept for its room.
    parts: Vec<(NodeId, usize)>,
    /// Some lane has requests that were queued and not posted.
    collects: bool,
    /// Some lane has something that waits.
    restless: bool,
}

impl VerbsTransport {
    pub(crate) fn new(
        device: &Arc<Device>,
        cluster: &Cluster,
        client: Arc<ClusterClient>,
        ledger: &Ledger,
        capabilities: Capabilities,
        epoch: Instant,
    ) -> Result<Self, FabricError> {
        let nodes = client.controls().len().max(1) as u32;
        let depth = DEPTH.min(device.max_requests).min(device.max_completions / nodes).max(1);
        let mut builder = device.context.create_cq_builder();
        builder.setup_cqe(depth.saturating_mul(nodes));
        // Devices whose driver lacks the newer way of polling are polled the older way.
        let completions = match builder.build_ex() {
            Ok(queue) => GenericCompletionQueue::from(queue),
            Err(_) => builder.build().map(GenericCompletionQueue::from).map_err(|error| {
                FabricError::Settings(format!(
                    "RDMA verbs: device {} makes no completion queue: {error}",
                    device.name()
                ))
            })?,
        };
        let lanes = client.controls().iter().enumerate().map(|(place, control)| Lane::new(place, control)).collect();
        let common = Common { device: Arc::clone(device), completions, counts: ledger.open(), depth };
        Ok(VerbsTransport {
            lanes,
            common,
            flights: Inflight::default(),
            client,
            lens: cluster.node_infos().iter().map(|info| info.len).collect(),
            rights: cluster.rights(),
            capabilities,
            epoch,
            asked: Vec::new(),
            polled: Vec::new(),
            parts: Vec::new(),
            collects: false,
            restless: false,
        })
    }

    fn check(&self, chain: &Chain) -> Result<(), FabricError> {
        for verb in chain {
            let node = verb.node();
            let len = self.lens.get(node.index()).ok_or(FabricError::NoSuchNode(node))?;
            let lacks = |verb| Err(FabricError::Unsupported { fabric: "verbs", verb });
            match &verb.kind {
                VerbKind::Revoke(_) => continue,
                VerbKind::Call { .. } if self.capabilities.call => continue,
                VerbKind::Call { .. } => return lacks("CALL"),
                VerbKind::MaskedCas { .. } => return lacks("masked CAS"),
                VerbKind::Read(_) => {}
                _ if self.rights == Rights::ReadOnly => return Err(FabricError::ReadOnly(node)),
                _ => {}
            }
            verb.check(*len)?;
            if !is_reachable(verb, INLINE as usize) {
                return Err(FabricError::Settings(format!(
                    "RDMA verbs: {} bytes of buffer cannot be registered: raise the limit on locked memory (ulimit -l \
                     unlimited)",
                    verb.len()
                )));
            }
        }
        Ok(())
    }

    /// Requests to each node, in the order of the nodes' first verbs.
    fn note_parts(chain: &Chain, parts: &mut Vec<(NodeId, usize)>) {
        parts.clear();
        for verb in chain {
            let requests = requests_of(verb);
            match parts.iter_mut().find(|(node, _)| *node == verb.node()) {
                _ if requests == 0 => {}
                Some((_, sum)) => *sum += requests,
                None => parts.push((verb.node(), requests)),
            }
        }
    }

    /// Revocations and calls travel over the control channel.
    fn ask(&mut self, id: u64, chain: Chain) -> Post {
        if !chain.iter().all(is_asked) {
            let why = "a revocation or a call cannot be in one batch with other verbs";
            return Post::Done(chain, Err(FabricError::Settings(why.to_owned())));
        }
        let controls = self.client.controls();
        let ask = |(place, verb): (usize, &Verb)| {
            let control = controls.get(verb.node().index())?;
            let pending = match &verb.kind {
                VerbKind::Revoke(identity) => control.revoke(*identity),
                VerbKind::Call { request, .. } => control.call(request.bytes().to_vec()),
                _ => return None,
            };
            Some((place, verb.node(), pending))
        };
        let asked: Vec<(usize, NodeId, Pending)> = chain.iter().enumerate().filter_map(ask).collect();
        let flight = self.flights.begin(id, chain, asked.len());
        let asked = asked.into_iter().map(|(verb, node, pending)| Asked { flight, verb, node, pending });
        self.asked.extend(asked);
        Post::Pending
    }

    fn poll_asked(&mut self) {
        let flights = &mut self.flights;
        self.asked.retain(|asked| match asked.pending.poll() {
            None => true,
            Some(answer) => {
                let kind = flights.chain(asked.flight).and_then(|chain| chain.get_mut(asked.verb));
                let result = match kind.map(|verb| &mut verb.kind) {
                    Some(VerbKind::Call { reply, .. }) => call_answered(answer, reply),
                    _ => answer.map(drop),
                };
                flights.part_ended(asked.flight, result.map_err(|error| error.of_node(asked.node)));
                false
            }
        });
    }

    /// Takes in what has completed.
    fn poll(&mut self) {
        self.polled.clear();
        while let Ok(mut poller) = self.common.completions.start_poll() {
            // One at a time where the driver hands out one at a time: Soft-RoCE's loses its place when it is asked for
            // a next one that is not there (docs/bugs/040).
            let each = match poller {
                GenericPoller::Basic(_) => usize::MAX,
                GenericPoller::Extended(_) => 1,
            };
            let completions = poller.by_ref().take(each);
            self.polled.extend(completions.map(|completion| (completion.wr_id(), completion.status())));
        }
        if self.polled.is_empty() {
            return;
        }
        self.common.counts.polled(self.polled.len());
        let mut polled = std::mem::take(&mut self.polled);
        for (id, status) in polled.drain(..) {
            let place = place_of(id);
            let (Some(lane), Some(control)) = (self.lanes.get_mut(place), self.client.controls().get(place)) else {
                continue;
            };
            if !lane.owns(id) {
                continue;
            }
            if status == WorkCompletionStatus::Success as u32 {
                lane.complete(id, &mut self.flights);
            } else {
                lane.broke(&explain(status), &self.common, control, &mut self.flights);
            }
            self.restless |= !lane.is_idle();
        }
        self.polled = polled;
    }

    fn advance(&mut self) {
        self.restless = false;
        for (lane, control) in self.lanes.iter_mut().zip(self.client.controls()) {
            lane.advance(&self.common, control, &mut self.flights);
            self.restless |= !lane.is_idle();
        }
    }
}

/// A verb of a batch that the control channel carries, and its answer.
struct Asked {
    flight: usize,
    /// Which verb of the batch.
    verb: usize,
    node: NodeId,
    pending: Pending,
}

/// Does this verb travel over the control channel?
fn is_asked(verb: &Verb) -> bool {
    matches!(verb.kind, VerbKind::Revoke(_) | VerbKind::Call { .. })
}

/// Puts the memory node's answer to a call in its place. A refusal is the call's result; other errors are the batch's.
fn call_answered(
    answer: Result<Message, ControlError>,
    reply: &mut Option<Result<Vec<u8>, CallRefused>>,
) -> Result<(), ControlError> {
    *reply = Some(match answer {
        Ok(Message::Called(bytes)) => Ok(bytes),
        Ok(_) => Err("the memory node gave a wrong answer".into()),
        Err(ControlError::Refused { code: Code::Refused | Code::Busy, text, .. }) => Err(CallRefused(text)),
        Err(error) => return Err(error),
    });
    Ok(())
}

/// Why a request failed, for people.
fn explain(status: u32) -> String {
    let what = match status {
        code if code == WorkCompletionStatus::RetryCounterExceededError as u32 => {
            "it does not answer: it is gone, cut off, or has shut this connection"
        }
        code if code == WorkCompletionStatus::RemoteAccessError as u32 => {
            "it refuses the access: its memory is not registered any more, or may only be read"
        }
        code if code == WorkCompletionStatus::RemoteInvalidRequestError as u32 => "it calls a request invalid",
        code if code == WorkCompletionStatus::RemoteOperationError as u32 => "it could not carry a request out",
        code if code == WorkCompletionStatus::WorkRequestFlushedError as u32 => "an earlier request had failed",
        code if code == WorkCompletionStatus::LocalProtectionError as u32 => "a buffer here is not registered",
        code => return format!("a request failed with status {code} of the verbs"),
    };
    what.to_owned()
}

impl Transport for VerbsTransport {
    fn post(&mut self, id: u64, chain: Chain) -> Post {
        if let Err(error) = self.check(&chain) {
            return Post::Done(chain, Err(error));
        }
        if chain.iter().any(is_asked) {
            return self.ask(id, chain);
        }
        let mut parts = std::mem::take(&mut self.parts);
        Self::note_parts(&chain, &mut parts);
        if parts.is_empty() {
            return Post::Done(chain, Ok(()));
        }
        let flight = self.flights.begin(id, chain, parts.len());
        for (node, requests) in parts.drain(..) {
            let place = node.index();
            if let (Some(lane), Some(control)) = (self.lanes.get_mut(place), self.client.controls().get(place)) {
                lane.enqueue(&self.common, control, &mut self.flights, flight, requests);
                self.restless |= !lane.is_idle();
                self.collects |= !lane.is_idle();
            }
        }
        self.parts = parts;
        match self.flights.take_if_ended(flight) {
            Some((chain, result)) => Post::Done(chain, result),
            None => Post::Pending,
        }
    }

    fn connections(&self, node: NodeId) -> u64 {
        self.client.controls().get(node.index()).map_or(0, Control::connections)
    }
    fn flush(&mut self) {
        if std::mem::take(&mut self.collects) {
            self.advance();
        }
    }
    fn collects(&self) -> bool {
        self.collects
    }
    fn traffic(&self) -> Traffic {
        Traffic { doorbells: self.common.counts.doorbells(), ..Traffic::default() }
    }

    fn progress(&mut self, completions: &mut dyn Completions) -> bool {
        self.flush();
        self.poll();
        let changed = |(lane, control): (&Lane, &farindex_remote::Control)| lane.is_stale(control);
        if self.restless || self.lanes.iter().zip(self.client.controls()).any(changed) {
            self.advance();
        }
        if !self.asked.is_empty() {
            self.poll_asked();
        }
        let mut any = false;
        while let Some((id, chain, result)) = self.flights.take_ended() {
            any = true;
            completions.complete(id, chain, result.map_err(Box::new));
        }
        any
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }
    fn registrar(&self) -> Option<Box<dyn Registrar>> {
        Some(Box::new(Buffers(Arc::clone(&self.common.device))))
    }
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }
    fn name(&self) -> &'static str {
        "verbs"
    }
}

impl Drop for VerbsTransport {
    fn drop(&mut self) {
        self.flush();
        for (lane, control) in self.lanes.iter_mut().zip(self.client.controls()) {
            lane.leave(&self.common, control);
        }
    }
}
