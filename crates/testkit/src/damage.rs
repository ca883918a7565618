//! Damaged memory, which is beyond the fabric's contract: reading it is an error.

use farindex_fabric::OpKind;
use farindex_index::shard::bucket::Level;
use farindex_index::shard::slot::Slot;
use farindex_index::shard::{Config, Shard};
use farindex_index::{IndexError, Lifecycle, PointIndex, PoolIndex};
use farindex_pool::{Client, Pool, PoolError, PoolOptions};
use farindex_sim::{Config as SimConfig, Sim, SimRng};
use std::rc::Rc;

const KEYS: u32 = 100;
/// Stream of draws, next to those of the cluster.
const DAMAGE: u64 = 5000;

fn value(i: u32) -> [u8; 40] {
    [i as u8; 40]
}

/// Opens the index, or makes it.
async fn index_of(pool: &Pool, me: &farindex_sim::Client, new: bool) -> Result<Shard, IndexError> {
    let endpoint = me.connect();
    let client = Client::register(pool, me.identity(), &endpoint).await?;
    let session = Rc::new(client.session(endpoint));
    match new {
        true => Shard::create(&session, "damaged", &Config::default()).await,
        false => Shard::open(&session, "damaged").await,
    }
}

/// Flips one bit of one value in far memory. A get of the key is an error, and no get returns a value that was not
/// written.
pub(crate) fn one_bit_flips(seed: u64) -> Option<String> {
    let mut rng = SimRng::new(seed, DAMAGE);
    let sim = match Sim::new(seed, SimConfig::default()) {
        Ok(sim) => sim,
        Err(error) => return Some(error.to_string()),
    };
    let (fabric, harness) = (sim.fabric(), sim.harness());
    let made = sim.block_on(async move {
        let pool = Pool::create(fabric, &harness.connect(), &PoolOptions::unseeded()).await?;
        let index = index_of(&pool, &harness, true).await?;
        for i in 0..KEYS {
            index.insert(&i.to_le_bytes(), &value(i)).await?;
        }
        let span = index.session().span(OpKind::Other);
        let geometry = index.tables()[0].geometry();
        let mut blocks = Vec::new();
        for bucket in 0..geometry.buckets(0) {
            let words = span.read(geometry.bucket(Level::One, bucket), Level::One.bytes()).await?;
            blocks.extend(words.words().iter().filter_map(|word| match Slot::decode(*word) {
                Slot::Live(entry) => Some(entry.ptr),
                _ => None,
            }));
        }
        Ok::<_, IndexError>((pool, blocks))
    });
    let (pool, blocks) = match made {
        Ok(Ok(made)) => made,
        Ok(Err(error)) => return Some(error.to_string()),
        Err(ended) => return Some(ended.to_string()),
    };
    let Some(block) = rng.pick(&blocks) else { return Some("no entry in level 1".to_owned()) };
    // Key and value lie at bytes 16 to 60: these words are the value's alone.
    let word = block.add(rng.within(3, 6) * 8);
    sim.poke(word, sim.peek(word).unwrap_or_default() ^ 1 << rng.below(64));
    let reader = sim.client();
    let looked = sim.block_on(async move {
        let index = index_of(&pool, &reader, false).await?;
        let (mut reported, mut wrong) = (0, None);
        for i in 0..KEYS {
            match index.get(&i.to_le_bytes()).await {
                Ok(Some(found)) if *found == value(i) => {}
                Ok(found) => wrong = Some(format!("key {i} reads {found:?}")),
                Err(IndexError::Pool(PoolError::Corrupt { .. })) => reported += 1,
                Err(error) => return Err(error),
            }
        }
        Ok(wrong.or((reported != 1).then(|| format!("{reported} gets report a damaged block, not one"))))
    });
    match looked {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => Some(error.to_string()),
        Err(ended) => Some(ended.to_string()),
    }
}
