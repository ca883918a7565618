//! Linear probing: what it costs, what the adversary finds, which faults are convicted.

mod adversary;
mod budgets;
mod room;
