//! `farindex bench --history`: the history of the clients' operations, recorded and checked.

use super::Watch;
use super::options::{FabricKind, IndexKind, Run};
use crate::check_history::name;
use crate::exit::{self, Failure};
use crate::output::note;
use farindex::{Pool, PoolUrl};
use farindex_bench::history::{Recorded, Recording};
use farindex_bench::size::{parse_count, parse_duration};
use farindex_bench::{Bench, Outcome, Plan};
use farindex_check::{Limits, Verdict, check, format};
use std::fmt;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(Debug, clap::Args)]
pub(crate) struct History {
    /// Record every operation of every phase and its answer, to this file (docs/history-format.md), and check it: exit
    /// code 1 unless it is linearizable. Recording costs throughput, so there is no efficiency
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// The history ends after this many operations; each takes about 250 bytes of memory, and its key and value (of a
    /// value beyond 32 bytes, a hash)
    #[arg(long, value_name = "N", requires = "history", default_value = "1M", value_parser = parse_count)]
    history_ops: u64,
    /// Other processes work on the same keys meanwhile (`bench --join`): presence is not judged while running, and the
    /// history is not checked alone; `farindex check-history A B` checks the parts together
    #[arg(long)]
    shared: bool,
    /// Work on the keys that another `bench --fabric shm --path FILE --shared` has loaded, or is loading
    #[arg(long)]
    join: bool,
    /// With --join: how long the pool and its index may take to appear
    #[arg(long, value_name = "TIME", requires = "join", default_value = "10s", value_parser = parse_duration)]
    join_wait: Duration,
}

/// What became of the history.
#[derive(Debug, serde::Serialize)]
pub(crate) struct HistoryReport {
    file: PathBuf,
    operations: usize,
    /// The run went on after its end.
    cut: bool,
    /// `null` if it is a part of one.
    verdict: Option<&'static str>,
    #[serde(skip)]
    report: String,
}

/// What a history can be held to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Judged {
    /// It is all that happened.
    Whole,
    /// Other processes have the rest.
    Part,
    /// The run was interrupted.
    Not,
}

impl HistoryReport {
    /// Writes a history, and checks it if it is whole.
    pub(crate) fn of(path: &Path, file: File, recorded: &Recorded, judged: Judged) -> Result<HistoryReport, Failure> {
        let Recorded { history, cut } = recorded;
        let written = format::write(history, BufWriter::new(file));
        written.map_err(|error| Failure::file(path.display(), "cannot be written", &error))?;
        let (verdict, report) = match judged {
            Judged::Part => {
                (None, "check it together with those of the other processes: farindex check-history\n".to_owned())
            }
            Judged::Not => (None, "not checked\n".to_owned()),
            Judged::Whole => {
                let report = check(history, &Limits::default());
                (Some(name(report.verdict)), report.to_string())
            }
        };
        if verdict.is_some_and(|verdict| verdict != name(Verdict::Ok)) {
            note(format!("error: the history does not hold: farindex check-history {}", path.display()));
        }
        Ok(HistoryReport { file: path.to_owned(), operations: history.operations().len(), cut: *cut, verdict, report })
    }
    pub(crate) fn holds(&self) -> bool {
        self.verdict.is_none_or(|verdict| verdict == name(Verdict::Ok))
    }
}

impl fmt::Display for HistoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, operations) = (self.file.display(), self.operations);
        let cut = if self.cut { ", where the run went on (--history-ops)" } else { "" };
        write!(f, "history: {operations} operations in {file}{cut}; {}", self.report)
    }
}

impl History {
    pub(crate) fn wanted(&self) -> bool {
        self.history.is_some()
    }
    pub(crate) fn joins(&self) -> bool {
        self.join
    }
    pub(crate) fn shared(&self) -> bool {
        self.shared || self.join
    }

