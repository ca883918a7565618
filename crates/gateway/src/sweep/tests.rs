//! The rules Z2 to Z5 of sorted sets at the ends of their times, which are shorter here than in a gateway.

use super::*;
use crate::Settings;
use crate::gateway::Pools;
use crate::store::sorted::Periods;
use farindex::Pool;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

/// What has settled has done so for much longer than a thread of a busy machine is kept from running.
const SHORT: Periods = Periods {
    patience: Duration::from_millis(20),
    settle: Duration::from_millis(250),
    orphan_age: Duration::from_millis(400),
    stall: Duration::ZERO,
    late: Duration::ZERO,
};

fn pool() -> Pool {
    Pool::in_memory(64 << 20).expect("a pool")
}

/// What a gateway with these times has, but for its listener and its workers.
fn shared(pool: &Pool, periods: Periods) -> Shared {
    let pool = pool.clone();
    let pools = Pools::new(Box::new(move || Ok(pool.clone()))).expect("a pool");
    let address = "127.0.0.1:0".parse().expect("an address");
    let settings = Settings { sweep_pause: Duration::from_millis(5), ..Settings::new(address) };
    let mut shared = Shared::new(address, settings, pools);
    shared.periods = periods;
    shared
}

/// Sweeps by one gateway, one at a time.
struct Sweeper {
    shared: Shared,
    store: Store,
    session: farindex::Session,
    watch: (Watch, Watch),
}

impl Sweeper {
    fn new(pool: &Pool) -> Self {
        let shared = shared(pool, SHORT);
        let session = pool.session().expect("a session");
        let store = Store::open(&session, &shared.names, SHORT).expect("indexes");
        Sweeper { shared, store, session, watch: (Watch(HashMap::new()), Watch(HashMap::new())) }
    }
    /// Runs work on its session.
    fn run<T>(&self, work: impl Future<Output = Result<T, Fail>>) -> T {
        self.session.block_on(work).expect("far memory is there")
    }
    fn sweep(&mut self) {
        let Sweeper { shared, store, session, watch: (empty, stale) } = self;
        let sweep = async { Sweep { store, shared, turn: Instant::now() }.all(empty, stale).await };
        session.block_on(sweep).expect("far memory is there");
    }
    /// Sweeps until there is nothing left to do, and says how long after `since` that was.
    fn until(&mut self, since: Instant, done: impl Fn(&Self) -> bool) -> Duration {
        while !done(self) {
            assert!(since.elapsed() < Duration::from_secs(20), "it is still there");
            std::thread::sleep(Duration::from_millis(5));
            self.sweep();
        }
        since.elapsed()
    }
    /// Adds a member, as ZADD does; again where a busy machine took longer than a command may take.
    fn add(&self, key: &[u8], member: &[u8], score: f64) {
        let add = || {
            self.session.block_on(async {
                let (set, since) = self.store.set_to_write(key, true).await?.expect("it creates the set");
                set.put(&self.store, member, since, |_| Ok(Some(score))).await
            })
        };
        while let Err(why) = add() {
            assert!(gave_up(&why), "{why}");
        }
    }
    fn set(&self, key: &[u8]) -> Option<Set> {
        self.run(self.store.set(key))
    }
    fn has_record(&self, key: &[u8]) -> bool {
        self.run(self.store.raw(key)).is_some()
    }
    /// Entries in the ordered index.
    fn entries(&self) -> usize {
        let all = (Bound::Unbounded, Bound::Unbounded);
        self.run(async { Ok(self.store.ordered().scan(all, 10_000).await?) }).len()
    }
    fn shown(&self, key: &[u8]) -> Vec<Vec<u8>> {
        self.run(async {
            let Some(set) = self.store.set(key).await? else { return Ok(Vec::new()) };
            let bounds = set.score_bounds(Bound::Unbounded, Bound::Unbounded);
            let (members, _) = set.page_by_score(&self.store, &bounds, PAGE).await?;
            Ok(members.into_iter().map(|member| member.name).collect())
        })
    }
}

/// Did a command end without an effect, because its patience had ended?
fn gave_up(why: &Fail) -> bool {
    why.to_string().contains("longer than 20ms and was given up")
}

