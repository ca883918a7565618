//! CHIME, over the skeleton that `crate::sherman` tests as well. The suites of all kinds test the rest; what its leaf
//! computes has unit tests of its own.

mod adversary;
mod budgets;
mod hand_over;
mod keys;
mod shape;

use crate::trees::tests_of;
use farindex_index::Chime;

tests_of!(Chime: waits::{
    a_write_that_misses_a_separator_waits_for_its_own_lock_alone, who_waits_for_long_declares_no_intent,
});
