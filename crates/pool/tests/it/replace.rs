//! Replacing an index by a copy of it: a client crashes at each verb, and the name belongs to exactly one of the two.

use farindex_fabric::{OpKind, RemotePtr};
use farindex_pool::catalog::{self, IndexInfo, KindTag};
use farindex_pool::layout::HOME;
use farindex_pool::{Client, Pool, PoolError, PoolOptions, Session};
use farindex_sim::{Config, CrashOutcome, Outcome, Sim, Swarm};
use std::rc::Rc;
use std::time::Duration;

const NAME: &str = "words";

async fn add(session: &Session, name: &str) -> Result<IndexInfo, PoolError> {
    let span = session.span(OpKind::Other);
    let uid = catalog::new_uid(&span, 0).await?;
    let kind = KindTag { kind: 3, version: 1, config_version: 1 };
    catalog::add(session, &span, name, uid, kind, RemotePtr::new(HOME, 4096 * uid), &[7; 64]).await
}

async fn join(pool: &Pool, me: &farindex_sim::Client) -> Result<Session, PoolError> {
    let endpoint = me.connect();
    let client = Client::register(pool, me.identity(), &endpoint).await?;
    Ok(client.session(endpoint))
}

/// What another client finds after the crash, and the names that are left after it has finished the drops.
struct Remains {
    found: IndexInfo,
    names: Vec<String>,
}

/// After the crash: takes the catalog's lock over, finishes the drops, and adds another index.
async fn recover(pool: Pool, me: farindex_sim::Client) -> Result<Remains, PoolError> {
    let session = join(&pool, &me).await?;
    let span = session.span(OpKind::Other);
    let found = catalog::find(&pool, &span, NAME).await?;
    session.client().wait_and_evict_expired(session.endpoint()).await?;
    for info in catalog::list(&pool, &span).await?.into_iter().filter(|info| info.dropping) {
        catalog::end_drop(&session, &span, &info).await?;
    }
    add(&session, "other").await?;
    let again = catalog::find(&pool, &span, NAME).await?;
    assert_eq!(again, found, "the name still belongs to the same index");
    let names = catalog::list(&pool, &span).await?.into_iter().map(|info| info.name).collect();
    Ok(Remains { found, names })
}

struct Run {
    old: IndexInfo,
    copy: IndexInfo,
    left: Remains,
    crashed: bool,
    /// Verbs of the client before the replacement, and after it.
    verbs: (u64, u64),
}

fn run(crash: Option<(u64, CrashOutcome)>) -> Run {
    let config = Config { node_len: 512 << 10, swarm: Some(Swarm::calm()), reports_crashes: true, ..Config::default() };
    let sim = Sim::new(7, config).expect("a cluster");
    let (harness, fabric) = (sim.harness(), sim.fabric());
    let made = sim.block_on(async move {
        let options = PoolOptions {
            client_slots: 4,
            lease: Duration::from_millis(50),
            chunk_size: Some(16 << 10),
            ..PoolOptions::unseeded()
        };
        let pool = Pool::create(fabric, &harness.connect(), &options).await?;
        let session = join(&pool, &harness).await?;
        let old = add(&session, NAME).await?;
        let copy = add(&session, &catalog::copy_name(&old)).await?;
        let (client, endpoint) = (session.client().clone(), session.endpoint().clone());
        drop(session);
        client.close(&endpoint).await?;
        Ok::<_, PoolError>((pool, old, copy))
    });
    let (pool, old, copy) = made.unwrap_or_else(|ended| panic!("{ended}")).expect("a pool with two indexes");
    let victim = sim.client();
    if let Some((verb, crash_outcome)) = crash {
        victim.crash_at(verb, crash_outcome);
    }
    let (me, on, from, to) = (victim.clone(), pool.clone(), old.clone(), copy.clone());
    let replacing = sim.spawn(&victim, async move {
        let session = join(&on, &me).await?;
        let before = me.verbs();
        catalog::replace(&session, &session.span(OpKind::Other), &from, &to, async || Ok(())).await?;
        let verbs = (before, me.verbs());
        std::mem::forget(session);
        Ok::<_, PoolError>(verbs)
    });
    match sim.run() {
        Outcome::Done => {}
        outcome => panic!("{outcome}"),
    }
    sim.settle();
    let verbs = replacing.take().map(|done| done.expect("replaced"));
    victim.crash(CrashOutcome::Landed);
    let left = sim.block_on(recover(pool, sim.client())).unwrap_or_else(|ended| panic!("{ended}"));
    let left = left.unwrap_or_else(|error| panic!("{crash:?}: {error}"));
    Run { old, copy, left, crashed: verbs.is_none(), verbs: verbs.unwrap_or_default() }
}

