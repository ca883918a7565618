//! Which clients have READ an object that another one wrote: for judges of the reuse of memory.
//!
//! Invariant: looking changes nothing. An object is known by its address and its length, those of the last WRITE that began there.
//! A READ of that place with another length looks for another object, by an old copy of a pointer.

use farindex_fabric::{RemotePtr, Verb, VerbKind};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug)]
struct Object {
    words: usize,
    writer: u32,
    /// Who else has READ it since.
    readers: BTreeSet<u32>,
}

/// Objects by their address.
#[derive(Debug, Default)]
pub(crate) struct Readers(BTreeMap<u64, Object>);

impl Readers {
    /// A verb of a client takes effect, or a part of it.
    pub(crate) fn note(&mut self, client: u32, verb: &Verb) {
        let at = verb.ptr.to_bits();
        match &verb.kind {
            VerbKind::Write(buf) => {
                let readers = BTreeSet::new();
                self.0.insert(at, Object { words: buf.words().len(), writer: client, readers });
            }
            VerbKind::Read(buf) => {
                let is_another_ones =
                    |object: &&mut Object| object.words == buf.words().len() && object.writer != client;
                if let Some(object) = self.0.get_mut(&at).filter(is_another_ones) {
                    object.readers.insert(client);
                }
            }
            _ => {}
        }
    }

    /// What begins in these bytes from now on is another object.
    pub(crate) fn forget(&mut self, at: RemotePtr, bytes: u64) {
        let (from, to) = (at.to_bits(), at.add(bytes).to_bits());
        while let Some(at) = self.0.range(from..to).next().map(|(at, _)| *at) {
            self.0.remove(&at);
        }
    }

    /// A client other than `me` that has READ the object which begins here.
    pub(crate) fn other(&self, me: u32, at: RemotePtr) -> Option<u32> {
        self.0.get(&at.to_bits())?.readers.iter().copied().find(|reader| *reader != me)
    }
}
