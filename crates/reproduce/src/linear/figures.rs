//! Table 2 and Figures 6, 7, 9, 11, 12 and 13 of linear probing, on a simulated cluster.

use super::cuckoo::{Records, Table};
use super::probing::{
    Filled, How, OUTSTANDING, ProbeRun, Rates, Storage, model_read, next_to_cluster, rates, reads_of,
};
use super::{Args, mark, table_sizes, too_small};
use crate::report::{Error, Report, Watch};
use farindex_index::cuckoo::Lookup;
use farindex_sim::Preset;
use serde_json::json;
use std::fmt::Write;
use std::time::Duration;

const SOURCE: &str = "T. Wang et al., ADMS 2020";
/// Loads of the figures.
const LOADS: [f64; 7] = [0.25, 0.5, 0.65, 0.8, 0.85, 0.9, 0.95];
/// Slots of a fixed READ of 256 bytes.
const FIXED: u64 = 32;
/// Virtual time that is measured.
const SPAN: Duration = Duration::from_micros(300);
/// Slots of cuckoo tables, which are filled by inserts.
const CUCKOO_SLOTS: u64 = 1 << 16;
/// What the cuckoo column is.
const CUCKOO: &str =
    "cuckoo: a cuckoo index of 65536 8-byte slots, 4 in a bucket, filled by inserts; parallel lookups of present keys";

/// Table 2: throughput in millions for each second, by actual and by assumed load.
const TABLE_2: [(f64, [f64; 3]); 3] =
    [(0.25, [50.8, 43.0, 34.5]), (0.5, [42.3, 43.9, 35.1]), (0.65, [31.0, 39.2, 35.2])];

/// Runs on the paper's pair of machines.
struct Bench<'a> {
    args: &'a Args,
    preset: Preset,
    watch: Watch<'a>,
}

impl<'a> Bench<'a> {
    fn new(args: &'a Args, watch: Watch<'a>) -> Self {
        Bench { args, preset: Preset::linear_probing(), watch }
    }
    fn unique(&self, load: f64) -> Filled {
        Filled::unique(self.args.sim_slots as usize, load, 1)
    }
    fn run(&self, table: &Filled, how: How, outstanding: usize, span: Duration) -> Result<Rates, Error> {
        let storage = Storage::Inline(8);
        self.rates(ProbeRun { preset: &self.preset, table, storage, how, outstanding, span, seed: 1 })
    }
    fn rates(&self, probe_run: ProbeRun<'_>) -> Result<Rates, Error> {
        self.watch.check()?;
        Ok(rates(&probe_run).map_err(farindex::Error::from)?)
    }
    /// A cuckoo index that is filled to this load, or as far as it goes.
    fn cuckoo(&self, associativity: u64, lookup: Lookup, load: f64) -> Result<Table, Error> {
        self.cuckoo_of(Records::SMALLEST, associativity, lookup, load)
    }
    fn cuckoo_of(&self, records: Records, associativity: u64, lookup: Lookup, load: f64) -> Result<Table, Error> {
        self.watch.check()?;
        let table = Table::fill(&self.preset, CUCKOO_SLOTS, associativity, lookup, records, load);
        Ok(table.map_err(farindex::Error::from)?)
    }
    fn about(&self) -> String {
        format!(
            "tables of {} 8-byte slots, {} clients of a simulated ConnectX-5",
            self.args.sim_slots, self.preset.clients_per_node
        )
    }
}

/// How many times as much.
fn times(one: &Rates, other: &Rates) -> f64 {
    one.lookups / other.lookups
}

