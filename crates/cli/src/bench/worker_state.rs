//! An index of a pool as the driver measures it.

use farindex::{AnyIndex, IndexConfig, Pool, Session};
use farindex_bench::{Bench, Worker};
use farindex_fabric::{Endpoint, Executor, OpKind};
use std::rc::Rc;

/// An index by its name: every thread opens it in a session of its own.
pub(crate) struct Subject {
    pub(crate) pool: Pool,
    pub(crate) name: String,
    pub(crate) coalesce: bool,
}

impl Subject {
    /// Creates the index.
    pub(crate) fn create(pool: Pool, name: &str, config: &IndexConfig) -> Result<Self, farindex::Error> {
        pool.session()?.create_index(name, config)?;
        Ok(Self::existing(pool, name))
    }
    /// An index that is there.
    pub(crate) fn existing(pool: Pool, name: &str) -> Self {
        Subject { pool, name: name.to_owned(), coalesce: false }
    }
    /// Opened otherwise.
    pub(crate) fn coalesce(self, coalesce: bool) -> Self {
        Subject { coalesce, ..self }
    }
}

/// One thread's part.
pub(crate) struct WorkerState {
    // Dropped before the session it lives in.
    index: Rc<AnyIndex>,
    session: Session,
}

impl Bench for Subject {
    type Worker = WorkerState;
    fn worker(&self, _: usize, _: &Executor) -> Result<WorkerState, String> {
        let open = || {
            let session = self.pool.session()?;
            let index = session.index(&self.name).coalesce(self.coalesce).open()?.async_handle();
            Ok(WorkerState { index, session })
        };
        open().map_err(|error: farindex::Error| error.to_string())
    }
}

impl Worker for WorkerState {
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