#[test]
fn an_empty_set_is_removed_when_it_has_been_empty_and_marked_for_long_enough() {
    let mut one = Sweeper::new(&pool());
    one.add(b"z", b"a", 1.0);
    one.sweep();
    let set = one.set(b"z").expect("it has a member");
    assert_eq!(set.mark, None, "a set with a member is not marked");
    one.run(set.remove(&one.store, b"a"));
    one.sweep();
    let marked = Instant::now();
    let mark = one.set(b"z").expect("its record").mark;
    assert!(mark.is_some(), "an empty set is marked");
    one.sweep();
    assert_eq!(one.set(b"z").expect("its record").mark, mark);
    let after = one.until(marked, |one| !one.has_record(b"z"));
    assert!(after >= SHORT.settle, "removed after {after:?}");
    let after = one.until(marked, |one| one.entries() == 0);
    assert!(after >= SHORT.settle, "nothing of it is left after {after:?}");
}

#[test]
fn a_command_that_adds_a_member_takes_the_mark_away() {
    let (mut one, mut other) = {
        let pool = pool();
        (Sweeper::new(&pool), Sweeper::new(&pool))
    };
    one.add(b"z", b"a", 1.0);
    one.run(one.set(b"z").expect("it").remove(&one.store, b"a"));
    // Both gateways have seen the same mark, and wait.
    one.sweep();
    other.sweep();
    std::thread::sleep(SHORT.settle);
    one.add(b"z", b"b", 2.0);
    assert_eq!(one.set(b"z").expect("its record").mark, None);
    one.sweep();
    other.sweep();
    assert_eq!(one.shown(b"z"), [b"b"]);
    // Empty again: a new mark, from which on it settles anew.
    one.run(one.set(b"z").expect("it").remove(&one.store, b"b"));
    let emptied = Instant::now();
    one.sweep();
    other.sweep();
    assert!(one.has_record(b"z"));
    let after = other.until(emptied, |other| !other.has_record(b"z"));
    assert!(after >= SHORT.settle, "removed after {after:?}");
}

#[test]
fn a_command_gives_up_when_its_patience_ends_and_has_no_effect() {
    let one = Sweeper::new(&pool());
    one.add(b"z", b"a", 1.0);
    let (set, since) = one.run(one.store.set_to_write(b"z", true)).expect("it is there");
    std::thread::sleep(SHORT.patience);
    for member in [b"a", b"b"] {
        let put = set.put(&one.store, member, since, |_| Ok(Some(7.0)));
        let refused = one.session.block_on(put).expect_err("it took too long");
        assert!(gave_up(&refused), "{refused}");
    }
    assert_eq!(one.run(set.score(&one.store, b"a")), Some(1.0));
    assert_eq!(one.run(set.score(&one.store, b"b")), None);
    assert_eq!(one.shown(b"z"), [b"a"]);
}

/// As if its write had waited for a lock of a client that has crashed.
#[test]
fn a_command_whose_write_is_late_does_not_acknowledge_it_and_leaves_a_sound_set() {
    let mut one = Sweeper::new(&pool());
    one.add(b"z", b"a", 0.0);
    one.store.periods.late = 2 * SHORT.settle;
    let (mut late, mut score) = (0, 0.0);
    while late < 2 {
        score += 1.0;
        let put = async {
            let (set, since) = one.store.set_to_write(b"z", false).await?.expect("it is there");
            set.put(&one.store, b"a", since, |_| Ok(Some(score))).await
        };
        if let Err(why) = one.session.block_on(put) {
            if gave_up(&why) {
                continue;
            }
            assert!(why.to_string().contains("longer than 230ms, and may have taken effect or not"), "{why}");
            late += 1;
        }
        let set = one.set(b"z").expect("it");
        assert_eq!(one.run(set.score(&one.store, b"a")), Some(score));
        assert_eq!(one.shown(b"z"), [b"a"]);
    }
    // A record that was written late is removed again.
    let late = loop {
        match one.session.block_on(one.store.set_to_write(b"new", true)) {
            Ok(_) => drop(one.run(async { Ok(one.store.hash().remove(b"new").await?) })),
            Err(why) if gave_up(&why) => {}
            Err(why) => break why.to_string(),
        }
    };
    assert!(late.contains("may have taken effect or not"), "{late}");
    assert!(!one.has_record(b"new"));
    // What they have left says nothing, and goes.
    one.store.periods.late = Duration::ZERO;
    one.until(Instant::now(), |one| one.entries() == 3);
    assert_eq!(one.shown(b"z"), [b"a"]);
}

