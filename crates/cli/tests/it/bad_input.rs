//! What is wrong with an input is said in one line, with the exit code that docs/cli.md promises.

use crate::common::{Dir, Ended, run, start, text};
use farindex_pool::layout::{CATALOG_ENTRY_LEN, CatalogEntry, Geometry, Superblock};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use zerocopy::{FromBytes, IntoBytes};

/// Command line, exit code, and a part of the message.
type Case<'a> = (Vec<&'a str>, i32, &'a str);

fn judge(cases: &[Case<'_>]) {
    for (args, code, part) in cases {
        let ended = run(args);
        assert_eq!(ended.code, Some(*code), "{args:?}: {}", ended.err);
        assert!(ended.err.contains(part), "{args:?}: {:?} does not say {part:?}", ended.err);
        assert!(ended.err.starts_with("error: "), "{args:?}: {:?}", ended.err);
        let usage = *code == 2 && ended.err.contains("--help");
        assert!(usage || ended.err.trim_end().lines().count() <= 6, "{args:?}: {:?}", ended.err);
    }
}

#[test]
fn arguments() {
    let dir = Dir::new();
    let pool = dir.pool("pool", "8MiB");
    let (pool, new, none) = (text(&pool), dir.path("new"), dir.path("none"));
    let (new, none) = (text(&new), text(&none));
    judge(&[
        (vec!["bnech"], 2, "'bench'"),
        (vec!["bench", "--workload", "ycsb-z"], 2, "no workload \"ycsb-z\""),
        (vec!["bench", "--workload", "get=90,update=20"], 2, "add up to 100"),
        (vec!["bench", "--index", "shrad"], 2, "'shard'"),
        (vec!["bench", "--fabric", "rdma"], 2, "possible values: memory, shm"),
        (vec!["bench", "--keys", "ten"], 2, "\"ten\" is no number"),
        (vec!["bench", "--keys", "0"], 2, "0 keys"),
        (vec!["bench", "--ops", "1X"], 2, "no suffix that is known"),
        (vec!["bench", "--ops", "0"], 2, "nothing to measure"),
        (vec!["bench", "--threads", "-1"], 2, "'-1'"),
        (vec!["bench", "--threads", "0"], 2, "at least one client"),
        (vec!["bench", "--threads", "2", "--clients", "1"], 2, "at least one client"),
        (vec!["bench", "--key-size", "4"], 2, "at least 8"),
        (vec!["bench", "--value-size", "9..8"], 2, "above the second"),
        (vec!["bench", "--key-size", "70000"], 2, "an index of kind shard takes at most 65536"),
        (vec!["bench", "--index", "linear", "--value-size", "8..17Mi"], 2, "kind linear takes at most 16777216"),
        (vec!["sim", "--key-size", "70000"], 2, "an index of kind shard takes at most 65536"),
        (vec!["bench", "--distribution", "zipf"], 2, "scrambled-zipfian"),
        (vec!["bench", "--seed", "x"], 2, "--seed"),
        (vec!["bench", "--size", "5 parsecs"], 2, "has no suffix that is known"),
        (vec!["bench", "--size", "4096"], 2, "takes at least"),
        (vec!["bench", "--duration", "10"], 2, "with its unit"),
        (vec!["bench", "--path", new], 2, "--fabric shm"),
        (vec!["bench", "--fabric", "shm", "--path", pool], 3, "never overwritten"),
        (vec!["bench", "--scenario", none], 2, "No such file"),
        (vec!["pool", "create", new], 2, "--size"),
        (vec!["pool", "create", new, "--size", "64MoB"], 2, "has no suffix that is known"),
        (vec!["pool", "create", new, "--size", "99999999T"], 2, "too large"),
        (vec!["pool", "create", new, "--size", "0"], 2, "at least one page"),
        (vec!["pool", "create", new, "--size", "64KiB"], 2, "takes at least"),
        (vec!["pool", "create", new, "--size", "8MiB", "--clients", "1"], 2, "2 to 1024"),
        (vec!["pool", "create", new, "--size", "8MiB", "--lease", "0s"], 2, "at least 1 ms"),
        (vec!["pool", "create", new, "--size", "8MiB", "--chunk-size", "5000"], 2, "power of two"),
        (vec!["pool", "create", new, "--size", "8MiB", "--node", new], 3, "never overwritten"),
        (vec!["pool", "stat", "memory:1GiB"], 2, "only `farindex bench`"),
        (vec!["pool", "stat", "shm:"], 2, "separated by commas"),
        (vec!["pool", "stat", ""], 2, "path of the pool is empty"),
        (
            vec!["index", "create", pool, "x", "--kind", "btree"],
            2,
            "possible values: shard, race, sephash, linear, cuckoo",
        ),
        (vec!["index", "create", pool, "x", "--set", "threshold"], 2, "NAME=VALUE"),
        (
            vec!["index", "create", pool, "x", "--set", "treshold=1"],
            2,
            "it has alpha, initial_bits, threshold, variant",
        ),
        (vec!["index", "create", pool, "x", "--set", "threshold=high"], 2, "neither a number"),
        (vec!["index", "create", pool, "x", "--set", "initial_bits=1.5"], 2, "expected u64"),
        (vec!["index", "create", pool, "x", "--set", "variant=old"], 2, "expected `repaired` or `published`"),
        (vec!["index", "create", pool, "x", "--set", "variant=published"], 2, "known to lose data"),
        (vec!["bench", "--index", "dashmap", "--set", "threshold=1"], 2, "no settings"),
        (vec!["index", "create", pool, "x", "--set", "initial_bits=21"], 2, "at most 2^20"),
        (vec!["index", "create", pool, "x", "--set", "threshold=1.5"], 2, "0.05 to 1"),
        (vec!["index", "create", pool, "x", "--set", "alpha=101"], 2, "0 to 100"),
        (vec!["index", "create", pool, ""], 4, "1 to 72 bytes"),
        (vec!["index", "create", pool, "a\nb"], 4, "control characters"),
        (vec!["get", pool, "demo", "0g", "--hex"], 2, "not hexadecimal"),
        (vec!["get", pool, "demo", "abc", "--hex"], 2, "pairs of the digits"),
        (vec!["put", pool, "demo", "k"], 2, "<VALUE>"),
        (vec!["get", pool, "demo"], 2, "<KEY>"),
        (vec!["del", pool, "demo", "k", "--keys-from", "-"], 2, "cannot be used with"),
        (vec!["del", pool, "demo", "--hex", "--keys-from", "-"], 2, "cannot be used with"),
        (vec!["del", pool, "demo", "k", "--format", "lines"], 2, "go with --keys-from"),
        (vec!["get", pool, "demo", "--keys-from", none], 3, "No such file"),
        (vec!["load", pool, "demo", none], 3, "No such file"),
        (vec!["load", pool, "demo", "/"], 3, "is a directory"),
        (vec!["load", pool, "demo", "-", "--key-column", "0"], 2, "counted from 1"),
        (vec!["load", pool, "demo", "-", "--key-column", "id"], 2, "add --header"),
        (vec!["load", pool, "demo", "-", "--in-flight", "0"], 2, "--in-flight"),
        (vec!["dump", pool, "demo", "-o", pool], 2, "the pool itself"),
        (vec!["dump", pool, "demo", "-o", "/nowhere/x"], 3, "cannot be written"),
        (vec!["pool", "stat", pool, "--json", "/nowhere/x"], 3, "cannot be written"),
        (vec!["completions", "tcsh"], 2, "possible values"),
        (vec!["reproduce", "shard", "--table", "5"], 2, "possible values: 3, 3-all, 4"),
        (vec!["reproduce", "shard", "--figure", "18"], 2, "possible values: 1a, 6, 12, 16, 17"),
        (vec!["reproduce", "shard", "--figure", "1a", "--keys", "1K"], 2, "clients of its own"),
        (vec!["reproduce", "shard"], 2, "--table"),
        (vec!["reproduce", "sephash"], 2, "--table"),
        (vec!["reproduce", "sephash", "--table", "4"], 2, "possible values: 1, 2, 3"),
        (vec!["reproduce", "sephash", "--figure", "18", "--keys", "5K"], 2, "at least 11000"),
        (vec!["reproduce", "sephash", "--figure", "12", "--keys", "1K,2K"], 2, "several numbers of keys"),
        (vec!["reproduce", "sephash", "--figure", "14", "--clients", "1,2"], 2, "several numbers of clients"),
        (vec!["reproduce", "chime"], 2, "--table"),
        (vec!["reproduce", "chime", "--figure", "13"], 2, "possible values: 3a, 3d, 12, 14, 15, 16, 19"),
        (vec!["reproduce", "chime", "--figure", "12", "--keys", "1K,2K"], 2, "several numbers of keys"),
        (vec!["reproduce", "chime", "--table", "1", "--index", "btree"], 2, "unknown kind of index"),
        (vec!["reproduce", "shard", "--table", "3", "--figure", "16"], 2, "cannot be used with"),
        (vec!["reproduce", "shard", "--figure", "16", "--keys", "1K,2K"], 2, "one number of keys"),
        (vec!["check", "--index", "shrad"], 2, "'shard'"),
        (vec!["check", "--variant", "repaird"], 2, "repaired, published"),
        (vec!["check", "--seeds", "17"], 2, "one like 0..1000"),
        (vec!["check", "--seeds", "9..9"], 2, "holds no seed"),
        (vec!["check", "--seeds", "x..9"], 2, "no range of seeds"),
        (vec!["check", "--replay", "x"], 2, "--replay"),
        (vec!["check", "--replay", "1", "--seeds", "0..2"], 2, "cannot be used with"),
        (vec!["check", "--timeline", new], 2, "--replay"),
        (vec!["check", "--history", new], 2, "--replay"),
        (vec!["check", "--coalesce", "--variant", "published"], 2, "without the lock table"),
        (vec!["check", "--clients", "0"], 2, "1..=7"),
        (vec!["check", "--ops", "0"], 2, "1..=100000"),
        (vec!["check", "--keys", "0"], 2, "1..=100000"),
        (vec!["check-history"], 2, "<FILE>"),
        (vec!["check-history", none], 3, "No such file"),
        (vec!["check-history", "/"], 3, "line 1: cannot be read"),
        (vec!["check-history", pool], 3, "line 1"),
        (vec!["check-history", none, "--steps", "many"], 2, "is no number"),
        (vec!["bench", "--history", "/nowhere/x"], 3, "cannot be written"),
        (vec!["bench", "--history", new, "--index", "raw"], 2, "mean nothing"),
        (vec!["bench", "--history-ops", "5"], 2, "--history"),
        (vec!["bench", "--coalesce", "--index", "dashmap"], 2, "an index of a pool"),
        (vec!["bench", "--join"], 2, "--fabric shm --path"),
        (vec!["bench", "--shared", "--fabric", "shm"], 2, "--fabric shm --path"),
        (vec!["bench", "--join", "--fabric", "shm", "--path", none, "--join-wait", "100ms"], 3, "none"),
        (vec!["bench", "--join", "--fabric", "shm", "--path", pool, "--join-wait", "100ms"], 4, "bench"),
        (vec!["bench", "--join-wait", "1s"], 2, "--join"),
        (vec!["bench", "--join", "--fabric", "shm", "--path", pool, "--history", new], 2, "--history-ops 1000000"),
        (vec!["sim", "--preset", "cray"], 2, "there are linear-probing, shard"),
        (vec!["sim", "--compute-nodes", "0"], 2, "at least one"),
        (vec!["sim", "--compute-nodes", "1001"], 2, "at most 1000"),
        (vec!["sim", "--memory-nodes", "100000"], 2, "it takes at most"),
        (vec!["sim", "--threads", "3", "--clients", "2"], 2, "at least one client"),
        (vec!["sim", "--workload", "ycsb-z"], 2, "no workload \"ycsb-z\""),
        (vec!["sim", "--sweep", "clients"], 2, "clients=1,2,4,8"),
        (vec!["sim", "--sweep", "keys=1,2"], 2, "cannot be swept"),
        (vec!["sim", "--sweep", "clients=1,x"], 2, "\"x\" is no number"),
        (vec!["sim", "--sweep", "clients=1,0"], 2, "at least one"),
        (
            vec!["sim", "--sweep", "clients=1", "--ops", "9", "--keys", "9", "--out", "/nowhere/x"],
            3,
            "cannot be written",
        ),
        (vec!["reproduce", "shard", "--table", "3", "--keys", "1K,2K"], 2, "one number of keys"),
    ]);
    assert!(!Path::new(new).exists(), "a pool that could not be made leaves no file");
}

#[test]
fn files_that_are_no_pool() {
    let dir = Dir::new();
    let foreign = dir.file("foreign", &[b'x'; 8192]);
    let odd = dir.file("odd", &[0; 5000]);
    let zeros = dir.file("zeros", &[0; 8192]);
    let empty = dir.file("empty", b"");
    let write = |path: &Path, at: u64, bytes: &[u8]| {
        OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
    };
    let truncated = dir.pool("truncated", "8MiB");
    OpenOptions::new().write(true).open(&truncated).unwrap().set_len(4 << 20).unwrap();
    let damaged = dir.pool("damaged", "8MiB");
    write(&damaged, 56, &[1, 2, 3]);
    let version = dir.pool("version", "8MiB");
    write(&version, 8, &8u64.to_le_bytes());
    let none = dir.path("none");
    for command in [&["pool", "stat"][..], &["pool", "check"], &["index", "list"]] {
        let on = |path, code, part| {
            let mut args = command.to_vec();
            args.push(path);
            (args, code, part)
        };
        judge(&[
            on(text(&none), 3, "create the pool first"),
            on("/", 3, "it is a directory"),
            on("/dev/null", 3, "not a DAX device"),
            on(text(&foreign), 3, "holds no farindex pool (it begins with 7878"),
            on(text(&zeros), 3, "holds no farindex pool (all zeros)"),
            on(text(&odd), 3, "no multiple of the page size"),
            on(text(&empty), 3, "it is empty"),
            on(text(&truncated), 3, "truncated?"),
            on(text(&damaged), 3, "its checksum is wrong"),
            on(text(&version), 3, "has format version 8, this program reads version 7"),
        ]);
    }
    judge(&[
        (vec!["pool", "create", text(&foreign), "--size", "8MiB"], 3, "never overwritten"),
        (vec!["pool", "create", "/proc/sys/farindex", "--size", "8MiB"], 3, "/proc/sys/farindex"),
        (vec!["pool", "create", "/nowhere/pool", "--size", "8MiB"], 3, "/nowhere/pool"),
    ]);
}

#[test]
fn a_wrong_path_takes_no_space() {
    let dir = Dir::new();
    let sparse = dir.path("sparse");
    std::fs::File::create(&sparse).unwrap().set_len(1 << 40).unwrap();
    let blocks = || std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&sparse).unwrap());
    let before = blocks();
    judge(&[
        (vec!["get", text(&sparse), "demo", "key"], 3, "holds no farindex pool (all zeros)"),
        (vec!["pool", "stat", text(&sparse)], 3, "holds no farindex pool (all zeros)"),
        (vec!["pool", "check", text(&sparse), "--repair"], 3, "holds no farindex pool (all zeros)"),
    ]);
    assert_eq!(blocks(), before);
}

