//! Walks through the tables of slots that linear probing and cuckoo hashing have in common: each key at most once, with
//! a value that it had during the walk, however the table is moved meanwhile. And inserts into a table that cannot
//! grow.

mod amid;
mod concurrent;
mod crash;
mod damage;
mod growth;
mod held;
mod kinds;
