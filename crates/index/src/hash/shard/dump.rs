//! A walk that visits every key once: it goes through classes of hashes, one after the other.
//!
//! A *class* is the set of keys that belong to one level-1 bucket under one version. Classes of one version do not
//! overlap, and a resize cuts each in two. Invariants: a key is returned only in the step of its class, so at most
//! once. A class is read by the rules of a lookup, and in its order (level 1 before level 3), so a key that is present all the
//! time is visited. No key is returned
//! before its class has been read completely. docs/protocols/shard.md ("Walks") has the proof. A key of level 2 may be
//! in any bucket. So the keys of level 2 that belong to a group of classes are collected before the group is read, and
//! each is looked up by itself in the step of its class.

use super::Shard;
use super::bucket::{Level, Snapshot};
use super::geometry::Geometry;
use super::level3::Chain3;
use super::lookup::{LookupResult, Op};
use super::slot::Slot;
use super::stall::Stall;
use super::table::Table;
use crate::audit::{Damage, OnDamage};
use crate::block::{Block, Header, UNIT};
use crate::keyhash::KeyHash;
use crate::maintenance::{BLOCKS_PER_BATCH, astray, fetch_blocks, read_word};
use crate::marks::mark;
use crate::recovery::check_timeout;
use crate::visit::Entries;
use crate::{IndexError, Value};
use farindex_fabric::{OpKind, RemotePtr, Span};
use farindex_pool::{LockTimeout, Pin, PoolError};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

/// Classes that one step reads together.
const STEP: u64 = 16;
/// Classes whose keys of level 2 are collected together: at most eight keys for each.
const GROUP: u64 = 1 << 16;
/// Level-2 buckets that one step reads.
const SECONDS: u64 = 128;

/// The first pause while some classes are blocked. Each next pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_micros(10);

/// Classes `first..end` of a version.
#[derive(Clone, Copy)]
struct Classes {
    first: u64,
    end: u64,
    version: u64,
}

/// A slot that leads to a block.
struct Lead {
    slot: RemotePtr,
    word: u64,
    ptr: RemotePtr,
    units: u64,
    /// "slot 3 of level-1 bucket 17".
    name: String,
}

/// A block that was read.
struct Found {
    ptr: RemotePtr,
    block: Block,
}

/// A key that was visited in level 2.
struct Second {
    hash: KeyHash,
    key: Vec<u8>,
    /// Its block.
    ptr: RemotePtr,
}

/// A class as it was read: the slots that lead to its entries, in the order in which they were READ.
struct ClassRead {
    leads: Vec<Lead>,
    /// What keeps a lookup from concluding anything.
    blocked: Option<Blocked>,
    /// Words that no client writes, and links that lead nowhere.
    damage: Vec<Damage>,
}

/// What blocks a class.
struct Blocked {
    at: RemotePtr,
    /// Changes when others make progress.
    trace: u64,
    what: String,
    /// The bucket that blocks it, unless the class only has a bucket that is not written.
    bucket: Option<u64>,
    /// Does level 3 of that bucket block the class? No split begins before level 3 is settled.
    third: bool,
    /// What was read of the class's own bucket.
    own: Snapshot,
}

/// One walk through one table.
struct Walk<'a, 'd> {
    shard: &'a Shard,
    table: &'a Table,
    damaged: OnDamage<'d>,
    /// Keys visited in level 2, by the bucket of their class under the version of the group.
    seconds: BTreeMap<u64, Vec<Second>>,
    /// Blocked classes, and since when they are blocked: by a state, and by the holder of a lock.
    stalls: BTreeMap<(u64, u64), (Stall, LockTimeout)>,
}

/// Keys and values of some classes.
type Pairs = BTreeMap<Vec<u8>, Value>;

impl Shard {
    /// Hands out every key and value.
    pub(crate) async fn visit_entries(&self, entries: &Entries, damaged: OnDamage<'_>) -> Result<u64, IndexError> {
        let mut seen = 0;
        for table in &self.tables {
            let (seconds, stalls) = Default::default();
            let mut walk = Walk { shard: self, table, damaged: &mut *damaged, seconds, stalls };
            let geometry = table.current(&self.session).await?;
            let (version, buckets) = (geometry.version, geometry.buckets(geometry.version));
            for first in (0..buckets).step_by(GROUP as usize) {
                let group = Classes { first, end: (first + GROUP).min(buckets), version };
                walk.collect_seconds(group).await?;
                let mut open = vec![group];
                let mut pause = FIRST_PAUSE;
                while !open.is_empty() {
                    let mut late = Vec::new();
                    while let Some(classes) = open.pop() {
                        let pairs = walk.step(classes, group, &mut open, &mut late).await?;
                        for (key, value) in pairs {
                            entries.hand_out(key, value).await?;
                            seen += 1;
                        }
                        self.reclaim().await?;
                    }
                    if !late.is_empty() {
                        // One pause for all blocked classes.
                        self.session.endpoint().sleep(pause).await;
                        pause = (pause * 2).min(self.session.pool().lease() / 64);
                    }
                    open = late;
                }
            }
        }
        Ok(seen)
    }
}