#[test]
fn a_pool_that_is_cut_while_it_is_open() {
    let dir = Dir::new();
    let pool = dir.pool("pool", "64MiB");
    let mut load = start(&["load", text(&pool), "demo", "-"]);
    let mut input = load.stdin.take().unwrap();
    let feeder = std::thread::spawn(move || {
        // Ends by a broken pipe.
        for i in 0u64.. {
            if writeln!(input, "k{i}\tv").is_err() {
                return;
            }
        }
    });
    while run(&["exists", text(&pool), "demo", "k500"]).code != Some(0) {}
    OpenOptions::new().write(true).open(&pool).unwrap().set_len(1 << 20).unwrap();
    let ended = Ended::from(load.wait_with_output().unwrap());
    feeder.join().unwrap();
    assert_eq!(ended.code, Some(3), "{}", ended.err);
    assert!(ended.err.contains("the file was cut while it was mapped"), "{}", ended.err);
}

#[test]
fn a_file_that_may_only_be_read() {
    use std::os::unix::fs::PermissionsExt;
    let dir = Dir::new();
    let pool = dir.pool("pool", "8MiB");
    let writable = || OpenOptions::new().write(true).open(&pool).is_ok();
    std::fs::set_permissions(&pool, std::fs::Permissions::from_mode(0o444)).unwrap();
    if writable() {
        eprintln!("skipped: modes do not bind this user (root)");
        return;
    }
    judge(&[(vec!["put", text(&pool), "demo", "k", "v"], 3, "files are made for their owner alone")]);
    run(&["pool", "stat", text(&pool)]).ok();
}

