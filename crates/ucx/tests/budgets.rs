//! Cost in verbs is the fabric's business nowhere: the budgets of SHARD, as on memory.

#[path = "../../index/tests/it/budgets.rs"]
mod budgets;
mod common;
mod ground;