impl Walk<'_, '_> {
    /// READs the first of these classes. The others go back into `open`, and blocked ones into `late`.
    async fn step(
        &mut self,
        classes: Classes,
        group: Classes,
        open: &mut Vec<Classes>,
        late: &mut Vec<Classes>,
    ) -> Result<Pairs, IndexError> {
        let Classes { first, end, version } = classes;
        let pin = self.table.pin_step(&self.shard.session, OpKind::Scan).await?;
        let geometry = self.table.geometry();
        if geometry.version > version {
            mark!("walk: classes cut in two");
            let half = geometry.buckets(version);
            open.push(Classes { first: first + half, end: end + half, version: version + 1 });
            open.push(Classes { first, end, version: version + 1 });
            return Ok(Pairs::new());
        }
        let last = end.min(first + STEP);
        if last < end {
            open.push(Classes { first: last, end, version });
        }
        let (mut pairs, mut damaged) = (Pairs::new(), Vec::new());
        let numbers: Vec<u64> = (first..last).collect();
        for (class, read) in numbers.iter().zip(self.read_classes(&pin, &geometry, &numbers).await?) {
            let home = |header: &Header| geometry.home(header.hash.bits(), version) == *class;
            if !read.damage.is_empty() {
                damaged.push(*class);
            }
            let abandoned = match read.blocked {
                None => None,
                Some(blocked) => match self.unblock(&pin, &geometry, *class, blocked).await? {
                    None => {
                        mark!("walk: a class waits");
                        late.push(Classes { first: *class, end: class + 1, version });
                        continue;
                    }
                    abandoned => {
                        damaged.push(*class);
                        abandoned
                    }
                },
            };
            let Some((found, damage)) = self.read_leads(&pin, read.leads, abandoned.is_some()).await? else {
                late.push(Classes { first: *class, end: class + 1, version });
                continue;
            };
            read.damage.into_iter().try_for_each(&mut *self.damaged)?;
            if let Some((abandoned, locked)) = abandoned {
                self.report(abandoned, locked)?;
            }
            damage.into_iter().try_for_each(&mut *self.damaged)?;
            for Found { block, .. } in found.into_iter().filter(|found| home(&found.block.header)) {
                pairs.insert(block.key().to_vec(), block.into_value());
            }
        }
        drop(pin);
        for class in first..last {
            self.look_up_seconds(class, &geometry, group, late, &damaged, &mut pairs).await?;
        }
        Ok(pairs)
    }

    /// READs classes, and the buckets that they have yet to be split off from.
    async fn read_classes(
        &mut self,
        pin: &Pin<'_>,
        geometry: &Geometry,
        classes: &[u64],
    ) -> Result<Vec<ClassRead>, IndexError> {
        let mut all = Vec::new();
        for (class, own) in classes.iter().zip(read_buckets(pin.span(), geometry, classes).await?) {
            let mut of = *class;
            let (mut chain, mut bucket) = own;
            let mut above = None;
            // A bucket that is not completely written has yet to be split off.
            while !bucket.is_written() {
                let Some(parent) = geometry.parent(of) else { break };
                of = parent;
                let read = read_buckets(pin.span(), geometry, &[parent]).await?;
                let Some((third, first)) = read.into_iter().next() else { break };
                let child = std::mem::replace(&mut bucket, first);
                above.get_or_insert(child);
                chain = third;
            }
            let again = match bucket.is_written() && bucket.version() < geometry.version {
                // It may have been split while it was read: then its version has changed by now.
                true => Some(pin.span().read(bucket.at, Level::Two.bytes()).await?),
                false => None,
            };
            let again = again.map(|words| Snapshot::new(bucket.at, words));
            all.push(judge(geometry, *class, of, &chain, bucket, above, again));
        }
        Ok(all)
    }

    /// Reports what cannot be read. If a lock is in the way, nothing is corrupted: where the walk ends with it, it says so.
    fn report(&mut self, damage: Damage, locked: Option<IndexError>) -> Result<(), IndexError> {
        match ((self.damaged)(damage), locked) {
            (Err(IndexError::Pool(PoolError::Corrupt { .. })), Some(locked)) => Err(locked),
            (reported, _) => reported,
        }
    }

