//! A cuckoo index on a simulated cluster: what it takes to fill it, and lookups in it, for Figures 6, 7, 9 and 11 of T.
//! Wang et al., ADMS 2020.
//!
//! Mostly, records of 6 bytes lie in slots of 8, the narrowest that there are. The table is filled by one client's
//! inserts, key by key, until it is as full as wanted or has to grow; then every client of the preset looks up keys
//! that are drawn from those that are present.

use super::probing::{Count, Rates};
use farindex_fabric::{Endpoint, OpKind};
use farindex_index::cuckoo::{Config, Lookup};
use farindex_index::slotted::slot::PER_WORD;
use farindex_index::{Cuckoo, IndexError, Lifecycle, PointIndex, PoolIndex};
use farindex_pool::{Client, Pool, PoolOptions, Session};
use farindex_sim::{Config as SimConfig, Preset, Sim, SimRng};
use serde::Serialize;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

const NAME: &str = "cuckoo";
/// Bytes of a key.
const KEY: usize = 4;
/// A table is as full as the threshold allows, or displacement.
const THRESHOLD: f64 = 0.98;

/// What is inserted, and into what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Records {
    /// Bytes of a slot.
    pub(crate) width: usize,
    /// Bytes of a value.
    pub(crate) value: usize,
}

impl Records {
    /// As many bytes as fit a slot of 8.
    pub(crate) const SMALLEST: Records = Records { width: 8, value: 2 };
    /// In slots of so many bytes, which they fill: of a wider one, the first word says what it holds, and each other
    /// one has 7 bytes.
    pub(crate) fn inline(width: usize) -> Records {
        match (width / 8).saturating_sub(1) * PER_WORD {
            0 => Records::SMALLEST,
            room => Records { width, value: room - KEY },
        }
    }
    /// Out of band, behind slots of 8: key and value have so many bytes, but at least as many as do not fit.
    pub(crate) fn heap(bytes: usize) -> Records {
        Records { width: 8, value: bytes.saturating_sub(KEY).max(3) }
    }
}

/// A table that has been filled.
pub(crate) struct Table {
    sim: Sim,
    pool: Pool,
    preset: Preset,
    /// Slots.
    pub(crate) slots: u64,
    /// Keys that are present.
    pub(crate) entries: u64,
    /// It has to grow: this is as full as it becomes.
    pub(crate) full: bool,
    /// What inserts took.
    pub(crate) costs: Vec<Cost>,
}

/// What an insert takes, between this load and the one before.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Cost {
    /// Share of slots in use at the end.
    pub(crate) load: f64,
    /// Round trips of an insert, with displacements.
    pub(crate) round_trips: f64,
    /// Verbs.
    pub(crate) verbs: f64,
}

fn key(i: u64) -> [u8; KEY] {
    (i as u32).to_le_bytes()
}

async fn join(pool: &Pool, me: &farindex_sim::Client, endpoint: Endpoint) -> Result<Rc<Session>, IndexError> {
    let client = Client::register(pool, me.identity(), &endpoint).await?;
    Ok(Rc::new(client.session(endpoint)))
}

/// Round trips and verbs of everything that a client has done.
fn spent(endpoint: &Endpoint) -> (u64, u64) {
    let meter = endpoint.meter();
    let each = OpKind::ALL.iter().map(|kind| &meter.of(*kind).total);
    each.fold((0, 0), |(trips, verbs), of| (trips + of.round_trips, verbs + of.reads + of.writes + of.cas + of.faa))
}

/// What was inserted, whether the table has to grow, and the costs.
type Filling = (u64, bool, Vec<Cost>);

async fn insert_all(session: Rc<Session>, config: Config, value: usize, load: f64) -> Result<Filling, IndexError> {
    let value = vec![b'v'; value];
    let index = Cuckoo::create(&session, NAME, &config).await?;
    let wanted = (config.slots as f64 * load) as u64;
    let step = (config.slots / 20).max(1);
    let (mut costs, mut before, mut since) = (Vec::new(), spent(session.endpoint()), 0);
    for i in 0..wanted {
        index.insert(&key(i), &value).await?;
        let geometry = index.tables().first().map(|table| table.geometry());
        let grows = geometry.is_some_and(|geometry| geometry.next.is_some() || geometry.current.generation > 0);
        if grows {
            return Ok((i, true, costs));
        }
        if (i + 1) % step == 0 || i + 1 == wanted {
            let now = spent(session.endpoint());
            let inserts = (i + 1 - since) as f64;
            costs.push(Cost {
                load: (i + 1) as f64 / config.slots as f64,
                round_trips: (now.0 - before.0) as f64 / inserts,
                verbs: (now.1 - before.1) as f64 / inserts,
            });
            (before, since) = (now, i + 1);
        }
    }
    Ok((wanted, false, costs))
}

