//! The shared-memory fabric: memory nodes that are mapped files, used by several processes of one machine at once.
//!
//! Invariants: far memory persists when the processes that use it end, `kill -9` included; it is only ever touched by
//! whole aligned words, so verbs of different processes are as atomic as verbs of different threads; an existing file
//! is never overwritten; a client counts as revoked only once no instruction of its process can touch the memory any
//! more.
//!
//! One file is one memory node. Any mappable path will do: a file in `/dev/shm`, on a hugetlbfs, on an ordinary file
//! system, or a DAX device (`/dev/daxX.Y`), which is how CXL memory appears. A device is used whole, as it is: its
//! content is not zeroed.
//!
//! ```
//! # #[cfg(not(miri))] {
//! use farindex_fabric::{Executor, Fabric, NodeId, OpKind, RemotePtr, ShmFabric};
//!
//! let path = std::env::temp_dir().join(format!("farindex-doc-{}", std::process::id()));
//! let creator = ShmFabric::create(&[path.clone()], 1 << 16)?;
//! let other = ShmFabric::open(&[path.clone()])?; // in any process
//! let endpoint = other.connect(&other.new_identity())?;
//! let word = RemotePtr::new(NodeId::new(0), 64);
//! let old = Executor::new().block_on(&endpoint, async { endpoint.span(OpKind::Other).faa(word, 1).await })?;
//! assert_eq!(old, 0);
//! # drop(creator);
//! # std::fs::remove_file(path).ok();
//! # }
//! # Ok::<(), farindex_fabric::FabricError>(())
//! ```
//!
//! # Revoking (G6)
//!
//! There is no server that could close a client's connection. The gate of this process revokes a client of this
//! process. A client of another process is revoked once that process is proved gone; as long as it lives, `revoke`
//! fails with [`FabricError::CannotRevoke`], or, where [`ShmFabric::allow_kill`] says so, ends it by `SIGKILL` and
//! waits for its end (milliseconds; the verb blocks meanwhile, the only one that does).
//!
//! What can be proved is bounded by what this process sees: all clients should share a PID namespace (containers: run
//! them with a common one). Whether a client in another namespace has ended is reported as unknown. Files are assumed
//! to be used by one machine; on a DAX device, which several may share, a client of another boot is not taken for
//! crashed.
//!
//! # Requirements on the user
//!
//! * No process may shrink a file while it is mapped. (No lock prevents it: file locks are advisory.) From the first
//!   verb beyond its new end on, every verb on that node fails with [`FabricError::Unreachable`]. For that, this fabric
//!   handles `SIGBUS` from when it first maps a file; a program that installs a handler of its own later gives this up.
//!   Removing a file is harmless: it continues to exist for the processes that have it mapped.
//! * A `fork` child must not use the endpoints of its parent, but open the fabric and connect anew.
//! * A network file system is no shared memory, even where it can be mapped.

pub(crate) mod fault;
pub(crate) mod file;

use crate::call::CallHandler;
use crate::gate::Gates;
use crate::mapped::{Delivery, Manner, Mapped};
use crate::process::{self, Fate};
use crate::transport::{Capabilities, Fabric, Identity, NodeInfo};
use crate::{Endpoint, FabricError, NodeId};
use file::Hold;
use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

/// One set of gates for the process, since it may have the same files open through several fabrics, and a client that
/// is revoked through one of them must be revoked in all.
static GATES: LazyLock<Arc<Gates>> = LazyLock::new(Arc::default);

/// Memory nodes in mapped files.
#[derive(Clone)]
pub struct ShmFabric {
    mapped: Arc<Mapped>,
    policy: Arc<Policy>,
    manner: Manner,
}

/// What the fabric may do about clients of other processes.
struct Policy {
    kill: AtomicBool,
    /// Other machines may have this memory too.
    across_hosts: bool,
}

impl Policy {
    fn revoke(&self, identity: &Identity) -> Result<(), FabricError> {
        if process::is_own(identity) {
            // Its gates are closed by now.
            return Ok(());
        }
        let pid = identity.pid;
        match process::fate(identity, self.across_hosts) {
            Fate::Gone => Ok(()),
            Fate::Alive if self.kill.load(Ordering::Relaxed) => process::kill(identity, self.across_hosts)
                .map_err(|why| FabricError::CannotRevoke(format!("process {pid}: {why}; end it by hand"))),
            Fate::Alive => Err(FabricError::CannotRevoke(format!(
                "process {pid} is alive; end it, or allow this fabric to (allow_kill)"
            ))),
            Fate::Unknown(why) => Err(FabricError::CannotRevoke(format!(
                "whether process {pid} has ended cannot be determined from here: {why}; end it where it runs, and revoke it from \
                 a process that sees it"
            ))),
        }
    }
}

