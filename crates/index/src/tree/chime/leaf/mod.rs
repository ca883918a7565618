//! The hopscotch leaf of CHIME: layout, verification, and what operations write. Computation on words alone: nothing
//! here posts a verb or takes a lock.
//!
//! After X. Luo et al., CHIME, SOSP 2024, sections 4.1 to 4.4, on the [contract](farindex_fabric::contract) of our
//! fabrics. A leaf is a hash table of `span` entries. A key's *home* is the entry that its hash names; the key lies in
//! the home's *neighbourhood*, the `H` entries from the home on, around the end. A lookup reads a neighbourhood, in one
//! READ.
//!
//! ```text
//! byte 0   lock            free = a magic number of the node with bit 0 clear; held = that | 1; dead = 0
//!      8   right sibling   dead 1 | 15 zeros | address 48      <- the commit word of splits and merges
//!      16  high key        2 words, a reference in the tree's format
//!      32  low key         2 words
//!      48  header check    hash of the seed and the references: a header that is torn does not match
//!      56  hints           vacancy bitmap
//!      64  group 0:        replica of the right sibling's word (8) | H entries (24 each)
//!          group 1:        ...
//!
//! entry: word0  key (inline), or hash of the key
//!        word1  value, or block: length in units of 64 bytes 16 | address 48
//!        word2  check 28 | digest 16 | turning 1 | block 1 | inline 1 | occupied 1 | hop 16
//! ```
//!
//! The header's words but for the hints are those of inner nodes, so the skeleton reads lock, sibling and fence keys of
//! either.
//!
//! A leaf has `64 + 8 * ceil(span / H) + 24 * span` bytes; the last group may be shorter.
//!
//! Whether a key is inline is a function of the key: those of 8 bytes are. Two forms of one key at two places would be
//! two keys for the sets, and no order of words tells a reader which of them is current. The value of an inline key may
//! be in the entry or in a block, and may change between the two (H2).
//!
//! # Why not the paper's versions
//!
//! The fabric promises whole words (G2), and nothing about the order of the words of a READ or WRITE (N2): versions of
//! cache lines prove nothing. They also wrap after 16 changes. Here a *check* binds the words of an entry to each
//! other, to its position, and to the *seed*: a hash of index tag, address, right sibling, low key and high key of the
//! leaf. An entry that was read from a leaf that has been split, merged or reused since therefore fails its check under
//! the seed that the reader expects, and neither versions of the node nor fence keys need to be read along (section
//! 4.2.3). The replica tells a reader whether reading again will help. Checks have 28 bits, digests 16; the invariants
//! below hold but for collisions of these hashes. A digest decides only where the bitmap and all checks agree already.
//!
//! # Invariants
//!
//! Let an entry *hold* a key while its state word in far memory says that it is occupied and its word0 is the key's. A
//! key is *present* while an entry of its neighbourhood holds it. A *set* is what hop bitmap and digest of a home's
//! state say: which of the keys with this home are at which distance.
//!
//! * **H1** A state word whose check holds proves data words: while such a word, occupied, is in far memory under the
//!   leaf's seed, word0 is the one that it was computed with, and word1 is that too, or is being changed from it or to
//!   it by an update in flight.
//! * **H2** Every commit is one word. A vacant entry is filled by a WRITE of {word0, word1} and then one of its state;
//!   an entry is emptied by its state alone; a hop fills the new entry, then empties the old, and only then the old may
//!   be filled; an update is one WRITE of {word1, word2}, either of which may land first. An update that turns a value
//!   into a block, or back, is three WRITEs: the state with *turning* set, word1, the new state. If the check does not
//!   hold while *turning* is set, word1 is of the other form already.
//! * **H3** A home's set covers every key of this home that is present and lies in the leaf's range, at every moment:
//!   an insert writes the set before the entry's state, a remove writes it behind. A hop changes distances in the set
//!   and no key of it. The order holds across WRITEs (G4), not within one.
//! * **H4** Sets are equal only if the keys and their distances are. Keys without an inline form count by their 64-bit
//!   hashes here.
//! * **H5** After any prefix of a plan's WRITEs and any words of the next, each key that the operation does not concern
//!   is held by some entry with its value, the operation's own key is as before or as afterwards, and no other key is
//!   held. Everything else is derived from the occupied entries ([`recover::recover`]).
//!
//! H1 follows from H2: a state says occupied only from after its data words have landed to before they change, but for
//! updates, which change word1 alone.
//!
//! **R1** *A hit is right*: let `t` be the moment at which the READ took the state word of an entry whose check holds.
//! By H1 the entry held the key at `t`, and its value at `t` was the one that was read, or an update between that value
//! and another was in flight.
//!
//! **R2** *A miss is right*: let `t` be the moment at which the READ took the state word of the home, whose set is `S`.
//! 1. All checks hold, so the entries, each at its own moment, held certain keys; those with this home, with their
//!    distances, form the set `S` (H4). The key is not among them, so it is not in `S`.
//! 2. By H3, no entry held the key at `t`: it was absent then.
//!
//! The bitmap alone does not prove a miss. Within one slow READ a key may hop from `i` to `j`, and then another key of
//! the same home may be inserted at `i`. A reader that takes the home and `j` before these changes, and `i` after them,
//! finds the bitmap confirmed by the other key, and misses the one that hopped. The digest differs. The paper's
//! argument (4.1.2) considers one hop in flight, and not several operations.
//!
//! The order of H3 is needed too. Assume that an insert wrote the home's set behind the entry's state. A reader of the
//! entry alone hits between the two. A later reader takes the old set, and the position to which the key will hop; then
//! the set is written and the key hops; then the reader takes the position that the key has left, and misses.
//!
//! **S1** *Split*: a reader that expects the old state must not find an entry of a key that has moved once others may
//! change that key in the right node. So, in this order: (1) the right node's header is written, with the lock word of a
//! dead node, which nobody can lock; (2) all entries of the left node are written under its new seed, those that move as
//! well; (3) the left node's header commits the split; (4) the right node's entries are written; (5) the left node's
//! entries are written without those that have moved; (6) the right node's lock word is made free; (7) the left node's
//! lock is released. From (3) on no entry passes under the old seed. The right node's entries are unreadable until it is
//! linked, and cannot be changed before (6). After a crash between (3) and (6), the new holder of the left lock finds a
//! dead right sibling whose entries are complete, or still has all of them ([`rebuild`]), because (5) comes after (4).
//!
//! **S2** *Merge*: the right node is frozen, and its entries pass under its seed until they are overwritten. That happens
//! before the left lock is released, and before the left node's sibling word changes: a new holder of the left lock finds
//! the dead bit there, overwrites the entries again, and finishes. Without the dead bit the merge has not begun: the copies
//! are dropped, and the right node is made free again.
//!
//! | Module | What it holds | Paper |
//! |---|---|---|
//! | [`layout`] | offsets, and ranges to READ | 4.2.2 |
//! | [`entry`] | words of an entry: state, check, digest, home | 4.1 |
//! | [`header`] | the header, and the seed | 4.2.3 |
//! | [`hints`] | the vacancy bitmap | 4.2.1 |
//! | [`image`] | words that were read | |
//! | [`read`] | verification by readers | 4.1.2, 4.4 |
//! | [`plan`] | what an operation writes, in which order | |
//! | [`mod@insert`] | insert with hops, update, remove | 2.3, 4.4 |
//! | [`mod@split`] | split, merge | 4.4 |
//! | [`mod@recover`] | recovery after a crash; new leaves | |
//! | [`faults`] | planted faults | |

pub mod entry;
pub mod faults;
pub mod header;
pub mod hints;
pub mod image;
pub mod insert;
pub mod layout;
pub mod plan;
pub mod read;
pub mod recover;
pub mod split;
#[cfg(test)]
mod tests;

pub use entry::{Entry, Item, Key, Seed, hash_key};
pub use header::{Expected, Node, SiblingWord};
pub use hints::Hints;
pub use image::{Image, Pieces, Words};
pub use insert::{Change, Insert, insert, remove, update};
pub use layout::{Layout, Ranges};
pub use plan::{Plan, Write};
pub use read::{Lookup, Scan, look_up, scan, verify_entry};
pub use recover::{Damage, Recovered, build, rebuild, recover};
pub use split::{Absorb, Split, absorb, retire, split};
