//! Walks while writers work under the adversary: a key that no writer touches is visited exactly once, none twice, and
//! every value was the key's at some moment of the walk.

use crate::slotted::kinds::{Entries, Kind, counted, join, key, value, walk};
use farindex_index::Lifecycle;
use farindex_index::{Cuckoo, IndexError, Linear};
use farindex_pool::{Pool, PoolOptions, marks};
use farindex_sim::{Config as SimConfig, ODDS, Sim, SimRng};
use farindex_testkit::sampled_seeds;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// Keys that no writer touches; those of each writer.
const STILL: u32 = 60;
const OWN: u32 = 25;
const WRITERS: u32 = 3;
const OPERATIONS: u32 = 60;

/// What became of a key, by its one writer: a value or none, from when it was asked for until it was there.
struct Change {
    value: Option<Vec<u8>>,
    begun: Duration,
    done: Duration,
}

/// What all writers have done.
#[derive(Default)]
struct Done {
    changes: RefCell<BTreeMap<Vec<u8>, Vec<Change>>>,
    writing: Cell<u32>,
    walks: Cell<u32>,
}

/// One walk.
struct Walked {
    begun: Duration,
    done: Duration,
    visited: Entries,
}

impl Done {
    fn note(&self, key: Vec<u8>, change: Change) {
        self.changes.borrow_mut().entry(key).or_default().push(change);
    }

    /// Is each key's value one that it had during the walk, and was each key visited that was there all the time?
    fn judge(&self, walked: &Walked, context: &str) {
        let changes = self.changes.borrow();
        let own = |key: &[u8]| changes.get(key).map(Vec::as_slice).unwrap_or_default();
        for i in 0..STILL {
            assert_eq!(walked.visited.get(&key(i)), Some(&value(i, "still")), "{context}: key {i} stands still");
        }
        for (key, visited) in walked.visited.iter().filter(|(of, _)| (0..STILL).all(|i| **of != key(i))) {
            let had = own(key).iter().enumerate().any(|(i, change)| {
                let over = own(key).get(i + 1).map_or(Duration::MAX, |next| next.done);
                change.value.as_ref() == Some(visited) && change.begun <= walked.done && over >= walked.begun
            });
            assert!(had, "{context}: {} had never {}", key.escape_ascii(), visited.escape_ascii());
        }
        for (key, changes) in changes.iter() {
            let stays = changes.iter().enumerate().any(|(i, change)| {
                let until = changes.get(i + 1).map_or(Duration::MAX, |next| next.begun);
                change.value.is_some() && change.done < walked.begun && until > walked.done
            });
            assert!(!stays || walked.visited.contains_key(key), "{context}: {} was there", key.escape_ascii());
        }
    }
}

async fn write<I: Kind>(
    pool: Pool,
    me: farindex_sim::Client,
    done: Rc<Done>,
    mut rng: SimRng,
) -> Result<(), IndexError> {
    let session = join(&pool, &me).await?;
    let index = I::open(&session, "walked").await?;
    let first = STILL + OWN * me.id();
    for i in 0..OPERATIONS {
        let key = key(first + rng.below(u64::from(OWN)) as u32);
        let new = (!rng.chance(ODDS / 4)).then(|| value(rng.below(2) as u32, &format!("of {i}")));
        let begun = session.endpoint().now();
        match &new {
            Some(new) => drop(index.upsert(&key, new).await?),
            None => drop(index.remove(&key).await?),
        }
        done.note(key, Change { value: new, begun, done: session.endpoint().now() });
        if rng.chance(ODDS / 8) && index.geometry().next.is_none() && index.geometry().current.regions < 16 {
            index.enlarge().await?;
        }
        session.endpoint().sleep(Duration::from_nanos(rng.tail(14))).await;
    }
    done.writing.set(done.writing.get() - 1);
    session.endpoint().settle().await;
    Ok(())
}

