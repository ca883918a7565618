//! The catalog, intents, and what a damaged descriptor does.

use crate::common::{CHUNK, Live, Member, NODE, Rig, Rng, Shuffle};
use farindex_fabric::memory::Delivery;
use farindex_fabric::{Executor, OpKind, RemotePtr};
use farindex_pool::audit::Audit;
use farindex_pool::catalog::KindTag;
use farindex_pool::layout::{CatalogEntry, HOME, MAX_CONFIG_LEN, header, header_word};
use farindex_pool::{Intent, Lock, PoolError, Session, catalog, intent};
use std::cell::RefCell;
use std::rc::Rc;

const CONFIG: [u8; 64] = [7; 64];
const KIND: KindTag = KindTag { kind: 3, version: 1, config_version: 4 };

async fn add(session: &Session, name: &str) -> Result<catalog::IndexInfo, PoolError> {
    let span = session.span(OpKind::Other);
    let uid = catalog::new_uid(&span, 0).await?;
    catalog::add(session, &span, name, uid, KIND, RemotePtr::new(NODE, 4096), &CONFIG).await
}

async fn drop_index(session: &Session, name: &str) -> Result<(), PoolError> {
    let span = session.span(OpKind::Other);
    let info = catalog::begin_drop(session, &span, name).await?;
    catalog::end_drop(session, &span, &info).await
}

fn names(member: &Member) -> Vec<String> {
    let session = member.session();
    let span = session.span(OpKind::Other);
    let all = member.run(catalog::list(session.pool(), &span)).expect("listed");
    all.into_iter().map(|info| info.name).collect()
}

#[test]
fn indexes_come_and_go() {
    let rig = Rig::new(8);
    let member = rig.join();
    let session = member.session();
    let span = session.span(OpKind::Other);
    let added = member.run(add(&session, "users")).expect("added");
    member.run(add(&session, "größe")).expect("added");
    assert_eq!(member.run(catalog::find(&rig.pool, &span, "users")), Ok(added.clone()));
    assert_eq!((added.uid, added.kind, added.version, added.config_version), (1, 3, 1, 4));
    let again = member.run(add(&session, "users")).expect_err("refused");
    assert_eq!(again.to_string(), "the pool has an index named \"users\" already");
    let absent = member.run(catalog::find(&rig.pool, &span, "user")).expect_err("absent");
    assert_eq!(absent.to_string(), "the pool has no index named \"user\"; `farindex index list` shows those it has");

    let dropping = member.run(catalog::begin_drop(&session, &span, "users")).expect("begun");
    assert!(dropping.dropping);
    assert!(matches!(member.run(catalog::find(&rig.pool, &span, "users")), Err(PoolError::NoSuchIndex(_))));
    let second = member.run(add(&session, "users")).expect("the name is free at once");
    member.run(catalog::end_drop(&session, &span, &dropping)).expect("ended");
    member.run(catalog::end_drop(&session, &span, &dropping)).expect("nothing left to do");
    assert_eq!(member.run(catalog::find(&rig.pool, &span, "users")), Ok(second.clone()));
    assert!(second.uid > added.uid);
    drop((span, session));
    assert_eq!(names(&member), ["größe", "users"]);
}

#[test]
fn bad_names_and_a_full_catalog() {
    let rig = Rig::new(8);
    let member = rig.join();
    let session = member.session();
    let long = "x".repeat(73);
    for name in ["", "a\nb", "\0", &long] {
        let error = member.run(add(&session, name)).expect_err("refused").to_string();
        assert_eq!(
            error,
            format!("{name:?} is not a valid index name: it takes 1 to 72 bytes without control characters")
        );
    }
    member.run(add(&session, &long[1..])).expect("72 bytes fit");
    for i in 1..64 {
        member.run(add(&session, &format!("index {i}"))).expect("fits");
    }
    let full = member.run(add(&session, "one more")).expect_err("refused");
    assert_eq!(full.to_string(), "the catalog is full: a pool holds at most 64 indexes");
    member.run(drop_index(&session, "index 40")).expect("dropped");
    member.run(add(&session, "one more")).expect("fits now");
}