#[test]
fn indexes() {
    let dir = Dir::new();
    let path = dir.pool("pool", "8MiB");
    let pool = text(&path);
    judge(&[
        (vec!["get", pool, "nope", "k"], 4, "no index named \"nope\""),
        (vec!["load", pool, "nope", "/dev/null"], 4, "no index named \"nope\""),
        (vec!["dump", pool, "nope"], 4, "no index named \"nope\""),
        (vec!["index", "stat", pool, "nope"], 4, "no index named \"nope\""),
        (vec!["index", "drop", pool, "nope"], 4, "no index named \"nope\""),
        (vec!["index", "create", pool, "demo"], 4, "has an index named \"demo\" already"),
    ]);
    // Catalog entries of another kind, and of another version, as a newer program would write them.
    for (change, code, part) in [
        ((|entry: &mut CatalogEntry| entry.kind = 99) as fn(&mut CatalogEntry), 4, "is a kind 99 (of a newer farindex"),
        (|entry| entry.version = 9, 4, "has format version 9"),
    ] {
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mut block = [0; 128];
        file.read_exact_at(&mut block, 0).unwrap();
        let block = Superblock::read_from_bytes(&block).unwrap();
        let Superblock { chunk_size, chunks, client_slots, intent_cells, .. } = block;
        let at = Geometry { chunk_size, chunks, client_slots, intent_cells }.entry(0).offset();
        let mut before = [0; CATALOG_ENTRY_LEN as usize];
        file.read_exact_at(&mut before, at).unwrap();
        let mut entry = CatalogEntry::read_from_bytes(&before).unwrap();
        change(&mut entry);
        entry.checksum = entry.expected_checksum();
        file.write_all_at(entry.as_bytes(), at).unwrap();
        judge(&[(vec!["get", pool, "demo", "k"], code, part)]);
        let checked = run(&["pool", "check", pool]);
        assert!(checked.code == Some(1) && checked.text().contains("PROBLEM"), "{checked:?}");
        file.write_all_at(&before, at).unwrap();
    }
}

