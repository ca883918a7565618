//! Every kind: who loses a race for a name, who has an index open that another client drops, and what its root looks like
//! meanwhile.

use farindex_fabric::RemotePtr;
use farindex_fabric::memory::Delivery;
use farindex_index::audit::Damage;
use farindex_index::{AnyIndex, IndexError, PointIndex};
use farindex_pool::audit::Audit;
use farindex_pool::{Client, Pool, PoolError, PoolOptions, Session, catalog};
use farindex_sim::{Config, ODDS, Sim, Swarm};
use farindex_testkit::suite::audit;
use farindex_testkit::test_runs::shipped;
use farindex_testkit::world::{Member, World, join_all};
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// Both have made their index before one of them finds that the name is taken: it gives all of its memory back.
#[test]
fn a_creation_that_loses_its_name_leaves_nothing() {
    for kind in shipped() {
        World::memory(2, 32 << 20, Delivery::Deferred).run(async move |ctx| {
            let pool = ctx.pool(&PoolOptions::default()).await;
            let (one, two) = (ctx.join(&pool).await, ctx.join(&pool).await);
            let config = kind.smallest();
            let create = async |member: &Member| AnyIndex::create(&member.session, "a", &config).await;
            let made = join_all([create(&one), create(&two)]).await;
            let taken = IndexError::Pool(PoolError::IndexExists("a".to_owned()));
            let lost: Vec<_> = made.iter().filter_map(|made| made.as_ref().err()).collect();
            assert_eq!(lost, [&taken], "{}", config.kind());
            let (winner, loser) = if made[0].is_ok() { (one, two) } else { (two, one) };
            let index = made.into_iter().find_map(Result::ok).expect("one of them has the name");
            // What is not reached is lost only if nobody else may be using it.
            loser.close_while_ticking(&[&winner]).await;
            let (_, report) = audit(&winner, &[("a", &index)]).await;
            assert_eq!(report.lost, 0, "{}: {report:?}", config.kind());
        });
    }
}

async fn join(pool: &Pool, me: &farindex_sim::Client) -> Rc<Session> {
    let endpoint = me.connect();
    let client = Client::register(pool, me.identity(), &endpoint).await.expect("a client");
    Rc::new(client.session(endpoint))
}

/// A verb of a creation fails, and may take effect all the same (N7). See docs/bugs/226: the memory of an index that was in the
/// catalog was freed, and nobody could open or drop the index, or create another one of its name.
#[test]
fn a_creation_that_fails_leaves_no_name_without_an_index() {
    let (mut failed, mut there) = (0, 0);
    for kind in shipped() {
        for seed in 0..60 {
            let config = kind.smallest();
            let sim = Config { node_len: 4 << 20, swarm: Some(Swarm::calm()), ..Config::default() };
            let sim = Sim::new(seed, sim).expect("a cluster");
            let (fabric, harness) = (sim.fabric(), sim.harness());
            let options = PoolOptions { lease: Duration::from_millis(10), ..PoolOptions::unseeded() };
            let pool = sim.block_on(async move { Pool::create(fabric, &harness.connect(), &options).await });
            let pool = pool.unwrap_or_else(|ended| panic!("{ended}")).expect("a pool");
            let created = Rc::new(Cell::new(None));
            let creator = sim.client();
            let (me, on, outcome) = (creator.clone(), pool.clone(), Rc::clone(&created));
            sim.spawn(&creator, async move {
                let session = join(&on, &me).await;
                me.error_odds(ODDS / 16);
                outcome.set(Some(AnyIndex::create(&session, "a", &config).await.map(drop)));
            });
            sim.run().assert_done();
            sim.settle();
            let created = created.take().expect("an outcome");
            let name = format!("{}, seed {seed}, {created:?}", config.kind());
            let harness = sim.harness();
            let found = sim.block_on(async move {
                let session = join(&pool, &harness).await;
                session.client().wait_and_evict_expired(session.endpoint()).await.expect("the creator has gone");
                let found = match AnyIndex::open(&session, "a").await {
                    Err(IndexError::Pool(PoolError::NoSuchIndex(_))) => false,
                    opened => {
                        assert_eq!(opened.expect(&name).get(b"key").await, Ok(None), "{name}");
                        AnyIndex::drop_named(&session, "a").await.expect(&name);
                        true
                    }
                };
                AnyIndex::create(&session, "a", &config).await.expect(&name);
                found
            });
            let found = found.unwrap_or_else(|ended| panic!("{ended}"));
            failed += u32::from(created.is_err());
            there += u32::from(created.is_err() && found);
        }
    }
    assert!(failed > 100 && there > 10, "{failed} creations failed, {there} of them with an index");
}

