//! Lookups on a simulated cluster: Table 2 and Figures 7, 9, 11, 12 and 13 of T. Wang et al., ADMS 2020.
//!
//! A table is filled beforehand and lies in the memory of a simulated node; every lookup READs it there, begins at a
//! present key's home, ends at the first empty slot, and finds all its records, as in the paper. The cuckoo tables that
//! it is compared with are [`cuckoo`](super::cuckoo)'s.

use farindex_fabric::{Endpoint, FabricError, NodeId, OpKind, RemotePtr, Span};
use farindex_index::keyhash::KeyHash;
use farindex_index::linear::clusters::Clusters;
use farindex_index::linear::read_size::{Network, Probes, best_read, read_near_cluster};
use farindex_index::slotted::geometry;
use farindex_sim::{Config, Preset, Sim, SimRng};
use serde::Serialize;
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// Bytes of a slot, but for Figure 11.
const WIDTH: u64 = 8;
/// Bytes of a slot that names a record out of band (section 4.1): a signature, and the record's number.
const OUT_OF_BAND: u64 = 5;
/// READs that a queue pair of the paper keeps outstanding (section 5.1).
pub(crate) const OUTSTANDING: usize = 16;
/// Clusters that a client of the paper remembers (section 5.8).
pub(crate) const CLUSTERS: usize = 1000;

/// A filled table: zero for empty, otherwise the key.
#[derive(Debug)]
pub(crate) struct Filled {
    slots: Vec<u64>,
    /// The key of each record.
    records: Vec<u64>,
    load: f64,
}

fn home(key: u64, slots: usize) -> usize {
    let place = KeyHash::unseeded(&key.to_le_bytes()).bits().reverse_bits();
    ((u128::from(place) * slots as u128) >> 64) as usize
}

/// What a slot has of a key whose record lies elsewhere; zero is an empty slot's.
fn signature(key: u64) -> u8 {
    geometry::signature(KeyHash::unseeded(&key.to_le_bytes())).max(1)
}

/// Where records of so many bytes lie; each begins with its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Storage {
    /// In the slots, which have as many bytes.
    Inline(u64),
    /// Behind the table, whose slots have 5 bytes (section 4.1).
    Heap(u64),
}

impl Storage {
    /// Bytes of a slot.
    pub(crate) fn width(self) -> u64 {
        match self {
            Storage::Inline(bytes) => bytes,
            Storage::Heap(_) => OUT_OF_BAND,
        }
    }
    /// Where the record lies that a slot names by its number.
    fn record(self, slots: usize, number: u64) -> Option<(RemotePtr, usize)> {
        let Storage::Heap(bytes) = self else { return None };
        let bytes = bytes.next_multiple_of(8);
        let heap = (slots as u64 * OUT_OF_BAND).next_multiple_of(4096);
        Some((RemotePtr::new(NodeId::new(0), heap + number * bytes), bytes as usize))
    }
    /// The memory of a node that holds the table, and the records if they lie behind it.
    fn image(self, table: &Filled) -> Vec<u8> {
        let slots = table.slots.len();
        let end = self.record(slots, slots as u64).map_or(slots as u64 * self.width(), |(end, _)| end.offset());
        let mut image = vec![0; end.next_multiple_of(4096) as usize];
        let mut put = |at: usize, bytes: &[u8]| {
            if let Some(place) = image.get_mut(at..at + bytes.len()) {
                place.copy_from_slice(bytes);
            }
        };
        for (i, key) in table.slots.iter().enumerate().filter(|(_, key)| **key != 0) {
            let at = i * self.width() as usize;
            // A record's number is that of its slot.
            match self.record(slots, i as u64) {
                None => put(at, &key.to_le_bytes()),
                Some((record, _)) => {
                    put(at, &[signature(*key)]);
                    put(at + 1, &(i as u32).to_le_bytes());
                    put(record.offset() as usize, &key.to_le_bytes());
                }
            }
        }
        image
    }
    /// What a slot says of a key: it is empty (`None`), or may have its record, which may have to be looked at.
    fn says(self, slot: &[u8], key: u64) -> Option<Found> {
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte));
        match (self, slot) {
            (Storage::Inline(_), _) => match number(slot.get(..8)?) {
                0 => None,
                other => Some(if other == key { Found::Here } else { Found::Other }),
            },
            (Storage::Heap(_), [0, ..]) => None,
            (Storage::Heap(_), [mine, record @ ..]) => {
                Some(if *mine == signature(key) { Found::At(number(record)) } else { Found::Other })
            }
            (Storage::Heap(_), []) => None,
        }
    }
}

/// What is in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Here,
    At(u64),
    Other,
}