    /// Recovers a blocked class as a lookup does. A class that is blocked by the same state for two leases is damage, and so is
    /// one that is blocked by a lock of the same client, which it names.
    async fn unblock(
        &mut self,
        pin: &Pin<'_>,
        geometry: &Geometry,
        class: u64,
        blocked: Blocked,
    ) -> Result<Option<(Damage, Option<IndexError>)>, IndexError> {
        let Blocked { at, trace, mut what, bucket, third, own } = blocked;
        let session = &self.shard.session;
        if self.table.learn_version(pin.span(), pin.epoch()).await? {
            return Ok(None);
        }
        let (stall, timeout) = self.stalls.entry((class, geometry.version)).or_default();
        let (began, mut locked) = (stall.begun(), None);
        if let Some(bucket) = bucket.filter(|_| began) {
            let recovery = self.shard.recovery(self.table, pin);
            let first = read_word(pin.span(), at).await?;
            let done = if first & super::slot::META != 0 {
                match recovery.try_recover_lock(at).await {
                    Ok(Some(held)) => {
                        let what = format!("level 1: the bucket at {at} stays locked");
                        return match check_timeout(session, pin.span(), timeout, held).await {
                            Err(locked @ IndexError::Locked { at, .. }) => {
                                Ok(Some((Damage { at, what }, Some(locked))))
                            }
                            checked => checked.map(|()| None),
                        };
                    }
                    recovered => recovered.map(|_| ()),
                }
            } else if third || own.version() == geometry.version && own.is_written() {
                recovery.repair(Level::One, bucket).await
            } else {
                // The split is due, and another client has begun it.
                let pin = session.pin(session.span(OpKind::Scan))?;
                let mut op = Op::new(self.shard, self.table, pin, KeyHash::from_bits(class), &[]);
                let split = op.split_towards(geometry, Level::One, class, own, None).await;
                split.and_then(|()| op.overdue.take().map_or(Ok(()), |overdue| Err(overdue.why)))
            };
            match done {
                Ok(()) => {}
                Err(IndexError::Pool(PoolError::Corrupt { what: why, .. })) => what = format!("{what} ({why})"),
                Err(error @ IndexError::Locked { .. }) => locked = Some(error),
                Err(error) => return Err(error),
            }
        }
        Ok(stall.lasts(session, trace ^ at.to_bits()).then_some((Damage { at, what }, locked)))
    }

    /// READs the blocks that slots lead to. What cannot be read is damage. Returns `None` if a slot has changed in the
    /// meantime, so that its class has to be read again; but not of an abandoned class, whose frozen entries count as
    /// they are.
    async fn read_leads(
        &mut self,
        pin: &Pin<'_>,
        leads: Vec<Lead>,
        abandoned: bool,
    ) -> Result<Option<(Vec<Found>, Vec<Damage>)>, IndexError> {
        let pool = self.shard.session.pool();
        let (mut found, mut damage) = (Vec::new(), Vec::new());
        for part in leads.chunks(BLOCKS_PER_BATCH) {
            let mut sound = Vec::new();
            for lead in part {
                match astray(pool, lead.ptr, lead.units * UNIT as u64) {
                    Some(what) => {
                        damage.push(Damage { at: lead.slot, what: format!("{} points to {what}", lead.name) });
                    }
                    None => sound.push(lead),
                }
            }
            let asked: Vec<_> = sound.iter().map(|lead| (lead.ptr, lead.units)).collect();
            for (lead, block) in sound.into_iter().zip(fetch_blocks(pin.span(), &asked).await?) {
                match block {
                    Ok(block) => found.push(Found { ptr: lead.ptr, block }),
                    Err(what) => {
                        let now = read_word(pin.span(), lead.slot).await?;
                        if Slot::decode(now) != Slot::decode(lead.word) && !abandoned {
                            return Ok(None);
                        }
                        damage.push(Damage { at: lead.ptr, what: format!("{} points to {what}", lead.name) });
                    }
                }
            }
        }
        Ok(Some((found, damage)))
    }

    /// Collects the keys that lie in level 2 and belong to these classes.
    async fn collect_seconds(&mut self, group: Classes) -> Result<(), IndexError> {
        self.seconds.clear();
        let (mut from, mut geometry) = (0, self.table.current(&self.shard.session).await?);
        loop {
            // Buckets that are split off in the meantime are behind these.
            let buckets = geometry.buckets(geometry.version);
            while from < buckets {
                let end = buckets.min(from + SECONDS);
                self.collect_from(&geometry, from..end, group).await?;
                from = end;
            }
            geometry = self.table.current(&self.shard.session).await?;
            if geometry.buckets(geometry.version) == buckets {
                return Ok(());
            }
        }
    }

