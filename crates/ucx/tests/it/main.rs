//! Tests of the fabric over UCX. On a machine without libucp they say so and pass, unless `FARINDEX_REQUIRE` contains
//! `ucx`.

#[path = "../../../index/tests/it/budgets.rs"]
mod budgets;
mod calls;
mod conformance;
mod counted;
mod ground;
mod idle;
mod model;
mod nodes;
