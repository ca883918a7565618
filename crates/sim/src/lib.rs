//! A fabric in virtual time: many clients and memory nodes in one thread, everything drawn from one seed.
//!
//! The *adversary* looks for bugs. It delays, reorders and tears whatever the [contract](farindex_fabric::contract) lets
//! it, and it kills and freezes clients. The *model* predicts the throughput and latency of a cluster that nobody here
//! owns. The same index code that runs on real fabrics runs here unchanged, through the same executor.
//!
//! Invariants: nothing promised (G1-G6) is ever broken, everything not promised (N1-N7) happens for some seed; a run
//! depends on its seed, its settings and its program alone, so a seed is a repeatable test case, in any build.
//!
//! # The parts
//!
//! | Module | What it holds |
//! |---|---|
//! | [`sim`] | [`Sim`] and its [`Config`]: clients, coroutines, running, looking |
//! | [`client`] | [`Client`]: a process that connects, dies, freezes |
//! | [`fabric`] | [`SimFabric`]: the world as library code sees it |
//! | [`swarm`] | [`Swarm`]: which nastinesses a seed brings |
//! | [`model`] | NICs, links and cores as servers; [`Preset`]: the papers' clusters |
//! | [`report`] | [`Outcome`], positions, the log, what was really provoked |
//! | [`rng`] | [`SimRng`]: the generator, for workloads drawn from the same seed |
//!
//! Inside: `queue` (events to come), `order` (G4 and N3), `adversary` (draws when things happen), `steps` (carries them
//! out), `faults` (deaths, freezes, revocations, vanishing nodes), `world` (what all of them share).
//!
//! # A protocol on trial
//!
//! A counter behind a lock. Its careless form writes the counter in one batch and unlocks in another: a WRITE that
//! nobody awaited lands when it likes (N5), so the next holder of the lock may not see it.
//!
//! ```
//! use farindex_fabric::{Endpoint, FabricError, NodeId, OpKind, RemotePtr};
//! use farindex_sim::{Config, Sim};
//!
//! const LOCK: RemotePtr = RemotePtr::new(NodeId::new(0), 64);
//! const COUNTER: RemotePtr = RemotePtr::new(NodeId::new(0), 128);
//!
//! async fn increment(endpoint: &Endpoint, careless: bool) -> Result<(), FabricError> {
//!     let span = endpoint.span(OpKind::Update);
//!     while span.cas(LOCK, 0, 1).await? != 0 {}
//!     let value = span.read(COUNTER, 8).await?.words()[0];
//!     let mut batch = span.batch();
//!     batch.write_words(COUNTER, &[value + 1]);
//!     if careless {
//!         // Two batches: nothing orders them (N1), and nobody knows when the first lands (N5).
//!         batch.post_detached();
//!         return span.cas(LOCK, 1, 0).await.map(drop);
//!     }
//!     // One batch: the WRITE comes before the CAS (G4).
//!     batch.cas(LOCK, 1, 0);
//!     batch.post().await.map(drop)
//! }
//!
//! /// Does this seed lose an increment?
//! fn convicts(seed: u64, careless: bool) -> Result<bool, FabricError> {
//!     let sim = Sim::new(seed, Config { log: 200, ..Config::default() })?;
//!     for _ in 0..3 {
//!         let client = sim.client();
//!         let endpoint = client.connect();
//!         sim.spawn(&client, async move {
//!             for _ in 0..10 {
//!                 increment(&endpoint, careless).await.expect("no errors were asked for");
//!             }
//!         });
//!     }
//!     sim.run().assert_done();
//!     sim.settle();
//!     Ok(sim.peek(COUNTER) != Some(30))
//! }
//!
//! for seed in 0..50 {
//!     assert!(!convicts(seed, false)?, "seed {seed}");
//! }
//! assert!((0..50).any(|seed| convicts(seed, true).unwrap_or(false)));
//! # Ok::<(), FabricError>(())
//! ```
//!
//! # What the adversary leaves out
//!
//! A `CALL` is answered in one moment (N4 is not exploited). What a revocation finds in flight is dropped, never hurried
//! along. A WRITE may overtake a `REVOKE` ahead of it in the same batch: await revocations. Between two verbs a client's
//! own work takes no time, unless it sleeps.
//!
//! # The model
//!
//! With [`Config::model`] the same world predicts a cluster instead: [`model`] says how, [`Preset`] carries the figures.
//!
//! ```
//! use farindex_fabric::{NodeId, OpKind, RemotePtr};
//! use farindex_sim::{Config, Preset, Sim};
//!
//! let sim = Sim::new(1, Config { model: Some(Preset::linear_probing()), ..Config::default() })?;
//! let client = sim.client_on(0);
//! let endpoint = client.connect();
//! sim.spawn(&client, async move {
//!     let span = endpoint.span(OpKind::Get);
//!     span.read(RemotePtr::new(NodeId::new(0), 64), 256).await.map(drop)
//! });
//! sim.run().assert_done();
//! // 1,290 ns for a READ of no bytes, and 256 of them at 0.08 ns on three stretches that overlap but for one.
//! assert!((1300..1360).contains(&sim.now().as_nanos()), "{:?}", sim.now());
//! # Ok::<(), farindex_fabric::FabricError>(())
//! ```

mod adversary;
pub mod client;
pub mod fabric;
mod faults;
mod flight;
pub mod model;
mod order;
mod queue;
pub mod report;
pub mod rng;
pub mod sim;
mod steps;
pub mod swarm;
mod world;

pub use client::Client;
pub use fabric::SimFabric;
pub use faults::{CrashOutcome, once_in};
pub use model::Preset;
pub use report::{Entry, Happened, Outcome, Position, Report, Stats};
pub use rng::{ODDS, SimRng};
pub use sim::{Config, Sim, Spawned, Switches};
pub use swarm::Swarm;
pub use world::Handler;
