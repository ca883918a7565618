//! Rows for people.

use super::Row;
use std::fmt::Write;

/// A table of text: the first column to the left, the others to the right.
fn aligned(head: &[&str], lines: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count());
        cells.chain(head.get(column).map(|name| name.chars().count())).max().unwrap_or_default()
    };
    let widths: Vec<_> = (0..head.len()).map(width).collect();
    let mut out = String::new();
    let mut put = |cells: &mut dyn Iterator<Item = &str>| {
        for (column, (cell, &width)) in cells.zip(&widths).enumerate() {
            // Writing to a string does not fail.
            let _ = match column {
                0 => write!(out, "{cell:<width$}"),
                _ => write!(out, "  {cell:>width$}"),
            };
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
    };
    put(&mut head.iter().copied());
    lines.iter().for_each(|line| put(&mut line.iter().map(String::as_str)));
    out
}

/// Three significant digits or so, in the first unit `(from, scale, name)` whose range the number reaches.
fn short(number: f64, units: &[(f64, f64, &str)]) -> String {
    let unit = units.iter().find(|(from, ..)| number >= *from).or(units.last());
    let &(_, scale, name) = unit.unwrap_or(&(0.0, 1.0, ""));
    let scaled = number / scale;
    let digits = match scaled {
        _ if scaled.fract() == 0.0 && scale == 1.0 => 0,
        ..10.0 => 2,
        ..100.0 => 1,
        _ => 0,
    };
    format!("{scaled:.digits$}{name}")
}

fn count(number: f64) -> String {
    short(number, &[(1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k"), (0.0, 1.0, "")])
}
fn bytes(number: f64) -> String {
    const KI: f64 = 1024.0;
    const MI: f64 = KI * KI;
    short(number, &[(KI * MI, KI * MI, " GiB"), (MI, MI, " MiB"), (10.0 * KI, KI, " KiB"), (0.0, 1.0, " B")])
}
fn time(ns: u64) -> String {
    short(ns as f64, &[(1e9, 1e9, "s"), (1e6, 1e6, "ms"), (1e3, 1e3, "us"), (0.0, 1.0, "ns")])
}
fn share(part: Option<f64>) -> String {
    part.map_or_else(|| "-".to_owned(), |part| format!("{part:.2}"))
}

/// Runs side by side, and below what each operation of them costs in verbs.
pub fn table(rows: &[Row]) -> String {
    let named: Vec<_> = rows.iter().map(|row| (String::new(), row)).collect();
    labelled("", &named)
}

/// The same for runs that differ in one number: each begins with the number, under its name.
pub fn labelled(what: &str, rows: &[(String, &Row)]) -> String {
    let labels = usize::from(!what.is_empty());
    let head = [
        what,
        "index",
        "fabric",
        "workload",
        "keys",
        "ops",
        "threads",
        "clients",
        "ops/s",
        "efficiency",
        "p50",
        "p99",
        "p99.9",
        "far/entry",
        "cache",
        "wrong",
        "errors",
    ];
    let line = |(label, row): &(String, &Row)| {
        let cells = vec![
            label.clone(),
            row.index.clone(),
            row.fabric.clone(),
            row.workload.clone(),
            count(row.keys as f64),
            count(row.ops as f64),
            row.threads.to_string(),
            row.clients.to_string(),
            count(row.throughput_ops_per_s),
            share(row.efficiency),
            time(row.latency_ns.p50),
            time(row.latency_ns.p99),
            time(row.latency_ns.p999),
            row.far_bytes_per_entry.map_or_else(|| "-".to_owned(), bytes),
            bytes(row.cache_bytes as f64),
            row.wrong_answers.to_string(),
            row.errors.to_string(),
        ];
        cells.into_iter().skip(1 - labels).collect()
    };
    let mut out = aligned(&head[1 - labels..], &rows.iter().map(line).collect::<Vec<_>>());
    let head = [
        "mean of one",
        "count",
        "round trips",
        "of blocks",
        "READ",
        "WRITE",
        "CAS",
        "FAA",
        "bytes read",
        "bytes written",
    ];
    let mut costs = Vec::new();
    for (label, row) in rows {
        for (kind, cost) in &row.kinds {
            let mean = |number: f64| format!("{number:.2}");
            let name = match rows.len() {
                _ if labels > 0 => format!("{what} {label} {kind}"),
                1 => kind.clone(),
                _ => format!("{} {} {kind}", row.index, row.workload),
            };
            let mut line = vec![name, count(cost.count as f64)];
            line.extend(
                [cost.round_trips, cost.block_round_trips, cost.reads, cost.writes, cost.cas, cost.faa].map(mean),
            );
            line.extend([cost.bytes_read, cost.bytes_written].map(|number| format!("{number:.0}")));
            costs.push(line);
        }
    }
    if !costs.is_empty() {
        out.push('\n');
        out.push_str(&aligned(&head, &costs));
    }
    for (_, row) in rows {
        for (what, faults) in [("WRONG ANSWER", &row.wrong_answer_kinds), ("error", &row.error_kinds)] {
            for fault in faults {
                let _ =
                    writeln!(out, "{what} of {}: {} x {}, first: {}", row.index, fault.count, fault.kind, fault.first);
            }
        }
        let sent = [
            (row.messages_per_op, "messages to memory nodes"),
            (row.answers_per_op, "answers of them"),
            (row.doorbells_per_op, "doorbells"),
        ];
        let sent = sent.into_iter().filter_map(|(count, what)| Some(format!("{:.3} {what}", count?)));
        let sent = sent.collect::<Vec<_>>().join(", ");
        if !sent.is_empty() {
            let _ = writeln!(out, "{} {}: for one operation {sent}", row.index, row.workload);
        }
        if let Some(ceiling) = row.ceiling_ops_per_s {
            let (index, workload, ceiling) = (&row.index, &row.workload, count(ceiling));
            let _ = writeln!(
                out,
                "{index} {workload}: the same verbs in full messages, without the index: {ceiling} ops/s"
            );
        }
        if let Some(entries) = row.entries_per_scan() {
            let _ = writeln!(out, "{} {}: a scan returned {entries:.1} entries on average", row.index, row.workload);
        }
        if row.interrupted {
            let _ =
                writeln!(out, "{} {} ended early; the numbers count what it had done by then", row.index, row.workload);
        }
    }
    out
}