/// What ended a simulation that should have come to a result.
fn cut_short(what: impl std::fmt::Display) -> IndexError {
    IndexError::BadConfig(format!("the simulation ended early: {what}"))
}

impl Table {
    /// Fills a table to this load, or until it has to grow.
    pub(crate) fn fill(
        preset: &Preset,
        slots: u64,
        associativity: u64,
        lookup: Lookup,
        records: Records,
        load: f64,
    ) -> Result<Table, IndexError> {
        let Records { width, value } = records;
        let node_len = (slots * (width + value + 64) as u64 * 4).next_multiple_of(1 << 20) + (32 << 20);
        let unbounded = SimConfig { max_steps: u64::MAX, max_time: Duration::MAX, ..SimConfig::default() };
        let sim = Sim::new(1, SimConfig { nodes: 1, node_len, model: Some(preset.clone()), ..unbounded })?;
        let clients = preset.compute_nodes * preset.clients_per_node;
        let (fabric, harness) = (sim.fabric(), sim.harness());
        let options = PoolOptions { client_slots: clients as u64 + 2, ..PoolOptions::unseeded() };
        let made = sim.block_on(async move { Pool::create(fabric, &harness.connect(), &options).await });
        let pool = made.map_err(cut_short)??;
        let config = Config { slots, width, associativity, lookup, threshold: THRESHOLD, alpha: 100.0 };
        let (filled, harness) = (pool.clone(), sim.harness());
        let filling = sim.block_on(async move {
            let session = join(&filled, &harness, harness.connect()).await?;
            insert_all(session, config, value, load).await
        });
        let (entries, full, costs) = filling.map_err(cut_short)??;
        Ok(Table { sim, pool, preset: preset.clone(), slots, entries, full, costs })
    }

    /// Share of slots in use.
    pub(crate) fn load(&self) -> f64 {
        self.entries as f64 / self.slots as f64
    }

    /// Every client looks up keys that are present, so many at the same time, for as much virtual time as is measured
    /// and as much before.
    pub(crate) fn rates(&self, outstanding: usize, span: Duration) -> Result<Rates, IndexError> {
        let mut workers = Vec::new();
        for number in 0..self.preset.compute_nodes * self.preset.clients_per_node {
            let client = self.sim.client_on(number % self.preset.compute_nodes);
            let (pool, me, endpoint) = (self.pool.clone(), client.clone(), client.connect());
            let opened = self.sim.block_on(async move {
                let session = join(&pool, &me, endpoint).await?;
                Cuckoo::open(&session, NAME).await
            });
            workers.push((number, client, Rc::new(opened.map_err(cut_short)??)));
        }
        let from = self.sim.harness().connect().now() + span;
        let measured = from..from + span;
        let mut counts = Vec::new();
        for (number, client, index) in &workers {
            for coroutine in 0..outstanding {
                let rng = SimRng::new(1, (1 << 20 | *number as u64) << 8 | coroutine as u64);
                let work = work(Rc::clone(index), self.entries, measured.clone(), rng);
                counts.push(self.sim.spawn(client, work));
            }
        }
        let ended = self.sim.run();
        if !ended.is_done() {
            return Err(cut_short(ended));
        }
        let mut total = Count::default();
        for count in counts {
            total.add(count.take().unwrap_or_else(|| Ok(Count::default()))?);
        }
        // READs are counted by client, whatever it has under way, and from the beginning.
        let (mut lookups, mut reads) = (0, 0);
        for (_, _, index) in &workers {
            let meter = index.session().endpoint().meter();
            let of = meter.of(OpKind::Get);
            lookups += of.ops;
            reads += of.total.reads;
        }
        Ok(Rates { reads: reads as f64 / (lookups as f64).max(1.0), ..total.rates(span) })
    }
}

async fn work(
    index: Rc<Cuckoo>,
    entries: u64,
    measured: Range<Duration>,
    mut rng: SimRng,
) -> Result<Count, IndexError> {
    let mut count = Count::default();
    let endpoint = index.session().endpoint();
    loop {
        let began = endpoint.now();
        let found = index.get(&key(rng.below(entries.max(1)))).await?;
        let now = endpoint.now();
        if measured.contains(&now) {
            count.lookups += 1;
            count.matches += u64::from(found.is_some());
            count.latency.push((now - began).as_nanos() as u64);
        }
        if now >= measured.end {
            return Ok(count);
        }
    }
}
