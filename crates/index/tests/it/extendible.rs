//! The extendible directory by itself: growth, races, drops, audits.

use farindex_fabric::memory::Delivery;
use farindex_fabric::{NodeId, OpKind, RemotePtr};
use farindex_index::IndexError;
use farindex_index::audit::Damage;
use farindex_index::extendible::layout::{MAX_DEPTH, suffix};
use farindex_index::extendible::{Directory, Entry, Shape};
use farindex_pool::PoolOptions;
use farindex_testkit::world::{Ctx, Member, World};

const NODE: NodeId = NodeId::new(0);
const SEAL: u64 = 77;
const BOUND: u64 = 1 << 20;

fn entry(i: u64) -> Entry {
    Entry::new(RemotePtr::new(NODE, (i + 1) * 64), i as u16).unwrap()
}

async fn create(member: &Member, shape: Shape) -> RemotePtr {
    let first: Vec<_> = (0..1 << shape.initial_depth).map(entry).collect();
    Directory::create(&member.session, &member.span(), NODE, SEAL, shape, &first).await.unwrap()
}

async fn open(member: &Member, root: RemotePtr) -> Result<Directory, IndexError> {
    let pin = member.session.pin(member.span()).unwrap();
    Directory::open(&pin, root, SEAL, BOUND).await
}

async fn publish(member: &Member, directory: &Directory, suffix: u64) {
    let pin = member.session.pin(member.span()).unwrap();
    let at = directory.ensure(&pin, suffix).await.unwrap().unwrap();
    pin.span().write(at, member.endpoint.buf_from_words(&[entry(suffix).to_bits()])).await.unwrap();
}

#[test]
fn words_are_found_by_who_did_not_see_them_published() {
    World::memory(1, 8 << 20, Delivery::Deferred).run(async |ctx: Ctx| {
        let pool = ctx.pool(&PoolOptions::default()).await;
        let (one, two) = (ctx.join(&pool).await, ctx.join(&pool).await);
        let root = create(&one, Shape { initial_depth: 1 }).await;
        let (here, there) = (open(&one, root).await.unwrap(), open(&two, root).await.unwrap());
        let hash = 0b1_0110_1101_1011;
        assert_eq!(there.find(hash), None);
        assert_eq!(there.look_up(&two.span(), hash, 0, 1).await, Ok(Some((1, entry(1)))));
        assert_eq!(there.find(hash), Some((1, entry(1))));
        // Every segment is split until the hash's own has ten bits.
        for depth in 1..10 {
            let child = suffix(hash, depth) | 1 << depth;
            publish(&one, &here, child).await;
            let held = suffix(hash, depth + 1);
            let found = there.look_up(&two.span(), hash, depth, depth + 1).await.unwrap();
            assert_eq!(found, (held == child).then(|| (child, entry(child))));
        }
        let longest = suffix(hash, 10);
        assert_eq!(there.find(hash), Some((longest, entry(longest))));
        // Another session of the same client has the same copy.
        let again = open(&two, root).await.unwrap();
        assert_eq!(again.find(hash), Some((longest, entry(longest))));
        let costs = |directory: &Directory| directory.cache_bytes();
        assert_eq!(costs(&again), costs(&there));
        let mut all = 0;
        let count = async |suffix, found| {
            assert_eq!(found, entry(suffix));
            all += 1;
            Ok(())
        };
        again.walk(two.session.pool(), &two.span(), count, &mut Damage::fail).await.unwrap();
        assert_eq!(all, 2 + 9);
        drop((again, there, here));
        two.close_while_ticking(&[&one]).await;
    });
}