async fn watch<I: Kind>(pool: Pool, me: farindex_sim::Client, done: Rc<Done>) -> Result<Vec<Walked>, IndexError> {
    let session = join(&pool, &me).await?;
    let index = I::open(&session, "walked").await?;
    let mut walks = Vec::new();
    let mut last = false;
    while !last {
        last = done.writing.get() == 0;
        let begun = session.endpoint().now();
        let visited = walk(&index).await?;
        walks.push(Walked { begun, done: session.endpoint().now(), visited });
        done.walks.set(done.walks.get() + 1);
        let [entries, by_form] = counted(&index).await?;
        assert!(entries == by_form && entries >= u64::from(STILL), "{entries} entries, {by_form} by form");
        session.client().tick(session.endpoint()).await?;
    }
    let visited = walks.last().map_or(0, |walk| walk.visited.len() as u64);
    assert_eq!(counted(&index).await?, [visited; 2], "nobody writes any more");
    Ok(walks)
}

/// One seed; returns how many walks there were.
fn is_met_once<I: Kind>(seed: u64) -> usize {
    let config = SimConfig { node_len: 4 << 20, ..SimConfig::default() };
    let sim = Sim::new(seed, config).expect("a world");
    let (harness, fabric) = (sim.harness(), sim.fabric());
    let lease = Duration::from_secs(120);
    let options = PoolOptions { chunk_size: Some(16 << 10), lease, ..PoolOptions::unseeded() };
    let slots = 64 << SimRng::new(seed, 1).below(3);
    let made = sim.block_on(async move {
        let endpoint = harness.connect();
        let pool = Pool::create(fabric, &endpoint, &options).await?;
        let client = farindex_pool::Client::register(&pool, harness.identity(), &endpoint).await?;
        let session = Rc::new(client.session(endpoint.clone()));
        let index = I::create(&session, "walked", &I::config(slots)).await?;
        for i in 0..STILL {
            index.insert(&key(i), &value(i, "still")).await?;
        }
        endpoint.settle().await;
        drop((index, session));
        client.close(&endpoint).await?;
        Ok::<_, IndexError>(pool)
    });
    let pool = made.expect("done").expect("a pool");
    let done = Rc::new(Done::default());
    done.writing.set(WRITERS);
    let writers: Vec<_> = (0..WRITERS)
        .map(|i| {
            let (me, rng) = (sim.client(), SimRng::new(seed, 100 + u64::from(i)));
            sim.spawn(&me, write::<I>(pool.clone(), me.clone(), Rc::clone(&done), rng))
        })
        .collect();
    let watcher = sim.client();
    let watched = sim.spawn(&watcher, watch::<I>(pool, watcher.clone(), Rc::clone(&done)));
    let outcome = sim.run();
    assert!(outcome.is_done(), "seed {seed}: {outcome}");
    for writer in writers {
        writer.take().expect("done").unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    let walks = watched.take().expect("done").unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    for (i, walked) in walks.iter().enumerate() {
        done.judge(walked, &format!("seed {seed}, walk {i}"));
    }
    walks.len()
}

fn walk_visits_each_key_once_while_writers_work<I: Kind>(passed: &[&str]) {
    marks::take();
    let mut walks = 0;
    for seed in sampled_seeds(0..60) {
        walks += is_met_once::<I>(seed);
    }
    let marks = marks::take();
    println!("{walks} walks, {marks:?}");
    for mark in passed {
        assert!(marks.contains_key(mark), "{mark}: {marks:?}");
    }
}

#[test]
fn linear_walk_visits_each_key_once_while_writers_work() {
    walk_visits_each_key_once_while_writers_work::<Linear>(&[
        "linear walk: on to the next table",
        "linear walk: range begun again",
    ]);
}

#[test]
fn cuckoo_walk_visits_each_key_once_while_writers_work() {
    walk_visits_each_key_once_while_writers_work::<Cuckoo>(&["cuckoo walk: pass", "cuckoo displace"]);
}
