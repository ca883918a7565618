//! Figure 10: under a write-intensive load a fourth compute node takes half of the range of one of three.

use super::Args;
use super::paper::{REPARTITION_S, SIZES, SOURCE};
use super::variants::{Point, Variant};
use crate::report::{Error, Report, Watch};
use farindex_bench::workload::{Chooser, Distribution, Keys, Stream, Zipf};
use farindex_fabric::Endpoint;
use farindex_index::{AnyIndex, IndexConfig, IndexError, PointIndex};
use farindex_pool::{Client, Pool, PoolOptions};
use farindex_sim::{Config, Preset, Sim};
use serde::Serialize;
use serde_json::json;
use std::cell::{Cell, RefCell};
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const NAME: &str = "moved";
const HEARTBEAT: Duration = Duration::from_millis(10);
/// Compute nodes at first.
const BEFORE: usize = 3;
/// The ranges are sixths of the keys: each compute node has two at first, and the new one takes the second.
const SIXTHS: usize = 2 * BEFORE;
const MOVED: usize = 1;
/// Virtual time before the move, and from its beginning to the end; what is counted together.
const QUIET: Duration = Duration::from_millis(30);
const AFTER: Duration = Duration::from_millis(60);
const WIDTH: Duration = Duration::from_millis(1);

/// What a run has come to.
#[derive(Debug, Clone, Serialize)]
struct Moved {
    cache_bytes: u64,
    /// Copies of leaves and inner nodes of the compute node that gives the range away.
    cached: u64,
    move_ms: f64,
    /// Operations in each millisecond.
    series: Vec<u64>,
}

/// What all workers share.
struct Shared {
    keys: Keys,
    chooser: Chooser,
    count: u64,
    local: Duration,
    /// Does somebody work on the range that moves, and who?
    moving: Cell<Option<usize>>,
    loading: Cell<usize>,
    begun: Cell<Option<Duration>>,
    series: RefCell<Vec<u64>>,
    errors: RefCell<Vec<String>>,
}

impl Shared {
    /// The compute node that works on a key now.
    fn worker_of(&self, number: u64) -> Option<usize> {
        match self.keys.part(number, SIXTHS, self.count) {
            MOVED => self.moving.get(),
            sixth => Some(sixth / 2),
        }
    }
    fn count(&self, now: Duration) {
        let Some(begun) = self.begun.get() else { return };
        let at = (now.saturating_sub(begun).as_nanos() / WIDTH.as_nanos()) as usize;
        if let Some(count) = self.series.borrow_mut().get_mut(at) {
            *count += 1;
        }
    }
}

async fn own(index: &AnyIndex, (low, high): (Vec<u8>, Option<Vec<u8>>)) -> Result<(), IndexError> {
    index.own((Bound::Included(&low), high.as_deref().map_or(Bound::Unbounded, Bound::Excluded))).await
}

/// Loads this worker's share of its compute node's keys, then looks keys up and updates them until the run is over.
async fn work(
    shared: Rc<Shared>,
    index: AnyIndex,
    endpoint: Endpoint,
    (node, worker, workers): (usize, usize, usize),
    (seed, over): (u64, Rc<Cell<bool>>),
) -> Result<(), IndexError> {
    let mut key = vec![0; SIZES.0];
    let mine = (0..shared.count).filter(|number| shared.worker_of(*number) == Some(node));
    for number in mine.skip(worker).step_by(workers) {
        shared.keys.write(number, &mut key);
        index.upsert(&key, &number.to_le_bytes()).await?;
    }
    shared.loading.set(shared.loading.get() - 1);
    let mut stream = Stream::new(seed, 2, (node * workers + worker) as u64);
    while !over.get() {
        let number = shared.chooser.choose(&mut stream, shared.count, 0);
        if shared.loading.get() > 0 || node >= BEFORE && shared.moving.get() != Some(node) {
            endpoint.sleep(Duration::from_micros(20)).await;
            continue;
        }
        if shared.worker_of(number) != Some(node) {
            continue;
        }
        shared.keys.write(number, &mut key);
        endpoint.sleep(shared.local).await;
        if stream.op().is_multiple_of(2) {
            index.get(&key).await?;
        } else {
            index.update(&key, &stream.value().to_le_bytes()).await?;
        }
        shared.count(endpoint.now());
    }
    Ok(())
}

