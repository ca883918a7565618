//! The conformance suite of fabrics, on the adversary and on the model.

use farindex_fabric::conformance::{FabricUnderTest, Failure, Script, Verdict, check};
use farindex_fabric::{CallTable, Fabric, FabricError, NodeId};
use farindex_sim::{Config, Outcome, Preset, Sim, Swarm};
use std::cell::RefCell;
use std::sync::Arc;

/// The fabric under test. Each fabric that the suite asks for is a simulation; the latest one runs.
struct Simulated {
    seed: u64,
    config: Config,
    sims: RefCell<Vec<Sim>>,
}

impl Simulated {
    fn new(seed: u64, config: Config) -> Self {
        Simulated { seed, config, sims: RefCell::default() }
    }
}

impl FabricUnderTest for Simulated {
    fn fabric(&self, nodes: usize, len: u64) -> Result<Arc<dyn Fabric>, FabricError> {
        let sim = Sim::new(self.seed, Config { nodes, node_len: len, ..self.config.clone() })?;
        if self.seed.is_multiple_of(3) {
            sim.set_call_handler(CallTable::builtin().into_handler());
        }
        let fabric = sim.fabric();
        self.sims.borrow_mut().push(sim);
        Ok(fabric)
    }
    fn run(&self, fabric: &Arc<dyn Fabric>, scripts: Vec<Script>) -> Vec<Verdict> {
        let sims = self.sims.borrow();
        let Some(sim) = sims.last() else {
            return Vec::new();
        };
        let start = |script: Script| {
            let client = sim.client();
            let fabric = Arc::clone(fabric);
            sim.spawn(&client, async move {
                let endpoint = fabric.connect(&script.identity())?;
                script.start(endpoint).await
            })
        };
        let spawned: Vec<_> = scripts.into_iter().map(start).collect();
        match sim.run() {
            Outcome::Done => spawned.iter().filter_map(|verdict| verdict.take()).collect(),
            stuck => vec![Err(Failure::new(stuck.to_string()))],
        }
    }
    fn rounds(&self) -> u64 {
        20
    }
    fn silent_fabric(&self, nodes: usize, len: u64, silent: NodeId) -> Option<Arc<dyn Fabric>> {
        let fabric = self.fabric(nodes, len).ok()?;
        self.sims.borrow().last()?.node_control().fail(silent, true, false);
        Some(fabric)
    }
}

fn passes(seed: u64, config: Config) {
    let subject = Simulated::new(seed, config);
    check(&subject).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
}

/// Shortens delays: the suite polls a word every microsecond, so a detached WRITE must not take minutes.
fn impatient(swarm: Swarm) -> Swarm {
    Swarm { forget_exponent: swarm.forget_exponent.min(22), late_exponent: swarm.late_exponent.min(22), ..swarm }
}

#[test]
fn adversary_passes_the_conformance_suite() {
    for seed in 0..12 {
        let drawn = Swarm::draw(&mut farindex_sim::SimRng::new(seed, 0));
        for swarm in [drawn, Swarm::fierce(), Swarm::calm()] {
            let swarm = Some(impatient(swarm));
            passes(seed, Config { swarm, masked_cas: seed % 2 == 0, ..Config::default() });
        }
    }
}

#[test]
fn model_passes_the_conformance_suite() {
    for preset in Preset::all() {
        passes(0, Config { model: Some(preset), ..Config::default() });
    }
}
