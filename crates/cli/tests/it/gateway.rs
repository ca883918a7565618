//! `farindex gateway`: it is killed, ended by a signal, and started wrongly.

use crate::common::gateways::{Client, Gateway, kill_gateways};
use crate::common::{Dir, run, text};

#[test]
fn a_killed_gateway_harms_nobody() {
    let dir = Dir::new();
    let pool = dir.path("pool");
    let pool = text(&pool);
    run(&["pool", "create", pool, "--size", "128MiB", "--lease", "2s"]).ok();
    kill_gateways(&[pool]);
}

/// It ends with code 0, and the next one finds everything.
#[test]
fn a_gateway_ends_on_a_signal_and_keeps_nothing() {
    let dir = Dir::new();
    let pool = dir.path("pool");
    let pool = text(&pool);
    run(&["pool", "create", pool, "--size", "64MiB"]).ok();
    let mut first = Gateway::start(&[pool], &[]);
    let mut c = Client::connect(&first.address).expect("a connection");
    assert_eq!(c.call("SET far memory").as_deref(), Some("+OK"));
    let pid = rustix::process::Pid::from_raw(first.child.id() as i32).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("SIGTERM");
    assert_eq!(first.child.wait().expect("its end").code(), Some(0));
    assert_eq!(c.call("GET far"), None);
    let second = Gateway::start(&[pool], &[]);
    let mut c = Client::connect(&second.address).expect("a connection");
    assert_eq!(c.call("GET far").as_deref(), Some("memory"));
}

#[test]
fn what_a_gateway_cannot_use_is_an_error() {
    let dir = Dir::new();
    let pool = dir.pool("pool", "64MiB");
    let pool = text(&pool);
    let (empty, listen) = (dir.file("empty", b"\n"), ["--listen", "127.0.0.1:0"]);
    let busy = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let busy = busy.local_addr().expect("its address").to_string();
    for (args, code, words) in [
        (vec!["/nowhere/pool"], 3, "/nowhere/pool"),
        (vec![pool, "--listen", "0.0.0.0:0"], 2, "need a password"),
        (vec![pool, "--listen", &busy], 3, "cannot be listened on"),
        (vec![pool, "--ordered", "demo"], 2, "has no order of keys"),
        (vec![pool, "--index", "x", "--ordered", "x"], 2, "the same index"),
        (vec![pool, "--password-file", text(&empty)], 3, "its first line is empty"),
        (vec![pool, "--threads", "0"], 2, "--threads"),
        (vec![pool, "--max-output", "1"], 2, "--max-output"),
    ] {
        let mut all = vec!["gateway"];
        all.extend(args);
        if !all.contains(&"--listen") {
            all.extend(listen);
        }
        let ended = run(&all);
        assert_eq!(ended.code, Some(code), "{all:?}: {}", ended.err);
        assert!(ended.err.contains(words), "{all:?}: {}", ended.err);
    }
}