/// Each segment is split when the walk comes to it, and so after the word before the child's was read. (docs/bugs/075)
#[test]
fn a_walk_meets_what_is_split_off_meanwhile() {
    for initial_depth in 0..5 {
        World::memory(1, 8 << 20, Delivery::Deferred).run(async move |ctx: Ctx| {
            let pool = ctx.pool(&PoolOptions::default()).await;
            let member = ctx.join(&pool).await;
            let root = create(&member, Shape { initial_depth }).await;
            let directory = open(&member, root).await.unwrap();
            let mut visited = Vec::new();
            let visit = async |at: u64, found| {
                assert_eq!(found, entry(at));
                visited.push(at);
                let born = (64 - at.leading_zeros()).max(initial_depth);
                for depth in born..8 {
                    publish(&member, &directory, at | 1 << depth).await;
                }
                Ok(())
            };
            let pool = member.session.pool();
            directory.walk(pool, &member.span(), visit, &mut Damage::fail).await.unwrap();
            assert_eq!(visited, Vec::from_iter(0..256), "from {initial_depth} bits on");
        });
    }
}

#[test]
fn the_loser_of_a_race_for_a_chunk_frees_its_own() {
    World::memory(1, 8 << 20, Delivery::Deferred).run(async |ctx: Ctx| {
        let pool = ctx.pool(&PoolOptions::default()).await;
        let members = [ctx.join(&pool).await, ctx.join(&pool).await, ctx.join(&pool).await];
        let root = create(&members[0], Shape { initial_depth: 0 }).await;
        let directories = farindex_testkit::world::join_all(members.iter().map(|member| open(member, root))).await;
        let places = members.iter().zip(&directories).map(async |(member, directory)| {
            let directory = directory.as_ref().unwrap();
            let pin = member.session.pin(member.span()).unwrap();
            let deepest = directory.ensure(&pin, 1 << 11 | 1).await.unwrap().unwrap();
            assert_eq!(directory.ensure(&pin, 1 << MAX_DEPTH).await, Ok(None));
            deepest
        });
        let places = farindex_testkit::world::join_all(places).await;
        assert!(places.iter().all(|place| *place == places[0]));
        // Chunks in between need not be there.
        let here = directories[0].as_ref().unwrap();
        assert_eq!(here.look_up(&members[0].span(), (1 << 11) - 1, 1, 11).await, Ok(None));
        publish(&members[0], here, 1 << 11 | 1).await;
        let deep = here.look_up(&members[0].span(), 1 << 11 | 1, 0, 12).await.unwrap();
        assert_eq!(deep, Some((1 << 11 | 1, entry(1 << 11 | 1))));
    });
}

#[test]
fn a_dropped_directory_is_known_to_every_later_epoch() {
    World::memory(1, 8 << 20, Delivery::Immediate).run(async |ctx: Ctx| {
        let pool = ctx.pool(&PoolOptions::default()).await;
        let member = ctx.join(&pool).await;
        let root = create(&member, Shape { initial_depth: 2 }).await;
        let directory = open(&member, root).await.unwrap();
        let looks = async || {
            let pin = member.session.pin(member.session.span(OpKind::Get)).unwrap();
            let mut batch = pin.span().batch();
            let guard = directory.guard(&mut batch, pin.epoch());
            let asked = guard.is_some();
            let mut done = batch.post().await.unwrap();
            directory.finish_guard(guard, &mut done).map(|()| asked)
        };
        assert_eq!(looks().await, Ok(false), "the root was read in this epoch");
        member.client.tick(&member.endpoint).await.unwrap();
        assert_eq!(looks().await, Ok(true));
        assert_eq!(looks().await, Ok(false));
        Directory::mark_dropped(&member.span(), root, SEAL + 1).await.unwrap();
        member.client.tick(&member.endpoint).await.unwrap();
        assert_eq!(looks().await, Ok(true), "another index's tag");
        Directory::mark_dropped(&member.span(), root, SEAL).await.unwrap();
        member.client.tick(&member.endpoint).await.unwrap();
        assert_eq!(looks().await, Err(IndexError::Dropped));
        assert_eq!(looks().await, Err(IndexError::Dropped), "and again");
        assert!(open(&member, root).await.is_err());
        directory.free(&member.session, &member.span()).await.unwrap();
        assert!(open(&member, root).await.is_err(), "another's memory");
    });
}
