//! The local lock table: combines concurrent operations of one compute node on one key into one remote operation.
//!
//! Under a skewed workload many threads and coroutines of a compute node operate on the same few keys. Without the
//! table each pays for its own READs, and their CASes make each other fail. All of them share a [`Coalescer`], and a
//! [`Coalesced`] index consults it before it posts anything. Reads are delegated and writes combined, as in SMART
//! (section 3.2 of SHARD), but the index stays linearizable.
//!
//! # The rules
//!
//! Each key of each index has two lanes, one for gets and one for writes. In a lane at most one operation *runs*.
//! Operations that arrive meanwhile *wait*. When the running operation ends, the first waiting operation is *elected*.
//! When the elected operation continues, it takes all operations that wait by then into its *group*, runs one remote
//! operation, and reports to every member its outcome. A key on which no operation runs has no entry. An operation that
//! finds no entry runs at once, as if there were no table.
//!
//! # Why it is linearizable
//!
//! Assume that the index below is linearizable: the remote operation of a group takes effect at one moment `t` between
//! its invocation and its response.
//!
//! *Membership.* Every member joined before the remote operation was invoked, and is answered after it has responded.
//! So `t` lies within each member's interval. (A READ in flight must not answer a get that arrives meanwhile: the READ
//! may have taken effect before the get was invoked. [`Fault::LateReaders`] breaks this rule.)
//!
//! *Gets.* All gets of a group take effect at `t`, one after the other. A get of many keys joins the lane of each key,
//! one after the other. For the keys on which no get runs, it leads: one remote get of many keys runs for them, with a
//! moment `t` for each key. For the other keys it waits, concurrently with that remote get; so two gets of many keys
//! cannot wait for each other. All lanes that it leads continue when the slowest of its keys has been answered.
//!
//! *Writes.* Let all writes of a group take effect at `t` in the order in which they joined. Their effect and their
//! outcomes depend on one thing only: whether the key is present just before `t`. [`fold`](Plan::of) runs the group
//! under both hypotheses. Under each, the key ends absent, unchanged, or with the value of some member. One remote
//! operation has the right effect under both hypotheses, and its outcome shows which one holds:
//!
//! | if present it ends | if absent it ends | remote operation |
//! |---|---|---|
//! | with the value `v` | with the same `v` | upsert `v` |
//! | with `v` | absent | update `v` |
//! | unchanged | with `v` | insert `v` |
//! | removed | absent | remove |
//!
//! Only one other case exists: updates followed by inserts can end in different values (`[update x, insert y]`). So the
//! group is the longest prefix of the queue that folds, and the rest waits for the next group. A value is dropped only
//! if a later member of the same group replaces it at the same moment. ([`Fault::DroppedValues`] breaks this rule.)
//!
//! *Writes that expect a value* ([`replace`](PointIndex::replace), [`remove_if`](PointIndex::remove_if)) run alone in the
//! lane of writes. Their outcomes depend on the key's value, which the fold does not know, so they join no group, and a
//! group is formed of the writes in front of one. Waiting in the lane they save the CASes that would fail.
//!
//! *Gets concurrent with writes.* The two lanes are independent: every remote operation is an operation of the index
//! below, with an interval within those of its members. A get that begins after a write was answered joins no group
//! whose remote operation began before, so it sees the write.
//!
//! # When something fails
//!
//! A failed remote operation fails its whole group with the same error; after a fabric's error each member may have
//! taken effect or not (N7), as if it had run alone. Keys and values that are too long are refused before they join.
//!
//! A future may be dropped at any time:
//!
//! * A waiting operation leaves the queue, unless its group already runs.
//! * If the future of a running operation is dropped, that operation may have taken effect or not, and the lane goes to
//!   the next waiting operation. The gets of its group wait again. The writes of its group cannot wait again: the verbs
//!   posted for them may have taken effect or may still take effect, and a second post could make them take effect
//!   twice, with another client's write in between. They fail with [`IndexError::Interrupted`], and may have taken
//!   effect or not (N7). If nothing was posted yet, they wait again.
//!
//! A caller that starts an operation must poll it or drop it: while the operation runs, others wait for it.
//!
//! # What it costs
//!
//! A follower's operation costs no verb; the meter counts the group's one operation. On a key without contention, an
//! operation costs two short holds of one of 256 mutexes, and no allocation for keys of up to 32 bytes. Memory is in
//! proportion to the operations in flight, not to the keys that were used.

