//! Seeds that once failed, each with its bug record. Features that were added later are left out, so that each seed draws what it
//! drew when it failed.

use farindex_testkit::test_runs::SHIPPED;
use farindex_testkit::{Feature, Setup, test_run};

/// Runs a seed of a kind as shipped, with what `setup` adds.
fn passes(kind: &str, seed: u64, setup: impl Fn(Setup) -> Setup) {
    passes_as((kind, SHIPPED, false), seed, setup);
}

/// The same behind the lock table.
fn passes_coalesced(kind: &str, seed: u64, setup: impl Fn(Setup) -> Setup) {
    passes_as((kind, SHIPPED, true), seed, setup);
}

fn passes_as((kind, variant, coalesces): (&str, &str, bool), seed: u64, setup: impl Fn(Setup) -> Setup) {
    let test_run = test_run(kind, variant, coalesces).expect("a test run");
    let report = test_run.run_seed(seed, &setup(test_run.setup.clone()));
    assert!(report.is_sound(), "{report}");
}

/// The first features, as many as there were at that time.
fn features(count: usize) -> impl Fn(Setup) -> Setup {
    move |setup| setup.with_first_features(count)
}

fn features_and_crashes(count: usize) -> impl Fn(Setup) -> Setup {
    move |setup| setup.with_crashes().with_first_features(count)
}

/// See docs/bugs/108.
#[test]
fn seeds_of_shard_with_crashes() {
    passes("shard", 9242, Setup::with_crashes);
    passes_coalesced("shard", 11_047, Setup::with_crashes);
}

/// See docs/bugs/150 and 151.
#[test]
fn seeds_of_the_swarm() {
    for (kind, seed) in [("sephash", 13), ("sephash", 22), ("sephash", 27), ("shard", 1057)] {
        passes(kind, seed, features(16));
    }
}

/// The judge took a scan of nothing for a sign that its client was still there (docs/bugs/157).
#[test]
fn a_client_that_was_evicted_may_lose_writes_although_it_scans_nothing_later() {
    passes_as(("dex", "write-back", false), 2767, features_and_crashes(16));
}

/// Three clients crash one after the other, and leases last a second (docs/bugs/161).
#[test]
fn a_seed_in_which_clients_crash_one_after_the_other_is_no_livelock() {
    passes("dex", 139, Setup::with_crashes);
}

/// A client is held up with a lock, and several others wait for it: each fails after two leases (docs/bugs/162).
#[test]
fn many_that_wait_for_a_living_holder_fail() {
    for (kind, seed) in [("sherman", 39), ("sherman", 76), ("chime", 77)] {
        passes(kind, seed, |setup| setup.with(Feature::Holders));
    }
}

/// A client was evicted between the two verbs by which it takes a chunk (docs/bugs/163).
#[test]
fn a_chunk_that_was_taken_before_the_cursor_moved_is_reclaimed() {
    passes("sherman", 914, features_and_crashes(22));
}

/// A client is held up while it changes a leaf that it owns (docs/bugs/164).
#[test]
fn a_leaf_of_a_slow_owner_is_not_called_damaged() {
    passes("dex", 1515, features(22));
}

/// The last client reads a full pool, in which a split finds no memory (docs/bugs/165).
#[test]
fn a_get_needs_no_memory() {
    passes("shard", 3066, features_and_crashes(22));
}

/// A compute node leaves after it has given up waiting for an owner, and the owner accepts what it has proposed
/// (docs/bugs/166).
#[test]
fn a_record_that_a_proposal_names_is_not_freed() {
    passes("dex", 12_467, features(22));
}

/// Seven coroutines wait behind a lock table for an owner that is held up (docs/bugs/167).
#[test]
fn an_operation_may_wait_in_two_queues() {
    passes_coalesced("dex", 7704, features(22));
}

/// A claim took parts of two intents for one (docs/bugs/168).
#[test]
fn an_intent_is_read_whole() {
    passes("sherman", 35_376, features_and_crashes(22));
}

/// Keys are removed and inserted again, and segments are split, while a walk READs a segment (docs/bugs/169 and 170).
#[test]
fn walks_of_race_among_splits() {
    for seed in [14_518, 23_232] {
        passes_coalesced("race", seed, features_and_crashes(22));
    }
}

/// A client is evicted twice. The second time, another one that is about to register in its first slot has not yet
/// overwritten its token there (docs/bugs/171).
#[test]
fn a_token_that_was_left_in_a_slot_is_not_judged() {
    passes_coalesced("shard", 19_191, features_and_crashes(22));
}

