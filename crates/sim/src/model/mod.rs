//! Model mode: predicts the throughput and latency of a cluster.
//!
//! Every NIC is a few servers, and each server has the moment until which it is busy: a message engine (messages a
//! second, both directions), two directions of the wire (bits a second), and a unit for atomics (atomics a second, far
//! fewer on one address). A link has a latency. A client's CPU has a cost for each doorbell, verb and completion; a
//! memory node's core has a cost for each call, and for what its handler reads and stores. The figures are a [`Preset`].
//!
//! ```text
//! client CPU       client's NIC       link      memory node's NIC          link       client's NIC   client CPU
//! doorbell, WQEs   engine, wire out   ----->    wire in, engine, atomics   ----->     wire in        poll
//!                                               (or a core), wire out
//! ```
//!
//! Invariants:
//!
//! - A server reserves its work when a message reaches its NIC, and the message leaves when the slowest of the NIC's
//!   servers has finished it. So a queue at the atomics of one hot word does not delay the wire behind it. The wire
//!   into the client's NIC is reserved at the same moment, one link's latency ahead.
//! - Verbs take effect whole, in the order in which they reach their node: nothing is torn or reordered.
//! - Times are reserved in picoseconds, so that rates are exact.

mod nic;
pub mod presets;

pub use presets::Preset;

use crate::flight::Flight;
use crate::queue::{EventKind, Queue};
use farindex_fabric::{Verb, VerbKind};
pub use nic::NicWork;
use nic::{Nic, Server};

/// The CPU of a client.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ClientCpu {
    /// The compute node that the client runs on.
    pub(crate) host: usize,
    /// The moment in nanoseconds until which the CPU is busy.
    pub(crate) busy_until: u64,
}

/// The NICs and cores of a cluster.
pub(crate) struct Cluster {
    preset: Preset,
    /// Latency of one direction over the network, chosen so that a READ of no bytes takes `read_ns` of the preset.
    link_ps: u64,
    memory: Vec<Nic>,
    compute: Vec<Nic>,
    /// Cores of each memory node, for calls.
    cores: Vec<Vec<Server>>,
}

/// Bytes that an atomic carries: two operands in the request, one word in the response.
const ATOMIC_REQUEST: u64 = 16;
const ATOMIC_RESPONSE: u64 = 8;

impl Cluster {
    pub(crate) fn new(preset: Preset, nodes: usize) -> Self {
        let link_ps = preset.link_ps();
        let cores = vec![vec![Server::default(); preset.call_cores.max(1)]; nodes];
        let memory = (0..nodes).map(|_| Nic::default()).collect();
        Cluster { preset, link_ps, memory, compute: Vec::new(), cores }
    }

    /// How long the NIC of each memory node has been at work.
    pub(crate) fn memory_nics(&self) -> Vec<NicWork> {
        self.memory.iter().map(Nic::work).collect()
    }

    /// The NIC of a compute node. Where each machine is both a compute node and a memory node, it is the memory node's.
    fn client_nic(&mut self, host: usize) -> &mut Nic {
        if self.preset.colocated {
            let nodes = self.memory.len();
            return &mut self.memory[host % nodes];
        }
        if self.compute.len() <= host {
            self.compute.resize_with(host + 1, Nic::default);
        }
        &mut self.compute[host]
    }

    /// Bytes on the wire: request, response.
    fn bytes(&self, verb: &Verb) -> (u64, u64) {
        let header = self.preset.header_bytes;
        match &verb.kind {
            VerbKind::Read(buf) => (header, header + buf.len() as u64),
            VerbKind::Write(buf) => (header + buf.len() as u64, header),
            VerbKind::Call { request, reply } => {
                let answered = reply.as_ref().map_or(0, |reply| reply.as_ref().map_or(0, Vec::len)) as u64;
                (header + request.len() as u64, header + answered)
            }
            VerbKind::Cas { .. } | VerbKind::Faa { .. } | VerbKind::MaskedCas { .. } => {
                (header + ATOMIC_REQUEST, header + ATOMIC_RESPONSE)
            }
            VerbKind::Revoke(_) => (header, header),
        }
    }

