//! Tables of slots that are moved to larger ones region by region: what linear probing and cuckoo hashing share.
//!
//! A record is in the head word of a slot, in the words behind the head, or in a block, depending on its size. The root
//! names the table, and every worker has a copy of the root. While the table is moved, the root names the next table as
//! well, and a slot shows whether its entry has been moved. docs/protocols/linear.md and docs/protocols/cuckoo.md say
//! what each kind builds on that.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`slot`] | head words, and records behind them |
//! | [`geometry`] | segments, regions, the root |
//! | [`table`] | one table, and how it grows |
//! | `mover` | moving a region |
//! | `index` | an index of such tables: growth between operations, and the course of a write |
//! | `intents` | what an intent says |
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
