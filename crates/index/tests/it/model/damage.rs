//! Damaged structures: a walk reports them, visits everything else, and returns nothing that is wrong.

use farindex_fabric::memory::Delivery;
use farindex_fabric::{NodeId, RemotePtr};
use farindex_index::audit::Damage;
use farindex_index::race::segment::{BUCKET_LEN, HEAD_LEN};
use farindex_index::{Lifecycle, PointIndex, PoolIndex, Race, SepHash, race, sephash};
use farindex_pool::{Pool, PoolOptions};
use farindex_testkit::world::{Ctx, Member, World};
use std::collections::BTreeMap;

const NODE: NodeId = NodeId::new(0);
const LEN: u64 = 16 << 20;
const KEYS: u32 = 2000;

fn key(i: u32) -> Vec<u8> {
    format!("key-{i:06}").into_bytes()
}

fn value(i: u32, round: u32) -> Vec<u8> {
    format!("value-{round}-of-{i:06}").into_bytes()
}

/// Returns what a new client visits, which has no copy of anything. No key may be visited twice.
async fn walked<I: PoolIndex>(ctx: &Ctx, pool: &Pool, member: &Member) -> (BTreeMap<Vec<u8>, Vec<u8>>, Vec<String>) {
    let reader = ctx.join(pool).await;
    let index = I::open(&reader.session, "words").await.unwrap();
    let (mut visited, mut damages) = (BTreeMap::new(), Vec::new());
    let each = async |key: &[u8], value: farindex_index::Value| {
        assert_eq!(visited.insert(key.to_vec(), value.to_vec()), None, "visited twice");
        Ok(())
    };
    let mut damaged = |damage: Damage| {
        damages.push(damage.what);
        Ok(())
    };
    index.visit(each, &mut damaged).await.unwrap();
    assert_eq!(
        index.visit(async |_, _| Ok(()), &mut Damage::fail).await.is_err(),
        !damages.is_empty(),
        "what is reported is an error for a walk that wants all or nothing"
    );
    drop(index);
    reader.close_while_ticking(&[member]).await;
    (visited, damages)
}

/// Access to single words of far memory.
trait Words {
    async fn read(&self, at: RemotePtr, words: usize) -> Vec<u64>;
    async fn write(&self, at: RemotePtr, words: &[u64]);
    /// The block that holds these bytes behind its header.
    async fn block(&self, pair: &[u8]) -> RemotePtr;
    /// The slot that points to a block.
    async fn slot_of(&self, block: RemotePtr) -> RemotePtr;
}

impl Words for Member {
    async fn read(&self, at: RemotePtr, words: usize) -> Vec<u64> {
        self.span().read(at, words * 8).await.unwrap().words().to_vec()
    }
    async fn write(&self, at: RemotePtr, words: &[u64]) {
        self.span().write(at, self.session.endpoint().buf_from_words(words)).await.unwrap();
    }
    async fn block(&self, pair: &[u8]) -> RemotePtr {
        let all = self.span().read(RemotePtr::new(NODE, 0), LEN as usize).await.unwrap();
        let blocks = all.bytes().chunks(64).enumerate().filter(|(_, line)| line[16..].starts_with(pair));
        let blocks: Vec<_> = blocks.map(|(i, _)| RemotePtr::new(NODE, i as u64 * 64)).collect();
        assert_eq!(blocks.len(), 1);
        blocks[0]
    }
    async fn slot_of(&self, block: RemotePtr) -> RemotePtr {
        let all = self.span().read(RemotePtr::new(NODE, 0), LEN as usize).await.unwrap();
        let points = |word: u64| word & ((1 << 48) - 1) == block.offset() / 64 && word >> 48 != 0;
        let slots = all.words().iter().enumerate().filter(|(_, word)| points(**word));
        let slots: Vec<_> = slots.map(|(i, _)| RemotePtr::new(NODE, i as u64 * 8)).collect();
        assert_eq!(slots.len(), 1);
        slots[0]
    }
}