#[test]
fn a_score_entry_that_says_nothing_is_removed_when_it_has_settled() {
    let mut one = Sweeper::new(&pool());
    one.add(b"z", b"a", 1.0);
    let generation = one.set(b"z").expect("it").generation;
    let entry = |score: f64| sorted::score_key(generation, score, b"a");
    // What a ZADD leaves that was killed before the member entry has changed.
    let write = |one: &Sweeper, nonce: u64| {
        one.run(async { Ok(one.store.ordered().upsert(&entry(2.0), &nonce.to_le_bytes()).await?) });
    };
    let there =
        |one: &Sweeper, score: f64| one.run(async { Ok(one.store.ordered().get(&entry(score)).await?) }).is_some();
    write(&one, 1);
    one.sweep();
    std::thread::sleep(SHORT.settle / 2);
    // Another command writes it: it may be about to give the member this score.
    write(&one, 2);
    let written = Instant::now();
    one.sweep();
    let after = one.until(written, |one| !there(one, 2.0));
    assert!(after >= SHORT.settle, "removed after {after:?}");
    assert!(there(&one, 1.0), "the entry that says the score stays");
    assert_eq!(one.shared.counters.swept.get(), 1);
    // An entry that says nothing at first, and says the score when it has settled.
    write(&one, 3);
    one.sweep();
    std::thread::sleep(SHORT.settle);
    one.add(b"z", b"a", 2.0);
    one.sweep();
    one.sweep();
    assert!(there(&one, 2.0));
    assert_eq!(one.shown(b"z"), [b"a"]);
}

#[test]
fn entries_of_a_generation_without_a_record_are_removed_at_their_age() {
    let mut one = Sweeper::new(&pool());
    one.add(b"kept", b"a", 1.0);
    let drawn = Instant::now();
    one.add(b"lost", b"a", 1.0);
    one.add(b"lost", b"b", 2.0);
    // The record is overwritten by a gateway that is killed before it removes the entries.
    one.run(one.store.put_string(b"lost", b"v", None));
    let entries = one.entries();
    assert_eq!(entries, 3 + 5);
    one.sweep();
    let left = one.entries();
    // A busy machine may take so long to get here.
    assert!(left == entries || drawn.elapsed() >= SHORT.orphan_age, "{left} entries are left, and it is too young");
    let after = one.until(drawn, |one| one.entries() == 3);
    // A generation says in whole milliseconds when it was drawn.
    assert!(after + Duration::from_millis(1) >= SHORT.orphan_age, "removed after {after:?}");
    one.sweep();
    assert_eq!(one.shown(b"kept"), [b"a"], "a generation with a record stays at any age");
    // One whose owner entry was never written, or was removed first.
    let generation = one.set(b"kept").expect("it").generation;
    one.run(async { Ok(one.store.ordered().remove(&sorted::owner_key(generation)).await?) });
    one.run(async { Ok(one.store.hash().remove(b"kept").await?) });
    one.sweep();
    assert_eq!(one.entries(), 0);
}

/// What the threads of a race have seen.
#[derive(Debug, Default)]
struct Seen {
    added: u64,
    given_up: u64,
    /// Members that may have been added or not.
    unknown: u64,
    /// Generations of sets that members were added to.
    generations: HashSet<Generation>,
    /// Members that were acknowledged and not there afterwards.
    lost: Vec<String>,
}

/// A client that adds members of its own and removes them: nobody else touches them, so it knows what must be there. It ends
/// at this time, or when one of the clients has lost a member, which decides the race.
fn client(id: u64, pool: &Pool, periods: Periods, until: Instant, lost: &AtomicBool) -> Seen {
    let session = pool.session().expect("a session");
    let store = Store::open(&session, &crate::Names::default(), periods).expect("indexes");
    let mut seen = Seen::default();
    let work = async {
        while Instant::now() < until && !lost.load(Ordering::Relaxed) {
            let (key, member) = (format!("z{}", store.nonce() % KEYS), format!("m{id}"));
            let (key, member) = (key.as_bytes(), member.as_bytes());
            let score = (store.nonce() % 5) as f64;
            // As ZADD: the set is looked up, and then written.
            let added = async {
                let (set, since) = store.set_to_write(key, true).await?.expect("it creates the set");
                set.put(&store, member, since, |_| Ok(Some(score))).await?;
                Ok(set.generation)
            };
            let wanted = match added.await {
                Ok(generation) => {
                    seen.generations.insert(generation);
                    Some(score)
                }
                Err(Fail::Index(error)) => panic!("{error}"),
                Err(why) if why.to_string().contains("may have taken effect or not") => {
                    seen.unknown += 1;
                    if let Some(set) = store.set(key).await? {
                        set.remove(&store, member).await?;
                    }
                    continue;
                }
                Err(_) => None,
            };
            seen.added += u64::from(wanted.is_some());
            seen.given_up += u64::from(wanted.is_none());
            std::thread::sleep(Duration::from_micros(store.nonce() % 20_000));
            let (mut found, mut shown) = (None, false);
            if let Some(set) = store.set(key).await? {
                found = set.score(&store, member).await?;
                let (page, _) =
                    set.page_by_score(&store, &set.score_bounds(Bound::Unbounded, Bound::Unbounded), PAGE).await?;
                shown = page.iter().any(|other| other.name == member);
            }
            if (found, shown) != (wanted, wanted.is_some()) {
                seen.lost.push(format!("{wanted:?} was {found:?}, shown: {shown}"));
                lost.store(true, Ordering::Relaxed);
            }
            if let Some(set) = store.set(key).await? {
                set.remove(&store, member).await?;
            }
            std::thread::sleep(Duration::from_micros(store.nonce() % 60_000));
        }
        Ok::<_, Fail>(())
    };
    session.block_on(work).expect("far memory is there");
    seen
}

