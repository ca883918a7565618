//! Cuckoo hashing: what it costs, what the adversary finds, which faults are convicted, and what a dead client holds up.

mod adversary;
mod budgets;
mod held;
mod load;
