//! The control channel, from both ends.

use farindex_fabric::call::{ECHO, GATHER, MAX_CALL_LEN, gather_request};
use farindex_fabric::{CallTable, FabricError, Identity, NodeId};
use farindex_remote::client::ControlSettings;
use farindex_remote::control::{Code, Frame, Hello, Message};
use farindex_remote::{
    Cluster, Control, ControlError, Link, Metrics, Node, NodeMemory, NodeSettings, Peer, Plane, PlaneKind, Refusal,
    Rights, Tokens,
};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A data plane that answers an attach with its request, and records the clients.
#[derive(Default)]
struct Echo(Mutex<Vec<Peer>>);

impl Echo {
    fn links(&self) -> Vec<u64> {
        self.0.lock().unwrap().iter().map(|peer| peer.link).collect()
    }
}

impl Plane for Echo {
    fn kind(&self) -> PlaneKind {
        PlaneKind::Other(77)
    }
    fn parameters(&self) -> Vec<u8> {
        vec![1, 2, 3]
    }
    fn attach(&self, peer: &Peer, request: &[u8]) -> Result<Vec<u8>, Refusal> {
        if request == b"no" {
            return Err("not like this".into());
        }
        self.0.lock().unwrap().push(peer.clone());
        Ok(request.to_vec())
    }
    fn detach(&self, link: u64) {
        self.0.lock().unwrap().retain(|peer| peer.link != link);
    }
}

const TOKENS: &str = "read-write 0123456789abcdef-rw\nread-only 0123456789abcdef-ro\n";

struct Served {
    node: Option<Node>,
    plane: Arc<Echo>,
    metrics: Metrics,
    addr: String,
}

fn serve_memory(memory: NodeMemory, listen: &str, tokens: &str) -> Served {
    let (plane, metrics) = (Arc::new(Echo::default()), Metrics::new());
    let tokens = if tokens.is_empty() { Tokens::open() } else { Tokens::parse(tokens).unwrap() };
    let mut settings = NodeSettings::new(listen.parse().unwrap(), tokens);
    settings.greeting = Duration::from_millis(300);
    settings.max_links = 8;
    let node = Node::start(Arc::new(memory), plane.clone(), settings, metrics.clone()).unwrap();
    let addr = node.addr().to_string();
    Served { node: Some(node), plane, metrics, addr }
}

fn serve(number: u16, tokens: &str) -> Served {
    serve_memory(NodeMemory::anonymous(NodeId::new(number), 1 << 16).unwrap(), "127.0.0.1:0", tokens)
}

fn with_token(line: &str) -> ControlSettings {
    let token = if line.is_empty() { Tokens::open() } else { Tokens::parse(line).unwrap() };
    ControlSettings { token: token.first(), deadline: Duration::from_secs(2) }
}

