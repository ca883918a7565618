//! The conformance suite: over what UCX picks by itself, over tcp, and over shared memory.

use crate::nodes::{self, Whole};
use farindex_fabric::conformance::{CASES, FabricUnderTest, check_case};
use farindex_fabric::{Fabric, FabricError, NodeId};
use farindex_ucx::Poll;
use std::sync::Arc;

struct Ucx(Poll);

impl FabricUnderTest for Ucx {
    fn fabric(&self, nodes: usize, len: u64) -> Result<Arc<dyn Fabric>, FabricError> {
        Ok(Arc::new(Whole(nodes::serve_with_silent(nodes, len, self.0, None)?)))
    }
    fn rounds(&self) -> u64 {
        100
    }
    fn silent_fabric(&self, nodes: usize, len: u64, silent: NodeId) -> Option<Arc<dyn Fabric>> {
        let served = nodes::serve_with_silent(nodes, len, self.0, Some(silent.index())).ok()?;
        Some(Arc::new(Whole(served)))
    }
}

#[test]
fn as_ucx_picks() {
    if nodes::have_ucx() {
        for case in CASES {
            // UCX may end the process: then this says where.
            println!("{}", case.name);
            check_case(&Ucx(Poll::Adaptive), case).unwrap_or_else(|violation| panic!("{violation}"));
        }
        // And that is what it picked.
        nodes::picked();
    }
}

#[test]
fn over_tcp() {
    nodes::again_over("tcp", "conformance::as_ucx_picks");
}

#[test]
fn over_shared_memory() {
    nodes::again_over("shm", "conformance::as_ucx_picks");
}
