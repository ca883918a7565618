//! The program end to end: files that go in and come out again, several processes on one pool, and processes that die.

mod common;

use common::{Dir, Ended, run, start, text};
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
    println!("{checks} checks and {reads} dumps beside {rounds} rounds of two writers");
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
        // Whoever came next has shut the dead one out, and taken its slot back, if it was in the way.
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
    let dir = Dir::new();
    let pool = dir.path("pool");
    let pool = text(&pool);
    run(&["pool", "create", pool, "--size", "64MiB", "--lease", "1s"]).ok();
    run(&["index", "create", pool, "demo"]).ok();
    for repair in [false, true] {
        let mut writer = start(&["load", pool, "demo", "-"]);
        let mut input = writer.stdin.take().unwrap();
        for i in 0..5_000 {
            writeln!(input, "k{i}\t{repair}").unwrap();
        }
        input.flush().unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while run(&["exists", pool, "demo", "k4000"]).code != Some(0) && Instant::now() < until {}
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
        // Whoever opens the pool and is alone gives it back, without being told; or a repair does.
        if repair {
            let repaired = run(&["pool", "check", pool, "--repair", "--json", "-"]);
            let json: serde_json::Value = serde_json::from_slice(&repaired.out).unwrap();
            assert_eq!((repaired.code, json["lost_objects"].as_u64()), (Some(0), Some(0)), "{json}");
        } else {
            run(&["put", pool, "demo", "after", "the kill"]).ok();
        }
        let after = run(&["pool", "check", pool]);
        assert_eq!(after.code, Some(0), "{}", after.text());
    }
}

/// Asks a process to end as Ctrl-C does.
fn interrupt(child: &std::process::Child) {
    let killed = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(killed.is_ok_and(|status| status.success()));
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