#[test]
fn replace_leaves_the_name_with_one_index_after_a_crash_at_any_verb() {
    let calm = run(None);
    assert!(!calm.crashed);
    assert_eq!((calm.left.found.uid, calm.left.found.root), (calm.copy.uid, calm.copy.root));
    assert_eq!(calm.left.names, ["other", NAME], "the old entry and the copy's are free again");
    let (mut kept, mut replaced) = (0, 0);
    for crash_outcome in [CrashOutcome::Lost, CrashOutcome::Prefix, CrashOutcome::Landed] {
        for verb in calm.verbs.0 + 1..=calm.verbs.1 {
            let Run { old, copy, left, crashed, .. } = run(Some((verb, crash_outcome)));
            assert!(crashed, "verb {verb}");
            let Remains { found, mut names } = left;
            names.sort();
            if found.uid == old.uid {
                kept += 1;
                assert_eq!(found, old, "verb {verb}, {crash_outcome:?}");
                assert_eq!(
                    names,
                    ["other", NAME, &copy.name],
                    "verb {verb}, {crash_outcome:?}: the copy is there to be dropped"
                );
            } else {
                replaced += 1;
                assert_eq!((found.uid, found.root, found.config), (copy.uid, copy.root, copy.config));
                assert_eq!(names, ["other", NAME], "verb {verb}, {crash_outcome:?}");
            }
        }
    }
    println!("{kept} times the old index, {replaced} times the copy");
    assert!(kept > 3 && replaced > 3, "{kept} times the old index, {replaced} times the copy");
}

#[test]
fn failed_replace_changes_nothing() {
    let sim = Sim::new(7, Config { node_len: 512 << 10, swarm: Some(Swarm::calm()), ..Config::default() });
    let sim = sim.expect("a cluster");
    let (harness, fabric) = (sim.harness(), sim.fabric());
    let done = sim.block_on(async move {
        let pool = Pool::create(fabric, &harness.connect(), &PoolOptions::default()).await?;
        let session = Rc::new(join(&pool, &harness).await?);
        let span = session.span(OpKind::Other);
        let old = add(&session, NAME).await?;
        let copy = add(&session, &catalog::copy_name(&old)).await?;
        let before = catalog::list(&pool, &span).await?;
        let refused = catalog::replace(&session, &span, &old, &copy, async || Err(PoolError::NotAlone("to"))).await;
        assert_eq!(refused, Err(PoolError::NotAlone("to")));
        let swapped = catalog::replace(&session, &span, &copy, &old, async || Ok(())).await;
        assert!(matches!(swapped, Err(PoolError::Corrupt { .. })), "{swapped:?}");
        assert_eq!(catalog::list(&pool, &span).await?, before);
        let info = catalog::begin_drop(&session, &span, &copy).await?;
        catalog::end_drop(&session, &span, &info).await?;
        let gone = catalog::replace(&session, &span, &old, &copy, async || Ok(())).await;
        assert_eq!(gone, Err(PoolError::NoSuchIndex(copy.name.clone())));
        assert_eq!(catalog::find(&pool, &span, NAME).await?, old);
        Ok::<_, PoolError>(())
    });
    done.unwrap_or_else(|ended| panic!("{ended}")).expect("no verb fails");
}
