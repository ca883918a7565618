//! Cuckoo hashing: what it costs, what the adversary finds, and what a crashed client holds up.

mod adversary;
mod budgets;
mod held;
mod load;