fn run(
    args: &Args,
    watch: Watch<'_>,
    config: IndexConfig,
    cache_bytes: u64,
    count: u64,
    workers: usize,
) -> Result<Moved, Error> {
    let preset = Preset::dex();
    let node_len = ((256 << 20) + count * 200).next_multiple_of(4096);
    let sim_config = Config {
        nodes: preset.memory_nodes,
        node_len,
        model: Some(preset),
        max_steps: u64::MAX,
        max_time: Duration::MAX,
        ..Config::default()
    };
    let sim = Rc::new(Sim::new(args.seed, sim_config)?);
    let machines: Vec<_> =
        (0..=BEFORE).map(|node| sim.client_on(node)).map(|machine| (machine.connect(), machine)).collect();
    let keys = Keys::new(SIZES.0);
    let stuck = |outcome: farindex_sim::Outcome| Error::Bug(format!("the simulation ended in a {outcome}"));
    let prepared = {
        let (fabric, harness, machines) = (sim.fabric(), sim.harness().connect(), machines.clone());
        sim.block_on(async move {
            let options = PoolOptions { client_slots: 8, ..PoolOptions::unseeded() };
            let pool = Pool::create(fabric, &harness, &options).await?;
            let mut nodes = Vec::new();
            for (number, (endpoint, machine)) in machines.iter().enumerate() {
                let client = Client::register(&pool, machine.identity(), endpoint).await?;
                let session = Rc::new(client.session(endpoint.clone()));
                let index = match number {
                    0 => AnyIndex::create(&session, NAME, &config).await?,
                    _ => AnyIndex::open(&session, NAME).await?,
                };
                if number < BEFORE {
                    own(&index, keys.bounds(number, BEFORE, count)).await?;
                }
                nodes.push((client, index, session));
            }
            Ok::<_, IndexError>(nodes)
        })
    };
    let nodes = prepared.map_err(stuck)?.map_err(farindex::Error::from)?;
    let over = Rc::new(Cell::new(false));
    for ((client, ..), (endpoint, machine)) in nodes.iter().zip(&machines) {
        let (client, endpoint, over): (Arc<Client>, _, _) = (Arc::clone(client), endpoint.clone(), Rc::clone(&over));
        sim.spawn(machine, async move {
            while !over.get() {
                let _ = client.tick(&endpoint).await;
                endpoint.sleep(HEARTBEAT).await;
            }
        });
    }
    let spans = ((QUIET + AFTER).as_nanos() / WIDTH.as_nanos()) as usize;
    let shared = Rc::new(Shared {
        keys,
        chooser: Chooser::new(Distribution::ScrambledZipfian, count, Zipf::THETA),
        count,
        local: Duration::from_nanos(args.local_ns.max(1)),
        moving: Cell::new(Some(0)),
        loading: Cell::new((BEFORE + 1) * workers),
        begun: Cell::new(None),
        series: RefCell::new(vec![0; spans]),
        errors: RefCell::default(),
    });
    for (node, (client, ..)) in nodes.iter().enumerate() {
        for worker in 0..workers {
            let machine = sim.client_on(node);
            let (shared, over, client) = (Rc::clone(&shared), Rc::clone(&over), Arc::clone(client));
            let (seed, own_machine) = (args.seed, machine.clone());
            sim.spawn(&machine, async move {
                let endpoint = own_machine.connect();
                let session = Rc::new(client.session(endpoint.clone()));
                let done = match AnyIndex::open(&session, NAME).await {
                    Ok(index) => {
                        work(Rc::clone(&shared), index, endpoint, (node, worker, workers), (seed, Rc::clone(&over)))
                            .await
                    }
                    Err(error) => Err(error),
                };
                if let Err(error) = done {
                    shared.errors.borrow_mut().push(error.to_string());
                    over.set(true);
                }
            });
        }
    }
    let slice = Duration::from_millis(1);
    let step = || -> Result<(), Error> {
        watch.check()?;
        let outcome = sim.run_for(slice);
        if !outcome.is_done() {
            return Err(stuck(outcome));
        }
        match shared.errors.borrow().first() {
            Some(error) => Err(Error::Wrong(error.clone())),
            None => Ok(()),
        }
    };
    while shared.loading.get() > 0 {
        step()?;
    }
    // Caches fill before anything is counted.
    let warm = sim.now() + QUIET;
    while sim.now() < warm {
        step()?;
    }
    shared.begun.set(Some(sim.now()));
    let move_at = sim.now() + QUIET;
    while sim.now() < move_at {
        step()?;
    }
    let took = Rc::new(Cell::new(None));
    let cached = nodes.first().map(|(_, index, _)| index.cache_bytes()).unwrap_or_default();
    let Some((_, _, session)) = nodes.last() else {
        return Err(Error::Bug("a cluster without compute nodes".to_owned()));
    };
    let Some((endpoint, machine)) = machines.last().cloned() else { return Err(Error::Bug("no machine".to_owned())) };
    // First the clients are told that nobody works on the range any more, then it moves, then they are told who does.
    let (session_of, shared_of, took_of) = (Rc::clone(session), Rc::clone(&shared), Rc::clone(&took));
    sim.spawn(&machine, async move {
        let begun = endpoint.now();
        shared_of.moving.set(None);
        let done = match AnyIndex::open(&session_of, NAME).await {
            Ok(index) => own(&index, shared_of.keys.bounds(MOVED, SIXTHS, shared_of.count)).await,
            Err(error) => Err(error),
        };
        match done {
            Ok(()) => took_of.set(Some(endpoint.now() - begun)),
            Err(error) => shared_of.errors.borrow_mut().push(error.to_string()),
        }
        shared_of.moving.set(Some(BEFORE));
    });
    let end = sim.now() + AFTER;
    while sim.now() < end || took.get().is_none() {
        step()?;
    }
    over.set(true);
    sim.run_for(HEARTBEAT * 4)
        .is_done()
        .then_some(())
        .ok_or_else(|| Error::Bug("the simulation is stuck".to_owned()))?;
    let series = shared.series.borrow().clone();
    let move_ms = took.get().unwrap_or_default().as_secs_f64() * 1e3;
    drop(nodes);
    Ok(Moved { cache_bytes, cached, move_ms, series })
}