#[test]
fn one_of_two_creators_wins() {
    let dir = Dir::new();
    let pool = dir.pool("pool", "16MiB");
    for round in 0..5 {
        let name = format!("both-{round}");
        let all: Vec<_> = (0..4).map(|_| start(&["index", "create", text(&pool), &name])).collect();
        let mut won = 0;
        for child in all {
            let ended = crate::common::Ended::from(child.wait_with_output().unwrap());
            match ended.code {
                Some(0) => won += 1,
                code => {
                    assert_eq!(code, Some(4), "{}", ended.err);
                    assert!(ended.err.contains("already"), "{}", ended.err);
                }
            }
        }
        assert_eq!(won, 1);
    }
    let checked = run(&["pool", "check", text(&pool)]);
    assert_eq!(checked.code, Some(0), "{}", checked.text());
}

#[test]
fn entries_that_are_too_long() {
    let dir = Dir::new();
    let pool = dir.pool("pool", "64MiB");
    let pool = text(&pool);
    let mut lines = vec![b'k'; 65_537];
    lines.push(b'\n');
    lines.extend(vec![b'l'; 65_536]);
    lines.extend(b"\tlongest\nv\t");
    lines.extend(vec![b'v'; (16 << 20) + 1]);
    lines.extend(b"\nfine\tyes\n");
    let file = dir.file("lines", &lines);
    let rejects = dir.path("rejects");
    let ended = run(&["load", pool, "demo", text(&file)]);
    assert_eq!(ended.code, Some(5), "{}", ended.err);
    assert!(ended.err.contains("line 1: a key of 65537 bytes is longer than the limit of 65536"), "{}", ended.err);
    assert!(ended.err.contains("line 3: a value of 16777217 bytes is longer"), "{}", ended.err);
    let again = run(&["load", pool, "demo", text(&file), "--mode", "insert", "--rejects", text(&rejects)]);
    assert_eq!((again.code, again.err.as_str()), (Some(5), ""));
    let rejects = std::fs::read_to_string(rejects).unwrap();
    let numbers: Vec<_> = rejects.lines().map(|line| line.split_once('\t').unwrap().0).collect();
    assert_eq!(numbers, ["1", "2", "3", "4"], "{rejects}");
    assert_eq!(run(&["get", pool, "demo", "fine"]).ok(), b"yes");
    let long = "k".repeat(65_537);
    for command in
        [vec!["put", pool, "demo", &long, "v"], vec!["get", pool, "demo", &long], vec!["exists", pool, "demo", &long]]
    {
        judge(&[(command, 5, "longer than the limit of 65536")]);
    }
}

