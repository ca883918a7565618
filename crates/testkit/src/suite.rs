//! The model-based suite that every kind of index passes on every fabric: operations with all their outcomes against a
//! `BTreeMap`, dumps and scans in order, reopening, audits, drops.
//!
//! Invariants: each step leaves index and model equal; nothing in here knows how an index works. Everything here panics
//! on errors: it is for tests alone.

use crate::world::{Ctx, Member, Rng, bytes, join_all};
use farindex_index::audit::Damage;
use farindex_index::keyhash::KeyHash;
use farindex_index::{
    AnyIndex, IndexAudit, IndexConfig, IndexError, Insert, OrderedIndex, PointIndex, PoolIndex, Remove, RemoveIf,
    Replace, Shard, Update, Upsert, Value,
};
use farindex_pool::audit::{Audit, AuditReport};
use farindex_pool::{PoolError, PoolOptions, Session, catalog};
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;

/// An index that the suite's checks can walk: of any kind, or SHARD.
pub trait Walk: PointIndex {
    /// See [`AnyIndex::audit`].
    fn walk(&self, audit: &mut Audit, alone: bool) -> impl Future<Output = Result<IndexAudit, IndexError>>;
    /// See [`AnyIndex::visit`]; damage is an error.
    fn visit_all(
        &self,
        each: impl AsyncFnMut(&[u8], Value) -> Result<(), IndexError>,
    ) -> impl Future<Output = Result<u64, IndexError>>;
    /// The index, if its keys are ordered.
    fn ordered(&self) -> Option<&AnyIndex>;
}

macro_rules! walk {
    ($index:ty, $ordered:expr) => {
        impl Walk for $index {
            async fn walk(&self, audit: &mut Audit, alone: bool) -> Result<IndexAudit, IndexError> {
                self.audit(audit, alone).await
            }
            async fn visit_all(
                &self,
                each: impl AsyncFnMut(&[u8], Value) -> Result<(), IndexError>,
            ) -> Result<u64, IndexError> {
                self.visit(each, &mut Damage::fail).await
            }
            fn ordered(&self) -> Option<&AnyIndex> {
                let ordered: fn(&$index) -> Option<&AnyIndex> = $ordered;
                ordered(self)
            }
        }
    };
}
walk!(AnyIndex, |index| index.is_ordered().then_some(index));
walk!(Shard, |_| None);

/// What the index should hold.
pub type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Does one operation on index and model, and compares the outcomes. `what` is 0 for get, 1 insert, 2 update, 3 upsert,
/// 4 removal. The next four expect a value: 5 replaces the value that is there and 6 another one, 7 removes the value that
/// is there and 8 another one.
///
/// # Panics
/// If they differ.
pub async fn step(index: &impl PointIndex, model: &mut Model, what: u64, key: &[u8], value: &[u8]) {
    let name = || format!("key {} of {} bytes", key[..key.len().min(40)].escape_ascii(), key.len());
    let before = model.get(key);
    match what {
        0 => {
            let got = index.get(key).await.unwrap();
            assert_eq!(got.as_deref(), before.map(Vec::as_slice), "get, {}", name());
        }
        1 => {
            let expected = if before.is_some() { Insert::Exists } else { Insert::Inserted };
            assert_eq!(index.insert(key, value).await.unwrap(), expected, "{}", name());
            model.entry(key.to_vec()).or_insert_with(|| value.to_vec());
        }
        2 => {
            let expected = if before.is_some() { Update::Updated } else { Update::Absent };
            assert_eq!(index.update(key, value).await.unwrap(), expected, "{}", name());
            model.entry(key.to_vec()).and_modify(|old| *old = value.to_vec());
        }
        3 => {
            let expected = if before.is_some() { Upsert::Updated } else { Upsert::Inserted };
            let outcome = index.upsert(key, value).await.unwrap();
            assert!(outcome == expected || outcome == Upsert::Written, "{outcome:?}, not {expected:?}: {}", name());
            model.insert(key.to_vec(), value.to_vec());
        }
        5 | 6 => {
            let (held, other) = (before.cloned().unwrap_or_default(), other_than(before, value));
            let expected = if what == 5 { &held } else { &other };
            let outcome = match before {
                None => Replace::Absent,
                Some(_) if what == 5 => Replace::Replaced,
                Some(_) => Replace::Differs,
            };
            assert_eq!(index.replace(key, expected, value).await.unwrap(), outcome, "{}", name());
            if outcome == Replace::Replaced {
                model.insert(key.to_vec(), value.to_vec());
            }
        }
        7 | 8 => {
            let (held, other) = (before.cloned().unwrap_or_default(), other_than(before, value));
            let expected = if what == 7 { &held } else { &other };
            let outcome = match before {
                None => RemoveIf::Absent,
                Some(_) if what == 7 => RemoveIf::Removed,
                Some(_) => RemoveIf::Differs,
            };
            assert_eq!(index.remove_if(key, expected).await.unwrap(), outcome, "{}", name());
            if outcome == RemoveIf::Removed {
                model.remove(key);
            }
        }
        _ => {
            let expected = if before.is_some() { Remove::Removed } else { Remove::Absent };
            assert_eq!(index.remove(key).await.unwrap(), expected, "{}", name());
            model.remove(key);
        }
    }
}

