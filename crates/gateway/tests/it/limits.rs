//! Limits, and clients that behave badly.

use super::client::encode;
use super::{Client, Value, alone, expect, gateway, pool, settings};
use farindex_gateway::{Gateway, GatewayError, Limits, Settings};
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

fn limited(change: impl FnOnce(&mut Limits)) -> Gateway {
    let mut settings = settings();
    change(&mut settings.limits);
    gateway(&pool(), settings)
}

/// Waits until the gateway shows this many clients.
fn until_clients(c: &mut Client, wanted: &str) {
    let until = Instant::now() + Duration::from_secs(20);
    while !c.words("INFO clients").text().contains(&format!("connected_clients:{wanted}\r\n")) {
        assert!(Instant::now() < until, "{}", c.words("INFO clients").text());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_pipeline_is_answered_in_order() {
    let (_gateway, mut c) = alone();
    let mut bytes = Vec::new();
    for i in 0..3_000u32 {
        let (key, value) = (format!("key-{}", i % 50), i.to_string());
        bytes.extend(encode(&["SET", &key, &value]));
        bytes.extend(encode(&["GET", &key]));
        bytes.extend(encode(&["EXISTS", "absent"]));
        bytes.extend(encode(&["GET", "absent"]));
        bytes.extend(encode(&["exists", &key]));
        bytes.extend(encode(&["GET", &key]));
        bytes.extend(encode(&["INCR", "counter"]));
    }
    let mut writer = c.stream.try_clone().expect("a second handle");
    let sender = std::thread::spawn(move || writer.write_all(&bytes));
    for i in 0..3_000i64 {
        let value = i.to_string();
        let value = Value::from(value.as_str());
        for wanted in ["+OK".into(), value.clone(), 0.into(), ().into(), 1.into(), value, (i + 1).into()] {
            assert_eq!(c.reply(), Some(wanted), "command {i}");
        }
    }
    sender.join().expect("no panic").expect("everything was read");
}

#[test]
fn requests_may_arrive_byte_by_byte() {
    let (gateway, mut c) = alone();
    let bytes = [encode(&["SET", "k", "a\r\nb"]), b"PING\r\n".to_vec(), encode(&["GET", "k"])].concat();
    for byte in bytes {
        c.send(&[byte]);
        std::thread::sleep(Duration::from_micros(200));
    }
    assert_eq!(c.reply(), Some("+OK".into()));
    assert_eq!(c.reply(), Some("+PONG".into()));
    assert_eq!(c.reply(), Some("a\r\nb".into()));
    // A client that has ended its side still gets its replies.
    c.send(&encode(&["GET", "k"]));
    c.stream.shutdown(std::net::Shutdown::Write).expect("its end");
    assert_eq!(c.reply(), Some("a\r\nb".into()));
    assert_eq!(c.reply(), None);
    // Clients that send something and leave at once are gone, although their end comes together with their bytes.
    let mut other = Client::connect(gateway.address());
    for _ in 0..200 {
        Client::connect(gateway.address()).send(&encode(&["GET", "k"]));
    }
    until_clients(&mut other, "1");
}

#[test]
fn a_client_that_never_reads_is_disconnected_and_slows_nobody() {
    let gateway = limited(|limits| limits.output = 4 << 20);
    let (mut deaf, mut other) = (Client::connect(gateway.address()), Client::connect(gateway.address()));
    let value = vec![b'x'; 1 << 20];
    assert_eq!(other.call(&[b"SET", &b"k"[..], &value]), "+OK".into());
    let sender = std::thread::spawn(move || {
        let many = encode(&["GET", "k"]).repeat(1_000);
        // It is cut off some time.
        for _ in 0..1_000 {
            if deaf.stream.write_all(&many).is_err() {
                return deaf;
            }
        }
        panic!("it was never cut off");
    });
    let mut longest = Duration::ZERO;
    while !sender.is_finished() {
        let began = Instant::now();
        expect(&mut other, "PING", "+PONG");
        longest = longest.max(began.elapsed());
    }
    drop(sender.join().expect("no panic"));
    assert!(longest < Duration::from_secs(2), "another client waited {longest:?}");
    until_clients(&mut other, "1");
}

#[test]
fn a_long_pipeline_of_long_replies_takes_turns_with_others() {
    let (gateway, mut other) = alone();
    assert_eq!(other.call(&[b"SET", &b"k"[..], &vec![b'x'; 1 << 20]]), "+OK".into());
    let mut long = Client::connect(gateway.address());
    let sent = |c: &mut Client| {
        let info = c.words("INFO stats").text();
        let bytes = info.split("total_net_output_bytes:").nth(1).and_then(|rest| rest.split("\r\n").next());
        bytes.and_then(|bytes| bytes.parse::<u64>().ok()).expect("bytes") >> 20
    };
    let before = sent(&mut other);
    const GETS: u64 = 150;
    long.send(&encode(&["GET", "k"]).repeat(GETS as usize));
    let reader = std::thread::spawn(move || {
        for _ in 0..GETS {
            assert_eq!(long.reply().map(|value| value.text().len()), Some(1 << 20));
        }
    });
    // All of them are one read of the gateway. Others see them carried out in part.
    let mut seen = std::collections::BTreeSet::new();
    while !reader.is_finished() {
        seen.insert(sent(&mut other) - before);
    }
    reader.join().expect("no panic");
    assert!(seen.iter().filter(|sent| (1..GETS).contains(sent)).count() > 2, "{seen:?}");
}

#[test]
fn a_client_that_reads_nothing_for_too_long_is_disconnected() {
    let gateway = limited(|limits| limits.stalled = Duration::from_millis(100));
    let (mut deaf, mut other) = (Client::connect(gateway.address()), Client::connect(gateway.address()));
    let value = vec![b'x'; 15 << 20];
    assert_eq!(other.call(&[b"SET", &b"k"[..], &value]), "+OK".into());
    deaf.send(&encode(&["GET", "k"]));
    deaf.send(&encode(&["GET", "k"]));
    until_clients(&mut other, "1");
}

#[test]
fn silent_clients_are_disconnected() {
    let gateway = limited(|limits| limits.idle = Some(Duration::from_millis(300)));
    let mut silent = Client::connect(gateway.address());
    let mut other = Client::connect(gateway.address());
    until_clients(&mut other, "1");
    assert_eq!(silent.reply(), None);
}

#[test]
fn too_many_clients_are_told_so() {
    let gateway = limited(|limits| limits.clients = 3);
    let mut clients: Vec<Client> = (0..3).map(|_| Client::connect(gateway.address())).collect();
    for c in &mut clients {
        expect(c, "PING", "+PONG");
    }
    let mut refused = Client::connect(gateway.address());
    assert_eq!(refused.reply(), Some("-ERR max number of clients reached".into()));
    assert_eq!(refused.reply(), None);
    drop(clients.pop());
    until_clients(&mut clients[0], "2");
    expect(&mut Client::connect(gateway.address()), "PING", "+PONG");
}

/// Clients that connect all at once do not wait for the second after which a refused connection is tried again.
#[test]
fn a_crowd_connects_at_once() {
    let gateway = gateway(&pool(), settings());
    let began = Instant::now();
    let mut crowd: Vec<Client> = (0..450).map(|_| Client::connect(gateway.address())).collect();
    assert!(began.elapsed() < Duration::from_millis(900), "{:?}", began.elapsed());
    for c in &mut crowd {
        expect(c, "PING", "+PONG");
    }
}

/// Half-sent requests of many clients take no more memory than was allowed, and only their senders are disconnected.
#[test]
fn buffers_are_bounded() {
    let gateway = limited(|limits| limits.buffers = 8 << 20);
    let mut good = Client::connect(gateway.address());
    let begun = [b"*2\r\n$4\r\nECHO\r\n$10000000\r\n".to_vec(), vec![b'x'; 3 << 20]].concat();
    let mut greedy: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(gateway.address()).expect("it")).collect();
    for stream in &mut greedy {
        // Some are cut off while they send.
        let _ = stream.write_all(&begun);
    }
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let info = good.words("INFO clients").text();
        let left: u64 =
            info.lines().find_map(|line| line.strip_prefix("connected_clients:")?.parse().ok()).expect("it");
        if left <= 3 {
            break;
        }
        assert!(Instant::now() < until, "{info}");
    }
    expect(&mut good, "SET k v", "+OK");
}

