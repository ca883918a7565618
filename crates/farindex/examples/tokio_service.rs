//! A TCP service on tokio that keeps its data in far memory. One line is one request:
//!
//! ```text
//! put KEY VALUE    -> ok
//! get KEY          -> = VALUE, or "none"
//! del KEY          -> ok, or "none"
//! ```
//!
//! Every connection is a task, and all tasks share one [`Handle`]. The program also runs clients against itself, checks
//! what they read, and ends. `tokio_service [POOL]` takes a pool that exists, such as `shm:PATH`,
//! in place of one in its own memory.

use farindex::{Handle, Pool, Remove};
use std::error::Error;
use std::net::SocketAddr;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufStream};
use tokio::net::{TcpListener, TcpStream};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

async fn answer(handle: &Handle, line: &str) -> std::result::Result<Vec<u8>, farindex::Error> {
    let mut words = line.splitn(3, ' ');
    Ok(match (words.next(), words.next(), words.next()) {
        (Some("put"), Some(key), Some(value)) => {
            handle.upsert(key, value).await?;
            b"ok".to_vec()
        }
        (Some("get"), Some(key), None) => match handle.get(key).await? {
            Some(value) => [b"= ", &value[..]].concat(),
            None => b"none".to_vec(),
        },
        (Some("del"), Some(key), None) => match handle.remove(key).await? {
            Remove::Removed => b"ok".to_vec(),
            Remove::Absent => b"none".to_vec(),
        },
        _ => b"error: put KEY VALUE, get KEY or del KEY".to_vec(),
    })
}

async fn serve(handle: Handle, stream: TcpStream) -> Result<()> {
    let mut stream = BufStream::new(stream);
    let mut line = String::new();
    while stream.read_line(&mut line).await? > 0 {
        let mut reply = answer(&handle, line.trim_end()).await.unwrap_or_else(|error| format!("error: {error}").into());
        reply.push(b'\n');
        stream.write_all(&reply).await?;
        stream.flush().await?;
        line.clear();
    }
    Ok(())
}

/// Sends one request and checks the reply.
async fn expect(stream: &mut BufStream<TcpStream>, request: &str, expected: &str) -> Result<()> {
    stream.write_all(format!("{request}\n").as_bytes()).await?;
    stream.flush().await?;
    let mut reply = String::new();
    stream.read_line(&mut reply).await?;
    if reply.trim_end() != expected {
        return Err(format!("{request}: {reply:?}, not {expected:?}").into());
    }
    Ok(())
}

async fn client(number: u32, address: SocketAddr) -> Result<()> {
    let mut stream = BufStream::new(TcpStream::connect(address).await?);
    for i in 0..100 {
        let (key, value) = (format!("key-{number}-{i}"), format!("value {i} of {number}"));
        expect(&mut stream, &format!("get {key}"), "none").await?;
        expect(&mut stream, &format!("put {key} {value}"), "ok").await?;
        expect(&mut stream, &format!("get {key}"), &format!("= {value}")).await?;
        expect(&mut stream, &format!("del {key}"), "ok").await?;
    }
    Ok(())
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1);
    let handle = tokio::task::spawn_blocking(move || {
        let pool = match &url {
            Some(url) => Pool::open(url)?,
            None => Pool::in_memory(64 << 20)?,
        };
        pool.session()?.index("service").open_or_create()?;
        Handle::open(&pool, "service")
    });
    let handle = handle.await??;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(handle.clone(), stream));
        }
    });
    let clients: Vec<_> = (0..16).map(|number| tokio::spawn(client(number, address))).collect();
    for client in clients {
        client.await??;
    }
    server.abort();
    println!("16 clients, 6400 requests: every reply was right");
    Ok(())
}
