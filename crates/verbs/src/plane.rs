//! The memory node's side: its region, registered, and a queue pair for each connection.
//!
//! Invariants: the memory node's CPU writes no word of the region while it serves (handlers of calls only read), so the
//! NIC's atomics are atomic among all that change it (N4); a connection ends by the destruction of its queue pair,
//! which returns once the device carries out nothing for it any more (G6); queue pairs are gone before the region is
//! unregistered, and that before the memory goes.

use crate::device::{Device, DeviceOptions};
use crate::hello::{self, Hello, Reply};
use crate::memory::Exported;
use crate::pair::Pair;
use farindex_fabric::FabricError;
use farindex_remote::plane::{Peer, Refusal};
use farindex_remote::{NodeMemory, Plane, PlaneKind, Rights};
use sideway::ibverbs::completion::GenericCompletionQueue;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use zerocopy::IntoBytes;

/// Connections that one client may have.
const MAX_PAIRS: usize = 1024;

/// A queue pair, and the number of the client's queue pair that it is connected to.
struct ServedPair {
    client: u32,
    pair: Pair,
}

/// Serves a region over RDMA verbs.
pub struct VerbsPlane {
    // Dropped in this order.
    pairs: Mutex<HashMap<u64, Vec<ServedPair>>>,
    completions: GenericCompletionQueue,
    exported: Exported,
    device: Arc<Device>,
}

impl VerbsPlane {
    /// Opens the device and registers the region with it, once.
    pub fn new(memory: Arc<NodeMemory>, options: &DeviceOptions) -> Result<Self, FabricError> {
        let device = Device::open(options)?;
        let completions = device.context.create_cq_builder().setup_cqe(1).build().map_err(|error| {
            FabricError::Settings(format!("RDMA verbs: device {} makes no completion queue: {error}", device.name()))
        })?;
        let exported = Exported::new(&device, memory)?;
        Ok(VerbsPlane { pairs: Mutex::default(), completions: completions.into(), exported, device })
    }
    /// The device that it serves through.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
    /// Queue pairs that are connected now.
    pub fn connections(&self) -> usize {
        self.pairs.lock().unwrap_or_else(PoisonError::into_inner).values().map(Vec::len).sum()
    }

    fn connect(&self, link: u64, rights: Rights, client: &hello::Peer) -> Result<Vec<u8>, FabricError> {
        let mut pairs = self.pairs.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = pairs.entry(link).or_default();
        if mine.len() >= MAX_PAIRS {
            return Err(FabricError::Settings(format!(
                "a client has at most {MAX_PAIRS} queue pairs to a memory node"
            )));
        }
        // It serves requests and posts none.
        let mut pair = Pair::new(&self.device, &self.completions, 1, 0)?;
        let hello = Hello::new(&pair.describe(&self.device));
        pair.serve(&self.device, client, rights)?;
        mine.push(ServedPair { client: client.queue_pair, pair });
        let reply = Reply {
            hello,
            start: self.exported.start().into(),
            len: self.exported.len().into(),
            key: self.exported.key(rights).into(),
        };
        Ok(reply.as_bytes().to_vec())
    }
}

/// Ends connections; returns when nothing of them takes effect any more.
fn end(pairs: impl IntoIterator<Item = ServedPair>) {
    let mut pairs: Vec<ServedPair> = pairs.into_iter().collect();
    // First all of them stop, then each is waited for.
    pairs.iter_mut().for_each(|served| served.pair.refuse());
    drop(pairs);
}

