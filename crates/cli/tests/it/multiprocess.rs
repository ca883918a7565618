//! The program end to end: files that go in and come out again, several processes on one pool, and killed processes.

use crate::common::{Dir, Ended, run, start, text};
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Lines of all sorts, and what an index holds after them.
fn nasty() -> (Vec<u8>, BTreeMap<Vec<u8>, Vec<u8>>) {
    let mut state = 88_172_645_463_325_252u64;
    let mut draw = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let (mut file, mut want) = (Vec::new(), BTreeMap::new());
    for i in 0..20_000u64 {
        let mut bytes = |len: u64| (0..draw(len)).map(|_| draw(256) as u8).collect::<Vec<u8>>();
        let (mut key, mut value) = match i % 10 {
            0 => (bytes(40), bytes(40)),
            1 => (format!("dup-{}", i % 70).into_bytes(), bytes(9)),
            2 => (format!("empty-{i}").into_bytes(), Vec::new()),
            3 => (format!("crlf-{i}").into_bytes(), b"ends in\r".to_vec()),
            4 => (format!("tabs-{i}").into_bytes(), b"a\tb\t\\t\\x41".to_vec()),
            5 if i % 1000 == 5 => (vec![b'L'; 1 + i as usize % 60_000], bytes(200_000)),
            _ => (format!("key-{i}").into_bytes(), format!("välue {i}").into_bytes()),
        };
        key.retain(|byte| *byte != b'\n' && *byte != b'\t');
        value.retain(|byte| *byte != b'\n');
        file.extend([&key[..], b"\t", &value, b"\n"].concat());
        want.insert(key, value);
    }
    (file, want)
}

fn sorted_lines(dump: &[u8]) -> Vec<&[u8]> {
    let mut lines: Vec<_> = dump.split_inclusive(|byte| *byte == b'\n').collect();
    lines.sort_unstable();
    lines
}

#[test]
fn what_is_dumped_loads_again() {
    let dir = Dir::new();
    let pool = dir.pool("pool", "128MiB");
    let pool = text(&pool);
    let (content, want) = nasty();
    let file = dir.file("nasty", &content);
    run(&["load", pool, "demo", text(&file)]).ok();
    for key in want.keys().step_by(1999) {
        let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        let value: String = want[key].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(run(&["get", pool, "demo", &hex, "--hex"]).text().trim_end(), value);
    }
    let first = run(&["dump", pool, "demo"]).ok();
    assert_eq!(sorted_lines(&first).len(), want.len());
    for (format, flags) in [("tsv", &["--escaped"][..]), ("jsonl", &[])] {
        let out = dir.path(format);
        run(&["dump", pool, "demo", "--format", format, "-o", text(&out)]).ok();
        let mut args = vec!["load", pool, format, text(&out), "--create", "--mode", "insert", "--format", format];
        args.extend(flags);
        run(&args).ok();
        let again = run(&["dump", pool, format]).ok();
        assert!(sorted_lines(&first) == sorted_lines(&again), "{format}");
    }
    let keys = run(&["dump", pool, "demo", "--format", "lines"]);
    assert!(keys.err.contains("values that are not empty were left out"));
    assert_eq!(sorted_lines(&keys.out).len(), want.len());
    let checked = run(&["pool", "check", pool]);
    assert_eq!(checked.code, Some(0), "{}", checked.text());
}

