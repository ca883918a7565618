//! Tests of the fabric over UCX. On a machine without libucp they say so and pass, unless `FARINDEX_REQUIRE` contains
//! `ucx`.

#[path = "../../../index/tests/budgets.rs"]
mod budgets;
mod calls;
#[path = "../../../index/tests/common/mod.rs"]
mod common;
mod conformance;
mod counted;
mod ground;
mod idle;
mod model;
mod nodes;
#[path = "../../../index/tests/model/suite.rs"]
mod suite;