/// A value that a key does not have: of another length, or with another last byte.
fn other_than(held: Option<&Vec<u8>>, drawn: &[u8]) -> Vec<u8> {
    let mut other = held.cloned().unwrap_or_default();
    match other.last_mut() {
        Some(last) if drawn.len().is_multiple_of(2) => *last ^= 1,
        _ => other.push(0),
    }
    other
}

/// Compares the index with the model: every key of the model is there, and nothing else is.
///
/// # Panics
/// If they differ.
pub async fn compare(index: &impl Walk, model: &Model) {
    let mut found = Model::new();
    let each = async |key: &[u8], value: Value| {
        let ascends = found.last_key_value().is_none_or(|(last, _)| last.as_slice() < key);
        assert!(ascends || index.ordered().is_none(), "{} is out of order", key.escape_ascii());
        assert!(found.insert(key.to_vec(), value.to_vec()).is_none(), "{} twice", key.escape_ascii());
        Ok(())
    };
    assert_eq!(index.visit_all(each).await.unwrap(), model.len() as u64);
    assert!(found == *model, "the dump differs from the model");
    if let Some(index) = index.ordered() {
        compare_scans(index, model).await;
    }
    for (key, value) in model {
        assert_eq!(index.get(key).await.unwrap().as_deref(), Some(value.as_slice()), "{}", key.escape_ascii());
    }
    // All at once, with absent ones among them.
    let absent: Vec<_> = (0..model.len() / 4 + 1).map(|i| format!("never there {i}").into_bytes()).collect();
    let asked: Vec<&[u8]> = model.keys().chain(&absent).map(Vec::as_slice).collect();
    for keys in asked.chunks(300) {
        let values = index.get_many(keys).await.unwrap();
        assert_eq!(values.len(), keys.len());
        for (key, value) in keys.iter().zip(values) {
            assert_eq!(value.as_deref(), model.get(*key).map(Vec::as_slice), "{} of many", key.escape_ascii());
        }
    }
    assert!(index.get_many(&[]).await.unwrap().is_empty());
}

