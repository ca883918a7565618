//! Figures 3a and 14: bytes of the compute node's cache, counted.

use super::filled::Filled;
use super::paper::{SIZES, SOURCE, SPAN, cache_bytes_for_each};
use super::{Args, kinds};
use crate::report::{Error, Report, Watch};
use crate::sephash::paper::Comparison;
use farindex_fabric::OpKind;
use farindex_index::tree::Lookups;
use serde::Serialize;
use serde_json::json;
use std::fmt::Write;

/// Lookups whose READs are counted.
const LOOKUPS: u64 = 10_000;

/// An index with some keys, as a compute node sees it that has read every inner node.
#[derive(Debug, Serialize)]
struct Row {
    index: String,
    span: usize,
    keys: u64,
    /// Bytes of far memory, nodes alone.
    far_bytes: u64,
    cache_bytes: u64,
    /// Bytes that a lookup READs.
    read_bytes: f64,
    round_trips: f64,
    /// Share of the nodes of each level that the cache had, from the parents of leaves up, where the kind counts that.
    hits: Vec<f64>,
}

impl Row {
    fn measure(kind: &str, span: usize, keys: u64, args: &Args, watch: Watch<'_>) -> Result<Row, Error> {
        let filled = Filled::new(&kinds::of_span(kind, span, args.cache)?, keys, args.seed, watch)?;
        let mut reader = filled.reader()?;
        reader.warm_up(watch)?;
        let before = reader.lookups();
        let cost = reader.cost(OpKind::Get, |reader| (0..LOOKUPS).try_for_each(|_| reader.look_up()))?;
        Ok(Row {
            index: kind.to_owned(),
            span,
            keys,
            far_bytes: filled.audit()?.index_bytes,
            cache_bytes: reader.index.cache_bytes(),
            read_bytes: cost.bytes_read as f64 / LOOKUPS as f64,
            round_trips: cost.round_trips as f64 / LOOKUPS as f64,
            hits: hits(&before, &reader.lookups()),
        })
    }
    fn far_for_each(&self) -> f64 {
        self.far_bytes as f64 / self.keys as f64
    }
    fn cache_for_each(&self) -> f64 {
        self.cache_bytes as f64 / self.keys as f64
    }
    /// Bytes READ over those of the entry.
    fn amplification(&self) -> f64 {
        self.read_bytes / (SIZES.0 + SIZES.1) as f64
    }
}

/// Hits as a share of all look-ups of a level, between two moments.
fn hits(before: &[Lookups], after: &[Lookups]) -> Vec<f64> {
    let level = |(level, after): (usize, &Lookups)| {
        let before = before.get(level).copied().unwrap_or_default();
        let (hits, misses) = (after.hits - before.hits, after.misses - before.misses);
        hits as f64 / (hits + misses).max(1) as f64
    };
    after.iter().enumerate().map(level).collect()
}

/// Figure 14.
pub(super) fn consumption(args: &Args, watch: Watch<'_>) -> Result<Report, Error> {
    let numbers = if args.keys.is_empty() { vec![1_000_000, 2_000_000, 4_000_000] } else { args.keys.clone() };
    let mut rows = Vec::new();
    for keys in numbers {
        for kind in &args.kinds {
            rows.push(Row::measure(kind, SPAN, keys, args, watch)?);
        }
    }
    let mut comparison = Vec::new();
    for kind in &args.kinds {
        let last = rows.iter().rev().find(|row| row.index == *kind);
        if let (Some(row), Some(paper)) = (last, cache_bytes_for_each(kind)) {
            let what = format!("{kind}: bytes of cache for each of {} keys", row.keys);
            comparison.push(Comparison::new(what, paper, row.cache_for_each()));
        }
    }
    let mut text = format!(
        "CHIME, Figure 14: cache of a compute node that has looked keys up all over the index; span {SPAN}, 8-byte keys \
         and values\n\n  {:8} {:>10} {:>13} {:>13} {:>14} {:>8}  hits by level, from the parents of leaves up\n",
        "", "keys", "cache bytes", "for each key", "far, each key", "trips"
    );
    for row in &rows {
        let hits: Vec<_> = row.hits.iter().map(|share| format!("{:.1} %", share * 100.0)).collect();
        let _ = writeln!(
            text,
            "  {:8} {:>10} {:>13} {:>13.3} {:>14.2} {:>8.2}  {}",
            row.index,
            row.keys,
            row.cache_bytes,
            row.cache_for_each(),
            row.far_for_each(),
            row.round_trips,
            hits.join(", ")
        );
    }
    text += "\n";
    comparison.iter().for_each(|line| text += &format!("{}\n", line.line()));
    text += &format!("paper: {SOURCE}, section 5.2: 23.6 MB (Sherman) and 27.6 MB (CHIME) with 60 million keys\n");
    let result = json!({ "figure": 14, "source": SOURCE, "span": SPAN, "seed": args.seed, "rows": rows, "comparison": comparison });
    Report::new(&result, text, true)
}

