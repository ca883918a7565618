//! SHARD under the adversary, until the first seed that fails: `adversary PLAIN DEADLY STEP` runs that many seeds without
//! and with deaths, and then lets a client die at every STEP-th verb (0: at none).
use farindex_sim::Fate;
use farindex_testkit::shard::ShardUnderTest;
use farindex_testkit::{Setup, run_seed};

fn judge(seed: u64, setup: &Setup) {
    let report = run_seed(seed, setup, &ShardUnderTest::repaired());
    if !report.is_sound() {
        println!("{} {}", report.seed, report.failures[0].lines().next().unwrap_or(""));
        std::process::exit(1);
    }
}

fn main() {
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|number| number.parse().ok()).collect();
    let [plain, deadly, step] = numbers[..] else { panic!("adversary PLAIN DEADLY STEP") };
    for seed in 0..plain.max(deadly) {
        if seed < plain {
            judge(seed, &Setup::default());
        }
        if seed < deadly {
            judge(seed, &Setup::deadly());
        }
    }
    if step == 0 {
        return;
    }
    for seed in 0..12 {
        for (i, fate) in [Fate::Lost, Fate::Landed, Fate::Prefix].into_iter().enumerate() {
            for verb in (1 + i as u64 + seed..=600).step_by(step as usize) {
                let setup = Setup { dies_at: Some((verb, fate)), tight: 0, ..Setup::deadly() };
                judge(seed, &Setup { deaths: 0, clients: (2, 3), coroutines: (1, 2), ..setup });
            }
        }
    }
}