/// Scans with all kinds of bounds and limits return what the model holds there: each two bounds, with one of the limits.
async fn compare_scans(index: &AnyIndex, model: &Model) {
    let mut keys: Vec<&[u8]> = model.keys().step_by(model.len() / 5 + 1).map(Vec::as_slice).collect();
    keys.extend([b"".as_slice(), b"never there", &[0xFF; 9]]);
    let mut bounds: Vec<Bound<&[u8]>> =
        keys.iter().flat_map(|key| [Bound::Included(*key), Bound::Excluded(*key)]).collect();
    bounds.push(Bound::Unbounded);
    for (row, from) in bounds.iter().enumerate() {
        for (column, to) in bounds.iter().enumerate() {
            let limit = [usize::MAX, 7, 1, 0][(row + column) % 4];
            let within = |key: &[u8]| std::ops::RangeBounds::contains(&(*from, *to), key);
            let expected = model.iter().filter(|(key, _)| within(key)).take(limit);
            let found = index.scan((*from, *to), limit).await.unwrap();
            let found = found.iter().map(|entry| (&*entry.key, &*entry.value));
            let expected = expected.map(|(key, value)| (key.as_slice(), value.as_slice()));
            assert!(found.eq(expected), "scan of {from:?} to {to:?}, {limit} at most");
        }
    }
}

/// Audits the whole pool, as its only client.
///
/// # Panics
/// If anything is wrong.
pub async fn audit<I: Walk>(member: &Member, indexes: &[(&str, &I)]) -> (Vec<IndexAudit>, AuditReport) {
    let span = member.span();
    member.session.flush().await.unwrap();
    let mut audit = Audit::begin(&member.session, &span).await.unwrap();
    let mut found = Vec::new();
    for (name, index) in indexes {
        let info = catalog::find(member.session.pool(), &span, name).await.unwrap();
        audit.reach(info.root, member.session.pool().nodes().len() as u64 * 8, "a list of roots");
        let report = index.walk(&mut audit, true).await.unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
        found.push(report);
    }
    // What has been unlinked is freed when the epoch allows it.
    while !settled(&member.session).await {}
    let report = audit.settle(&member.session, &span).await.unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    (found, report)
}

/// Moves the epoch on; is nothing retired any more?
async fn settled(session: &Session) -> bool {
    for _ in 0..4 {
        session.maintain().await.unwrap();
    }
    session.flush().await.unwrap();
    true
}

/// Lengths at which something changes: units, words, inline limits, blocks longer than a slot can say.
const KEY_LENS: [usize; 16] = [0, 1, 2, 7, 8, 9, 40, 41, 47, 48, 49, 1007, 1008, 1009, 1010, 64 << 10];
const VALUE_LENS: [usize; 16] = [0, 1, 8, 40, 47, 48, 943, 944, 945, 959, 960, 961, 1007, 1008, 1009, 1024];

/// Returns keys that lie in one bucket as long as there are at most `2^bits` buckets; with `fp`, keys of that
/// fingerprint.
pub fn colliding(bits: u32, fp: Option<u64>, count: usize) -> Vec<Vec<u8>> {
    let keys = (0u64..).map(|i| i.to_le_bytes().to_vec());
    let fits = |key: &Vec<u8>| {
        let hash = KeyHash::unseeded(key);
        hash.bits() & ((1 << bits) - 1) == 0 && fp.is_none_or(|fp| hash.fingerprint() == fp)
    };
    keys.filter(fits).take(count).collect()
}

/// Keys and values of lengths at which something changes, with operations in an order that has every outcome.
async fn nasty_lengths(index: &impl PointIndex, model: &mut Model) {
    for key_len in KEY_LENS {
        let key = bytes(key_len, 1);
        for (i, value_len) in VALUE_LENS.into_iter().enumerate() {
            let value = bytes(value_len, i as u64);
            for what in [2, 4, 5, 7, 1, 0, 1, 2, 0, 6, 5, 0, 3, 8, 0, 4, 0, 3, 0, 7, 0, 3, 0] {
                step(index, model, what, &key, &value).await;
            }
        }
    }
}

/// Size of a run.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// Random operations.
    pub random: u64,
    /// How often the index grows.
    pub resizes: u64,
    /// Coroutines at work at the same time.
    pub coroutines: u64,
    /// Also a key and a value as long as they may be.
    pub longest: bool,
    /// Behind a lock table.
    pub coalesced: bool,
    /// Seed of the random operations.
    pub seed: u64,
}