/// Spans of Figure 3a.
const SPANS: [usize; 6] = [16, 32, 64, 128, 256, 512];

/// Figure 3a.
pub(super) fn amplification(args: &Args, watch: Watch<'_>) -> Result<Report, Error> {
    let keys = args.one_number_of_keys(1_000_000)?;
    let (mut rows, mut refused) = (Vec::new(), Vec::new());
    for kind in &args.kinds {
        for span in SPANS {
            match Row::measure(kind, span, keys, args, watch) {
                Ok(row) => rows.push(row),
                // A kind has a largest span.
                Err(Error::Farindex(farindex::Error::Index(farindex::IndexError::BadConfig(why)))) => {
                    refused.push(format!("{kind}: {why}"));
                }
                Err(error) => return Err(error),
            }
        }
    }
    let mut text = format!(
        "CHIME, Figure 3a: what a lookup READs, over the 16 bytes of the entry, and bytes of cache for each entry; {keys} \
         keys\n\n  {:8} {:>5} {:>14} {:>14} {:>14} {:>14}\n",
        "", "span", "amplification", "bytes READ", "cache, each", "far, each"
    );
    for row in &rows {
        let _ = writeln!(
            text,
            "  {:8} {:>5} {:>14.1} {:>14.0} {:>14.3} {:>14.2}",
            row.index,
            row.span,
            row.amplification(),
            row.read_bytes,
            row.cache_for_each(),
            row.far_for_each()
        );
    }
    refused.iter().for_each(|why| text += &format!("  {why}\n"));
    text += "\nin the paper the amplification of a B+ tree is its span: it leaves out metadata, and so does not count the\n\
             header and the bitmaps of a leaf\n";
    text += &format!("paper: {SOURCE}, section 3.1; the other numbers are in its figure alone\n");
    let lines: Vec<_> = rows
        .iter()
        .map(|row| json!({ "row": row, "amplification": row.amplification(), "cache_for_each": row.cache_for_each() }))
        .collect();
    let result = json!({ "figure": "3a", "source": SOURCE, "keys": keys, "seed": args.seed, "lines": lines, "refused": refused });
    Report::new(&result, text, true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farindex_bench::Control;

    #[test]
    fn a_lookup_in_sherman_reads_one_whole_leaf() {
        let control = Control::default();
        let args = Args::example(&["--figure", "3a"]);
        let rows = [16, 64].map(|span| Row::measure("sherman", span, 10_000, &args, Watch(&control)).expect("a row"));
        for (row, leaf) in rows.iter().zip([384.0, 1_152.0]) {
            // And 8 bytes of the anchor in each of a few epochs.
            assert!((leaf..leaf + 0.01).contains(&row.read_bytes) && row.round_trips == 1.0, "{row:?}");
        }
        let [small, large] = rows;
        assert!(small.cache_for_each() > 3.0 * large.cache_for_each(), "{small:?} {large:?}");
    }
}
