//! An extendible directory in far memory, and its cached copy, which the threads of a compute node share.
//!
//! The directory is an array of words, indexed by *suffixes* of hashes: the word at `s` names the segment that was
//! created with suffix `s`. A segment keeps its suffix for ever; its local depth grows. When a segment `p` of depth `d`
//! is split, the segment `c = p + 2^d` is created, and takes the keys whose bit `d` is set. So a split writes *one*
//! word of the directory, at any depth, and no word is copied or written twice. The segment of a hash is that of the
//! longest suffix of the hash that has a word. Words that were never written are zero.
//!
//! The array is cut in chunks. Chunk 0 holds the first `2^b` words, chunk `k` the next `2^(b+k-1)`: to double the
//! directory, a client allocates zeros, and CASes a pointer in the root. That takes no lock, and no client waits.
//!
//! Invariants (argued in docs/protocols/extendible.md):
//!
//! * **X1** A word is published when everything that it names has been written and awaited.
//! * **X2** A word that is not zero never becomes zero again, and names the segment of its suffix for ever.
//! * **X3** A segment's local depth passes `d` only behind the publication of its child `p + 2^d`, in a batch that
//!   orders them (G4). So a depth that was read proves that the words of all children up to it can be read.
//! * **X4** A chunk is zeros before its pointer is in the root; the pointer never changes.
//! * **X5** A cached copy holds words that were published. A copy that is behind costs round trips, never correctness,
//!   because each segment states its own depth.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`layout`] | suffixes, words, the root |
//! | [`directory`] | the directory in far memory |
//! | [`mirror`] | the cached copy |

pub mod directory;
pub(crate) mod first_segments;
pub mod layout;
pub mod mirror;

pub use directory::{Directory, Guard};
pub use layout::{Entry, Shape};
pub use mirror::Mirror;
