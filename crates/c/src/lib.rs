//! The C interface of farindex, on the face of the library alone. `include/farindex.h` is generated from it.
//!
//! Invariants:
//!
//! - No panic crosses the boundary: every function runs its body through a guard in [`status`], which makes an error code of it.
//! - Pointers are checked for null before they are used, and turned into slices and references in [`raw`] alone.
//! - A session and its indexes belong to the thread that has opened the session. Every function compares the thread before it touches
//!   them, so a mistake is an error code and no data race.
//! - A child of fork touches nothing that it has inherited: every handle knows the process in which it was made.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`status`] | codes, the last error's text, panics |
//! | [`raw`] | pointers from C |
//! | `fork` | what a child process may not do |
//! | [`pool`], [`session`] | pools; sessions, which create, open and drop indexes |
//! | [`index`] | operations on one key |
//! | [`batch`] | operations on many keys |
//! | [`scan`] | entries, in order or not |

#![allow(unsafe_code, reason = "each function of the interface takes pointers from C")]
#![allow(non_camel_case_types, reason = "the names are those of the header")]

pub mod batch;
mod fork;
pub mod index;
pub mod pool;
pub mod raw;
pub mod scan;
pub mod session;
pub mod status;
