//! Random operations, crashes and concurrent readers on one leaf in a simulated memory.

mod crash;
mod load;
mod operations;
mod readers;

use super::image::Words;
use super::*;
use std::collections::BTreeMap;

/// SplitMix64.
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ x >> 31
    }
    pub(super) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
    pub(super) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

pub(super) fn layout(span: usize, h: usize) -> Layout {
    Layout::new(span, h, 0x5EED).expect("a layout")
}

pub(super) fn node(sibling: u64, low: u64, high: u64) -> Node {
    Node { tag: 0x7A6, address: 0x1000, sibling, low: [low, 1], high: [high, 1] }
}

/// The bits of a lock word of a leaf that is held.
pub(super) const LOCKED: u64 = 0xABCD_EF01;

/// A key of the tests. Even ones are inline; odd ones have blocks, and in pairs the same hash.
pub(super) type Id = u64;

pub(super) fn key(id: Id) -> Key {
    if id.is_multiple_of(2) { Key::inline(id.to_be_bytes()) } else { Key::hashed(hash_key(&(id / 4).to_le_bytes(), 9)) }
}

/// The value in an item is 16 bits; a block's address tells its key. Odd values of inline keys are in blocks too.
pub(super) fn item(id: Id, value: u64) -> Item {
    match key(id) {
        key @ Key { inline: true, .. } if value.is_multiple_of(2) => {
            Item { key, word1: id << 16 | value, block: false }
        }
        key => Item::block(key, id << 16 | value, 3),
    }
}

pub(super) fn id_of(item: &Item) -> Id {
    (item.word1 & ((1 << 48) - 1)) >> 16
}

/// A leaf in far memory, and what it should hold. All operations read what they need, in ranges.
#[derive(Clone)]
pub(super) struct Leaf {
    pub(super) layout: Layout,
    pub(super) node: Node,
    pub(super) memory: Vec<u64>,
    pub(super) model: BTreeMap<Id, u64>,
}

pub(super) fn land(memory: &mut [u64], write: &Write) {
    memory[write.offset / 8..][..write.words.len()].copy_from_slice(&write.words);
}

impl Leaf {
    pub(super) fn new(layout: Layout, node: Node) -> Leaf {
        let image = Image::empty(layout, &node, LOCKED);
        Leaf { layout, node, memory: image.whole().expect("whole").to_vec(), model: BTreeMap::new() }
    }
    pub(super) fn hints(&self) -> Hints {
        Hints::from_bits(self.memory[layout::HINTS_OFFSET / 8])
    }
    pub(super) fn seed(&self) -> Seed {
        self.node.seed()
    }
    pub(super) fn read(&self, image: &mut Image, ranges: &Ranges) {
        for range in ranges {
            image.add(range.start, &self.memory[range.start / 8..range.end / 8]);
        }
    }
    pub(super) fn whole(&self) -> Image {
        let mut image = Image::new(self.layout);
        image.add(0, &self.memory);
        image
    }
    /// Applies a plan: the WRITEs, and then the hints.
    pub(super) fn apply(&mut self, plan: &Plan) {
        plan.writes.iter().for_each(|write| land(&mut self.memory, write));
        self.memory[layout::HINTS_OFFSET / 8] = plan.hints.bits();
    }

    fn position_of(&self, id: Id) -> Option<usize> {
        let image = self.whole();
        match look_up(&image, &self.node.expected(), key(id)) {
            Lookup::Hit { position, .. } => Some(position),
            Lookup::Candidates(found) => {
                let mine = |word1: u64| id_of(&Item { key: key(id), word1, block: true }) == id;
                found.into_iter().find(|(_, word1)| mine(*word1)).map(|(position, _)| position)
            }
            Lookup::Miss => None,
            other => panic!("{other:?}"),
        }
    }