#[test]
fn four_processes_at_once() {
    let dir = Dir::new();
    let pool = dir.pool("pool", "128MiB");
    let pool = text(&pool);
    let file = |writer: u32, round: u32| {
        let lines: String = (0..8_000).map(|i| format!("w{writer}-{i}\tw{writer}-{i}={round}\n")).collect();
        dir.file(&format!("w{writer}-{round}"), lines.as_bytes())
    };
    let rounds =
        std::env::var("FARINDEX_ROUNDS").map_or(4, |rounds| rounds.parse().expect("FARINDEX_ROUNDS: a number"));
    let (over, loaded) = (&AtomicBool::new(false), &AtomicUsize::new(0));
    let (checks, reads) = std::thread::scope(|scope| {
        let writer = |writer| {
            move || {
                for round in 0..rounds {
                    let lines = file(writer, round);
                    run(&["load", pool, "demo", text(&lines)]).ok();
                    std::fs::remove_file(lines).unwrap();
                    loaded.fetch_add(usize::from(round == 0), Ordering::SeqCst);
                    let key = format!("w{writer}-{}", round % 100);
                    run(&["del", pool, "demo", &key]).ok();
                    assert_eq!(run(&["exists", pool, "demo", &key]).code, Some(1));
                    run(&["put", pool, "demo", &key, &format!("{key}=9")]).ok();
                }
            }
        };
        let checker = scope.spawn(|| {
            let mut checks = 0;
            while !over.load(Ordering::Relaxed) {
                let checked = run(&["pool", "check", pool]);
                assert_eq!(checked.code, Some(0), "a false alarm: {}{}", checked.text(), checked.err);
                checks += 1;
            }
            checks
        });
        let reader = scope.spawn(|| {
            let mut reads = 0;
            while !over.load(Ordering::Relaxed) {
                // Keys that are not removed any more must be there, with the value of some round.
                if loaded.load(Ordering::SeqCst) == 2 {
                    let key = format!("w{}-{}", reads % 2, 100 + reads * 37 % 7_900);
                    let value = run(&["get", pool, "demo", &key]).ok();
                    assert!(value.starts_with(format!("{key}=").as_bytes()), "{key}: {value:?}");
                }
                let dump = run(&["dump", pool, "demo"]).ok();
                for line in String::from_utf8(dump).unwrap().lines() {
                    let (key, value) = line.split_once('\t').unwrap();
                    assert_eq!(value.split_once('=').map(|(of, _)| of), Some(key), "another key's value");
                }
                reads += 1;
            }
            reads
        });
        let writers = [scope.spawn(writer(0)), scope.spawn(writer(1))];
        let wrote = writers.map(|writer| writer.join());
        over.store(true, Ordering::Relaxed);
        wrote.into_iter().for_each(|wrote| wrote.expect("a writer"));
        (checker.join().expect("the checker"), reader.join().expect("the reader"))
    });
    println!("{checks} checks and {reads} dumps during {rounds} rounds of two writers");
    assert!(checks > 0 && reads > 0);
    let dump = run(&["dump", pool, "demo"]).ok();
    assert_eq!(sorted_lines(&dump).len(), 16_000);
}

#[test]
fn others_go_on_after_a_writer_was_killed() {
    let dir = Dir::new();
    let pool = dir.pool("pool", "64MiB");
    let pool = text(&pool);
    for round in 0..3 {
        let mut writer = start(&["load", pool, "demo", "-"]);
        let mut input = writer.stdin.take().unwrap();
        let feeder = std::thread::spawn(move || {
            // Ends by a broken pipe.
            for i in 0u64.. {
                if writeln!(input, "k{}\tround-{round}-{i}", i % 20_000).is_err() {
                    return;
                }
            }
        });
        let until = Instant::now() + Duration::from_secs(20);
        while run(&["exists", pool, "demo", "k500"]).code != Some(0) && Instant::now() < until {}
        writer.kill().unwrap();
        writer.wait().unwrap();
        feeder.join().unwrap();
        run(&["put", pool, "demo", "after", "the kill"]).ok();
        assert_eq!(run(&["get", pool, "demo", "after"]).ok(), b"the kill");
        let stat = run(&["pool", "stat", pool]);
        // The next client has evicted the crashed one and freed its slot, if it needed that.
        assert!(stat.text().contains("gone") || stat.text().contains("no clients"), "{}", stat.text());
        // And has given back what it had in hand.
        let checked = run(&["pool", "check", pool]);
        assert_eq!(checked.code, Some(0), "{}", checked.text());
    }
}

