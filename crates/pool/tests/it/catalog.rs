//! The catalog: adding, finding and dropping indexes, its lock, and damaged entries.

use crate::common::{Member, NODE, Rig, Rng, Shuffle};
use farindex_fabric::memory::Delivery;
use farindex_fabric::{Driver, Executor, Fabric, OpKind, RemotePtr};
use farindex_pool::catalog::KindTag;
use farindex_pool::layout::{CatalogEntry, ENTRY_READY, HOME, MAX_CONFIG_LEN, entry_state, header, header_word};
use farindex_pool::{Intent, Lock, PoolError, Session, catalog};
use std::cell::RefCell;

const CONFIG: [u8; 64] = [7; 64];
const KIND: KindTag = KindTag { kind: 3, version: 1, config_version: 4 };

async fn add(session: &Session, name: &str) -> Result<catalog::IndexInfo, PoolError> {
    let span = session.span(OpKind::Other);
    let uid = catalog::new_uid(&span, 0).await?;
    catalog::add(session, &span, name, uid, KIND, RemotePtr::new(NODE, 4096), &CONFIG).await
}

async fn drop_index(session: &Session, name: &str) -> Result<(), PoolError> {
    let span = session.span(OpKind::Other);
    let info = catalog::find(session.pool(), &span, name).await?;
    let info = catalog::begin_drop(session, &span, &info).await?;
    catalog::end_drop(session, &span, &info).await
}

fn names(member: &Member) -> Vec<String> {
    let session = member.session();
    let span = session.span(OpKind::Other);
    let all = member.run(catalog::list(session.pool(), &span)).expect("listed");
    all.into_iter().map(|info| info.name).collect()
}

#[test]
fn catalog_adds_finds_and_drops_indexes() {
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

    member.run(catalog::confirm(&session, &span, &added)).expect("there");
    let dropping = member.run(catalog::begin_drop(&session, &span, &added)).expect("begun");
    assert!(dropping.dropping);
    let gone = |done| matches!(done, Err(PoolError::NoSuchIndex(name)) if name == "users");
    assert!(gone(member.run(catalog::confirm(&session, &span, &added))));
    assert!(matches!(member.run(catalog::find(&rig.pool, &span, "users")), Err(PoolError::NoSuchIndex(_))));
    let second = member.run(add(&session, "users")).expect("the name is free at once");
    member.run(catalog::end_drop(&session, &span, &dropping)).expect("ended");
    member.run(catalog::end_drop(&session, &span, &dropping)).expect("nothing left to do");
    assert_eq!(member.run(catalog::find(&rig.pool, &span, "users")), Ok(second.clone()));
    assert!(second.uid > added.uid);
    // Who has found the first one neither opens nor drops the second.
    assert!(gone(member.run(catalog::confirm(&session, &span, &added))));
    assert!(gone(member.run(catalog::begin_drop(&session, &span, &added)).map(drop)));
    member.run(catalog::confirm(&session, &span, &second)).expect("there");
    drop((span, session));
    assert_eq!(names(&member), ["größe", "users"]);
}

#[test]
fn catalog_refuses_bad_names_and_more_than_64_indexes() {
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
fn catalog_gives_a_name_to_one_of_several_racing_clients() {
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

/// A client lists the catalog while another one adds and drops an index.
#[test]
fn catalog_reads_during_changes_report_no_damage() {
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
fn damaged_catalog_entry_is_reported_and_hides_no_other() {
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

/// A READ that tears while an entry gets its next index (N2) may return the new state, and the bytes of the index that has
/// gone.
#[test]
fn entry_with_the_state_of_its_next_index_names_neither() {
    let rig = Rig::new(8);
    let member = rig.join();
    let session = member.session();
    let span = session.span(OpKind::Other);
    let gone = member.run(add(&session, "gone")).expect("added");
    member.run(drop_index(&session, "gone")).expect("dropped");
    let entry = rig.pool.geometry(HOME).entry(0);
    assert_eq!(member.run(catalog::list(&rig.pool, &span)), Ok(vec![]));
    rig.poke(entry, &[entry_state(gone.uid + 1, ENTRY_READY)]);
    let error =
        member.run(catalog::list(&rig.pool, &span)).expect_err("READ again, and reported in the end").to_string();
    assert!(error.contains("has an unknown state, or that of another index"), "{error}");
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
fn catalog_refuses_settings_of_another_version() {
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
fn catalog_entry_with_impossible_fields_is_reported() {
    let rig = Rig::new(8);
    let member = rig.join();
    let session = member.session();
    let span = session.span(OpKind::Other);
    member.run(add(&session, "users")).expect("added");
    let at = rig.pool.geometry(HOME).entry(0);
    let words: [u64; 64] = rig.peek(at, 64).try_into().expect("64 words");
    let whole: CatalogEntry = zerocopy::transmute!(words);
    type Change = fn(&mut CatalogEntry);
    let bad: [(Change, &str); 5] = [
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
fn random_catalog_entries_are_decoded_or_reported() {
    let rig = Rig::new(8);
    let member = rig.join();
    let session = member.session();
    let span = session.span(OpKind::Other);
    let at = rig.pool.geometry(HOME).entry(0);
    let mut rng = Rng::new(11);
    let (mut decoded, mut reported) = (0, 0);
    for _ in 0..500 {
        let mut words: [u64; 64] = std::array::from_fn(|_| rng.next() << 11 ^ rng.next());
        words[0] = entry_state(words[2], 1 + rng.below(2));
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
fn locked_catalog_error_names_the_holder() {
    let rig = Rig::new(8);
    let (member, other) = (rig.join(), rig.join());
    let session = member.session();
    let at = header_word(HOME, header::CATALOG_LOCK);
    let hint = "if that client has crashed, wait until its lease has expired and try again";
    // No intent names the lock: damage.
    rig.poke(at, &[other.client.slot() + 1]);
    let error = member.run(add(&session, "late")).expect_err("held");
    let holder = "an unknown client";
    assert_eq!(error.to_string(), format!("the catalog has been locked for longer than a lease by {holder}; {hint}"));
    // The client's own, left by a cancelled operation.
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

/// An operation has the catalog, and another one of its client waits for it. Then the thread is stopped.
#[test]
fn operation_that_was_stopped_while_it_waited_for_the_catalog_looks_again() {
    let rig = Rig::new(8);
    let (member, late) = (rig.join(), rig.fabric.with_delivery(Delivery::Deferred));
    let late = late.connect(member.client.identity()).expect("connects");
    let (first, second) = (member.client.session(late.clone()), member.session());
    let executor = Executor::new();
    let spawn = |session: Session, name: &'static str| {
        executor.spawn(async move { add(&session, name).await.map(drop).map_err(|error| error.to_string()) })
    };
    let first = spawn(first, "first");
    while rig.peek(header_word(HOME, header::CATALOG_LOCK), 1) == [0] {
        late.progress();
        executor.run_ready();
    }
    let second = spawn(second, "second");
    executor.run_ready();
    std::thread::sleep(rig.pool.lease() * 3);
    let driver = Shuffle { endpoints: vec![late, member.endpoint.clone()], rng: RefCell::new(Rng::new(1)) };
    assert_eq!(executor.block_on(&driver, async { (first.await, second.await) }), (Ok(()), Ok(())));
    assert_eq!(names(&member), ["first", "second"]);
}