/// Table 2: what a wrong load costs, as ratios to the right one.
pub(super) fn assumed_loads(args: &Args, watch: Watch<'_>) -> Result<Report, Error> {
    let bench = Bench::new(args, watch);
    let mut text = format!(
        "Linear probing, Table 2: {}\n\
         a row: tables with this load; a column: READs of the size that is best at this load\n\
         a cell: throughput as a share of that with READs for the table's own load (the diagonal): the paper's, ours;\n\
         in brackets ours in million lookups a virtual second\n\nload ",
        bench.about()
    );
    for (assumed, _) in TABLE_2 {
        let column = format!("READs for {assumed}: {} slots", model_read(assumed, true));
        let _ = write!(text, "   {column:<25}");
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    let (mut lines, mut holds) = (Vec::new(), true);
    for (i, (actual, paper)) in TABLE_2.into_iter().enumerate() {
        let table = bench.unique(actual);
        let mut ours = Vec::new();
        for (assumed, _) in TABLE_2 {
            ours.push(bench.run(&table, How::Slots(model_read(assumed, true)), OUTSTANDING, SPAN)?);
        }
        let _ = write!(text, "{actual:<5}");
        for (j, rates) in ours.iter().enumerate() {
            let (wanted, ratio) = (paper[j] / paper[i], rates.lookups / ours[i].lookups);
            // A neighbour costs 20 % at most, in the paper.
            holds &= i.abs_diff(j) > 1 || ratio >= 0.8;
            let cell = format!("{wanted:.3}, {ratio:.3} ({:.1} M/s)", rates.lookups / 1e6);
            let _ = write!(text, "   {cell:<25}");
        }
        text.truncate(text.trim_end().len());
        text += mark(args.sim_slots, actual);
        text.push('\n');
        let small = too_small(args.sim_slots, actual);
        lines.push(json!({ "actual": actual, "paper": paper, "ours": ours, "too_small": small }));
    }
    let _ = writeln!(
        text,
        "\n{}\npaper: {SOURCE}, Table 2",
        if holds {
            "a neighbouring load costs 20 % at most, as in the paper"
        } else {
            "A NEIGHBOURING LOAD COSTS MORE THAN 20 %"
        }
    );
    text += &table_sizes(args.sim_slots, &TABLE_2.map(|(load, _)| load), "--sim-slots");
    Report::new(&json!({ "table": 2, "source": SOURCE, "lines": lines, "holds": holds }), text, holds)
}

/// Figure 7: throughput by load.
pub(super) fn throughput(args: &Args, watch: Watch<'_>) -> Result<Report, Error> {
    let bench = Bench::new(args, watch);
    let mut text = format!("Linear probing, Figure 7: {}, {OUTSTANDING} lookups of each under way\n", bench.about());
    text += "million lookups a virtual second; in brackets READs of a lookup\n";
    text += "load   fixed          variable       unconstrained  cuckoo  variable over fixed, over cuckoo\n";
    let (mut lines, mut best, mut crossing) = (Vec::new(), (0.0f64, 0.0f64), None);
    for load in LOADS {
        let table = bench.unique(load);
        let run = |how| bench.run(&table, how, OUTSTANDING, SPAN);
        let fixed = run(How::Slots(FIXED))?;
        let variable = run(How::Slots(model_read(load, true)))?;
        let free = run(How::Slots(model_read(load, false)))?;
        let cuckoo =
            bench.cuckoo(4, Lookup::Parallel, load)?.rates(OUTSTANDING, SPAN).map_err(farindex::Error::from)?;
        let (over_fixed, over_cuckoo) = (times(&variable, &fixed), times(&variable, &cuckoo));
        best = (best.0.max(over_fixed), best.1.max(over_cuckoo));
        if over_cuckoo < 1.0 && crossing.is_none() {
            crossing = Some(load);
        }
        let cell = |rates: &Rates| format!("{:>5.1} ({:.2})", rates.lookups / 1e6, rates.reads);
        let _ = writeln!(
            text,
            "{load:<5}  {:<13}  {:<13}  {:<13}  {:>5.1}   {over_fixed:.2}, {over_cuckoo:.2}{}",
            cell(&fixed),
            cell(&variable),
            cell(&free),
            cuckoo.lookups / 1e6,
            mark(args.sim_slots, load)
        );
        let small = too_small(args.sim_slots, load);
        lines.push(
            json!({ "load": load, "fixed": fixed, "variable": variable, "unconstrained": free, "cuckoo": cuckoo, "too_small": small }),
        );
    }
    let crosses = crossing.map_or("nowhere".to_owned(), |load| format!("at a load of {load}"));
    let _ = writeln!(
        text,
        "\nup to {:.2} times the fixed size (paper: 1.7), up to {:.2} times cuckoo (paper: 2.8); cuckoo is first ahead {crosses} (paper: 0.9)\n{CUCKOO}\npaper: {SOURCE}, Figure 7 and section 5.3",
        best.0, best.1
    );
    text += &table_sizes(args.sim_slots, &LOADS, "--sim-slots");
    Report::new(
        &json!({ "figure": 7, "source": SOURCE, "lines": lines, "over_fixed": best.0, "over_cuckoo": best.1, "crossing": crossing }),
        text,
        true,
    )
}

/// Figure 6, and the remark next to it: cuckoo tables as they are filled.
pub(super) fn cuckoo(args: &Args, watch: Watch<'_>) -> Result<Report, Error> {
    let bench = Bench::new(args, watch);
    let mut text = format!(
        "Linear probing, Figure 6: cuckoo indexes of {CUCKOO_SLOTS} 8-byte slots, {} clients of a simulated ConnectX-5,\n\
         {OUTSTANDING} lookups of present keys of each under way; million lookups a virtual second, in brackets READs of one\n\
         load   1 slot in a bucket             4 slots\n\
         .      parallel       sequential     parallel       sequential\n",
        bench.preset.clients_per_node
    );
    let (mut lines, mut filled) = (Vec::new(), Vec::new());
    for load in LOADS {
        let _ = write!(text, "{load:<5}");
        for associativity in [1, 4] {
            for lookup in [Lookup::Parallel, Lookup::Sequential] {
                let table = bench.cuckoo(associativity, lookup, load)?;
                let full = table.full;
                let rates = match full {
                    true => None,
                    false => Some(table.rates(OUTSTANDING, SPAN).map_err(farindex::Error::from)?),
                };
                let cell = rates.as_ref().map(|rates| format!("{:.1} ({:.2})", rates.lookups / 1e6, rates.reads));
                let _ = write!(text, "  {:<13}", cell.as_deref().unwrap_or("-"));
                lines.push(json!({ "load": load, "associativity": associativity, "lookup": lookup, "rates": rates }));
            }
        }
        text.push('\n');
    }
    text += "\nround trips and verbs of an insert, displacements and looks for room included, up to this load:\n";
    for associativity in [1, 4] {
        let table = bench.cuckoo(associativity, Lookup::Parallel, 1.0)?;
        for cost in &table.costs {
            let (trips, verbs) = (cost.round_trips, cost.verbs);
            let _ = writeln!(text, "{associativity} in a bucket  {:.2}  {trips:>7.2}  {verbs:>8.2}", cost.load);
        }
        let bytes = (table.slots * 8) as f64 / table.entries as f64;
        let _ = writeln!(
            text,
            "{associativity} in a bucket: has to grow at a load of {:.3}; {bytes:.2} bytes of slots for an entry then",
            table.load()
        );
        filled.push(json!({ "associativity": associativity, "reached": table.load(), "slot_bytes_per_entry": bytes, "costs": table.costs }));
    }
    let _ = writeln!(
        text,
        "the paper: no difference between parallel and sequential lookups, 3 % between 1 slot and 4; tables of 1 slot at 95 % took weeks\n\
         paper: {SOURCE}, Figure 6 and section 5.2"
    );
    Report::new(&json!({ "figure": 6, "source": SOURCE, "lines": lines, "filled": filled }), text, true)
}

/// Figure 9: latency by load, with one lookup of each client under way.
pub(super) fn latency(args: &Args, watch: Watch<'_>) -> Result<Report, Error> {
    let bench = Bench::new(args, watch);
    let mut text = format!("Linear probing, Figure 9: {}, one lookup of each under way\n", bench.about());
    text += "nanoseconds of a lookup, 10th, 25th, 50th, 75th and 90th percentile\n";
    let mut lines = Vec::new();
    for load in LOADS {
        let table = bench.unique(load);
        let ways = [
            ("fixed", How::Slots(FIXED)),
            ("variable", How::Slots(model_read(load, true))),
            ("unconstrained", How::Slots(model_read(load, false))),
        ];
        let mut all = Vec::new();
        for (name, how) in ways {
            all.push((name, bench.run(&table, how, 1, SPAN * 2)?));
        }
        for (name, lookup) in [("cuckoo", Lookup::Parallel), ("sequential", Lookup::Sequential)] {
            let rates = bench.cuckoo(4, lookup, load)?.rates(1, SPAN * 2).map_err(farindex::Error::from)?;
            all.push((name, rates));
        }
        for (i, (name, rates)) in all.into_iter().enumerate() {
            // A cuckoo table has no clusters.
            let small = i < ways.len() && too_small(args.sim_slots, load);
            let mark = if small { mark(args.sim_slots, load) } else { "" };
            let _ = writeln!(text, "{load:<5}  {name:<13}  {:?}{mark}", rates.latency_ns);
            lines.push(json!({ "load": load, "policy": name, "latency_ns": rates.latency_ns, "reads": rates.reads, "too_small": small }));
        }
    }
    let _ = writeln!(
        text,
        "\n{CUCKOO}\nsequential: the same, one READ after the other; the paper's try places in random order, and take 1.7 times as long\nthe paper: up to a load of 0.65 linear probing is ahead (2.9 us against 4.7 us); at 0.8 its median is, and its 90th\n\
         percentile (5.4 us fixed, 6.2 us variable) is behind cuckoo's (5.1 us); at 0.9 medians are alike; at 0.95 cuckoo is ahead\n\
         paper: {SOURCE}, Figure 9 and section 5.4"
    );
    text += &table_sizes(args.sim_slots, &LOADS, "--sim-slots");
    Report::new(&json!({ "figure": 9, "source": SOURCE, "lines": lines }), text, true)
}

/// Exponents of Figure 12.
const SKEWS: [f64; 6] = [0.0, 0.25, 0.5, 0.75, 0.9, 1.0];
/// Tables that each number is the mean of: where the hottest keys lie decides much.
const SKEWED_TABLES: u64 = 4;
/// Long clusters take long.
const SKEWED_SPAN: Duration = Duration::from_millis(2);

/// Figure 12: matching records found, with clusters tracked and without.
pub(super) fn clusters(args: &Args, watch: Watch<'_>) -> Result<Report, Error> {
    let bench = Bench::new(args, watch);
    let slots = (args.sim_slots / 8).max(1024) as usize;
    let mut text = format!(
        "Linear probing, Figure 12: 65 % of {slots} 8-byte slots filled with records of Zipfian keys, means of {SKEWED_TABLES} tables; {}\n\
         clients of a simulated ConnectX-5, keys of drawn records, {OUTSTANDING} lookups of each client under way, and one\n",
        bench.preset.clients_per_node
    );
    text += "million matching records a virtual second: oblivious, tracking, ratio\n";
    let (mut lines, mut least) = (Vec::new(), f64::INFINITY);
    for skew in SKEWS {
        let tables: Vec<_> = (1..=SKEWED_TABLES).map(|seed| Filled::zipf(slots, 0.65, skew, seed)).collect();
        let _ = write!(text, "{skew:<5}");
        for outstanding in [OUTSTANDING, 1] {
            let mut runs = Vec::new();
            for table in &tables {
                let oblivious = bench.run(table, How::Slots(model_read(0.65, true)), outstanding, SKEWED_SPAN)?;
                runs.push((oblivious, bench.run(table, How::Tracking, outstanding, SKEWED_SPAN)?));
            }
            let mean = |of: fn(&(Rates, Rates)) -> f64| runs.iter().map(of).sum::<f64>() / runs.len() as f64 / 1e6;
            let (oblivious, tracking) = (mean(|run| run.0.matches), mean(|run| run.1.matches));
            let ratio = tracking / oblivious;
            least = least.min(ratio);
            let _ = write!(text, "   {oblivious:>8.2}, {tracking:>8.2}, {ratio:.3}");
            let runs: Vec<_> = runs
                .iter()
                .map(|(oblivious, tracking)| json!({ "oblivious": oblivious, "tracking": tracking }))
                .collect();
            let small = too_small(slots as u64, 0.65);
            lines.push(
                json!({ "too_small": small, "skew": skew, "outstanding": outstanding, "runs": runs, "ratio": ratio }),
            );
        }
        text += mark(slots as u64, 0.65);
        text.push('\n');
    }
    let _ = writeln!(
        text,
        "\nnever less than {least:.3} times (paper: never a loss, up to 1.7 times)\npaper: {SOURCE}, Figure 12 and section 5.8"
    );
    text += &table_sizes(slots as u64, &[0.65], "eight times as many by --sim-slots:");
    // A hundredth is chance.
    Report::new(&json!({ "figure": 12, "source": SOURCE, "lines": lines, "least": least }), text, least > 0.99)
}

/// Load and bytes of the records of Figure 11, and what the paper says of its best algorithm, in millions of lookups a
/// second.
const STORED: (f64, [u64; 3]) = (0.65, [8, 32, 128]);
const PAPER_11: &str = "the paper's variable reads: 36 M/s inline and 23 M/s out of band with 8 bytes, 8 and 19 with 128; out of band from 32 bytes on";

/// Figure 11: records in the slots and out of band.
pub(super) fn storage(args: &Args, watch: Watch<'_>) -> Result<Report, Error> {
    let bench = Bench::new(args, watch);
    let (load, sizes) = STORED;
    let slots = (args.sim_slots / 8).max(1024) as usize;
    let table = Filled::unique(slots, load, 1);
    let mut text = format!(
        "Linear probing, Figure 11: tables of {slots} slots, 65 % full, {} clients of a simulated ConnectX-5, {OUTSTANDING} lookups of\n\
         each under way: million lookups a virtual second, and READs of a lookup\n\
         record          fixed          variable       cuckoo\n",
        bench.preset.clients_per_node
    );
    let (mut lines, mut crossing) = (Vec::new(), None);
    for bytes in sizes {
        let mut best = Vec::new();
        for (name, storage) in [("inline", Storage::Inline(bytes)), ("heap", Storage::Heap(bytes))] {
            let (fixed, variable) = reads_of(load, storage.width());
            let run = |slots| {
                let (preset, how, span) = (&bench.preset, How::Slots(slots), SPAN);
                bench.rates(ProbeRun { preset, table: &table, storage, how, outstanding: OUTSTANDING, span, seed: 1 })
            };
            let (fixed, variable) = (run(fixed)?, run(variable)?);
            let records = match storage {
                Storage::Inline(width) => Records::inline(width as usize),
                Storage::Heap(bytes) => Records::heap(bytes as usize),
            };
            let cuckoo = bench.cuckoo_of(records, 4, Lookup::Parallel, load)?.rates(OUTSTANDING, SPAN);
            let cuckoo = cuckoo.map_err(farindex::Error::from)?;
            let cell = |rates: &Rates| format!("{:>5.1} ({:.2})", rates.lookups / 1e6, rates.reads);
            let cells = [&fixed, &variable, &cuckoo].map(cell);
            let _ = writeln!(
                text,
                "{bytes:>4} B {name:<7}  {}   {}   {}{}",
                cells[0],
                cells[1],
                cells[2],
                mark(slots as u64, load)
            );
            best.push(variable.lookups);
            lines.push(json!({ "record_bytes": bytes, "storage": name, "fixed": fixed, "variable": variable, "cuckoo": cuckoo, "too_small": too_small(slots as u64, load) }));
        }
        if best[1] > best[0] && crossing.is_none() {
            crossing = Some(bytes);
        }
    }
    let at = crossing.map_or("never".to_owned(), |bytes| format!("from {bytes} bytes on"));
    let _ = writeln!(
        text,
        "\nout of band is ahead {at} (variable reads)\n{PAPER_11}\n\
         cuckoo: a cuckoo index of 65536 slots, 4 in a bucket, filled by inserts; slots of 8, 32 and 128 bytes hold 6, 21 and 105 of a record\n\
         paper: {SOURCE}, Figure 11 and section 5.7"
    );
    text += &table_sizes(slots as u64, &[load], "eight times as many by --sim-slots:");
    let result = json!({ "figure": 11, "source": SOURCE, "load": load, "lines": lines, "crossing_bytes": crossing });
    Report::new(&result, text, true)
}

/// Figure 13: slots that are read next to a cluster of ten.
pub(super) fn near_cluster() -> Result<Report, Error> {
    let curves = [0.25, 0.65].map(|load| next_to_cluster(load, 10));
    let mut text = "Linear probing, Figure 13: slots of a READ that begins x slots from the start of a cluster of 10\n   x  25 %  65 %\n".to_owned();
    for ((x, low), (_, high)) in curves[0].iter().zip(&curves[1]) {
        let _ = writeln!(text, "{x:>4}  {low:>4}  {high:>4}");
    }
    let _ = writeln!(text, "paper: {SOURCE}, Figure 13 (curves, no numbers)");
    Report::new(&json!({ "figure": 13, "source": SOURCE, "load_25": curves[0], "load_65": curves[1] }), text, true)
}