/// Runs the suite on an index with these settings, behind a lock table if `coalesced`.
///
/// # Panics
/// If anything is wrong.
pub async fn suite(ctx: Ctx, config: IndexConfig, scale: Scale) {
    let opened = async |session: &Rc<Session>| {
        let index = AnyIndex::open(session, "model").await?;
        Ok::<_, IndexError>(if scale.coalesced { index.coalesced(&Arc::default()) } else { index })
    };
    let pool = ctx.pool(&PoolOptions::default()).await;
    let member = ctx.join(&pool).await;
    let (_, empty) = audit::<AnyIndex>(&member, &[]).await;
    drop(AnyIndex::create(&member.session, "model", &config).await.unwrap());
    let index = opened(&member.session).await.unwrap();
    let mut model = Model::new();
    let mut rng = Rng::new(scale.seed);

    nasty_lengths(&index, &mut model).await;
    compare(&index, &model).await;
    let mut keys: Vec<Vec<u8>> = model.keys().cloned().collect();
    if scale.longest {
        let (key, value) = (bytes(index.limits().key, 9), bytes(index.limits().value, 9));
        for what in [1, 0, 2, 0, 6, 5, 0, 4, 0, 3, 0, 8, 7, 0] {
            step(&index, &mut model, what, &key, &value).await;
        }
    }
    // One bucket beyond what it holds, and one fingerprint.
    for group in [colliding(10, None, 150), colliding(9, Some(0), 80), colliding(8, Some(0x7F), 30)] {
        for what in [4, 1, 0, 1, 2, 5, 0] {
            for key in &group {
                step(&index, &mut model, what, key, &bytes(24, what)).await;
            }
        }
        for what in [4, 0, 3, 0] {
            for key in group.iter().step_by(3) {
                step(&index, &mut model, what, key, &bytes(60, what)).await;
            }
        }
        keys.extend(group);
    }
    for _ in 0..scale.random {
        let (key, len) = (rng.pick(&keys).clone(), *rng.pick(&VALUE_LENS));
        let what = rng.below(9);
        step(&index, &mut model, what, &key, &bytes(len, rng.word())).await;
    }
    compare(&index, &model).await;

    upsert_many(&index, &mut model, &mut rng, &keys).await;
    compare(&index, &model).await;

    grow(&index, &mut model, &mut rng, scale).await;
    together(&index, &mut model, scale).await;
    compare(&index, &model).await;

    // As another client finds it.
    let other = ctx.join(&pool).await;
    let again = opened(&other.session).await.unwrap();
    compare(&again, &model).await;
    drop(again);
    other.close_while_ticking(&[&member]).await;

    let (reports, report) = audit(&member, &[("model", &index)]).await;
    assert_eq!(reports[0].entries, model.len() as u64);
    assert!(reports[0].resizes >= scale.resizes);
    assert!(report.alone && report.lost == 0, "{report:?}");

    // Dropped while it is open here and elsewhere.
    let session = ctx.session(&member);
    let elsewhere = opened(&session).await.unwrap();
    let info = catalog::find(session.pool(), &member.span(), "model").await.unwrap();
    AnyIndex::drop_named(&member.session, "model").await.unwrap();
    // Who has found it before neither opens nor drops it, nor another index that has its place and its name.
    let another = AnyIndex::create(&member.session, "model", &config).await.unwrap();
    assert!(is_gone(AnyIndex::open_info(&session, &info).await.map(drop)));
    assert!(is_gone(catalog::begin_drop(&session, &member.span(), &info).await.map(drop).map_err(IndexError::from)));
    drop(another);
    AnyIndex::drop_named(&member.session, "model").await.unwrap();
    let key = keys.first().unwrap();
    assert_eq!(elsewhere.get(key).await.map(drop), Err(IndexError::Dropped));
    assert_eq!(index.upsert(key, b"").await.map(drop), Err(IndexError::Dropped));
    assert!(opened(&session).await.is_err());
    drop((elsewhere, session, index));
    let (_, report) = audit::<AnyIndex>(&member, &[]).await;
    assert!(report.alone && report.lost == 0, "{report:?}");
    for (before, after) in empty.nodes.iter().zip(&report.nodes) {
        assert_eq!((after.live_bytes, after.held_bytes), (before.live_bytes, before.held_bytes), "{after:?}");
    }
    member.close().await;
}

