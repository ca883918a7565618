//! Coverage marks and planted faults. The loom tests have none of them.

pub(super) use crate::marks::mark;
pub(super) use crate::tree::faults::{Fault, planted};