    async fn collect_from(
        &mut self,
        geometry: &Geometry,
        buckets: Range<u64>,
        group: Classes,
    ) -> Result<(), IndexError> {
        let pin = self.table.pin_step(&self.shard.session, OpKind::Scan).await?;
        let mut batch = pin.span().batch();
        let asked: Vec<_> = buckets
            .map(|bucket| {
                let at = geometry.bucket(Level::Two, bucket);
                (bucket, at, batch.read(at, Level::Two.bytes()))
            })
            .collect();
        let mut done = batch.post().await?;
        let (mut leads, mut damage) = (Vec::new(), Vec::new());
        for (bucket, at, ticket) in asked {
            let snapshot = Snapshot::new(at, done.buf(ticket));
            leads_of(&snapshot, &format!("level-2 bucket {bucket}"), true, &mut leads, &mut damage);
            if geometry.made_at(bucket) == 0 && !snapshot.is_written() {
                let what = format!("level-2 bucket {bucket} is not written, though it was made with the table");
                damage.push(Damage { at, what });
            }
        }
        drop(done);
        if let Some((found, more)) = self.read_leads(&pin, leads, true).await? {
            for Found { ptr, block } in found {
                let hash = block.header.hash;
                let home = geometry.home(hash.bits(), group.version);
                if (group.first..group.end).contains(&home) {
                    self.seconds.entry(home).or_default().push(Second { hash, key: block.key().to_vec(), ptr });
                }
            }
            damage.extend(more);
        }
        drop(pin);
        // Other groups read these buckets as well: damage is reported once.
        if group.first == 0 {
            damage.into_iter().try_for_each(&mut *self.damaged)?;
        }
        Ok(())
    }