fn until(what: &str, mut reached: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !reached() {
        assert!(begun.elapsed() < Duration::from_secs(10), "timed out: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_client_connects_attaches_and_leaves() {
    let served = serve(0, TOKENS);
    let cluster = Cluster::connect(std::slice::from_ref(&served.addr), with_token(TOKENS)).unwrap();
    let welcome = &cluster.welcomes()[0];
    assert_eq!((welcome.len, welcome.rights, &welcome.parameters[..]), (1 << 16, Rights::ReadWrite, &[1, 2, 3][..]));
    let client = cluster.client(&cluster.new_identity().unwrap()).unwrap();
    let control = &client.controls()[0];
    assert_eq!(control.attach_now(b"hello".to_vec()), Ok(b"hello".to_vec()));
    let refused = control.attach_now(b"no".to_vec());
    assert!(matches!(&refused, Err(ControlError::Refused { text, .. }) if text == "not like this"), "{refused:?}");
    assert_eq!(served.plane.links().len(), 1, "a refusal costs nothing else");
    drop(client);
    until("the plane to hear of it", || served.plane.links().is_empty());
    let text = served.metrics.text();
    assert!(text.contains("farindex_attached_total 1\n") && text.contains("farindex_clients 0\n"), "{text}");
}

#[test]
fn tokens_and_places_are_checked() {
    let (zero, one) = (serve(0, TOKENS), serve(1, TOKENS));
    let addrs = |nodes: &[&Served]| nodes.iter().map(|node| node.addr.clone()).collect::<Vec<_>>();
    let good = with_token(TOKENS);
    assert_eq!(Cluster::connect(&addrs(&[&zero, &one]), good.clone()).unwrap().node_infos().len(), 2);
    let wrong = Cluster::connect(&addrs(&[&one, &zero]), good).err().unwrap();
    assert!(wrong.to_string().contains("--node-id"), "{wrong}");
    for token in ["", "read-write 0123456789abcdef-xx"] {
        let wrong = Cluster::connect(&addrs(&[&zero]), with_token(token)).err().unwrap();
        assert!(matches!(&wrong, ControlError::Refused { code: Code::BadToken, .. }), "{wrong}");
        assert!(wrong.to_string().contains("--token-file"), "{wrong}");
    }
    assert!(zero.metrics.text().contains("farindex_bad_tokens_total 2\n"));
    // A token for reading gets in, and may not revoke a client.
    let reader = with_token("read-only 0123456789abcdef-ro");
    let cluster = Cluster::connect(&addrs(&[&zero]), reader).unwrap();
    assert_eq!(cluster.rights(), Rights::ReadOnly);
    let client = cluster.client(&cluster.new_identity().unwrap()).unwrap();
    let refused = client.controls()[0].revoke(cluster.new_identity().unwrap()).wait().unwrap_err();
    assert_eq!(refused.of_node(NodeId::new(0)), FabricError::ReadOnly(NodeId::new(0)));
}

#[test]
fn open_nodes_stay_on_loopback() {
    let memory = Arc::new(NodeMemory::anonymous(NodeId::new(0), 1 << 16).unwrap());
    let settings = NodeSettings::new("0.0.0.0:0".parse().unwrap(), Tokens::open());
    let refused = Node::start(memory, Arc::new(Echo::default()), settings, Metrics::new()).err().unwrap();
    assert!(refused.to_string().contains("--token-file"), "{refused}");
}

#[test]
fn a_revoked_client_gets_an_error_and_stays_revoked() {
    let served = serve(0, "");
    let cluster = Cluster::connect(std::slice::from_ref(&served.addr), with_token("")).unwrap();
    let [victim, other] = [cluster.new_identity().unwrap(), cluster.new_identity().unwrap()];
    let (theirs, mine) = (cluster.client(&victim).unwrap(), cluster.client(&other).unwrap());
    theirs.controls()[0].attach_now(vec![1]).unwrap();
    mine.controls()[0].attach_now(vec![2]).unwrap();
    let before = theirs.controls()[0].generation();
    assert_eq!(mine.controls()[0].revoke(victim).wait(), Ok(Message::Revoked));
    assert_eq!(served.plane.links().len(), 1, "it is detached before the answer");
    until("the victim to hear of it", || theirs.controls()[0].link() == Link::Ended(ControlError::Revoked));
    assert!(theirs.controls()[0].generation() > before);
    let revenge = theirs.controls()[0].revoke(other).wait();
    assert_eq!(revenge, Err(ControlError::Revoked));
    drop(theirs);
    assert_eq!(cluster.client(&victim).err(), Some(ControlError::Revoked));
    assert_eq!(mine.controls()[0].link(), Link::Up);
    // A client that revokes itself gets an answer.
    assert_eq!(mine.controls()[0].revoke(other).wait(), Ok(Message::Revoked));
    until("it to be out", || matches!(mine.controls()[0].link(), Link::Ended(_)));
}

/// A client that violates the protocol loses its connection, and no other client is affected.
/// What a client has sent before it connects again does not take effect any more.
#[test]
fn a_client_that_connects_again_ends_what_it_had_attached() {
    let served = serve(0, "");
    let connect = || Cluster::connect(std::slice::from_ref(&served.addr), with_token("")).unwrap();
    let (here, elsewhere) = (connect(), connect());
    let identity = here.new_identity().unwrap();
    let (first, other) = (here.client(&identity).unwrap(), here.client(&here.new_identity().unwrap()).unwrap());
    first.controls()[0].attach_now(vec![1]).unwrap();
    other.controls()[0].attach_now(vec![2]).unwrap();
    let anonymous = Control::open(&served.addr, Identity::default(), &here.welcomes()[0], &with_token("")).unwrap();
    assert_eq!((first.controls()[0].connections(), served.plane.links().len()), (1, 2));
    let again = elsewhere.client(&identity).unwrap();
    let left: Vec<_> = served.plane.0.lock().unwrap().iter().map(|peer| peer.identity).collect();
    assert_eq!(left, [*other.identity()], "its Welcome comes after the end of what it had");
    drop(again);
    until("the first one to connect again", || first.controls()[0].connections() > 1);
    assert_eq!((other.controls()[0].connections(), anonymous.connections()), (1, 1));
    assert_eq!((other.controls()[0].link(), anonymous.link()), (Link::Up, Link::Up));
}

#[test]
fn a_hostile_connection_ends_and_no_other() {
    let served = serve(0, "");
    let cluster = Cluster::connect(std::slice::from_ref(&served.addr), with_token("")).unwrap();
    let other_client = cluster.client(&cluster.new_identity().unwrap()).unwrap();
    other_client.controls()[0].attach_now(vec![1]).unwrap();
    let generation = other_client.controls()[0].generation();

    let identity = Identity { token: 3, ..Identity::default() };
    let frame = |message| {
        let mut bytes = Vec::new();
        Frame { request: 1, message }.encode(&mut bytes);
        bytes
    };
    let hello = frame(Message::Hello(Hello { node: None, identity, proof: [0; 32] }));
    let anonymous_hello = frame(Message::Hello(Hello { node: None, identity: Identity::default(), proof: [0; 32] }));
    let mut old = hello.clone();
    old[20] = 99;
    let mut magic = hello.clone();
    magic[12] = 0;
    let mut reserved = frame(Message::Ping);
    reserved[5] = 1;
    let mut node = hello.clone();
    node[22..24].copy_from_slice(&7u16.to_le_bytes());
    // What is sent, and what is heard before the end.
    let table: Vec<(&str, Vec<u8>, Code, &str)> = vec![
        ("another protocol", b"GET / HTTP/1.1\r\n\r\n".to_vec(), Code::Malformed, "control protocol"),
        ("a frame of 16 MiB", vec![0, 0, 0, 1], Code::Malformed, "longer than any"),
        ("a frame of no length", vec![0, 0, 0, 0], Code::Malformed, "middle of a field"),
        ("wrong magic", magic, Code::Malformed, "control protocol"),
        ("another version", old, Code::Version, "version 99"),
        ("another node", node, Code::WrongNode, "memory node 0"),
        ("no greeting", frame(Message::Ping), Code::Malformed, "Hello first"),
        ("no kind of message", [&[8, 0, 0, 0, 200, 0, 0, 0][..], &[0; 4]].concat(), Code::Malformed, "kind 200"),
        ("reserved bytes", [hello.clone(), reserved].concat(), Code::Malformed, "reserved"),
        ("two greetings", [hello.clone(), hello.clone()].concat(), Code::Malformed, "does not send this"),
        ("an answer", [hello.clone(), frame(Message::Revoked)].concat(), Code::Malformed, "does not send this"),
        ("silence", Vec::new(), Code::Malformed, "in time"),
    ];
    for (what, sent, code, heard) in table {
        let (got, text) = last_words(&served.addr, &sent);
        assert_eq!(got, code, "{what}: {text}");
        assert!(text.contains(heard), "{what}: {text}");
    }
    // What is refused without ending the connection: only what follows ends it.
    for (what, sent, heard) in [
        ("attaching without an identity", frame(Message::Attach(vec![])), "without an identity"),
        ("revoking no client", frame(Message::Revoke(Identity::default())), "names no client"),
    ] {
        let errors = errors(&served.addr, &[anonymous_hello.clone(), sent, frame(Message::Revoked)].concat());
        assert!(errors.len() == 2 && errors[0].1.contains(heard), "{what}: {errors:?}");
    }
    // Half a greeting, and away.
    drop(TcpStream::connect(&served.addr).map(|mut stream| stream.write_all(&hello[..20])));
    // Too many.
    let many: Vec<_> = (0..12).filter_map(|_| TcpStream::connect(&served.addr).ok()).collect();
    until("a refusal", || served.metrics.text().contains("refused"));
    drop(many);
    assert_eq!(other_client.controls()[0].attach_now(vec![9]), Ok(vec![9]));
    assert_eq!(other_client.controls()[0].generation(), generation);
}

/// Sends bytes to a node; returns the errors that it says before it ends the connection.
fn errors(addr: &str, sent: &[u8]) -> Vec<(Code, String)> {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream.write_all(sent).unwrap();
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).unwrap();
    let mut errors = Vec::new();
    while let Some((frame, len)) = Frame::decode(&heard).unwrap() {
        heard.drain(..len);
        if let Message::Error { code, text } = frame.message {
            errors.push((code, text));
        }
    }
    errors
}

fn last_words(addr: &str, sent: &[u8]) -> (Code, String) {
    errors(addr, sent).pop().expect("a reason")
}

/// A client that sends requests and reads no answers is disconnected when its answers reach the node's limit.
#[test]
fn a_client_that_leaves_answers_unread_is_disconnected() {
    let served = serve(0, "");
    let cluster = Cluster::connect(std::slice::from_ref(&served.addr), with_token("")).unwrap();
    let other_client = cluster.client(&cluster.new_identity().unwrap()).unwrap();
    let generation = other_client.controls()[0].generation();
    let identity = Identity { token: 3, ..Identity::default() };
    let (mut hello, mut sent) = (Vec::new(), Vec::new());
    Frame { request: 1, message: Message::Hello(Hello { node: None, identity, proof: [0; 32] }) }.encode(&mut hello);
    // The plane answers with what it is sent: 30,000 bytes each time.
    for request in 0..100 {
        Frame { request, message: Message::Attach(vec![1; 30_000]) }.encode(&mut sent);
    }
    let mut stream = TcpStream::connect(&served.addr).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
    stream.write_all(&hello).unwrap();
    // What the system keeps for a connection is taken first; it is a few MiB at most.
    let ended = (0..40).find_map(|_| stream.write_all(&sent).err()).expect("the node takes 120 MB of requests");
    assert!(matches!(ended.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{ended}");
    until("the plane to detach it", || served.plane.links().is_empty());
    assert_eq!(other_client.controls()[0].attach_now(vec![9]), Ok(vec![9]));
    assert_eq!(other_client.controls()[0].generation(), generation);
}

#[test]
fn a_plane_can_expel_a_client() {
    let served = serve(0, "");
    let cluster = Cluster::connect(std::slice::from_ref(&served.addr), with_token("")).unwrap();
    let client = cluster.client(&cluster.new_identity().unwrap()).unwrap();
    let control = &client.controls()[0];
    control.attach_now(vec![1]).unwrap();
    let generation = control.generation();
    let peer = served.plane.0.lock().unwrap()[0].clone();
    peer.expel("its third request made no sense");
    until("the connection to end", || control.generation() > generation);
    until("the plane to detach it", || !served.plane.links().contains(&peer.link));
    // It is no revocation: the client may come again.
    until("it to be back", || control.link() == Link::Up);
}

/// A node that ends says so; one that comes back from its file has the same memory; one that does not has another.
#[test]
fn clients_reconnect_to_a_restarted_node() {
    let path = std::env::temp_dir().join(format!("farindex-back-{}", std::process::id()));
    let node = NodeId::new(0);
    let mut served = serve_memory(NodeMemory::file(node, &path, Some(1 << 16)).unwrap(), "127.0.0.1:0", "");
    let addr = served.addr.clone();
    let cluster = Cluster::connect(std::slice::from_ref(&addr), with_token("")).unwrap();
    let [victim, other] = [cluster.new_identity().unwrap(), cluster.new_identity().unwrap()];
    let client = cluster.client(&other).unwrap();
    let control = &client.controls()[0];
    let instance = control.welcome().unwrap().instance;
    assert_eq!(control.revoke(victim).wait(), Ok(Message::Revoked));
    served.node.take().unwrap().stop();
    until("the client to hear of it", || matches!(control.link(), Link::Down(_)));
    let down = control.attach_now(vec![1]).unwrap_err().of_node(node);
    assert!(matches!(&down, FabricError::Unreachable { node, .. } if *node == NodeId::new(0)), "{down}");
    drop(served);

    let rebind = |memory: NodeMemory| {
        let listen: SocketAddr = addr.parse().unwrap();
        serve_memory(memory, &listen.to_string(), "")
    };
    let mut served = rebind(NodeMemory::file(node, &path, None).unwrap());
    until("the client to be back", || control.link() == Link::Up);
    assert_ne!(control.welcome().unwrap().instance, instance);
    assert_eq!(cluster.client(&victim).err(), Some(ControlError::Revoked), "a revocation persists across restarts");
    served.node.take().unwrap().stop();
    drop(served);

    let served = rebind(NodeMemory::anonymous(node, 1 << 16).unwrap());
    until("the client to notice", || matches!(control.link(), Link::Ended(ControlError::OtherMemory { .. })));
    drop(served);
    std::fs::remove_file(&path).unwrap();
    std::fs::remove_file(path.with_extension("node")).unwrap();
}

#[test]
fn silence_is_an_error() {
    // A process listens and sends nothing.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let settings = ControlSettings { deadline: Duration::from_millis(100), ..ControlSettings::default() };
    let error = Control::look(&addr, &settings).unwrap_err();
    assert!(matches!(error, ControlError::Silent { .. }), "{error}");
    drop(listener);
    let error = Control::look(&addr, &settings).unwrap_err();
    assert!(error.to_string().contains("farindex serve"), "{error}");
}

#[test]
fn metrics_have_their_own_port() {
    let metrics = Metrics::new();
    metrics.admitted.inc();
    let server = metrics.serve("127.0.0.1:0".parse().unwrap()).unwrap();
    let get = |path: &str| {
        let mut stream = TcpStream::connect(server.addr()).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    assert!(get("/metrics").contains("farindex_admitted_total 1\n"));
    assert!(get("/").starts_with("HTTP/1.1 404"));
    // Clients that send nothing, or never end a request, do not delay others, and are disconnected in the end.
    let idle: Vec<_> = (0..40)
        .map(|i| {
            let mut stream = TcpStream::connect(server.addr()).unwrap();
            if i % 2 == 1 {
                write!(stream, "GET /metrics HTTP/1.1\r\n").unwrap();
            }
            stream
        })
        .collect();
    let asked = Instant::now();
    assert!(get("/metrics").contains("farindex_admitted_total 1\n"));
    assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
    for mut stream in idle {
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let ended = stream.read(&mut [0; 16]);
        let timed_out = |error: &std::io::Error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
        assert!(!ended.as_ref().is_err_and(timed_out), "an idle connection is closed: {ended:?}");
    }
    let asked = Instant::now();
    drop((TcpStream::connect(server.addr()).unwrap(), server));
    assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
}

#[test]
fn calls_are_answered_over_the_control_channel() {
    let table = CallTable::builtin().with(9, |_, _| Ok(vec![0; MAX_CALL_LEN + 1]));
    let memory = NodeMemory::anonymous(NodeId::new(0), 1 << 16).unwrap();
    let served = serve_memory(memory.with_call_handler(table.into_handler()), "127.0.0.1:0", "");
    let cluster = Cluster::connect(std::slice::from_ref(&served.addr), with_token("")).unwrap();
    assert!(cluster.answers_calls());
    let client = cluster.client(&cluster.new_identity().unwrap()).unwrap();
    let control = &client.controls()[0];
    let call = |words: &[u64]| control.call(words.iter().flat_map(|word| word.to_le_bytes()).collect()).wait();
    let ones = [ECHO.to_le_bytes(), [1; 8]].concat();
    assert_eq!(control.call(ones).wait(), Ok(Message::Called(vec![1; 8])));
    for (request, why) in [
        (&[77][..], "no handler 77"),
        (&[9], "a reply of"),
        (&[], "begins with the number"),
        (&[GATHER, 1], "two words"),
    ] {
        match call(request) {
            Err(ControlError::Refused { code: Code::Refused, text, .. }) => assert!(text.contains(why), "{text}"),
            other => panic!("{why}: {other:?}"),
        }
    }
    assert_eq!(call(&gather_request(&[(0, 8)])), Ok(Message::Called(vec![0; 8])));
    assert!(served.metrics.text().contains("farindex_called_total 2"), "{}", served.metrics.text());
    // A connection without an identity only looks. A node without a handler says that it has none.
    let anonymous = Control::open(&served.addr, Identity::default(), &cluster.welcomes()[0], &with_token("")).unwrap();
    let refused = |answer: Result<Message, ControlError>, why: &str| {
        assert!(matches!(&answer, Err(ControlError::Refused { text, .. }) if text.contains(why)), "{answer:?}");
    };
    refused(anonymous.call(ECHO.to_le_bytes().to_vec()).wait(), "without an identity");
    let silent = serve(0, "");
    let cluster = Cluster::connect(std::slice::from_ref(&silent.addr), with_token("")).unwrap();
    assert!(!cluster.answers_calls());
    let client = cluster.client(&cluster.new_identity().unwrap()).unwrap();
    refused(client.controls()[0].call(ECHO.to_le_bytes().to_vec()).wait(), "answers no calls");
}
