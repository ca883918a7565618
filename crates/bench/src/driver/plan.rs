//! What is to be run.

use crate::BenchError;
use crate::oracle::Oracle;
use crate::workload::{Distribution, KeyOrder, Keys, Mix, Op, SizeRange, ValueSize, Workload, Zipf};
use std::time::Duration;

/// One run.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Which operations.
    pub workload: Workload,
    /// Keys of the key space.
    pub keys: u64,
    /// How many of them are there before the measurement; all, unless said otherwise, or none if the workload is the
    /// load itself.
    pub loaded: Option<u64>,
    /// Load them (otherwise they are there already, with values of the same sizes).
    pub load: bool,
    /// Bytes of a key, at least 8.
    pub key_size: usize,
    /// What the order of keys has to do with the order in which they are inserted.
    pub key_order: KeyOrder,
    /// Bytes of a value.
    pub value_size: ValueSize,
    /// How many entries a scan asks for, uniformly drawn.
    pub scan_length: SizeRange,
    /// On which keys, if not as the workload has it.
    pub distribution: Option<Distribution>,
    /// Skew of the Zipfian distributions.
    pub theta: f64,
    /// Worker threads.
    pub threads: usize,
    /// Coroutines of all threads together.
    pub clients: usize,
    /// Keys that one call asks for, where the workload is gets alone: more than 1 are a call of `get_many`, and each is an
    /// operation.
    pub many: usize,
    /// Operations before the measurement.
    pub warmup: u64,
    /// Operations to measure; as many as there are keys, if neither this nor `duration` is given.
    pub ops: Option<u64>,
    /// End the measurement after this time at the latest.
    pub duration: Option<Duration>,
    /// Ranges of equal size that the keys are divided into, each worked on by workers of its own; 1 if all workers work on
    /// all keys.
    pub parts: usize,
    /// Everything is drawn from this.
    pub seed: u64,
    /// Read the whole key space afterwards, to find what was lost and not read meanwhile.
    pub audit: bool,
    /// No other process changes these keys; if one does, presence cannot be judged.
    pub alone: bool,
    /// Give up after this many failed operations.
    pub errors_max: u64,
}

impl Plan {
    /// A small run of this workload: 100,000 keys of 8 + 8 bytes, one thread, one client.
    pub fn new(workload: Workload) -> Self {
        Plan {
            workload,
            keys: 100_000,
            loaded: None,
            load: true,
            key_size: Keys::SHORTEST,
            key_order: KeyOrder::default(),
            value_size: ValueSize::fixed(8),
            scan_length: SizeRange { min: 1, max: 100 },
            distribution: None,
            theta: Zipf::THETA,
            threads: 1,
            clients: 1,
            many: 1,
            warmup: 0,
            ops: None,
            duration: None,
            parts: 1,
            seed: 1,
            audit: true,
            alone: true,
            errors_max: 1000,
        }
    }

    /// Does the workload scan? Then it takes an ordered index.
    pub fn scans(&self) -> bool {
        self.workload.mix.has(Op::Scan)
    }
    /// The keys of the run.
    pub fn key_space(&self) -> Keys {
        Keys::new(self.key_size).in_order(self.key_order)
    }
    /// On which keys.
    pub fn distribution(&self) -> Distribution {
        self.distribution.unwrap_or(self.workload.distribution)
    }
    /// Keys that are there when the warm-up begins.
    pub fn loaded(&self) -> u64 {
        self.loaded.unwrap_or(if self.workload.preload { self.keys } else { 0 })
    }
    /// Operations to measure; `None` if only time ends it.
    pub fn ops(&self) -> Option<u64> {
        match (self.ops, self.duration) {
            (None, None) => Some(self.keys),
            (ops, _) => ops,
        }
    }
    /// Keys that the distribution is laid over.
    pub(crate) fn span(&self) -> u64 {
        if self.workload.mix.has(Op::Remove) { self.keys } else { self.loaded() }
    }
    pub(crate) fn oracle(&self) -> Oracle {
        Oracle::new(&self.workload.mix, self.keys, self.loaded(), !self.load, self.alone)
    }

