//! The shape of a tree of this kind: settings, memory that comes back, damage.

use crate::trees::tests_of;
use farindex_index::Chime;

tests_of!(Chime: shape::{
    trees_of_all_spans_hold_their_entries,
    removals_merge_leaves_and_try_few_merges_in_vain,
    settings_outside_their_limits_are_refused,
    churn_of_inline_entries_runs_in_bounded_memory,
    churn_of_blocks_runs_in_bounded_memory,
    a_full_pool_refuses_inserts_and_keeps_its_entries,
    walks_end_where_the_root_has_shrunk_meanwhile,
    a_walk_goes_on_behind_damaged_leaves,
    a_walk_goes_on_behind_damaged_blocks,
});