/// Keys of a race.
const KEYS: u64 = 10;

/// Clients that add and remove members, among the sweeps of two gateways. Returns what the clients have seen, and how many
/// entries the sweeps have removed.
fn race(clients: Periods, sweeps: Periods, time: Duration) -> (Seen, u64) {
    let (pool, periods) = (pool(), clients);
    let gateways = [(); 2].map(|()| Arc::new(shared(&pool, sweeps)));
    let (until, lost) = (Instant::now() + time, AtomicBool::new(false));
    let mut all = Seen::default();
    std::thread::scope(|scope| {
        for shared in &gateways {
            // No worker hands on what it has dropped: the sweeps find it by themselves.
            scope.spawn(|| run(shared, &std::sync::mpsc::sync_channel(1).1).map_err(|why| shared.fail(why)));
        }
        let clients: Vec<_> = (0..8)
            .map(|id| {
                scope.spawn({
                    let (pool, lost) = (&pool, &lost);
                    move || client(id, pool, periods, until, lost)
                })
            })
            .collect();
        for client in clients {
            let seen = client.join().expect("no panic");
            all.added += seen.added;
            all.given_up += seen.given_up;
            all.unknown += seen.unknown;
            all.generations.extend(seen.generations);
            all.lost.extend(seen.lost);
        }
        // All members are removed: nothing may be left after a while.
        let one = Sweeper::new(&pool);
        let began = Instant::now();
        while one.entries() > 0 || (0..KEYS).any(|key| one.has_record(format!("z{key}").as_bytes())) {
            assert!(began.elapsed() < Duration::from_secs(20), "{} entries are left", one.entries());
            std::thread::sleep(Duration::from_millis(10));
        }
        gateways.iter().for_each(|shared| shared.stop());
    });
    (all, gateways.iter().map(|shared| shared.counters.swept.get()).sum())
}

#[test]
fn sweeps_of_two_gateways_remove_no_member_that_is_being_added() {
    // A third of the commands takes too long, and a quarter of the writes is late.
    let stalled = Periods { stall: Duration::from_millis(30), late: Duration::from_millis(300), ..SHORT };
    let (seen, swept) = race(stalled, SHORT, Duration::from_secs(3));
    assert!(seen.lost.is_empty(), "{seen:?}");
    // Sets were removed and created anew, and what was given up was removed.
    let created = seen.generations.len() as u64;
    let all = created > KEYS && seen.given_up > 0 && seen.unknown > 0 && swept > 0;
    assert!(all, "{created} sets, {swept} entries swept, {seen:?}");
}

/// The race shows a sweep that does not wait, and clients that acknowledge what was late: so the test above can fail.
#[test]
fn the_race_notices_when_a_rule_is_broken() {
    let slow = Periods { stall: Duration::from_millis(30), ..SHORT };
    let (hasty, careless) = (
        Periods { settle: Duration::ZERO, ..SHORT },
        Periods { late: Duration::from_millis(800), settle: Duration::from_secs(60), ..slow },
    );
    for (clients, sweeps) in [(slow, hasty), (careless, SHORT)] {
        // More often on a machine so busy that little happens in the time of one race.
        let noticed = (0..5).any(|_| !race(clients, sweeps, Duration::from_secs(2)).0.lost.is_empty());
        assert!(noticed, "{clients:?}, {sweeps:?}");
    }
}
