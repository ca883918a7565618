//! A client crashes in the midst of a split, and nobody recovers what it has left: a walk visits each key once all the
//! same.

use farindex_index::audit::Damage;
use farindex_index::{Lifecycle, PoolIndex, Race, SepHash, race, sephash};
use farindex_pool::{Client, Pool, PoolOptions, Session};
use farindex_sim::{Config, CrashOutcome, Sim, Swarm};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// Inserts that make the first segments split.
const KEYS: u64 = 120;

async fn join(pool: &Pool, me: &farindex_sim::Client) -> Rc<Session> {
    let endpoint = me.connect();
    let client = Client::register(pool, me.identity(), &endpoint).await.unwrap();
    Rc::new(client.session(endpoint))
}

/// Returns how many inserts were acknowledged, how many verbs the client posted, and which keys a walk visits; `None`
/// if a segment does not settle.
fn run<I: PoolIndex>(config: I::Config, crash: Option<(u64, CrashOutcome)>) -> (u64, u64, Option<Vec<u64>>) {
    let sim = Config { node_len: 4 << 20, swarm: Some(Swarm::calm()), reports_crashes: true, ..Config::default() };
    let sim = Sim::new(11, sim).unwrap();
    let (harness, fabric) = (sim.harness(), sim.fabric());
    let made = sim.block_on(async move {
        let pool = Pool::create(fabric, &harness.connect(), &PoolOptions::unseeded()).await.unwrap();
        drop(I::create(&join(&pool, &harness).await, "words", &config).await.unwrap());
        pool
    });
    let pool = made.unwrap_or_else(|ended| panic!("{ended}"));
    let loader = sim.client();
    if let Some((verb, crash_outcome)) = crash {
        loader.crash_at(verb, crash_outcome);
    }
    let acknowledged = Rc::new(Cell::new(0));
    let (me, on, count) = (loader.clone(), pool.clone(), Rc::clone(&acknowledged));
    sim.spawn(&loader, async move {
        let index = I::open(&join(&on, &me).await, "words").await.unwrap();
        for i in 0..KEYS {
            index.insert(&i.to_le_bytes(), b"value").await.unwrap();
            count.set(i + 1);
        }
    });
    sim.run().assert_done();
    sim.settle();
    let reader = sim.client();
    let walk = async move {
        let index = I::open(&join(&pool, &reader).await, "words").await.unwrap();
        let mut visited = Vec::new();
        let each = async |key: &[u8], _| {
            visited.push(u64::from_le_bytes(key.try_into().unwrap()));
            Ok(())
        };
        let walked = index.visit(each, &mut Damage::fail).await;
        walked.is_ok().then_some(visited)
    };
    let visited = sim.block_on(walk).unwrap_or_else(|ended| panic!("{ended}"));
    (acknowledged.get(), loader.verbs(), visited)
}

fn sweep<I: PoolIndex>(config: I::Config)
where
    I::Config: Copy,
{
    let (_, verbs, visited) = run::<I>(config, None);
    assert_eq!(visited.map(|visited| visited.len() as u64), Some(KEYS));
    let (mut runs, mut unsettled) = (0, 0);
    for crash_outcome in [CrashOutcome::Prefix, CrashOutcome::Landed] {
        for verb in verbs / 2..=verbs {
            let (acknowledged, _, visited) = run::<I>(config, Some((verb, crash_outcome)));
            runs += 1;
            let Some(visited) = visited else {
                unsettled += 1;
                continue;
            };
            let all: BTreeSet<u64> = visited.iter().copied().collect();
            assert_eq!(all.len(), visited.len(), "verb {verb}, {crash_outcome:?}: keys are visited twice");
            assert!(
                (0..acknowledged).all(|key| all.contains(&key)),
                "verb {verb}, {crash_outcome:?}: a key is missing"
            );
        }
    }
    println!("{runs} crashes, {unsettled} of them in the midst of CurSegMeta");
    assert!(unsettled * 20 < runs, "{unsettled} of {runs}");
}

#[test]
fn a_walk_of_race_meets_each_key_once_after_a_crash_in_a_split() {
    sweep::<Race>(race::Config { initial_depth: 1, groups: 1, ..race::Config::default() });
}

#[test]
fn a_walk_of_sephash_meets_each_key_once_after_a_crash_in_a_split() {
    sweep::<SepHash>(sephash::Config { cur_bytes: 128, ratio: 1, initial_depth: 1, ..sephash::Config::default() });
}
