//! Tests of the pool: one program, a module for each subject.

mod alloc;
mod audit;
mod catalog;
mod closing;
mod common;
mod crash_recovery;
mod damage;
mod epochs;
mod intents;
mod late_verbs;
mod lock;
mod open;
mod replace;
mod reservations;
mod takeover;