/// Lines of a check that say what it found.
fn verdict(checked: &Ended) -> (Option<i32>, Vec<String>) {
    let text = checked.text();
    let lines = text.lines().filter(|line| ["PROBLEM", "left behind"].iter().any(|word| line.starts_with(word)));
    (checked.code, lines.chain(text.lines().last()).map(str::to_owned).collect())
}

#[test]
fn a_check_says_the_same_of_a_crashed_client_each_time() {
    let round = |repair: bool| {
        let dir = Dir::new();
        let pool = dir.path("pool");
        let pool = text(&pool);
        run(&["pool", "create", pool, "--size", "64MiB", "--lease", "1s"]).ok();
        run(&["index", "create", pool, "demo"]).ok();
        let mut writer = start(&["load", pool, "demo", "-"]);
        let mut input = writer.stdin.take().unwrap();
        for i in 0..5_000 {
            writeln!(input, "k{i}\t{repair}").unwrap();
        }
        input.flush().unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while run(&["exists", pool, "demo", "k4000"]).code != Some(0) && Instant::now() < until {}
        // Soon it waits for more input. In the middle of its work it may have no memory in hand.
        std::thread::sleep(Duration::from_millis(200));
        writer.kill().unwrap();
        writer.wait().unwrap();
        drop(input);
        let first = verdict(&run(&["pool", "check", pool]));
        assert_eq!(first.0, Some(9), "{first:?}");
        assert!(
            first.1.iter().any(|line| line.starts_with("left behind: ") && line.contains("are leaked")),
            "{first:?}"
        );
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(600));
            assert_eq!(verdict(&run(&["pool", "check", pool])), first);
        }
        // A client that opens the pool and is alone frees it by itself; or a repair does.
        if repair {
            let repaired = run(&["pool", "check", pool, "--repair", "--json", "-"]);
            let json: serde_json::Value = serde_json::from_slice(&repaired.out).unwrap();
            assert_eq!((repaired.code, json["lost_objects"].as_u64()), (Some(0), Some(0)), "{json}");
        } else {
            run(&["put", pool, "demo", "after", "the kill"]).ok();
        }
        let after = run(&["pool", "check", pool]);
        assert_eq!(after.code, Some(0), "{}", after.text());
    };
    // At once: both wait for longer than a lease.
    std::thread::scope(|scope| {
        scope.spawn(|| round(false));
        scope.spawn(|| round(true));
    });
}

fn send(child: &std::process::Child, signal: &str) {
    let sent = std::process::Command::new("kill").args([signal, &child.id().to_string()]).status();
    assert!(sent.is_ok_and(|status| status.success()));
}

/// Asks a process to end as Ctrl-C does.
fn interrupt(child: &std::process::Child) {
    send(child, "-INT");
}

#[test]
fn ctrl_c_ends_a_benchmark_and_a_load_with_what_they_have_done() {
    let bench =
        start(&["bench", "--keys", "2000", "--warmup", "0", "--duration", "5min", "--no-efficiency", "--json", "-"]);
    std::thread::sleep(Duration::from_millis(1500));
    interrupt(&bench);
    let ended = Ended::from(bench.wait_with_output().unwrap());
    assert_eq!(ended.code, Some(130), "{}", ended.err);
    let row: serde_json::Value = serde_json::from_slice(&ended.out).unwrap();
    assert_eq!(row["interrupted"], true);
    assert!(row["ops"].as_u64().unwrap() > 0);

    let dir = Dir::new();
    let pool = dir.pool("pool", "64MiB");
    let mut load = start(&["load", text(&pool), "demo", "-"]);
    let mut input = load.stdin.take().unwrap();
    let feeder = std::thread::spawn(move || {
        for i in 0u64.. {
            if writeln!(input, "k{}\tv", i % 1000).is_err() {
                return;
            }
        }
    });
    std::thread::sleep(Duration::from_millis(500));
    interrupt(&load);
    let ended = Ended::from(load.wait_with_output().unwrap());
    feeder.join().unwrap();
    assert_eq!(ended.code, Some(130), "{}", ended.err);
    assert!(ended.err.contains("interrupted: all lines before line"), "{}", ended.err);
}

