//! SHARD's audit is the judge of most other tests: here each thing that it looks for is wrong once, and it says so.

use farindex_fabric::memory::Delivery;
use farindex_fabric::{OpKind, RemotePtr, Span};
use farindex_index::audit::Damage;
use farindex_index::shard::bucket::Level;
use farindex_index::shard::slot::{Entry, META, Slot, Stamp, freeze};
use farindex_index::{IndexError, PointIndex, PoolIndex, Shard, shard};
use farindex_pool::audit::Audit;
use farindex_pool::{PoolOptions, catalog};
use farindex_testkit::suite::colliding;
use farindex_testkit::world::World;

/// The smallest table.
fn smallest() -> shard::Config {
    shard::Config { initial_bits: 0, ..Default::default() }
}

async fn word(span: &Span, at: RemotePtr) -> u64 {
    span.read(at, 8).await.unwrap().words()[0]
}

async fn put(span: &Span, at: RemotePtr, word: u64) {
    let mut batch = span.batch();
    batch.write_words(at, &[word]);
    batch.post().await.unwrap();
}

async fn problems(index: &Shard, alone: bool) -> Vec<String> {
    index.audit(&mut Audit::default(), alone).await.unwrap().problems
}

/// Puts this word there for as long as it takes to look: what the audit says, with others at work and without.
async fn with(index: &Shard, at: RemotePtr, damage: u64) -> [Vec<String>; 2] {
    let span = index.session().span(OpKind::Other);
    let before = word(&span, at).await;
    put(&span, at, damage).await;
    let said = [problems(index, false).await, problems(index, true).await];
    put(&span, at, before).await;
    assert_eq!(problems(index, true).await, [""; 0], "all is well again");
    said
}

/// The problems that say so.
fn says(said: &[String], what: &str) -> bool {
    said.iter().any(|problem| problem.contains(what))
}

#[test]
fn the_audit_tells_what_is_wrong() {
    World::memory(1, 16 << 20, Delivery::Immediate).run(async |ctx| {
        let member = ctx.join(&ctx.pool(&PoolOptions::default()).await).await;
        let config = shard::Config { initial_bits: 1, threshold: 1.0, ..smallest() };
        let index = Shard::create(&member.session, "a", &config).await.unwrap();
        let span = member.span();
        // All in bucket 1: level 1 is full, level 2 too, and level 3 has more than its slot.
        let keys = colliding(6, None, 90);
        for key in &keys {
            index.insert(key, b"value").await.unwrap();
        }
        let report = index.audit(&mut Audit::default(), true).await.unwrap();
        let figures = ["level1_entries", "level2_entries", "level3_entries"].map(|level| report.figure(level));
        assert_eq!((figures[0], figures.iter().sum::<u64>(), report.entries), (64, 90, 90));
        assert_eq!(
            ["level1_slots", "buckets", "buckets_to_split", "dead_slots"].map(|it| report.figure(it)),
            [128, 4, 0, 0]
        );
        let geometry = index.tables()[0].geometry();
        let full = (0..2).map(|bucket| geometry.bucket(Level::One, bucket));
        let mut firsts = Vec::new();
        for at in full {
            firsts.push((at, word(&span, at).await));
        }
        let (mine, empty) = match Slot::decode(firsts[0].1) {
            Slot::Live(_) => (firsts[0].0, firsts[1].0),
            _ => (firsts[1].0, firsts[0].0),
        };
        let mut thirds = Vec::new();
        for bucket in 0..2 {
            let at = geometry.third(bucket);
            if let Slot::Link(node) = Slot::decode(word(&span, at).await) {
                thirds.push((at, node));
            }
        }
        let (_, node) = thirds[0];
        let mut second = None;
        for bucket in 0..2 {
            let at = geometry.bucket(Level::Two, bucket);
            if matches!(Slot::decode(word(&span, at).await), Slot::Live(_)) {
                second = Some(at);
            }
        }
        let second = second.expect("entries in level 2");
        let free = Stamp::of_pin(0);
        for (what, at) in [("level 1", mine), ("level 2", second), ("level 3", node)] {
            let at = at.add(16);
            let old = word(&span, at).await;
            let Slot::Live(entry) = Slot::decode(old) else { panic!("{what}: {:?}", Slot::decode(old)) };
            // Problems whether other clients work or not.
            let far = RemotePtr::new(entry.ptr.node(), entry.ptr.offset() + 64);
            let sid = Entry { sid: entry.sid ^ 5, ..entry };
            for (how, damage, problem) in [
                ("another's fingerprint", Slot::Live(Entry { fp: entry.fp ^ 1, ..entry }), "does not fit the block"),
                ("another length", Slot::Live(Entry { len: entry.len + 1, ..entry }), "does not fit the block"),
                ("a free block", Slot::Live(Entry { ptr: far.add(1 << 16), ..entry }), "a wrong checksum"),
            ] {
                let said = with(&index, at, damage.over(old)).await;
                assert!(said.iter().all(|said| says(said, problem)), "{what}, {how}: {said:?}");
            }
            let said = with(&index, at, Slot::Live(sid).over(old)).await;
            assert_eq!(says(&said[1], "where no lookup finds it"), what != "level 3", "{what}: {said:?}");
            let said = with(&index, at, Slot::Dead(0, free).over(old) | 0xF << 52).await;
            assert!(said.iter().all(|said| says(said, "holds 0x")), "{what}: {said:?}");
            // What others may be at.
            for (how, damage, problem) in [
                ("a frozen slot", freeze(old), "an unfinished split"),
                ("a barrier", Slot::Barrier(0, free).over(old), "an unfinished split"),
            ] {
                let said = with(&index, at, damage).await;
                assert!(said[0].is_empty() && said[1].len() == 1 && says(&said[1], problem), "{what}, {how}: {said:?}");
            }
            if what != "level 3" {
                let said = with(&index, at, old & META).await;
                assert!(said[0].is_empty() && says(&said[1], "was never written"), "{what}: {said:?}");
                let lock = at.add(0).offset() - 16;
                let lock = RemotePtr::new(at.node(), lock);
                let said = with(&index, lock, word(&span, lock).await | META).await;
                assert!(said[0].is_empty() && said[1].len() == 1 && says(&said[1], "is locked"), "{what}: {said:?}");
            }
            // A second slot with the same entry, in the empty bucket: it is there twice, and one of them is misplaced.
            let said = with(&index, empty.add(16), Slot::Live(entry).over(word(&span, empty.add(16)).await)).await;
            assert!(says(&said[0], "where no lookup finds it") && !says(&said[0], "the same key"), "{what}: {said:?}");
            assert!(says(&said[1], "the same key"), "{what}: {said:?}");
        }
        recycled_in_part(&index, &span, empty).await;
        // A walk reports a damaged block.
        let Slot::Live(entry) = Slot::decode(word(&span, mine.add(16)).await) else { panic!("no entry") };
        let value = entry.ptr.add(16);
        let old = word(&span, value).await;
        put(&span, value, old ^ 1 << 33).await;
        assert!(says(&problems(&index, false).await, "a wrong checksum"));
        let walked = index.visit(async |_, _| Ok(()), &mut Damage::fail).await;
        assert!(matches!(walked, Err(IndexError::Pool(_))), "{walked:?}");
        put(&span, value, old).await;
        assert_eq!(index.visit(async |_, _| Ok(()), &mut Damage::fail).await, Ok(90));
    });
}