/// Overwrites words, walks, and puts back what was there. Returns how many keys were missing, and what was said.
async fn damage<I: PoolIndex>(ctx: &Ctx, pool: &Pool, member: &Member, at: RemotePtr, words: &[u64]) -> (u32, String) {
    let before = member.read(at, words.len()).await;
    assert_ne!(before, words);
    member.write(at, words).await;
    let (visited, damages) = walked::<I>(ctx, pool, member).await;
    member.write(at, &before).await;
    let mut missing = 0;
    for i in 0..KEYS {
        match visited.get(&key(i)) {
            Some(found) => assert_eq!(*found, value(i, 0)),
            None => missing += 1,
        }
    }
    assert_eq!(visited.len() as u32 + missing, KEYS);
    (missing, damages.join("\n"))
}

const NOWHERE: RemotePtr = RemotePtr::new(NodeId::new(9), 1 << 20);

#[test]
fn a_walk_of_race_goes_on_behind_what_is_damaged() {
    World::memory(1, LEN, Delivery::Immediate).run(async |ctx: Ctx| {
        let pool = ctx.pool(&PoolOptions::default()).await;
        let member = ctx.join(&pool).await;
        let config = race::Config { initial_depth: 1, groups: 2, ..race::Config::default() };
        let index = Race::create(&member.session, "words", &config).await.unwrap();
        for i in 0..KEYS {
            index.insert(&key(i), &value(i, 0)).await.unwrap();
        }
        let (visited, damages) = walked::<Race>(&ctx, &pool, &member).await;
        assert_eq!((visited.len() as u32, damages), (KEYS, vec![]));
        let table = &index.tables()[0];
        let directory = table.directory();
        // Of the middle of the directory, and with children.
        let (suffix, word) = (0b101, directory.address(0b101).unwrap());
        let segment = directory.mirror().get(suffix).at();
        let words = table.shape().bytes() / 8;

        let (missing, said) = damage::<Race>(&ctx, &pool, &member, segment, &[0; HEAD_LEN / 8]).await;
        assert!(
            missing == 0 && said.contains("suffix 0b101 has the state or the index tag of another"),
            "{missing}: {said}"
        );
        assert_eq!(said.lines().count(), 1);
        let header = segment.add((HEAD_LEN + 4 * BUCKET_LEN) as u64);
        let (missing, said) = damage::<Race>(&ctx, &pool, &member, header, &[0]).await;
        assert!(missing == 0 && said.contains("bucket 4 of the segment of suffix 0b101 has the header"), "{said}");
        let (missing, said) = damage::<Race>(&ctx, &pool, &member, header.add(8), &[u64::MAX; 8]).await;
        assert!((1..=8).contains(&missing) && said.contains("slot 7 of bucket 4 of"), "{missing}: {said}");
        let (missing, said) = damage::<Race>(&ctx, &pool, &member, header.add(8), &[1 << 54]).await;
        assert!(missing <= 1 && said.contains("slot 0 of bucket 4 of the segment of suffix 0b101 holds"), "{said}");
        let (lost, said) = damage::<Race>(&ctx, &pool, &member, segment, &vec![0; words]).await;
        assert!(lost > 0 && said.contains("index tag of another, and its entries are lost"), "{lost}: {said}");
        let (missing, said) = damage::<Race>(&ctx, &pool, &member, word, &[0]).await;
        assert!(missing == lost && said.contains("names no segment of suffix 0b101"), "{missing}: {said}");
        let (missing, said) = damage::<Race>(&ctx, &pool, &member, word, &[NOWHERE.to_slot().unwrap()]).await;
        assert!(missing == lost && said.contains("memory node 9, which does not exist"), "{missing}: {said}");
        let other = directory.mirror().get(0b11).to_bits();
        let (missing, said) = damage::<Race>(&ctx, &pool, &member, word, &[other]).await;
        assert!(
            missing == lost && said.contains("suffix 0b101 has the state or the index tag of another"),
            "{missing}: {said}"
        );
        let chunk = directory.root().add(8 * 8);
        let (missing, said) = damage::<Race>(&ctx, &pool, &member, chunk, &[NOWHERE.to_bits()]).await;
        assert!(missing > lost && missing < KEYS, "{missing}");
        assert!(said.contains("chunk 0 of the directory points to memory node 9, which does not exist"), "{said}");
        drop(index);
        member.close().await;
    });
}

