//! The fabric's contract, on a real device.

use crate::nodes::{Local, Served, device_or_skip, reach};
use farindex_fabric::conformance::{CASES, FabricUnderTest, Script, Verdict, check_case, on_one_thread, on_threads};
use farindex_fabric::{Fabric, FabricError, NodeId};
use std::sync::Arc;
use std::time::{Duration, Instant};

struct Verbs {
    threads: bool,
}

impl FabricUnderTest for Verbs {
    fn fabric(&self, nodes: usize, len: u64) -> Result<Arc<dyn Fabric>, FabricError> {
        Ok(Arc::new(Local::new(nodes, len)?))
    }
    fn run(&self, fabric: &Arc<dyn Fabric>, scripts: Vec<Script>) -> Vec<Verdict> {
        if self.threads { on_threads(&**fabric, scripts) } else { on_one_thread(&**fabric, scripts) }
    }
    fn rounds(&self) -> u64 {
        std::env::var("ROCE_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(100)
    }
    fn patience(&self) -> Duration {
        Duration::from_secs(60)
    }
}

fn suite(threads: bool) {
    if !device_or_skip() {
        return;
    }
    let mut violations = Vec::new();
    for case in CASES {
        let begun = Instant::now();
        let verdict = check_case(&Verbs { threads }, case);
        println!("{:?} {}: {:.1} s", case.clause, case.name, begun.elapsed().as_secs_f64());
        if let Err(violation) = verdict {
            println!("  {violation}");
            violations.push(violation.to_string());
        }
    }
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}

/// One node admits clients and answers no verb. The deadline comes before the device has given up.
struct Silent;

impl FabricUnderTest for Silent {
    fn fabric(&self, nodes: usize, len: u64) -> Result<Arc<dyn Fabric>, FabricError> {
        Ok(Arc::new(Local::new(nodes, len)?))
    }
    fn silent_fabric(&self, nodes: usize, len: u64, silent: NodeId) -> Option<Arc<dyn Fabric>> {
        let serve = |number| {
            if number == silent.index() { Served::unresponsive(number, len) } else { Served::fresh(number, len) }
        };
        let nodes: Vec<Served> = (0..nodes).map(serve).collect::<Result<_, _>>().ok()?;
        let fabric = reach(&nodes).ok()?;
        Some(Arc::new(Local { fabric, nodes }))
    }
    fn patience(&self) -> Duration {
        Duration::from_millis(2400)
    }
}

#[test]
fn silence() {
    if !device_or_skip() {
        return;
    }
    assert!(Silent.silent_fabric(2, 1 << 18, NodeId::new(1)).is_some(), "no silent node");
    let case = CASES.iter().find(|case| case.name == "silence_becomes_an_error").expect("such a case");
    check_case(&Silent, case).unwrap_or_else(|violation| panic!("{violation}"));
}

#[test]
fn clients_as_threads() {
    suite(true);
}

#[test]
fn clients_as_coroutines() {
    suite(false);
}