    /// Plans an insert of an absent or present key; the model does not change.
    pub(super) fn plan_insert(&self, id: Id, value: u64) -> Insert {
        let home = self.layout.home(key(id));
        let (from, count) = self.hints().insert_range(self.layout, home);
        let mut image = Image::new(self.layout);
        self.read(&mut image, &self.layout.entries(from, count));
        let mut others = Vec::new();
        loop {
            match insert(&mut image, self.seed(), self.hints(), item(id, value), &others) {
                Insert::NeedsMore(from, count) => self.read(&mut image, &self.layout.entries(from, count)),
                Insert::Candidates(found) => {
                    let mine = |at: &usize| image.entry(*at).and_then(|entry| entry.item()).map(|item| id_of(&item));
                    if let Some(at) = found.iter().find(|at| mine(at) == Some(id)) {
                        return Insert::Exists(*at);
                    }
                    others.extend(found);
                }
                done => {
                    self.compare(&image, &done);
                    return done;
                }
            }
        }
    }
    /// The partial image after the plan is what the memory will be.
    fn compare(&self, image: &Image, done: &Insert) {
        if let Insert::Done { plan, .. } = done {
            let mut after = self.clone();
            after.apply(plan);
            for index in layout::HEADER_LEN / 8..self.layout.words() {
                assert!(image.word(index).is_none_or(|word| word == after.memory[index]), "word {index}");
            }
        }
    }
    pub(super) fn plan_update(&self, id: Id, value: u64) -> Option<Plan> {
        let position = self.position_of(id)?;
        let mut image = Image::new(self.layout);
        self.read(&mut image, &self.layout.entries(position, 1));
        let Item { word1, block, .. } = item(id, value);
        match update(&mut image, self.seed(), self.hints(), position, word1, block) {
            Change::Done(plan) => Some(plan),
            other => panic!("{other:?}"),
        }
    }
    pub(super) fn plan_remove(&self, id: Id) -> Option<Plan> {
        let position = self.position_of(id)?;
        let mut image = Image::new(self.layout);
        self.read(&mut image, &self.layout.neighbourhood_ranges(self.layout.home(key(id))));
        match remove(&mut image, self.seed(), self.hints(), position) {
            Change::Done(plan) => Some(plan),
            other => panic!("{other:?}"),
        }
    }

    /// Compares what an image holds with a model: every key once, with its value.
    pub(super) fn held(image: &Image) -> Result<BTreeMap<Id, u64>, String> {
        let mut held = BTreeMap::new();
        for item in image.items().ok_or("not whole")?.into_iter().flatten() {
            let id = id_of(&item);
            if item.key != key(id) {
                return Err(format!("{item:?} is not an item of key {id}"));
            }
            if held.insert(id, item.word1 & 0xFFFF).is_some() {
                return Err(format!("key {id} is there twice"));
            }
        }
        Ok(held)
    }

    /// Checks every invariant of a leaf that no operation is changing. `exact`: the hints are as derived.
    pub(super) fn check(&self, exact: bool) -> Result<(), String> {
        let (image, expected) = (self.whole(), self.node.expected());
        let held = Leaf::held(&image)?;
        if held != self.model {
            return Err(format!("held {held:?}, expected {:?}", self.model));
        }
        let Scan::Items(items) = scan(&image, &expected) else { return Err("the scan does not verify".to_owned()) };
        if items.len() != held.len() {
            return Err("the scan misses items".to_owned());
        }
        if Node::read(&image, self.node.tag, self.node.address) != Some(self.node) {
            return Err("the header does not verify".to_owned());
        }
        let derived = Hints::of(self.layout, &image.items().unwrap_or_default());
        for position in 0..self.layout.span() {
            let (ours, exactly) =
                [self.hints(), derived].map(|hints| hints.may_be_vacant(self.layout, position)).into();
            if exactly && !ours || exact && ours != exactly {
                return Err(format!("the vacancy bit of entry {position} is {ours}"));
            }
        }
        Ok(())
    }

    /// Looks up a key as a reader does: the ranges of its neighbourhood, as pieces.
    pub(super) fn look_up(&self, id: Id) -> Lookup {
        let ranges = self.layout.neighbourhood_ranges(self.layout.home(key(id)));
        let piece = |range: &std::ops::Range<usize>| (range.start, &self.memory[range.start / 8..range.end / 8]);
        let pieces = Pieces::new(self.layout, piece(&ranges[0]), ranges.get(1).map(piece));
        look_up(&pieces, &self.node.expected(), key(id))
    }
}
