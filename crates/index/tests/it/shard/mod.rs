//! SHARD: what the adversary finds, its audit, its shape, its growth, and the faults of its released prototype.

mod adversary;
mod audit;
mod growth;
mod prototype_faults;
mod shape;