impl Filled {
    fn of(slots: usize, load: f64, key: impl Fn(&mut SimRng, u64) -> u64, seed: u64) -> Filled {
        let count = (slots as f64 * load) as u64;
        let mut rng = SimRng::new(seed, 1 << 40);
        let mut filled = Filled { slots: vec![0; slots], records: Vec::with_capacity(count as usize), load };
        // What lies behind the last record of a key is not full, so the next one need not begin at its home.
        let mut ends = std::collections::HashMap::new();
        for i in 0..count {
            let key = key(&mut rng, i).max(1);
            let mut at = ends.get(&key).copied().unwrap_or_else(|| home(key, slots));
            while filled.slots[at] != 0 {
                at = (at + 1) % slots;
            }
            ends.insert(key, at);
            filled.slots[at] = key;
            filled.records.push(key);
        }
        filled
    }

    /// Keys that are all different.
    pub(crate) fn unique(slots: usize, load: f64, seed: u64) -> Filled {
        Filled::of(slots, load, |_, i| (seed << 40) + i + 1, seed)
    }

    /// Keys that follow a Zipf distribution with this exponent, over as many keys as there are records.
    pub(crate) fn zipf(slots: usize, load: f64, exponent: f64, seed: u64) -> Filled {
        let keys = (slots as f64 * load) as u64;
        let mut sum = 0.0;
        let sums: Vec<f64> = (1..=keys)
            .map(|rank| {
                sum += (rank as f64).powf(-exponent);
                sum
            })
            .collect();
        let draw = |rng: &mut SimRng, _| {
            let at = rng.below(1 << 53) as f64 / (1u64 << 53) as f64 * sum;
            (seed << 40) + sums.partition_point(|sum| *sum <= at) as u64 + 1
        };
        Filled::of(slots, load, draw, seed)
    }
}

/// How much a lookup READs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum How {
    /// So many slots each time.
    Slots(u64),
    /// As the model says, and, next to clusters that this client has seen, as section 3.4 says.
    Tracking,
}

/// One run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProbeRun<'a> {
    /// The cluster.
    pub(crate) preset: &'a Preset,
    /// The table.
    pub(crate) table: &'a Filled,
    /// Where its records lie.
    pub(crate) storage: Storage,
    /// How it is read.
    pub(crate) how: How,
    /// Lookups that each client has under way at the same time.
    pub(crate) outstanding: usize,
    /// Virtual time that is measured, after as much to warm up.
    pub(crate) span: Duration,
    /// Which keys are looked up.
    pub(crate) seed: u64,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Rates {
    /// Lookups for each virtual second.
    pub(crate) lookups: f64,
    /// Matching records that they found.
    pub(crate) matches: f64,
    /// READs of a lookup.
    pub(crate) reads: f64,
    /// Nanoseconds of a lookup: the 10th, 25th, 50th, 75th and 90th percentile.
    pub(crate) latency_ns: [u64; 5],
}

/// What lookups came to, while they were measured.
#[derive(Debug, Default)]
pub(super) struct Count {
    pub(super) lookups: u64,
    pub(super) matches: u64,
    pub(super) reads: u64,
    pub(super) latency: Vec<u64>,
}

impl Count {
    /// Those of another one as well.
    pub(super) fn add(&mut self, other: Count) {
        self.lookups += other.lookups;
        self.matches += other.matches;
        self.reads += other.reads;
        self.latency.extend(other.latency);
    }

    /// All that was counted in this time.
    pub(super) fn rates(mut self, span: Duration) -> Rates {
        self.latency.sort_unstable();
        let seconds = span.as_secs_f64();
        let at = |share: f64| {
            let index = (self.latency.len() as f64 * share) as usize;
            self.latency.get(index.min(self.latency.len().saturating_sub(1))).copied().unwrap_or_default()
        };
        Rates {
            lookups: self.lookups as f64 / seconds,
            matches: self.matches as f64 / seconds,
            reads: self.reads as f64 / (self.lookups as f64).max(1.0),
            latency_ns: [0.1, 0.25, 0.5, 0.75, 0.9].map(at),
        }
    }
}

/// What a client knows of the model.
struct Model {
    probes: Option<Probes>,
    slots: u64,
    clusters: Clusters,
}

/// One client's lookups.
struct Prober<'a> {
    span: Span,
    table: &'a Filled,
    storage: Storage,
    how: How,
    model: Rc<RefCell<Model>>,
}