#[test]
fn columns() {
    let dir = Dir::new();
    let pool = dir.pool("pool", "8MiB");
    let file = dir.file("table", b"id\tname\n1\tone\n2\n");
    let (pool, file) = (text(&pool), text(&file));
    judge(&[
        (vec!["load", pool, "demo", file, "--header", "--key-column", "nr"], 2, "the header has id, name"),
        (vec!["load", pool, "demo", file, "--header", "--value-column", "nr"], 2, "no column \"nr\""),
    ]);
    let ended = run(&["load", pool, "demo", file, "--header", "--key-column", "id", "--value-column", "2"]);
    assert_eq!(ended.code, Some(5));
    assert!(ended.err.contains("line 3: column 2 is missing"), "{}", ended.err);
    assert_eq!(run(&["get", pool, "demo", "1"]).ok(), b"one");
}

/// Nothing is lost and nothing is made up without a word.
#[test]
fn lines_that_are_no_entries() {
    let dir = Dir::new();
    let pool = dir.pool("pool", "8MiB");
    let pool = text(&pool);
    let csv = dir.file("csv", b"a,1\nb,\"2\nc,3\n");
    let ended = run(&["load", pool, "demo", text(&csv), "--format", "csv"]);
    assert_eq!(ended.code, Some(5), "{}", ended.err);
    assert!(ended.err.contains("line 2: a quote is never closed"), "{}", ended.err);
    assert_eq!(
        (run(&["exists", pool, "demo", "a"]).code, run(&["exists", pool, "demo", "b"]).code),
        (Some(0), Some(1))
    );
    let csv = dir.file("header", b"\"id,name\n1,one\n");
    let ended = run(&["load", pool, "demo", text(&csv), "--format", "csv", "--header"]);
    assert!(ended.code == Some(2) && ended.err.contains("line 1: a quote is never closed"), "{ended:?}");
    let blank = dir.file("blank", b"x\t1\n\ny\t2\n");
    let ended = run(&["load", pool, "demo", text(&blank)]);
    assert!(ended.code == Some(5) && ended.err.contains("line 2: the line is blank"), "{ended:?}");
    assert_eq!(run(&["exists", pool, "demo", ""]).code, Some(1), "no entry with an empty key");
}

