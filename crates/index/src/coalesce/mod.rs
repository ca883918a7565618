//! The local lock table: operations of one compute node on one key are made one remote operation.
//!
//! Under a skewed workload many threads and coroutines of a compute node want the same few keys. Alone, each pays for its
//! own READs, and their CASes make each other fail. A [`Coalescer`] is shared by all of them; a [`Coalesced`] index asks
//! it before it posts anything. Readers are delegated, and writes combined, as in SMART (section 3.2 of SHARD), but so
//! that the index stays linearizable.
//!
//! # The rules
//!
//! Each key of each index has two lanes, one for gets and one for writes. In a lane at most one operation *runs*. What
//! arrives meanwhile *waits*. When the running one ends, the first that waits is *elected*; when it goes on, it takes
//! everything that waits by then into its *group*, runs one remote operation, and tells every member its outcome. A key
//! on which nothing runs has no entry; an operation that finds none runs at once, as if there were no table.
//!
//! # Why it is linearizable
//!
//! Take the index below to be linearizable: the remote operation of a group takes effect at one moment `t` between its
//! invocation and its response.
//!
//! *Membership.* Every member joined before the remote operation was invoked, and is answered after it has responded. So
//! `t` lies within each member's interval. (A get that arrives while a READ is in flight must not be answered by it: the
//! READ may have taken effect before the get was invoked. [`Fault::LateReaders`] does that.)
//!
//! *Gets.* All gets of a group take effect at `t`, one after the other. A get of many keys joins the lane of each, one after the
//! other, and leads where nobody runs: for those keys there is one remote get of many keys, which has a moment `t` for each of
//! them. Where somebody runs it waits, beside that: so no two can wait for each other. All lanes that it leads go on when the slowest
//! of its keys has been answered.
//!
//! *Writes.* Let all writes of a group take effect at `t` in the order in which they joined. What they do, and what each
//! answers, depends on one thing only: whether the key is present just before `t`. [`fold`](Plan::of) runs the group
//! under both hypotheses. Each ends in the key absent, unchanged, or with the value of some member; there is one remote
//! operation that does the right thing under both and whose outcome tells which one was true:
//!
//! | if present it ends | if absent it ends | remote operation |
//! |---|---|---|
//! | with the value `v` | with the same `v` | upsert `v` |
//! | with `v` | absent | update `v` |
//! | unchanged | with `v` | insert `v` |
//! | removed | absent | remove |
//!
//! Nothing else occurs, except that updates and then inserts can end in different values (`[update x, insert y]`). So the
//! group is the longest beginning of the queue that folds; the rest waits for the next. A value is dropped only if a
//! later member of the same group replaces it at the same moment. ([`Fault::DroppedValues`] drops them otherwise.)
//!
//! *Gets beside writes.* The lanes need not know each other: every remote operation is an operation of the index below,
//! with an interval within those of its members. A get that begins after a write was answered joins no group whose
//! remote operation began before, so it sees the write.
//!
//! # When something fails
//!
//! A failed remote operation fails its whole group with the same error; after a fabric's error each member may have taken
//! effect or not (N7), as if each had been alone. Keys and values that are too long are refused before they join.
//!
//! A future may be dropped at any time. One that waits is forgotten, unless its group runs already. If one that runs is
//! dropped, its own operation may have taken effect or not, and the lane goes to the next that waits. Its group's gets
//! simply wait again. Its group's writes cannot: what was posted for them may have taken effect, or may still, and to
//! post them again could make them take effect twice, with another client's write in between. They are told so
//! ([`IndexError::Interrupted`]) and may have taken effect or not (N7). If nothing was posted yet, they wait again.
//!
//! Whoever starts an operation must keep polling it or drop it: while it is the one that runs, others wait for it.
//!
//! # What it costs
//!
//! A follower's operation costs no verb; the group's one operation is counted as what it is. Where nobody else is at a
//! key, an operation costs two short holds of one of 256 mutexes, and no allocation for keys of up to 32 bytes. Memory
//! goes with the operations in flight, never with the keys that were used.

mod fold;
mod table;

pub use fold::{Outcome, Plan, Remote, What};
pub use table::Coalescer;

use crate::join::try_join_all;
use crate::marks::mark;
use crate::traits::{Entry, Insert, KeyBounds, Limits, OrderedIndex, PointIndex, Remove, Update, Upsert};
use crate::{IndexError, Value};
use farindex_pool::PoolError;
use std::sync::Arc;
use table::{Answer, Arrival, Lane, Lead, Wait, Waited};

