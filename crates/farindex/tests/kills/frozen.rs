//! A process that is stopped past its lease, at random moments, and goes on: no acknowledged write is lost, and
//! nothing that it does afterwards harms others. Where other clients may end it, they do. Where they may not, they are
//! refused what it holds, with an error that names the holder, and it counts the lease that it missed.
//!
//! `FARINDEX_FREEZES=100` stops as often; a few times unless set.

use super::{File, KEYS, Ledger, assert_sound, draw, file, first_line, key, number, pool, small_shard, start};
use farindex::{Error, IndexConfig, IndexError, Pool, PoolError};
use farindex_fabric::ShmFabric;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LEASE: Duration = Duration::from_millis(200);
/// What nobody may wait for: two leases, and what a busy machine adds.
const TOO_LONG: Duration = Duration::from_secs(10);

fn rounds() -> u64 {
    std::env::var("FARINDEX_FREEZES").map_or(3, |freezes| freezes.parse().expect("FARINDEX_FREEZES: a number"))
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id() as i32).expect("a process")
}

/// Stops it, and waits until no thread of it runs.
fn stop(child: &Child) {
    kill_process(pid(child), Signal::STOP).expect("SIGSTOP");
    let (_, status) = waitpid(Some(pid(child)), WaitOptions::UNTRACED).expect("waiting").expect("it has stopped");
    assert!(status.stopped(), "{status:?}");
}

/// Was it refused because of what this process holds?
fn is_refused(error: &Error, child: &Child) -> bool {
    let (Error::Index(IndexError::Locked { holder, .. }) | Error::Pool(PoolError::Held { holder, .. })) = error else {
        return false;
    };
    holder.contains(&format!("process {}", child.id()))
}

/// The client that works while the other one is frozen.
struct Survivor {
    session: farindex::Session,
    index: farindex::Index,
    mine: u64,
    /// Does its index stand that comes and goes?
    made: bool,
    refused: u64,
    longest: Duration,
}

impl Survivor {
    fn of(pool: &Pool) -> Self {
        let session = pool.session().expect("a session");
        let index = session.open_index("demo").expect("the index");
        Survivor { session, index, mine: 0, made: false, refused: 0, longest: Duration::ZERO }
    }

