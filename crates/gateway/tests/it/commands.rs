//! What each command replies.

use super::{Client, Value, alone, expect, gateway, pool, settings};
use farindex_gateway::{Password, Settings};
use std::time::Duration;

const WRONG_TYPE: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value";

#[test]
fn strings() {
    let (_gateway, mut c) = alone();
    for (command, reply) in [
        ("SET a 1", Value::from("+OK")),
        ("GET a", "1".into()),
        ("get absent", ().into()),
        ("SET a 2 NX", ().into()),
        ("SET a 2 XX", "+OK".into()),
        ("SET b 1 XX", ().into()),
        ("SET b 1 NX GET", ().into()),
        ("SET b 2 GET", "1".into()),
        ("SET b 2 NX XX", "-ERR syntax error".into()),
        ("SET b 2 EX 0", "-ERR invalid expire time in 'set' command".into()),
        ("SET b 2 EX x", "-ERR value is not an integer or out of range".into()),
        ("SETNX b 3", 0.into()),
        ("SETNX c 3", 1.into()),
        ("GETSET c 4", "3".into()),
        ("GETDEL c", "4".into()),
        ("GETDEL c", ().into()),
        ("APPEND d ab", 2.into()),
        ("APPEND d cd", 4.into()),
        ("STRLEN d", 4.into()),
        ("STRLEN absent", 0.into()),
        ("GETRANGE d 1 -2", "bc".into()),
        ("GETRANGE d 5 9", "".into()),
        ("INCR a", 3.into()),
        ("DECR a", 2.into()),
        ("INCRBY a 40", 42.into()),
        ("DECRBY a 50", (-8).into()),
        ("INCR n", 1.into()),
        ("INCR d", "-ERR value is not an integer or out of range".into()),
        ("INCRBY a x", "-ERR value is not an integer or out of range".into()),
        ("SET big 9223372036854775807", "+OK".into()),
        ("INCR big", "-ERR increment or decrement would overflow".into()),
        ("DECRBY big -9223372036854775808", "-ERR decrement would overflow".into()),
        ("INCRBYFLOAT f 1.5", "1.5".into()),
        ("INCRBYFLOAT f 1.5", "3".into()),
        ("MSET x 1 y 2", "+OK".into()),
        ("MSET x 1 y", "-ERR wrong number of arguments for 'mset' command".into()),
        ("MGET x absent y", vec!["1".into(), ().into(), "2".into()].into()),
        ("EXISTS x y x absent", 3.into()),
        ("TYPE x", "+string".into()),
        ("TYPE absent", "+none".into()),
        ("DEL x y absent", 2.into()),
        ("UNLINK b", 1.into()),
        ("GET", "-ERR wrong number of arguments for 'get' command".into()),
    ] {
        expect(&mut c, command, reply);
    }
    let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    assert_eq!(c.call(&[b"SET", &b"\0\r\n"[..], &bytes]), "+OK".into());
    assert_eq!(c.call(&[b"GET", &b"\0\r\n"[..]]), Value::Bulk(bytes));
    let long = vec![0; 16 << 20];
    assert!(c.call(&[b"SET", &b"k"[..], &long]).error().contains("is longer than the limit of 16777207"));
    let key = vec![0; (64 << 10) + 1];
    assert!(c.call(&[b"SET", &key[..], b"v"]).error().contains("a key of 65537 bytes is longer than the limit"));
    // No such key can exist; others of the same batch are read.
    c.send(&[super::client::encode(&["GET", "f"]), super::client::encode(&[b"GET", &key[..]])].concat());
    assert_eq!((c.reply(), c.reply()), (Some("3".into()), Some(Value::Null)));
}

