//! The first program: a pool in this process's memory, an index, a key.

use farindex::{IndexConfig, Pool};

fn main() -> Result<(), farindex::Error> {
    let pool = Pool::open("memory:64MiB")?;
    let session = pool.session()?;
    let index = session.create_index("demo", &IndexConfig::default())?;
    index.upsert("far", "memory")?;
    assert_eq!(index.get("far")?.as_deref(), Some(&b"memory"[..]));
    println!("far -> memory");
    Ok(())
}