/// A client crashes before it has marked the roots of an index that it drops; the client that finishes the drop marks them.
/// Whatever a handle does first after that, it says so.
#[test]
fn every_handle_learns_of_a_drop_that_another_client_finishes() {
    for kind in shipped() {
        World::memory(2, 32 << 20, Delivery::Immediate).run(async move |ctx| {
            let member = ctx.join(&ctx.pool(&PoolOptions::default()).await).await;
            let session = &member.session;
            let config = kind.smallest();
            let index = AnyIndex::create(session, "a", &config).await.expect("an index");
            let keys: Vec<_> = (0..20u64).map(u64::to_le_bytes).collect();
            let many: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
            for key in &keys {
                index.insert(key, b"value").await.expect("an insert");
            }
            let open = async || AnyIndex::open(session, "a").await.expect("the index");
            let (of_many, of_one, of_walk, of_audit) = (open().await, open().await, open().await, open().await);
            for index in [&of_many, &of_one, &of_walk, &of_audit] {
                assert!(index.get_many(&many).await.expect("gets").iter().all(Option::is_some));
            }
            let info = catalog::find(session.pool(), &member.span(), "a").await.expect("the index");
            catalog::begin_drop(session, &member.span(), &info).await.expect("a drop");
            assert_eq!(AnyIndex::finish_drops(session).await, Ok(1));
            session.maintain().await.expect("another epoch");
            for key in &many {
                assert_eq!(index.get(key).await, Err(IndexError::Dropped), "{}: get", config.kind());
                assert_eq!(
                    of_one.get_many(&[key]).await,
                    Err(IndexError::Dropped),
                    "{}: get_many of one",
                    config.kind()
                );
            }
            assert_eq!(of_many.get_many(&many).await, Err(IndexError::Dropped), "{}: get_many", config.kind());
            let visited = of_walk.visit(async |_: &[u8], _| Ok(()), &mut Damage::fail).await;
            assert_eq!(visited, Err(IndexError::Dropped), "{}: a walk", config.kind());
            let mut audit = Audit::begin(session, &member.span()).await.expect("an audit");
            let audited = of_audit.audit(&mut audit, false).await.map(drop);
            assert_eq!(audited, Err(IndexError::Dropped), "{}: an audit", config.kind());
        });
    }
}

/// A client keeps an operation open, so the drop fails after two leases. It does not ask for the epoch all the time meanwhile.
#[test]
fn a_drop_that_waits_for_a_client_sends_few_heartbeats() {
    let lease = Duration::from_millis(100);
    World::calm(1, 32 << 20).run(async move |ctx| {
        let pool = ctx.pool(&PoolOptions { lease, ..PoolOptions::default() }).await;
        let (one, two) = (ctx.join(&pool).await, ctx.join(&pool).await);
        let config = shipped().first().expect("a kind").smallest();
        drop(AnyIndex::create(&one.session, "a", &config).await.expect("an index"));
        let pin = two.session.pin(two.span()).expect("a pin");
        let (began, posted) = (one.endpoint.now(), one.endpoint.posted());
        let dropped = Cell::new(None);
        let drops = async { dropped.set(Some(AnyIndex::drop_named(&one.session, "a").await)) };
        let ticks = async {
            while one.endpoint.now() < began + lease * 3 {
                two.client.tick(&two.endpoint).await.expect("a heartbeat");
                two.endpoint.sleep(lease / 8).await;
            }
        };
        join_all([Box::pin(drops) as Pin<Box<dyn Future<Output = ()>>>, Box::pin(ticks)]).await;
        drop(pin);
        let dropped = dropped.take().expect("an end");
        assert!(matches!(dropped, Err(IndexError::Pool(PoolError::Held { .. }))), "{dropped:?}");
        // A heartbeat is two batches.
        let posted = one.endpoint.posted() - posted;
        assert!(posted < 600, "{posted} batches in two leases");
        assert_eq!(AnyIndex::finish_drops(&one.session).await, Ok(1));
    });
}

/// The kinds whose roots have the mark of a drop in word 0, and the place of their index tag.
const TAG_WORDS: [(&str, usize); 5] = [("shard", 3), ("race", 1), ("sephash", 1), ("linear", 4), ("cuckoo", 4)];

/// READs and WRITEs may be torn, so the tag of a dropped index goes, and the mark stays until the memory has another use
/// (docs/bugs/204).
#[test]
fn a_root_that_is_freed_loses_its_tag_and_keeps_the_mark_of_the_drop() {
    for kind in shipped() {
        let config = kind.smallest();
        let Some((_, tag_word)) = TAG_WORDS.into_iter().find(|(kind, _)| *kind == config.kind()) else { continue };
        World::memory(1, 32 << 20, Delivery::Deferred).run(async move |ctx| {
            let pool = ctx.pool(&PoolOptions::default()).await;
            let (one, two) = (ctx.join(&pool).await, ctx.join(&pool).await);
            drop(AnyIndex::create(&one.session, "a", &config).await.expect("an index"));
            let info = catalog::find(two.session.pool(), &two.span(), "a").await.expect("the index");
            let list = two.span().read(info.root, 8).await.expect("the list of roots");
            let root = RemotePtr::from_bits(list.words()[0]);
            let look = async || {
                let words = two.span().read(root, 40).await.expect("a READ");
                (words.words()[0], words.words()[tag_word])
            };
            let (_, tag) = look().await;
            assert_ne!(tag, 0, "{}", config.kind());
            let mut seen = Vec::new();
            let mut dropping = pin!(AnyIndex::drop_named(&one.session, "a"));
            while poll_fn(|cx| Poll::Ready(dropping.as_mut().poll(cx))).await.is_pending() {
                seen.push(look().await);
                two.client.tick(&two.endpoint).await.expect("a heartbeat");
            }
            let marked = seen.iter().position(|(word, _)| *word != seen[0].0).expect("a mark");
            let erased = seen.iter().position(|(_, now)| *now != tag).expect("no tag");
            let mark = seen[marked].0;
            assert!(marked < erased && seen[marked..].iter().all(|(word, _)| *word == mark), "{seen:x?}");
            assert!(seen[erased..].iter().all(|(_, now)| *now == 0), "{}: {seen:x?}", config.kind());
        });
    }
}