    /// Looks up the keys of a class that were visited in level 2, and not in another level since. In an abandoned class
    /// no lookup ends, so the entry that was visited is returned.
    #[allow(clippy::too_many_arguments)]
    async fn look_up_seconds(
        &mut self,
        class: u64,
        geometry: &Geometry,
        group: Classes,
        late: &[Classes],
        damaged: &[u64],
        pairs: &mut Pairs,
    ) -> Result<(), IndexError> {
        if late.iter().any(|waits| (waits.first..waits.end).contains(&class)) {
            return Ok(());
        }
        let Some(keys) = self.seconds.remove(&(geometry.home(class, group.version))) else { return Ok(()) };
        let (mine, others): (Vec<_>, Vec<_>) =
            keys.into_iter().partition(|second| geometry.home(second.hash.bits(), geometry.version) == class);
        if !others.is_empty() {
            self.seconds.insert(geometry.home(class, group.version), others);
        }
        for Second { key, ptr, .. } in mine {
            if pairs.contains_key(&key) {
                continue;
            }
            mark!("walk: a key of level 2");
            let (hash, table, pin) = self.shard.begin(OpKind::Scan, &key)?;
            if damaged.contains(&class) {
                let block = fetch_blocks(pin.span(), &[(ptr, 1)]).await?.pop();
                if let Some(Ok(block)) = block.filter(|block| block.as_ref().is_ok_and(|block| block.key() == key)) {
                    pairs.insert(key, block.into_value());
                }
                continue;
            }
            let mut op = Op::new(self.shard, table, pin, hash, &key);
            op.look_at_root().await?;
            let looked = op.look(&mut None).await;
            drop(op);
            match looked {
                Ok(LookupResult::Hit(hit)) => drop(pairs.insert(key, hit.block.into_value())),
                Ok(LookupResult::Absent(_)) => {}
                Err(IndexError::Pool(PoolError::Corrupt { at, what })) => (self.damaged)(Damage { at, what })?,
                Err(error @ IndexError::Locked { at, .. }) => {
                    self.report(Damage { at, what: error.to_string() }, Some(error))?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// READs level 1 and then level 3 of these buckets, each in one batch. A split writes level 3 of a new bucket before level 1, so
/// behind a level 1 that is written whole, level 3 is complete.
async fn read_buckets(
    span: &Span,
    geometry: &Geometry,
    buckets: &[u64],
) -> Result<Vec<(Chain3, Snapshot)>, IndexError> {
    let mut batch = span.batch();
    let firsts: Vec<_> = buckets
        .iter()
        .map(|bucket| {
            let at = geometry.bucket(Level::One, *bucket);
            (at, batch.read(at, Level::One.bytes()))
        })
        .collect();
    let mut done = batch.post().await?;
    let firsts: Vec<_> = firsts.into_iter().map(|(at, ticket)| Snapshot::new(at, done.buf(ticket))).collect();
    drop(done);
    let mut batch = span.batch();
    let thirds: Vec<_> = buckets.iter().map(|bucket| batch.read(geometry.third(*bucket), 8)).collect();
    let mut done = batch.post().await?;
    let words: Vec<_> = thirds.into_iter().map(|ticket| done.buf(ticket).words().first().copied()).collect();
    drop(done);
    let mut chains = Vec::new();
    for (bucket, word) in buckets.iter().zip(words) {
        chains.push(Chain3::follow(span, geometry.third(*bucket), word.unwrap_or_default()).await?);
    }
    Ok(chains.into_iter().zip(firsts).collect())
}

/// Adds the blocks that the slots of a bucket lead to, and as damage the words that no client writes.
fn leads_of(bucket: &Snapshot, name: &str, frozen: bool, leads: &mut Vec<Lead>, damage: &mut Vec<Damage>) {
    for (i, slot) in bucket.slots() {
        let (at, word) = (bucket.slot(i), bucket.word(i));
        lead_of(at, word, slot, || format!("slot {i} of {name}"), frozen, leads, damage);
        if let Slot::Link(_) = slot {
            damage.push(Damage { at, what: format!("slot {i} of {name} holds {word:#018x}") });
        }
    }
}

fn lead_of(
    at: RemotePtr,
    word: u64,
    slot: Slot,
    name: impl Fn() -> String,
    frozen: bool,
    leads: &mut Vec<Lead>,
    damage: &mut Vec<Damage>,
) {
    match slot {
        Slot::Live(entry) => {
            leads.push(Lead { slot: at, word, ptr: entry.ptr, units: entry.len, name: name() });
        }
        Slot::Frozen(_, ptr) if frozen => leads.push(Lead { slot: at, word, ptr, units: 1, name: name() }),
        Slot::Unknown => damage.push(Damage { at, what: format!("{} holds {word:#018x}", name()) }),
        _ => {}
    }
}

/// Evaluates what was read of a class. `of` is the bucket that its entries should be in, `child` is its own bucket if
/// that is not written, `again` is a later READ of the version.
fn judge(
    geometry: &Geometry,
    class: u64,
    of: u64,
    chain: &Chain3,
    bucket: Snapshot,
    child: Option<Snapshot>,
    again: Option<Snapshot>,
) -> ClassRead {
    let version = bucket.version();
    let what = if !bucket.is_written() {
        Some((None, format!("level-1 bucket {class} and all that it is split from are not written whole")))
    } else if bucket.locked() {
        Some((Some(of), format!("level-1 bucket {of} stays locked")))
    } else if version <= geometry.version && geometry.home(class, version) != of {
        Some((None, format!("level-1 bucket {class} is not written whole, though bucket {of} was split")))
    } else if again.is_some_and(|again| again.locked() || again.version() != version)
        || version > geometry.version
        || !bucket.is_settled(version, geometry.side(of, version))
        || !chain.is_settled(version)
    {
        Some((Some(of), format!("slots of level-1 bucket {of} stay frozen, or are of different versions")))
    } else {
        None
    };
    let trace = bucket.trace(geometry.version) ^ chain.trace(geometry.version);
    let trace = child.as_ref().map_or(trace, |child| trace.rotate_left(1) ^ child.trace(geometry.version));
    let abandoned = what.is_some();
    let (mut leads, mut damage) = (Vec::new(), Vec::new());
    leads_of(&bucket, &format!("level-1 bucket {of}"), abandoned, &mut leads, &mut damage);
    if let Some(child) = &child {
        leads_of(child, &format!("level-1 bucket {class}"), abandoned, &mut leads, &mut damage);
    }
    for (i, (at, word)) in chain.words().iter().enumerate() {
        let name = || format!("slot {i} of level 3 of bucket {of}");
        lead_of(*at, *word, Slot::decode(*word), name, abandoned, &mut leads, &mut damage);
    }
    if let Some((at, what)) = &chain.broken {
        damage.push(Damage { at: *at, what: format!("level 3 of bucket {of}: {what}") });
    }
    let own_at = geometry.bucket(Level::One, class);
    let blocked = what.map(|(blocking, what)| Blocked {
        at: if blocking.is_some() { bucket.at } else { own_at },
        trace,
        what,
        bucket: blocking,
        third: !chain.is_settled(version),
        own: child.unwrap_or(bucket),
    });
    ClassRead { leads, blocked, damage }
}
