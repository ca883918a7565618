//! Tables of several hashing schemes, filled until an insert finds no room.

use farindex_index::tree::chime::leaf::layout::HINTS_OFFSET;
use farindex_index::tree::chime::leaf::{Image, Insert, Item, Key, Layout, Node, Words, insert, split};
use farindex_sim::SimRng;

/// A scheme of Figure 3d.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scheme {
    /// The real leaf, with a neighbourhood of the factor.
    Hopscotch,
    /// Hopscotch between buckets of half the factor, in neighbourhoods of two, without chains.
    Farm,
    /// Buckets of the factor.
    Associative,
    /// Groups of two main buckets and an overflow bucket between them, of a quarter of the factor; a key has two
    /// choices of a main bucket with its overflow bucket.
    Race,
}

impl Scheme {
    pub(super) const ALL: [Scheme; 4] = [Scheme::Hopscotch, Scheme::Farm, Scheme::Associative, Scheme::Race];

    pub(super) fn name(self) -> &'static str {
        match self {
            Scheme::Hopscotch => "hopscotch",
            Scheme::Farm => "FaRM",
            Scheme::Associative => "associative",
            Scheme::Race => "RACE",
        }
    }

    /// The mean load factor at the first insert that fails; `None` if there is no such table.
    pub(super) fn max_load(self, entries: usize, factor: usize, trials: usize, seed: u64) -> Option<f64> {
        let fill = |rng: &mut SimRng| match self {
            Scheme::Farm => farm(entries, factor, rng),
            Scheme::Associative => associative(entries, factor, rng),
            _ => race(entries, factor, rng),
        };
        if self == Scheme::Hopscotch {
            return Some(leaf_loads(Layout::new(entries, factor, seed)?, trials, seed));
        }
        let sum: f64 = (0..trials).map(|trial| fill(&mut SimRng::new(seed, trial as u64))).sum();
        Some(sum / trials as f64)
    }
}

fn associative(entries: usize, factor: usize, rng: &mut SimRng) -> f64 {
    let mut buckets = vec![0; entries / factor];
    loop {
        let bucket = rng.below(buckets.len() as u64) as usize;
        if buckets[bucket] == factor {
            return load(buckets.iter().sum(), buckets.len() * factor);
        }
        buckets[bucket] += 1;
    }
}

fn load(held: usize, entries: usize) -> f64 {
    held as f64 / entries as f64
}

/// The number of keys in main and overflow buckets; an overflow bucket is shared by two main buckets.
fn race(entries: usize, factor: usize, rng: &mut SimRng) -> f64 {
    let size = (factor / 4).max(1);
    let groups = entries / (3 * size);
    let (mut main, mut overflow) = (vec![0; groups * 2], vec![0; groups]);
    loop {
        let choices = [0; 2].map(|_| rng.below(main.len() as u64) as usize);
        let held = choices.map(|at| main[at] + overflow[at / 2]);
        let at = if held[0] < held[1] { choices[0] } else { choices[1] };
        if main[at] < size {
            main[at] += 1;
        } else if overflow[at / 2] < size {
            overflow[at / 2] += 1;
        } else {
            return load(main.iter().chain(&overflow).sum(), groups * 3 * size);
        }
    }
}

/// Each bucket holds the homes of its keys, which are its own number or the one before.
fn farm(entries: usize, factor: usize, rng: &mut SimRng) -> f64 {
    let size = (factor / 2).max(1);
    let count = entries / size;
    let mut buckets: Vec<Vec<usize>> = vec![Vec::new(); count];
    let full = |buckets: &[Vec<usize>]| load(buckets.iter().map(Vec::len).sum(), count * size);
    loop {
        let home = rng.below(count as u64) as usize;
        let vacant = (0..count).find(|distance| buckets[(home + distance) % count].len() < size);
        let Some(mut distance) = vacant else { return full(&buckets) };
        while distance >= 2 {
            let (from, to) = ((home + distance - 1) % count, (home + distance) % count);
            // A key in its own home bucket can hop to the next.
            let Some(at) = buckets[from].iter().position(|key| *key == from) else { return full(&buckets) };
            let key = buckets[from].swap_remove(at);
            buckets[to].push(key);
            distance -= 1;
        }
        buckets[(home + distance) % count].push(home);
    }
}

fn node() -> Node {
    Node { tag: 1, address: 2, sibling: 3, low: [0; 2], high: [0; 2] }
}

/// Fills a leaf with random keys of a range until an insert fails: what the leaf holds in each entry, and the positions
/// that are full.
fn fill(image: &mut Image, keys: &std::ops::Range<u64>, rng: &mut SimRng) -> Vec<usize> {
    let seed = node().seed();
    loop {
        let Some(hints) = image.hints() else { return Vec::new() };
        let key = Key::inline((keys.start + rng.below(keys.end - keys.start)).to_le_bytes());
        match insert(image, seed, hints, Item { key, word1: 1, block: false }, &[]) {
            Insert::Done { plan, .. } => image.add(HINTS_OFFSET, &[plan.hints.bits()]),
            Insert::Exists(_) => {}
            Insert::Full(full) => return full,
            _ => return Vec::new(),
        }
    }
}

fn held(image: &Image) -> usize {
    image.items().unwrap_or_default().iter().flatten().count()
}

/// The mean load factor of leaves that were empty, at the first insert that fails.
pub(super) fn leaf_loads(layout: Layout, trials: usize, seed: u64) -> f64 {
    let sum: usize = (0..trials)
        .map(|trial| {
            let mut image = Image::empty(layout, &node(), 0);
            fill(&mut image, &(0..u64::MAX), &mut SimRng::new(seed, trial as u64));
            held(&image)
        })
        .sum();
    load(sum, layout.span() * trials)
}

/// The mean load factor of leaves that are full and split, one after the other; `None` if a split fails.
pub(super) fn split_loads(layout: Layout, trials: usize, seed: u64) -> Option<f64> {
    const GENERATIONS: usize = 8;
    let (mut sum, mut count) = (0, 0);
    for trial in 0..trials.div_ceil(GENERATIONS) {
        let rng = &mut SimRng::new(seed, 1 << 32 | trial as u64);
        let (mut image, mut range) = (Image::empty(layout, &node(), 0), 0..u64::MAX);
        for generation in 0..=GENERATIONS {
            let full = fill(&mut image, &range, rng);
            if generation > 0 {
                (sum, count) = (sum + held(&image), count + 1);
            }
            let items = image.items()?;
            let mut keys: Vec<u64> = full.iter().filter_map(|at| items[*at]).map(|item| item.key.word0).collect();
            keys.sort_unstable();
            let pivot = *keys.get(keys.len() / 2)?;
            let halves = split(&mut image, &node(), &node(), |_, item| item.key.word0 >= pivot)?;
            if rng.below(2) == 0 {
                image = halves.right;
                range.start = pivot;
            } else {
                range.end = pivot;
            }
        }
    }
    Some(load(sum, layout.span() * count))
}
