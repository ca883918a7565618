//! CHIME, over the skeleton that `crate::sherman` tests as well. The suites of all kinds test the rest; what its leaf
//! computes is tested beside it.

mod adversary;
mod budgets;
mod hand_over;
mod keys;
mod shape;