/// A recycling uses all dead slots that it may use; one that it has left out would be fresh in no order.
async fn recycled_in_part(index: &Shard, span: &Span, at: RemotePtr) {
    let [first, second] = [at.add(80), at.add(88)];
    let before = [word(span, first).await, word(span, second).await];
    put(span, first, Slot::Fresh(0, Stamp::of_pin(9)).over(before[0])).await;
    for (since, left) in [(6, true), (7, false)] {
        put(span, second, Slot::Dead(0, Stamp::of_pin(since)).over(before[1])).await;
        let said = [problems(index, false).await, problems(index, true).await];
        assert_eq!((said[0].len(), says(&said[1], "left out")), (0, left), "{said:?}");
        assert_eq!(index.audit(&mut Audit::default(), true).await.unwrap().figure("dead_slots"), 1);
    }
    put(span, first, before[0]).await;
    put(span, second, before[1]).await;
}

/// An entry that an audit cannot follow may lead to memory that it has not reached: nothing is reclaimed.
#[test]
fn an_audit_with_a_problem_reclaims_nothing() {
    World::memory(1, 16 << 20, Delivery::Immediate).run(async |ctx| {
        let member = ctx.join(&ctx.pool(&PoolOptions::default()).await).await;
        let index = Shard::create(&member.session, "a", &smallest()).await.unwrap();
        let span = member.span();
        index.insert(b"key", b"value").await.unwrap();
        let bucket = index.tables()[0].geometry().bucket(Level::One, 0);
        let (mut at, mut found) = (bucket, word(&span, bucket).await);
        while !matches!(Slot::decode(found), Slot::Live(_)) {
            at = at.add(8);
            found = word(&span, at).await;
        }
        let Slot::Live(entry) = Slot::decode(found) else { return };
        let astray = Slot::Live(Entry { ptr: entry.ptr.add(1 << 16), ..entry }).over(found);
        for (slot, reclaims) in [(astray, false), (found, true)] {
            put(&span, at, slot).await;
            member.session.flush().await.unwrap();
            let mut audit = Audit::begin(&member.session, &span).await.unwrap();
            let info = catalog::find(member.session.pool(), &span, "a").await.unwrap();
            audit.reach(info.root, 8, "a list of roots");
            let sound = index.audit(&mut audit, true).await.unwrap().problems.is_empty();
            let reclaimed = audit.reclaim(&member.session, &span).await.unwrap();
            assert_eq!((sound, reclaimed.alone, reclaimed.bytes), (reclaims, reclaims, 0));
        }
        assert_eq!(index.get(b"key").await.unwrap().as_deref(), Some(&b"value"[..]));
    });
}
