//! One memory node behind UCX.
#![allow(unreachable_pub)]

use crate::nodes::{Whole, have_ucx, serve};
use farindex_fabric::{Fabric, MemoryFabric};
use farindex_ucx::Poll;
use std::sync::Arc;

/// A fabric with one memory node of so many zero bytes; without UCX the memory fabric, so that what follows says
/// nothing.
pub fn ground(bytes: u64) -> Arc<dyn Fabric> {
    if have_ucx() {
        return Arc::new(Whole(serve(1, bytes, Poll::Adaptive)));
    }
    Arc::new(MemoryFabric::new(1, bytes).expect("memory"))
}
