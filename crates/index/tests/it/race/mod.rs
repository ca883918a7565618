//! RACE: what it costs, what the adversary finds, which faults are convicted.

mod adversary;
mod budgets;
mod model;
