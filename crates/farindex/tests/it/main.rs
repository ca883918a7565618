//! Tests of the face: what it promises beyond the crates underneath.

mod coalesce;
mod futures;
mod index;
mod sessions;
