//! Sessions that the thread of another runtime drives.

use crate::Session;
use std::convert::Infallible;
use std::future::Future;

/// For programs on an async runtime: the operations of an index await in tasks of the runtime's own thread.
impl Session {
    /// Drives the session inside of another runtime's thread, for as long as this future is polled: it carries out the
    /// verbs of all operations on the session's indexes, fires their deadlines, and runs what was
    /// [spawned](Self::spawn). Start it once, as a task of the thread that opened the session (`!Send`), and await the
    /// operations in any other task of that thread.
    ///
    /// ```
    /// use farindex::{PointIndex, Pool};
    /// use tokio::task::{LocalSet, spawn_local};
    ///
    /// let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    /// LocalSet::new().block_on(&runtime, async {
    ///     let session = Pool::in_memory(64 << 20)?.session()?;
    ///     let index = session.index("demo").create()?.async_handle();
    ///     let driver = spawn_local(session.drive());
    ///     let task = spawn_local(async move {
    ///         index.upsert(b"far", b"memory").await?;
    ///         index.get(b"far").await
    ///     });
    ///     assert_eq!(task.await.expect("no panic")?.as_deref(), Some(&b"memory"[..]));
    ///     driver.abort();
    ///     Ok::<_, farindex::Error>(())
    /// })?;
    /// # Ok::<(), farindex::Error>(())
    /// ```
    ///
    /// It keeps the session open until it is dropped.
    ///
    /// **Cost.** While verbs are in flight the future wakes itself after each poll, so the thread is busy, as in
    /// [`block_on`](Self::block_on), but the runtime's other tasks get their turns. If no verb completes for a
    /// millisecond it asks in growing intervals, of at most 2 ms, and the thread is idle in between. With nothing in
    /// flight it is not polled at all.
    ///
    /// **Undriven futures.** Without `drive`, [`run_until`](Self::run_until) or `block_on`, nothing moves the
    /// operations on a network: they never complete, not even by their deadline. In mapped memory (`memory:`, `shm:`)
    /// most verbs complete when they are posted, but an operation that waits for a lock needs its timer, and so a
    /// driver.
    ///
    /// **Dropped futures.** A lookup's future may be dropped at any time, but for SHARD's: a lookup there may complete a
    /// split, so what follows holds for it as well. A write that is dropped before it has completed may leave a lock
    /// behind that others can take over only when this client is gone; let it run in a task of its own, or use a
    /// [`Handle`](crate::Handle), whose operations always run to their end.
    ///
    /// **Do not block.** A method that blocks ([`Index::get`](crate::Index::get)) stops the runtime's thread, with all
    /// tasks that are in the middle of an operation.
    pub fn drive(&self) -> impl Future<Output = Infallible> + use<> {
        let session = self.clone();
        async move { session.run_until(std::future::pending()).await }
    }

    /// Runs one future to its end inside of another runtime's task, and drives the session meanwhile as
    /// [`drive`](Self::drive) does. The future is `!Send`; it needs no `LocalSet` in the runtime's main future.
    ///
    /// ```
    /// # use farindex::{PointIndex, Pool};
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    /// # runtime.block_on(async {
    /// # let session = Pool::in_memory(64 << 20)?.session()?;
    /// # let index = session.index("demo").create()?.async_handle();
    /// let limit = std::time::Duration::from_secs(1);
    /// let value = tokio::time::timeout(limit, session.run_until(index.get(b"far"))).await.expect("in time")?;
    /// # assert_eq!(value, None);
    /// # Ok::<_, farindex::Error>(())
    /// # })?;
    /// # Ok::<(), farindex::Error>(())
    /// ```
    ///
    /// # Panics
    ///
    /// A method of the session or its indexes that blocks panics inside of `future`, as it does inside of `block_on`.
    pub async fn run_until<T>(&self, future: impl Future<Output = T>) -> T {
        self.inner.executor.run_until(&self.inner.endpoint, future).await
    }
}
