//! Walks over the whole index while others work, and what they must find.
//!
//! Invariants: what [`visit`](farindex_index::PoolIndex::visit) promises is what a get of each key promises that begins and
//! ends with the walk: a key that is present all the time is visited, with a value that it had meanwhile, and a key that is
//! not visited was absent at some moment. So the history gets these gets, and the checker judges the walk. That each key is
//! visited once, and that no other is, is judged here; an ordered index visits in ascending order.

use crate::waits::without_own_verbs;
use crate::worker::Worker;
use farindex_check::{Call, Outcome};
use farindex_fabric::OpKind;
use farindex_index::IndexError;
use farindex_index::audit::Damage;
use farindex_pool::audit::Audit;
use farindex_sim::ODDS;
use std::collections::BTreeMap;
use std::rc::Rc;

impl Worker {
    /// Walks over the index; `false` if the client has lost its lease.
    pub(crate) async fn walk(&mut self) -> bool {
        let shared = Rc::clone(&self.shared);
        if self.rng.chance(if shared.pausing { ODDS / 2 } else { ODDS / 4 }) {
            return self.audit_among_others().await;
        }
        let now = shared.stamp(&self.endpoint);
        let gets: Vec<_> =
            shared.workload.keys().map(|key| (key, self.log.invoke(Call::Get { key: key.clone() }, now))).collect();
        let mut seen: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        let each = async |key: &[u8], value: farindex_index::Value| {
            seen.push((key.to_vec(), shared.bytes_of(&value)));
            Ok(())
        };
        let index = Rc::clone(&self.index);
        let visited = match self.with_pauses(index.visit(each, &mut Damage::fail)).await {
            Ok(visited) => visited,
            Err(error) => return self.walk_failed(error, "a walk"),
        };
        shared.walks.set(shared.walks.get() + 1);
        let now = shared.stamp(&self.endpoint);
        if shared.ordered && !seen.is_sorted_by(|one, other| one.0 < other.0) {
            shared.fail("a walk of an ordered index visits keys in another order".to_owned());
        }
        let count = seen.len();
        if visited != count as u64 {
            shared.fail(format!("a walk visits {count} entries, and says {visited}"));
        }
        let mut seen: BTreeMap<_, _> = seen.into_iter().collect();
        if seen.len() < count {
            shared.fail(format!("a walk visits {} keys twice", count - seen.len()));
        }
        for (key, ticket) in gets {
            self.log.complete(ticket, now, Outcome::Value(seen.remove(key)));
        }
        if let Some(key) = seen.keys().next() {
            shared.fail(format!("a walk visits {}, which nobody has written", key.escape_ascii()));
        }
        true
    }

    /// Audits the index while others work: what they have not finished is no problem.
    async fn audit_among_others(&mut self) -> bool {
        let Some(session) = self.session.clone() else { return true };
        let index = Rc::clone(&self.index);
        let audited = async {
            let mut audit = Audit::begin(&session, &session.span(OpKind::Other)).await?;
            index.audit(&mut audit, false).await
        };
        match self.with_pauses(audited).await {
            Ok(audit) => {
                for problem in &audit.problems {
                    if !self.is_blocked(problem) {
                        self.shared.fail(format!("an audit among others: {problem}"));
                    }
                }
                self.shared.walks.set(self.shared.walks.get() + 1);
                true
            }
            Err(error) => self.walk_failed(error, "an audit among others"),
        }
    }

    /// Recovers what crashed clients have left; `false` if the client has lost its lease. It waits for those that work.
    pub(crate) async fn recover(&mut self) -> bool {
        let (index, endpoint) = (Rc::clone(&self.index), self.endpoint.clone());
        let (recovered, waited) = without_own_verbs(&endpoint, self.with_pauses(index.recover())).await;
        self.waited_for(waited, || "a recovery".to_owned());
        self.shared.recoveries.set(self.shared.recoveries.get() + 1);
        match recovered {
            Ok(_) => true,
            Err(error) => self.failed(error, || "a recovery".to_owned()),
        }
    }

    /// Handles a walk that failed; `false` if the client has lost its lease.
    fn walk_failed(&self, error: IndexError, doing: &str) -> bool {
        if self.is_blocked(&error.to_string()) {
            return true;
        }
        self.failed(error, || doing.to_owned())
    }
    /// Does a walk say that a lock is in its way, of a client that has crashed or is held up? It recovers nothing, and waits for
    /// a while only.
    fn is_blocked(&self, what: &str) -> bool {
        let says = |words: &[&str]| words.iter().any(|said| what.contains(said));
        // What an operation says that waits for a lock, and so a walk.
        let waited = says(&["has been held for longer than"]);
        // A walk of SHARD waits for a crashed client for a while only. No other walk may end at such a lock.
        let gives_up = waited && self.index.kind() == "shard";
        let crashed = self.shared.crashes && (gives_up || says(&["stays locked", "does not settle"]));
        let blocked = crashed || self.shared.holders_linger() && (waited || says(&["has been locked"]));
        if blocked {
            self.shared.blocked.set(self.shared.blocked.get() + 1);
        }
        blocked
    }
}