fn is_gone(outcome: Result<(), IndexError>) -> bool {
    matches!(outcome, Err(IndexError::Pool(PoolError::NoSuchIndex(name))) if name == "model")
}

/// Upserts of many keys in one call: of keys that are there and that are not, some of them several times; and one that is too
/// long, which leaves the others alone.
async fn upsert_many(index: &AnyIndex, model: &mut Model, rng: &mut Rng, keys: &[Vec<u8>]) {
    let too_long = vec![b'k'; index.limits().key + 1];
    for (round, count) in [0, 1, 2, 30, 30, 150, 300].into_iter().enumerate() {
        let mut pairs = Vec::new();
        for i in 0..count {
            let key = match rng.below(4) {
                0 => format!("together {}", rng.below(60)).into_bytes(),
                1 => format!("together {round} {i}").into_bytes(),
                _ => rng.pick(keys).clone(),
            };
            pairs.push((key, bytes(*rng.pick(&VALUE_LENS), rng.word())));
        }
        if round % 2 == 1 {
            pairs.insert(pairs.len() / 2, (too_long.clone(), b"v".to_vec()));
        }
        let asked: Vec<(&[u8], &[u8])> = pairs.iter().map(|(key, value)| (key.as_slice(), value.as_slice())).collect();
        let outcomes = index.upsert_many(&asked).await;
        assert_eq!(outcomes.len(), pairs.len());
        for ((key, value), outcome) in pairs.into_iter().zip(outcomes) {
            if key == too_long {
                assert!(matches!(outcome, Err(IndexError::KeyTooLong { .. })), "{outcome:?}");
                continue;
            }
            let before = model.insert(key.clone(), value);
            let expected = if before.is_some() { Upsert::Updated } else { Upsert::Inserted };
            let outcome = outcome.unwrap();
            assert!(outcome == expected || outcome == Upsert::Written, "{outcome:?}: {}", key.escape_ascii());
        }
    }
}

/// Inserts until the index has grown so often, with other operations in between.
async fn grow(index: &AnyIndex, model: &mut Model, rng: &mut Rng, scale: Scale) {
    let mut added = 0u64;
    while index.statistics().resizes < scale.resizes {
        let key = format!("grown {added}").into_bytes();
        step(index, model, 1, &key, &added.to_le_bytes()).await;
        added += 1;
        let key = format!("grown {}", rng.below(added + added / 8 + 1)).into_bytes();
        let what = if added.is_multiple_of(8) { rng.below(9) } else { 0 };
        step(index, model, what, &key, &bytes(12, added)).await;
        assert!(added < 200_000, "it does not grow");
    }
}

/// Many coroutines on one handle, each with keys of its own.
async fn together(index: &AnyIndex, model: &mut Model, scale: Scale) {
    let work = (0..scale.coroutines).map(async |coroutine| {
        let mut mine = Model::new();
        let mut rng = Rng::new(scale.seed ^ coroutine << 32);
        for _ in 0..400 {
            let key = format!("coroutine {coroutine} key {}", rng.below(40)).into_bytes();
            let len = *rng.pick(&VALUE_LENS);
            step(index, &mut mine, rng.below(9), &key, &bytes(len, rng.word())).await;
        }
        mine
    });
    for mine in join_all(work).await {
        model.extend(mine);
    }
}