/// A standard output that is closed takes no result, and that is said; /dev/null takes all.
#[test]
fn a_standard_output_that_is_closed() {
    let dir = Dir::new();
    let pool = dir.pool("pool", "8MiB");
    let pool = text(&pool);
    run(&["put", pool, "demo", "k", "v"]).ok();
    let shell = |script: &str, args: &[&str]| -> crate::common::Ended {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", script, crate::common::PROGRAM]).args(args).output().expect("sh").into()
    };
    for args in [
        &["index", "list", pool][..],
        &["index", "kinds", "--json", "-"],
        &["pool", "stat", pool],
        &["get", pool, "demo", "k"],
        &["dump", pool, "demo"],
        &["completions", "bash"],
    ] {
        let ended = shell("\"$0\" \"$@\" >&-", args);
        assert_eq!(ended.code, Some(3), "{args:?}: {}", ended.err);
        assert!(ended.err.contains("standard output: cannot be written: it is closed"), "{args:?}: {}", ended.err);
        assert_eq!(shell("\"$0\" \"$@\" >/dev/null", args).code, Some(0), "{args:?}");
        assert_eq!(shell("\"$0\" \"$@\" 1<>/dev/null", args).code, Some(0), "{args:?}");
    }
    // What has nothing to say needs none.
    assert_eq!(shell("\"$0\" \"$@\" >&-", &["put", pool, "demo", "k", "w"]).code, Some(0));
}

