//! An index of a pool as the driver measures it.

use super::{Bench, Worker};
use farindex::{AnyIndex, IndexConfig, Pool, Session};
use farindex_fabric::{Endpoint, Executor, OpKind};
use std::rc::Rc;

/// An index by its name: every thread opens it in a session of its own.
pub struct PoolIndexBench {
    /// Where it is.
    pub pool: Pool,
    /// Its name.
    pub name: String,
    /// Does this process use a lock table?
    pub coalesce: bool,
}

impl PoolIndexBench {
    /// Creates the index.
    pub fn create(pool: Pool, name: &str, config: &IndexConfig) -> Result<Self, farindex::Error> {
        pool.session()?.create_index(name, config)?;
        Ok(Self::existing(pool, name))
    }
    /// An index that is there.
    pub fn existing(pool: Pool, name: &str) -> Self {
        PoolIndexBench { pool, name: name.to_owned(), coalesce: false }
    }
    /// Opened otherwise.
    pub fn coalesce(self, coalesce: bool) -> Self {
        PoolIndexBench { coalesce, ..self }
    }
}

/// One thread's part.
pub struct PoolIndexWorker {
    // Dropped before the session it lives in.
    index: Rc<AnyIndex>,
    session: Session,
}

impl Bench for PoolIndexBench {
    type Worker = PoolIndexWorker;
    fn worker(&self, _: usize, _: &Executor) -> Result<PoolIndexWorker, String> {
        let open = || {
            let session = self.pool.session()?;
            let index = session.index(&self.name).coalesce(self.coalesce).open()?.async_handle();
            Ok(PoolIndexWorker { index, session })
        };
        open().map_err(|error: farindex::Error| error.to_string())
    }
}

impl Worker for PoolIndexWorker {
    type Index = AnyIndex;
    fn index(&self) -> &AnyIndex {
        &self.index
    }
    fn endpoint(&self) -> Option<&Endpoint> {
        Some(self.session.raw().endpoint())
    }
    /// The allocator's account, which sees what is retired and what lies in stock as well: a walk would count only what
    /// is reachable, and take as long as reading everything.
    async fn far_bytes(&self) -> Option<u64> {
        let session = self.session.raw();
        // What could be given back is no use of memory.
        session.flush().await.ok()?;
        let usage = farindex::usage(session.pool(), &session.span(OpKind::Other)).await.ok()?;
        Some(usage.iter().map(|node| node.used_bytes).sum())
    }
    async fn close(&self) -> Result<(), String> {
        self.session.raw().flush().await.map_err(|error| error.to_string())
    }
}