impl Prober<'_> {
    /// Slots to READ from here on.
    fn count(&self, at: usize) -> u64 {
        let model = self.model.borrow();
        match (self.how, model.clusters.next(0, at as u64), &model.probes) {
            (How::Tracking, Some((distance, len)), Some(probes)) if distance < model.slots => {
                read_near_cluster(probes, &Network::CONNECTX5_EDR, self.storage.width(), distance, len).slots
            }
            _ => model.slots,
        }
    }

    /// Matching records, and READs.
    async fn look_up(&self, key: u64) -> Result<(u64, u64), FabricError> {
        let slots = self.table.slots.len();
        let (home, mut walked, mut matches, mut reads) = (home(key, slots), 0, 0, 0);
        while walked < slots {
            let at = (home + walked) % slots;
            let count = (self.count(at) as usize).min(slots - at);
            let found = self.read(at, count, key).await?;
            reads += 1;
            let filled = found.len();
            let heap = found.iter().filter_map(|found| match found {
                Found::At(number) => self.storage.record(slots, *number),
                _ => None,
            });
            let mut batch = self.span.batch();
            let records: Vec<_> = heap.map(|(at, bytes)| batch.read(at, bytes)).collect();
            reads += records.len() as u64;
            let mut done = batch.post().await?;
            matches += found.iter().filter(|found| **found == Found::Here).count() as u64;
            matches +=
                records.into_iter().filter(|record| done.buf(*record).words().first() == Some(&key)).count() as u64;
            if filled < count {
                if self.how == How::Tracking && at + filled > home {
                    self.model.borrow_mut().clusters.saw(0, home as u64, (at + filled) as u64);
                }
                break;
            }
            walked += count;
        }
        Ok((matches, reads))
    }

    /// What is in these slots, up to the first that is empty.
    async fn read(&self, at: usize, count: usize, key: u64) -> Result<Vec<Found>, FabricError> {
        let width = self.storage.width() as usize;
        // READs are of whole words.
        let (from, to) = (at * width / 8 * 8, ((at + count) * width).next_multiple_of(8));
        let read = self.span.read(RemotePtr::new(NodeId::new(0), from as u64), to - from).await?;
        let slots = read.bytes().get(at * width - from..).unwrap_or_default().chunks_exact(width);
        Ok(slots.take(count).map_while(|slot| self.storage.says(slot, key)).collect())
    }

    async fn work(self, endpoint: Endpoint, measured: Range<Duration>, mut rng: SimRng) -> Result<Count, FabricError> {
        let mut count = Count::default();
        loop {
            let key = self.table.records[rng.below(self.table.records.len() as u64) as usize];
            let began = endpoint.now();
            let (matches, reads) = self.look_up(key).await?;
            debug_assert!(matches > 0, "a record is lost");
            let now = endpoint.now();
            if measured.contains(&now) {
                count.lookups += 1;
                count.matches += matches;
                count.reads += reads;
                count.latency.push((now - began).as_nanos() as u64);
            }
            if now >= measured.end {
                return Ok(count);
            }
        }
    }
}

/// Fills a simulated node's memory.
async fn store(endpoint: Endpoint, image: Vec<u8>) -> Result<(), FabricError> {
    const PART: usize = 1 << 16;
    let span = endpoint.span(OpKind::Other);
    for (i, part) in image.chunks(PART).enumerate() {
        let at = RemotePtr::new(NodeId::new(0), (i * PART) as u64);
        span.write(at, endpoint.buf_from(part)).await?;
    }
    Ok(())
}

/// Runs it: every client of the preset looks up keys of records that are drawn.
pub(crate) fn rates(probe_run: &ProbeRun<'_>) -> Result<Rates, FabricError> {
    let ProbeRun { preset, table, storage, how, outstanding, span, seed } = *probe_run;
    let image = storage.image(table);
    let node_len = image.len() as u64;
    let model = Some(preset.clone());
    let sim = Sim::new(seed, Config { nodes: 1, node_len, model, ..Config::default() })?;
    // A task of the simulator owns what it works with.
    let table: Rc<Filled> =
        Rc::new(Filled { slots: table.slots.clone(), records: table.records.clone(), load: table.load });
    let harness = sim.harness().connect();
    let begun = harness.clone();
    sim.block_on(async move { store(harness, image).await }).unwrap_or(Ok(()))?;
    let from = begun.now() + span;
    let measured = from..from + span;
    let probes = Probes::of_all_matches(table.load);
    let slots = match (how, &probes) {
        (How::Slots(slots), _) => slots,
        (_, Some(probes)) => best_read(probes, &Network::CONNECTX5_EDR, storage.width()).slots,
        _ => 1,
    };
    let mut counts = Vec::new();
    for number in 0..preset.compute_nodes * preset.clients_per_node {
        let client = sim.client_on(number % preset.compute_nodes);
        let clusters = Clusters::new(if how == How::Tracking { CLUSTERS } else { 0 });
        let model = Rc::new(RefCell::new(Model { probes: probes.clone(), slots, clusters }));
        for coroutine in 0..outstanding {
            let endpoint = client.connect();
            let (table, model) = (Rc::clone(&table), Rc::clone(&model));
            let rng = SimRng::new(seed, (1 << 20 | number as u64) << 8 | coroutine as u64);
            let measured = measured.clone();
            counts.push(sim.spawn(&client, async move {
                let prober = Prober { span: endpoint.span(OpKind::Get), table: &table, storage, how, model };
                prober.work(endpoint, measured, rng).await
            }));
        }
    }
    // Nobody waits for anybody, so it ends; what it counted is looked at even if it did not.
    let ended = sim.run();
    debug_assert!(ended.is_done(), "{ended}");
    let mut total = Count::default();
    for count in counts {
        total.add(count.take().unwrap_or_else(|| Ok(Count::default()))?);
    }
    Ok(total.rates(span))
}

