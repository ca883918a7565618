//! What the ways to await an index cost: throughput of gets by coroutines of a session, by a session that tokio's
//! thread drives, and by a [`Handle`] from tokio's tasks, with 1, 16 and 64 gets in flight.
//!
//! `cargo bench -p farindex-bench --bench async_cost -- [SECONDS] [ROUNDS]`: each figure is the median of ROUNDS (5)
//! measurements of SECONDS (1.0) each; the three ways take turns. Every value is checked. Without UCX only memory is
//! measured.

use farindex::{Handle, PointIndex, Pool, Session};
use farindex_fabric::{Fabric, MemoryFabric, NodeId};
use farindex_remote::client::ControlSettings;
use farindex_remote::{Cluster, Metrics, Node, NodeMemory, NodeSettings, Tokens};
use farindex_ucx::{UcxFabric, UcxPlane, UcxSettings};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::task::{LocalSet, spawn_local};

const KEYS: u64 = 100_000;
const VALUE: usize = 64;
const NODE_BYTES: u64 = 256 << 20;
const IN_FLIGHT: [usize; 3] = [1, 16, 64];
const WAYS: [&str; 3] = ["native coroutines", "tokio LocalSet", "Handle"];

/// The random keys of one task, until the measurement ends.
struct Keys {
    random: Xoshiro256PlusPlus,
    stop: Arc<AtomicBool>,
    count: u64,
}

impl Keys {
    fn new(task: usize, stop: &Arc<AtomicBool>) -> Self {
        Keys { random: Xoshiro256PlusPlus::seed_from_u64(task as u64), stop: Arc::clone(stop), count: 0 }
    }
    fn next(&mut self) -> Option<[u8; 8]> {
        if self.stop.load(Ordering::Relaxed) {
            return None;
        }
        self.count += 1;
        Some((self.random.next_u64() % KEYS).to_le_bytes())
    }
    fn check(key: [u8; 8], value: Option<&[u8]>) {
        assert!(value.is_some_and(|value| value.len() == VALUE && value.starts_with(&key)), "a wrong value of {key:?}");
    }
}

/// Ends a measurement after some time.
fn timer(length: Duration) -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let raised = Arc::clone(&stop);
    std::thread::spawn(move || {
        std::thread::sleep(length);
        raised.store(true, Ordering::Relaxed);
    });
    stop
}

/// Gets by coroutines of a session; returns how many.
fn native(session: &Session, tasks: usize, length: Duration) -> u64 {
    let index = session.open_index("demo").expect("the index").async_handle();
    let stop = timer(length);
    let tasks: Vec<_> = (0..tasks)
        .map(|task| {
            let (index, mut keys) = (index.clone(), Keys::new(task, &stop));
            session.spawn(async move {
                while let Some(key) = keys.next() {
                    Keys::check(key, index.get(&key).await.expect("a get").as_deref());
                }
                keys.count
            })
        })
        .collect();
    tasks.into_iter().map(|task| session.block_on(task)).sum()
}

/// The same by local tasks of tokio, whose thread drives the session.
fn local_set(session: &Session, tasks: usize, length: Duration) -> u64 {
    let index = session.open_index("demo").expect("the index").async_handle();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    LocalSet::new().block_on(&runtime, async {
        let stop = timer(length);
        let driver = spawn_local(session.drive());
        let tasks: Vec<_> = (0..tasks)
            .map(|task| {
                let (index, mut keys) = (index.clone(), Keys::new(task, &stop));
                spawn_local(async move {
                    while let Some(key) = keys.next() {
                        Keys::check(key, index.get(&key).await.expect("a get").as_deref());
                    }
                    keys.count
                })
            })
            .collect();
        let mut count = 0;
        for task in tasks {
            count += task.await.expect("no panic");
        }
        driver.abort();
        count
    })
}

/// The same by tasks of a runtime with one thread, through a handle with one worker.
fn handle(pool: &Pool, tasks: usize, length: Duration) -> u64 {
    let handle = Handle::open(pool, "demo").expect("a handle");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let stop = timer(length);
        let tasks: Vec<_> = (0..tasks)
            .map(|task| {
                let (handle, mut keys) = (handle.clone(), Keys::new(task, &stop));
                tokio::spawn(async move {
                    while let Some(key) = keys.next() {
                        Keys::check(key, handle.get(key).await.expect("a get").as_deref());
                    }
                    keys.count
                })
            })
            .collect();
        let mut count = 0;
        for task in tasks {
            count += task.await.expect("no panic");
        }
        count
    })
}

fn measure(fabric: Arc<dyn Fabric>, length: Duration, rounds: usize) {
    let name = fabric.name();
    let pool = Pool::builder().create_on(fabric).expect("a pool");
    let session = pool.session().expect("a session");
    let index = session.index("demo").create().expect("an index");
    for key in 0..KEYS {
        let mut value = key.to_le_bytes().to_vec();
        value.resize(VALUE, 0);
        index.insert(key.to_le_bytes(), value).expect("an insert");
    }
    for tasks in IN_FLIGHT {
        let mut rates = [const { Vec::new() }; WAYS.len()];
        for _ in 0..rounds {
            for (way, rates) in rates.iter_mut().enumerate() {
                let began = Instant::now();
                let count = match way {
                    0 => native(&session, tasks, length),
                    1 => local_set(&session, tasks, length),
                    _ => handle(&pool, tasks, length),
                };
                rates.push(count as f64 / began.elapsed().as_secs_f64());
            }
        }
        let rates = rates.map(|mut rates| {
            rates.sort_by(f64::total_cmp);
            rates[rates.len() / 2]
        });
        for (way, rate) in WAYS.iter().zip(rates) {
            println!("| {name:6} | {tasks:9} | {way:17} | {rate:10.0} | {:5.2} |", rate / rates[0]);
        }
    }
}

/// A memory node of this process, and the fabric over UCX to it.
fn served() -> (Node, Arc<dyn Fabric>) {
    let memory = Arc::new(NodeMemory::anonymous(NodeId::new(0), NODE_BYTES).expect("memory"));
    let (metrics, settings) = (Metrics::new(), UcxSettings { loopback: true, ..UcxSettings::default() });
    let plane = UcxPlane::start(Arc::clone(&memory), settings, &metrics).expect("UCX");
    let listen = NodeSettings::new("127.0.0.1:0".parse().expect("an address"), Tokens::open());
    let node = Node::start(memory, plane, listen, metrics).expect("a memory node");
    let cluster = Cluster::connect(&[node.addr().to_string()], ControlSettings::default()).expect("a connection");
    let fabric = UcxFabric::new(cluster).expect("UCX");
    (node, Arc::new(fabric))
}

fn main() {
    let numbers: Vec<f64> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let length = Duration::from_secs_f64(numbers.first().copied().unwrap_or(1.0));
    let rounds = numbers.get(1).map_or(5, |rounds| *rounds as usize).max(1);
    println!("{KEYS} keys of 8 bytes, values of {VALUE}; SHARD; median of {rounds} x {} s", length.as_secs_f64());
    println!("| fabric | in flight | way               | gets/s     | ratio |");
    println!("|--------|----------:|-------------------|-----------:|------:|");
    measure(Arc::new(MemoryFabric::new(1, NODE_BYTES).expect("memory")), length, rounds);
    match farindex_ucx::available() {
        Ok(()) => {
            let (_node, fabric) = served();
            measure(Arc::clone(&fabric), length, rounds);
            println!("UCX chose {:?}", fabric.transports());
        }
        Err(why) => println!("without ucx: {why}"),
    }
}
