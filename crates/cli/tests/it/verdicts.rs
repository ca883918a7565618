//! `check`, `check-history`, `bench --history` and `sim`: what they find, what they leave behind, and how they are
//! ended.

use crate::common::{Dir, Ended, run, start, text};
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

fn json(ended: &Ended) -> Value {
    serde_json::from_slice(&ended.out).unwrap_or_else(|error| panic!("{error}: {} {}", ended.text(), ended.err))
}

fn is_self_contained(page: &Path) {
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    assert!(page.contains("<svg") && page.contains("</svg>"));
    for reference in ["<script", "src=", "href=", "@import"] {
        assert!(!page.contains(reference), "{reference}");
    }
}

#[test]
fn check_finds_nothing_in_what_is_shipped_and_says_what_it_did() {
    let ended = run(&["check", "--seeds", "0..12", "--json", "-"]);
    let result = json(&ended);
    assert_eq!(ended.code, Some(0), "{result}");
    for field in ["violations", "deadlocks", "livelocks", "problems", "unknown", "crashes"] {
        assert_eq!(result[field], 0, "{field}");
    }
    assert_eq!((result["seeds_run"].as_u64(), result["index"].as_str()), (Some(12), Some("shard")));
    assert_eq!((&result["variant"], &result["first_failing_seed"]), (&Value::from("repaired"), &Value::Null));
    assert_eq!((&result["unknown"], &result["first_undecided_seed"]), (&Value::from(0), &Value::Null));
    assert!(result["operations"].as_u64().unwrap() > 500 && result["verbs_per_second"].as_f64().unwrap() > 0.0);
    assert!(result["seconds"].as_f64().unwrap() > 0.0);
    let counted = |args: &[&str]| json(&run(&[&["check", "--seeds", "0..4", "--json", "-"], args].concat()));
    let (few, many) = (counted(&["--clients", "1", "--ops", "5", "--keys", "3"]), counted(&["--ops", "60"]));
    assert!(few["operations"].as_u64() < many["operations"].as_u64(), "{few} {many}");
    let coalesced = json(&run(&["check", "--seeds", "0..6", "--coalesce", "--json", "-"]));
    assert_eq!((&coalesced["seeds_failed"], &coalesced["coalesce"]), (&Value::from(0), &Value::from(true)));
    // Crashes are provoked here; how an index recovers from them is tested elsewhere.
    assert!(counted(&["--crashes"])["crashes"].as_u64().unwrap() > 0);
}

#[test]
fn the_published_removal_is_found_replayed_and_drawn() {
    let found = run(&["check", "--variant", "published", "--seeds", "0..400", "--json", "-"]);
    assert_eq!(found.code, Some(1), "{}", found.err);
    let result = json(&found);
    assert!(result["violations"].as_u64().unwrap() > 0, "{result}");
    let seed = result["first_failing_seed"].as_u64().unwrap().to_string();
    let dir = Dir::new();
    let page = dir.path("timeline.html");
    let replay = ["check", "--variant", "published", "--replay", &seed, "--timeline", text(&page)];
    let (once, again) = (run(&replay), run(&replay));
    assert_eq!((once.code, &once.out), (Some(1), &again.out), "the same seed is the same run");
    assert!(once.text().contains("not linearizable"), "{}", once.text());
    is_self_contained(&page);
    let history = dir.path("history.jsonl");
    run(&["check", "--variant", "published", "--replay", &seed, "--history", text(&history)]);
    let checked = run(&["check-history", text(&history)]);
    assert_eq!(checked.code, Some(1), "{}", checked.err);
    assert!(checked.text().contains("not linearizable"), "{}", checked.text());
    let logged = run(&[&replay[..], &["--log", "50"]].concat());
    assert!(logged.err.lines().count() > 40 && logged.err.contains("READ"), "{}", logged.err);
    // The shipped form on the same seed.
    let shipped = run(&["check", "--replay", &seed, "--json", "-"]);
    assert_eq!((shipped.code, json(&shipped)["violation"].as_bool()), (Some(0), Some(false)));
}

