//! The suite that every index passes on every fabric: operations with all their outcomes against a `BTreeMap`, dumps,
//! reopening, audits, drops.
//!
//! Invariants: each step leaves index and model equal; nothing in here knows how an index works, except through
//! [`IndexUnderTest`].

use crate::common::{Ctx, Member, Rng, bytes, join_all};
use farindex_index::audit::Damage;
use farindex_index::keyhash::KeyHash;
use farindex_index::{
    Coalesced, Cuckoo, IndexAudit, IndexError, Insert, Lifecycle, Linear, PointIndex, PoolIndex, Race, Remove, SepHash,
    Shard, Update, Upsert, Value, cuckoo, linear, race, sephash, shard,
};
use farindex_pool::audit::{Audit, AuditReport};
use farindex_pool::{PoolOptions, Session, catalog};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// A kind that goes through the suite, with the settings that make it grow, split and overflow soonest.
pub(crate) trait Smallest: PoolIndex {
    fn smallest() -> Self::Config;
}

impl Smallest for Shard {
    fn smallest() -> shard::Config {
        shard::Config { initial_bits: 0, ..shard::Config::default() }
    }
}

impl Smallest for Race {
    fn smallest() -> race::Config {
        race::Config { initial_depth: 1, groups: 1, ..race::Config::default() }
    }
}

impl Smallest for SepHash {
    fn smallest() -> sephash::Config {
        sephash::Config { cur_bytes: 128, ratio: 2, initial_depth: 0, ..sephash::Config::default() }
    }
}

impl Smallest for Linear {
    fn smallest() -> linear::Config {
        linear::Config { slots: 1, ..linear::Config::default() }
    }
}

impl Smallest for farindex_index::tree::blink::BLink {
    fn smallest() -> farindex_index::tree::blink::Config {
        farindex_index::tree::blink::Config { fanout: 4 }
    }
}

impl Smallest for Cuckoo {
    fn smallest() -> cuckoo::Config {
        cuckoo::Config { slots: 1, associativity: 1, threshold: 0.98, ..cuckoo::Config::default() }
    }
}

/// An index on trial: a kind alone, or behind a lock table.
pub(crate) trait IndexUnderTest: PointIndex + Sized + 'static {
    type Plain: Smallest;
    async fn create(session: &Rc<Session>, name: &str) -> Result<Self, IndexError>;
    async fn open(session: &Rc<Session>, name: &str) -> Result<Self, IndexError>;
    fn plain(&self) -> &Self::Plain;
}

impl<I: Smallest> IndexUnderTest for I {
    type Plain = I;
    async fn create(session: &Rc<Session>, name: &str) -> Result<Self, IndexError> {
        <I as PoolIndex>::create(session, name, &I::smallest()).await
    }
    async fn open(session: &Rc<Session>, name: &str) -> Result<Self, IndexError> {
        <I as Lifecycle>::open(session, name).await
    }
    fn plain(&self) -> &I {
        self
    }
}

impl<I: Smallest> IndexUnderTest for Coalesced<I> {
    type Plain = I;
    async fn create(session: &Rc<Session>, name: &str) -> Result<Self, IndexError> {
        let index = <I as IndexUnderTest>::create(session, name).await?;
        let uid = index.uid();
        Ok(Coalesced::new(index, Arc::default(), uid))
    }
    async fn open(session: &Rc<Session>, name: &str) -> Result<Self, IndexError> {
        let index = <I as IndexUnderTest>::open(session, name).await?;
        let uid = index.uid();
        Ok(Coalesced::new(index, Arc::default(), uid))
    }
    fn plain(&self) -> &I {
        self.inner()
    }
}

pub(crate) type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Does one operation on both, and compares.
pub(crate) async fn step(index: &impl PointIndex, model: &mut Model, what: u64, key: &[u8], value: &[u8]) {
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
            let told = index.upsert(key, value).await.unwrap();
            assert!(told == expected || told == Upsert::Written, "{told:?}, not {expected:?}: {}", name());
            model.insert(key.to_vec(), value.to_vec());
        }
        _ => {
            let expected = if before.is_some() { Remove::Removed } else { Remove::Absent };
            assert_eq!(index.remove(key).await.unwrap(), expected, "{}", name());
            model.remove(key);
        }
    }
}

