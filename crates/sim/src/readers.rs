//! Which clients have READ an object that another one wrote: for judges of the reuse of memory.
//!
//! Invariant: looking changes nothing. An object is known by its address and its length, those of the last WRITE that began there.
//! A READ of that place with another length looks for another object, by an old copy of a pointer. Where clients keep such copies
//! for longer than a pin, a READ of the same length may do so too: there only the first object of a place and a length counts.

use farindex_fabric::{RemotePtr, Verb, VerbKind};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug)]
struct Object {
    words: usize,
    writer: u32,
    /// Who else has READ it since.
    readers: BTreeSet<u32>,
}

#[derive(Debug)]
pub(crate) struct Readers {
    /// By their address.
    objects: BTreeMap<u64, Object>,
    /// Addresses and lengths in words of earlier objects to which copies of pointers may lead, if clients keep any.
    earlier: Option<BTreeSet<(u64, usize)>>,
}

impl Readers {
    /// Watches clients that keep copies of pointers for longer than a pin, or do not.
    pub(crate) fn new(keep_copies: bool) -> Self {
        Readers { objects: BTreeMap::new(), earlier: keep_copies.then(BTreeSet::new) }
    }

    /// A verb of a client takes effect, or a part of it.
    pub(crate) fn note(&mut self, client: u32, verb: &Verb) {
        let at = verb.ptr.to_bits();
        match &verb.kind {
            VerbKind::Write(buf) => {
                let readers = BTreeSet::new();
                self.objects.insert(at, Object { words: buf.words().len(), writer: client, readers });
            }
            VerbKind::Read(buf) => {
                let is_another_ones =
                    |object: &&mut Object| object.words == buf.words().len() && object.writer != client;
                if let Some(object) = self.objects.get_mut(&at).filter(is_another_ones) {
                    object.readers.insert(client);
                }
            }
            _ => {}
        }
    }

    /// What begins in these bytes from now on is another object.
    pub(crate) fn forget(&mut self, at: RemotePtr, bytes: u64) {
        let (from, to) = (at.to_bits(), at.add(bytes).to_bits());
        while let Some((at, words)) = self.objects.range(from..to).next().map(|(at, object)| (*at, object.words)) {
            self.objects.remove(&at);
            if let Some(earlier) = &mut self.earlier {
                earlier.insert((at, words));
            }
        }
    }

    /// A client other than `me` that has READ the object which begins here.
    pub(crate) fn other(&self, me: u32, at: RemotePtr) -> Option<u32> {
        let at = at.to_bits();
        let object = self.objects.get(&at)?;
        if self.earlier.as_ref().is_some_and(|earlier| earlier.contains(&(at, object.words))) {
            return None;
        }
        object.readers.iter().copied().find(|reader| *reader != me)
    }
}