/// Several clients crash one after the other, and delay the epoch for longer than one of them may (docs/bugs/172).
#[test]
fn a_write_waits_for_clients_that_crash_one_after_the_other() {
    passes_coalesced("sephash", 24_572, features_and_crashes(22));
    // Verbs take longer than leases: looking at the slot again is no waiting.
    passes("sephash", 3344, features_and_crashes(22));
}

/// A client is held up while it makes the next table, and this one is full (docs/bugs/173).
#[test]
fn an_insert_does_not_wait_for_ever_for_a_larger_table() {
    passes("linear", 17_385, features(22));
}

/// A walk reads level 3 of a bucket that a split is about to make (docs/bugs/174).
#[test]
fn a_walk_visits_level_3_of_a_new_bucket() {
    passes("shard", 10_467, features(22));
}

/// A client that has given a write up has five coroutines, which wait for what it has left (docs/bugs/175).
#[test]
fn a_client_that_gave_a_write_up_goes() {
    passes("shard", 16_337, features_and_crashes(22));
}

/// Two clients remove the separator of one dead leaf, whose memory becomes another leaf meanwhile (docs/bugs/178).
#[test]
fn the_separator_of_another_node_stays() {
    passes_coalesced("chime", 100_462, features(22));
}

/// A dead inner node is the first child of its parent, and the leaves behind it are many (docs/bugs/179).
#[test]
fn operations_pass_a_dead_inner_node() {
    passes("chime", 257, features(22));
}

/// Verbs take up to a lease, and a recovery READs 270 nodes (docs/bugs/180).
#[test]
fn the_time_of_its_own_verbs_is_no_waiting_of_a_recovery() {
    passes("dex", 2350, features(22));
}

/// A dead leaf lies below a dead inner node, and both are first children (docs/bugs/181).
#[test]
fn operations_pass_two_dead_nodes_on_one_way() {
    passes("dex", 5212, features(22));
}

/// The way to a leaf goes by its left neighbour for good, and three writers want that leaf (docs/bugs/182).
#[test]
fn writers_wait_in_few_queues() {
    passes("chime", 1343, features(22));
}

/// A tree is dropped while others write to it (docs/bugs/183).
#[test]
fn writers_learn_that_their_tree_was_dropped() {
    passes("sherman", 4, features(23));
    passes("chime", 15, features(23));
}

/// Operations wait for the answer of another compute node when the index is dropped; in the last two the map has changed more
/// than once since they asked (docs/bugs/183).
#[test]
fn operations_of_dex_learn_of_the_drop_while_they_wait() {
    for seed in [4, 10, 33, 61, 31, 456] {
        passes("dex", seed, features(23));
    }
}

/// Somebody looks a key up after the drop, with leases of two minutes (docs/bugs/183).
#[test]
fn lookups_learn_that_their_tree_was_dropped() {
    passes_coalesced("sherman", 756, features(23));
    // The memory of its value is used by another index (docs/bugs/190).
    passes_coalesced("sherman", 1315, features(23));
}

/// A client crashes while it makes the root lower, and the tree is dropped (docs/bugs/191).
#[test]
fn a_drop_undoes_what_a_crashed_client_has_begun_at_the_root() {
    passes_coalesced("sherman", 1258, features_and_crashes(23));
}

/// The walk of a drop comes to a dead node (docs/bugs/184).
#[test]
fn a_drop_frees_dead_nodes_once() {
    passes("sherman", 54, features(23));
    passes("chime", 117, features(23));
}

/// An operation learns of the drop when it has been handed a lock (docs/bugs/185).
#[test]
fn a_handed_lock_is_not_lost_with_an_operation_that_fails() {
    passes("sherman", 25, features(23));
    passes("sherman", 295, features(23));
}

/// Clients open an index while another one drops it (docs/bugs/193).
#[test]
fn an_index_that_is_being_dropped_is_not_opened() {
    passes("cuckoo", 1750, features(23));
    passes("linear", 3348, features(23));
}

/// An audit of SepHash went on while the index was dropped (docs/bugs/195).
#[test]
fn an_audit_ends_where_its_index_is_dropped() {
    passes("sephash", 912, features(23));
}

/// A slot of SepHash that did not land was behind the window that its own compute node READ (docs/bugs/196).
#[test]
fn a_slot_that_has_not_landed_is_waited_for() {
    passes("sephash", 2030, features(23));
}

/// A client crashed in a split, and another one drops the index (docs/bugs/197).
#[test]
fn a_drop_frees_once_what_a_crashed_split_left_twice() {
    passes("chime", 2206, features_and_crashes(23));
    passes("chime", 12397, features_and_crashes(23));
    passes("shard", 1000, features_and_crashes(23));
    passes_coalesced("shard", 4214, features_and_crashes(23));
}

