//! Tables of slots that are moved to larger ones region by region: what linear probing and cuckoo hashing share.
//!
//! Records lie in the head word of a slot, in the words behind it, or in a block, each by its own size. A table is named by its
//! root, which every worker has a copy of; while it is moved, the root names the next one as well, and what was moved out of a slot
//! can be told from the slot. docs/protocols/linear.md and docs/protocols/cuckoo.md say what each kind builds on that.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`slot`] | head words, and records behind them |
//! | [`geometry`] | segments, regions, the root |
//! | [`table`] | a worker's copy of the root; growth |
//! | `mover` | moving a region |
//! | `index` | an index of such tables: making one, and the course of a write |
//! | `record` | putting a record in |
//! | `walk` | every entry of a region |

pub mod geometry;
pub(crate) mod index;
pub(crate) mod intents;
pub(crate) mod mover;
pub(crate) mod record;
pub mod slot;
pub mod table;
pub(crate) mod walk;