/// Do the tests themselves run under `nohup`? Then their children ignore SIGHUP too.
fn hangup_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).map(str::trim);
    mask.and_then(|mask| u64::from_str_radix(mask, 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

/// Also while it waits for input that does not come.
#[test]
fn sigterm_and_sighup_end_a_load_as_ctrl_c_does() {
    let dir = Dir::new();
    let pool = dir.pool("pool", "16MiB");
    for (signal, code) in [("-TERM", 143), ("-HUP", 129), ("-INT", 130)] {
        if signal == "-HUP" && hangup_is_ignored() {
            eprintln!("SKIPPED: SIGHUP is ignored where these tests run");
            continue;
        }
        let mut load = start(&["load", text(&pool), "demo", "-"]);
        let mut input = load.stdin.take().unwrap();
        for i in 0..5000 {
            writeln!(input, "k{i}\tv").unwrap();
        }
        let waited = Instant::now();
        while run(&["exists", text(&pool), "demo", "k100"]).code != Some(0) {
            assert!(waited.elapsed() < Duration::from_secs(30), "it loads nothing");
        }
        send(&load, signal);
        let asked = Instant::now();
        let ended = Ended::from(load.wait_with_output().unwrap());
        assert_eq!(ended.code, Some(code), "{signal}: {}", ended.err);
        assert!(ended.err.contains("interrupted: all lines before line"), "{signal}: {}", ended.err);
        assert!(ended.text().contains("inserted"), "{signal}: it says what it has done: {}", ended.text());
        assert!(asked.elapsed() < Duration::from_secs(5), "{signal}: {:?}", asked.elapsed());
        drop(input);
        run(&["index", "drop", text(&pool), "demo"]).ok();
        run(&["index", "create", text(&pool), "demo"]).ok();
    }
    // A parent that ignores the signal, as `nohup` does, wants the load to continue.
    let mut load = std::process::Command::new("sh")
        .args(["-c", "trap '' HUP; exec \"$0\" load \"$1\" demo -", crate::common::PROGRAM, text(&pool)])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = load.stdin.take().unwrap();
    for i in 0..5000 {
        writeln!(input, "k{i}\tv").unwrap();
    }
    while run(&["exists", text(&pool), "demo", "k100"]).code != Some(0) {}
    send(&load, "-HUP");
    std::thread::sleep(Duration::from_millis(300));
    writeln!(input, "last\tv").unwrap();
    drop(input);
    assert_eq!(load.wait_with_output().unwrap().status.code(), Some(0));
    run(&["exists", text(&pool), "demo", "last"]).ok();
}

#[test]
fn many_keys_are_found_and_removed() {
    let dir = Dir::new();
    let pool = dir.pool("pool", "64MiB");
    let pool = text(&pool);
    let entries: String = (0..20_000).map(|i| format!("key-{i}\tvalue\\n{i}\n")).collect();
    run(&["load", pool, "demo", text(&dir.file("entries", entries.as_bytes())), "--escaped"]).ok();
    // Every other one is there, and one of them twice.
    let keys: String = (0..10_000).map(|i| format!("key-{}\nnone-{i}\n", 2 * i)).collect();
    let keys = dir.file("keys", format!("{keys}key-0\n").as_bytes());
    let got = run(&["get", pool, "demo", "--keys-from", text(&keys)]);
    assert_eq!(got.code, Some(1), "{}", got.err);
    assert!(got.err.contains("10001 found, 10000 absent, 0 rejected"), "{}", got.err);
    let want: String = (0..10_000).map(|i| format!("key-{0}\tvalue\\n{0}\n", 2 * i)).collect();
    assert!(got.text() == format!("{want}key-0\tvalue\\n0\n"), "as `dump` writes them, in the order of the file");
    let output: serde_json::Value = {
        let few = dir.file("few", b"{\"key\":\"key-7\"}\n{\"key_hex\":\"6b6579\"}\n");
        let args = ["get", pool, "demo", "--keys-from", text(&few), "--format", "jsonl", "--json", "-"];
        serde_json::from_slice(&run(&args).out).unwrap()
    };
    assert_eq!((&output["found"], &output["absent"], &output["complete"]), (&1.into(), &1.into(), &true.into()));
    assert_eq!((&output["entries"][0]["key"], &output["entries"][0]["value"]), (&"key-7".into(), &"value\n7".into()));
    let removed = run(&["del", pool, "demo", "--keys-from", text(&keys), "--json", "-"]);
    assert_eq!(removed.code, Some(1), "{}", removed.err);
    let output: serde_json::Value = serde_json::from_slice(&removed.out).unwrap();
    assert_eq!(
        (&output["removed"], &output["absent"], &output["lines"]),
        (&10_000.into(), &10_001.into(), &20_001.into())
    );
    // The others are there still, and all of them go by standard input.
    let mut child = start(&["del", pool, "demo", "--keys-from", "-", "--format", "lines", "--escaped"]);
    let mut input = child.stdin.take().unwrap();
    (0..10_000).for_each(|i| writeln!(input, "key\\x2d{}", 2 * i + 1).unwrap());
    drop(input);
    let ended = Ended::from(child.wait_with_output().unwrap());
    assert!(ended.code == Some(0) && ended.text().starts_with("10000 removed, 0 absent, 0 rejected"), "{ended:?}");
    assert!(run(&["dump", pool, "demo"]).ok().is_empty());
    // What cannot be a key is a reject, which is worse than an absent key.
    let long = dir.file("long", &[&vec![b'k'; 65_537][..], b"\n\nabsent\n"].concat());
    let rejected = run(&["del", pool, "demo", "--keys-from", text(&long)]);
    assert_eq!(rejected.code, Some(5), "{}", rejected.err);
    assert!(rejected.text().starts_with("0 removed, 1 absent, 2 rejected"), "{}", rejected.text());
    assert!(
        rejected.err.contains("line 1: a key of 65537 bytes") && rejected.err.contains("line 2: the line is blank")
    );
    let checked = run(&["pool", "check", pool]);
    assert_eq!(checked.code, Some(0), "{}", checked.text());
}

#[test]
fn a_reader_that_goes_away_is_no_panic() {
    let mut child = start(&["bench", "--keys", "1000", "--ops", "1000", "--no-efficiency"]);
    drop(child.stdout.take());
    assert_eq!(Ended::from(child.wait_with_output().unwrap()).code, Some(141));
}

#[test]
fn the_default_benchmark_has_the_fields_that_machines_read() {
    let dir = Dir::new();
    let json = dir.path("row.json");
    let args = ["bench", "--keys", "5K", "--ops", "20K", "--fabric", "shm", "--threads", "2", "--json", text(&json)];
    let table = String::from_utf8(run(&args).ok()).unwrap();
    assert!(table.contains("efficiency") && table.contains("round trips"), "{table}");
    let row: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    for field in [
        "index",
        "fabric",
        "workload",
        "keys",
        "ops",
        "threads",
        "clients",
        "seconds",
        "throughput_ops_per_s",
        "efficiency",
        "far_bytes_per_entry",
        "cache_bytes",
        "wrong_answers",
        "errors",
        "seed",
    ] {
        assert!(!row[field].is_null(), "{field}");
    }
    for field in ["p50", "p99", "p999"] {
        assert!(row["latency_ns"][field].as_u64().unwrap() > 0, "{field}");
    }
    for field in
        ["count", "round_trips", "block_round_trips", "reads", "writes", "cas", "faa", "bytes_read", "bytes_written"]
    {
        assert!(row["kinds"]["get"][field].is_number(), "{field}");
    }
}
