//! SepHash: what it costs, what the adversary finds, and the limits of its fields.

mod adversary;
mod budgets;
mod limits;