#[test]
fn expiry() {
    let (_gateway, mut c) = alone();
    expect(&mut c, "SET a v PX 60", "+OK");
    let left = c.words("PTTL a").integer();
    assert!((1..=60).contains(&left), "{left}");
    for (command, reply) in [
        ("SETEX b 100 v", Value::from("+OK")),
        ("TTL b", 100.into()),
        ("SET b w KEEPTTL", "+OK".into()),
        ("TTL b", 100.into()),
        ("APPEND b x", 2.into()),
        ("TTL b", 100.into()),
        ("SET b w", "+OK".into()),
        ("TTL b", (-1).into()),
        ("TTL absent", (-2).into()),
        ("EXPIRE b 50 XX", 0.into()),
        ("EXPIRE b 50 GT", 0.into()),
        ("EXPIRE b 50 NX", 1.into()),
        ("EXPIRE b 40 GT", 0.into()),
        ("EXPIRE b 60 GT", 1.into()),
        ("EXPIRE b 70 LT", 0.into()),
        ("PERSIST b", 1.into()),
        ("PERSIST b", 0.into()),
        ("EXPIRE b 70 NX XX", "-ERR NX and XX, GT or LT options at the same time are not compatible".into()),
        ("GETEX b EX 10", "w".into()),
        ("TTL b", 10.into()),
        ("GETEX b PERSIST", "w".into()),
        ("TTL b", (-1).into()),
        ("EXPIREAT b 4102444800", 1.into()),
        ("EXPIRETIME b", 4_102_444_800.into()),
        ("PEXPIRETIME b", 4_102_444_800_000.into()),
        ("HSET h f v", 1.into()),
        ("EXPIRE h 100", 1.into()),
        ("HSET h f w", 0.into()),
        ("TTL h", 100.into()),
        ("EXPIRE b -1", 1.into()),
        ("EXISTS b", 0.into()),
        ("EXPIRE absent 10", 0.into()),
    ] {
        expect(&mut c, command, reply);
    }
    std::thread::sleep(Duration::from_millis(80));
    expect(&mut c, "GET a", ());
    expect(&mut c, "SET a new NX", "+OK");
    // An expired counter begins anew, without its former expiry.
    expect(&mut c, "SET n 41 PX 1", "+OK");
    std::thread::sleep(Duration::from_millis(5));
    expect(&mut c, "INCR n", 1);
    expect(&mut c, "TTL n", -1);
}

#[test]
fn a_sweep_removes_what_has_expired_and_what_was_dropped() {
    let shared = pool();
    let gateway = gateway(&shared, Settings { sweep_pause: Duration::from_millis(20), ..settings() });
    let mut c = Client::connect(gateway.address());
    for i in 0..500 {
        expect(&mut c, &format!("SET key-{i} v PX 1"), "+OK");
    }
    for i in 0..300 {
        expect(&mut c, &format!("ZADD z {i} member-{i}"), 1);
    }
    expect(&mut c, "SET stays v", "+OK");
    expect(&mut c, "DEL z", 1);
    // Counted behind the gateway's back.
    let session = shared.session().expect("a session");
    let (keys, sorted) = (session.open_index("redis").expect("it"), session.open_index("redis-sorted").expect("it"));
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while keys.iter().count() > 1 || sorted.iter().count() > 0 {
        assert!(std::time::Instant::now() < until, "{} and {} entries", keys.iter().count(), sorted.iter().count());
        std::thread::sleep(Duration::from_millis(20));
    }
    expect(&mut c, "GET stays", "v");
}

#[test]
fn hashes() {
    let (_gateway, mut c) = alone();
    for (command, reply) in [
        ("HSET h a 1 b 2", Value::from(2)),
        ("HSET h a 3 c 4", 1.into()),
        ("HMSET h d 5", "+OK".into()),
        ("HGET h a", "3".into()),
        ("HGET h x", ().into()),
        ("HGET absent x", ().into()),
        ("HMGET h a x d", vec!["3".into(), ().into(), "5".into()].into()),
        ("HGETALL h", ["a", "3", "b", "2", "c", "4", "d", "5"].into()),
        ("HGETALL absent", Value::Array(vec![])),
        ("HKEYS h", ["a", "b", "c", "d"].into()),
        ("HVALS h", ["3", "2", "4", "5"].into()),
        ("HLEN h", 4.into()),
        ("HEXISTS h a", 1.into()),
        ("HEXISTS h x", 0.into()),
        ("HSTRLEN h a", 1.into()),
        ("HSETNX h a 9", 0.into()),
        ("HSETNX h e 9", 1.into()),
        ("HDEL h e x", 1.into()),
        ("HINCRBY h a 39", 42.into()),
        ("HINCRBY h new -1", (-1).into()),
        ("HINCRBYFLOAT h b 0.5", "2.5".into()),
        ("HSET h text t", 1.into()),
        ("HINCRBY h text 1", "-ERR hash value is not an integer".into()),
        ("HSCAN h 0 MATCH t*", vec!["0".into(), ["text", "t"].into()].into()),
        ("HSCAN h 0 MATCH t* NOVALUES", vec!["0".into(), ["text"].into()].into()),
        ("HSET h a", "-ERR wrong number of arguments for 'hset' command".into()),
        ("TYPE h", "+hash".into()),
        ("HDEL h a b c d new text", 6.into()),
        ("EXISTS h", 0.into()),
    ] {
        expect(&mut c, command, reply);
    }
    let large = vec![b'x'; 9 << 20];
    assert_eq!(c.call(&[b"HSET", &b"h"[..], b"a", &large]), 1.into());
    let refused = c.call(&[b"HSET", &b"h"[..], b"b", &large]);
    assert!(refused.error().contains("a hash lies in one record: it would have"), "{refused:?}");
    assert_eq!(c.words("HLEN h"), 1.into());
}

