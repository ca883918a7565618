//! One memory node behind a real device.
#![allow(unreachable_pub)]

use crate::nodes::{Local, device_or_skip};
use farindex_fabric::{Fabric, MemoryFabric};
use std::sync::Arc;

/// Makes a fabric with one memory node of so many zero bytes. Without a device it is the memory fabric, so that the
/// tests pass and say nothing.
pub fn ground(bytes: u64) -> Arc<dyn Fabric> {
    if device_or_skip() {
        return Arc::new(Local::new(1, bytes).expect("a memory node"));
    }
    Arc::new(MemoryFabric::new(1, bytes).expect("memory"))
}