impl ShmFabric {
    /// Makes one new file of `len_each` zero bytes (rounded up to whole pages) for each memory node, readable and
    /// writable by its owner alone, with all its space reserved. A path that exists already is an error, unless it is a
    /// DAX device, which is taken as it is.
    pub fn create(paths: &[PathBuf], len_each: u64) -> Result<Self, FabricError> {
        check_count(paths)?;
        if len_each == 0 {
            return Err(FabricError::Settings("0 bytes for each memory node: it takes at least one page".to_owned()));
        }
        let nodes = file::create_all(paths, len_each)?;
        Ok(Self::from_nodes(nodes, file::hold(paths, Hold::Shared)?, false))
    }

    /// Maps files that exist, one for each memory node, in the order in which they were created. A file that a process
    /// serves to clients elsewhere is refused, and as long as this fabric or an endpoint of it lives, none can serve
    /// it.
    pub fn open(paths: &[PathBuf]) -> Result<Self, FabricError> {
        Self::open_as(paths, false, |_, _| Ok(u64::MAX))
    }

    /// Maps files that exist, read-only if asked for, if `own` recognises them. `own` gets the node and the first 4 KiB
    /// of its file before anything is done to the file, and returns how many bytes of it are in use. Space is reserved
    /// for those alone. (For a device `own` is not called: nothing is reserved on it.)
    pub fn open_as<E: From<FabricError>>(
        paths: &[PathBuf],
        read_only: bool,
        own: impl Fn(NodeId, &[u8]) -> Result<u64, E>,
    ) -> Result<Self, E> {
        check_count(paths)?;
        let nodes = file::open_all(paths, read_only, own)?;
        // A reader locks no file.
        let held = if read_only { Vec::new() } else { file::hold(paths, Hold::Shared)? };
        Ok(Self::from_nodes(nodes, held, read_only))
    }

    /// Opens files read-only: verbs that change memory fail with [`FabricError::ReadOnly`] before any verb of their
    /// batch takes effect. Needs no more than permission to read the files.
    pub fn open_read_only(paths: &[PathBuf]) -> Result<Self, FabricError> {
        Self::open_as(paths, true, |_, _| Ok(u64::MAX))
    }

    fn from_nodes(mut nodes: Vec<file::Node>, held: Vec<File>, read_only: bool) -> Self {
        nodes.iter_mut().for_each(|node| node.region.guard());
        let any_device = nodes.iter().any(|node| node.is_device);
        let policy = Arc::new(Policy { kill: AtomicBool::new(false), across_hosts: any_device });
        let revoker = Arc::clone(&policy);
        let mapped = Mapped {
            name: "shm",
            nodes: nodes.into_iter().map(|node| node.region).collect(),
            gates: Arc::clone(&GATES),
            revoke_foreign: Box::new(move |identity| revoker.revoke(identity)),
            read_only,
            zeroed: !any_device,
            _held: held,
            epoch: Instant::now(),
        };
        ShmFabric { mapped: Arc::new(mapped), policy, manner: Manner::default() }
    }

    /// May `revoke` end the process of a client that is still alive? Not unless this says so. It holds for every clone
    /// of this fabric, and for the endpoints that exist already.
    #[must_use]
    pub fn allow_kill(self, allow: bool) -> Self {
        self.policy.kill.store(allow, Ordering::Relaxed);
        self
    }

    /// Returns a fabric on the same memory that carries chains out at another moment.
    #[must_use]
    pub fn with_delivery(&self, delivery: Delivery) -> Self {
        ShmFabric { manner: Manner { delivery, ..self.manner.clone() }, ..self.clone() }
    }

    /// Returns a fabric on the same memory whose nodes answer calls by this handler, in this process. A fabric that was
    /// opened read-only answers none.
    #[must_use]
    pub fn with_call_handler(&self, handler: Arc<CallHandler>) -> Self {
        ShmFabric { manner: Manner { handler: Some(handler), ..self.manner.clone() }, ..self.clone() }
    }
}

fn check_count(paths: &[PathBuf]) -> Result<(), FabricError> {
    let (count, max) = (paths.len(), crate::ptr::MAX_NODES);
    if count == 0 || count > max {
        return Err(FabricError::Settings(format!("{count} memory nodes: it takes between 1 and {max}")));
    }
    Ok(())
}

impl Fabric for ShmFabric {
    fn name(&self) -> &'static str {
        self.mapped.name
    }
    fn nodes(&self) -> Vec<NodeInfo> {
        self.mapped.node_infos()
    }
    fn capabilities(&self) -> Capabilities {
        self.mapped.capabilities(&self.manner)
    }
    fn new_identity(&self) -> Identity {
        process::new_identity()
    }
    /// Only for a client of this process: of one that lives in another, G6 could not be kept.
    fn connect(&self, identity: &Identity) -> Result<Endpoint, FabricError> {
        if !process::is_own(identity) {
            let pid = identity.pid;
            return Err(FabricError::Settings(format!(
                "this identity belongs to process {pid}: make a new one, in a fork child as well"
            )));
        }
        Ok(self.mapped.connect(identity, &self.manner))
    }
    fn is_gone(&self, identity: &Identity) -> Option<bool> {
        match process::fate(identity, self.policy.across_hosts) {
            Fate::Gone => Some(true),
            Fate::Alive => Some(false),
            Fate::Unknown(_) => None,
        }
    }
}
