//! What a scan must return.
//!
//! A scan promises what [`OrderedIndex::scan`](farindex_index::OrderedIndex::scan) states, so its answer is judged so:
//!
//! 1. *shape*: keys strictly ascending, none below the first bound, no more entries than the limit;
//! 2. *origin*: every key is one that the run may have inserted, with a value that was written under it;
//! 3. *presence*: a scan is a read of every key that it covers, each with the scan's own window: from the first bound
//!    to the last returned key, or without end if fewer entries than the limit came. A key that was certainly present
//!    (or absent) during the whole scan must be returned (or not).
//!
//! Presence is judged for keys that the oracle notes when the scan begins: the first ones at or above the bound, in key
//! order, up to the scan's limit; where keys come and go, up to twice the limit and 16 more. Of hashed keys only the
//! key space as loaded is noted: a new key is read by the audit.

use super::{Effect, Oracle, Window, WrongAnswer};
use crate::workload::{ABSENT, KeyOrder, Keys, Values};
use farindex_index::Entry;

/// The keys of the key space in the order of their bytes.
#[derive(Debug)]
pub struct SortedKeys {
    keys: Keys,
    /// Ranks of hashed keys, ascending. Ordered keys need none: their order is that of their numbers.
    ranks: Box<[u64]>,
}

impl SortedKeys {
    /// The keys with numbers `0..count`.
    pub fn new(keys: Keys, count: u64) -> Self {
        let mut ranks: Box<[u64]> = match keys.order() {
            KeyOrder::Ordered => Box::default(),
            KeyOrder::Hashed => (0..count).map(|number| keys.rank(number)).collect(),
        };
        ranks.sort_unstable();
        SortedKeys { keys, ranks }
    }

    /// Calls `each` with the numbers below `known` of at most `count` keys, from key `number` upwards.
    fn ascend(&self, number: u64, known: u64, count: usize, mut each: impl FnMut(u64)) {
        match self.keys.order() {
            KeyOrder::Ordered => (number..known).take(count).for_each(each),
            KeyOrder::Hashed => {
                let rank = self.keys.rank(number);
                let from = self.ranks.partition_point(|&other| other < rank);
                let ranks = self.ranks.iter().skip(from).take(count);
                ranks.map(|&rank| self.keys.of_rank(rank)).filter(|&number| number < known).for_each(&mut each);
            }
        }
    }
}

/// A scan that is under way. One value serves many scans of a client, one after the other.
#[derive(Debug, Default)]
pub struct Scanning {
    from: u64,
    limit: usize,
    /// Keys to judge, ascending, as they were when the scan began.
    noted: Vec<(u64, Window)>,
    returned: Vec<u64>,
    scratch: Vec<u8>,
}

impl Oracle {
    /// A scan from key `number` upwards for at most `limit` entries begins.
    pub fn begin_scan(&self, keys: &SortedKeys, number: u64, limit: usize, scan: &mut Scanning) {
        (scan.from, scan.limit) = (number, limit);
        scan.noted.clear();
        if self.alone {
            let count = if self.ledger.is_some() { limit.saturating_mul(2).saturating_add(16) } else { limit };
            keys.ascend(number, self.known(), count, |number| scan.noted.push((number, self.begin(number, false))));
        }
    }