#[test]
fn a_walk_of_sephash_goes_on_behind_what_is_damaged() {
    World::memory(1, LEN, Delivery::Immediate).run(async |ctx: Ctx| {
        let pool = ctx.pool(&PoolOptions::default()).await;
        let member = ctx.join(&pool).await;
        let config = sephash::Config { cur_bytes: 256, initial_depth: 1, ..sephash::Config::default() };
        let index = SepHash::create(&member.session, "words", &config).await.unwrap();
        for i in 0..KEYS {
            index.insert(&key(i), &value(i, 0)).await.unwrap();
        }
        let (visited, damages) = walked::<SepHash>(&ctx, &pool, &member).await;
        assert_eq!((visited.len() as u32, damages), (KEYS, vec![]));
        let directory = index.tables()[0].directory();
        let word = directory.address(0b1).unwrap();
        let segment = directory.mirror().get(0b1).at();

        let (lost, said) = damage::<SepHash>(&ctx, &pool, &member, segment, &[0; 8]).await;
        assert!(lost > 0 && lost < KEYS && said.contains("the segment of suffix 0b1: "), "{lost}: {said}");
        let (missing, said) = damage::<SepHash>(&ctx, &pool, &member, word, &[0]).await;
        assert!(missing == lost && said.contains("names no segment of suffix 0b1,"), "{missing}: {said}");
        let (missing, said) = damage::<SepHash>(&ctx, &pool, &member, word, &[NOWHERE.to_slot().unwrap()]).await;
        assert!(missing == lost && said.contains("memory node 9, which does not exist"), "{missing}: {said}");
        let main = member.read(segment.add(8), 1).await[0];
        assert_ne!(main & ((1 << 48) - 1), 0);
        let nowhere = main >> 48 << 48 | NOWHERE.to_slot().unwrap();
        let (missing, said) = damage::<SepHash>(&ctx, &pool, &member, segment.add(8), &[nowhere]).await;
        assert!(missing > 0 && missing <= lost && said.contains("has its MainSegment at memory node 9"), "{said}");
        assert!(said.lines().count() == 1, "{said}");
        drop(index);
        member.close().await;
    });
}

/// The newest value of a key is damaged, in three ways: no older one takes its place.
#[test]
fn sephash_hands_out_no_older_value_for_one_that_is_lost() {
    World::memory(1, LEN, Delivery::Immediate).run(async |ctx: Ctx| {
        let pool = ctx.pool(&PoolOptions::default()).await;
        let member = ctx.join(&pool).await;
        let config = sephash::Config { cur_bytes: 512, initial_depth: 1, ..sephash::Config::default() };
        let index = SepHash::create(&member.session, "words", &config).await.unwrap();
        for i in 0..KEYS {
            index.insert(&key(i), &value(i, 0)).await.unwrap();
        }
        for i in [77, 78, 79] {
            index.upsert(&key(i), &value(i, 1)).await.unwrap();
            let block = member.block(&[key(i), value(i, 1)].concat()).await;
            let slot = member.slot_of(block).await;
            let before = (member.read(block.add(40), 1).await, member.read(slot, 1).await);
            let ways = [(block.add(40), before.0[0] ^ 1), (slot, before.1[0] | 9 << 38), (slot, 0)];
            for (way, (at, word)) in ways.into_iter().enumerate() {
                member.write(at, &[word]).await;
                let (visited, damages) = walked::<SepHash>(&ctx, &pool, &member).await;
                member.write(at, if way == 0 { &before.0 } else { &before.1 }).await;
                assert_eq!((visited.get(&key(i)), damages.len()), (None, 1), "key {i}, way {way}: {damages:?}");
                let least = if way == 2 { KEYS - KEYS / 4 } else { KEYS - 1 };
                assert!(visited.len() as u32 >= least, "key {i}, way {way}: {}", visited.len());
            }
        }
        drop(index);
        member.close().await;
    });
}