    /// Says what is wrong with it, if anything is.
    pub fn check(&self) -> Result<(), BenchError> {
        const MOST: u64 = 1 << 40;
        let refuse = |message: String| Err(BenchError::Plan(message));
        let only_new = |mix: &Mix| [Op::Insert, Op::GetAbsent].iter().map(|&op| mix.percent(op)).sum::<f64>() >= 100.0;
        let (mix, loaded) = (&self.workload.mix, self.loaded());
        if self.keys == 0 || self.keys > MOST {
            return refuse(format!("{} keys: it takes between 1 and {MOST}", self.keys));
        }
        if loaded > self.keys {
            return refuse(format!("{loaded} loaded keys are more than the {} of the key space", self.keys));
        }
        if self.span() == 0 && !only_new(mix) {
            return refuse(format!("{} works on keys that are there, but none is loaded", self.workload.name));
        }
        if self.key_size < Keys::SHORTEST {
            let shortest = Keys::SHORTEST;
            return refuse(format!("keys of {} bytes: it takes at least {shortest} to tell them apart", self.key_size));
        }
        if self.value_size.min > self.value_size.max {
            return refuse(format!("value sizes {}: the first is above the second", self.value_size));
        }
        let SizeRange { min, max } = self.scan_length;
        if min == 0 || min > max {
            return refuse(format!("scans of {}: it takes at least 1, and a range that ascends", self.scan_length));
        }
        if !(self.theta > 0.0 && self.theta < 1.0) {
            return refuse(format!("theta {}: it takes a number strictly between 0 and 1", self.theta));
        }
        if self.threads == 0 || self.clients < self.threads {
            let Plan { threads, clients, .. } = self;
            return refuse(format!("{clients} clients on {threads} threads: each thread needs at least one client"));
        }
        if self.parts == 0 || self.parts > 1 && (self.audit || mix.has(Op::Remove) || mix.has(Op::GetAbsent)) {
            let what = "neither an audit, nor removals, nor gets of absent keys";
            return refuse(format!("keys in {} parts: it takes one part at least, and {what} with more", self.parts));
        }
        if self.parts > 1 && matches!(self.distribution(), Distribution::Latest | Distribution::Sequential) {
            return refuse(format!("keys in parts are not chosen by the distribution {}", self.distribution()));
        }
        if self.many == 0 || self.many > 1 && mix.percent(Op::Get) < 100.0 {
            return refuse(format!(
                "{} keys in a call: one at least, and several only of a workload of gets",
                self.many
            ));
        }
        if self.clients > crate::oracle::MAX_CLIENTS {
            return refuse(format!("{} clients: at most {}", self.clients, crate::oracle::MAX_CLIENTS));
        }
        if self.ops() == Some(0) {
            return refuse("0 operations: there is nothing to measure".to_owned());
        }
        if self.duration.is_some_and(|duration| duration.is_zero()) {
            return refuse("a duration of zero: there is nothing to measure".to_owned());
        }
        Ok(())
    }

    /// Bytes of the key-value block that an entry has on average. The header is 16 bytes; blocks are whole units of 64.
    pub fn block_bytes(&self) -> u64 {
        let value = (self.value_size.min + self.value_size.max) as u64 / 2;
        (16 + self.key_size as u64).saturating_add(value).next_multiple_of(64)
    }

    /// Bytes of far memory that the run needs at most: memory that is never touched costs nothing on the memory fabric.
    pub fn pool_bytes(&self) -> u64 {
        let share = self.workload.mix.percent(Op::Insert) / 100.0;
        // Where keys are removed too, inserts bring back old ones.
        let appends = self.workload.preload && !self.workload.mix.has(Op::Remove);
        let ops = match (self.ops(), self.duration) {
            (Some(ops), _) => ops,
            // No client is faster than that.
            (None, Some(duration)) => (duration.as_secs_f64() * 4e6 * self.threads as f64) as u64,
            (None, None) => 0,
        };
        let new = if appends { ((ops.saturating_add(self.warmup)) as f64 * share) as u64 } else { 0 };
        let entries = self.keys.saturating_add(new);
        // Size classes lose up to a fifth; a table that grows has segments for up to twice the slots it needs, 584
        // bytes for 64 of them; updates leave blocks behind until the epoch has passed.
        let each = self.block_bytes() * 3 / 2 + 48;
        let in_flight = self.value_size.max as u64 * 8 * self.clients as u64;
        (128 << 20) + entries.saturating_mul(each).saturating_add(in_flight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_that_make_no_run_say_why() {
        type Change = fn(&mut Plan);
        let table: [(&str, Change, &str); 17] = [
            ("ycsb-c", |plan| plan.keys = 0, "0 keys"),
            ("ycsb-c", |plan| plan.loaded = Some(100_001), "more than the 100000"),
            ("ycsb-c", |plan| plan.loaded = Some(0), "none is loaded"),
            ("ycsb-c", |plan| plan.key_size = 7, "at least 8"),
            ("ycsb-c", |plan| plan.value_size = ValueSize { min: 9, max: 8 }, "above the second"),
            ("ycsb-e", |plan| plan.scan_length = SizeRange { min: 0, max: 8 }, "at least 1"),
            ("ycsb-e", |plan| plan.scan_length = SizeRange { min: 9, max: 8 }, "that ascends"),
            ("ycsb-c", |plan| plan.theta = 1.0, "strictly between"),
            ("ycsb-c", |plan| plan.theta = f64::NAN, "strictly between"),
            ("ycsb-c", |plan| plan.threads = 2, "at least one client"),
            ("ycsb-c", |plan| plan.clients = 1 << 20, "at most"),
            ("ycsb-c", |plan| plan.many = 0, "one at least"),
            ("ycsb-a", |plan| plan.many = 2, "a workload of gets"),
            ("ycsb-c", |plan| plan.parts = 0, "one part at least"),
            ("ycsb-c", |plan| plan.parts = 2, "neither an audit"),
            ("ycsb-c", |plan| plan.ops = Some(0), "nothing to measure"),
            ("ycsb-c", |plan| plan.duration = Some(Duration::ZERO), "nothing to measure"),
        ];
        for (workload, change, want) in table {
            let mut plan = Plan::new(workload.parse().unwrap());
            assert_eq!(plan.check(), Ok(()));
            change(&mut plan);
            let error = plan.check().unwrap_err().to_string();
            assert!(error.contains(want), "{error:?} does not say {want:?}");
        }
        for (name, _) in Workload::NAMES {
            assert_eq!(Plan::new(name.parse().unwrap()).check(), Ok(()), "{name}");
        }
    }
}
