//! Real threads on the memory fabric, recorded by one atomic clock.

use super::toy::Toy;
use super::{Work, verdict, work};
use farindex_check::{History, Limits, Recorder, Stamps, Verdict, check};
use farindex_fabric::memory::Delivery;
use farindex_fabric::{Executor, Fabric, MemoryFabric};
use farindex_index::coalesce::{Coalesced, Coalescer, Fault};
use farindex_sim::SimRng;
use std::cell::RefCell;
use std::sync::Arc;

fn history(seed: u64, fault: Fault, cancel: u64) -> History {
    let fabric = MemoryFabric::new(1, 1 << 16).unwrap().with_delivery(Delivery::Deferred);
    let (recorder, stamps) = (Recorder::new(), Stamps::new());
    let tables = [Arc::new(Coalescer::new(fault)), Arc::new(Coalescer::new(fault))];
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (fabric, recorder, stamps) = (&fabric, &recorder, &stamps);
            let table = Arc::clone(&tables[thread as usize % 2]);
            scope.spawn(move || {
                let endpoint = fabric.connect(&fabric.new_identity()).unwrap();
                let index = Coalesced::new(Toy(endpoint.clone()), table, 1);
                let all = (0..4).map(async |coroutine| {
                    let number = thread * 4 + coroutine;
                    let log = RefCell::new(recorder.client(number));
                    let todo = Work { ops: 30, keys: 2, cancel };
                    work(&index, SimRng::new(seed, number), todo, number, &log, stamps).await;
                });
                Executor::new().block_on(&endpoint, farindex_testkit::world::join_all(all));
            });
        }
    });
    assert!(tables.iter().all(|table| table.busy_keys() == 0));
    recorder.finish().unwrap()
}

#[test]
fn linearizable_in_threads() {
    for seed in 0..200 {
        let report = check(&history(seed, Fault::None, if seed % 2 == 0 { 0 } else { 6 }), &Limits::default());
        assert_eq!(report.verdict, Verdict::Ok, "seed {seed}\n{report}");
    }
}

#[test]
fn faults_are_detected_in_threads() {
    for fault in [Fault::LateReaders, Fault::DroppedValues] {
        let seed = (0..2000).find(|seed| verdict(&history(*seed, fault, 0)) == Verdict::Violation);
        println!("{fault:?}: run {}", seed.expect("detected within 2000 runs"));
    }
}