#[test]
fn what_is_no_request_ends_the_connection_after_the_replies() {
    let gateway = limited(|limits| limits.requests.request = 1 << 20);
    for (bytes, error) in [
        (&b"*1\r\n:3\r\n"[..], "Protocol error: expected '$', got ':'"),
        (b"*100000000\r\n", "Protocol error: invalid multibulk length"),
        (b"*2\r\n$3\r\nGET\r\n$99999999999\r\n", "Protocol error: invalid bulk length"),
        (b"*2\r\n$3\r\nGET\r\n$2000000\r\n", "Protocol error: the request is larger than the limit"),
        (b"*1\r\n$4\r\nPINGxx", "Protocol error: a bulk string is longer than its length says"),
    ] {
        let mut c = Client::connect(gateway.address());
        c.send(&encode(&["SET", "k", "v"]));
        c.send(&encode(&["GET", "k"]));
        c.send(bytes);
        assert_eq!(c.reply(), Some("+OK".into()));
        assert_eq!(c.reply(), Some("v".into()));
        assert_eq!(c.reply().expect("an error").error(), format!("ERR {error}"));
        assert_eq!(c.reply(), None);
    }
}

/// Commands with arguments of all kinds, whole and cut off: the gateway answers and goes on.
#[test]
fn random_commands_harm_nothing() {
    let rounds: u64 = std::env::var("FARINDEX_GATEWAY_FUZZ").map_or(3_000, |rounds| rounds.parse().expect("a number"));
    let (gateway, mut c) = alone();
    let names: Vec<String> = c.words("COMMAND LIST").array().iter().map(Value::text).collect();
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut draw = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    const WORDS: [&[u8]; 44] = [
        b"a",
        b"b",
        b"c",
        b"0",
        b"1",
        b"-1",
        b"2.5",
        b"inf",
        b"-inf",
        b"nan",
        b"(1",
        b"[a",
        b"+",
        b"-",
        b"",
        b"\0\xff\r\n",
        b"NX",
        b"XX",
        b"GT",
        b"LT",
        b"CH",
        b"INCR",
        b"EX",
        b"PX",
        b"KEEPTTL",
        b"GET",
        b"MATCH",
        b"*",
        b"COUNT",
        b"TYPE",
        b"LIMIT",
        b"BYSCORE",
        b"BYLEX",
        b"REV",
        b"WITHSCORES",
        b"PERSIST",
        b"AUTH",
        b"SETNAME",
        b"9223372036854775807",
        b"-9223372036854775808",
        b"1e400",
        b"[a-",
        b"LIST",
        b"NOVALUES",
    ];
    for round in 0..rounds {
        let name = &names[draw(names.len())];
        if name == "quit" {
            continue;
        }
        let mut args: Vec<&[u8]> = vec![name.as_bytes()];
        for _ in 0..draw(8) {
            args.push(WORDS[draw(WORDS.len())]);
        }
        let mut bytes = encode(&args);
        if draw(20) == 0 {
            // Cut off, or with a byte that is another one: the connection may end.
            let at = draw(bytes.len());
            if draw(2) == 0 {
                bytes.truncate(at)
            } else {
                bytes[at] = draw(256) as u8
            }
            let mut other = Client::connect(gateway.address());
            let _ = other.stream.write_all(&bytes);
        } else {
            c.send(&bytes);
            assert!(c.reply().is_some(), "round {round}: {args:?}");
        }
    }
    expect(&mut c, "ECHO still", "still");
    gateway.stop().expect("no thread has panicked");
}

