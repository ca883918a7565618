//! Cost in verbs is the fabric's business nowhere: the budgets of SHARD, as on memory.

#[path = "../../index/tests/it/budgets.rs"]
mod budgets;
mod common;

mod ground {
    //! One memory node behind a real device.
    #![allow(unreachable_pub)]

    use crate::common::{Local, device_or_skip};
    use farindex_fabric::{Fabric, MemoryFabric};
    use std::sync::Arc;

    /// A fabric with one memory node of so many zero bytes; without a device the memory fabric, so that what follows says
    /// nothing.
    pub fn ground(bytes: u64) -> Arc<dyn Fabric> {
        if device_or_skip() {
            return Arc::new(Local::new(1, bytes).expect("a memory node"));
        }
        Arc::new(MemoryFabric::new(1, bytes).expect("memory"))
    }
}
