//! Ordered indexes of far memory, on the memory fabric, and ordered maps of local memory: insert, get, and scans of 100
//! entries, with keys and values of 8 bytes.
//!
//! `ordered [KEYS] [OPERATIONS] [ROUNDS]`, 1,000,000 keys, 1,000,000 gets (and a twentieth as many scans), and the best
//! of 3 rounds by default. All take turns in each round, so what else the machine does hits all of them. A number is the
//! mean time of an operation, from just before the call to its answer, as the driver measures it; every answer is
//! verified outside that time. One client on each thread: an operation is over before the next one begins.

mod local;

use farindex::{IndexConfig, KINDS, Pool};
use farindex_bench::baseline::{LocalWords, Masstree, Null};
use farindex_bench::driver::pool_index::PoolIndexBench;
use farindex_bench::{Bench, Control, Distribution, Op, Plan, SizeRange};
use local::{SkipList, TreeIndex};

/// Entries of a scan.
const SCAN: usize = 100;
/// Hash tables that are shown along, without scans.
const HASH: [&str; 1] = ["shard"];

fn argument(at: usize, default: u64) -> u64 {
    // `cargo bench` adds a flag of its own.
    let mut arguments = std::env::args().skip(1).filter(|text| !text.starts_with("--"));
    arguments.nth(at).map_or(default, |text| text.parse().expect("a whole number"))
}

/// What is measured: its name, and whether it lies in local memory.
#[derive(Clone, Copy)]
struct Contender {
    name: &'static str,
    local: bool,
    scans: bool,
    run: fn(Contender, &[Plan]) -> Vec<f64>,
}

/// Nanoseconds of an operation in each plan, one after the other on one index.
fn measure<B: Bench>(bench: &B, contender: Contender, plans: &[Plan]) -> Vec<f64> {
    let mut taken = Vec::new();
    for plan in plans.iter().filter(|plan| contender.scans || !plan.scans()) {
        let outcome = farindex_bench::run(bench, plan, &Control::default()).expect("a run");
        let faults = outcome.wrong.total() + outcome.errors.total();
        assert_eq!(faults, 0, "{}: {} {}", contender.name, outcome.wrong, outcome.errors);
        let op = [Op::Insert, Op::Get, Op::Scan].into_iter().find(|op| plan.workload.mix.has(*op)).expect("an op");
        taken.push(outcome.measured.latency(op).mean_ns());
    }
    taken
}

fn far(contender: Contender, plans: &[Plan]) -> Vec<f64> {
    let config = IndexConfig::of_kind(contender.name).expect("a kind");
    let bytes = plans.iter().map(Plan::pool_bytes).max().unwrap_or_default().next_multiple_of(4096);
    let pool = Pool::builder().unseeded().node_bytes(bytes).in_memory(1).expect("a pool");
    measure(&PoolIndexBench::create(pool, "ordered", &config).expect("an index"), contender, plans)
}

fn contenders() -> Vec<Contender> {
    let local = |name, run| Contender { name, local: true, scans: true, run };
    let mut all = vec![
        local("scc::TreeIndex", |contender, plans| measure(&LocalWords::<TreeIndex>::default(), contender, plans)),
        local("SkipMap", |contender, plans| measure(&LocalWords::<SkipList>::default(), contender, plans)),
        local("MassTree", |contender, plans| measure(&LocalWords::<Masstree>::default(), contender, plans)),
        Contender { local: false, ..local("nothing", |contender, plans| measure(&Null, contender, plans)) },
    ];
    for kind in KINDS.iter().filter(|kind| kind.ordered || HASH.contains(&kind.name)) {
        all.push(Contender { name: kind.name, local: false, scans: kind.ordered, run: far });
    }
    all
}

/// The load, gets, scans.
fn plans(keys: u64, ops: u64, threads: usize) -> [Plan; 3] {
    let plan = |workload: &str, ops| Plan {
        keys,
        ops,
        threads,
        clients: threads,
        load: false,
        distribution: Some(Distribution::Uniform),
        scan_length: SizeRange { min: SCAN, max: SCAN },
        audit: false,
        ..Plan::new(workload.parse().expect("a workload"))
    };
    let load = Plan { load: true, distribution: None, ..plan("ycsb-load", None) };
    [load, plan("get", Some(ops)), plan("scan", Some((ops / 20).max(1)))]
}

fn main() {
    let (keys, ops, rounds) = (argument(0, 1_000_000), argument(1, 1_000_000), argument(2, 3));
    let contenders = contenders();
    for threads in [1, 2] {
        let plans = plans(keys, ops, threads);
        let mut best = vec![[f64::INFINITY; 3]; contenders.len()];
        for _ in 0..rounds.max(1) {
            for (contender, best) in contenders.iter().zip(&mut best) {
                for (best, taken) in best.iter_mut().zip((contender.run)(*contender, &plans)) {
                    *best = best.min(taken);
                }
            }
        }
        let mut fastest = [f64::INFINITY; 3];
        for (_, taken) in contenders.iter().zip(&best).filter(|(contender, _)| contender.local) {
            fastest.iter_mut().zip(taken).for_each(|(fastest, taken)| *fastest = fastest.min(*taken));
        }
        println!("{keys} keys of 8 + 8 bytes, {threads} thread(s): ns, and times the best of local memory");
        println!("  {:16} {:>14} {:>16} {:>18}", "", "insert", "get", "scan of 100");
        for (contender, taken) in contenders.iter().zip(&best) {
            let cell = |i: usize| match taken[i] {
                ns if ns.is_finite() => format!("{ns:.0} ({:.2})", ns / fastest[i]),
                _ => "-".to_owned(),
            };
            println!("  {:16} {:>14} {:>16} {:>18}", contender.name, cell(0), cell(1), cell(2));
        }
    }
}