/// Ranges that are a part of a page, a page, and more than one.
#[test]
fn ranges_of_sorted_sets_have_any_length() {
    let (_gateway, mut c) = alone();
    let name = |i: usize| format!("m{i:04}");
    let mut command = vec!["ZADD".to_owned(), "z".to_owned()];
    for i in (0..600).rev() {
        command.extend([(i / 3).to_string(), name(i)]);
    }
    assert_eq!(c.call(&command), 600.into());
    let names = |range: std::ops::Range<usize>| Value::Array(range.map(|i| name(i).as_str().into()).collect());
    for offset in [0, 1, 15, 255, 300, 590] {
        for count in [0, 1, 15, 16, 17, 255, 256, 257, 599, 1000] {
            let (from, to) = (offset.min(600), (offset + count).min(600));
            expect(&mut c, &format!("ZRANGEBYSCORE z -inf +inf LIMIT {offset} {count}"), names(from..to));
            expect(&mut c, &format!("ZRANGEBYLEX z - + LIMIT {offset} {count}"), names(from..to));
            let last = offset + count;
            if count > 0 {
                expect(&mut c, &format!("ZRANGE z {offset} {}", last - 1), names(from..to));
            }
        }
    }
    let mut popped = 0;
    for count in [1, 16, 20, 256, 300, 100] {
        let members = c.words(&format!("ZPOPMIN z {count}")).array();
        let left = names(popped..(popped + count).min(600));
        assert_eq!(Value::Array(members.into_iter().step_by(2).collect()), left, "{count} behind {popped}");
        popped = (popped + count).min(600);
    }
    expect(&mut c, "EXISTS z", 0);
}