#[test]
fn a_full_pool_is_an_error_and_loses_nothing() {
    let small = farindex::Pool::in_memory(16 << 20).expect("a pool");
    let gateway = gateway(&small, settings());
    let mut c = Client::connect(gateway.address());
    let value = vec![b'x'; 100_000];
    let full = (0..400).find_map(|i| {
        let reply = c.call(&[b"SET", format!("{i}").as_bytes(), &value]);
        if reply == "+OK".into() { None } else { Some((i, reply)) }
    });
    let (stored, error) = full.expect("it is full some time");
    assert!(error.error().starts_with("OOM command not allowed: the pool is full"), "{error:?}");
    for i in 0..stored {
        assert_eq!(c.call(&["GET", &i.to_string()]), Value::Bulk(value.clone()));
    }
    assert_eq!(c.words("DEL 0 1 2 3"), 4.into());
}

#[test]
fn beyond_loopback_a_password_is_needed() {
    let listen = "0.0.0.0:0".parse().expect("an address");
    let shared = pool();
    let refused = Gateway::start(move || Ok(shared.clone()), Settings::new(listen));
    assert!(matches!(refused, Err(GatewayError::NoPassword { .. })));
}

#[test]
fn a_hash_index_cannot_hold_sorted_sets() {
    let shared = pool();
    shared.session().expect("a session").index("redis-sorted").create().expect("an index");
    let refused = Gateway::start(move || Ok(shared.clone()), settings()).err().expect("an error");
    assert!(refused.to_string().contains("has no order of keys"), "{refused}");
}

#[test]
fn metrics_are_shown() {
    let (gateway, mut c) = alone();
    let metrics = gateway.serve_metrics("127.0.0.1:0".parse().expect("an address")).expect("a port");
    expect(&mut c, "PING", "+PONG");
    let mut stream = TcpStream::connect(metrics.addr()).expect("a connection");
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("it reads");
    let text = std::io::read_to_string(stream).expect("an answer");
    assert!(
        text.contains("farindex_gateway_commands_total 1\n") && text.contains("farindex_gateway_clients 1\n"),
        "{text}"
    );
}