/// The repair of a region failed because the index had been dropped (docs/bugs/198).
#[test]
fn writers_learn_of_a_drop_while_they_wait_for_a_frozen_entry() {
    passes("cuckoo", 767, features_and_crashes(23));
}

/// A get in a full pool waits for an owner that is held up (docs/bugs/218).
#[test]
fn a_lookup_in_a_full_pool_does_not_wait_for_ever() {
    passes("dex", 130_011_350, features(29));
}

/// Operations look once in a lease at a lock that a cancelled one holds (docs/bugs/220).
#[test]
fn who_can_look_at_a_lock_rarely_fails_in_time() {
    passes("dex", 220_002_695, features(29));
}

/// A heartbeat that gives a partition away is given up, and another map counts before the next one (docs/bugs/223).
#[test]
fn an_owner_learns_of_what_it_has_given_away() {
    passes("dex", 721_007_781, features_and_crashes(30));
}

/// A client leaves while the CAS that clears its intent is in flight (docs/bugs/221).
#[test]
fn a_slot_is_not_freed_while_an_intent_stands() {
    passes("shard", 400_004_529, features(29));
}

/// All intent cells of a slot have intents of clients that had it before (docs/bugs/224).
#[test]
fn a_client_does_not_take_a_slot_without_a_usable_cell() {
    passes("chime", 743_000_734, features(31));
    passes("sherman", 744_001_234, features(31));
}

/// A client is evicted while an operation of it holds a lock, and hands it over when it goes on (docs/bugs/225).
#[test]
fn an_evicted_client_does_not_answer_from_a_leaf_that_it_was_handed() {
    passes("sherman", 802_112_936, features_and_crashes(31));
}

/// A verb of a creation fails, and takes effect all the same (docs/bugs/226).
#[test]
fn a_creation_that_fails_frees_nothing() {
    passes("linear", 1149, features(38));
    passes("dex", 1310, features(38));
    passes("shard", 353, features(38));
}

/// A node is removed while a recovery waits for its lock, and its memory has another use (docs/bugs/227).
#[test]
fn a_recovery_does_not_wait_for_a_node_that_was_removed() {
    passes("sherman", 523, features(34));
}

/// While clients that live try to take a lock, nobody can tell that its holder was evicted (docs/bugs/228).
#[test]
fn a_lock_that_many_want_is_taken_over_in_time() {
    passes("sherman", 825_019_542, features(31));
    // The intents of clients that had only tried left the next client no cell.
    passes("chime", 826_012_854, features_and_crashes(31));
}

/// A batch that nobody awaits keeps a pin while its client drops the index.
#[test]
fn a_drop_waits_for_what_its_own_client_has_in_flight() {
    passes("sephash", 823_006_549, features_and_crashes(31));
}

/// A pool is full, and more separators in a row are missing than a descent went past (docs/bugs/230).
#[test]
fn a_descent_goes_past_many_nodes_whose_separators_are_missing() {
    passes_coalesced("chime", 901_313_235, features_and_crashes(34));
}

/// The judge of walks did not know the words by which an operation says that a lock stays held.
#[test]
fn a_walk_may_meet_a_lock_that_stays_held() {
    passes("shard", 907_016_864, features(34));
    passes("shard", 907_103_874, features_and_crashes(34));
    passes_coalesced("shard", 907_213_114, features(34));
}

/// Clients in turn claim the lock of a crashed one, and wait under it for a lock that another one keeps (docs/bugs/236).
#[test]
fn a_recovery_does_not_wait_under_a_lock_for_a_live_holder() {
    passes("shard", 2_501_115_756, features_and_crashes(37));
}

/// A walk that is stopped for two leases while it waits for an intent cell (docs/bugs/237).
#[test]
fn an_operation_that_was_stopped_waits_for_an_intent_cell_again() {
    passes("shard", 2_700_000_204, features(38));
}

/// Every READ of the client slots takes longer than a lease, and all their owners have crashed (docs/bugs/240).
#[test]
fn a_registration_looks_until_it_can_have_seen_a_lease_expire() {
    passes_coalesced("sephash", 2_781_302_969, features_and_crashes(38));
}

/// A pointer in a cached node leads to a block that is where another node was. The judge of readers took that for a READ of the block.
#[test]
fn a_pointer_in_a_cached_node_may_lead_to_another_object() {
    passes("sherman", 2_760_001_432, features(38));
}

/// Two clients finish the drop of a tree, and the CAS of the second one that marks it is late (docs/bugs/241).
#[test]
fn a_tree_that_is_marked_as_dropped_is_not_marked_again() {
    passes_coalesced("dex", 2_797_201_026, features(38));
}
