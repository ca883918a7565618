//! Table 2: what an operation costs, in verbs and bytes.

use super::Args;
use super::paper::{SOURCE, TABLE_2, WORKLOADS};
use super::variants::{Point, measure, wanted};
use crate::lab::Measured;
use crate::report::{Error, Report, Watch};
use serde_json::json;

const COLUMNS: [&str; 5] = ["reads", "writes", "atomics", "calls", "bytes"];

fn counts(run: &Measured) -> [f64; 5] {
    [run.reads, run.writes, run.cas + run.faa, run.calls, run.bytes_read + run.bytes_written]
}

fn line(name: &str, counts: &[f64; 5]) -> String {
    let [reads, writes, atomics, calls, bytes] = counts;
    format!("  {name:38} {reads:>8.2} {writes:>8.2} {atomics:>8.2} {calls:>8.4} {bytes:>8.0}\n")
}

/// What the paper's row of a variant is called: its Sherman has three READs.
fn paper_row(workload: &str, name: &str) -> Option<[f64; 5]> {
    let of = name.split(',').next().unwrap_or(name);
    TABLE_2.into_iter().find(|(row, index, _)| *row == workload && *index == of).map(|(_, _, counts)| counts)
}

/// Table 2.
pub(super) fn table(args: &Args, watch: Watch<'_>) -> Result<Report, Error> {
    let (keys, clients) = (args.keys.unwrap_or(400_000), args.one_number_of_clients()?);
    let variants = wanted(args)?;
    let mut text = format!(
        "DEX, Table 2: verbs and bytes of an operation, skewed, {keys} keys, {clients} clients of a simulated cluster\n{}\n",
        args.scale(keys)
    );
    let mut rows = Vec::new();
    for (name, mix) in WORKLOADS.into_iter().filter(|(name, _)| TABLE_2.iter().any(|(of, ..)| of == name)) {
        text += &format!("\n  {name:38}");
        COLUMNS.iter().for_each(|column| text += &format!(" {column:>8}"));
        text += "\n";
        for variant in &variants {
            let run = measure(args, watch, variant, &Point::usual(mix, clients, keys))?;
            let (ours, paper) = (counts(&run), paper_row(name, &variant.name));
            text += &line(&variant.name, &ours);
            if let Some(paper) = &paper {
                text += &line("  the paper", paper);
                let ratios = ours.iter().zip(paper).map(|(ours, paper)| match paper {
                    0.0 => format!(" {:>8}", "-"),
                    paper => format!(" {:>8.2}", ours / paper),
                });
                text += &format!("  {:38}{}\n", "  ours over the paper's", ratios.collect::<String>());
            }
            rows.push(json!({ "workload": name, "index": variant.name, "run": run, "paper": paper }));
        }
    }
    text += "\nThe paper's Sherman has three READs, of which ours has one unless --sherman-reads says otherwise. The paper's DEX \
             writes back, ours writes through:\na write is a batch of WRITEs. Bytes are those of keys, values and nodes, without \
             headers.\n";
    text += &format!("paper: {SOURCE}, Table 2\n");
    Report::new(
        &json!({ "table": 2, "source": SOURCE, "keys": keys, "clients": clients, "seed": args.seed, "rows": rows }),
        text,
        true,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use farindex_bench::Control;

    /// Of a small tree on two compute nodes.
    #[test]
    fn operations_cost_what_is_documented() {
        let arguments = ["--table", "2", "--keys", "20K", "--clients", "72", "--sherman-reads", "3"];
        let control = Control::default();
        let report = table(&Args::example(&arguments), Watch(&control)).expect("a table");
        let row = |workload: &str, index: &str| {
            let rows = report.json["rows"].as_array().expect("rows");
            let is = |row: &&serde_json::Value| row["workload"] == workload && row["index"] == index;
            let run = &rows.iter().find(is).expect("the row")["run"];
            ["reads", "writes", "cas", "faa"].map(|name| run[name].as_f64().expect("a number"))
        };
        // A get READs the leaf, an update READs it and WRITEs value and checksum; none of them takes an atomic.
        assert_eq!(row("read-only", "P-Sherman"), [1.0, 0.0, 0.0, 0.0]);
        let [reads, writes, cas, faa] = row("write-intensive", "P-Sherman");
        assert!((1.0..1.01).contains(&reads) && (0.97..1.03).contains(&writes), "{reads} READs, {writes} WRITEs");
        assert!(cas + faa < 0.001, "{cas} CAS, {faa} FAA");
        // The leaf, and its lock word before and after it.
        let [reads, ..] = row("read-only", "Sherman, 3 READs");
        assert!((3.0..3.01).contains(&reads), "{reads} READs");
        // A leaf that is cached takes none.
        let [reads, writes, cas, faa] = row("read-only", "DEX");
        assert!(reads < 0.8 && (writes, cas, faa) == (0.0, 0.0, 0.0), "{reads} READs, {writes} WRITEs");
    }
}
