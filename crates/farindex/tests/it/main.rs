//! Tests of the face: what it promises beyond the crates underneath.

mod coalesce;
mod futures;
mod handle;
mod index;
mod local_set;
mod sessions;
