//! Interleavings of two clients: the first one is stopped behind any of its batches while the second one works; the
//! second one may be stopped as well while the first one goes on. No client crashes. The outcomes are linearizable,
//! nothing is left that a client would have to recover, and no memory is lost.

use crate::crash_recovery::kinds::{CrashTested, Kind};
use crate::crash_recovery::run::{Shared, account, join, make};
use farindex_index::IndexError;
use farindex_index::Lifecycle;
use farindex_pool::{Client, Pool, Session};
use farindex_sim::{Config as SimConfig, Sim, Swarm};
use farindex_testkit::workload::Op;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const LEASE: Duration = Duration::from_secs(10);
/// What a batch takes in a calm world, there and back.
const STEP: Duration = Duration::from_micros(2);
/// It has taken effect, and the client has not heard of that.
const HALF: Duration = Duration::from_micros(1);
/// Longer than an operation takes that does not wait for another client. A client that waits checks the lock holder
/// meanwhile.
const WHILE: Duration = Duration::from_millis(6);

/// One action of a client.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    /// An operation on one key.
    On(Op, String),
    /// Lets the table grow.
    Grow,
}

/// One after the other.
pub(crate) type Does = Vec<Act>;

/// A client that is about to begin.
struct Ready<I> {
    client: Arc<Client>,
    session: Rc<Session>,
    index: I,
}

async fn ready<I: CrashTested>(pool: Pool, me: farindex_sim::Client) -> Result<Ready<I>, IndexError> {
    let (client, session) = join(&pool, &me).await?;
    let index = I::open(&session, "old").await?;
    // It takes a stock of memory, so that its first write does not have to.
    make::<I>(&session, &format!("of {}", me.id()), 1).await?.upsert(b"key", b"value").await?;
    Ok(Ready { client, session, index })
}

async fn work<I: CrashTested>(
    shared: Shared<I>,
    number: u64,
    ready: Ready<I>,
    does: Does,
    done: Rc<Cell<bool>>,
) -> Ready<I> {
    let mut log = shared.recorder.client(number);
    for (i, act) in does.iter().enumerate() {
        let outcome = match act {
            Act::On(op, key) => {
                let value = format!("{number} {i}");
                // Of the stage's key, as it was at first.
                let values = (shared.stage.value(), value.as_str());
                shared.run_expecting(&mut log, (&ready.session, &ready.index), *op, key, values).await
            }
            Act::Grow => ready.index.enlarge(&ready.session).await,
        };
        outcome.unwrap_or_else(|error| panic!("{act:?}: {error}"));
    }
    done.set(true);
    ready
}

async fn leave<I>(ready: Ready<I>, me: farindex_sim::Client) -> Result<(), IndexError> {
    let Ready { client, session, index } = ready;
    session.endpoint().settle().await;
    drop((index, session));
    Ok(client.close(&me.connect()).await?)
}

/// Everything that is there is where it belongs, and each key is asked for once more.
async fn look<I: CrashTested>(shared: Shared<I>, pool: Pool, me: farindex_sim::Client) -> Result<(), IndexError> {
    let (_client, session) = join(&pool, &me).await?;
    account::<I>(&session).await?;
    let index = I::open(&session, "old").await?;
    let mut log = shared.recorder.client(3);
    for key in shared.stage.keys.iter().chain([&shared.stage.key]) {
        shared.run(&mut log, (&session, &index), Op::Get, key, "").await?;
    }
    Ok(())
}

/// Runs one interleaving: the clients take turns, the first one first, each for so many batches; then the next one for
/// as long as it takes, and then both. Had the one whose turn was last ended before?
pub(crate) fn interleave<I: CrashTested>(kind: Kind<I::Place>, does: &[Does; 2], turns: &[u32]) -> bool {
    let context = format!("{kind:?}, {does:?}, turns {turns:?}");
    let config = SimConfig { node_len: 4 << 20, swarm: Some(Swarm::calm()), ..SimConfig::default() };
    let sim = Sim::new(0, config).expect("a world");
    let shared = Shared::<I>::new(kind);
    let pool = shared.begin(&sim, LEASE);
    let clients = [sim.client(), sim.client()];
    let both = clients.each_ref().map(|me| sim.spawn(me, ready::<I>(pool.clone(), me.clone())));
    sim.run().assert_done();
    let done = [Rc::new(Cell::new(false)), Rc::new(Cell::new(false))];
    let mut works = Vec::new();
    for (i, ready) in both.iter().enumerate() {
        clients[i].freeze(WHILE * 1000);
        let ready = ready.take().expect("done").expect("ready");
        let work = work::<I>(shared.clone(), i as u64 + 1, ready, does[i].clone(), Rc::clone(&done[i]));
        works.push(sim.spawn(&clients[i], work));
    }
    let mut ended = false;
    for turn in 0..=turns.len() {
        let me = &clients[turn % 2];
        me.resume();
        // Each stops while a batch is on its way back.
        let begins = if turn < 2 { HALF } else { Duration::ZERO };
        let _ = sim.run_for(turns.get(turn).map_or(WHILE, |batches| STEP * *batches + begins));
        ended = if turn < turns.len() { done[turn % 2].get() } else { ended };
        me.freeze(WHILE * 1000);
    }
    clients.iter().for_each(farindex_sim::Client::resume);
    let outcome = sim.run();
    assert!(outcome.is_done(), "{context}: {outcome}");
    let all = works.into_iter().map(|work| work.take().expect("done"));
    let left: Vec<_> = all.zip(&clients).map(|(all, me)| sim.spawn(me, leave(all, me.clone()))).collect();
    sim.run().assert_done();
    left.into_iter().for_each(|left| left.take().expect("done").expect("left"));
    let looked = sim.block_on(look(shared.clone(), pool, sim.harness())).expect("done");
    looked.unwrap_or_else(|error| panic!("{context}: {error}"));
    drop(sim);
    shared.judge(&context);
    ended
}

/// Runs all interleavings of these two clients with up to so many turns that are cut short; returns their number.
pub(crate) fn interleave_everywhere<I: CrashTested>(kind: Kind<I::Place>, does: &[Does; 2], depth: usize) -> u64 {
    fn deeper<I: CrashTested>(kind: Kind<I::Place>, does: &[Does; 2], turns: &mut Vec<u32>, depth: usize) -> u64 {
        let mut runs = 0;
        // A client that has begun gets further in its turn.
        for batches in u32::from(turns.len() > 1).. {
            turns.push(batches);
            let ended = interleave::<I>(kind, does, turns);
            runs += 1;
            if !ended && turns.len() < depth {
                runs += deeper::<I>(kind, does, turns, depth);
            }
            turns.pop();
            if ended {
                break;
            }
        }
        runs
    }
    deeper::<I>(kind, does, &mut Vec::new(), depth)
}
