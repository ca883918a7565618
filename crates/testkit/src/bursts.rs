//! In the end: walks, audits, recoveries and lookups of an index that stop again and again, while many entries come and go.
//! They stop between two round trips; or, if their client is slow, between two verbs of one batch.
//!
//! Invariants: only one client is there, and nobody crashes, so whatever a walk reports is wrong. The entries of the beginning
//! stay: a walk visits each of them once, and so it visits those that came before it and go after it; a lookup finds them.
//! Others come in bursts, so that tables grow by several steps between two verbs of a walk, and go again, and the epoch
//! advances: what the walk has READ may have another use when it goes on.

use crate::cancelling::within;
use crate::worker::Shared;
use farindex_fabric::OpKind;
use farindex_index::audit::Damage;
use farindex_index::{AnyIndex, IndexConfig, IndexError, OrderedIndex, PointIndex, Value};
use farindex_pool::audit::Audit;
use farindex_pool::{PoolError, Session};
use farindex_sim::{Client, ODDS, SimRng, Stall, StallAt};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::ops::Bound;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

const NAME: &str = "bursts";
/// Entries that stay.
const STAY: u64 = 20;
const STAYS: &[u8] = b"stays";
/// Indexes, and walks over each of them.
const ROUNDS: u64 = 2;
const WALKS: u64 = 3;
/// Lookups in each of them, and the most keys that one asks for.
const LOOKUPS: u64 = 8;
const KEYS: u64 = 50;
/// The longest value that comes and goes.
const VALUE: u64 = 900;
/// The longest burst, as an exponent of entries, and in hash tables the longest of those that fall between two verbs of one batch: a
/// directory may grow by two levels in it. A tree of small nodes does so in the usual ones.
const BURST: u64 = 7;
const SLOW_BURST: u64 = 9;
/// After so many verbs no burst begins any more. A table that cannot grow, because no chunk of the pool is free, may have chains
/// of a hundred nodes, and each of its operations READs one of them: the bursts would take more steps than a run may have.
const MOST_VERBS: u64 = 500_000;
/// A walk stops so many times at most.
const STOPS: u64 = 24;
/// Polls in which directories and roots are READ: half of the walks stop there first.
const EARLY: u64 = 8;

fn name_of(key: u64) -> Vec<u8> {
    format!("b{key}").into_bytes()
}
/// The name of an entry that never comes.
fn never(key: u64) -> Vec<u8> {
    format!("a{key}").into_bytes()
}

/// Entries that come and go.
struct Burst {
    index: AnyIndex,
    session: Rc<Session>,
    rng: SimRng,
    /// The next key to come, and the first one that is there.
    next: u64,
    first: u64,
    /// Do entries go? In some of the walks whose batches are slow they only come, and so a walk must visit many.
    go: bool,
    /// The client that walks, if its batches are slow.
    slow: Option<Client>,
}

/// A batch is slow for this long at most. A burst takes less, unless it waits for the walk.
const SLOW: Duration = Duration::from_secs(1);
/// How often it is looked whether a batch of a walk is slow.
const LOOK: Duration = Duration::from_micros(2);
/// The latest verb of a walk that is slow next, as an exponent.
const LATEST: u64 = 7;

/// Polls a future for so long at most. `None`: it has not completed.
async fn for_a_while<F: Future + ?Sized>(
    pause: impl Future<Output = ()>,
    mut future: Pin<&mut F>,
) -> Option<F::Output> {
    let mut pause = pin!(pause);
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => pause.as_mut().poll(cx).map(|()| None),
    })
    .await
}

/// Has a walk that is stopped what this operation has waited for?
fn waits_for_the_walk(error: &IndexError) -> bool {
    matches!(error, IndexError::Locked { .. } | IndexError::Pool(PoolError::Held { .. }))
}