    /// Sends a posted flight: the client's CPU rings the doorbell, its NIC sends, and each lane gets an arrival.
    pub(crate) fn send(
        &mut self,
        now: u64,
        number: u32,
        flight: &mut Flight,
        client: &mut ClientCpu,
        queue: &mut Queue,
    ) {
        let (link_ps, now_ps) = (self.link_ps, now * 1000);
        let Preset { doorbell_ns, wqe_ns, byte_ps, message_ps, .. } = self.preset;
        let cpu = doorbell_ns + wqe_ns * flight.chain.len() as u64;
        client.busy_until = client.busy_until.max(now) + cpu;
        let rung = client.busy_until * 1000;
        for lane in 0..flight.lanes.len() as u32 {
            let mut left = rung;
            for (verb, plan) in flight.chain.iter().zip(&flight.plans) {
                if plan.lane != lane {
                    continue;
                }
                let wire = self.bytes(verb).0 * byte_ps;
                let nic = self.client_nic(client.host);
                let sent = nic.out.reserve(now_ps, wire).max(nic.engine.reserve(now_ps, message_ps));
                left = left.max(sent).max(rung + wire.max(message_ps));
            }
            let at = ceil_ns(left + link_ps);
            flight.lanes[lane as usize].end = at;
            flight.events += 1;
            queue.push(at, EventKind::Arrive { flight: number, lane });
        }
        flight.awaited = flight.lanes.len() as u32;
    }

    /// Sends the answer of a lane whose verbs have reached their node and taken effect. The answer of the last lane
    /// completes the flight. `host`: the compute node of the client.
    pub(crate) fn answer(
        &mut self,
        now: u64,
        (number, lane): (u32, u32),
        flight: &mut Flight,
        host: usize,
        queue: &mut Queue,
    ) {
        let node = flight.lanes[lane as usize].node;
        let (link_ps, now_ps) = (self.link_ps, now * 1000);
        let (mut answered, mut received) = (now_ps, now_ps);
        for (verb, plan) in flight.chain.iter().zip(&flight.plans) {
            if plan.lane != lane {
                continue;
            }
            let (request, response) = self.bytes(verb);
            let preset = &self.preset;
            let nic = &mut self.memory[node];
            let mut done = nic.inward.reserve(now_ps, request * preset.byte_ps);
            done = done.max(nic.engine.reserve(now_ps, preset.message_ps));
            done = done.max(nic.out.reserve(now_ps, response * preset.byte_ps));
            match &verb.kind {
                VerbKind::Cas { .. } | VerbKind::Faa { .. } | VerbKind::MaskedCas { .. } => {
                    done = done.max(nic.atomics.reserve(now_ps, preset.atomic_ps));
                    let address = nic.address(verb.ptr.offset());
                    done = done.max(address.reserve(now_ps, preset.atomic_same_ps));
                }
                VerbKind::Call { .. } => {
                    let core = self.cores[node].iter_mut().min_by_key(|core| core.free_at());
                    if let Some(core) = core {
                        done = done.max(core.reserve(now_ps, preset.call_ps(plan.work)));
                    }
                }
                _ => {}
            }
            answered = answered.max(done);
            let wire = response * self.preset.byte_ps;
            let inward = self.client_nic(host).inward.reserve(now_ps, wire);
            received = received.max(inward).max(answered + wire);
        }
        flight.received = flight.received.max(ceil_ns(received + link_ps));
        self.close_lane(number, flight, self.preset.poll_ns, queue);
    }

    /// Counts a lane as closed that was lost on its way and gets no answer.
    pub(crate) fn lose(&self, now: u64, number: u32, flight: &mut Flight, queue: &mut Queue) {
        if flight.awaited == 1 {
            flight.received = flight.received.max(now + ceil_ns(self.link_ps));
        }
        self.close_lane(number, flight, 0, queue);
    }

    /// Completes the flight if no lane of it is awaited any more, `poll_ns` after the last answer was received.
    fn close_lane(&self, number: u32, flight: &mut Flight, poll_ns: u64, queue: &mut Queue) {
        flight.awaited -= 1;
        if flight.awaited == 0 {
            flight.events += 1;
            queue.push(flight.received + poll_ns, EventKind::Complete { flight: number });
        }
    }

    /// Charges the client's CPU for a completion that it has polled.
    pub(crate) fn poll(&self, now: u64, client: &mut ClientCpu) {
        let poll_ns = self.preset.poll_ns;
        client.busy_until = client.busy_until.max(now.saturating_sub(poll_ns)) + poll_ns;
    }
}

/// Picoseconds as nanoseconds, rounded up.
fn ceil_ns(ps: u64) -> u64 {
    ps.div_ceil(1000)
}