const HEADER: &str = "{\"format\":\"farindex-history\",\"version\":1}\n";

#[test]
fn histories_are_judged_alone_and_together() {
    let dir = Dir::new();
    let write = |name: &str, lines: &str| dir.file(name, format!("{HEADER}{lines}").as_bytes());
    let writer = write(
        "writer",
        "{\"client\":0,\"op\":\"insert\",\"key\":\"k\",\"value\":\"v\",\"invoked\":1,\"responded\":2,\"outcome\":\"inserted\"}\n",
    );
    let reader = write(
        "reader",
        "{\"client\":0,\"op\":\"get\",\"key\":\"k\",\"invoked\":3,\"responded\":4,\"outcome\":{\"value\":\"v\"}}\n",
    );
    let late = write(
        "late",
        "{\"client\":0,\"op\":\"get\",\"key\":\"k\",\"invoked\":5,\"responded\":6,\"outcome\":{\"value\":null}}\n",
    );
    let on = |files: &[&Path]| {
        let mut args = vec!["check-history", "--json", "-"];
        args.extend(files.iter().map(|file| text(file)));
        let ended = run(&args);
        (ended.code, json(&ended))
    };
    assert_eq!(on(&[&writer]).0, Some(0));
    assert_eq!(on(&[&reader]).0, Some(1), "a value that no client wrote");
    let (code, report) = on(&[&reader, &writer]);
    assert_eq!((code, &report["verdict"], &report["operations"]), (Some(0), &Value::from("ok"), &Value::from(2)));
    let (code, report) = on(&[&writer, &reader, &late]);
    assert_eq!((code, &report["verdict"]), (Some(1), &Value::from("violation")));
    assert_eq!(report["violations"][0]["key"], "k");
    let explanation = report["violations"][0]["explanation"].as_str().unwrap();
    assert!(explanation.contains("not linearizable"), "{explanation}");
    let page = dir.path("page.html");
    let ended = run(&["check-history", text(&writer), text(&late), "--timeline", text(&page)]);
    assert!(ended.text().starts_with("VIOLATION"), "{}", ended.text());
    is_self_contained(&page);
    // No steps, no verdict; and no verdict is not a good one.
    let unknown = run(&["check-history", text(&writer), text(&reader), "--steps", "0"]);
    assert_eq!((unknown.code, unknown.text().starts_with("unknown")), (Some(1), true), "{}", unknown.text());
    let bad = write("bad", "\n{\"client\":0,\"op\":\"gett\"}\n");
    let ended = run(&["check-history", text(&bad)]);
    assert_eq!(ended.code, Some(3));
    assert!(ended.err.contains("bad: line 3: malformed: unknown variant `gett`"), "{}", ended.err);
    // Fields have names: an array of them in some order is no operation, and no header.
    let bare = write("bare", "[0,\"get\",\"k\",null,null,null,null,5,6,{\"value\":\"x\"}]\n");
    let ended = run(&["check-history", text(&bare)]);
    assert!(ended.code == Some(3) && ended.err.contains("bare: line 2: a line must be one JSON object"), "{ended:?}");
    let head = dir.file("head", b"[\"farindex-history\",1]\n");
    let ended = run(&["check-history", text(&head)]);
    assert!(ended.code == Some(3) && ended.err.contains("head: line 1: a line must be one JSON object"), "{ended:?}");
    let hex = write("hex", "{\"client\":0,\"op\":\"remove\",\"key\":[\"6b\"],\"invoked\":5}\n");
    let ended = run(&["check-history", text(&hex)]);
    assert!(ended.code == Some(3) && ended.err.contains("hex: line 2: malformed"), "{ended:?}");
}