impl Burst {
    /// Some entries come, or go, or both; then the epoch may advance. A walk that is `stopped` meanwhile may have a lock or an
    /// intent cell that an entry needs, and goes on only afterwards.
    async fn run(&mut self, stopped: bool) -> Result<(), IndexError> {
        if self.session.endpoint().meter().total().verbs() > MOST_VERBS {
            return Ok(());
        }
        let longest = if self.slow.is_some() && !self.index.is_ordered() { SLOW_BURST } else { BURST };
        let order = self.rng.within(0, longest);
        let (come, go) = (self.rng.within(0, 1 << order), self.rng.chance(ODDS / 2) && self.go);
        // Memory that has another use may look like anything.
        let value = vec![0xFF; self.rng.pick(&[0, 8, VALUE]).unwrap_or(0) as usize];
        for _ in 0..come {
            match self.index.insert(&name_of(self.next), &value).await {
                Ok(_) => self.next += 1,
                Err(IndexError::Pool(PoolError::Full { .. })) => break,
                Err(error) if stopped && waits_for_the_walk(&error) => break,
                Err(error) => return Err(error),
            }
        }
        while go && self.first < self.next {
            match self.index.remove(&name_of(self.first)).await {
                Ok(_) => self.first += 1,
                Err(IndexError::Pool(PoolError::Full { .. })) => break,
                Err(error) if stopped && waits_for_the_walk(&error) => break,
                Err(error) => return Err(error),
            }
        }
        for _ in 0..self.rng.below(5) {
            self.session.maintain().await?;
        }
        Ok(())
    }

    /// Carries out a walk, and stops it again and again for a burst.
    async fn amid<T>(&mut self, mut walk: Pin<&mut impl Future<Output = T>>) -> Result<T, IndexError> {
        let (order, mut early) = (self.rng.within(0, 5), self.rng.chance(ODDS / 2));
        if let Some(walker) = self.slow.clone() {
            return self.amid_one_batch(walk, &walker).await;
        }
        for _ in 0..self.rng.within(1, STOPS) {
            let most = if std::mem::take(&mut early) { EARLY } else { 1 << order };
            if let Some(done) = within(self.rng.within(1, most), walk.as_mut()).await {
                return Ok(done);
            }
            self.run(true).await?;
        }
        Ok(walk.await)
    }

    /// The same with stops between two verbs of a batch.
    async fn amid_one_batch<T>(
        &mut self,
        mut walk: Pin<&mut impl Future<Output = T>>,
        walker: &Client,
    ) -> Result<T, IndexError> {
        let order = self.rng.within(0, LATEST);
        self.go = self.rng.chance(ODDS / 2);
        for _ in 0..self.rng.within(1, STOPS) {
            let at = StallAt::Verb(walker.verbs() + self.rng.within(1, 1 << order));
            walker.stall(Stall { at, whole: false, limit: SLOW });
            while !walker.is_stalled() {
                if let Some(done) = for_a_while(self.session.endpoint().sleep(LOOK), walk.as_mut()).await {
                    walker.end_stall();
                    return Ok(done);
                }
            }
            let ran = self.run(true).await;
            walker.end_stall();
            ran?;
        }
        Ok(walk.await)
    }
}

/// A walk among bursts visits the entries that are there all the time, and none twice.
async fn visit(shared: &Shared, index: &AnyIndex, burst: &mut Burst) -> Result<(), IndexError> {
    let next = burst.next;
    let mut seen: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    let each = async |key: &[u8], _: Value| {
        *seen.entry(key.to_vec()).or_default() += 1;
        Ok(())
    };
    let visited = burst.amid(pin!(index.visit(each, &mut Damage::fail))).await??;
    let count: u64 = seen.values().sum();
    if visited != count {
        shared.fail(format!("a walk among bursts visits {count} entries, and says {visited}"));
    }
    if let Some((key, count)) = seen.iter().find(|(_, count)| **count > 1) {
        shared.fail(format!("a walk among bursts visits {} {count} times", key.escape_ascii()));
    }
    if let Some(key) = (0..STAY).chain(burst.first..next).map(name_of).find(|key| !seen.contains_key(key)) {
        shared.fail(format!("a walk among bursts misses {}", key.escape_ascii()));
    }
    Ok(())
}

/// An audit among bursts finds nothing.
async fn audit(shared: &Shared, session: &Session, index: &AnyIndex, burst: &mut Burst) -> Result<(), IndexError> {
    let mut audit = Audit::begin(session, &session.span(OpKind::Other)).await?;
    let report = burst.amid(pin!(index.audit(&mut audit, false))).await??;
    for problem in report.problems {
        shared.fail(format!("an audit among bursts: {problem}"));
    }
    Ok(())
}