mod fold;
mod table;

pub use fold::{Outcome, Plan, Remote, What};
pub use table::Coalescer;

use crate::join::try_join_all;
use crate::marks::mark;
use crate::traits::{
    Entry, Insert, KeyBounds, Limits, OrderedIndex, PointIndex, Remove, RemoveIf, Replace, Update, Upsert,
};
use crate::write::upsert_each;
use crate::{IndexError, Value};
use farindex_pool::PoolError;
use std::sync::Arc;
use table::{Answer, Arrival, Lane, Lead, Wait, Waited};

/// Faults of published designs, which the checkers must detect. Only tests should use one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fault {
    /// No fault: linearizable.
    #[default]
    None,
    /// A READ answers every get that has arrived by the time it ends.
    LateReaders,
    /// The first write of a group is carried out; the others are acknowledged.
    DroppedValues,
    /// The group of a leader that was given up is not answered.
    ForgottenGroup,
    /// The group of a leader that was given up is carried out again, although the leader had posted it.
    RepeatedGroup,
    /// Keys of two indexes that have the same bytes count as one.
    MixedIndexes,
}

/// An index whose operations go through a [`Coalescer`], if it has one.
pub struct Coalesced<I> {
    index: I,
    table: Option<Arc<Coalescer>>,
    uid: u64,
}

/// One key of a get of many keys, and its position among them.
struct Asked<'k> {
    place: usize,
    key: &'k [u8],
}

/// A part of a get of many keys that runs concurrently with the other parts.
enum Part<'k> {
    /// The keys on which no get was running.
    Lead(Vec<(Asked<'k>, Lead<'k>)>),
    /// A key on which another get was running.
    Wait(Asked<'k>, Wait<'k>),
}

impl<I: PointIndex> Coalesced<I> {
    /// Puts a table in front of an index. `uid` identifies the index among those that share the table: all handles of
    /// one index have the same.
    pub fn new(index: I, table: Arc<Coalescer>, uid: u64) -> Self {
        Coalesced { index, table: Some(table), uid }
    }
    /// Wraps an index without a table: operations go straight to it.
    pub fn without_table(index: I) -> Self {
        Coalesced { index, table: None, uid: 0 }
    }
    /// Returns the index below, without the table.
    pub fn into_inner(self) -> I {
        self.index
    }
    /// Returns the index below.
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

    /// Runs the remote get of a group.
    async fn lead_get(&self, lead: Lead<'_>, key: &[u8]) -> Result<Option<Value>, IndexError> {
        let got = self.index.get(key).await;
        lead.end_gets(got.as_ref().map(Option::as_ref));
        got
    }

    /// Runs the remote get of several groups; returns the position of each key and its value.
    async fn lead_many(&self, leads: Vec<(Asked<'_>, Lead<'_>)>) -> Result<Vec<(usize, Option<Value>)>, IndexError> {
        let (asked, mut leads): (Vec<_>, Vec<_>) = leads.into_iter().unzip();
        // Others may have joined while this get went through its keys; a key may also be among them twice.
        leads.iter_mut().for_each(Lead::gather_gets);
        let keys: Vec<_> = asked.iter().map(|asked| asked.key).collect();
        let got = self.index.get_many(&keys).await;
        for (i, lead) in leads.into_iter().enumerate() {
            lead.end_gets(got.as_ref().map(|values| values.get(i).and_then(Option::as_ref)));
        }
        Ok(asked.iter().map(|asked| asked.place).zip(got?).collect())
    }

