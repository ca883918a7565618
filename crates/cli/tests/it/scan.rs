//! `farindex scan`, `dump` of ordered indexes and `index kinds`.

use crate::common::{Dir, run, text};
use serde_json::Value;

fn json(args: &[&str]) -> Value {
    serde_json::from_slice(&run(args).ok()).expect("JSON")
}

fn output(args: &[&str]) -> String {
    String::from_utf8(run(args).ok()).expect("UTF-8")
}

fn kinds() -> Vec<Value> {
    let kinds = json(&["index", "kinds", "--json", "-"]);
    kinds["kinds"].as_array().expect("kinds").clone()
}

#[test]
fn index_kinds_shows_which_kinds_are_ordered() {
    let shown = output(&["index", "kinds"]);
    for kind in kinds() {
        let (name, ordered) = (kind["kind"].as_str().expect("a name"), kind["ordered"].as_bool().expect("a flag"));
        let order = if ordered { "ordered" } else { "unordered" };
        assert!(shown.lines().any(|line| line.starts_with(&format!("{name}\t{order}\t"))), "{shown}");
    }
}

#[test]
fn scan_of_an_unordered_index_says_what_to_do() {
    let dir = Dir::new();
    let pool = dir.pool("pool", "64MiB");
    let ended = run(&["scan", text(&pool), "demo", "--limit", "3"]);
    assert_eq!(ended.code, Some(2), "{}", ended.err);
    assert!(ended.err.contains("kind shard, whose keys have no order"), "{}", ended.err);
    assert!(ended.err.contains("farindex dump"), "{}", ended.err);
}

#[test]
fn scan_refuses_bounds_that_contradict_each_other() {
    for flags in [["--from", "--after"], ["--to", "--before"], ["--prefix", "--from"], ["--prefix", "--before"]] {
        let ended = run(&["scan", "/nowhere", "demo", flags[0], "a", flags[1], "b"]);
        assert_eq!(ended.code, Some(2), "{}", ended.err);
    }
    let ended = run(&["scan", "/nowhere", "demo", "--hex", "--from", "xyz"]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.err.contains("not hexadecimal"), "{}", ended.err);
}

#[test]
fn bench_refuses_scans_on_an_unordered_index() {
    for index in ["shard", "dashmap", "raw"] {
        let ended = run(&["bench", "--index", index, "--workload", "ycsb-e", "--keys", "100"]);
        assert_eq!(ended.code, Some(2), "{}", ended.err);
        assert!(ended.err.contains(&format!("the keys of {index} have no order")), "{}", ended.err);
    }
}

#[test]
fn bench_measures_workload_e_and_its_history_holds() {
    let dir = Dir::new();
    let file = dir.path("history.jsonl");
    for order in ["hashed", "ordered"] {
        let row = json(&[
            "bench",
            "--index",
            "skiplist",
            "--workload",
            "ycsb-e",
            "--keys",
            "500",
            "--ops",
            "2K",
            "--warmup",
            "0",
            "--scan-length",
            "1..20",
            "--key-order",
            order,
            "--threads",
            "2",
            "--clients",
            "4",
            "--history",
            text(&file),
            "--json",
            "-",
        ]);
        assert_eq!((&row["wrong_answers"], &row["errors"], &row["key_order"]), (&0.into(), &0.into(), &order.into()));
        assert_eq!(row["scan_length"], "1..20");
        assert!(row["operations"]["scan"]["entries"].as_u64() > Some(2000), "{row}");
        assert_eq!(row["history"]["verdict"], "ok", "{row}");
    }
}

/// Needs a build whose registry has an ordered kind.
#[test]
fn scan_writes_the_range_in_order() {
    let Some(kind) = kinds().into_iter().find(|kind| kind["ordered"] == true) else {
        eprintln!("SKIPPED: this build has no ordered kind");
        return;
    };
    let dir = Dir::new();
    let pool = dir.pool("pool", "64MiB");
    let pool = text(&pool);
    run(&["index", "create", pool, "tree", "--kind", kind["kind"].as_str().expect("a name")]).ok();
    let entries: String = (0..300).rev().map(|i| format!("k{i:03}\tv{i}\n")).collect();
    let file = dir.file("entries", entries.as_bytes());
    run(&["load", pool, "tree", text(&file)]).ok();
    let want = |numbers: std::ops::Range<u32>| numbers.map(|i| format!("k{i:03}\tv{i}\n")).collect::<String>();
    for (flags, range) in [
        (&[][..], 0..300),
        (&["--from", "k010", "--to", "k020"], 10..21),
        (&["--after", "k010", "--before", "k020"], 11..20),
        (&["--prefix", "k12"], 120..130),
        (&["--from", "k290", "--limit", "5"], 290..295),
        (&["--hex", "--prefix", "6b3132"], 0..0),
    ] {
        let out = output(&[&["scan", pool, "tree"], flags].concat());
        match flags.contains(&"--hex") {
            true => assert_eq!((out.lines().count(), &out[..8]), (10, "6b313230")),
            false => assert_eq!(out, want(range), "{flags:?}"),
        }
    }
    assert_eq!(output(&["dump", pool, "tree"]), want(0..300));
    let scanned = json(&["scan", pool, "tree", "--limit", "2", "--json", "-"]);
    assert_eq!(scanned["entries"], serde_json::json!([{"key": "k000", "value": "v0"}, {"key": "k001", "value": "v1"}]));
}

#[test]
fn the_partitions_of_an_index_are_listed_and_other_kinds_have_none() {
    let dir = Dir::new();
    let pool = dir.pool("pool", "64MiB");
    run(&["index", "create", text(&pool), "divided", "--kind", "dex"]).ok();
    assert_eq!(output(&["index", "partitions", text(&pool), "divided"]), "\t\tnobody\n");
    let listed = json(&["index", "partitions", text(&pool), "divided", "--json", "-"]);
    let all = serde_json::json!([{ "low_hex": "", "high_hex": null, "owner": null }]);
    assert_eq!((&listed["index"], &listed["partitions"]), (&Value::from("divided"), &all));
    let ended = run(&["index", "partitions", text(&pool), "demo"]);
    assert_eq!(ended.code, Some(2), "{}", ended.err);
    assert!(ended.err.contains("kind shard is not divided"), "{}", ended.err);
}
