//! Keys of all shapes in a tree of this kind.

use crate::trees::tests_of;
use farindex_index::Chime;

tests_of!(Chime: keys::{
    keys_with_long_common_prefixes_are_distinct,
    keys_with_zero_bytes_and_the_empty_key_are_distinct,
    an_entry_changes_between_inline_and_block,
    scans_return_what_their_bounds_hold,
    strings_come_out_sorted,
});