#[test]
fn of_two_clients_that_add_one_name_one_wins() {
    for seed in 0..40 {
        let rig = Rig::new(8);
        let members: Vec<_> = (0..3).map(|_| rig.join_with(Delivery::Deferred)).collect();
        let endpoints = members.iter().map(|member| member.endpoint.clone()).collect();
        let driver = Shuffle { endpoints, rng: RefCell::new(Rng::new(seed)) };
        let executor = Executor::new();
        let tasks: Vec<_> = members
            .iter()
            .flat_map(|member| [member.session(), member.session()])
            .map(|session| executor.spawn(async move { add(&session, "users").await.is_ok() }))
            .collect();
        let won = executor.block_on(&driver, async {
            let mut won = 0;
            for task in tasks {
                won += usize::from(task.await);
            }
            won
        });
        assert_eq!(won, 1, "seed {seed}");
        assert_eq!(names(&members[0]), ["users"]);
        assert_eq!(rig.peek(header_word(HOME, header::CATALOG_LOCK), 1), [0]);
    }
}

/// Somebody lists while others add and drop: never a false alarm.
#[test]
fn a_changing_catalog_is_not_called_damaged() {
    let rig = Rig::new(8);
    std::thread::scope(|scope| {
        let writer = rig.clone();
        scope.spawn(move || {
            let member = writer.join();
            let session = member.session();
            for _ in 0..300 {
                member.run(add(&session, "here and gone")).expect("added");
                member.run(drop_index(&session, "here and gone")).expect("dropped");
            }
        });
        let member = rig.join();
        for _ in 0..300 {
            assert!(names(&member).len() <= 1);
        }
    });
}

#[test]
fn a_damaged_entry_is_reported_and_hides_no_other() {
    let rig = Rig::new(8);
    let member = rig.join();
    let session = member.session();
    let span = session.span(OpKind::Other);
    member.run(add(&session, "first")).expect("added");
    member.run(add(&session, "second")).expect("added");
    let entry = rig.pool.geometry(HOME).entry(0);
    let whole = rig.peek(entry, 64);
    let mut rng = Rng::new(9);
    for word in 0..64 {
        rig.poke(entry.add(word * 8), &[rng.next() | 4]);
        let error = member.run(catalog::list(&rig.pool, &span)).expect_err("reported");
        assert!(matches!(error, PoolError::Corrupt { at, .. } if at == entry), "{error}");
        assert!(matches!(member.run(catalog::find(&rig.pool, &span, "first")), Err(PoolError::Corrupt { .. })));
        member.run(catalog::find(&rig.pool, &span, "second")).expect("untouched");
        rig.poke(entry, &whole);
    }
    member.run(catalog::list(&rig.pool, &span)).expect("whole again");
}

#[test]
fn catalog_stores_settings_of_any_length_up_to_its_limit() {
    let rig = Rig::new(8);
    let member = rig.join();
    let session = member.session();
    let span = session.span(OpKind::Other);
    let store = |len: usize| {
        let config: Vec<u8> = (0..len).map(|i| i as u8).collect();
        let uid = member.run(catalog::new_uid(&span, 0)).expect("a number");
        let name = format!("with {len} bytes");
        let at = RemotePtr::new(NODE, 4096);
        member.run(catalog::add(&session, &span, &name, uid, KIND, at, &config)).map(|info| (info, config))
    };
    for len in [0, 1, 63, 64, 255, MAX_CONFIG_LEN] {
        let (added, config) = store(len).expect("added");
        let found = member.run(catalog::find(&rig.pool, &span, &added.name)).expect("found");
        assert_eq!((found.config_of(4), found.config_version), (Ok(config.as_slice()), 4));
        assert_eq!(found, added);
    }
    let long = store(MAX_CONFIG_LEN + 1).expect_err("refused").to_string();
    assert_eq!(long, "the settings of index \"with 257 bytes\" take 257 bytes; the catalog has room for 256");
}

