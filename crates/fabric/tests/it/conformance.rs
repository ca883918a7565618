//! The suite, run on every fabric of this crate, and on flawed fabrics that it must detect.

use farindex_fabric::conformance::stepping::{Flaw, Stepping};
use farindex_fabric::conformance::{
    CASES, Clause, FabricUnderTest, Script, Verdict, check, check_case, on_one_thread, on_threads,
};
use farindex_fabric::memory::Delivery;
use farindex_fabric::{CallTable, Capabilities, Endpoint, Fabric, FabricError, Identity, MemoryFabric, NodeInfo};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

struct Memory {
    delivery: Delivery,
    threads: bool,
}

impl FabricUnderTest for Memory {
    fn fabric(&self, nodes: usize, len: u64) -> Result<Arc<dyn Fabric>, FabricError> {
        let fabric = MemoryFabric::new(nodes, len)?.with_delivery(self.delivery);
        // The doc test of the suite runs it without calls.
        Ok(Arc::new(fabric.with_call_handler(CallTable::builtin().into_handler())))
    }
    fn run(&self, fabric: &Arc<dyn Fabric>, scripts: Vec<Script>) -> Vec<Verdict> {
        if self.threads { on_threads(&**fabric, scripts) } else { on_one_thread(&**fabric, scripts) }
    }
}

/// Runs one suite at a time: the threads of a suite race among themselves and need the processors.
fn in_turn(subject: &dyn FabricUnderTest) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    check(subject).unwrap_or_else(|violation| panic!("{violation}"));
}

#[test]
fn memory_at_once() {
    in_turn(&Memory { delivery: Delivery::Immediate, threads: true });
}

#[test]
fn memory_deferred() {
    in_turn(&Memory { delivery: Delivery::Deferred, threads: true });
}

/// Memory whose endpoints interleave.
struct Interleaving(MemoryFabric);

impl Fabric for Interleaving {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn nodes(&self) -> Vec<NodeInfo> {
        self.0.nodes()
    }
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    fn new_identity(&self) -> Identity {
        self.0.new_identity()
    }
    fn connect(&self, identity: &Identity) -> Result<Endpoint, FabricError> {
        let endpoint = self.0.connect(identity)?;
        endpoint.set_interleaving(true);
        Ok(endpoint)
    }
}

/// READs are fetched ahead, on threads and as coroutines of one thread, with a latency of lines and without.
#[test]
fn memory_interleaved() {
    struct FetchingAhead(bool, u64);
    impl FabricUnderTest for FetchingAhead {
        fn fabric(&self, nodes: usize, len: u64) -> Result<Arc<dyn Fabric>, FabricError> {
            let fabric = MemoryFabric::new(nodes, len)?.with_line_latency(Duration::from_nanos(self.1));
            Ok(Arc::new(Interleaving(fabric.with_call_handler(CallTable::builtin().into_handler()))))
        }
        fn run(&self, fabric: &Arc<dyn Fabric>, scripts: Vec<Script>) -> Vec<Verdict> {
            if self.0 { on_threads(&**fabric, scripts) } else { on_one_thread(&**fabric, scripts) }
        }
    }
    for (threads, latency) in [(true, 0), (true, 200), (false, 0), (false, 200)] {
        in_turn(&FetchingAhead(threads, latency));
    }
}

#[test]
fn memory_as_coroutines() {
    in_turn(&Memory { delivery: Delivery::Deferred, threads: false });
}

/// The suite asks for nothing beyond the contract.
#[test]
#[cfg_attr(miri, ignore = "says nothing about memory, and takes minutes")]
fn every_liberty_is_allowed() {
    for seed in 0..6 {
        let subject = Stepping { seed, masked_cas: seed % 2 == 0, calls: seed % 3 == 0, flaw: None };
        check(&subject).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
    }
}

/// Each flaw is detected, and reported by the clause that it breaks.
#[test]
#[cfg_attr(miri, ignore = "says nothing about memory, and takes minutes")]
fn each_flaw_is_detected_by_its_clause() {
    for &(flaw, clause) in Flaw::ALL {
        let subject = Stepping { seed: 0, masked_cas: true, calls: true, flaw: Some(flaw) };
        let violation = check(&subject).expect_err(&format!("{flaw:?} was not noticed"));
        println!("{flaw:?}: {violation}");
        assert_eq!(violation.clause, clause, "{flaw:?}: {violation}");
    }
}

/// Each case on a promise detects at least one flaw.
#[test]
#[cfg_attr(miri, ignore = "says nothing about memory, and takes minutes")]
fn every_case_detects_some_flaw() {
    for case in CASES.iter().filter(|case| case.clause != Clause::Verbs) {
        let noticed = |(flaw, clause): &(Flaw, Clause)| {
            let subject = Stepping { seed: 1, masked_cas: true, calls: true, flaw: Some(*flaw) };
            *clause == case.clause && check_case(&subject, case).is_err()
        };
        let flaw = Flaw::ALL.iter().find(|flaw| noticed(flaw));
        println!("{}: {flaw:?}", case.name);
        assert!(flaw.is_some(), "{} notices no flaw", case.name);
    }
}

/// The same seed gives the same violations.
#[test]
#[cfg_attr(miri, ignore = "says nothing about memory, and takes minutes")]
fn detection_repeats_for_the_same_seed() {
    let subject = Stepping { seed: 7, masked_cas: true, calls: true, flaw: Some(Flaw::SplitsCas) };
    let detect = || CASES.iter().map(|case| check_case(&subject, case)).collect::<Vec<_>>();
    assert_eq!(detect(), detect());
}

#[cfg(all(target_os = "linux", not(miri)))]
mod shm {
    use super::*;
    use farindex_fabric::ShmFabric;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};

    struct Shm(Delivery);

    impl FabricUnderTest for Shm {
        fn fabric(&self, nodes: usize, len: u64) -> Result<Arc<dyn Fabric>, FabricError> {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = |node| format!("farindex-suite-{}-{number}-{node}", std::process::id());
            let paths: Vec<PathBuf> = (0..nodes).map(|node| std::env::temp_dir().join(name(node))).collect();
            let fabric = ShmFabric::create(&paths, len)?.with_delivery(self.0);
            let fabric = fabric.with_call_handler(CallTable::builtin().into_handler());
            // A mapping stays when its name is removed, so no file is left behind, whatever happens.
            paths.iter().for_each(|path| std::fs::remove_file(path).unwrap_or_default());
            Ok(Arc::new(fabric))
        }
    }

    #[test]
    fn shared_memory_at_once() {
        in_turn(&Shm(Delivery::Immediate));
    }

    #[test]
    fn shared_memory_deferred() {
        in_turn(&Shm(Delivery::Deferred));
    }
}
