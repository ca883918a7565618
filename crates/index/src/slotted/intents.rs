//! What the first word of an intent says.

/// Making the next table: then the generation, and the regions that the next table will have.
pub(crate) const GROW: u64 = 1;
/// Moving a region: then its number and the generation.
pub(crate) const MOVE: u64 = 2;
/// Finishing what a crashed client has left.
pub(crate) const RECOVER: u64 = 3;
/// Putting a key in: then the region and the generation.
pub(crate) const PUT: u64 = 4;
/// Displacing an entry: then its slot and the generation, and the address that it goes to.
pub(crate) const DISPLACE: u64 = 5;
