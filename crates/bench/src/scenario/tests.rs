use super::*;
use crate::baseline::{LocalMap, LocalSkipList};
use crate::record::{Identity, KindRow};
use crate::{Control, run};

fn parse(text: &str) -> Result<Scenario, BenchError> {
    Scenario::parse("dir/some.toml", text)
}

#[test]
fn everything_can_be_said() {
    let scenario = parse(
        r#"
        about = "all fields"
        mix = { get = 90, get-absent = 5, insert = 5.0 }
        index = "shard"
        fabric = "memory:1GiB"
        keys = "1M"
        loaded = 500_000
        load = true
        key_size = 16
        value_size = "8..1Ki"
        distribution = "zipfian"
        theta = 0.8
        threads = 2
        clients = 32
        warmup = "10K"
        ops = "2M"
        duration = "30s"
        seed = 7
        audit = false
        alone = true

        [expect]
        errors.max = 3
        entries = 500_000
        efficiency.min = 0.6
        round_trips.get = { min = 2, max = 2.05 }
        block_round_trips.get = 1
        reads.insert.max = 1.5
        "#,
    )
    .unwrap();
    assert_eq!((scenario.name.as_str(), scenario.about.as_str()), ("some", "all fields"));
    assert_eq!((scenario.index.as_deref(), scenario.fabric.as_deref()), (Some("shard"), Some("memory:1GiB")));
    let plan = &scenario.plan;
    assert_eq!(plan.workload.name, "get=90,get_absent=5,insert=5");
    assert_eq!((plan.keys, plan.loaded(), plan.ops, plan.warmup), (1_000_000, 500_000, Some(2_000_000), 10_000));
    assert_eq!((plan.key_size, plan.value_size), (16, ValueSize { min: 8, max: 1024 }));
    assert_eq!((plan.distribution(), plan.theta), (Distribution::Zipfian, 0.8));
    assert_eq!((plan.threads, plan.clients, plan.seed, plan.audit), (2, 32, 7, false));
    assert_eq!(plan.duration, Some(Duration::from_secs(30)));
    assert_eq!(scenario.expect.efficiency, Some(Bound { min: Some(0.6), max: None }));
    assert_eq!(scenario.expect.round_trips[&Kind("get".into())], Bound { min: Some(2.0), max: Some(2.05) });
    assert_eq!(parse("workload = \"get\"\nthreads = 4").unwrap().plan.clients, 4);
}

#[test]
fn what_cannot_be_read_is_named() {
    for (text, want) in [
        ("", "neither a workload nor a mix"),
        ("workload = \"get\"\nmix = { get = 100 }", "choose one"),
        ("workload = \"ycsb-q\"", "no workload \"ycsb-q\""),
        ("workload = \"get\"\nopps = 5", "unknown field `opps`"),
        ("workload = \"get\"\n[expect]\nlatency = 5", "unknown field `latency`"),
        ("workload = \"get\"\nkeys = -5", "-5 is below 0"),
        ("workload = \"get\"\nkeys = \"5x\"", "no suffix that is known"),
        ("workload = \"get\"\nkeys = 1.5", "a whole number, or text such as"),
        ("workload = \"get\"\nkeys = 0", "0 keys"),
        ("workload = \"get\"\nkeys = 1\nkeys = 2", "duplicate key"),
        ("workload = \"get\"\nvalue_size = \"9..8\"", "above the second"),
        ("workload = \"get\"\nvalue_size = \"big\"", "is no number"),
        ("workload = \"get\"\nvalue_size = -1", "-1 is below 0"),
        ("workload = \"get\"\ndistribution = \"normal\"", "no distribution \"normal\""),
        ("workload = \"get\"\ntheta = 1.0", "strictly between 0 and 1"),
        ("workload = \"get\"\nduration = 5", "invalid type"),
        ("workload = \"get\"\nduration = \"5\"", "write it with its unit"),
        ("workload = \"get\"\nthreads = 8\nclients = 4", "at least one client"),
        ("workload = \"get\"\naudit = 1", "expected a boolean"),
        ("mix = { get = 100, fly = 0 }", "no operation \"fly\""),
        ("mix = { get = 99 }", "add up to 100"),
        ("workload = \"get\"\n[expect]\nround_trips.fly = 1", "no kind of operation \"fly\""),
        ("workload = \"get\"\n[expect]\nerrors = {}", "without min or max"),
        ("workload = \"get\"\n[expect]\nerrors = { min = 2, max = 1 }", "min is above max"),
        ("workload = \"get\"\n[expect]\nerrors = { most = 1 }", "unknown field `most`"),
        ("workload = \"get\"\n[expect]\nerrors = \"none\"", "a number, or a table"),
        ("workload = ", "TOML parse error"),
        ("not toml", "TOML parse error"),
    ] {
        let error = parse(text).expect_err(text).to_string();
        assert!(error.contains(want), "{text:?}: {error:?} does not say {want:?}");
        assert!(error.starts_with("dir/some.toml: "), "{error}");
    }
    let error = Scenario::read(Path::new("no/such/file.toml")).unwrap_err().to_string();
    assert!(error.starts_with("no/such/file.toml: "), "{error}");
}

#[test]
fn expectations_pass_and_fail() {
    let scenario = parse(
        r#"
        workload = "get"
        keys = 100
        [expect]
        entries = 100
        efficiency.min = 0.6
        round_trips.get.max = 2.05
        reads.get = 3
        cas.insert = 1
        "#,
    )
    .unwrap();
    let outcome = run(&LocalMap::new(), &scenario.plan, &Control::default()).unwrap();
    let mut row = Row::new(Identity { index: "dashmap".into(), fabric: "none".into() }, &outcome);
    row.kinds.insert("get".into(), KindRow { round_trips: 2.0, reads: 2.0, ..KindRow::default() });
    row.efficiency = Some(0.7);
    row.errors = 1;
    let report: Vec<_> = scenario.expect.check(&row).iter().map(Finding::to_string).collect();
    assert_eq!(
        report,
        [
            "pass  interrupted: expected 0, got 0",
            "pass  wrong_answers: expected 0, got 0",
            "FAIL  errors: expected 0, got 1",
            "pass  entries: expected 100, got 100",
            "pass  efficiency: expected at least 0.6, got 0.7",
            "pass  round_trips.get: expected at most 2.05, got 2",
            "FAIL  reads.get: expected 3, got 2",
            "FAIL  cas.insert: expected 1, got nothing: it was not measured",
        ]
    );
}

#[test]
fn shipped_scenarios_can_be_read_and_run() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let scenario = Scenario::read(&entry.unwrap().path()).unwrap();
        assert!(!scenario.about.is_empty(), "{}", scenario.name);
        // The names and the expectations hold on a small scale too.
        let small = Plan { keys: 1000, warmup: 100, ops: Some(5000), ..scenario.plan.clone() };
        let outcome = match scenario.index.as_deref() {
            Some("skiplist") => run(&LocalSkipList::new(), &small, &Control::default()).unwrap(),
            _ => run(&LocalMap::new(), &small, &Control::default()).unwrap(),
        };
        assert_eq!((outcome.wrong.total(), outcome.errors.total()), (0, 0), "{}", scenario.name);
        names.push(scenario.name);
    }
    names.sort();
    assert_eq!(names, ["churn", "load", "quick", "ycsb-a", "ycsb-b", "ycsb-c", "ycsb-d", "ycsb-e", "ycsb-f"]);
}