/// Published faults, for checkers to convict. Nobody else should ask for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fault {
    /// Linearizable.
    #[default]
    None,
    /// A READ answers every get that has arrived by the time it ends.
    LateReaders,
    /// The first write of a group is carried out; the others are acknowledged.
    DroppedValues,
}

/// An index whose operations go through a [`Coalescer`], if it has one.
pub struct Coalesced<I> {
    index: I,
    table: Option<Arc<Coalescer>>,
    uid: u64,
}

/// A key of many, and its place among them.
struct Asked<'k> {
    place: usize,
    key: &'k [u8],
}

/// What goes on by itself in a get of many keys.
enum Part<'k> {
    /// The keys on which nobody was.
    Lead(Vec<(Asked<'k>, Lead<'k>)>),
    /// A key on which somebody was.
    Wait(Asked<'k>, Wait<'k>),
}

impl<I: PointIndex> Coalesced<I> {
    /// `uid` tells the indexes apart that share a table: handles of one index have the same, others another.
    pub fn new(index: I, table: Arc<Coalescer>, uid: u64) -> Self {
        Coalesced { index, table: Some(table), uid }
    }
    /// An index whose operations go straight to it.
    pub fn without_table(index: I) -> Self {
        Coalesced { index, table: None, uid: 0 }
    }
    /// Returns the index below, without the table.
    pub fn into_inner(self) -> I {
        self.index
    }
    /// The index below.
    pub fn inner(&self) -> &I {
        &self.index
    }
    /// Returns the table that it shares with the other handles.
    pub fn table(&self) -> Option<&Arc<Coalescer>> {
        self.table.as_ref()
    }

    fn check_lengths(&self, key: &[u8], value: &[u8]) -> Result<(), IndexError> {
        self.index.limits().check(key, value)
    }

    /// The remote get of a group.
    async fn lead_get(&self, lead: Lead<'_>, key: &[u8]) -> Result<Option<Value>, IndexError> {
        let got = self.index.get(key).await;
        lead.end_gets(got.as_ref().map(Option::as_ref));
        got
    }

    /// The remote get of many groups: the place of each key among those that were asked for, and its value.
    async fn lead_many(&self, leads: Vec<(Asked<'_>, Lead<'_>)>) -> Result<Vec<(usize, Option<Value>)>, IndexError> {
        let (asked, mut leads): (Vec<_>, Vec<_>) = leads.into_iter().unzip();
        // Others may have come while this one went through its keys; it may have met itself.
        leads.iter_mut().for_each(Lead::gather_gets);
        let keys: Vec<_> = asked.iter().map(|asked| asked.key).collect();
        let got = self.index.get_many(&keys).await;
        for (i, lead) in leads.into_iter().enumerate() {
            lead.end_gets(got.as_ref().map(|values| values.get(i).and_then(Option::as_ref)));
        }
        Ok(asked.iter().map(|asked| asked.place).zip(got?).collect())
    }

    /// Somebody else's get, or this one's turn.
    async fn wait_get(&self, wait: Wait<'_>, key: &[u8]) -> Result<Option<Value>, IndexError> {
        match wait.await {
            Waited::Answered(Answer::Got(got)) => got.map(|value| value.map(Value::from)),
            // A lane of gets answers gets.
            Waited::Answered(Answer::Wrote(_)) => Err(IndexError::Interrupted),
            Waited::Elected(mut lead) => {
                lead.gather_gets();
                self.lead_get(lead, key).await
            }
        }
    }

    async fn write(&self, table: &Arc<Coalescer>, what: What, key: &[u8], value: &[u8]) -> Result<Outcome, IndexError> {
        self.check_lengths(key, value)?;
        let mut lead = match table.arrive(Lane::Writes, table.key(self.uid, key), Some((what, value))) {
            Arrival::Lead(lead) => lead,
            Arrival::Wait(wait) => match wait.await {
                Waited::Answered(Answer::Wrote(wrote)) => return wrote,
                // A lane of writes answers writes.
                Waited::Answered(Answer::Got(_)) => return Err(IndexError::Interrupted),
                Waited::Elected(lead) => {
                    mark!("lock table: write elected");
                    lead
                }
            },
        };
        let plan = lead.plan_writes(what);
        if plan.len > 1 {
            mark!("lock table: writes combined");
        }
        // Another member's value is shared with it: its future may be dropped meanwhile.
        let theirs = plan.member.checked_sub(1).and_then(|i| lead.value(i));
        if theirs.is_some() {
            mark!("lock table: another member's value is written");
        }
        lead.posts();
        let mut wrote = self.carry_out(plan.remote, key, theirs.as_deref().unwrap_or(value)).await;
        if plan.len > 1 && matches!(wrote, Err(IndexError::Pool(PoolError::Full { .. }))) {
            // A removal needs no memory, and must not be refused for the value of another.
            mark!("lock table: taken apart in a full pool");
            lead.disband();
            wrote = self.carry_out(what.alone(), key, value).await;
        }
        lead.end_writes(what, wrote)
    }

