//! The clusters of the papers, figure by figure.
//!
//! Invariants: every figure names where it comes from; what no paper gives is listed as an assumption, so that the
//! reader of a prediction sees what it depends on.

use farindex_fabric::call::Work;

/// The figures of one cluster. Service times are in picoseconds, so that rates are exact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preset {
    /// Name, as the command line takes it.
    pub name: &'static str,
    /// Nanoseconds for one READ of no bytes in an idle cluster, from the call to its completion.
    pub read_ns: u64,
    /// Time that a NIC takes for a message: the inverse of its peak rate.
    pub message_ps: u64,
    /// Time that a byte takes on the wire.
    pub byte_ps: u64,
    /// Bytes of a message in addition to its payload.
    pub header_bytes: u64,
    /// Time that a NIC takes for an atomic, addresses far apart.
    pub atomic_ps: u64,
    /// Time between two atomics on one address.
    pub atomic_same_ps: u64,
    /// Client CPU for a doorbell: each batch pays once.
    pub doorbell_ns: u64,
    /// Client CPU for each verb of a batch.
    pub wqe_ns: u64,
    /// Client CPU for a completion.
    pub poll_ns: u64,
    /// Memory-node CPU for a call, without what its handler does.
    pub call_ns: u64,
    /// Memory-node CPU for each range that a handler reads or stores.
    pub call_access_ns: u64,
    /// Memory-node CPU for each byte of these ranges.
    pub call_byte_ps: u64,
    /// Cores of a memory node that answer calls.
    pub call_cores: usize,
    /// Each machine is a compute node and a memory node, with one NIC for both.
    pub colocated: bool,
    /// Compute nodes in the paper.
    pub compute_nodes: usize,
    /// Clients on each of them in the paper.
    pub clients_per_node: usize,
    /// Memory nodes in the paper.
    pub memory_nodes: usize,
    /// Sources of figures: field, source.
    pub sources: &'static [(&'static str, &'static str)],
    /// Assumptions: field, reason for this value.
    pub assumptions: &'static [(&'static str, &'static str)],
}

/// 87.17 million messages a second.
const MESSAGE_PS: u64 = 1_000_000_000_000 / 87_170_000;
/// 100 Gbit/s.
const BYTE_PS: u64 = 8_000_000_000_000 / 100_000_000_000;

const ATOMICS: [(&str, &str); 2] = [
    (
        "atomic_ps",
        "25 M/s over many addresses: the papers only say that CAS is slower than READ and WRITE (SepHash 5.6.3)",
    ),
    ("atomic_same_ps", "2.5 M/s on one address: the NIC reads and writes host memory over PCIe, some 400 ns, for each"),
];
const CPU: [(&str, &str); 6] = [
    ("doorbell_ns", "60 ns: one uncached store to the NIC behind a fence"),
    ("wqe_ns", "20 ns for building a work request"),
    ("poll_ns", "30 ns for taking a completion"),
    ("call_ns", "2 us of a memory-node core for receiving and answering a message"),
    ("call_access_ns", "100 ns for each range that a handler reads or stores: its first line comes from DRAM"),
    ("call_byte_ps", "0.25 ns for each of its bytes: 4 GB/s for loading, checksumming and searching"),
];
const NIC: [(&str, &str); 2] = [
    ("message_ps", "87.17 M/s, as measured by the linear-probing paper (5.1) on a ConnectX-5"),
    ("header_bytes", "30 bytes, the InfiniBand figure of the linear-probing paper (3.1)"),
];

impl Preset {
    /// The linear-probing paper's pair of machines with ConnectX-5 EDR.
    pub fn linear_probing() -> Self {
        Preset {
            name: "linear-probing",
            read_ns: 1290,
            message_ps: MESSAGE_PS,
            byte_ps: BYTE_PS,
            header_bytes: 30,
            atomic_ps: 40_000,
            atomic_same_ps: 400_000,
            doorbell_ns: 60,
            wqe_ns: 20,
            poll_ns: 30,
            call_ns: 2000,
            call_access_ns: 100,
            call_byte_ps: 250,
            call_cores: 28,
            colocated: false,
            compute_nodes: 1,
            clients_per_node: 28,
            memory_nodes: 1,
            sources: &[
                ("read_ns", "c = 1,290 ns, the cost of initiating a READ: section 5.1, model parameters; 3.5 says how"),
                ("message_ps", "rho_0 = 87.17 M zero-byte READs/s: section 5.1, model parameters"),
                ("byte_ps", "100 Gbit/s, InfiniBand EDR: section 5.1, model parameters"),
                ("header_bytes", "h = 30 bytes: section 3.1, after the InfiniBand specification"),
                ("compute_nodes", "two machines, one server and one client: section 5.1"),
                ("clients_per_node", "28 threads, one queue pair each: section 5.1"),
            ],
            assumptions: &[ATOMICS[0], ATOMICS[1], CPU[0], CPU[1], CPU[2], CPU[3], CPU[4], CPU[5]],
        }
    }

    /// SHARD's three machines.
    pub fn shard() -> Self {
        Preset {
            name: "shard",
            read_ns: 2000,
            call_cores: 4,
            colocated: true,
            compute_nodes: 3,
            clients_per_node: 36,
            memory_nodes: 3,
            sources: &[
                ("read_ns", "2-3 us, the lower end: section 1"),
                ("byte_ps", "100 Gbit/s ConnectX-5 InfiniBand: section 4.1"),
                ("colocated", "each machine acts as one compute node and one memory node: section 4.1"),
                ("compute_nodes", "three nodes: section 4.1"),
                ("clients_per_node", "36 cores for the compute node: section 4.1"),
                ("call_cores", "the remaining 4 cores for the memory node: section 4.1"),
            ],
            assumptions: &[NIC[0], NIC[1], ATOMICS[0], ATOMICS[1], CPU[0], CPU[1], CPU[2], CPU[3], CPU[4], CPU[5]],
            ..Preset::linear_probing()
        }
    }

