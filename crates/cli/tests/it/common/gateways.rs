//! Gateways as processes, one of which is killed over and over: clients of the other see no error, everything that was
//! acknowledged is there, and histories recorded at the clients are linearizable.
//!
//! `FARINDEX_GATEWAY_KILLS=50` kills as often; a few times unless set.

use super::{run, start};
use farindex_check::{Call, ClientLog, Limits, Outcome, Recorder, Stamps, Verdict, check};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const LEASE: Duration = Duration::from_secs(2);

/// A gateway, which is killed when it is dropped.
pub(crate) struct Gateway {
    pub(crate) child: Child,
    pub(crate) address: String,
}

impl Gateway {
    /// On a pool: its path, or `--connect` with an address.
    pub(crate) fn start(pool: &[&str], flags: &[&str]) -> Self {
        let gateway = ["gateway", "--listen", "127.0.0.1:0", "--sweep-pause", "200ms"];
        let mut child = start(&[&gateway[..], pool, flags].concat());
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
        let address = line.trim_end().strip_prefix("gateway at ").expect("where it listens").to_owned();
        Gateway { child, address }
    }
    fn kill(&mut self) {
        self.child.kill().expect("SIGKILL");
        self.child.wait().expect("its end");
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client that notices that its gateway is gone.
pub(crate) struct Client(BufReader<TcpStream>);

impl Client {
    pub(crate) fn connect(address: &str) -> Option<Self> {
        let stream = TcpStream::connect(address).ok()?;
        stream.set_nodelay(true).expect("an option");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("an option");
        Some(Client(BufReader::new(stream)))
    }
    /// The reply to a command of words: its first line, or the byte string; `None` if the gateway is gone.
    pub(crate) fn call(&mut self, command: &str) -> Option<String> {
        let words: Vec<&str> = command.split(' ').collect();
        let mut bytes = format!("*{}\r\n", words.len());
        for word in words {
            bytes.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.0.get_mut().write_all(bytes.as_bytes()).ok()?;
        let mut line = String::new();
        match self.0.read_line(&mut line) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("no reply to {command} for 30 s"),
            read => _ = read.ok()?,
        }
        let line = line.strip_suffix("\r\n")?.to_owned();
        let Some(len) = line.strip_prefix('$').filter(|len| *len != "-1") else { return Some(line) };
        let mut value = vec![0; len.parse::<usize>().expect("a length") + 2];
        self.0.read_exact(&mut value).ok()?;
        value.truncate(value.len() - 2);
        Some(String::from_utf8(value).expect("values of this test are text"))
    }
}

fn draw(state: &mut u64, below: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state % below
}

/// What a client knows of its commands when it ends.
#[derive(Default)]
struct Known {
    /// Increments of the counter that all share, and of its own: acknowledged, and without a reply.
    shared: (u64, u64),
    own: (u64, u64),
    longest: Duration,
}

/// One client: works until it is told to leave, or its gateway is gone.
fn work(id: u64, round: u64, mut c: Client, log: &mut ClientLog, stamps: &Stamps, leave: &AtomicBool) -> Known {
    let mut known = Known::default();
    let mut state = 0x9E37_79B9_7F4A_7C15 ^ id << 40 ^ round << 8;
    let bytes = |text: &str| text.as_bytes().to_vec();
    for step in 0u64.. {
        if leave.load(Ordering::SeqCst) {
            break;
        }
        let began = Instant::now();
        known.shared.1 = 1;
        let Some(reply) = c.call("INCR shared") else { break };
        assert!(reply.starts_with(':'), "{reply}");
        known.shared = (known.shared.0 + 1, 0);
        known.own.1 = 1;
        let Some(reply) = c.call(&format!("HINCRBY own-{round} {id} 1")) else { break };
        assert_eq!(reply, format!(":{}", known.own.0 + 1), "nobody else counts there");
        known.own = (known.own.0 + 1, 0);
        // Lines that others read and write; few keys, few enough of them for the checker.
        if step < 300 {
            let (key, value) = (format!("{round}-{}", draw(&mut state, 3)), format!("{id}-{step}"));
            let (call, command) = match draw(&mut state, 5) {
                0 => (Call::Upsert { key: bytes(&key), value: bytes(&value) }, format!("SET {key} {value}")),
                1 => (Call::Insert { key: bytes(&key), value: bytes(&value) }, format!("SETNX {key} {value}")),
                2 => (Call::Remove { key: bytes(&key) }, format!("DEL {key}")),
                _ => (Call::Get { key: bytes(&key) }, format!("GET {key}")),
            };
            let ticket = log.invoke(call.clone(), stamps.tick());
            // Without a reply it stays pending: it may have taken effect or not.
            let Some(reply) = c.call(&command) else { break };
            let outcome = match (&call, reply.as_str()) {
                (Call::Upsert { .. }, "+OK") => Outcome::Written,
                (Call::Insert { .. }, ":1") => Outcome::Inserted,
                (Call::Insert { .. }, ":0") => Outcome::Exists,
                (Call::Remove { .. }, ":1") => Outcome::Removed,
                (Call::Remove { .. }, ":0") => Outcome::Absent,
                (Call::Get { .. }, "$-1") => Outcome::Value(None),
                (Call::Get { .. }, value) if !value.starts_with('-') => Outcome::Value(Some(bytes(value))),
                (_, reply) => panic!("{command}: {reply}"),
            };
            log.complete(ticket, stamps.tick(), outcome);
        }
        known.longest = known.longest.max(began.elapsed());
    }
    known
}

/// Kills one of two gateways on a pool, again and again.
pub(crate) fn kill_gateways(pool: &[&str]) {
    let kills: u64 = std::env::var("FARINDEX_GATEWAY_KILLS")
        .map_or(3, |kills| kills.parse().expect("FARINDEX_GATEWAY_KILLS: a number"));
    let survivor = Gateway::start(pool, &["--threads", "2"]);
    let mut c = Client::connect(&survivor.address).expect("a connection");
    let (mut counted, mut unsure, mut longest, mut state) = (0, 0, Duration::ZERO, 0x2545_F491_4F6C_DD1Du64);
    for round in 0..kills {
        let mut killed = Gateway::start(pool, &["--threads", "2"]);
        let (recorder, stamps, leave) = (Recorder::new(), Stamps::new(), AtomicBool::new(false));
        let mine: Vec<Known> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..6u64)
                .map(|id| {
                    let address = if id % 2 == 0 { &survivor.address } else { &killed.address };
                    let client = Client::connect(address).expect("a connection");
                    let (mut log, stamps, leave) = (recorder.client(id), &stamps, &leave);
                    scope.spawn(move || work(id, round, client, &mut log, stamps, leave))
                })
                .collect();
            std::thread::sleep(Duration::from_micros(20_000 + draw(&mut state, 200_000)));
            killed.kill();
            std::thread::sleep(Duration::from_millis(100));
            leave.store(true, Ordering::SeqCst);
            threads.into_iter().map(|thread| thread.join().expect("no client has seen an error")).collect()
        });
        for (id, known) in mine.iter().enumerate() {
            counted += known.shared.0;
            unsure += known.shared.1;
            if id % 2 == 0 {
                assert_eq!((known.shared.1, known.own.1), (0, 0), "a client of the survivor got no reply");
                longest = longest.max(known.longest);
            }
            let reply = c.call(&format!("HGET own-{round} {id}")).expect("a reply");
            let own: u64 = reply.parse().unwrap_or(0);
            let (acknowledged, open) = known.own;
            assert!(
                (acknowledged..=acknowledged + open).contains(&own),
                "round {round}, client {id}: {own} of {acknowledged}"
            );
        }
        let shared: u64 = c.call("GET shared").expect("a reply").parse().expect("a number");
        assert!((counted..=counted + unsure).contains(&shared), "round {round}: {shared} of {counted} and {unsure}");
        let history = recorder.finish().expect("all logs are closed");
        let report = check(&history, &Limits::default());
        assert_eq!(report.verdict, Verdict::Ok, "round {round}: {report:?}");
    }
    assert!(longest <= LEASE + Duration::from_secs(1), "a client of the survivor waited {longest:?}");
    println!("{kills} kills, {counted} acknowledged increments; a client of the survivor waited {longest:?} at most");
    drop(survivor);
    let repaired = run(&[&["pool", "check", "--repair"], pool].concat());
    assert_eq!(repaired.code, Some(0), "{}", repaired.text());
}