    /// Nothing takes too long; whatever fails, fails because of the frozen one.
    fn done<T>(&mut self, child: &Child, began: Instant, result: Result<T, Error>) -> bool {
        self.longest = self.longest.max(began.elapsed());
        assert!(self.longest < TOO_LONG, "somebody waited {:?}", self.longest);
        match result {
            Ok(_) => true,
            Err(error) if is_refused(&error, child) => {
                self.refused += 1;
                false
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// A few operations: on a key of its own, on one of the other's, and on the catalog.
    fn work(&mut self, child: &Child) {
        let (began, next) = (Instant::now(), self.mine + 1);
        let written = self.index.upsert(key("mine", next), format!("{next}"));
        if self.done(child, began, written) {
            self.mine = next;
        }
        let began = Instant::now();
        let read = self.index.get(key("child", next));
        self.done(child, began, read);
        let began = Instant::now();
        if self.made {
            let dropped = match self.session.drop_index("mine") {
                // Refused half-way: it is hidden, and what is left of it is dropped by a repair.
                Err(Error::Pool(PoolError::NoSuchIndex(_))) => Ok(()),
                other => other,
            };
            self.made = !self.done(child, began, dropped);
        } else {
            let made = self.session.create_index("mine", IndexConfig::default()).map(drop);
            self.made = self.done(child, began, made);
        }
        std::thread::sleep(Duration::from_micros(200));
    }

    /// Everything of its own is there.
    fn check(&self) {
        for i in self.mine.saturating_sub(KEYS) + 1..=self.mine {
            assert_eq!(self.index.get(key("mine", i)).expect("no error").map(|value| number(&value)), Some(i));
        }
    }
}

/// Reads all that a process tells, to its end.
fn listen(mut lines: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut output = String::new();
        let _ = lines.read_to_string(&mut output);
        output
    })
}

#[test]
fn a_process_that_was_frozen_past_its_lease_goes_on_and_is_told() {
    let file = file("frozen");
    let pool = pool(&file.url(), Some(256 << 20), LEASE, &small_shard());
    let mut survivor = Survivor::of(&pool);
    let mut child = start(&file.url(), 1, true);
    let (first, lines) = first_line(&mut child);
    let output = listen(lines);
    let (mut state, mut frozen) = (0x0123_4567_89AB_CDEFu64, 0);
    // Until it was stopped with a lock in its hands at least once.
    while frozen < rounds() || survivor.refused == 0 {
        assert!(frozen < rounds() + 100, "it never held a lock");
        std::thread::sleep(Duration::from_micros(draw(&mut state, 20_000)));
        stop(&child);
        let since = Instant::now();
        while since.elapsed() < LEASE * 2 {
            survivor.work(&child);
        }
        kill_process(pid(&child), Signal::CONT).expect("SIGCONT");
        frozen += 1;
        if frozen.is_multiple_of(20) {
            // Drops that were refused half-way, before the catalog is full of them.
            survivor.session.repair().expect("a repair");
        }
    }
    // It is alive and well, and leaves of its own accord.
    std::thread::sleep(LEASE);
    drop(child.stdin.take());
    let status = child.wait().expect("its end");
    let output = first + &output.join().expect("a listener");
    assert!(status.success(), "{status}: {}", output.lines().last().unwrap_or_default());
    let missed_leases = output.lines().find_map(|line| line.strip_prefix("missed_leases ")).expect("it tells");
    let missed_leases: u64 = missed_leases.parse().expect("a number");
    assert!(missed_leases >= frozen, "it counted {missed_leases} of {frozen} missed leases");
    let mut ledger = Ledger::default();
    ledger.settle(&survivor.index, 1, &output, true);
    survivor.check();
    let Survivor { session, refused, longest, .. } = survivor;
    assert_sound(&session);
    let acknowledged = ledger.acknowledged;
    println!(
        "{frozen} freezes, {missed_leases} missed leases counted, {acknowledged} acknowledged writes; {refused} operations of the survivor \
         refused, none after more than {longest:?}"
    );
}

/// The same pool for a process that may end others.
fn as_judge(file: &File) -> Pool {
    let fabric = ShmFabric::open(std::slice::from_ref(&file.0)).expect("the pool's file").allow_kill(true);
    Pool::attach(Arc::new(fabric)).expect("the pool")
}

#[test]
fn a_process_that_is_frozen_past_its_lease_is_ended_where_that_is_allowed() {
    let file = file("ended");
    drop(pool(&file.url(), Some(256 << 20), LEASE, &small_shard()));
    let judge = as_judge(&file);
    let mut survivor = Survivor::of(&judge);
    let (mut ledger, mut state) = (Ledger::default(), 0x0FED_CBA9_8765_4321u64);
    for round in 1..=rounds() {
        let mut child = start(&file.url(), round, false);
        let (first, lines) = first_line(&mut child);
        let output = listen(lines);
        std::thread::sleep(Duration::from_micros(draw(&mut state, 20_000)));
        stop(&child);
        let since = Instant::now();
        // It has retired memory and stands in the way of the epoch, if nothing else.
        let status = loop {
            survivor.work(&child);
            if let Some(status) = child.try_wait().expect("waiting") {
                break status;
            }
            assert!(since.elapsed() < TOO_LONG, "it was not ended");
        };
        assert_eq!(status.signal(), Some(Signal::KILL.as_raw()), "{status}");
        assert!(since.elapsed() >= LEASE / 2, "it was ended after {:?}, within its lease", since.elapsed());
        ledger.settle(&survivor.index, round, &(first + &output.join().expect("a listener")), false);
        survivor.check();
    }
    let Survivor { session, refused, longest, .. } = survivor;
    assert_eq!(refused, 0, "nobody is refused what a process held that could be ended");
    assert_sound(&session);
    let acknowledged = ledger.acknowledged;
    println!("{} ended, {acknowledged} acknowledged writes; nobody waited longer than {longest:?}", rounds());
}