impl Plane for VerbsPlane {
    fn kind(&self) -> PlaneKind {
        PlaneKind::Verbs
    }
    fn attach(&self, peer: &Peer, request: &[u8]) -> Result<Vec<u8>, Refusal> {
        Ok(self.connect(peer.link, peer.rights, &Hello::parse(request)?)?)
    }
    /// A client names its own queue pair.
    fn release(&self, link: u64, request: &[u8]) {
        let Ok(number) = request.try_into().map(u32::from_le_bytes) else { return };
        let mut pairs = self.pairs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mine) = pairs.get_mut(&link) {
            end(mine.extract_if(.., |served| served.client == number));
        }
    }
    fn detach(&self, link: u64) {
        let theirs = self.pairs.lock().unwrap_or_else(PoisonError::into_inner).remove(&link);
        end(theirs.into_iter().flatten());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::INLINE;
    use crate::memory::Scratch;
    use crate::post::{Cursor, Manner, Target, append_batch};
    use farindex_fabric::buf::BufPool;
    use farindex_fabric::{Chain, NodeId, RemotePtr, Verb, VerbKind};
    use sideway::ibverbs::completion::WorkCompletionStatus;
    use sideway::ibverbs::queue_pair::{PostSendGuard, QueuePair};
    use std::rc::Rc;
    use std::sync::atomic::Ordering;
    use std::time::{Duration, Instant};

    /// A client that checks nothing before it posts.
    struct UncheckedClient {
        pair: Pair,
        completions: GenericCompletionQueue,
        scratch: Scratch,
        chain: Chain,
        reply: Reply,
    }

    impl UncheckedClient {
        fn new(plane: &VerbsPlane, link: u64, rights: Rights) -> Result<Self, FabricError> {
            let device = &plane.device;
            let completions = device.context.create_cq_builder().setup_cqe(16).build();
            let completions: GenericCompletionQueue = completions.expect("a completion queue").into();
            let mut pair = Pair::new(device, &completions, 16, INLINE)?;
            let reply = plane.connect(link, rights, &pair.describe(device))?;
            let (node, reply) = Reply::parse(&reply)?;
            pair.ask(device, &node)?;
            Ok(UncheckedClient { pair, completions, scratch: Scratch::new(device, 16)?, chain: Chain::new(), reply })
        }
        /// Posts one verb under some key; the status of its completion.
        #[allow(unsafe_code)]
        fn tries(mut self, kind: VerbKind, offset: u64, key: u32) -> u32 {
            let ptr = RemotePtr::new(NodeId::new(0), offset);
            self.chain.push(Verb { ptr, fence: false, kind });
            let target = Target { start: self.reply.start.get(), key };
            let manner =
                Manner { id: 1, ordinal: 0, inline: INLINE as usize, target, scratch: &self.scratch, fences: true };
            let mut cursor = Cursor::default();
            let mut guard = self.pair.queue.start_post_send();
            // SAFETY: `self` owns buffers and scratch memory, and drops the queue pair first (field order).
            unsafe { append_batch(&mut guard, &mut self.chain, ptr.node(), &mut cursor, 1, &manner) }
                .expect("a request");
            guard.post().expect("a doorbell");
            let posted = Instant::now();
            while posted.elapsed() < Duration::from_secs(20) {
                let Ok(mut poller) = self.completions.start_poll() else { continue };
                if let Some(completion) = poller.next() {
                    println!("{:?} at {offset:#x}: status {}", self.chain, completion.status());
                    return completion.status();
                }
            }
            panic!("{:?} at {offset:#x} has not completed", self.chain);
        }
    }

    fn write(value: u64) -> VerbKind {
        let mut buf = Rc::new(BufPool::default()).take(8);
        buf.words_mut().fill(value);
        VerbKind::Write(buf)
    }

    #[test]
    fn the_device_keeps_the_rights_of_a_client() {
        let memory = Arc::new(NodeMemory::anonymous(NodeId::new(0), 1 << 16).expect("memory"));
        let options = DeviceOptions { device: std::env::var("ROCE_NODE").ok(), ..DeviceOptions::default() };
        let plane = match VerbsPlane::new(Arc::clone(&memory), &options) {
            Ok(plane) => plane,
            Err(error) => {
                assert!(std::env::var_os("SOFT_ROCE").is_none(), "{error}");
                return eprintln!("SKIPPED: verbs are not tested here: {error}");
            }
        };
        let unchecked = |link, rights| UncheckedClient::new(&plane, link, rights).expect("a connection");
        let word = |i: usize| memory.region().words()[i].load(Ordering::SeqCst);
        let faa = || VerbKind::Faa { add: 5, old: 0 };
        let (all, reads) = (plane.exported.key(Rights::ReadWrite), plane.exported.key(Rights::ReadOnly));
        let fine = WorkCompletionStatus::Success as u32;
        assert_eq!(unchecked(1, Rights::ReadWrite).tries(write(7), 8, all), fine);
        assert_eq!(unchecked(1, Rights::ReadWrite).tries(faa(), 8, all), fine);
        assert_eq!(word(1), 12);
        // A client with read rights changes nothing, not even with the other key.
        for key in [all, reads] {
            assert_ne!(unchecked(2, Rights::ReadOnly).tries(write(9), 8, key), fine);
            assert_ne!(unchecked(2, Rights::ReadOnly).tries(faa(), 8, key), fine);
        }
        // No verb reaches beyond the region, and no atomic an unaligned word.
        for (offset, kind) in [(1 << 16, write(9)), ((u64::MAX / 2) & !7, write(9)), (1 << 16, faa()), (12, faa())] {
            assert_ne!(unchecked(1, Rights::ReadWrite).tries(kind, offset, all), fine, "{offset:#x}");
        }
        // A connection that was ended carries nothing.
        let ended = unchecked(3, Rights::ReadWrite);
        plane.detach(3);
        assert_ne!(ended.tries(write(9), 8, all), fine);
        assert_eq!((word(1), word(2)), (12, 0));
        plane.detach(1);
        plane.detach(2);
        assert_eq!(plane.connections(), 0);
    }
}
