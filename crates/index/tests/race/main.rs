//! RACE: what it costs, what the adversary finds, which faults are convicted.

mod adversary;
#[path = "../common/alone.rs"]
mod alone;
mod budgets;
#[path = "../common/adversary.rs"]
mod common;
mod fault_detection;
#[path = "../common/ground.rs"]
mod ground;
#[path = "../common/marks.rs"]
mod marks;
