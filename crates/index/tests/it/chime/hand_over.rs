//! What handing a lock over costs in verbs, asserted exactly. `trees::hand_over` tests the rest.

use crate::trees::hand_over::{VALUE, cluster, key, open};
use crate::trees::tests_of;
use farindex_fabric::{Meter, OpKind};
use farindex_index::chime::leaf::{Key, Layout};
use farindex_index::{Chime, Insert, PointIndex, Update};
use farindex_testkit::world::join_all;
use std::collections::BTreeSet;

tests_of! { Chime:
    hand_over::{
        a_crash_at_any_verb_of_a_hand_over_is_recovered,
        a_lock_that_nobody_waits_for_any_more_is_released,
        a_lock_that_was_handed_to_an_operation_that_is_gone_is_handed_on_or_released,
        a_write_that_is_handed_a_lock_does_not_answer_for_an_evicted_client,
        handing_over_is_faster_where_writers_contend,
        no_compute_node_keeps_a_leaf_for_itself,
        operations_do_not_wait_for_ever_behind_one_that_is_not_polled,
        survives_crashes_while_locks_are_handed_over,
        threads_hand_locks_over,
    },
}

/// The positions of a leaf that a key's neighbourhood takes, and the READs that bring them: two where it wraps around.
fn near(key: [u8; 8]) -> (BTreeSet<usize>, u64) {
    let layout = Layout::new(64, 8, 0).expect("a layout");
    let home = layout.home(Key::inline(key));
    (layout.positions(home).collect(), layout.neighbourhood_ranges(home).len() as u64)
}

/// READs for writes to these keys, one after the other, under one lock that is taken for the first of them: the header, and
/// each neighbourhood that is not known. Of the others, how many take a READ.
fn reads(keys: std::ops::Range<u64>) -> (u64, u64) {
    let (mut known, mut reads, mut unknown) = (BTreeSet::new(), 1, 0);
    for i in keys.clone() {
        let (near, pieces) = near(key(i));
        if !near.is_subset(&known) {
            reads += pieces;
            unknown += u64::from(i > keys.start);
            known.extend(near);
        }
    }
    (reads, unknown)
}

/// Seven writers of one leaf: the lock is taken, handed over four times, released, taken again, and handed over once.
/// A writer that is handed the lock takes one round trip: it WRITEs value and state, and READs what the next one needs.
#[test]
fn writers_of_one_compute_node_take_the_lock_once_for_five() {
    for (hand_over, seed) in [(true, 1), (true, 2), (true, 3), (false, 1)] {
        let cost = cluster::<Chime>(seed, hand_over).run(async |session| {
            let index = open::<Chime>(&session).await;
            let before: Meter = session.endpoint().meter();
            let writers = (0..7).map(async |i| assert_eq!(index.update(&key(i), VALUE).await, Ok(Update::Updated)));
            join_all(writers).await;
            for i in 0..7 {
                assert_eq!(index.get(&key(i)).await.expect("a lookup").as_deref(), Some(VALUE));
            }
            session.endpoint().meter() - before
        });
        let (update, more) = (cost.of(OpKind::Update), cost.of(OpKind::Maintenance));
        assert_eq!(update.ops, 7);
        let verbs = [update.total.round_trips, update.total.reads, update.total.writes, update.total.cas];
        if hand_over {
            let reads = reads(0..5).0 + reads(5..7).0;
            assert_eq!(verbs, [2 + 4 + 2 + 1, reads, 2 + 7, 2 * 3]);
            assert_eq!(more.total.round_trips, 0);
        } else {
            // All but the first find the lock held, and clear their intents.
            assert!(verbs[3] + more.total.cas >= 7 * 3 + 6, "{verbs:?} and {more:?}");
        }
    }
}

/// A write that changes nothing hands the lock over without any verb. So the next one READs its neighbourhood, if nobody
/// has.
#[test]
fn a_write_without_effect_costs_at_most_a_read_under_a_lock_that_was_handed_over() {
    let cost = cluster::<Chime>(1, true).run(async |session| {
        let index = open::<Chime>(&session).await;
        let before: Meter = session.endpoint().meter();
        let writers = (0..5).map(async |i| assert_eq!(index.insert(&key(i), VALUE).await, Ok(Insert::Exists)));
        join_all(writers).await;
        session.endpoint().meter() - before
    });
    let insert = cost.of(OpKind::Insert);
    let verbs = [insert.total.round_trips, insert.total.reads, insert.total.writes, insert.total.cas];
    let (reads, unknown) = reads(0..5);
    assert_eq!(verbs, [2 + unknown, reads, 1, 3]);
}