#[test]
fn a_pool_that_is_full() {
    let dir = Dir::new();
    let pool = dir.pool("pool", "1MiB");
    let pool = text(&pool);
    let lines: String = (0..50_000).map(|i| format!("key-{i}\tvalue-{i}\n")).collect();
    let file = dir.file("lines", lines.as_bytes());
    judge(&[(vec!["load", pool, "demo", text(&file)], 6, "the pool is full")]);
    // What was loaded before is there, and the pool is sound.
    assert_eq!(run(&["get", pool, "demo", "key-0"]).ok(), b"value-0");
    let checked = run(&["pool", "check", pool]);
    assert_eq!(checked.code, Some(0), "{}", checked.text());
}

#[test]
fn scenarios() {
    let dir = Dir::new();
    let table: [(&str, &str); 6] = [
        ("workload = \"ycsb-a\"\nkyes = 10", "unknown field `kyes`"),
        ("workload = ", "TOML parse error"),
        ("keys = 10", "neither a workload nor a mix"),
        ("workload = \"ycsb-q\"", "no workload \"ycsb-q\""),
        ("workload = \"ycsb-a\"\nindex = \"btree\"", "there are shard, race, sephash, linear, cuckoo"),
        ("workload = \"ycsb-a\"\n[expect]\nround_trips.gte = 1", "no kind of operation \"gte\""),
    ];
    for (content, part) in table {
        let file = dir.file("bad.toml", content.as_bytes());
        let ended = run(&["bench", "--scenario", text(&file)]);
        assert_eq!(ended.code, Some(2), "{content}: {}", ended.err);
        assert!(ended.err.contains(part), "{content}: {}", ended.err);
    }
    let file =
        dir.file("strict.toml", b"workload = \"ycsb-c\"\nkeys = 1000\nops = 1000\n[expect]\nround_trips.get.max = 1\n");
    let ended = run(&["bench", "--scenario", text(&file), "--no-efficiency"]);
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    assert!(ended.err.contains("FAIL  round_trips.get: expected at most 1"), "{}", ended.err);
}