#[test]
fn sorted_sets() {
    let (_gateway, mut c) = alone();
    for (command, reply) in [
        ("ZADD z 1 a 2 b 3 c", Value::from(3)),
        ("ZADD z 4 c", 0.into()),
        ("ZADD z CH 5 c 5 d", 2.into()),
        ("ZADD z NX 9 a 9 e", 1.into()),
        ("ZADD z XX 8 x", 0.into()),
        ("ZADD z GT 1 e", 0.into()),
        ("ZADD z LT CH 1 e", 1.into()),
        ("ZADD z INCR 2 a", "3".into()),
        ("ZADD z NX INCR 2 a", ().into()),
        ("ZADD z NX GT 2 a", "-ERR GT, LT, and/or NX options at the same time are not compatible".into()),
        ("ZADD z x a", "-ERR value is not a valid float".into()),
        ("ZADD z nan a", "-ERR value is not a valid float".into()),
        ("ZADD z 1", "-ERR wrong number of arguments for 'zadd' command".into()),
        ("ZINCRBY z -1.5 a", "1.5".into()),
        ("ZSCORE z a", "1.5".into()),
        ("ZSCORE z x", ().into()),
        ("ZSCORE absent x", ().into()),
        ("ZMSCORE z a x b", vec!["1.5".into(), ().into(), "2".into()].into()),
        ("ZCARD z", 5.into()),
        ("ZRANGE z 0 -1 WITHSCORES", ["e", "1", "a", "1.5", "b", "2", "c", "5", "d", "5"].into()),
        ("ZRANGE z 1 2", ["a", "b"].into()),
        ("ZRANGE z -2 -1", ["c", "d"].into()),
        ("ZRANGE z 3 1", Value::Array(vec![])),
        ("ZRANGE z 0 1 REV", ["d", "c"].into()),
        ("ZREVRANGE z 0 0 WITHSCORES", ["d", "5"].into()),
        ("ZRANGE z (1 5 BYSCORE LIMIT 1 2", ["b", "c"].into()),
        ("ZRANGE z 5 (1 BYSCORE REV LIMIT 0 2", ["d", "c"].into()),
        (
            "ZRANGE z 0 -1 LIMIT 0 1",
            "-ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX".into(),
        ),
        ("ZRANGEBYSCORE z -inf +inf", ["e", "a", "b", "c", "d"].into()),
        ("ZRANGEBYSCORE z (1.5 5 WITHSCORES LIMIT 0 1", ["b", "2"].into()),
        ("ZRANGEBYSCORE z x 1", "-ERR min or max is not a float".into()),
        ("ZREVRANGEBYSCORE z 5 2", ["d", "c", "b"].into()),
        ("ZCOUNT z 2 5", 3.into()),
        ("ZCOUNT z (2 (5", 0.into()),
        ("ZADD l 0 a 0 b 0 bb 0 c", 4.into()),
        ("ZRANGEBYLEX l - +", ["a", "b", "bb", "c"].into()),
        ("ZRANGEBYLEX l [b (c", ["b", "bb"].into()),
        ("ZRANGEBYLEX l (b + LIMIT 1 1", ["c"].into()),
        ("ZREVRANGEBYLEX l + (a LIMIT 0 2", ["c", "bb"].into()),
        ("ZRANGE l [a [b BYLEX", ["a", "b"].into()),
        ("ZRANGEBYLEX l + -", Value::Array(vec![])),
        ("ZRANGEBYLEX l a b", "-ERR min or max not valid string range item".into()),
        ("ZLEXCOUNT l - [b", 2.into()),
        ("ZPOPMIN l 2", ["a", "0", "b", "0"].into()),
        ("TYPE z", "+zset".into()),
        ("ZREM z a b x", 2.into()),
        ("ZREM z c d e", 3.into()),
        ("EXISTS z", 0.into()),
        ("TYPE z", "+none".into()),
        ("SET z string", "+OK".into()),
        ("DEL z", 1.into()),
        ("ZADD z inf a -inf b", 2.into()),
        ("ZMSCORE z a b", vec!["inf".into(), Value::Bulk(b"-inf".to_vec())].into()),
        ("ZRANGE z 0 -1", ["b", "a"].into()),
        ("ZADD z INCR -inf a", "-ERR resulting score is not a number (NaN)".into()),
        ("EXPIRE z 100", 1.into()),
        ("ZREM z a b", 2.into()),
        ("ZADD z 1 a", 1.into()),
        ("TTL z", (-1).into()),
    ] {
        expect(&mut c, command, reply);
    }
    // Longer than a page, with scores that change all the time.
    for i in 0..700 {
        expect(&mut c, &format!("ZADD big {} m{i}", i % 100), 1);
        expect(&mut c, &format!("ZADD big {} m{i}", i % 7), i64::from(false));
    }
    expect(&mut c, "ZCARD big", 700);
    expect(&mut c, "ZCOUNT big -inf +inf", 700);
    assert_eq!(c.words("ZRANGEBYSCORE big 3 3").array().len(), 100);
    assert_eq!(c.words("ZRANGE big 0 -1").array().len(), 700);
}

