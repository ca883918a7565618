//! Tests of the program, which run it as a process.
//!
//! `remote` is a test program of its own: it needs the feature `ucx`, and its own process is a client whose leases
//! other load of this process would make expire.

mod common;

mod bad_input;
mod damage;
mod gateway;
mod multiprocess;
mod scan;
mod verdicts;