    /// SepHash's eight machines.
    pub fn sephash() -> Self {
        Preset {
            name: "sephash",
            read_ns: 2000,
            call_cores: 1,
            compute_nodes: 7,
            clients_per_node: 16,
            memory_nodes: 1,
            sources: &[
                ("byte_ps", "100 Gbit/s ConnectX-5 InfiniBand: section 5.1, hardware platform"),
                ("compute_nodes", "8 machines, one of them the memory pool: section 5.1"),
                ("call_cores", "its CPU is limited to a single core: section 5.1"),
                ("clients_per_node", "up to 16 threads run on one compute node: section 5.2"),
            ],
            assumptions: &[
                ("read_ns", "2 us: the paper shows latencies only as a figure (3)"),
                NIC[0],
                NIC[1],
                ATOMICS[0],
                ATOMICS[1],
                CPU[0],
                CPU[1],
                CPU[2],
                CPU[3],
                CPU[4],
                CPU[5],
            ],
            ..Preset::linear_probing()
        }
    }

    /// CHIME's eleven machines.
    pub fn chime() -> Self {
        Preset {
            name: "chime",
            read_ns: 2000,
            header_bytes: 78,
            call_cores: 1,
            compute_nodes: 10,
            clients_per_node: 64,
            memory_nodes: 1,
            sources: &[
                ("byte_ps", "100 Gbit/s ConnectX-6 and Ethernet switch: section 5.1, testbed"),
                ("compute_nodes", "10 CNs and 1 MN: section 5.1"),
                ("clients_per_node", "64 CPU cores, each a client: section 5.1"),
                ("call_cores", "1 CPU core in the MN: section 5.1"),
            ],
            assumptions: &[
                ("read_ns", "2 us: the paper gives no figure"),
                ("message_ps", "87.17 M/s, as a ConnectX-5 (linear-probing paper, 5.1); a ConnectX-6 may do more"),
                ("header_bytes", "78 bytes: Ethernet, IPv4, UDP, base and extended transport header, two checksums"),
                ATOMICS[0],
                ATOMICS[1],
                CPU[0],
                CPU[1],
                CPU[2],
                CPU[3],
                CPU[4],
                CPU[5],
            ],
            ..Preset::linear_probing()
        }
    }

    /// DEX's four machines.
    pub fn dex() -> Self {
        Preset {
            name: "dex",
            read_ns: 2000,
            call_cores: 4,
            colocated: true,
            compute_nodes: 4,
            clients_per_node: 36,
            memory_nodes: 4,
            sources: &[
                ("byte_ps", "100 Gbit/s ConnectX-5 InfiniBand: section 8.1, testbed"),
                ("colocated", "each machine acts as one compute and one memory server: section 8.1"),
                ("compute_nodes", "four servers: section 8.1"),
                ("clients_per_node", "36 cores for the compute server: section 8.1"),
                ("call_cores", "4 cores for the memory server: section 8.1"),
            ],
            assumptions: &[
                ("read_ns", "2 us; accesses within one machine the same (the paper saw 90% of it, 8.1)"),
                NIC[0],
                NIC[1],
                ATOMICS[0],
                ATOMICS[1],
                CPU[0],
                CPU[1],
                CPU[2],
                CPU[3],
                CPU[4],
                CPU[5],
            ],
            ..Preset::linear_probing()
        }
    }

    /// All presets.
    pub fn all() -> [Preset; 5] {
        [Self::linear_probing(), Self::shard(), Self::sephash(), Self::chime(), Self::dex()]
    }
    /// The preset of that name.
    pub fn named(name: &str) -> Option<Preset> {
        Self::all().into_iter().find(|preset| preset.name == name)
    }

    /// Time that a memory node's core takes for a call whose handler has done this work.
    pub(crate) fn call_ps(&self, work: Work) -> u64 {
        (self.call_ns + self.call_access_ns * work.accesses) * 1000 + self.call_byte_ps * work.bytes
    }
    /// Latency of one direction over the network: half of what remains of `read_ns` after CPUs and NICs.
    pub(crate) fn link_ps(&self) -> u64 {
        let header = self.header_bytes * self.byte_ps;
        let cpu = (self.doorbell_ns + self.wqe_ns + self.poll_ns) * 1000;
        let nics = 2 * self.message_ps.max(header) + header;
        (self.read_ns * 1000).saturating_sub(cpu + nics) / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_a_source_or_is_an_assumption() {
        let figures = ["read_ns", "message_ps", "byte_ps", "header_bytes", "atomic_ps", "atomic_same_ps"];
        let figures = figures.iter().chain(&["doorbell_ns", "wqe_ns", "poll_ns", "call_ns", "compute_nodes"]);
        let figures = figures.chain(&["call_access_ns", "call_byte_ps"]);
        for (preset, figure) in Preset::all().iter().flat_map(|preset| figures.clone().map(move |f| (preset, f))) {
            let named = preset.sources.iter().chain(preset.assumptions).filter(|(field, _)| field == figure);
            assert_eq!(named.count(), 1, "{} of {}", figure, preset.name);
        }
        assert_eq!(Preset::named("shard"), Some(Preset::shard()));
        assert_eq!(Preset::named("none"), None);
    }
}
