//! DEX: what it adds to the tree of Sherman. The suites of all kinds test the rest.

mod adversary;
mod budgets;
mod commands;
mod dropped;
mod offload;
mod owners;
mod write_back;