/// Slots that the model says for lookups that return all matches: within the bandwidth, or whatever it takes.
pub(crate) fn model_read(load: f64, constrained: bool) -> u64 {
    let policy = if constrained { super::tables::Policy::Variable } else { super::tables::Policy::Unconstrained };
    super::tables::our_read(load, policy).unwrap_or(1)
}

/// Slots of one READ at this load, for slots of so many bytes: fixed (256 bytes), and as the model says within the
/// bandwidth.
pub(crate) fn reads_of(load: f64, width: u64) -> (u64, u64) {
    let variable = Probes::of_all_matches(load).map(|probes| best_read(&probes, &Network::CONNECTX5_EDR, width).slots);
    ((super::tables::FIXED / width).max(1), variable.unwrap_or(1))
}

/// A point of Figure 13: offset from the cluster's first slot, and slots to READ from there.
pub(crate) fn next_to_cluster(load: f64, len: u64) -> Vec<(i64, u64)> {
    let Some(probes) = Probes::of_misses(load) else { return Vec::new() };
    let network = Network::CONNECTX5_EDR;
    let read = |x: i64| match x {
        x if x < 0 => read_near_cluster(&probes, &network, WIDTH, x.unsigned_abs(), len).slots,
        x if (x as u64) < len => read_near_cluster(&probes, &network, WIDTH, 0, len - x as u64).slots,
        _ => best_read(&probes, &network, WIDTH).slots,
    };
    (-30..=20).map(|x| (x, read(x))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe_run<'a>(preset: &'a Preset, table: &'a Filled, how: How, outstanding: usize) -> Rates {
        let span = Duration::from_micros(60);
        rates(&ProbeRun { preset, table, storage: Storage::Inline(8), how, outstanding, span, seed: 3 }).expect("a run")
    }

    #[test]
    fn a_simulated_table_takes_as_many_reads_as_the_model_says() {
        let preset = Preset::linear_probing();
        for load in [0.5, 0.8] {
            let table = Filled::unique(1 << 17, load, 1);
            let rates = probe_run(&preset, &table, How::Slots(23), 4);
            let model = Probes::of_all_matches(load).expect("a load").requests(23);
            assert!((rates.reads / model - 1.0).abs() < 0.05, "{rates:?}, model {model}");
            assert!((rates.matches / rates.lookups - 1.0).abs() < 1e-9, "each key has one record");
        }
    }

    #[test]
    fn records_out_of_band_are_found_and_take_about_one_read_more() {
        let preset = Preset::linear_probing();
        let table = Filled::unique(1 << 14, 0.65, 1);
        let reads = |storage| {
            let (how, span) = (How::Slots(29), Duration::from_micros(60));
            let probe_run = ProbeRun { preset: &preset, table: &table, storage, how, outstanding: 4, span, seed: 3 };
            let rates = rates(&probe_run).expect("a run");
            assert!((rates.matches / rates.lookups - 1.0).abs() < 1e-9, "each key has one record: {rates:?}");
            rates.reads
        };
        let (inline, heap) = (reads(Storage::Inline(32)), reads(Storage::Heap(32)));
        let more = super::super::tables::heap_reads(0.65).expect("a load");
        assert!((heap - inline - more).abs() < 0.02, "{heap} and {inline} READs, the model's heap {more}");
    }

    #[test]
    fn skewed_keys_have_many_records_and_clusters_help_to_find_them() {
        let preset = Preset::linear_probing();
        let table = Filled::zipf(1 << 14, 0.65, 0.9, 1);
        let [plain, tracking] =
            [How::Slots(model_read(0.65, true)), How::Tracking].map(|how| probe_run(&preset, &table, how, 1));
        assert!(plain.matches > plain.lookups * 2.0, "{plain:?}");
        assert!(tracking.matches > plain.matches, "{tracking:?} {plain:?}");
    }

    #[test]
    fn the_curve_of_figure_13() {
        let curve = next_to_cluster(0.65, 10);
        let at = |x: i64| curve.iter().find(|(of, _)| *of == x).map(|(_, slots)| *slots);
        assert_eq!([at(-30), at(-4), at(0), at(9), at(10)], [Some(23), Some(15), Some(11), Some(2), Some(23)]);
    }
}
