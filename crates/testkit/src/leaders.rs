//! In the end: writes of one key wait for each other behind a lock table, and the one that leads is given up.
//!
//! Invariants: a group of writes takes effect once at most. If its leader is dropped before it has posted, the others of the
//! group wait again; if it has posted, they are answered, and nobody carries the group out once more. Every value is written by
//! one operation. So a value that others have replaced is never read again.

use crate::worker::{Shared, Worker};
use farindex_index::coalesce::{Coalescer, Fault};
use farindex_index::{AnyIndex, IndexConfig, IndexError, PointIndex, Upsert};
use farindex_pool::{PoolError, Session};
use farindex_sim::SimRng;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

const NAME: &str = "leaders";
const KEY: &[u8] = b"key";
/// Groups whose leaders are given up.
const ROUNDS: u64 = 16;
/// A leader is given up after so many polls at most.
const POLLS: u64 = 16;
/// The longest pause after that, as an exponent of nanoseconds: what it has posted may land meanwhile.
const PAUSE: u32 = 17;

/// Kinds whose upserts of a key that is there take no lock. The others leave one, for which others wait while the client lives.
pub(crate) fn leave_no_lock(kind: &str) -> bool {
    matches!(kind, "shard" | "race")
}

/// How a write of a group has ended.
type Wrote = Result<Upsert, IndexError>;

/// A write that waits for others, and its end.
struct Member<'i> {
    write: Pin<Box<dyn Future<Output = Wrote> + 'i>>,
    wrote: Option<Wrote>,
}

impl<'i> Member<'i> {
    fn new(index: &'i AnyIndex, value: &'i [u8]) -> Self {
        Member { write: Box::pin(index.upsert(KEY, value)), wrote: None }
    }

    /// Has it ended?
    fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        if self.wrote.is_none()
            && let Poll::Ready(wrote) = self.write.as_mut().poll(cx)
        {
            self.wrote = Some(wrote);
        }
        self.wrote.is_some()
    }
}

/// Another one who reads and writes the key, and notes each value that it reads.
struct Reader {
    session: Rc<Session>,
    index: AnyIndex,
    read: Vec<Vec<u8>>,
}

impl Reader {
    async fn read(&mut self) -> Result<(), IndexError> {
        let value = self.index.get(KEY).await?.map(|value| value.to_vec()).unwrap_or_default();
        if self.read.last() != Some(&value) {
            self.read.push(value);
        }
        Ok(())
    }

    /// A value that was read, was replaced, and was read again.
    fn back(&self) -> Option<&[u8]> {
        let is_back = |i: &usize| self.read[..*i].contains(&self.read[*i]);
        (1..self.read.len()).find(is_back).map(|i| &self.read[i][..])
    }
}

/// Takes the ends that a write may have here: it may be told that its leader was given up, or that there is no memory.
fn expect_usual(wrote: Wrote) -> Result<(), IndexError> {
    match wrote {
        Ok(_) | Err(IndexError::Interrupted | IndexError::Pool(PoolError::Full { .. })) => Ok(()),
        Err(error) => Err(error),
    }
}

/// One group: its leader is given up after so many polls, and the others go on after a pause in which the key is read and
/// written.
async fn give_up_leader(
    index: &AnyIndex,
    reader: &mut Reader,
    round: u64,
    polls: u64,
    pause: Duration,
) -> Result<(), IndexError> {
    let values: Vec<_> = (0..5).map(|i| format!("{round}.{i}").into_bytes()).collect();
    // The first write runs, so the others wait for it. Then the next one leads them.
    let mut first = Member::new(index, &values[0]);
    let mut leader = pin!(Worker::with_patience(polls, false, index.upsert(KEY, &values[1])));
    let mut group = [Member::new(index, &values[2]), Member::new(index, &values[3])];
    let led = poll_fn(|cx| {
        first.poll(cx);
        let led = leader.as_mut().poll(cx);
        if led.is_pending() {
            group.iter_mut().for_each(|member| _ = member.poll(cx));
        }
        led
    });
    expect_usual(led.await.unwrap_or(Err(IndexError::Interrupted)))?;
    reader.session.endpoint().sleep(pause).await;
    reader.read().await?;
    expect_usual(reader.index.upsert(KEY, &values[4]).await)?;
    reader.read().await?;
    poll_fn(|cx| {
        let all = [&mut first].into_iter().chain(&mut group);
        let open = all.filter_map(|member| (!member.poll(cx)).then_some(())).count();
        if open == 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    for wrote in [first].into_iter().chain(group).filter_map(|member| member.wrote) {
        expect_usual(wrote)?;
    }
    reader.read().await
}

/// Gives the leaders of groups up, in an index of their own.
pub(crate) async fn judge(
    shared: &Shared,
    session: &Rc<Session>,
    other: Rc<Session>,
    config: &IndexConfig,
    fault: Fault,
    mut rng: SimRng,
) -> Result<(), IndexError> {
    let index = match AnyIndex::create(session, NAME, config).await {
        Ok(index) => index.coalesced(&Arc::new(Coalescer::new(fault))),
        // What it had allocated is there for the next allocation of the session.
        Err(IndexError::Pool(PoolError::Full { .. })) => return Ok(session.drain().await?),
        Err(error) => return Err(error),
    };
    let mut reader = Reader { index: AnyIndex::open(&other, NAME).await?, session: other, read: Vec::new() };
    for round in 0..ROUNDS {
        let (polls, pause) = (rng.within(1, POLLS), Duration::from_nanos(rng.tail(PAUSE)));
        give_up_leader(&index, &mut reader, round, polls, pause).await?;
    }
    if let Some(value) = reader.back() {
        let value = String::from_utf8_lossy(value);
        shared
            .fail(format!("the value {value:?} of a group whose leader was given up was replaced, and is there again"));
    }
    shared.leaders.set(shared.leaders.get() + 1);
    drop((index, reader));
    // What nobody awaits holds pins, and may take longer than a drop waits.
    session.endpoint().settle().await;
    AnyIndex::drop_named(session, NAME).await
}
