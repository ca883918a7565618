//! Tests of the contract's two fabrics, the endpoint and the executor.

mod conformance;
mod endpoint;
#[cfg(target_os = "linux")]
mod exec;
mod in_place;
#[cfg(all(target_os = "linux", not(miri)))]
mod shm;
