//! Tests of the fabric over RDMA verbs. On a machine without an RDMA device they say so and pass, unless `SOFT_ROCE` is
//! set. scripts/soft-roce/suite runs them on a software device.

#[path = "../../../index/tests/it/budgets.rs"]
mod budgets;
mod calls;
mod conformance;
mod connection_lifecycle;
mod counted;
mod ground;
mod model;
mod nodes;
