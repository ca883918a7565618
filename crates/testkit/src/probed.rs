//! Tables that are filled by linear probing, slot by slot, to compare the model of read sizes with.

/// splitmix64, with the draws for which the comparison is documented: at a load of 0.9 a table of 2^24 slots is off by 1 % where
/// the clusters are longer by chance.
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((u128::from(x ^ x >> 31) * u128::from(end)) >> 64) as u64
    }
}

/// A table: how many lookups read more than 0, 1, 2, ... slots.
pub struct Table {
    /// Lookups of absent keys.
    pub misses: Vec<u64>,
    /// Lookups of present keys that end with the key.
    pub hits: Vec<u64>,
    /// Lookups of present keys that end with the first empty slot.
    pub all_matches: Vec<u64>,
}

fn count(counts: &mut Vec<u64>, slots: usize, lookups: u64) {
    if counts.len() <= slots {
        counts.resize(slots + 1, 0);
    }
    counts[slots] += lookups;
}

/// From how many lookups read 0, 1, 2, ... slots, to how many read more.
fn more(mut counts: Vec<u64>) -> Vec<u64> {
    let mut sum = 0;
    for count in counts.iter_mut().rev() {
        sum += std::mem::replace(count, sum);
    }
    counts
}

impl Table {
    /// Fills a table of 2 to the power of `bits` slots to this load.
    pub fn fill(bits: u64, load: f64, seed: u64) -> Table {
        let (slots, mask) = (1_usize << bits, (1_usize << bits) - 1);
        let mut rng = Rng(seed);
        // Of each slot in one byte, since most of the time is that of reaching it: whether it is taken, and how many keys belong
        // to it.
        const TAKEN: u8 = 0x80;
        let mut table = vec![0u8; slots];
        let (mut misses, mut hits, mut all_matches) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..(slots as f64 * load).round() as usize {
            let home = rng.below(slots as u64) as usize;
            table[home] += 1;
            let mut at = home;
            while table[at] & TAKEN != 0 {
                at = (at + 1) & mask;
            }
            table[at] |= TAKEN;
            count(&mut hits, (at.wrapping_sub(home) & mask) + 1, 1);
        }
        // Distance of each slot to the first empty one, from the back. Two rounds, because the table is a ring.
        let mut distance = 0;
        for i in (0..2 * slots).rev() {
            let slot = table[i & mask];
            distance = if slot & TAKEN == 0 { 0 } else { distance + 1 };
            if i < slots {
                count(&mut misses, distance + 1, 1);
                count(&mut all_matches, distance + 1, u64::from(slot & !TAKEN));
            }
        }
        Table { misses: more(misses), hits: more(hits), all_matches: more(all_matches) }
    }
}

/// READs of so many slots that a lookup takes on average: one, one more if it reads more than `read` slots, and so on.
pub fn requests(counts: &[u64], read: u64) -> f64 {
    let requests: u64 = counts.iter().step_by(read as usize).sum();
    requests as f64 / counts[0] as f64
}