    /// Answers whether the key was present.
    async fn carry_out(&self, remote: Remote, key: &[u8], value: &[u8]) -> Result<bool, IndexError> {
        Ok(match remote {
            Remote::Insert => self.index.insert(key, value).await? == Insert::Exists,
            Remote::Update => self.index.update(key, value).await? == Update::Updated,
            Remote::Upsert => self.index.upsert_with_outcome(key, value).await? == Upsert::Updated,
            Remote::Remove => self.index.remove(key).await? == Remove::Removed,
        })
    }
}

impl<I: PointIndex> PointIndex for Coalesced<I> {
    fn limits(&self) -> Limits {
        self.index.limits()
    }

    async fn get(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        let Some(table) = &self.table else { return self.index.get(key).await };
        self.check_lengths(key, &[])?;
        match table.arrive(Lane::Gets, table.key(self.uid, key), None) {
            Arrival::Lead(lead) => self.lead_get(lead, key).await,
            Arrival::Wait(wait) => self.wait_get(wait, key).await,
        }
    }

    async fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>, IndexError> {
        let Some(table) = &self.table else { return self.index.get_many(keys).await };
        keys.iter().try_for_each(|key| self.check_lengths(key, &[]))?;
        let (mut leads, mut parts) = (Vec::new(), Vec::new());
        for (place, key) in keys.iter().enumerate() {
            let asked = Asked { place, key };
            match table.arrive(Lane::Gets, table.key(self.uid, key), None) {
                Arrival::Lead(lead) => leads.push((asked, lead)),
                Arrival::Wait(wait) => parts.push(Part::Wait(asked, wait)),
            }
        }
        parts.push(Part::Lead(leads));
        let answered = try_join_all(parts.into_iter().map(async |part| match part {
            Part::Lead(leads) => self.lead_many(leads).await,
            Part::Wait(Asked { place, key }, wait) => {
                mark!("lock table: one of many gets waits");
                Ok(vec![(place, self.wait_get(wait, key).await?)])
            }
        }));
        let mut values: Vec<_> = answered.await?.into_iter().flatten().collect();
        values.sort_unstable_by_key(|(place, _)| *place);
        Ok(values.into_iter().map(|(_, value)| value).collect())
    }

    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<Insert, IndexError> {
        let Some(table) = &self.table else { return self.index.insert(key, value).await };
        let outcome = self.write(table, What::Insert, key, value).await?;
        Ok(if outcome == Outcome::Exists { Insert::Exists } else { Insert::Inserted })
    }

    async fn update(&self, key: &[u8], value: &[u8]) -> Result<Update, IndexError> {
        let Some(table) = &self.table else { return self.index.update(key, value).await };
        let outcome = self.write(table, What::Update, key, value).await?;
        Ok(if outcome == Outcome::Absent { Update::Absent } else { Update::Updated })
    }

    async fn upsert(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        let Some(table) = &self.table else { return self.index.upsert(key, value).await };
        let outcome = self.write(table, What::Upsert, key, value).await?;
        Ok(if outcome == Outcome::Updated { Upsert::Updated } else { Upsert::Inserted })
    }

    /// With a table, [`upsert`](PointIndex::upsert) reports the outcome anyway: the group needs it.
    async fn upsert_with_outcome(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        match &self.table {
            Some(_) => self.upsert(key, value).await,
            None => self.index.upsert_with_outcome(key, value).await,
        }
    }

    async fn remove(&self, key: &[u8]) -> Result<Remove, IndexError> {
        let Some(table) = &self.table else { return self.index.remove(key).await };
        let outcome = self.write(table, What::Remove, key, &[]).await?;
        Ok(if outcome == Outcome::Removed { Remove::Removed } else { Remove::Absent })
    }

    fn cache_bytes(&self) -> u64 {
        self.index.cache_bytes() + self.table.as_ref().map_or(0, |table| table.bytes())
    }
}

/// Scans go straight to the index: each scan takes effect within its own interval, and a combined write is answered only
/// after it has taken effect.
impl<I: OrderedIndex> OrderedIndex for Coalesced<I> {
    async fn scan(&self, bounds: KeyBounds<'_>, limit: usize) -> Result<Vec<Entry>, IndexError> {
        self.index.scan(bounds, limit).await
    }
}
