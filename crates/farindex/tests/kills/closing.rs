//! The end of a program after another one was killed: soon, at no cost, and without any loss but free memory.

use super::{KEYS, assert_sound, file, first_line, key, number, pool, small_shard, start};
use farindex::Pool;
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

const LEASE: Duration = Duration::from_secs(5);

/// Processor time of this thread.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn closes_soon(url: &str, size: Option<u64>) {
    let pool = pool(url, size, LEASE, &small_shard());
    let session = pool.session().expect("a session");
    let index = session.open_index("demo").expect("the index");
    let mut child = start(url, 1, false);
    drop(first_line(&mut child));
    child.kill().expect("SIGKILL");
    child.wait().expect("its end");
    // What is replaced is retired, and free only when the epoch has moved on.
    for i in 0..2 * KEYS {
        index.upsert(key("mine", i), format!("{i}")).expect("an upsert");
    }
    drop((index, session));
    let (began, before) = (Instant::now(), cpu());
    drop(pool);
    let (took, cost) = (began.elapsed(), cpu() - before);
    assert!(took < Duration::from_secs(2), "closing took {took:?}");
    assert!(cost < Duration::from_millis(300), "closing took {cost:?} of processor time");
    let pool = Pool::open(url).expect("the pool");
    let session = pool.session().expect("a session");
    let index = session.open_index("demo").expect("the index");
    for i in KEYS..2 * KEYS {
        assert_eq!(index.get(key("mine", i)).expect("no error").map(|value| number(&value)), Some(i));
    }
    println!("closing took {took:?} and {cost:?} of processor time; {:?}", assert_sound(&session));
}

#[test]
fn a_pool_closes_soon_after_another_client_was_killed() {
    let file = file("closing");
    closes_soon(&file.url(), Some(64 << 20));
}

/// Where nothing but its lease tells that the other one crashed.
#[cfg(feature = "ucx")]
#[test]
fn a_pool_over_ucx_closes_soon_after_another_client_was_killed() {
    let Some((node, _)) = super::served() else { return };
    closes_soon(&format!("connect:{}", node.addr()), None);
}
