//! Figures 3d, 16 and 19: counted on local tables and on the real layout of a leaf.

use super::Args;
use super::paper::SOURCE;
use super::schemes::{Scheme, leaf_loads, split_loads};
use crate::report::{Error, Report, Watch};
use crate::sephash::paper::Comparison;
use farindex_index::tree::chime::leaf::Layout;
use serde_json::json;
use std::fmt::Write;

/// Entries of the tables of Figure 3d (section 3.1.2).
const ENTRIES: usize = 128;
/// Amplification factors of Figure 3d, as far as the hop bitmap of a leaf reaches.
const FACTORS: [usize; 4] = [4, 8, 12, 16];
/// Hopscotch at factor 8 (sections 3.2.3 and 4.5: "around 90 %").
const AT_8: f64 = 0.9;

/// Figure 3d.
pub(super) fn schemes(args: &Args, watch: Watch<'_>) -> Result<Report, Error> {
    let mut text = format!(
        "CHIME, Figure 3d: maximum load factor of tables of {ENTRIES} entries, mean of {} tables\n\nfactor",
        args.trials
    );
    Scheme::ALL.iter().for_each(|scheme| text += &format!(" {:>12}", scheme.name()));
    text += "\n";
    let (mut rows, mut best, mut at_8) = (Vec::new(), true, f64::NAN);
    for factor in FACTORS {
        let mut loads = Vec::new();
        for scheme in Scheme::ALL {
            watch.check()?;
            loads.push(scheme.max_load(ENTRIES, factor, args.trials, args.seed).ok_or_else(no_layout)?);
        }
        let _ = write!(text, "{factor:>6}");
        loads.iter().for_each(|load| text += &format!(" {:>10.1} %", load * 100.0));
        text += "\n";
        best &= loads.iter().skip(1).all(|other| loads[0] > *other);
        if factor == 8 {
            at_8 = loads[0];
        }
        let of: serde_json::Map<_, _> =
            Scheme::ALL.iter().zip(&loads).map(|(scheme, load)| (scheme.name().to_owned(), json!(load))).collect();
        rows.push(json!({ "factor": factor, "loads": of }));
    }
    let comparison = [Comparison::new("hopscotch at factor 8, load factor in %", AT_8 * 100.0, at_8 * 100.0)];
    text += &format!("\n{}\n", comparison[0].line());
    text += &format!("hopscotch holds most at every factor, as in the paper: {}\n", if best { "yes" } else { "no" });
    text += "RACE has whole groups of three buckets only: 126, 126, 126 and 120 entries\n";
    text += &format!("paper: {SOURCE}, section 3.1.2; the other numbers are in its figure alone\n");
    let json = json!({
        "figure": "3d", "source": SOURCE, "entries": ENTRIES, "trials": args.trials,
        "rows": rows, "comparison": comparison,
    });
    Report::new(&json, text, best && comparison[0].is_near())
}

/// The paper's default (section 5.1).
const SPAN: usize = 64;
const NEIGHBOURHOOD: usize = 8;
/// Figure 19a: spans.
const SPANS: [usize; 7] = [8, 16, 32, 64, 128, 256, 512];
/// Figure 19b: neighbourhoods, and the paper's load factor where the text has it (section 5.4).
const NEIGHBOURHOODS: [(usize, Option<f64>); 4] = [(2, Some(0.377)), (4, None), (8, Some(0.881)), (16, Some(0.998))];

/// Figure 19.
pub(super) fn leaves(args: &Args, watch: Watch<'_>) -> Result<Report, Error> {
    let mut text = format!(
        "CHIME, Figure 19: load factor of a leaf when an insert finds no room, mean of {} leaves\n\n\
         span  neighbourhood   fresh leaf   after splits        paper\n",
        args.trials
    );
    let shapes = SPANS.map(|span| (span, NEIGHBOURHOOD, (span == SPAN).then_some(0.881)));
    let shapes = shapes.into_iter().chain(NEIGHBOURHOODS.map(|(h, paper)| (SPAN, h, paper)));
    let (mut rows, mut comparison) = (Vec::new(), Vec::new());
    for (span, neighbourhood, paper) in shapes {
        watch.check()?;
        let layout = Layout::new(span, neighbourhood, args.seed).ok_or_else(no_layout)?;
        let fresh = leaf_loads(layout, args.trials, args.seed);
        let splits = split_loads(layout, args.trials, args.seed).ok_or_else(no_layout)?;
        let ratio = paper
            .map_or_else(String::new, |paper| format!("{:>6.1} %, {:.2} times that", paper * 100.0, splits / paper));
        let (a, b) = (fresh * 100.0, splits * 100.0);
        let _ = writeln!(text, "{span:>4} {neighbourhood:>14} {a:>10.1} % {b:>12.1} %     {ratio}");
        if let (Some(paper), true) = (paper, rows.len() >= SPANS.len()) {
            let what = format!("load factor in %, span {span}, neighbourhood {neighbourhood}");
            comparison.push(Comparison::new(what, paper * 100.0, b));
        }
        rows.push(json!({
            "span": span, "neighbourhood": neighbourhood, "fresh": fresh, "after_splits": splits, "paper": paper,
        }));
    }
    text += "\nfresh leaf: random keys from empty. after splits: each leaf is split at the median of the full\n\
             neighbourhood, and one of the two nodes, with its holes where the other's keys were, takes keys of its\n\
             range until it is full\n";
    text += &format!("paper: {SOURCE}, section 5.4; the other numbers are in its figure alone\n");
    let holds = comparison.iter().all(Comparison::is_near);
    let json = json!({
        "figure": 19, "source": SOURCE, "trials": args.trials, "rows": rows, "comparison": comparison,
    });
    Report::new(&json, text, holds)
}

