//! Model mode: what a cluster would deliver.
//!
//! Every NIC is a few servers, each with the moment until which it is busy: a message engine (so many messages a second,
//! either way), two directions of the wire (so many bits a second), and a unit for atomics (so many a second, far fewer on
//! one address). A link has a latency, a client's CPU a cost for each doorbell, verb and completion, a memory node's cores
//! a cost for each call. The figures are a [`Preset`].
//!
//! ```text
//! client CPU       client's NIC       link      memory node's NIC          link       client's NIC   client CPU
//! doorbell, WQEs   engine, wire out   ----->    wire in, engine, atomics   ----->     wire in        poll
//!                                               (or a core), wire out
//! ```
//!
//! Invariants: a server reserves its work when a message reaches its NIC, and the message leaves when the slowest of the
//! NIC's servers has done with it; so a queue at the atomics of one hot word does not hold up the wire behind it. The wire
//! into the client's NIC is reserved at the same moment, one link's latency ahead. Verbs take
//! effect whole, in the order in which they reach their node: nothing is torn and nothing reordered here. Times are
//! reserved in picoseconds, so that rates come out exactly.

mod nic;
pub mod presets;

pub use presets::Preset;

use crate::queue::What;
use crate::world::{Mode, World};
use farindex_fabric::{Verb, VerbKind};
use nic::{Nic, Server};

/// The NICs and cores of a cluster.
pub(crate) struct Cluster {
    preset: Preset,
    /// One way over the network, so that a READ of no bytes takes as long as the preset says.
    link_ps: u64,
    memory: Vec<Nic>,
    compute: Vec<Nic>,
    /// Cores of each memory node, for calls.
    cores: Vec<Vec<Server>>,
}

/// Bytes that an atomic carries: two operands there, one word back.
const ATOMIC_REQUEST: u64 = 16;
const ATOMIC_RESPONSE: u64 = 8;

impl Cluster {
    pub(crate) fn new(preset: Preset, nodes: usize) -> Self {
        let link_ps = preset.link_ps();
        let cores = vec![vec![Server::default(); preset.call_cores.max(1)]; nodes];
        let memory = (0..nodes).map(|_| Nic::default()).collect();
        Cluster { preset, link_ps, memory, compute: Vec::new(), cores }
    }

    /// The NIC of a compute node. Where machines play both roles, it is that of a memory node.
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

    /// Bytes on the wire, there and back.
    fn bytes(&self, verb: &Verb) -> (u64, u64) {
        let header = self.preset.header_bytes;
        match &verb.kind {
            VerbKind::Read(buf) => (header, header + buf.len() as u64),
            VerbKind::Write(buf) => (header + buf.len() as u64, header),
            VerbKind::Call { request, reply } => {
                let answered = reply.as_ref().map_or(0, Vec::len) as u64;
                (header + request.len() as u64, header + answered)
            }
            VerbKind::Cas { .. } | VerbKind::Faa { .. } | VerbKind::MaskedCas { .. } => {
                (header + ATOMIC_REQUEST, header + ATOMIC_RESPONSE)
            }
            VerbKind::Revoke(_) => (header, header),
        }
    }
}

/// The first whole nanosecond that is not before this.
fn ceil_ns(ps: u64) -> u64 {
    ps.div_ceil(1000)
}

