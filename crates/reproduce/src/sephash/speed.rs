//! Table 1 and Figures 12, 14 and 19 of Args, on a simulated cluster.

use super::paper::{
    Comparison, ONE_CLIENT_US, OVER_RACE, RACE_1, Resizes, SEPHASH_1, SOURCE, STEPS_READ, STEPS_WRITE, WRITE_HEAVY,
};
use super::{Args, ours, race, sephash};
use crate::lab::{Lab, Measured, Run, table};
use crate::report::{Error, Report};
use farindex::IndexConfig;
use farindex_index::sephash::{Config, TableKind};
use serde_json::json;

/// Printed with what is predicted.
const SCALE: &str =
    "the paper inserts 100 M keys, and takes the best of 1 to 4 coroutines a thread; ours is one client a thread";

fn about(lab: &Lab<'_>) -> String {
    format!(
        "keys of {} + {} bytes, predicted on {:?}'s cluster; {SCALE}",
        lab.key_size, lab.value_size, lab.preset.name
    )
}

/// What a ratio that is far off the paper's rests on.
fn explain(text: &mut String, comparison: &[Comparison], runs: &[(String, &Measured)]) {
    comparison.iter().for_each(|line| *text += &format!("{}\n", line.line()));
    *text += "what an operation costs:\n";
    runs.iter().for_each(|(name, run)| *text += &format!("  {name}: {}\n", run.cost()));
}

/// Figure 12, and the latencies of one client.
pub(super) fn inserts(args: &Args, lab: &Lab<'_>) -> Result<Report, Error> {
    let keys = args.keys(200_000)?;
    let clients = match args.clients.as_slice() {
        [] => vec![1, 2, 4, 8, 16, 32, 64, 128],
        clients => clients.to_vec(),
    };
    let mut pairs = Vec::new();
    for clients in clients {
        let trials = [sephash(ours()), race()].map(|config| args.inserts(config, keys, clients));
        let pair = lab.run_all(trials)?;
        pairs.push(pair);
    }
    let name = |run: &Measured| format!("{}, {} clients", run.index, run.clients);
    let named: Vec<_> = pairs.iter().flatten().map(|run| (name(run), run)).collect();
    let mut comparison = Vec::new();
    for pair in &pairs {
        if let [ours, race] = pair.as_slice() {
            if ours.clients == 1 {
                comparison.push(Comparison::new(
                    "median us of an insert, one client",
                    ONE_CLIENT_US.0,
                    ours.p50_ns as f64 / 1e3,
                ));
                comparison.push(Comparison::new(
                    "median us of RACE's, one client",
                    ONE_CLIENT_US.1,
                    race.p50_ns as f64 / 1e3,
                ));
            }
            if ours.clients == 128 {
                comparison.push(Comparison::new("SepHash over RACE, 128 clients", OVER_RACE, ours.over(race)));
            }
        }
    }
    let ratios: Vec<_> =
        pairs.iter().map(|pair| pair.first().zip(pair.last()).map_or(0.0, |(a, b)| a.over(b))).collect();
    let result = json!({ "figure": 12, "source": SOURCE, "keys": keys, "loaded": args.loaded, "seed": lab.seed, "runs": pairs, "over_race": ratios, "comparison": comparison });
    let text = {
        let mut text =
            format!("SepHash, Figure 12: {keys} inserts, {}\n{}\n\n{}", args.before(), about(lab), table(&named));
        for (pair, ratio) in pairs.iter().zip(&ratios) {
            let clients = pair.first().map_or(0, |run| run.clients);
            text += &format!("  over RACE with {clients} clients: {ratio:.2}\n");
        }
        explain(&mut text, &comparison, &named);
        text + &format!("paper: {SOURCE}, Figures 12 and 13, section 5.2.1\n")
    };
    Report::new(&result, text, true)
}

/// Per cent of inserts.
const SHARES: [u32; 6] = [0, 10, 25, 50, 75, 100];

/// Figure 14.
pub(super) fn hybrid(args: &Args, lab: &Lab<'_>) -> Result<Report, Error> {
    let (keys, clients) = (args.keys(200_000)?, args.clients()?);
    let mut pairs = Vec::new();
    for share in SHARES {
        let mix = match share {
            0 => "get".to_owned(),
            100 => "insert".to_owned(),
            share => format!("insert={share},get={}", 100 - share),
        };
        let trials = [sephash(ours()), race()].map(|config| Run::load(config, keys, clients).then(&mix, keys));
        let pair = lab.run_all(trials)?;
        pairs.push((share, pair));
    }
    let name = |share: u32, run: &Measured| format!("{}, {share} % inserts", run.index);
    let named: Vec<_> =
        pairs.iter().flat_map(|(share, pair)| pair.iter().map(|run| (name(*share, run), run))).collect();
    let over: Vec<_> = pairs
        .iter()
        .map(|(share, pair)| (*share, pair.first().zip(pair.last()).map_or(0.0, |(a, b)| a.over(b))))
        .collect();
    let heavy = over.last().map_or(0.0, |(_, ratio)| *ratio);
    let comparison = [Comparison::new("SepHash over RACE, inserts alone", WRITE_HEAVY, heavy)];
    let runs: Vec<_> = pairs.iter().map(|(share, pair)| json!({ "insert_percent": share, "runs": pair })).collect();
    let result = json!({ "figure": 14, "source": SOURCE, "keys": keys, "clients": clients, "seed": lab.seed, "mixes": runs, "over_race": over, "comparison": comparison });
    let text = {
        let mut text = format!(
            "SepHash, Figure 14: {keys} keys inserted, then as many operations of a mix, {clients} clients\n{}\n\n{}",
            about(lab),
            table(&named)
        );
        over.iter().for_each(|(share, ratio)| text += &format!("  over RACE with {share} % inserts: {ratio:.2}\n"));
        explain(&mut text, &comparison, &named);
        text + &format!("paper: {SOURCE}, Figure 14, section 5.2.3\n")
    };
    Report::new(&result, text, true)
}

