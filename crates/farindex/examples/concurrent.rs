//! Many operations in flight on one thread.

use farindex::{PointIndex, Pool};

fn main() -> Result<(), farindex::Error> {
    let pool = Pool::in_memory(64 << 20)?;
    let session = pool.session()?;
    let index = session.index("demo").create()?.async_handle();
    let upserts: Vec<_> = (0..1000u64)
        .map(|i| {
            let index = index.clone();
            session.spawn(async move { index.upsert(&i.to_le_bytes(), &(i * i).to_le_bytes()).await })
        })
        .collect();
    for upsert in upserts {
        session.block_on(upsert)?;
    }
    let square = session.block_on(index.get(&31u64.to_le_bytes()))?;
    assert_eq!(square.as_deref(), Some(&961u64.to_le_bytes()[..]));
    println!("1000 upserts, {} verbs", session.meter().total().verbs());
    Ok(())
}
