//! Shared memory between processes: what only this fabric has. Its share of the contract is in `conformance.rs`.

use farindex_fabric::{
    Endpoint, Executor, Fabric, FabricError, Identity, NodeId, OpKind, RemotePtr, ServedRegion, ShmFabric,
};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

const CHILD: &str = "FARINDEX_TEST_CHILD";
const FILE: &str = "FARINDEX_TEST_FILE";
const LEN: u64 = 1 << 16;

fn word(i: u64) -> RemotePtr {
    RemotePtr::new(NodeId::new(0), 64 + 8 * i)
}

fn faa(endpoint: &Endpoint, ptr: RemotePtr, add: u64) -> Result<u64, FabricError> {
    Executor::new().block_on(endpoint, async { endpoint.span(OpKind::Other).faa(ptr, add).await })
}

fn revoke(endpoint: &Endpoint, identity: Identity) -> Result<(), FabricError> {
    Executor::new().block_on(endpoint, async { endpoint.span(OpKind::Other).revoke(NodeId::new(0), identity).await })
}

/// A directory of this test's own, removed at its end.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Dir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("farindex-shm-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(name);
        fs::create_dir(&dir).expect("a fresh directory");
        Dir(dir)
    }
    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// This very test program, started again to play another client.
struct Peer {
    child: Child,
    identity: Identity,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Peer {
    fn start(role: &str, file: &Path) -> Peer {
        let program = std::env::current_exe().expect("the path of this program");
        let mut child = Command::new(program)
            .args(["--exact", "shm::child", "--nocapture", "--test-threads=1"])
            .env(CHILD, role)
            .env(FILE, file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test program starts again");
        let to = child.stdin.take().expect("a pipe");
        let mut from = BufReader::new(child.stdout.take().expect("a pipe"));
        let numbers = await_line(&mut from, "identity ");
        let numbers: Vec<u64> = numbers.split(' ').map(|n| n.parse().expect("a number")).collect();
        let identity = Identity { token: numbers[0], pid: numbers[1], started: numbers[2] };
        Peer { child, identity, to, from }
    }
    fn tell(&mut self, line: &str) {
        writeln!(self.to, "{line}").expect("the child listens");
    }
    fn kill(&mut self) {
        self.child.kill().expect("the child runs");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn await_line(from: &mut impl BufRead, prefix: &str) -> String {
    let mut line = String::new();
    loop {
        line.clear();
        assert_ne!(from.read_line(&mut line).expect("the child talks"), 0, "the child ended before it said {prefix:?}");
        if let Some(at) = line.find(prefix) {
            return line[at + prefix.len()..].trim().to_owned();
        }
    }
}

/// Not a test but the other process; does nothing when run as a test.
#[test]
fn child() {
    let (Ok(role), Some(file)) = (std::env::var(CHILD), std::env::var_os(FILE)) else {
        return;
    };
    let fabric = ShmFabric::open(&[PathBuf::from(file)]).expect("the parent made it");
    let me = fabric.new_identity();
    let endpoint = fabric.connect(&me).expect("a connection");
    println!("identity {} {} {}", me.token, me.pid, me.started);
    let mut lines = std::io::stdin().lines();
    match role.as_str() {
        "count" => {
            for line in &mut lines {
                let count: u64 = line.expect("the parent talks").parse().expect("a number");
                for _ in 0..count {
                    faa(&endpoint, word(0), 1).expect("a FAA");
                }
                println!("counted {count}");
            }
        }
        // Until it is killed.
        _ => loop {
            faa(&endpoint, word(0), 1).expect("a FAA");
            faa(&endpoint, word(1), 1).expect("a FAA");
        },
    }
}

#[test]
fn processes_count_on_one_word() {
    const EACH: u64 = 20_000;
    let dir = Dir::new();
    let file = dir.path("node");
    let fabric = ShmFabric::create(std::slice::from_ref(&file), LEN).expect("a new file");
    let endpoint = fabric.connect(&fabric.new_identity()).expect("a connection");
    let mut peers = [Peer::start("count", &file), Peer::start("count", &file)];
    for peer in &mut peers {
        assert_eq!(fabric.is_gone(&peer.identity), Some(false));
        peer.tell(&EACH.to_string());
    }
    for _ in 0..EACH {
        faa(&endpoint, word(0), 1).expect("a FAA");
    }
    for peer in &mut peers {
        await_line(&mut peer.from, "counted");
    }
    assert_eq!(faa(&endpoint, word(0), 0), Ok(3 * EACH));
}

#[test]
fn a_killed_process_is_seen_to_be_gone_and_the_others_go_on() {
    let dir = Dir::new();
    let file = dir.path("node");
    let fabric = ShmFabric::create(std::slice::from_ref(&file), LEN).expect("a new file");
    let endpoint = fabric.connect(&fabric.new_identity()).expect("a connection");
    let mut victim = Peer::start("forever", &file);
    let mut other = Peer::start("count", &file);
    while faa(&endpoint, word(0), 0).expect("a FAA") < 1000 {}
    assert_eq!(fabric.is_gone(&victim.identity), Some(false));
    victim.kill();
    // It is a zombie from now on until `Peer` is dropped: gone all the same.
    while fabric.is_gone(&victim.identity) != Some(true) {
        std::thread::yield_now();
    }
    revoke(&endpoint, victim.identity).expect("proved gone");
    let (first, second) = (faa(&endpoint, word(0), 0).unwrap(), faa(&endpoint, word(1), 0).unwrap());
    assert!(second == first || second + 1 == first, "it was killed between two verbs: {first}, {second}");
    other.tell("500");
    await_line(&mut other.from, "counted 500");
    assert_eq!(faa(&endpoint, word(0), 0), Ok(first + 500));
    assert_eq!(faa(&endpoint, word(1), 0), Ok(second));
}

#[test]
fn a_live_process_is_only_ended_where_that_is_allowed() {
    let dir = Dir::new();
    let file = dir.path("node");
    let fabric = ShmFabric::create(std::slice::from_ref(&file), LEN).expect("a new file");
    let endpoint = fabric.connect(&fabric.new_identity()).expect("a connection");
    let victim = Peer::start("forever", &file);
    let error = revoke(&endpoint, victim.identity).expect_err("it lives");
    assert!(matches!(&error, FabricError::CannotRevoke(why) if why.contains(&victim.identity.pid.to_string())));
    let before = faa(&endpoint, word(0), 0).unwrap();
    while faa(&endpoint, word(0), 0).unwrap() == before {}

    let reused = Identity { started: victim.identity.started ^ 1, ..victim.identity };
    let fabric = fabric.allow_kill(true);
    revoke(&endpoint, reused).expect("that one is gone, and its number's new owner is left alone");
    assert_eq!(fabric.is_gone(&victim.identity), Some(false));

    revoke(&endpoint, victim.identity).expect("killed");
    let after = faa(&endpoint, word(0), 0).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(faa(&endpoint, word(0), 0), Ok(after));
    assert_eq!(fabric.is_gone(&victim.identity), Some(true));
    let error = fabric.connect(&victim.identity).map(drop).expect_err("not of this process");
    assert!(matches!(error, FabricError::Settings(_)), "{error}");
}

#[test]
fn revoking_reaches_every_fabric_of_the_process() {
    let dir = Dir::new();
    let files = [dir.path("node")];
    let fabric = ShmFabric::create(&files, LEN).expect("a new file");
    let again = ShmFabric::open(&files).expect("the same file");
    let victim = fabric.new_identity();
    let endpoint = fabric.connect(&victim).expect("a connection");
    let other = again.connect(&again.new_identity()).expect("a connection");
    faa(&endpoint, word(0), 1).expect("not yet revoked");
    revoke(&other, victim).expect("its gates are in this process");
    assert_eq!(faa(&endpoint, word(0), 1), Err(FabricError::Revoked));
    assert_eq!(faa(&fabric.connect(&victim).expect("a connection"), word(0), 1), Err(FabricError::Revoked));
    assert_eq!(faa(&other, word(0), 0), Ok(1));
}

#[test]
fn content_stays_and_a_reader_changes_nothing() {
    let dir = Dir::new();
    let files = [dir.path("a"), dir.path("b")];
    let fabric = ShmFabric::create(&files, 5000).expect("new files");
    let lens: Vec<u64> = fabric.nodes().iter().map(|node| node.len).collect();
    assert_eq!(lens, [8192, 8192]);
    assert_eq!(fs::metadata(&files[0]).unwrap().permissions().mode() & 0o777, 0o600);
    let second = RemotePtr::new(NodeId::new(1), 8192 - 8);
    faa(&fabric.connect(&fabric.new_identity()).expect("a connection"), second, 77).expect("a FAA");
    drop(fabric);

    fs::set_permissions(&files[1], fs::Permissions::from_mode(0o400)).unwrap();
    let reader = ShmFabric::open_read_only(&files).expect("files to look at");
    let endpoint = reader.connect(&reader.new_identity()).expect("a connection");
    let node = NodeId::new(1);
    Executor::new().block_on(&endpoint, async {
        let span = endpoint.span(OpKind::Other);
        assert_eq!(span.read(second, 8).await.unwrap().words(), [77]);
        assert_eq!(span.write(second, endpoint.buf_from_words(&[1])).await, Err(FabricError::ReadOnly(node)));
        assert_eq!(span.cas(second, 77, 1).await, Err(FabricError::ReadOnly(node)));
        assert_eq!(span.faa(second, 0).await, Err(FabricError::ReadOnly(node)));
        assert_eq!(span.masked_cas(second, 77, 1, !0, !0).await, Err(FabricError::ReadOnly(node)));
        let beyond = span.read(second, 16).await.map(drop);
        assert!(matches!(beyond, Err(FabricError::OutOfBounds { .. })), "{beyond:?}");
        assert_eq!(span.read(second, 8).await.unwrap().words(), [77]);
    });
}

type Attempt = fn(&[PathBuf]) -> Result<ShmFabric, FabricError>;

#[test]
fn an_invalid_region_file_is_refused_with_a_reason() {
    let dir = Dir::new();
    let make = |name: &str, len: usize| {
        let path = dir.path(name);
        fs::write(&path, vec![7; len]).expect("a file");
        path
    };
    let create: Attempt = |paths| ShmFabric::create(paths, LEN);
    let huge: Attempt = |paths| ShmFabric::create(paths, (1 << 44) + 1);
    let no_room: Attempt = |paths| ShmFabric::create(paths, 1 << 43);
    let open: Attempt = ShmFabric::open;
    let look: Attempt = ShmFabric::open_read_only;
    let socket = dir.path("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
    let table: Vec<(Attempt, PathBuf, &str)> = vec![
        (open, dir.path("missing"), "create the pool first"),
        (look, dir.path("missing"), "create the pool first"),
        (open, dir.0.clone(), "directory"),
        (look, dir.0.clone(), "directory"),
        (create, dir.0.clone(), "directory"),
        (open, make("empty", 0), "empty"),
        (open, make("cut", 4096 + 512), "page size"),
        (look, make("cut", 4096 + 512), "page size"),
        (create, make("there", 4096), "never overwritten"),
        (create, dir.path("no/such/directory"), "make its directory"),
        (huge, dir.path("huge"), "largest memory node"),
        (no_room, dir.path("big"), ""), // too large for a file on some systems, too large for the disk on others
        (no_room, PathBuf::from(format!("/dev/shm/farindex-no-room-{}", std::process::id())), "are free"),
        (open, PathBuf::from("/dev/null"), "not a DAX device"),
        (create, PathBuf::from("/dev/zero"), "not a DAX device"),
        (open, socket, "neither a file"),
        (open, make("whole", 4096).join("below"), ""),
    ];
    for (i, (attempt, path, hint)) in table.into_iter().enumerate() {
        let existed = path.exists();
        match attempt(std::slice::from_ref(&path)).map(drop) {
            Err(FabricError::Region { path: named, reason }) => {
                assert_eq!(named, path.display().to_string());
                assert!(reason.contains(hint), "line {i}: {reason}");
            }
            other => panic!("line {i}: {path:?}: {other:?}"),
        }
        assert_eq!(path.exists(), existed, "line {i}: nothing is left behind, and nothing taken away");
    }
    assert_eq!(fs::read(dir.path("there")).unwrap(), vec![7; 4096]);
    for (paths, len) in [(vec![], LEN), (vec![dir.path("x"); 1024], LEN), (vec![dir.path("x")], 0)] {
        assert!(matches!(ShmFabric::create(&paths, len).map(drop), Err(FabricError::Settings(_))));
    }
}

/// The second process is refused with the number of the first; readers are always admitted.
#[test]
fn a_file_is_served_or_mapped_but_not_both() {
    let dir = Dir::new();
    let path = dir.path("node");
    let paths = [path.clone()];
    let me = format!("process {}", std::process::id());
    let local = ShmFabric::create(&paths, LEN).expect("a new file");
    let other = ShmFabric::open(&paths).expect("several processes may map it");
    let endpoint = other.connect(&other.new_identity()).expect("an endpoint");
    let refused = |result: Result<(), FabricError>, part: &str| {
        let error = result.expect_err("another one has it").to_string();
        assert!(error.contains(part) && error.contains(&me), "{error}");
    };
    let serve = || ServedRegion::file(&path, None);
    refused(serve().map(drop), "has it open");
    drop((local, other));
    refused(serve().map(drop), "has it open");
    // An endpoint keeps the memory, and so the file.
    drop(endpoint);
    let served = serve().expect("no other has it");
    refused(ShmFabric::open(&paths).map(drop), "--connect");
    refused(serve().map(drop), "has it open");
    ShmFabric::open_read_only(&paths).map(drop).expect("looking is allowed");
    drop(served);
    ShmFabric::open(&paths).map(drop).expect("no other serves it");
}

#[test]
fn nodes_are_different_files_and_a_failed_creation_leaves_none() {
    let dir = Dir::new();
    let (a, b) = (dir.path("a"), dir.path("b"));
    fs::write(&b, b"precious").unwrap();
    ShmFabric::create(&[a.clone(), b.clone()], LEN).map(drop).expect_err("b is taken");
    assert!(!a.exists());
    assert_eq!(fs::read(&b).unwrap(), b"precious");

    ShmFabric::create(std::slice::from_ref(&a), LEN).expect("a new file");
    let link = dir.path("link");
    fs::hard_link(&a, &link).unwrap();
    let error = ShmFabric::open(&[a.clone(), link]).map(drop).expect_err("one file twice");
    assert!(error.to_string().contains("same file"), "{error}");

    // A sparse file gets its space when it is opened for writing.
    let sparse = dir.path("sparse");
    fs::File::create(&sparse).unwrap().set_len(LEN).unwrap();
    ShmFabric::open(std::slice::from_ref(&sparse)).expect("there is room");
    assert!(std::os::unix::fs::MetadataExt::blocks(&fs::metadata(&sparse).unwrap()) * 512 >= LEN);
}

#[test]
fn a_file_without_permission_is_refused() {
    let dir = Dir::new();
    let file = dir.path("locked");
    ShmFabric::create(std::slice::from_ref(&file), LEN).expect("a new file");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o0)).unwrap();
    if fs::File::open(&file).is_ok() {
        return; // The superuser may read everything: nothing to see here.
    }
    let error = ShmFabric::open(&[file]).map(drop).expect_err("no permission");
    assert!(error.to_string().contains("same user"), "{error}");
}

#[test]
fn a_file_that_was_cut_while_it_was_mapped_is_an_error_of_every_verb() {
    let dir = Dir::new();
    let (cut, whole) = (dir.path("cut"), dir.path("whole"));
    let make = |path: &Path| ShmFabric::create(&[path.to_owned()], 1 << 20).expect("a file");
    let (fabric, other) = (make(&cut), make(&whole));
    let connect = |fabric: &ShmFabric| fabric.connect(&fabric.new_identity()).expect("a connection");
    let (endpoint, spared) = (connect(&fabric), connect(&other));
    assert_eq!((faa(&endpoint, word(0), 5), faa(&spared, word(0), 6)), (Ok(0), Ok(0)));
    fs::OpenOptions::new().write(true).open(&cut).expect("the file").set_len(8192).expect("it is cut");
    // Within what is left, and beyond it.
    assert_eq!(faa(&endpoint, word(0), 1), Ok(5));
    for far in [word(70_000), word(70_001), word(0)] {
        let error = faa(&endpoint, far, 1).expect_err("it is gone");
        assert!(
            matches!(&error, FabricError::Unreachable { node, reason }
            if node.index() == 0 && reason.contains("cut while it was mapped")),
            "{error}"
        );
        let run = |read| Executor::new().block_on(&endpoint, read);
        assert!(run(endpoint.span(OpKind::Other).read(far, 64)).is_err());
    }
    assert_eq!(faa(&spared, word(0), 1), Ok(6), "another file is not affected");
    drop((endpoint, fabric));
    // Its place in the table is taken by the next region, which is whole.
    let again = connect(&make(&dir.path("again")));
    assert_eq!((faa(&again, word(70_000), 1), faa(&again, word(70_000), 1)), (Ok(0), Ok(1)));
    assert_eq!(fs::metadata(&cut).expect("the file").len(), 8192);
}

#[test]
fn a_bus_error_outside_all_regions_ends_the_process_as_before() {
    let dir = Dir::new();
    let file = dir.path("file");
    let _fabric = ShmFabric::create(std::slice::from_ref(&file), LEN).expect("a file");
    let mut peer = Peer::start("client", &file);
    let pid = rustix::process::Pid::from_raw(peer.child.id() as i32).expect("a process");
    // The standard library's handler, which was there before, takes the first one that was sent, and puts the default
    // back.
    let status = loop {
        rustix::process::kill_process(pid, rustix::process::Signal::BUS).expect("SIGBUS");
        std::thread::sleep(std::time::Duration::from_millis(20));
        if let Some(status) = peer.child.try_wait().expect("its end") {
            break status;
        }
    };
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(rustix::process::Signal::BUS.as_raw()));
}

#[test]
fn nothing_is_reserved_in_a_file_before_it_is_known() {
    use std::os::unix::fs::MetadataExt;
    let dir = Dir::new();
    let sparse = dir.path("sparse");
    fs::File::create(&sparse).expect("a file").set_len(1 << 40).expect("no space is taken");
    let blocks = || fs::metadata(&sparse).expect("the file").blocks();
    let before = blocks();
    let refuse = |_: NodeId, head: &[u8]| {
        assert_eq!((head.len(), head.iter().max()), (4096, Some(&0)));
        Err(FabricError::Settings("no".to_owned()))
    };
    for read_only in [false, true] {
        let error = ShmFabric::open_as(std::slice::from_ref(&sparse), read_only, refuse).map(drop);
        assert_eq!(error, Err(FabricError::Settings("no".to_owned())));
        assert_eq!(blocks(), before);
    }
    // And no more than is in use.
    ShmFabric::open_as(std::slice::from_ref(&sparse), false, |_, _| Ok::<_, FabricError>(1 << 20))
        .expect("there is room");
    assert!((1..=1 << 12).contains(&(blocks() - before)), "{} blocks", blocks() - before);
}