/// RACE, and the techniques one after the other.
type Ladder = [(&'static str, IndexConfig); 4];

/// That of inserts, and that of searches.
fn ladder() -> (Ladder, Ladder) {
    let shipped = ours();
    let base = Config { resize_entry: false, zero_wait: false, ..shipped };
    let scan = Config { table: TableKind::Off, bitmap: false, ..shipped };
    let writes = [
        ("RACE", race()),
        ("base", sephash(base)),
        ("+ resize-optimized entry", sephash(Config { resize_entry: true, ..base })),
        ("+ zero-wait write", sephash(shipped)),
    ];
    let reads = [
        ("RACE", race()),
        ("base", sephash(scan)),
        ("+ FPTable", sephash(Config { table: TableKind::Points, ..scan })),
        ("+ bitmap", sephash(shipped)),
    ];
    (writes, reads)
}

/// Figure 19.
pub(super) fn steps(args: &Args, lab: &Lab<'_>) -> Result<Report, Error> {
    let (keys, clients) = (args.keys(200_000)?, args.clients()?);
    let (writes, reads) = ladder();
    let inserts = writes.map(|(_, config)| args.inserts(config, keys, clients));
    let written = lab.run_all(inserts)?;
    let gets = reads.map(|(_, config)| Run::load(config, args.loaded.unwrap_or(keys), clients).then("get", keys));
    let read = lab.run_all(gets)?;
    let name = |what: &str, name: &str| format!("{what}: {name}");
    let named_writes = writes.iter().zip(&written).map(|((step, _), run)| (name("insert", step), run));
    let named_reads = reads.iter().zip(&read).map(|((step, _), run)| (name("search", step), run));
    let named: Vec<_> = named_writes.chain(named_reads).collect();
    let mut comparison = Vec::new();
    if let [race, base, entry, shipped] = written.as_slice() {
        comparison.push(Comparison::new("insert: base over RACE", STEPS_WRITE[0], base.over(race)));
        comparison.push(Comparison::new(
            "insert: + resize-optimized entry over base",
            STEPS_WRITE[1],
            entry.over(base),
        ));
        comparison.push(Comparison::new("insert: all over RACE", STEPS_WRITE[2], shipped.over(race)));
    }
    if let [race, base, table, shipped] = read.as_slice() {
        comparison.push(Comparison::new("search: + FPTable over base", STEPS_READ[0], table.over(base)));
        comparison.push(Comparison::new("search: + bitmap over that", STEPS_READ[1], shipped.over(table)));
        comparison.push(Comparison::new("search: all over RACE (\"close to\" it)", 1.0, shipped.over(race)));
    }
    let result = json!({ "figure": 19, "source": SOURCE, "keys": keys, "loaded": args.loaded, "clients": clients, "seed": lab.seed, "inserts": written, "searches": read, "comparison": comparison });
    let text = {
        let head =
            format!("SepHash, Figure 19: {keys} inserts, {}, and as many searches, {clients} clients", args.before());
        let mut text = format!("{head}\n{}\n\n{}", about(lab), table(&named));
        explain(&mut text, &comparison, &named);
        text + &format!("paper: {SOURCE}, Figure 19, section 5.5\n")
    };
    Report::new(&result, text, true)
}

fn resize_line(run: &Measured, paper: &Resizes, column: usize) -> String {
    let million = |count: u64| count as f64 * 1e6 / run.ops.max(1) as f64;
    format!(
        "  {:8} {:>4} clients  merges {:>7.0} (paper {:>7.0})  splits {:>6.0} ({:>6.0})  share of time {:>6.2} % ({:>5.2} %)  attempts {:.2} ({:.2})\n",
        run.index,
        run.clients,
        million(run.merges),
        paper.merges[column] / 100.0,
        million(run.splits),
        paper.splits[column] / 100.0,
        run.resizing() * 100.0,
        paper.share[column] * 100.0,
        run.cas,
        paper.attempts[column],
    )
}

/// Table 1.
pub(super) fn resizes(args: &Args, lab: &Lab<'_>) -> Result<Report, Error> {
    let (keys, clients) = (args.keys(1_000_000)?, args.clients()?);
    let mut lines = String::new();
    let mut runs = Vec::new();
    for (column, clients) in [1, clients].into_iter().enumerate() {
        for (config, paper) in [(sephash(ours()), &SEPHASH_1), (race(), &RACE_1)] {
            let run = lab.run(&Run::load(config, keys, clients))?;
            lines += &resize_line(&run, paper, column);
            runs.push(run);
        }
    }
    let named: Vec<_> = runs.iter().map(|run| (format!("{}, {} clients", run.index, run.clients), run)).collect();
    let paper = json!({ "sephash": SEPHASH_1, "race": RACE_1, "keys": 100_000_000 });
    let result = json!({ "table": 1, "source": SOURCE, "keys": keys, "seed": lab.seed, "paper": paper, "runs": runs });
    let text = {
        let mut text = format!("SepHash, Table 1: {keys} inserts\n{}\n\nfor a million inserts:\n{lines}", about(lab));
        text += "ours counts what was done, under the lock; RACE's in the paper counts what was begun, most of it in vain\n";
        text += "attempts: CASes for each insert, those of merges and splits among them; the paper's are medians\n";
        explain(&mut text, &[], &named);
        text + &format!("paper: {SOURCE}, Table 1\n")
    };
    Report::new(&result, text, true)
}
