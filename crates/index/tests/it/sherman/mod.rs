//! Sherman, and the skeleton of the ordered indexes. The suites of all kinds test the rest.

mod adversary;
mod budgets;
mod damage;
mod hand_over;
mod keys;
mod shape;
mod unlinked;

use crate::trees::tests_of;
use farindex_index::Sherman;

tests_of!(Sherman: waits::{
    a_write_that_misses_a_separator_waits_for_its_own_lock_alone, who_waits_for_long_declares_no_intent,
});