#[test]
fn settings_of_another_version_are_refused() {
    let rig = Rig::new(8);
    let member = rig.join();
    let session = member.session();
    let info = member.run(add(&session, "users")).expect("added");
    let error = info.config_of(5).expect_err("another version");
    assert_eq!(
        error.to_string(),
        "index \"users\" has settings of version 4, this program reads version 5; use the farindex release that wrote \
         it, or dump and reload"
    );
}

/// Entries whose checksum is right, and whose lengths or state are not possible.
#[test]
fn an_entry_with_impossible_fields_is_reported() {
    let rig = Rig::new(8);
    let member = rig.join();
    let session = member.session();
    let span = session.span(OpKind::Other);
    member.run(add(&session, "users")).expect("added");
    let at = rig.pool.geometry(HOME).entry(0);
    let words: [u64; 64] = rig.peek(at, 64).try_into().expect("64 words");
    let whole: CatalogEntry = zerocopy::transmute!(words);
    let bad: [(fn(&mut CatalogEntry), &str); 5] = [
        (|entry| entry.config_len = MAX_CONFIG_LEN as u32 + 1, "the settings in a catalog entry are longer"),
        (|entry| entry.config_len = u32::MAX, "the settings in a catalog entry are longer"),
        (|entry| entry.name_len = 73, "no readable name"),
        (|entry| entry.name[0] = 0xFF, "no readable name"),
        (|entry| entry.state = 3, "an unknown state"),
    ];
    for (change, what) in bad {
        let mut entry = whole;
        change(&mut entry);
        entry.checksum = entry.expected_checksum();
        let words: [u64; 64] = zerocopy::transmute!(entry);
        rig.poke(at, &words);
        let error = member.run(catalog::list(&rig.pool, &span)).expect_err("reported").to_string();
        assert!(error.contains(what), "{error}");
    }
}

