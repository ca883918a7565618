//! Which clients have READ an object that another one wrote: for judges of the reuse of memory.
//!
//! Invariant: looking changes nothing. An object is known by its address and its length, those of the last WRITE that began there.
//! A READ of that place with another length looks for another object, by an old copy of a pointer. Where clients keep such copies
//! for longer than a pin, a READ of the same length may do so too: there only the first object of a place and a length counts.

use crate::flight::first_word;
use farindex_fabric::{RemotePtr, Verb, VerbKind};
use std::collections::BTreeSet;

#[derive(Debug)]
struct Object {
    /// 0: it is forgotten, and nothing was written there since.
    words: usize,
    writer: u32,
    /// Who else has READ it since.
    readers: BTreeSet<u32>,
}

#[derive(Debug)]
pub(crate) struct Readers {
    /// Of each node, by the word at which an object begins: the object's place in `objects`, from 1 on. 0: there was none so far.
    /// (Each verb looks here, and each piece of one.)
    places: Vec<Vec<u32>>,
    objects: Vec<Object>,
    /// Addresses and lengths in words of earlier objects to which copies of pointers may lead, if clients keep any.
    earlier: Option<BTreeSet<(u64, usize)>>,
}

impl Readers {
    /// Watches clients that keep copies of pointers for longer than a pin, or do not, on nodes of so many words.
    pub(crate) fn new(nodes: impl Iterator<Item = usize>, keep_copies: bool) -> Self {
        let places = nodes.map(|words| vec![0; words]).collect();
        Readers { places, objects: Vec::new(), earlier: keep_copies.then(BTreeSet::new) }
    }

    /// A verb of a client takes effect, or a part of it.
    pub(crate) fn note(&mut self, client: u32, verb: &Verb) {
        let Readers { places, objects, .. } = self;
        let Some(place) = places.get_mut(verb.node().index()).and_then(|places| places.get_mut(first_word(verb)))
        else {
            return;
        };
        let object = objects.get_mut((*place as usize).wrapping_sub(1));
        match (&verb.kind, object) {
            (VerbKind::Write(buf), Some(object)) => {
                (object.words, object.writer) = (buf.words().len(), client);
                object.readers.clear();
            }
            (VerbKind::Write(buf), None) => {
                objects.push(Object { words: buf.words().len(), writer: client, readers: BTreeSet::new() });
                *place = objects.len() as u32;
            }
            (VerbKind::Read(buf), Some(object)) if object.words == buf.words().len() && object.writer != client => {
                object.readers.insert(client);
            }
            _ => {}
        }
    }

    /// What begins in these bytes from now on is another object.
    pub(crate) fn forget(&mut self, at: RemotePtr, bytes: u64) {
        let from = (at.offset() / 8) as usize;
        let Some(places) = self.places.get(at.node().index()) else { return };
        let places = places.iter().skip(from).take(bytes.div_ceil(8) as usize);
        for (i, place) in (0..).zip(places) {
            let Some(object) = self.objects.get_mut((*place as usize).wrapping_sub(1)) else { continue };
            object.readers.clear();
            let words = std::mem::take(&mut object.words);
            if let Some(earlier) = self.earlier.as_mut().filter(|_| words > 0) {
                earlier.insert((at.add(i * 8).to_bits(), words));
            }
        }
    }

    /// A client other than `me` that has READ the object which begins here.
    pub(crate) fn other(&self, me: u32, at: RemotePtr) -> Option<u32> {
        let place = *self.places.get(at.node().index())?.get((at.offset() / 8) as usize)?;
        let object = self.objects.get((place as usize).checked_sub(1)?)?;
        if self.earlier.as_ref().is_some_and(|earlier| earlier.contains(&(at.to_bits(), object.words))) {
            return None;
        }
        object.readers.iter().copied().find(|reader| *reader != me)
    }
}
