//! Walks through the tables of slots that linear probing and cuckoo hashing have in common: each key at most once, with
//! a value that it had during the walk, however the table is moved meanwhile. And tables that cannot grow, and repairs of
//! tables that are moved.

mod amid;
mod concurrent;
mod crash;
mod damage;
mod growth;
mod held;
mod kinds;