#[test]
fn keys() {
    let (_gateway, mut c) = alone();
    expect(&mut c, "RANDOMKEY", ());
    for i in 0..1_000 {
        expect(&mut c, &format!("SET key-{i} v"), "+OK");
    }
    expect(&mut c, "HSET hash f v", 1);
    expect(&mut c, "ZADD sorted 1 m", 1);
    expect(&mut c, "DBSIZE", 1_002);
    assert_eq!(c.words("KEYS key-99?").array().len(), 10);
    assert_eq!(c.words("KEYS *").array().len(), 1_002);
    assert!(!c.words("RANDOMKEY").text().is_empty());
    // An iteration sees every key once, whatever the size of its steps, also while keys come and go.
    for count in [1, 7, 100, 5_000] {
        let (mut cursor, mut seen, mut steps) = ("0".to_owned(), Vec::new(), 0);
        loop {
            let mut reply = c.words(&format!("SCAN {cursor} COUNT {count}")).array().into_iter();
            cursor = reply.next().expect("a cursor").text();
            seen.extend(reply.next().expect("keys").array().iter().map(Value::text));
            c.words(&format!("SET other-{steps} v"));
            c.words(&format!("DEL other-{}", steps - 1));
            steps += 1;
            if cursor == "0" {
                break;
            }
        }
        seen.retain(|key| !key.starts_with("other"));
        seen.sort();
        let found = seen.len();
        seen.dedup();
        assert_eq!((found, seen.len()), (1_002, 1_002), "steps of {count}");
        assert!(steps > 1_000 / count, "{steps} steps of {count}");
        c.words(&format!("DEL other-{}", steps - 1));
    }
    assert_eq!(c.words("SCAN 0 COUNT 5000 MATCH key-1").array()[1], ["key-1"].into());
    assert_eq!(c.words("SCAN 0 COUNT 5000 TYPE zset").array()[1], ["sorted"].into());
    expect(&mut c, "SCAN x", "-ERR invalid cursor");
    expect(&mut c, "SCAN 0 COUNT 0", "-ERR syntax error");
    expect(&mut c, "TOUCH key-1 absent", 1);
    expect(&mut c, "FLUSHDB", "+OK");
    expect(&mut c, "DBSIZE", 0);
    expect(&mut c, "SCAN 0", vec!["0".into(), Value::Array(vec![])]);
}

/// A cursor is good in another gateway, and after a restart.
#[test]
fn a_cursor_outlives_its_gateway() {
    let shared = pool();
    let mut gateways = vec![gateway(&shared, settings())];
    let mut c = Client::connect(gateways[0].address());
    for i in 0..300 {
        expect(&mut c, &format!("SET {i} v"), "+OK");
    }
    let (mut cursor, mut seen) = ("0".to_owned(), Vec::new());
    loop {
        let mut reply = c.words(&format!("SCAN {cursor} COUNT 40")).array().into_iter();
        cursor = reply.next().expect("a cursor").text();
        seen.extend(reply.next().expect("keys").array().iter().map(Value::text));
        if cursor == "0" {
            break;
        }
        gateways.push(gateway(&shared, settings()));
        gateways.remove(0).stop().expect("a graceful end");
        c = Client::connect(gateways[0].address());
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 300);
}

#[test]
fn the_wrong_type_is_refused_and_nothing_changes() {
    let (_gateway, mut c) = alone();
    expect(&mut c, "SET string v", "+OK");
    expect(&mut c, "HSET hash f v", 1);
    expect(&mut c, "ZADD sorted 1 m", 1);
    for command in [
        "GET hash",
        "GET sorted",
        "APPEND hash x",
        "INCR hash",
        "STRLEN hash",
        "GETSET hash x",
        "GETDEL hash",
        "GETRANGE hash 0 1",
        "SET hash x GET",
        "GETEX hash",
        "INCRBYFLOAT sorted 1",
        "HSET string f v",
        "HGET string f",
        "HGETALL sorted",
        "HDEL string f",
        "HLEN string",
        "HINCRBY sorted f 1",
        "HSCAN string 0",
        "HMGET string f",
        "ZADD string 1 m",
        "ZADD hash 1 m",
        "ZREM hash m",
        "ZSCORE string m",
        "ZRANGE hash 0 -1",
        "ZCARD string",
        "ZCOUNT string 0 1",
        "ZRANGEBYSCORE hash 0 1",
        "ZINCRBY hash 1 m",
    ] {
        expect(&mut c, command, WRONG_TYPE);
    }
    expect(&mut c, "MGET string hash sorted", vec!["v".into(), ().into(), ().into()]);
    expect(&mut c, "GET string", "v");
    expect(&mut c, "HGETALL hash", ["f", "v"]);
    expect(&mut c, "ZRANGE sorted 0 -1", ["m"]);
    // SET takes any key.
    expect(&mut c, "SET hash v", "+OK");
    expect(&mut c, "SETNX sorted v", 0);
}