/// Key sizes of Figure 16.
const KEY_SIZES: [usize; 6] = [8, 16, 32, 64, 128, 256];
/// How much sibling-based validation saves, at the least and the largest key (section 5.3).
const SAVES: [(usize, f64); 2] = [(8, 1.4), (256, 8.6)];

/// The paper's metadata for each entry (section 4.5): 2 bytes of hop bitmap, 1 of version, 1 for each 63 bytes, and its
/// share of the replica, without and with fence keys. Values have 8 bytes.
fn paper_metadata(key_size: usize) -> [f64; 2] {
    let (key, group) = (key_size as f64, NEIGHBOURHOOD as f64);
    let own = 3.0 + (key + 8.0) / 63.0 + 10.0 / group;
    [own, own + 2.0 * key / group]
}

/// Ours: everything in a leaf but two words for each entry, without and with both fence keys in each replica. Longer
/// keys are in blocks.
fn our_metadata(layout: Layout, key_size: usize) -> [f64; 2] {
    let span = layout.span() as f64;
    let own = (layout.node_len() as f64 - 16.0 * span) / span;
    [own, own + (layout.groups() * 2 * key_size) as f64 / span]
}

/// Figure 16.
pub(super) fn metadata() -> Result<Report, Error> {
    let layout = Layout::new(SPAN, NEIGHBOURHOOD, 0).ok_or_else(no_layout)?;
    let mut text = format!(
        "CHIME, Figure 16: bytes of metadata for each entry; span {SPAN}, neighbourhood {NEIGHBOURHOOD}\n\n\
         key size        sibling-based     replicated fence keys       saved\n\
         {:10} {:>9} {:>9}   {:>11} {:>11} {:>7} {:>7}\n",
        "", "paper", "ours", "paper", "ours", "paper", "ours"
    );
    let (mut rows, mut comparison) = (Vec::new(), Vec::new());
    for key_size in KEY_SIZES {
        let (paper, ours) = (paper_metadata(key_size), our_metadata(layout, key_size));
        let saved = [paper, ours].map(|[sibling, fences]| fences / sibling);
        let _ = writeln!(
            text,
            "{key_size:>8}   {:>9.2} {:>9.2}   {:>11.2} {:>11.2} {:>6.1}x {:>6.1}x",
            paper[0], ours[0], paper[1], ours[1], saved[0], saved[1]
        );
        if let Some((_, stated)) = SAVES.iter().find(|(size, _)| *size == key_size) {
            comparison.push(Comparison::new(format!("saved with keys of {key_size} bytes"), *stated, saved[1]));
        }
        rows.push(json!({ "key_size": key_size, "paper": paper, "ours": ours, "saved": saved }));
    }
    text += "\n";
    comparison.iter().for_each(|comparison| text += &format!("{}\n", comparison.line()));
    text += "ours has 8 bytes of state (check, digest, hop bitmap) for each entry instead of versions, whatever the\n\
             key; keys and values of other sizes than 8 bytes are in key-value blocks\n";
    text += &format!("paper: {SOURCE}, by the formulas of sections 4.2.3 and 4.5; what is saved: section 5.3\n");
    let holds = comparison.iter().all(Comparison::is_near);
    let json = json!({ "figure": 16, "source": SOURCE, "rows": rows, "comparison": comparison });
    Report::new(&json, text, holds)
}

fn no_layout() -> Error {
    Error::Bug("a leaf that cannot be".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_formulas_give_the_papers_savings() {
        for (key_size, stated) in SAVES {
            let [sibling, fences] = paper_metadata(key_size);
            assert!((fences / sibling - stated).abs() < 0.05, "{key_size}: {}", fences / sibling);
        }
        let layout = Layout::new(SPAN, NEIGHBOURHOOD, 0).expect("a layout");
        assert_eq!(our_metadata(layout, 8), [10.0, 12.0]);
    }
}