#[test]
fn a_benchmark_records_a_history_that_holds_and_a_changed_one_does_not() {
    let dir = Dir::new();
    for fabric in ["memory", "shm"] {
        let file = dir.path(fabric);
        let args = ["bench", "--workload", "churn", "--keys", "200", "--ops", "8K", "--warmup", "0", "--threads", "2"];
        let args = [&args[..], &["--coalesce", "--fabric", fabric, "--history", text(&file), "--json", "-"]].concat();
        let ended = run(&args);
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        let row = json(&ended);
        assert_eq!((&row["history"]["verdict"], &row["history"]["cut"]), (&Value::from("ok"), &Value::from(false)));
        assert!(row["history"]["operations"].as_u64().unwrap() > 8000, "load and audit are part of it");
        assert_eq!(row["coalesce"], true);
        run(&["check-history", text(&file)]).ok();
        // Somebody reads what was never written.
        let mut lines = std::fs::read_to_string(&file).unwrap();
        let operation = "{\"client\":99,\"op\":\"get\",\"key\":{\"hex\":\"00\"},\"invoked\":5,\"responded\":6,\"outcome\":{\"value\":\"x\"}}\n";
        lines += operation;
        std::fs::write(&file, lines).unwrap();
        assert_eq!(run(&["check-history", text(&file)]).code, Some(1));
    }
    let file = dir.path("cut");
    let ended = run(&["bench", "--keys", "500", "--ops", "5K", "--history", text(&file), "--history-ops", "1K"]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(ended.text().contains("where the run went on"), "{}", ended.text());
}

#[test]
fn two_processes_record_one_history() {
    let dir = Dir::new();
    let (pool, a, b) = (dir.path("pool"), dir.path("a"), dir.path("b"));
    let common = ["--fabric", "shm", "--path", text(&pool), "--workload", "ycsb-a", "--keys", "100", "--warmup", "0"];
    let process = |more: &[&'static str], file: &str, seed: &str| {
        let ops = ["--ops", "60K", "--history", file, "--seed", seed];
        start(&[&["bench"], &common[..], more, &ops].concat())
    };
    let first = process(&["--shared"], text(&a), "1");
    let began = Instant::now();
    while run(&["index", "stat", text(&pool), "bench"]).code != Some(0) {
        assert!(began.elapsed() < Duration::from_secs(30), "the first process makes the index");
        std::thread::sleep(Duration::from_millis(5));
    }
    let second = process(&["--join"], text(&b), "2");
    for child in [first, second] {
        let ended = Ended::from(child.wait_with_output().unwrap());
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        assert!(ended.text().contains("check it together"), "{}", ended.text());
    }
    // The second one alone saw values that it never wrote.
    assert_eq!(run(&["check-history", text(&b)]).code, Some(1));
    let together = run(&["check-history", text(&a), text(&b)]);
    assert_eq!(together.code, Some(0), "{}", together.text());
}

/// As docs/cli.md starts them: which one is first is chance.
#[test]
fn a_process_that_joins_waits_for_the_pool_and_its_index() {
    let dir = Dir::new();
    let round = &|late: u64| {
        let (pool, a, b) =
            (dir.path(&format!("pool{late}")), dir.path(&format!("a{late}")), dir.path(&format!("b{late}")));
        let process = |more: &str, file: &str, seed: &str| {
            let common = ["bench", "--fabric", "shm", "--path", text(&pool), "--keys", "100", "--ops", "20K"];
            start(&[&common[..], &["--warmup", "0", more, "--seed", seed, "--history", file]].concat())
        };
        let second = process("--join", text(&b), "2");
        std::thread::sleep(Duration::from_millis(late));
        let first = process("--shared", text(&a), "1");
        for child in [first, second] {
            let ended = Ended::from(child.wait_with_output().unwrap());
            assert_eq!(ended.code, Some(0), "{late} ms: {}", ended.err);
        }
        let together = run(&["check-history", text(&a), text(&b)]);
        assert_eq!(together.code, Some(0), "{}", together.text());
    };
    std::thread::scope(|scope| {
        [0, 300, 1000].map(|late| scope.spawn(move || round(late))).map(|late| late.join().unwrap())
    });
    let (began, none) = (Instant::now(), dir.path("none"));
    let ended =
        run(&["bench", "--fabric", "shm", "--path", text(&none), "--keys", "9", "--join", "--join-wait", "500ms"]);
    assert_eq!(ended.code, Some(3), "{}", ended.err);
    assert!((500..8000).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
}

#[test]
fn a_simulation_is_a_function_of_its_seed() {
    let small = ["sim", "--keys", "500", "--ops", "2K", "--warmup", "200", "--clients", "12", "--json", "-"];
    let (once, again) = (run(&small), run(&small));
    assert_eq!((once.code, &once.out), (Some(0), &again.out), "{}", once.err);
    let row = json(&once);
    assert_eq!((row["fabric"].as_str(), row["preset"].as_str()), (Some("sim"), Some("shard")));
    assert_eq!(
        (row["wrong_answers"].as_u64(), row["errors"].as_u64(), row["ops"].as_u64()),
        (Some(0), Some(0), Some(2000))
    );
    assert_eq!(row["virtual_seconds"], row["seconds"]);
    let rate = row["ops"].as_f64().unwrap() / row["virtual_seconds"].as_f64().unwrap();
    assert!((rate / row["throughput_ops_per_s"].as_f64().unwrap() - 1.0).abs() < 1e-3);
    // A get is two round trips of at least 2 us each, less what came back from a coalesced one.
    assert!(row["operations"]["get"]["latency_ns"]["p50"].as_u64().unwrap() >= 4000, "{row}");
    assert!(row["assumptions"].as_array().is_some_and(|lines| !lines.is_empty()));
    let other = run(&[&small[..], &["--seed", "2"]].concat());
    assert_ne!(once.out, other.out);
}

#[test]
fn a_sweep_leaves_a_table_a_figure_and_a_page() {
    let dir = Dir::new();
    let out = dir.path("sweep");
    let sweep = |out: &Path| {
        let args =
            ["sim", "--keys", "300", "--ops", "1K", "--warmup", "0", "--sweep", "clients=1,2,8", "--out", text(out)];
        run(&args).ok();
        let read = |ending: &str| std::fs::read_to_string(format!("{}{ending}", text(out))).unwrap();
        [read(".csv"), read(".svg"), read(".html")]
    };
    let files = sweep(&out);
    let lines: Vec<_> = files[0].lines().collect();
    assert_eq!(lines.len(), 4, "{}", files[0]);
    let throughput = |line: &str| line.split(',').nth(8).unwrap().parse::<f64>().unwrap();
    assert!(throughput(lines[3]) > 3.0 * throughput(lines[1]), "eight clients do more than one: {}", files[0]);
    assert!(files[1].starts_with("<svg") && files[1].matches("<circle").count() == 3);
    // It says of what: the index, the cluster, the number that was changed, and its values.
    assert!(lines[0].ends_with(",index,preset") && lines[1].starts_with("clients,1,"), "{}", files[0]);
    assert!(lines[3].ends_with(",shard,shard"), "{}", files[0]);
    assert!(files[1].contains("shard, ycsb-a: predicted throughput, preset &quot;shard&quot;"), "{}", files[1]);
    let labels: Vec<_> = files[1].split("</text>").filter_map(|text| text.rsplit('>').next()).map(str::trim).collect();
    assert!(["1", "2", "8"].iter().all(|value| labels.contains(value)), "{labels:?}");
    assert!(files[2].contains("<h1>shard on a simulated cluster, preset &quot;shard&quot;</h1>"));
    let args = ["sim", "--index", "race", "--preset", "sephash", "--keys", "300", "--ops", "500", "--warmup", "0"];
    let args = [&args[..], &["--sweep", "compute-nodes=1,3", "--clients", "6", "--out", text(&out)]].concat();
    let output = run(&args).text();
    assert!(output.starts_with("preset \"sephash\"\n\ncompute-nodes  index"), "{output}");
    assert!(
        output.lines().any(|line| line.split_whitespace().take(2).eq(["3", "race"]))
            && output.contains("\ncompute-nodes 3 get"),
        "{output}"
    );
    let output = json(&run(&[&args[..], &["--json", "-"]].concat()));
    assert_eq!((&output["rows"][1]["swept"], &output["rows"][1]["value"]), (&"compute-nodes".into(), &3.into()));
    let page = std::fs::read_to_string(format!("{}.html", text(&out))).unwrap();
    assert!(page.contains("<h1>race on a simulated cluster, preset &quot;sephash&quot;</h1>"));
    is_self_contained(&dir.path("sweep.html"));
    assert_eq!(files, sweep(&dir.path("again")), "the same seed, the same bytes");
}

#[test]
fn a_simulated_run_leaves_a_history_that_holds() {
    let dir = Dir::new();
    let out = dir.path("history");
    let flags = ["sim", "--workload", "ycsb-a", "--keys", "200", "--ops", "3000", "--clients", "24", "--json", "-"];
    let plain = run(&flags);
    let ended = run(&[&flags[..], &["--history", text(&out)]].concat());
    assert_eq!((plain.code, ended.code), (Some(0), Some(0)), "{}", ended.err);
    let (plain, output) = (json(&plain), json(&ended));
    assert_eq!(output["history"]["verdict"], "ok");
    // Load, warm-up, measurement, audit.
    assert!(output["history"]["operations"].as_u64().unwrap() >= 3400, "{}", output["history"]);
    assert_eq!(plain["seconds"], output["seconds"], "recording takes no virtual time");
    let again = run(&["check-history", text(&out)]);
    assert_eq!(again.code, Some(0), "{}", again.err);
}

#[test]
fn reads_of_one_and_of_two_round_trips_are_compared() {
    let ended = run(&["reproduce", "shard", "--figure", "1a", "--json", "-"]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let result = json(&ended);
    assert_eq!(result["beats_in_turn"], true);
    assert_eq!(result["points"].as_array().map(Vec::len), Some(20));
}

#[test]
fn a_figure_is_reproduced() {
    let dir = Dir::new();
    let out = dir.path("figure");
    let ended = run(&[
        "reproduce",
        "shard",
        "--figure",
        "16",
        "--keys",
        "12K",
        "--clients",
        "6",
        "--out",
        text(&out),
        "--json",
        "-",
    ]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let result = json(&ended);
    let spans = result["runs"][0]["course"]["throughput"].as_array().unwrap();
    assert!(spans.len() > 20 && spans.len() <= 120, "{}", spans.len());
    assert!(result["runs"][0]["grown_ms"].as_array().is_some_and(|grown| !grown.is_empty()), "it grows meanwhile");
    assert!(result["runs"][0]["worst_share"].as_f64().unwrap() < 1.0);
    is_self_contained(&dir.path("figure.html"));
}

/// Small as they are, what they compare is there.
#[test]
fn reproduce_compares_sephash_with_its_paper() {
    let output = |args: &[&str]| {
        let ended = run(&[&["reproduce", "sephash", "--json", "-"], args].concat());
        assert_eq!(ended.code, Some(0), "{args:?}: {}", ended.err);
        json(&ended)
    };
    let figure = output(&["--figure", "12", "--keys", "4K", "--clients", "1,8"]);
    assert_eq!(figure["runs"].as_array().map(Vec::len), Some(2));
    let one = &figure["runs"][0][0];
    // Two round trips of 2 us.
    assert!((2.0..2.5).contains(&one["round_trips"].as_f64().unwrap()), "{one}");
    assert!((4000..5500).contains(&one["p50_ns"].as_u64().unwrap()), "{one}");
    let figure = output(&["--figure", "14", "--keys", "2K", "--clients", "4"]);
    assert_eq!(figure["mixes"].as_array().map(Vec::len), Some(6));
    let figure = output(&["--figure", "19", "--keys", "4K", "--clients", "4"]);
    let bytes = |i: usize| figure["searches"][i]["bytes_read"].as_f64().unwrap();
    assert!(bytes(1) > 2.0 * bytes(2) && bytes(2) > bytes(3), "each step reads less");
    let table = output(&["--table", "1", "--keys", "20K", "--clients", "8"]);
    assert!(table["runs"][0]["merges"].as_u64().unwrap() > 50, "{table}");
    assert!(table["runs"][0]["merge_seconds"].as_f64().unwrap() > 0.0);
    let figure = output(&["--figure", "18", "--keys", "14K"]);
    assert_eq!(figure["points"].as_array().map(Vec::len), Some(5));
    let table = output(&["--table", "2", "--keys", "20K"]);
    assert!(table["rows"][1]["ours"]["slots"].as_f64() > table["rows"][0]["ours"]["slots"].as_f64());
    assert_eq!(output(&["--table", "3", "--keys", "60K"])["columns"].as_array().map(Vec::len), Some(4));
}

#[test]
fn reproduce_compares_shard_with_race_and_sephash() {
    let output = |args: &[&str]| {
        let ended = run(&[&["reproduce", "shard", "--json", "-"], args].concat());
        assert_eq!(ended.code, Some(0), "{args:?}: {}", ended.err);
        json(&ended)
    };
    let figure = output(&["--figure", "12", "--keys", "1K", "--clients", "6"]);
    assert_eq!(figure["lines"].as_array().map(Vec::len), Some(10));
    let table = output(&["--table", "3-all", "--keys", "2K"]);
    let trips = |row: usize| table["rows"][row]["runs"][0]["round_trips"].as_f64().unwrap();
    assert!(
        trips(0) <= trips(1) && trips(1) < trips(2),
        "so few keys are in SepHash's CurSegments, which takes one more"
    );
    let figure = output(&["--figure", "6", "--keys", "10K"]);
    let lines = figure["lines"].as_array().unwrap();
    assert_eq!(lines.len(), 5);
    assert!(lines.iter().all(|line| line["repaired"] == 0), "{figure}");
    assert!(lines.iter().any(|line| line["published"].as_u64() > Some(0)), "{figure}");
}

#[test]
fn reproduce_compares_linear_probing_with_its_paper() {
    let output = |args: &[&str]| {
        let small = ["--slots", "64K", "--sim-slots", "64K", "--lookups", "20K", "--tables", "1"];
        let ended = run(&[&["reproduce", "linear-probing", "--json", "-"], args, &small].concat());
        assert_eq!(ended.code, Some(0), "{args:?}: {}", ended.err);
        json(&ended)
    };
    let table = output(&["--table", "4"]);
    let heap = table["lines"][1]["counted"][1].as_f64().unwrap();
    assert!((1.0..1.05).contains(&heap), "one READ of the heap, and one in fifty for another's signature: {heap}");
    assert_eq!(table["lines"][1]["too_small"], false);
    output(&["--table", "3"]);
    output(&["--figure", "13"]);
    let small =
        ["reproduce", "linear-probing", "--slots", "4K", "--sim-slots", "8K", "--lookups", "1K", "--tables", "1"];
    let said = |args: &[&str]| run(&[&small[..], args].concat()).text();
    let table = said(&["--table", "4"]);
    assert!(table.contains("slots of a table: 4000; the paper's, by load: 184 Mi at 0.65\n"), "{table}");
    assert_eq!(table.matches("  TOO SMALL\n").count(), 2, "both rows: {table}");
    assert!(table.contains("--slots 18766 is enough"), "{table}");
    let table = said(&["--table", "2"]);
    assert!(table.contains("a row: tables with this load; a column: READs of the size that is best at this load"));
    let marked: Vec<_> = table.lines().filter(|line| line.ends_with("TOO SMALL")).collect();
    assert!(marked.len() == 2 && marked[0].starts_with("0.5 ") && marked[1].starts_with("0.65"), "{table}");
    let figure = output(&["--figure", "11"]);
    let rate = |line: usize, what: &str| figure["lines"][line][what]["lookups"].as_f64().unwrap();
    // 8, 32 and 128 bytes, inline and out of band each.
    assert!(rate(0, "variable") > rate(1, "variable") && rate(4, "variable") < rate(5, "variable"), "{figure}");
}

#[test]
fn ctrl_c_ends_what_takes_long_with_what_was_done() {
    let dir = Dir::new();
    let out = dir.path("sweep");
    let interrupted = |args: &[&str]| {
        let child = start(args);
        std::thread::sleep(Duration::from_millis(2500));
        let killed = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
        assert!(killed.is_ok_and(|status| status.success()));
        let asked = Instant::now();
        let ended = Ended::from(child.wait_with_output().unwrap());
        assert_eq!(ended.code, Some(130), "{args:?}: {}", ended.err);
        assert!(asked.elapsed() < Duration::from_secs(10), "{args:?}: {:?}", asked.elapsed());
        json(&ended)
    };
    let check = || {
        let check = interrupted(&["check", "--seeds", "0..1000000000", "--json", "-"]);
        assert!(check["seeds_run"].as_u64().unwrap() > 0 && check["interrupted"] == true);
    };
    let sim = || {
        let sim = interrupted(&["sim", "--keys", "1K", "--ops", "1G", "--clients", "8", "--json", "-"]);
        assert!(sim["ops"].as_u64().unwrap() > 0 && sim["interrupted"] == true);
    };
    let sweep = || {
        let sweep =
            ["sim", "--keys", "300", "--ops", "1G", "--sweep", "clients=1,2", "--out", text(&out), "--json", "-"];
        assert_eq!(interrupted(&sweep)["rows"], Value::Array(Vec::new()), "what was cut short is no point");
    };
    // At once: each waits for its time.
    std::thread::scope(|scope| {
        scope.spawn(check);
        scope.spawn(sim);
        scope.spawn(sweep);
    });
}

#[test]
fn commands_for_single_keys_write_json() {
    let dir = Dir::new();
    let pool = dir.pool("pool", "8MiB");
    let on = |args: &[&str]| {
        let ended = run(&[&args[..1], &[text(&pool), "demo"], &args[1..], &["--json", "-"]].concat());
        (ended.code, json(&ended))
    };
    let (code, put) = on(&["put", "k", "v"]);
    assert_eq!(
        (code, &put["key"], &put["outcome"], &put["done"]),
        (Some(0), &"k".into(), &"inserted".into(), &true.into())
    );
    let (code, put) = on(&["put", "k", "w", "--mode", "insert"]);
    assert_eq!((code, &put["outcome"], &put["done"]), (Some(1), &"exists".into(), &false.into()));
    let (code, get) = on(&["get", "k"]);
    assert_eq!((code, &get["found"], &get["value"]), (Some(0), &true.into(), &"v".into()));
    let (code, get) = on(&["get", "none"]);
    assert_eq!((code, &get["found"], get.get("value")), (Some(1), &false.into(), None));
    on(&["put", "--hex", "ff00", "01fe"]);
    let (_, get) = on(&["get", "--hex", "ff00"]);
    assert_eq!((&get["key_hex"], &get["value_hex"]), (&"ff00".into(), &"01fe".into()));
    assert_eq!(on(&["exists", "k"]).1["found"], true);
    let (code, del) = on(&["del", "k"]);
    assert_eq!((code, &del["removed"]), (Some(0), &true.into()));
    assert_eq!(on(&["del", "k"]).0, Some(1));
    // What is a list is a list in an object.
    let one = |args: &[&str]| json(&run(&[args, &["--json", "-"]].concat()));
    assert_eq!(one(&["index", "list", text(&pool)])["indexes"][0]["name"], "demo");
    assert_eq!(one(&["index", "kinds"])["kinds"][0]["kind"], "shard");
    // To a file, in addition to the text.
    let file = dir.path("get.json");
    let ended = run(&["get", text(&pool), "demo", "ff00", "--hex", "--json", text(&file)]);
    assert_eq!(ended.text(), "01fe\n");
    assert!(std::fs::read_to_string(&file).unwrap().contains("\"found\": true"));
}
