//! SHARD's shape does not depend on how many coroutines have loaded it.

use farindex_fabric::OpKind;
use farindex_fabric::memory::Delivery;
use farindex_index::{Insert, PointIndex, PoolIndex, Shard, shard};
use farindex_pool::PoolOptions;
use farindex_pool::audit::Audit;
use farindex_testkit::world::{World, join_all};

const KEYS: u64 = 30_000;

/// Large enough for growth to keep up with all inserts that are in flight; what is left is that splits leave dead
/// slots.
fn config() -> shard::Config {
    shard::Config { initial_bits: 8, ..shard::Config::default() }
}

/// Entries of levels 2 and 3, and batches for a hundred gets, after a load by so many coroutines.
fn load(coroutines: u64) -> (u64, u64, u64) {
    let world = World::memory(1, 48 << 20, Delivery::Deferred);
    let result = std::rc::Rc::new(std::cell::Cell::new((0, 0, 0)));
    let report_to = std::rc::Rc::clone(&result);
    world.run(async move |ctx| {
        let member = ctx.join(&ctx.pool(&PoolOptions::default()).await).await;
        let index = &Shard::create(&member.session, "a", &config()).await.unwrap();
        let loads = (0..coroutines).map(|mine| async move {
            for i in (mine..KEYS).step_by(coroutines as usize) {
                assert_eq!(index.insert(&i.to_le_bytes(), &i.to_le_bytes()).await, Ok(Insert::Inserted));
            }
        });
        join_all(loads).await;
        // Once for what is left to be split, and once for what a get takes.
        for _ in 0..2 {
            let before = member.endpoint.meter();
            for i in 0..KEYS {
                assert_eq!(index.get(&i.to_le_bytes()).await.unwrap().as_deref(), Some(&i.to_le_bytes()[..]));
            }
            let cost = *(member.endpoint.meter() - before).of(OpKind::Get);
            let report = index.audit(&mut Audit::default(), true).await.unwrap();
            assert_eq!((report.entries, report.problems.as_slice()), (KEYS, &[][..]));
            let batches = cost.round_trips * 1000 / KEYS;
            report_to.set((report.figure("level2_entries"), report.figure("level3_entries"), batches));
        }
    });
    result.get()
}

#[test]
fn a_table_has_the_same_shape_however_it_was_loaded() {
    let alone = load(1);
    assert_eq!(alone.1, 0, "{alone:?}");
    for coroutines in [16, 256] {
        let (second, third, batches) = load(coroutines);
        println!(
            "{coroutines} coroutines: {second} entries in level 2, {third} in level 3, {batches} batches for 1000 gets"
        );
        println!("one coroutine: {alone:?}");
        assert!(second <= KEYS / 50 && third == 0, "{coroutines}: {second} and {third} entries");
        assert!(batches <= alone.2 + 20, "{coroutines}: {batches} batches for 1000 gets, not {}", alone.2);
    }
}