    /// Waits for another get's answer, or runs the get when it is elected.
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
        // Another member's value is shared, because that member's future may be dropped meanwhile.
        let theirs = plan.member.checked_sub(1).and_then(|i| lead.value(i));
        if theirs.is_some() {
            mark!("lock table: another member's value is written");
        }
        lead.posts();
        let mut wrote = self.run_remote(plan.remote, key, theirs.as_deref().unwrap_or(value)).await;
        if plan.len > 1 && matches!(wrote, Err(IndexError::Pool(PoolError::Full { .. }))) {
            // A removal needs no memory, and must not fail because of another member's value.
            mark!("lock table: taken apart in a full pool");
            lead.disband();
            wrote = self.run_remote(what.alone(), key, value).await;
        }
        lead.end_writes(what, wrote)
    }

    /// Waits until no other write of this compute node runs on the key. The write that follows runs alone, as long as the
    /// lead lives.
    async fn lead_alone<'a>(&self, table: &'a Coalescer, key: &'a [u8]) -> Result<Lead<'a>, IndexError> {
        match table.arrive(Lane::Writes, table.key(self.uid, key), None) {
            Arrival::Lead(lead) => Ok(lead),
            Arrival::Wait(wait) => match wait.await {
                Waited::Elected(lead) => {
                    mark!("lock table: write that expects a value elected");
                    Ok(lead)
                }
                // Only members of groups are answered.
                Waited::Answered(_) => Err(IndexError::Interrupted),
            },
        }
    }

    /// Runs a remote write; returns whether the key was present.
    async fn run_remote(&self, remote: Remote, key: &[u8], value: &[u8]) -> Result<bool, IndexError> {
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

    /// With a table, [`upsert`](PointIndex::upsert) always reports the outcome: the group needs it.
    async fn upsert_with_outcome(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        match &self.table {
            Some(_) => self.upsert(key, value).await,
            None => self.index.upsert_with_outcome(key, value).await,
        }
    }

    async fn upsert_many(&self, pairs: &[(&[u8], &[u8])]) -> Vec<Result<Upsert, IndexError>> {
        if self.table.is_none() {
            return self.index.upsert_many(pairs).await;
        }
        upsert_each(self, pairs).await
    }

    async fn remove(&self, key: &[u8]) -> Result<Remove, IndexError> {
        let Some(table) = &self.table else { return self.index.remove(key).await };
        let outcome = self.write(table, What::Remove, key, &[]).await?;
        Ok(if outcome == Outcome::Removed { Remove::Removed } else { Remove::Absent })
    }

    async fn replace(&self, key: &[u8], expected: &[u8], value: &[u8]) -> Result<Replace, IndexError> {
        let Some(table) = &self.table else { return self.index.replace(key, expected, value).await };
        self.check_lengths(key, value)?;
        let _lead = self.lead_alone(table, key).await?;
        self.index.replace(key, expected, value).await
    }

    async fn remove_if(&self, key: &[u8], expected: &[u8]) -> Result<RemoveIf, IndexError> {
        let Some(table) = &self.table else { return self.index.remove_if(key, expected).await };
        self.check_lengths(key, &[])?;
        let _lead = self.lead_alone(table, key).await?;
        self.index.remove_if(key, expected).await
    }

    fn cache_bytes(&self) -> u64 {
        self.index.cache_bytes() + self.table.as_ref().map_or(0, |table| table.bytes())
    }
}

/// Scans go straight to the index: each scan takes effect within its own interval, and a combined write is answered
/// only after it has taken effect.
impl<I: OrderedIndex> OrderedIndex for Coalesced<I> {
    async fn scan(&self, bounds: KeyBounds<'_>, limit: usize) -> Result<Vec<Entry>, IndexError> {
        self.index.scan(bounds, limit).await
    }
}