/// Lookups among bursts find the entries that are there all the time, and none that never was. An index that is ordered is
/// scanned as well.
async fn look_up(shared: &Shared, index: &AnyIndex, burst: &mut Burst) -> Result<(), IndexError> {
    if index.is_ordered() && burst.rng.chance(ODDS / 4) {
        let found = burst.amid(pin!(index.scan((Bound::Unbounded, Bound::Unbounded), usize::MAX))).await??;
        if let Some(pair) = found.windows(2).find(|pair| pair[0].key[..] >= pair[1].key[..]) {
            shared.fail(format!(
                "a scan among bursts returns {} in front of {}",
                pair[0].key.escape_ascii(),
                pair[1].key.escape_ascii()
            ));
        }
        let finds = |name: &Vec<u8>| found.iter().any(|entry| entry.key[..] == name[..] && entry.value[..] == *STAYS);
        if let Some(name) = (0..STAY).map(name_of).find(|name| !finds(name)) {
            shared.fail(format!("a scan among bursts misses {}", name.escape_ascii()));
        }
        return Ok(());
    }
    let count = if burst.rng.chance(ODDS / 4) { 1 } else { burst.rng.within(1, KEYS) };
    let asked: Vec<_> = (0..count).map(|_| burst.rng.below(STAY * 3 / 2)).collect();
    let names: Vec<_> = asked.iter().map(|key| if *key < STAY { name_of(*key) } else { never(*key) }).collect();
    let found = match &names[..] {
        [name] => vec![burst.amid(pin!(index.get(name))).await??],
        _ => {
            let keys: Vec<_> = names.iter().map(Vec::as_slice).collect();
            burst.amid(pin!(index.get_many(&keys))).await??
        }
    };
    for ((key, name), value) in asked.iter().zip(&names).zip(found) {
        let expected = (*key < STAY).then_some(STAYS);
        if value.as_deref() != expected {
            let value = value.map(|value| value.escape_ascii().to_string());
            shared.fail(format!("one of {count} gets among bursts, of {}, returns {value:?}", name.escape_ascii()));
        }
    }
    Ok(())
}

/// Walks over a new index in each of the ways, and drops it. `slow` is the client of `session`, if its batches are to be slow.
pub(crate) async fn judge(
    shared: &Shared,
    session: &Rc<Session>,
    (other, slow): (Rc<Session>, Option<Client>),
    config: &IndexConfig,
    mut rng: SimRng,
) -> Result<(), IndexError> {
    for round in 0..ROUNDS {
        let index = match AnyIndex::create(session, NAME, config).await {
            Ok(index) => index,
            Err(IndexError::Pool(PoolError::Full { .. })) => return Ok(()),
            Err(error) => return Err(error),
        };
        let of_bursts = AnyIndex::open(&other, NAME).await?;
        let rng = SimRng::new(rng.word(), round);
        let (session_of_bursts, slow) = (Rc::clone(&other), slow.clone());
        let mut burst =
            Burst { index: of_bursts, session: session_of_bursts, rng, next: STAY, first: STAY, go: true, slow };
        let mut is_full = false;
        for key in 0..STAY {
            match index.insert(&name_of(key), STAYS).await {
                Err(IndexError::Pool(PoolError::Full { .. })) => is_full = true,
                inserted => _ = inserted?,
            }
        }
        if !is_full {
            for _ in 0..WALKS {
                // It may begin in the midst of a move.
                burst.run(false).await?;
                match burst.rng.below(3) {
                    0 => visit(shared, &index, &mut burst).await?,
                    1 => _ = burst.amid(pin!(index.recover())).await??,
                    _ => audit(shared, session, &index, &mut burst).await?,
                }
            }
            let mut kept = 0;
            for key in 0..STAY {
                kept += u64::from(index.get(&name_of(key)).await?.is_some());
            }
            if kept < STAY {
                shared.fail(format!("{} entries are lost, amid bursts of others", STAY - kept));
            }
            for _ in 0..LOOKUPS {
                burst.run(false).await?;
                look_up(shared, &index, &mut burst).await?;
            }
            shared.bursts.set(shared.bursts.get() + 1);
        }
        drop((index, burst));
        // A batch that nobody awaits may hold a pin for longer than a drop waits.
        session.endpoint().settle().await;
        other.endpoint().settle().await;
        AnyIndex::drop_named(session, NAME).await?;
        session.drain().await?;
    }
    Ok(())
}