/// Figure 10.
pub(super) fn figure(args: &Args, watch: Watch<'_>) -> Result<Report, Error> {
    let keys = args.keys.unwrap_or(400_000);
    let workers = args.one_number_of_clients()?.div_ceil(BEFORE + 1).max(1);
    let sizes = if args.cache.is_empty() { vec![8.0, 16.0, 32.0] } else { args.cache.clone() };
    let (mut text, mut rows) = (String::new(), Vec::new());
    for cache in sizes {
        let bytes = Point { cache, ..Point::usual("", 0, keys) }.cache_bytes();
        let config = Variant::new("DEX", "dex", json!({})).config(bytes)?;
        let moved = run(args, watch, config, bytes, keys, workers)?;
        let before = QUIET.as_nanos().div_euclid(WIDTH.as_nanos()) as usize;
        let (quiet, after) = moved.series.split_at(before.min(moved.series.len()));
        let mean =
            |series: &[u64]| series.iter().sum::<u64>() as f64 / series.len().max(1) as f64 / WIDTH.as_secs_f64() / 1e6;
        let (lowest, last) = (after.iter().min().copied().unwrap_or_default(), after.len().saturating_sub(20));
        text += &format!(
            "  cache {cache:>4} % ({:>9} bytes, {:>9} in use): moved in {:6.2} ms; {:.3} M ops/s before, {:.3} in the slowest \
             millisecond, {:.3} at the end\n",
            moved.cache_bytes,
            moved.cached,
            moved.move_ms,
            mean(quiet),
            lowest as f64 / WIDTH.as_secs_f64() / 1e6,
            mean(after.get(last..).unwrap_or_default())
        );
        rows.push(json!({ "cache_percent": cache, "moved": moved }));
    }
    let text = format!(
        "DEX, Figure 10: write-intensive, skewed, {keys} keys; {BEFORE} compute nodes with {workers} clients each, and a new one \
         takes half of the range of the first\n{}\n\n{text}\nThe paper: within {REPARTITION_S} s, most of which flushes dirty pages \
         of caches of 256 MB to 1 GB. Ours has none, because writes go through:\nthe time is that until the owner's next heartbeat \
         (every {} ms), and the new owner's cache is empty.\npaper: {SOURCE}, Figure 10, section 8.3\n",
        args.scale(keys),
        HEARTBEAT.as_millis()
    );
    Report::new(&json!({ "figure": 10, "source": SOURCE, "keys": keys, "seed": args.seed, "rows": rows }), text, true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farindex_bench::Control;

    #[test]
    fn a_range_moves_between_two_heartbeats_and_the_new_owner_works_on_it() {
        let arguments = ["--figure", "10", "--keys", "4K", "--clients", "4", "--cache", "500"];
        let control = Control::default();
        let report = figure(&Args::example(&arguments), Watch(&control)).expect("a figure");
        let moved = &report.json["rows"][0]["moved"];
        let took = moved["move_ms"].as_f64().expect("a number");
        assert!(took > 0.0 && took < 3.0 * HEARTBEAT.as_secs_f64() * 1e3, "{took} ms");
        let series: Vec<_> = moved["series"].as_array().expect("a series").iter().filter_map(|n| n.as_u64()).collect();
        let spans = |time: Duration| (time.as_nanos() / WIDTH.as_nanos()) as usize;
        let (before, after) = series.split_at(spans(QUIET));
        let mean = |series: &[u64]| series.iter().sum::<u64>() as f64 / series.len() as f64;
        // Three compute nodes, then four.
        let end = mean(&after[after.len() - 20..]);
        assert!(after.len() == spans(AFTER) && end > 1.1 * mean(before), "{end} after {}", mean(before));
    }
}