    /// Opens the pool that another process has made, or is about to make, once the index is there too.
    pub(crate) fn join_pool(&self, url: &PoolUrl, watch: &Watch) -> Result<Pool, Failure> {
        const PAUSE: Duration = Duration::from_millis(20);
        let began = Instant::now();
        // Kept between attempts: every opening registers a client.
        let mut opened = None;
        loop {
            let mut attempt = || -> Result<Pool, farindex::Error> {
                let pool: &Pool = match &mut opened {
                    Some(pool) => pool,
                    none => none.insert(Pool::open(url)?),
                };
                pool.session()?.open_index("bench")?;
                Ok(pool.clone())
            };
            let failure = match attempt() {
                Ok(pool) => return Ok(pool),
                Err(error) => Failure::from(error),
            };
            // A pool or an index that is not there, or half made, may come; any other error stays.
            let may_come = matches!(failure.code, exit::FILE | exit::INDEX);
            if !may_come || began.elapsed() >= self.join_wait || watch.stopped() {
                return Err(failure);
            }
            std::thread::sleep(PAUSE.min(self.join_wait));
        }
    }

    /// What it means for the run.
    pub(crate) fn change(&self, run: &mut Run) -> Result<(), Failure> {
        if self.wanted() && run.index == IndexKind::Raw {
            return Err(Failure::usage(
                "--history: the answers of the raw reference mean nothing; it takes another --index",
            ));
        }
        if !self.shared() {
            return Ok(());
        }
        let common = run.connect.is_some() || run.fabric == FabricKind::Shm && run.path.is_some();
        if !common || !matches!(run.index, IndexKind::Pool(_)) {
            let what = if self.join { "--join" } else { "--shared" };
            return Err(Failure::usage(format!(
                "{what}: processes share an index of a pool, by --fabric shm --path FILE or by --connect"
            )));
        }
        run.plan.alone = false;
        if self.join {
            (run.plan.load, run.plan.audit) = (false, false);
        }
        if self.wanted() {
            self.check_room(&run.plan)?;
        }
        // What a scenario expects, it expects of a run that is alone.
        run.expect = None;
        Ok(())
    }

    /// A part of a history must be whole: another process may have seen what comes after its end.
    fn check_room(&self, plan: &Plan) -> Result<(), Failure> {
        let Some(ops) = plan.ops() else {
            return Err(Failure::usage("--history of processes that share keys takes --ops: each part must be whole"));
        };
        // A read-modify-write is two.
        let loaded = if plan.load { plan.loaded() } else { 0 };
        let worked = plan.warmup.saturating_add(ops).saturating_mul(2);
        let read = if plan.audit { plan.keys.saturating_add(plan.warmup).saturating_add(ops) } else { 0 };
        let most = loaded.saturating_add(worked).saturating_add(read);
        if most > self.history_ops {
            return Err(Failure::usage(format!(
                "--history of processes that share keys must be whole: this run may take {most} operations, more than \
                 --history-ops {}",
                self.history_ops
            )));
        }
        Ok(())
    }

    /// Runs a plan, and records it if that is wanted.
    pub(crate) fn run<B: Bench>(
        &self,
        bench: &B,
        plan: &Plan,
        watch: &Watch,
        report_of_history: &mut Option<HistoryReport>,
    ) -> Result<Outcome, Failure> {
        let Some(path) = &self.history else { return watch.run(bench, plan) };
        // A file that cannot be written is found out before the run.
        let file = File::create(path).map_err(|error| Failure::file(path.display(), "cannot be written", &error))?;
        let recording = Recording::new(bench, self.history_ops);
        let outcome = watch.run(&recording, plan)?;
        let recorded = recording.finish().map_err(|error| Failure::new(exit::BUG, error.to_string()))?;
        let judged = match (self.shared(), watch.stopped()) {
            (true, _) => Judged::Part,
            (false, true) => Judged::Not,
            (false, false) => Judged::Whole,
        };
        *report_of_history = Some(HistoryReport::of(path, file, &recorded, judged)?);
        Ok(outcome)
    }
}
