//! Tests of the indexes, in one program.

mod adversary;
mod blink;
mod budgets;
mod chime;
mod coalesce;
mod crash_recovery;
mod cuckoo;
mod dex;
mod extendible;
mod fault_detection;
mod ground;
mod guarded;
mod linear;
mod many;
mod marks;
mod model;
mod race;
mod read_size;
mod seeds;
mod sephash;
mod shard;
mod sherman;
mod slotted;
mod swarm;
mod trees;
