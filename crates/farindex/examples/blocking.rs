//! The first program: a pool in this process's memory, an index, a key.

use farindex::Pool;

fn main() -> Result<(), farindex::Error> {
    let pool = Pool::in_memory(64 << 20)?;
    let session = pool.session()?;
    let index = session.index("demo").create()?;
    index.upsert("far", "memory")?;
    assert_eq!(index.get("far")?.as_deref(), Some(&b"memory"[..]));
    println!("far -> memory");
    Ok(())
}
