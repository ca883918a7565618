//! A fabric in virtual time: many clients and memory nodes in one thread, everything drawn from one seed.
//!
//! The *adversary* searches for bugs. It delays, reorders and tears verbs wherever the
//! [contract](farindex_fabric::contract) allows it, and it crashes and freezes clients. The *model* predicts the
//! throughput and latency of a cluster that is not at hand. Index code that runs on real fabrics runs here unchanged,
//! through the same executor.
//!
//! Invariants: nothing promised (G1-G6) is ever broken, and everything not promised (N1-N7) happens for some seed. A
//! run depends on its seed, its settings and its program alone, so a seed is a repeatable test case in any build.
//!
//! # Modules
//!
//! | Module | Contents |
//! |---|---|
//! | [`sim`] | [`Sim`] and its [`Config`]: adding clients, spawning coroutines, running, inspecting |
//! | [`client`] | [`Client`]: a process that connects, crashes, freezes and resumes |
//! | [`fabric`] | [`SimFabric`]: the fabric that library code uses |
//! | [`swarm`] | [`Swarm`]: the adversary's settings, drawn from the seed |
//! | [`model`] | NICs, links and cores as servers; [`Preset`]: the papers' clusters |
//! | [`report`] | [`Outcome`], the status of clients, the log, counters of what the adversary did |
//! | [`rng`] | [`SimRng`]: the generator, for workloads drawn from the same seed |
//!
//! Each module uses only modules of earlier rows, or ahead of it in its own row:
//!
//! | Layer | Modules |
//! |---|---|
//! | values | `rng`, `order` (G4 and N3), `queue` (future events), `flight` (a posted batch), `stall` (what is to be stopped), `report`, `readers` (who has READ what) |
//! | schedulers | `swarm`, `adversary` (draws when verbs take effect), `model` (computes when), `client_state` |
//! | state | `world` (nodes, clients, connections, batches in flight) |
//! | changes of it | `faults` (crashes, freezes, revocations, failing nodes), `stall` (a client stopped in a batch), `watch` (who was silent), then `steps` (effects of verbs); it is read by `landing` (what may still land, who has READ it) |
//! | engine | `engine` (posts batches, carries out events) |
//! | interface | `fabric`, then `client`, then `sim` |
//!
//! # Example: a protocol under test
//!
//! A counter behind a lock. Its faulty variant writes the counter in one batch and unlocks in another. A WRITE that no
//! coroutine awaits takes effect at any time (N5), so the next holder of the lock may not see it.
//!
//! ```
//! use farindex_fabric::{Endpoint, FabricError, NodeId, OpKind, RemotePtr};
//! use farindex_sim::{Config, Sim};
//!
//! const LOCK: RemotePtr = RemotePtr::new(NodeId::new(0), 64);
//! const COUNTER: RemotePtr = RemotePtr::new(NodeId::new(0), 128);
//!
//! async fn increment(endpoint: &Endpoint, faulty: bool) -> Result<(), FabricError> {
//!     let span = endpoint.span(OpKind::Update);
//!     while span.cas(LOCK, 0, 1).await? != 0 {}
//!     let value = span.read(COUNTER, 8).await?.words()[0];
//!     let mut batch = span.batch();
//!     batch.write_words(COUNTER, &[value + 1]);
//!     if faulty {
//!         // Two batches: nothing orders them (N1), and the first may take effect at any time (N5).
//!         batch.post_detached();
//!         return span.cas(LOCK, 1, 0).await.map(drop);
//!     }
//!     // One batch: the WRITE takes effect before the CAS (G4).
//!     batch.cas(LOCK, 1, 0);
//!     batch.post().await.map(drop)
//! }
//!
//! /// Runs one seed. Returns whether an increment was lost.
//! fn loses_an_increment(seed: u64, faulty: bool) -> Result<bool, FabricError> {
//!     let sim = Sim::new(seed, Config { log: 200, ..Config::default() })?;
//!     for _ in 0..3 {
//!         let client = sim.client();
//!         let endpoint = client.connect();
//!         sim.spawn(&client, async move {
//!             for _ in 0..10 {
//!                 increment(&endpoint, faulty).await.expect("the settings ask for no errors");
//!             }
//!         });
//!     }
//!     sim.run().assert_done();
//!     sim.settle();
//!     Ok(sim.peek(COUNTER) != Some(30))
//! }
//!
//! for seed in 0..50 {
//!     assert!(!loses_an_increment(seed, false)?, "seed {seed}");
//! }
//! assert!((0..50).any(|seed| loses_an_increment(seed, true).unwrap_or(false)));
//! # Ok::<(), FabricError>(())
//! ```
//!
//! # Limits of the adversary
//!
//! A `CALL` is answered at one moment (N4 is not exploited). A revocation drops what it finds in flight; it never lets
//! it take effect early. A WRITE may overtake a `REVOKE` ahead of it in the same batch, so await revocations. A
//! client's own computation between two verbs takes no time, unless the client sleeps.
//!
//! # The model
//!
//! With [`Config::model`] the simulation predicts a cluster instead. [`model`] describes how; [`Preset`] has the
//! figures.
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
//! // 1,290 ns for a READ of no bytes, plus the time that 256 bytes take on the wires.
//! assert!((1300..1360).contains(&sim.now().as_nanos()), "{:?}", sim.now());
//! # Ok::<(), farindex_fabric::FabricError>(())
//! ```

mod adversary;
pub mod client;
mod client_state;
mod engine;
pub mod fabric;
mod faults;
mod flight;
mod landing;
pub mod model;
mod order;
mod queue;
mod readers;
pub mod report;
pub mod rng;
pub mod sim;
mod stall;
mod steps;
pub mod swarm;
mod watch;
mod world;

pub use client::Client;
pub use client_state::CrashOutcome;
pub use fabric::SimFabric;
pub use landing::{InFlight, Landing};
pub use model::{NicWork, Preset};
pub use report::{ClientStatus, Entry, LogEvent, Outcome, Report, Stats};
pub use rng::{ODDS, SimRng, once_in};
pub use sim::{Config, NodeControl, Sim, Spawned};
pub use stall::{Stall, StallAt};
pub use swarm::Swarm;
pub use watch::{Revocation, Watch};
pub use world::Handler;
