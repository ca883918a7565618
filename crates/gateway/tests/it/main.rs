//! A gateway in this process on a pool in this process's memory, and clients that talk to it over TCP.

mod client;
mod commands;
mod concurrency;
mod limits;

use client::{Client, Value};
use farindex::Pool;
use farindex_gateway::{Gateway, Settings};

/// Settings with a free port.
fn settings() -> Settings {
    Settings::new("127.0.0.1:0".parse().expect("an address"))
}

/// A pool that gateways of this process share.
fn pool() -> Pool {
    Pool::in_memory(256 << 20).expect("a pool")
}

/// A gateway on a pool.
fn gateway(pool: &Pool, settings: Settings) -> Gateway {
    let pool = pool.clone();
    Gateway::start(move || Ok(pool.clone()), settings).expect("a gateway")
}

/// A gateway on a pool of its own, and a client of it.
fn alone() -> (Gateway, Client) {
    let gateway = gateway(&pool(), settings());
    let client = Client::connect(gateway.address());
    (gateway, client)
}

/// What a command that is typed as words must reply.
#[track_caller]
fn expect(client: &mut Client, command: &str, reply: impl Into<Value>) {
    assert_eq!(client.words(command), reply.into(), "{command}");
}
