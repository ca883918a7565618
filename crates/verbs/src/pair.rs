//! Queue pairs: made, connected, destroyed.
//!
//! Invariants: a pair is connected once, to one other; the memory node's half allows what its client's token allows and
//! nothing else; when a pair has been dropped, the device has nothing to do with it any more: it neither touches a
//! buffer for it nor carries out a request that comes in for it.

use crate::device::{Device, gid_of, mtu_of};
use crate::hello::Peer;
use farindex_fabric::FabricError;
use farindex_remote::Rights;
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::address::AddressHandleAttribute;
use sideway::ibverbs::completion::GenericCompletionQueue;
use sideway::ibverbs::queue_pair::{
    GenericQueuePair, QueuePair, QueuePairAttribute, QueuePairState, SendOperationFlags,
};
use std::hash::{BuildHasher, RandomState};

/// A queue pair, and what the other side needs to connect to it.
pub(crate) struct Pair {
    pub(crate) queue: GenericQueuePair,
    first_packet: u32,
}

fn failed(device: &Device, what: &str, error: &dyn std::fmt::Display) -> FabricError {
    FabricError::Settings(format!("RDMA verbs: device {}: a queue pair {what}: {error}", device.name()))
}

/// The access that a client has to the memory of a node.
fn allowed(rights: Rights) -> AccessFlags {
    match rights {
        Rights::ReadOnly => AccessFlags::RemoteRead,
        Rights::ReadWrite => AccessFlags::RemoteRead | AccessFlags::RemoteWrite | AccessFlags::RemoteAtomic,
    }
}

/// Begins a connection's packet numbers anywhere, so that late packets of an earlier one do not fit.
fn any_packet() -> u32 {
    (RandomState::new().hash_one(()) & 0x00ff_ffff) as u32
}

impl Pair {
    /// A pair that takes `requests` at once, each with up to `inline` bytes within.
    pub(crate) fn new(
        device: &Device,
        completions: &GenericCompletionQueue,
        requests: u32,
        inline: u32,
    ) -> Result<Self, FabricError> {
        let mut builder = device.domain.create_qp_builder();
        builder
            .setup_max_send_wr(requests)
            .setup_max_recv_wr(1)
            .setup_max_inline_data(inline)
            .setup_send_cq(completions.clone())
            .setup_recv_cq(completions.clone())
            .setup_send_ops_flags(
                SendOperationFlags::Write
                    | SendOperationFlags::Read
                    | SendOperationFlags::AtomicCompareAndSwap
                    | SendOperationFlags::AtomicFetchAndAdd,
            );
        // Devices whose driver lacks the newer way of posting are driven the older way.
        let queue = match builder.build_ex() {
            Ok(queue) => GenericQueuePair::from(queue),
            Err(_) => builder.build().map_err(|error| failed(device, "cannot be made", &error))?.into(),
        };
        Ok(Pair { queue, first_packet: any_packet() })
    }

    /// What the other side needs.
    pub(crate) fn describe(&self, device: &Device) -> Peer {
        Peer {
            address: device.address,
            queue_pair: self.queue.qp_number(),
            first_packet: self.first_packet,
            mtu: device.mtu,
            starts: device.starts,
            serves: device.serves,
        }
    }

    /// Connects the memory node's half, which serves requests.
    pub(crate) fn serve(&mut self, device: &Device, client: &Peer, rights: Rights) -> Result<(), FabricError> {
        self.receive(device, client, allowed(rights), device.serves.min(client.starts))
    }

    /// Connects the client's half, which posts requests and serves none.
    pub(crate) fn ask(&mut self, device: &Device, node: &Peer) -> Result<(), FabricError> {
        self.receive(device, node, AccessFlags::none(), 1)?;
        let mut sending = QueuePairAttribute::new();
        sending
            .setup_state(QueuePairState::ReadyToSend)
            .setup_sq_psn(self.first_packet)
            .setup_timeout(device.options.timeout)
            .setup_retry_cnt(device.options.retries)
            // No messages are sent, so no receiver can be unready for one.
            .setup_rnr_retry(0)
            .setup_max_read_atomic(device.starts.min(node.serves));
        self.queue.modify(&sending).map_err(|error| failed(device, "cannot send", &error))
    }

    fn receive(&mut self, device: &Device, other: &Peer, access: AccessFlags, serves: u8) -> Result<(), FabricError> {
        if device.address.infiniband != other.address.infiniband {
            return Err(failed(device, "cannot be connected", &"one side is on InfiniBand, the other on Ethernet"));
        }
        let mut begin = QueuePairAttribute::new();
        begin
            .setup_state(QueuePairState::Init)
            .setup_pkey_index(0)
            .setup_port(device.options.port)
            .setup_access_flags(access);
        self.queue.modify(&begin).map_err(|error| failed(device, "cannot be set up", &error))?;

        let mut path = AddressHandleAttribute::new();
        path.setup_port(device.options.port);
        if other.address.infiniband {
            path.setup_dest_lid(other.address.lid);
        } else {
            path.setup_grh_src_gid_index(device.gid_index)
                .setup_grh_dest_gid(&gid_of(other.address.gid))
                .setup_grh_hop_limit(64);
        }
        let mut receiving = QueuePairAttribute::new();
        receiving
            .setup_state(QueuePairState::ReadyToReceive)
            .setup_path_mtu(mtu_of(device.mtu, other.mtu))
            .setup_dest_qp_num(other.queue_pair)
            .setup_rq_psn(other.first_packet)
            .setup_max_dest_read_atomic(serves)
            .setup_min_rnr_timer(12)
            .setup_address_vector(&path);
        self.queue.modify(&receiving).map_err(|error| failed(device, "cannot receive", &error))
    }

    /// Takes no request any more, from now on. Dropping the pair also waits for those that it was busy with.
    pub(crate) fn refuse(&mut self) {
        let mut broken = QueuePairAttribute::new();
        broken.setup_state(QueuePairState::Error);
        // It may be broken already; being destroyed is what counts.
        let _ = self.queue.modify(&broken);
    }
}
