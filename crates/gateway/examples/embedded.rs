//! A gateway inside of a program that works on the same pool itself.
//!
//! `cargo run -p farindex-gateway --example embedded [PATH [ADDRESS]]` serves the pool of that path until its standard input
//! ends; without a path, a pool of its own, to which it then talks as a client would.

use farindex::Pool;
use farindex_gateway::{Gateway, Settings};
use std::io::{Read, Write};
use std::net::TcpStream;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (path, address) = (args.next(), args.next());
    let settings = Settings::new(address.as_deref().unwrap_or("127.0.0.1:0").parse()?);
    if let Some(path) = path {
        let gateway = Gateway::start(move || Pool::open(format!("shm:{path}").as_str()), settings)?;
        println!("gateway at {}", gateway.address());
        std::io::stdin().read_to_end(&mut Vec::new())?;
        return Ok(gateway.stop()?);
    }
    let pool = Pool::in_memory(64 << 20)?;
    let served = pool.clone();
    let gateway = Gateway::start(move || Ok(served.clone()), settings)?;
    let mut client = TcpStream::connect(gateway.address())?;
    client.write_all(b"INCR visits\r\n")?;
    let mut reply = [0; 4];
    client.read_exact(&mut reply)?;
    assert_eq!(&reply, b":1\r\n");
    // The same key, seen from the library: a header byte, and the digits.
    let index = pool.session()?.open_index("redis")?;
    assert_eq!(index.get("visits")?.as_deref(), Some(&b"\xa11"[..]));
    println!("a client counted, and the program sees it");
    Ok(gateway.stop()?)
}