impl World {
    /// A posted flight leaves its client: the CPU rings the doorbell, the NIC sends.
    pub(crate) fn schedule_model(&mut self, flight: u32) {
        let World { mode, flights, queue, conns, clients, now, .. } = self;
        let Mode::Model(cluster) = mode else {
            return;
        };
        let state = &mut flights[flight as usize];
        let client = &mut clients[conns[state.conn as usize].client as usize];
        let (link_ps, now_ps) = (cluster.link_ps, *now * 1000);
        let Preset { doorbell_ns, wqe_ns, byte_ps, message_ps, .. } = cluster.preset;
        let cpu = doorbell_ns + wqe_ns * state.chain.len() as u64;
        client.busy_until = client.busy_until.max(*now) + cpu;
        let rung = client.busy_until * 1000;
        let host = client.host;
        for lane in 0..state.lanes.len() as u32 {
            let mut left = rung;
            for (verb, plan) in state.chain.iter().zip(&state.plans) {
                if plan.lane != lane {
                    continue;
                }
                let wire = cluster.bytes(verb).0 * byte_ps;
                let nic = cluster.client_nic(host);
                let sent = nic.out.reserve(now_ps, wire).max(nic.engine.reserve(now_ps, message_ps));
                left = left.max(sent).max(rung + wire.max(message_ps));
            }
            let at = ceil_ns(left + link_ps);
            state.lanes[lane as usize].end = at;
            state.events += 1;
            queue.push(at, What::Arrive { flight, lane });
        }
        state.awaited = state.lanes.len() as u32;
    }

    /// A flight's verbs to one node have reached its NIC: they take effect, and the answer leaves.
    pub(crate) fn arrive(&mut self, flight: u32, lane: u32) {
        self.whole_lane(flight, lane);
        let World { mode, flights, queue, conns, clients, now, .. } = self;
        let Mode::Model(cluster) = mode else {
            return;
        };
        let state = &mut flights[flight as usize];
        let node = state.lanes[lane as usize].node;
        let host = clients[conns[state.conn as usize].client as usize].host;
        let (link_ps, now_ps) = (cluster.link_ps, *now * 1000);
        let (mut answered, mut received) = (now_ps, now_ps);
        for (verb, plan) in state.chain.iter().zip(&state.plans) {
            if plan.lane != lane {
                continue;
            }
            let (there, back) = cluster.bytes(verb);
            let preset = &cluster.preset;
            let nic = &mut cluster.memory[node];
            let mut done = nic.inward.reserve(now_ps, there * preset.byte_ps);
            done = done.max(nic.engine.reserve(now_ps, preset.message_ps));
            done = done.max(nic.out.reserve(now_ps, back * preset.byte_ps));
            match &verb.kind {
                VerbKind::Cas { .. } | VerbKind::Faa { .. } | VerbKind::MaskedCas { .. } => {
                    done = done.max(nic.atomics.reserve(now_ps, preset.atomic_ps));
                    let address = nic.address(verb.ptr.offset());
                    done = done.max(address.reserve(now_ps, preset.atomic_same_ps));
                }
                VerbKind::Call { .. } => {
                    let core = cluster.cores[node].iter_mut().min_by_key(|core| core.free_at());
                    if let Some(core) = core {
                        done = done.max(core.reserve(now_ps, preset.call_ns * 1000));
                    }
                }
                _ => {}
            }
            answered = answered.max(done);
            let wire = back * cluster.preset.byte_ps;
            let inward = cluster.client_nic(host).inward.reserve(now_ps, wire);
            received = received.max(inward).max(answered + wire);
        }
        state.received = state.received.max(ceil_ns(received + link_ps));
        state.awaited -= 1;
        if state.awaited == 0 {
            state.events += 1;
            queue.push(state.received + cluster.preset.poll_ns, What::Complete { flight });
        }
    }

    /// The client's CPU has polled a completion, which kept it from posting.
    pub(crate) fn polled(&mut self, flight: u32) {
        if let Mode::Model(cluster) = &self.mode {
            let client = self.client_of(self.flights[flight as usize].conn);
            let poll_ns = cluster.preset.poll_ns;
            let client = &mut self.clients[client as usize];
            client.busy_until = client.busy_until.max(self.now.saturating_sub(poll_ns)) + poll_ns;
        }
    }

    /// A part of a flight was lost on its way: nobody will answer for it.
    pub(crate) fn unanswered(&mut self, flight: u32) {
        if let Mode::Model(cluster) = &self.mode {
            let state = &mut self.flights[flight as usize];
            state.awaited -= 1;
            if state.awaited == 0 {
                state.events += 1;
                let at = state.received.max(self.now + ceil_ns(cluster.link_ps));
                self.queue.push(at, What::Complete { flight });
            }
        }
    }
}
