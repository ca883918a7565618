//! The checker's tests: verdicts against a brute-force oracle, properties of reports, explanations, recorded scans and
//! the file format.

mod brute_force;
mod common;
mod explain;
mod format;
mod groups;
mod recorder;
mod rules;
