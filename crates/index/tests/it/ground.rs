//! What tests of a pool that is alone stand on: the memory fabric. Tests of other fabrics put another module of this
//! name at their root.
#![allow(dead_code, unreachable_pub)]

use farindex_fabric::{Fabric, MemoryFabric};
use std::sync::Arc;

/// A fabric with one memory node of so many zero bytes.
pub fn ground(bytes: u64) -> Arc<dyn Fabric> {
    Arc::new(MemoryFabric::new(1, bytes).expect("memory"))
}
