//! SHARD: what the adversary finds, its audit, its shape, its growth, walks and locks, and the faults of its released prototype.

mod adversary;
mod audit;
mod growth;
mod held;
mod prototype_faults;
mod shape;
