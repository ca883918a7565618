//! What the first word of an intent says.

/// Splitting a bucket: then its number, its version, and 1 or 2 for its level.
pub(super) const SPLIT: u64 = 1;
/// Inserting where no slot is free: then the bucket's number, the version, and 1.
pub(super) const INSERT: u64 = 2;
/// Undoing an abandoned split: then the bucket's number, its version, and 1 or 2 for its level, as far as they are
/// known.
pub(super) const REPAIR: u64 = 3;
/// Finishing or undoing what a crashed client has left.
pub(super) const RECOVER: u64 = 4;
/// Adding a segment to the table: then the version.
pub(super) const GROW: u64 = 5;