/// Random bytes with a right checksum: an index or an error, never a panic.
#[test]
fn random_entries_are_decoded_or_reported() {
    let rig = Rig::new(8);
    let member = rig.join();
    let session = member.session();
    let span = session.span(OpKind::Other);
    let at = rig.pool.geometry(HOME).entry(0);
    let mut rng = Rng::new(11);
    let (mut decoded, mut reported) = (0, 0);
    for _ in 0..500 {
        let mut words: [u64; 64] = std::array::from_fn(|_| rng.next() << 11 ^ rng.next());
        words[0] = 1 + rng.below(2);
        words[6] = rng.below(90) | rng.below(300) << 32;
        // ASCII, so that some names are readable.
        words[8..17].iter_mut().for_each(|word| *word &= 0x7F7F_7F7F_7F7F_7F7F);
        let mut entry: CatalogEntry = zerocopy::transmute!(words);
        entry.checksum = entry.expected_checksum();
        let words: [u64; 64] = zerocopy::transmute!(entry);
        rig.poke(at, &words);
        match member.run(catalog::list(&rig.pool, &span)) {
            Ok(all) => {
                assert_eq!(all[0].config.len(), entry.config_len as usize);
                decoded += 1;
            }
            Err(PoolError::Corrupt { .. }) => reported += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(decoded > 100 && reported > 100, "{decoded} decoded, {reported} reported");
}

#[test]
fn a_held_catalog_names_its_holder() {
    let rig = Rig::new(8);
    let (member, other) = (rig.join(), rig.join());
    let session = member.session();
    let at = header_word(HOME, header::CATALOG_LOCK);
    let hint = "if that client has crashed, wait until its lease has expired and try again";
    // Nobody has declared it: damage.
    rig.poke(at, &[other.client.slot() + 1]);
    let error = member.run(add(&session, "late")).expect_err("held");
    let holder = "an unknown client";
    assert_eq!(error.to_string(), format!("the catalog has been locked for longer than a lease by {holder}; {hint}"));
    // Its own, left by an operation that was cancelled.
    rig.poke(at, &[0]);
    let cell = member.run(session.intent_cell(HOME)).expect("free");
    let span = session.span(OpKind::Other);
    let mut batch = span.batch();
    cell.declare(&mut batch, &Intent { index: 0, lock: Lock { at, mask: u64::MAX }, what: [0; 4] });
    batch.cas(at, 0, member.client.slot() + 1);
    member.run(batch.post()).expect("taken");
    drop(cell);
    member.run(add(&session, "late")).expect("taken over");
    assert_eq!(rig.peek(at, 1), [0]);
}

fn intent(lock: u64) -> Intent {
    Intent { index: 5, lock: Lock { at: RemotePtr::new(NODE, lock), mask: 1 }, what: [1, 2, 3, 4] }
}

#[test]
fn intents_stand_from_before_the_lock_until_after_it() {
    let rig = Rig::new(8);
    let (member, witness) = (rig.join(), rig.join());
    let (session, watching) = (member.session(), witness.session());
    let span = session.span(OpKind::Other);
    let lock = rig.pool.geometry(NODE).chunk(NODE, 0);
    let who = || {
        let span = watching.span(OpKind::Other);
        let text = witness.run(intent::holders(&watching, &span, lock)).expect("read");
        (text, span.cost().round_trips)
    };
    assert_eq!(who(), ("an unknown client".to_owned(), 2));
    let cell = member.run(session.intent_cell(NODE)).expect("free");
    for _ in 0..3 {
        let mut batch = span.batch();
        cell.declare(&mut batch, &intent(lock.offset()));
        batch.cas(lock, 0, 1);
        member.run(batch.post()).expect("locked");
        assert_eq!(who().0, format!("client 0 (process {})", std::process::id()));
        let found = witness.run(intent::intents(&watching, &watching.span(OpKind::Other), NODE)).expect("read");
        assert_eq!(
            found.iter().map(|found| (found.slot, found.intent)).collect::<Vec<_>>(),
            [(0, intent(lock.offset()))]
        );
        let mut batch = span.batch();
        batch.cas(lock, 1, 0);
        cell.clear(&mut batch);
        member.run(batch.post()).expect("released");
        assert_eq!(who().0, "an unknown client");
    }
}

#[test]
fn a_late_clearing_does_not_touch_a_later_intent() {
    let rig = Rig::new(8);
    let member = rig.join_with(Delivery::Deferred);
    let session = member.session();
    let span = session.span(OpKind::Other);
    let cell = member.run(session.intent_cell(NODE)).expect("free");
    let mut declared = span.batch();
    cell.declare(&mut declared, &intent(4096));
    member.run(declared.post()).expect("posted");
    let mut late = span.batch();
    cell.clear(&mut late);
    let mut again = span.batch();
    cell.declare(&mut again, &intent(8192));
    member.run(again.post()).expect("posted");
    member.run(late.post()).expect("lands late");
    let found = member.run(intent::intents(&session, &span, NODE)).expect("read");
    assert_eq!(found.iter().map(|found| found.intent).collect::<Vec<_>>(), [intent(8192)]);
}

#[test]
fn cells_run_out_wait_and_come_back() {
    let rig = Rig::new(8);
    let member = rig.join();
    let session = member.session();
    let span = session.span(OpKind::Other);
    // One is left with its intent: it is not used again before that is cleared.
    let left = member.run(session.intent_cell(NODE)).expect("free");
    let mut batch = span.batch();
    left.declare(&mut batch, &intent(4096));
    member.run(batch.post()).expect("posted");
    drop(left);
    let mut cells: Vec<_> = (0..15).map(|_| member.run(session.intent_cell(NODE)).expect("free")).collect();
    assert_eq!(member.run(intent::intents(&session, &span, NODE)).expect("read").len(), 1);
    let error = member.run(session.intent_cell(NODE)).err().expect("all are taken").to_string();
    assert!(error.starts_with("every intent cell of this client on memory node 0 has been locked"), "{error}");
    let executor = Executor::new();
    let waiter = Rc::new(member.session());
    let waiting = executor.spawn({
        let waiter = Rc::clone(&waiter);
        async move { waiter.intent_cell(NODE).await.is_ok() }
    });
    executor.run_ready();
    assert!(!waiting.is_finished());
    cells.pop();
    assert!(executor.block_on(&member.endpoint, waiting));
    cells.push(member.run(session.intent_cell(NODE)).expect("the one that came back"));
    // A late clearing, or whoever claimed the lock.
    let at = rig.pool.geometry(NODE).intent(NODE, 0, 0);
    let word = rig.peek(at, 1)[0];
    rig.poke(at, &[word & !1]);
    member.run(session.intent_cell(NODE)).expect("the one that was left");
    assert!(member.run(session.intent_cell(farindex_fabric::NodeId::new(9))).is_err());
}

/// Descriptors and counters may hold anything: errors, perhaps less memory; no panic, no overlap, no end of the world.
#[test]
fn damaged_descriptors_do_no_harm() {
    for seed in 0..150 {
        let rig = Rig::new(10);
        let member = rig.join();
        let session = member.session();
        let mut rng = Rng::new(seed);
        let mut objects = Vec::new();
        for i in 0..40 {
            let bytes = [64, 1000, 3000, 2 * CHUNK][i % 4];
            objects.extend(member.alloc(&session, bytes).map(|ptr| (ptr, bytes)));
        }
        let geometry = rig.pool.geometry(NODE);
        for _ in 0..=rng.below(4) {
            let random = rng.next() << rng.below(12) | rng.next();
            let at = match rng.below(3) {
                0 => header_word(NODE, header::CURSOR + 8 * rng.below(2)),
                1 => header_word(NODE, header::RETURNED + 8 * rng.below(36)),
                _ => geometry.descriptor(NODE, rng.below(10)).add(8 * rng.below(24)),
            };
            rig.poke(at, &[random]);
        }
        let span = session.span(OpKind::Other);
        for (ptr, bytes) in objects {
            drop(member.run(session.free(&span, ptr, bytes)));
        }
        drop(member.run(session.flush()));
        let mut live = Live::default();
        for _ in 0..60 {
            if let Ok(ptr) = member.run(session.alloc_now(&span, NODE, 500)) {
                assert!(geometry.chunk_of(ptr).is_some(), "seed {seed}: {ptr}");
                live.add(ptr, 500);
            }
        }
        if let Ok(audit) = member.run(Audit::begin(&session, &span)) {
            drop(member.run(audit.settle(&session, &span)));
        }
    }
}

#[test]
fn what_is_no_object_is_not_taken_in() {
    let rig = Rig::new(8);
    let member = rig.join();
    let session = member.session();
    let span = session.span(OpKind::Other);
    let geometry = rig.pool.geometry(NODE);
    let bad = [
        (RemotePtr::NULL, 64),
        (geometry.chunk(NODE, 0).add(8), 64),
        (geometry.chunk(NODE, 0).add(64), 128),
        // Behind the last whole block of its class.
        (geometry.chunk(NODE, 0).add(CHUNK - CHUNK % 320), 320),
        (geometry.chunk(NODE, 8), 64),
        (geometry.chunk(NODE, 6), 3 * CHUNK),
        (RemotePtr::new(farindex_fabric::NodeId::new(5), 1 << 20), 64),
    ];
    for (ptr, bytes) in bad {
        assert!(member.run(session.free(&span, ptr, bytes)).is_err(), "{bytes} bytes at {ptr}");
        session.discard(ptr, bytes);
        session.pin(session.span(OpKind::Other)).expect("holds").retire(ptr, bytes);
    }
    for _ in 0..5 {
        member.run(session.maintain()).expect("maintained");
    }
    let span_of_two = member.alloc(&session, 2 * CHUNK).expect("fits");
    let error = member.run(session.free(&span, span_of_two, 3 * CHUNK)).expect_err("another size");
    assert!(error.to_string().contains("a span that is no span was freed"), "{error}");
    member.free(&session, span_of_two, 2 * CHUNK);
    assert!(member.run(session.free(&span, span_of_two, 2 * CHUNK)).is_err(), "twice");
    let block = member.alloc(&session, 64).expect("fits");
    member.free(&session, block, 64);
    member.free(&session, block, 64);
    let error = member.run(session.flush()).expect_err("twice");
    assert!(error.to_string().contains("a block was given back twice"), "{error}");
}

#[test]
fn an_audit_finds_what_is_wrong_and_raises_no_false_alarm() {
    let rig = Rig::new(8);
    let worker = rig.join();
    let works = worker.session();
    let kept = worker.alloc(&works, 500).expect("fits");
    let lost = worker.alloc(&works, 500).expect("fits");
    let table = worker.alloc(&works, 2 * CHUNK).expect("fits");
    let checker = rig.join();
    let session = checker.session();
    let span = session.span(OpKind::Other);
    let walk = |audit: &mut Audit| {
        audit.reach(kept, 500, "a block");
        audit.reach(table, 2 * CHUNK, "the table");
    };
    let settle = |audit: Audit| checker.run(audit.settle(&session, &span)).expect("settled");
    let begin = || checker.run(Audit::begin(&session, &span)).expect("begun");
    let undisturbed = |audit: &Audit| checker.run(audit.undisturbed(&session, &span)).expect("asked");

    // With the worker there, nothing is lost; nor if it leaves in between.
    let mut audit = begin();
    walk(&mut audit);
    assert!(!undisturbed(&audit));
    let report = settle(audit);
    assert_eq!((report.alone, report.lost, report.problems.len()), (false, 0, 0));
    let mut audit = begin();
    drop(works);
    let close = worker.client.clone();
    let witness = std::sync::Arc::clone(&checker.client);
    checker.run(async {
        for _ in 0..5 {
            witness.tick(&checker.endpoint).await.expect("ticks");
        }
    });
    worker.run(close.close(&worker.endpoint)).expect("closed");
    walk(&mut audit);
    assert!(!undisturbed(&audit));
    let report = settle(audit);
    assert_eq!((report.alone, report.lost, report.problems.len()), (false, 0, 0));

    let mut audit = begin();
    walk(&mut audit);
    assert!(undisturbed(&audit));
    // Nor if somebody comes and goes in between.
    rig.join().close();
    assert!(!undisturbed(&audit));
    // Nor if a session of the same client does, before the end or after the beginning.
    let audit = begin();
    drop(checker.session());
    assert!(!undisturbed(&audit));
    let other = checker.session();
    let audit = begin();
    drop(other);
    assert!(!undisturbed(&audit));
    let mut audit = begin();
    walk(&mut audit);
    let report = settle(audit);
    assert_eq!((report.alone, report.lost), (true, 1));
    assert_eq!(report.problems, [""; 0]);
    assert_eq!(report.leak().as_deref(), Some("1 objects of 512 bytes are leaked: neither reachable nor free"));
    assert_eq!(report.nodes[0].live_bytes, 512 + 2 * CHUNK);

    let mut audit = begin();
    walk(&mut audit);
    audit.reach(lost, 500, "a block");
    audit.reach(kept, 500, "a block");
    audit.reach(lost.add(512), 500, "a block");
    audit.reach(table.add(CHUNK), 64, "a block");
    audit.reach(rig.pool.geometry(NODE).chunk(NODE, 7), 64, "a block");
    assert_eq!(audit.reached(), 6);
    let report = settle(audit);
    let mut expected = vec![
        format!("the object at {} is marked free", lost.add(512)),
        format!("the object at {} lies in the midst of a span", table.add(CHUNK)),
        format!("the object at {} lies in a chunk that was never taken", rig.pool.geometry(NODE).chunk(NODE, 7)),
        format!("a block at {kept} is reached twice"),
    ];
    let mut problems = report.problems;
    expected.sort();
    problems.sort();
    assert_eq!(problems, expected);
}