/// Every key of the model is there, and nothing else is.
pub(crate) async fn compare<S: IndexUnderTest>(index: &S, model: &Model) {
    let mut found = Model::new();
    let each = async |key: &[u8], value: Value| {
        assert!(found.insert(key.to_vec(), value.to_vec()).is_none(), "{} twice", key.escape_ascii());
        Ok(())
    };
    assert_eq!(index.plain().visit(each, &mut Damage::fail).await.unwrap(), model.len() as u64);
    assert!(found == *model, "the dump differs from the model");
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

/// The whole pool, by its only client.
pub(crate) async fn audit<S: IndexUnderTest>(
    member: &Member,
    indexes: &[(&str, &S)],
) -> (Vec<IndexAudit>, AuditReport) {
    let span = member.span();
    member.session.flush().await.unwrap();
    let mut audit = Audit::begin(&member.session, &span).await.unwrap();
    let mut found = Vec::new();
    for (name, index) in indexes {
        let info = catalog::find(member.session.pool(), &span, name).await.unwrap();
        audit.reach(info.root, member.session.pool().nodes().len() as u64 * 8, "a list of roots");
        let report = index.plain().audit(&mut audit, true).await.unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
        found.push(report);
    }
    // What has been unlinked is nobody's until the epoch allows it.
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

/// Keys that meet in one bucket for as long as there are at most `2^bits`, and if `fp` is given have that fingerprint.
pub(crate) fn colliding(bits: u32, fp: Option<u64>, count: usize) -> Vec<Vec<u8>> {
    let keys = (0u64..).map(|i| i.to_le_bytes().to_vec());
    let fits = |key: &Vec<u8>| {
        let hash = KeyHash::unseeded(key);
        hash.bits() & ((1 << bits) - 1) == 0 && fp.is_none_or(|fp| hash.fingerprint() == fp)
    };
    keys.filter(fits).take(count).collect()
}

/// Operations in an order that meets every outcome, and then random ones.
async fn nasty_lengths(index: &impl PointIndex, model: &mut Model) {
    for key_len in KEY_LENS {
        let key = bytes(key_len, 1);
        for (i, value_len) in VALUE_LENS.into_iter().enumerate() {
            let value = bytes(value_len, i as u64);
            for what in [2, 4, 1, 0, 1, 2, 0, 3, 0, 4, 0, 3, 0] {
                step(index, model, what, &key, &value).await;
            }
        }
    }
}

/// How much a run does.
#[derive(Clone, Copy)]
pub(crate) struct Scale {
    pub random: u64,
    pub resizes: u64,
    pub coroutines: u64,
    /// Also a key and a value as long as may be.
    pub longest: bool,
    pub seed: u64,
}

pub(crate) async fn suite<S: IndexUnderTest>(ctx: Ctx, scale: Scale) {
    let pool = ctx.pool(&PoolOptions::default()).await;
    let member = ctx.join(&pool).await;
    let (_, empty) = audit::<S>(&member, &[]).await;
    let index = S::create(&member.session, "model").await.unwrap();
    let mut model = Model::new();
    let mut rng = Rng::new(scale.seed);

    nasty_lengths(&index, &mut model).await;
    compare(&index, &model).await;
    let mut keys: Vec<Vec<u8>> = model.keys().cloned().collect();
    if scale.longest {
        let (key, value) = (bytes(index.limits().key, 9), bytes(index.limits().value, 9));
        for what in [1, 0, 2, 0, 4, 0, 3, 0, 4, 0] {
            step(&index, &mut model, what, &key, &value).await;
        }
    }
    // One bucket beyond what it holds, and one fingerprint.
    for group in [colliding(10, None, 150), colliding(9, Some(0), 80), colliding(8, Some(0x7F), 30)] {
        for what in [4, 1, 0, 1, 2, 0] {
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
        let what = rng.below(5);
        step(&index, &mut model, what, &key, &bytes(len, rng.word())).await;
    }
    compare(&index, &model).await;

    grow(&index, &mut model, &mut rng, scale).await;
    together(&index, &mut model, scale).await;
    compare(&index, &model).await;

    // As another client finds it.
    let other = ctx.join(&pool).await;
    let again = S::open(&other.session, "model").await.unwrap();
    compare(&again, &model).await;
    drop(again);
    other.close_beside(&[&member]).await;

    let (reports, report) = audit(&member, &[("model", &index)]).await;
    assert_eq!(reports[0].entries, model.len() as u64);
    assert!(reports[0].resizes >= scale.resizes);
    assert!(report.alone && report.lost == 0, "{report:?}");

    // Dropped while it is open here and elsewhere.
    let session = ctx.session(&member);
    let elsewhere = S::open(&session, "model").await.unwrap();
    S::Plain::drop_index(&member.session, "model").await.unwrap();
    let key = keys.first().unwrap();
    assert_eq!(elsewhere.get(key).await.map(drop), Err(IndexError::Dropped));
    assert_eq!(index.upsert(key, b"").await.map(drop), Err(IndexError::Dropped));
    assert!(S::open(&session, "model").await.is_err());
    drop((elsewhere, session, index));
    let (_, report) = audit::<S>(&member, &[]).await;
    assert!(report.alone && report.lost == 0, "{report:?}");
    for (before, after) in empty.nodes.iter().zip(&report.nodes) {
        assert_eq!((after.live_bytes, after.held_bytes), (before.live_bytes, before.held_bytes), "{after:?}");
    }
    member.close().await;
}

/// Inserts until the index has grown so often, with other operations in between.
async fn grow<S: IndexUnderTest>(index: &S, model: &mut Model, rng: &mut Rng, scale: Scale) {
    let mut added = 0u64;
    while index.plain().statistics().resizes < scale.resizes {
        let key = format!("grown {added}").into_bytes();
        step(index, model, 1, &key, &added.to_le_bytes()).await;
        added += 1;
        let key = format!("grown {}", rng.below(added + added / 8 + 1)).into_bytes();
        let what = if added.is_multiple_of(8) { rng.below(5) } else { 0 };
        step(index, model, what, &key, &bytes(12, added)).await;
        assert!(added < 200_000, "it does not grow");
    }
}

/// Many coroutines on one handle, each with keys of its own.
async fn together<S: IndexUnderTest>(index: &S, model: &mut Model, scale: Scale) {
    let work = (0..scale.coroutines).map(async |coroutine| {
        let mut mine = Model::new();
        let mut rng = Rng::new(scale.seed ^ coroutine << 32);
        for _ in 0..400 {
            let key = format!("coroutine {coroutine} key {}", rng.below(40)).into_bytes();
            let len = *rng.pick(&VALUE_LENS);
            step(index, &mut mine, rng.below(5), &key, &bytes(len, rng.word())).await;
        }
        mine
    });
    for mine in join_all(work).await {
        model.extend(mine);
    }
}
