//! RACE: what it costs, what the adversary finds.

mod adversary;
mod budgets;
mod model;