#[test]
fn connections() {
    let (_gateway, mut c) = alone();
    expect(&mut c, "PING", "+PONG");
    expect(&mut c, "PING hello", "hello");
    expect(&mut c, "ECHO hello", "hello");
    expect(&mut c, "SELECT 0", "+OK");
    assert!(c.words("SELECT 1").error().contains("DB index is out of range"));
    expect(&mut c, "CLIENT SETNAME me", "+OK");
    expect(&mut c, "CLIENT GETNAME", "me");
    expect(&mut c, "CLIENT SETINFO LIB-NAME test", "+OK");
    assert!(
        c.words("CLIENT LIST").text().contains("name=me") && c.words("CLIENT INFO").text().contains("lib-name=test")
    );
    let id = c.words("CLIENT ID").integer();
    assert!(c.words(&format!("CLIENT LIST ID {id}")).text().starts_with(&format!("id={id} addr=127.0.0.1:")));
    expect(&mut c, "AUTH default x", "+OK");
    assert!(c.words("AUTH x").error().contains("without any password configured"));
    expect(&mut c, "HELLO 4", "-NOPROTO unsupported protocol version");
    let Value::Map(hello) = c.words("HELLO 3 SETNAME you") else { panic!("a map") };
    assert!(hello.contains(&("proto".into(), 3.into())), "{hello:?}");
    expect(&mut c, "GET absent", ());
    expect(&mut c, "ZADD z 1.5 m", 1);
    expect(&mut c, "ZSCORE z m", Value::Double(1.5));
    expect(&mut c, "ZRANGE z 0 -1 WITHSCORES", Value::Array(vec![vec!["m".into(), Value::Double(1.5)].into()]));
    assert!(matches!(c.words("HGETALL absent"), Value::Map(fields) if fields.is_empty()));
    expect(&mut c, "RESET", "+RESET");
    expect(&mut c, "ZSCORE z m", "1.5");
    assert!(c.words("COMMAND COUNT").integer() > 70);
    assert_eq!(c.words("COMMAND INFO get nonsense").array()[1], Value::Null);
    assert_eq!(c.words("COMMAND DOCS get").array().len(), 2);
    assert!(c.words("INFO").text().contains("redis_version:"));
    expect(&mut c, "CONFIG GET save", ["save", ""]);
    assert!(c.words("CONFIG SET save x").error().contains("command line"));
    for command in [
        "MULTI",
        "EVAL x 0",
        "SUBSCRIBE x",
        "LPUSH l x",
        "SADD s x",
        "XADD s * f v",
        "CLUSTER INFO",
        "SAVE",
        "RENAME a b",
    ] {
        let reply = c.words(command);
        assert!(reply.error().contains(" is not supported by this gateway: "), "{command}: {reply:?}");
    }
    expect(&mut c, "NONSENSE a", "-ERR unknown command 'NONSENSE', with args beginning with: 'a' ");
    expect(&mut c, "QUIT", "+OK");
    assert_eq!(c.reply(), None);
}

#[test]
fn a_password_is_asked_for() {
    let settings = Settings { password: Some(Password::new("secret")), ..settings() };
    let gateway = gateway(&pool(), settings);
    let mut c = Client::connect(gateway.address());
    const ASK: &str = "-NOAUTH Authentication required.";
    for command in ["GET a", "PING", "NONSENSE", "CLIENT LIST", "INFO"] {
        expect(&mut c, command, ASK);
    }
    assert!(c.words("HELLO 3").error().starts_with("NOAUTH"));
    assert!(c.words("AUTH wrong").error().starts_with("WRONGPASS"));
    assert!(c.words("HELLO 3 AUTH default wrong").error().starts_with("WRONGPASS"));
    assert!(c.words("AUTH somebody secret").error().starts_with("WRONGPASS"));
    expect(&mut c, "AUTH secret", "+OK");
    expect(&mut c, "GET a", ());
    expect(&mut c, "RESET", "+RESET");
    expect(&mut c, "GET a", ASK);
    // What somebody unknown may send is short.
    let mut stranger = Client::connect(gateway.address());
    stranger.send(b"*11\r\n");
    assert!(stranger.reply().expect("an error").error().contains("Protocol error"));
    assert_eq!(stranger.reply(), None);
    assert!(c.words("HELLO 3 AUTH default secret SETNAME x") != Value::Null);
}