    /// The scan has ended with these entries.
    pub fn end_scan(
        &self,
        keys: &SortedKeys,
        values: &Values,
        scan: &mut Scanning,
        entries: &[Entry],
    ) -> Result<(), WrongAnswer> {
        let Scanning { from, limit, noted, returned, scratch } = scan;
        let SortedKeys { keys, .. } = keys;
        if entries.len() > *limit {
            return Err(WrongAnswer::TooManyEntries { returned: entries.len(), limit: *limit });
        }
        scratch.resize(keys.size(), 0);
        returned.clear();
        // Keys that processes with other key spaces insert have numbers that are not known here.
        let claimed = if self.alone { self.claimed() } else { ABSENT };
        for (position, Entry { key, value }) in entries.iter().enumerate() {
            let number = keys.number(key, scratch).filter(|&number| number < claimed).ok_or(WrongAnswer::Phantom)?;
            let rank = keys.rank(number);
            if returned.last().is_some_and(|&last| last >= rank) {
                return Err(WrongAnswer::OutOfOrder { position });
            }
            if rank < keys.rank(*from) {
                return Err(WrongAnswer::OutOfBounds { position });
            }
            values.verify(number, value).map_err(WrongAnswer::Value)?;
            returned.push(rank);
        }
        let covered = if entries.len() == *limit { returned.last().copied() } else { Some(u64::MAX) };
        let mut rest = returned.as_slice();
        for &(number, window) in noted.iter() {
            let rank = keys.rank(number);
            if covered.is_none_or(|covered| rank > covered) {
                break;
            }
            rest = &rest[rest.partition_point(|&other| other < rank)..];
            let effect = if rest.first() == Some(&rank) { Effect::Present } else { Effect::Absent };
            self.end(number, window, false, effect)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Mix, Op, SizeRange};
    use farindex_index::Value;

    const LOADED: u64 = 50;

    struct Setup {
        keys: Keys,
        sorted: SortedKeys,
        values: Values,
    }

    impl Setup {
        fn new(order: KeyOrder) -> Self {
            let keys = Keys::new(10).in_order(order);
            Setup { keys, sorted: SortedKeys::new(keys, LOADED), values: Values::new(SizeRange::fixed(8)) }
        }
        fn entry(&self, number: u64) -> Entry {
            let (mut key, mut value) = (vec![0; self.keys.size()], [0; 8]);
            self.keys.write(number, &mut key);
            self.values.fill(number, 77, &mut value);
            Entry { key: Value::from(&*key), value: Value::from(&value[..]) }
        }
        /// The entries of `0..LOADED` from key `number` upwards.
        fn right(&self, number: u64, limit: usize) -> Vec<Entry> {
            let mut numbers: Vec<_> = (0..LOADED).filter(|&n| self.keys.rank(n) >= self.keys.rank(number)).collect();
            numbers.sort_by_key(|&number| self.keys.rank(number));
            numbers.into_iter().take(limit).map(|number| self.entry(number)).collect()
        }
        fn judge(&self, oracle: &Oracle, limit: usize, entries: &[Entry]) -> Result<(), WrongAnswer> {
            let mut scan = Scanning::default();
            oracle.begin_scan(&self.sorted, 7, limit, &mut scan);
            oracle.end_scan(&self.sorted, &self.values, &mut scan, entries)
        }
    }

    fn oracles() -> [Oracle; 2] {
        let churn = Mix::new(&[(Op::Scan, 50.0), (Op::Remove, 50.0)]).unwrap();
        [&Mix::single(Op::Scan), &churn].map(|mix| Oracle::new(mix, LOADED, LOADED, true, true))
    }

    #[test]
    fn right_scans_pass_and_every_fault_of_a_scan_is_found() {
        for order in KeyOrder::ALL {
            let setup = Setup::new(order);
            for oracle in oracles() {
                for limit in [1, 5, 200] {
                    let right = setup.right(7, limit);
                    assert_eq!(setup.judge(&oracle, limit, &right), Ok(()), "{order} {limit}");
                }
                let right = setup.right(7, 5);
                assert!(right.len() == 5, "key 7 is among the last five");
                let with = |change: &dyn Fn(&mut Vec<Entry>)| {
                    let mut entries = right.clone();
                    change(&mut entries);
                    setup.judge(&oracle, 5, &entries)
                };
                assert_eq!(with(&|it| _ = it.remove(2)), Err(WrongAnswer::Missing));
                assert_eq!(
                    with(&|it| _ = it.pop()),
                    Err(WrongAnswer::Missing),
                    "a short answer covers all of the range"
                );
                assert_eq!(with(&Vec::clear), Err(WrongAnswer::Missing));
                assert_eq!(with(&|it| it.swap(1, 2)), Err(WrongAnswer::OutOfOrder { position: 2 }));
                assert_eq!(with(&|it| it[1] = it[0].clone()), Err(WrongAnswer::OutOfOrder { position: 1 }));
                assert_eq!(
                    with(&|it| it.push(setup.entry(LOADED))),
                    Err(WrongAnswer::TooManyEntries { returned: 6, limit: 5 })
                );
                assert_eq!(with(&|it| it[4] = setup.entry(ABSENT + 3)), Err(WrongAnswer::Phantom));
                assert_eq!(with(&|it| it[4].key = Value::from(&b"foreign"[..])), Err(WrongAnswer::Phantom));
                let foreign = with(&|it| it[3].value = setup.entry(1000).value);
                assert!(matches!(foreign, Err(WrongAnswer::Value(_))), "{foreign:?}");
                let below = (0..LOADED).find(|&n| setup.keys.rank(n) < setup.keys.rank(7)).expect("a smaller key");
                assert_eq!(with(&|it| it[0] = setup.entry(below)), Err(WrongAnswer::OutOfBounds { position: 0 }));
            }
        }
    }

    #[test]
    fn a_key_that_changes_during_a_scan_may_be_returned_or_not() {
        for order in KeyOrder::ALL {
            let setup = Setup::new(order);
            let [_, oracle] = oracles();
            let right = setup.right(7, 5);
            let removed = setup.keys.number(&right[2].key, &mut [0; 10]).expect("a number");
            let mut scan = Scanning::default();
            oracle.begin_scan(&setup.sorted, 7, 5, &mut scan);
            assert_eq!(oracle.end(removed, oracle.begin(removed, true), false, Effect::Taken), Ok(()));
            assert_eq!(oracle.end_scan(&setup.sorted, &setup.values, &mut scan, &right), Ok(()));
            let mut without = setup.right(7, 6);
            without.remove(2);
            assert_eq!(oracle.end_scan(&setup.sorted, &setup.values, &mut scan, &without), Ok(()));
            // A later scan must not return it.
            assert_eq!(setup.judge(&oracle, 5, &right), Err(WrongAnswer::Phantom));
            assert_eq!(setup.judge(&oracle, 5, &without), Ok(()));
        }
    }

    #[test]
    fn a_key_that_is_inserted_during_a_scan_may_be_returned_or_not() {
        let setup = Setup::new(KeyOrder::Ordered);
        let [oracle, _] = oracles();
        let new = oracle.claim().expect("a new key");
        let mut with = setup.right(7, 100);
        assert_eq!(setup.judge(&oracle, 100, &with), Ok(()));
        with.push(setup.entry(new));
        assert_eq!(setup.judge(&oracle, 100, &with), Ok(()), "its insert may have taken effect");
        with.push(setup.entry(new + 1));
        assert_eq!(setup.judge(&oracle, 100, &with), Err(WrongAnswer::Phantom), "no client has begun to insert it");
        with.truncate(with.len() - 2);
        assert_eq!(oracle.end(new, Window::default(), true, Effect::Added), Ok(()));
        assert_eq!(setup.judge(&oracle, 100, &with), Err(WrongAnswer::Missing), "its insert was acknowledged");
    }

    #[test]
    fn presence_is_not_judged_while_other_processes_work() {
        let setup = Setup::new(KeyOrder::Ordered);
        let oracle = Oracle::new(&Mix::single(Op::Scan), LOADED, LOADED, true, false);
        let mut right = setup.right(7, 5);
        right.remove(1);
        right.push(setup.entry(9999));
        assert_eq!(setup.judge(&oracle, 5, &right), Ok(()));
        right.swap(0, 1);
        assert_eq!(setup.judge(&oracle, 5, &right), Err(WrongAnswer::OutOfOrder { position: 1 }));
    }
}
