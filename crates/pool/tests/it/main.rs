//! Tests of the pool: one program, a module for each subject.

mod alloc;
mod catalog;
mod common;
mod crash_recovery;
mod damage;
mod epochs;
mod lock;
mod open;
mod replace;
mod takeover;
