//! The driver on a simulated cluster: every worker is a client of the simulation, with a CPU of its own, and all of
//! them are coroutines of one executor in virtual time.
//!
//! Invariants: what a run does and measures is a function of its plan, seed and cluster; the wall clock decides
//! nothing.

use super::shared::Shared;
use super::worker::{self, Context, Coroutine, Report};
use super::{Control, Measured, Outcome, Plan, Worker};
use crate::BenchError;
use farindex_sim::{NicWork, Sim};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Virtual time between two looks at whether to go on.
const SLICE: Duration = Duration::from_micros(200);

/// Something that can be measured on a simulated cluster.
pub trait Simulated {
    /// What one worker holds. Its clock is its endpoint's.
    type Worker: Worker + 'static;
    /// Sets up worker `thread`, in a coroutine of `client`.
    fn worker(
        &self,
        thread: usize,
        client: &farindex_sim::Client,
    ) -> impl Future<Output = Result<Self::Worker, String>>;
}

/// How a worker ended, if it has.
type Ended = Option<Result<Report, String>>;

/// Runs a plan on a cluster: worker `n` is a client on compute node `n % compute_nodes`.
pub fn simulate<S: Simulated + 'static>(
    sim: &Rc<Sim>,
    compute_nodes: usize,
    bench: &Rc<S>,
    plan: &Plan,
    control: &Control<'_>,
) -> Result<Outcome, BenchError> {
    plan.check()?;
    let began = Instant::now();
    let shared = Arc::new(Shared::new(plan.clone(), Arc::clone(&control.stop)));
    let reports: Rc<RefCell<Vec<Ended>>> = Rc::default();
    reports.borrow_mut().resize_with(plan.threads, || None);
    let at_work = Rc::new(Cell::new(plan.threads));
    for thread in 0..plan.threads {
        let client = sim.client_on(thread % compute_nodes.max(1));
        let (bench, shared, reports, at_work) =
            (Rc::clone(bench), Arc::clone(&shared), Rc::clone(&reports), Rc::clone(&at_work));
        let (weak, machine) = (Rc::downgrade(sim), client.clone());
        sim.spawn(&client, async move {
            let report = match bench.worker(thread, &machine).await {
                Ok(worker) => {
                    let context = Rc::new(Context::new(&shared, worker));
                    // The simulation cannot end before its coroutines.
                    let spawn = |coroutine: Coroutine| {
                        if let Some(sim) = weak.upgrade() {
                            sim.spawn(&machine, coroutine);
                        }
                    };
                    worker::run(context, thread, spawn).await
                }
                Err(message) => Err(message),
            };
            if report.is_err() {
                shared.abort();
            }
            if let Some(place) = reports.borrow_mut().get_mut(thread) {
                *place = Some(report);
            }
            at_work.set(at_work.get() - 1);
        });
    }
    let (mut shown, mut seen) = (Duration::ZERO, Vec::new());
    while at_work.get() > 0 {
        let outcome = sim.run_for(SLICE);
        if !outcome.is_done() {
            return Err(BenchError::Worker { thread: 0, message: format!("the simulation ended in a {outcome}") });
        }
        if shared.is_measuring() {
            seen.push((sim.now(), sim.memory_nics()));
        }
        let elapsed = began.elapsed();
        if let Some(progress) = control.progress
            && elapsed.saturating_sub(shown) >= Duration::from_millis(100)
        {
            shown = elapsed;
            progress(shared.progress(elapsed));
        }
    }
    let mut done = Vec::with_capacity(plan.threads);
    for (thread, report) in reports.take().into_iter().enumerate() {
        match report {
            Some(Ok(report)) => done.push(report),
            Some(Err(message)) => return Err(BenchError::Worker { thread, message }),
            None => return Err(BenchError::Worker { thread, message: "it did not come to its end".to_owned() }),
        }
    }
    let mut outcome = Outcome::merge(&shared, done);
    outcome.measured.nics = shares(&outcome.measured, &seen);
    Ok(outcome)
}

/// The share of the measured phase in which the busiest server of each NIC was at work, between the first and the last look
/// in that phase; empty if it was too short for two.
fn shares(measured: &Measured, seen: &[(Duration, Vec<NicWork>)]) -> Vec<f64> {
    let ended = measured.began + measured.elapsed;
    let mut within = seen.iter().filter(|(at, _)| (measured.began..=ended).contains(at));
    let (Some((began, before)), Some((ended, after))) = (within.next(), within.next_back()) else { return Vec::new() };
    let elapsed = (*ended - *began).as_secs_f64();
    after.iter().zip(before).map(|(after, before)| (*after - *before).longest().as_secs_f64() / elapsed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_those_of_the_busiest_server_within_the_phase() {
        let ms = Duration::from_millis;
        let nic = |out, atomics| NicWork { out: ms(out), atomics: ms(atomics), ..NicWork::default() };
        let mut measured = Measured::default();
        (measured.began, measured.elapsed) = (ms(10), ms(10));
        let seen = [(8, nic(2, 0)), (11, nic(3, 1)), (15, nic(4, 2)), (19, nic(5, 7)), (30, nic(29, 29))];
        let seen = seen.map(|(at, nic)| (ms(at), vec![nic, NicWork::default()]));
        // From 11 to 19 ms: atomics 6 of 8 ms, the wire 2 of them.
        assert_eq!(shares(&measured, &seen), [0.75, 0.0]);
        assert!(shares(&measured, &seen[..2]).is_empty());
    }
}
