//! Several gateways on one pool.

use super::{Client, Value, expect, gateway, pool, settings};
use farindex::Pool;
use farindex::lower::fabric::{Executor, Fabric, MemoryFabric, NodeId, OpKind};
use farindex_check::{Call, ClientLog, Limits, Outcome, Recorder, Stamps, Verdict, check};
use farindex_gateway::{Gateway, Settings};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Two gateways with two threads each, on one pool.
fn two() -> [Gateway; 2] {
    let shared = pool();
    [(); 2].map(|()| gateway(&shared, Settings { threads: 2, ..settings() }))
}

/// Runs `work` in a thread for each of so many clients, which are divided among the gateways.
fn clients<T: Send>(gateways: &[Gateway], count: usize, work: impl Fn(usize, Client) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..count)
            .map(|i| {
                let client = Client::connect(gateways[i % gateways.len()].address());
                scope.spawn(move || work(i, client))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

#[test]
fn no_increment_is_lost() {
    let gateways = two();
    let results = clients(&gateways, 6, |_, mut c| {
        (0..400)
            .map(|_| {
                c.words("HINCRBY hash field 1").integer();
                c.words("ZINCRBY sorted 1 member");
                c.words("APPEND text x").integer();
                c.words("INCR counter").integer()
            })
            .collect::<Vec<_>>()
    });
    let mut all = results.concat();
    all.sort_unstable();
    assert!(all.iter().copied().eq(1..=2_400), "each increment returns a number of its own");
    let mut c = Client::connect(gateways[1].address());
    expect(&mut c, "GET counter", "2400");
    expect(&mut c, "HGET hash field", "2400");
    expect(&mut c, "ZSCORE sorted member", "2400");
    expect(&mut c, "STRLEN text", 2_400);
    expect(&mut c, "ZRANGEBYSCORE sorted -inf +inf WITHSCORES", ["member", "2400"]);
}

/// Members that move all the time: each is shown by a range exactly once when they rest, and none is lost.
#[test]
fn members_of_sorted_sets_are_neither_lost_nor_doubled() {
    let gateways = two();
    clients(&gateways, 4, |i, mut c| {
        for round in 0..600usize {
            let (score, member) = ((round * 7 + i) % 13, (round * (i + 1)) % 20);
            match round % 5 {
                4 => c.words(&format!("ZREM z m{member}")),
                3 => c.words(&format!("ZADD z INCR {score} m{member}")),
                _ => c.words(&format!("ZADD z {score} m{member}")),
            };
            c.words("ZRANGEBYSCORE z 3 9");
        }
    });
    let mut c = Client::connect(gateways[0].address());
    let by_score = c.words("ZRANGE z 0 -1 WITHSCORES").array();
    let shown: BTreeMap<_, _> = by_score.chunks(2).map(|pair| (pair[0].text(), pair[1].text())).collect();
    assert_eq!(shown.len() * 2, by_score.len(), "no member is shown twice");
    for member in 0..20 {
        let score = c.words(&format!("ZSCORE z m{member}"));
        let score = if score == Value::Null { None } else { Some(score.text()) };
        assert_eq!(shown.get(&format!("m{member}")), score.as_ref(), "m{member}");
    }
    expect(&mut c, "ZCARD z", shown.len() as i64);
}

/// One of several SETs with NX wins, and a lock that is released is free.
#[test]
fn a_lock_has_one_holder() {
    let gateways = two();
    let held = AtomicBool::new(false);
    let taken: usize = clients(&gateways, 4, |i, mut c| {
        let mut taken = 0;
        for _ in 0..400 {
            if c.words(&format!("SET lock {i} NX PX 60000")) == "+OK".into() {
                assert!(!held.swap(true, Ordering::SeqCst), "two holders");
                expect(&mut c, "GET lock", i.to_string().as_str());
                held.store(false, Ordering::SeqCst);
                expect(&mut c, "DEL lock", 1);
                taken += 1;
            }
        }
        taken
    })
    .into_iter()
    .sum();
    assert!(taken > 0);
}

/// Does what is drawn, and records it.
fn recorded(log: &mut ClientLog, stamps: &Stamps, c: &mut Client, choice: u64, key: &str, value: &str) {
    let bytes = |text: &str| text.as_bytes().to_vec();
    let of = |reply: Value, yes: &Value, then: Outcome, other: Outcome| if reply == *yes { then } else { other };
    let (ok, one) = (Value::from("+OK"), Value::from(1));
    let call = match choice {
        0 => Call::Upsert { key: bytes(key), value: bytes(value) },
        1 => Call::Insert { key: bytes(key), value: bytes(value) },
        2 => Call::Update { key: bytes(key), value: bytes(value) },
        3 => Call::Remove { key: bytes(key) },
        _ => Call::Get { key: bytes(key) },
    };
    let ticket = log.invoke(call, stamps.tick());
    let outcome = match choice {
        0 => of(c.words(&format!("SET {key} {value}")), &ok, Outcome::Written, Outcome::Absent),
        1 => of(c.words(&format!("SET {key} {value} NX")), &ok, Outcome::Inserted, Outcome::Exists),
        2 => of(c.words(&format!("SET {key} {value} XX")), &ok, Outcome::Updated, Outcome::Absent),
        3 => of(c.words(&format!("DEL {key}")), &one, Outcome::Removed, Outcome::Absent),
        4 => match c.words(&format!("MGET {key}")).array().remove(0) {
            Value::Null => Outcome::Value(None),
            found => Outcome::Value(Some(bytes(&found.text()))),
        },
        _ => match c.words(&format!("GET {key}")) {
            Value::Null => Outcome::Value(None),
            found => Outcome::Value(Some(bytes(&found.text()))),
        },
    };
    log.complete(ticket, stamps.tick(), outcome);
}

#[test]
fn histories_through_two_gateways_are_linearizable() {
    let rounds: u64 = std::env::var("FARINDEX_GATEWAY_HISTORIES").map_or(1, |rounds| rounds.parse().expect("a number"));
    let gateways = two();
    for round in 0..rounds {
        let (recorder, stamps) = (Recorder::new(), Stamps::new());
        clients(&gateways, 6, |i, mut c| {
            let mut log = recorder.client(i as u64);
            let mut state = 0x9E37_79B9_7F4A_7C15u64 ^ (i as u64 + 1) << 32 ^ round;
            for step in 0..400 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let (key, value) = (format!("{round}-{}", state >> 8 & 3), format!("{i}-{step}"));
                recorded(&mut log, &stamps, &mut c, state >> 20 & 7, &key, &value);
            }
        });
        let history = recorder.finish().expect("all logs are closed");
        let report = check(&history, &Limits::default());
        assert!(matches!(report.verdict, Verdict::Ok), "{report:?}");
    }
}

/// Other clients of the pool evict a gateway: the commands that notice it get an error that says so, and the gateway
/// registers again. Its clients stay connected, nothing hangs, and what was acknowledged is there.
#[test]
fn an_evicted_gateway_registers_again() {
    let fabric: Arc<dyn Fabric> = Arc::new(MemoryFabric::new(1, 64 << 20).expect("memory"));
    let mine =
        Pool::builder().lease(std::time::Duration::from_millis(200)).create_on(Arc::clone(&fabric)).expect("a pool");
    let session = mine.session().expect("a session");
    let me = *session.raw().client().identity();
    let attached = Arc::clone(&fabric);
    let open = move || Pool::attach(Arc::clone(&attached));
    let gateway = Gateway::start(open, Settings { threads: 2, ..settings() }).expect("a gateway");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|i| {
                let (mut c, stop) = (Client::connect(gateway.address()), &stop);
                scope.spawn(move || {
                    let (mut acknowledged, mut refused) = (0u64, 0);
                    while !stop.load(Ordering::SeqCst) {
                        match c.words(&format!("SET k{i} {}", acknowledged + 1)) {
                            reply if reply == "+OK".into() => acknowledged += 1,
                            reply => {
                                assert!(reply.error().contains("this gateway was evicted"), "{reply:?}");
                                refused += 1;
                            }
                        }
                    }
                    let found: u64 = c.words(&format!("GET k{i}")).text().parse().expect("a number");
                    assert!(found == acknowledged || refused > 0 && found == acknowledged + 1);
                    (acknowledged, refused)
                })
            })
            .collect();
        let endpoint = fabric.connect(&fabric.new_identity()).expect("a connection");
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(50));
            let others = session.clients().expect("clients");
            let victim = others.iter().map(|client| client.identity).find(|identity| *identity != me);
            let span = endpoint.span(OpKind::Other);
            let revoked = span.revoke(NodeId::new(0), victim.expect("the gateway"));
            Executor::new().block_on(&endpoint, revoked).expect("revoked");
            // Its slot is freed as well, or the next round would find it.
            std::thread::sleep(std::time::Duration::from_millis(300));
            session.repair().expect("a repair");
        }
        stop.store(true, Ordering::SeqCst);
        let results: Vec<(u64, u64)> = threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
        assert!(results.iter().map(|(_, refused)| refused).sum::<u64>() > 0, "nobody noticed: {results:?}");
    });
    gateway.stop().expect("it has not failed");
}
