//! Draws a history: one self-contained HTML page with an inline SVG, without scripts.
//!
//! Invariants:
//!
//! 1. the page refers to nothing outside itself;
//! 2. every text from the history is escaped, and none is used outside of text;
//! 3. operations of one client that overlap in time are on different rows of its lane, so no bar hides another;
//! 4. the page is bounded: it draws at most [`Options::operations_max`] operations and states how many are left out;
//! 5. the horizontal axis is the order of events, not time: stamps keep their order, and gaps without events have no
//!    width.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};

use crate::check::Report;
use crate::history::{History, Operation};
use crate::text;

/// The settings of a drawing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The page's title.
    pub title: String,
    /// Maximum number of operations to draw. Operations of violations come first, then those nearest to them.
    pub operations_max: usize,
    /// Whether to draw only operations on keys with violations, and malformed scans.
    pub violated_keys_only: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { title: "History".to_owned(), operations_max: 400, violated_keys_only: true }
    }
}

/// Draws a history and highlights the violations of the report.
pub fn html(history: &History, report: &Report, options: &Options) -> String {
    let highlights = Highlights::of(report);
    let chosen = choose(history, report, &highlights, options);
    let picture = Picture::lay_out(history, chosen.drawn);
    let mut page = String::new();
    // Writing to a `String` cannot fail.
    let _ = write_page(&mut page, history, report, options, &highlights, &picture, chosen.left_out);
    page
}

/// The operations to highlight.
#[derive(Default)]
struct Highlights {
    offending: BTreeSet<usize>,
    unplaced: BTreeSet<usize>,
    context: BTreeSet<usize>,
}

impl Highlights {
    fn of(report: &Report) -> Self {
        let mut highlights = Self::default();
        highlights.offending.extend(report.scans.iter().map(|scan| scan.operation));
        for explanation in report.keys.iter().filter_map(|key| key.explanation.as_ref()) {
            highlights.offending.extend(&explanation.operations);
            highlights.unplaced.extend(explanation.unplaced);
            highlights.context.extend(&explanation.context);
        }
        highlights
    }

    fn contains(&self, operation: usize) -> bool {
        self.offending.contains(&operation) || self.context.contains(&operation)
    }

    fn class(&self, index: usize, operation: &Operation) -> &'static str {
        if self.unplaced.contains(&index) {
            "op unplaced"
        } else if self.offending.contains(&index) {
            "op bad"
        } else if self.context.contains(&index) {
            "op context"
        } else if operation.response.is_none() {
            "op pending"
        } else {
            "op"
        }
    }
}

struct Chosen {
    drawn: Vec<usize>,
    left_out: usize,
}

/// Selects the operations to draw: the highlighted ones, and those nearest to them up to the maximum.
fn choose(history: &History, report: &Report, highlights: &Highlights, options: &Options) -> Chosen {
    let operations = history.operations();
    let violated: BTreeSet<&[u8]> = report.keys.iter().map(|key| key.key.as_slice()).collect();
    let wanted = |index: &usize| {
        let on_violated = operations[*index].call.key().is_some_and(|key| violated.contains(key));
        highlights.contains(*index) || !options.violated_keys_only || violated.is_empty() || on_violated
    };
    let mut drawn: Vec<usize> = (0..operations.len()).filter(wanted).collect();
    let centers: Vec<u64> = {
        let highlighted = highlights.offending.iter().filter_map(|&index| operations.get(index));
        let mut centers: Vec<u64> = highlighted.map(|operation| operation.invoked).collect();
        centers.sort_unstable();
        centers
    };
    let distance = |index: usize| {
        let at = operations[index].invoked;
        let after = centers.partition_point(|&center| center < at);
        let neighbours = [after.checked_sub(1), Some(after)];
        let near = neighbours.into_iter().flatten().filter_map(|index| centers.get(index));
        near.map(|center| center.abs_diff(at)).min().unwrap_or(at)
    };
    drawn.sort_by_cached_key(|&index| (!highlights.contains(index), distance(index), index));
    drawn.truncate(options.operations_max);
    drawn.sort_by_key(|&index| (operations[index].invoked, index));
    let left_out = operations.len() - drawn.len();
    Chosen { drawn, left_out }
}

const LANE_LEFT: usize = 96;
const ROW_HEIGHT: usize = 26;
const LANE_GAP: usize = 12;
const AXIS_HEIGHT: usize = 34;
const EVENT_WIDTH: usize = 22;
/// Pixels of a label's character, approximately. A bar's label is cut to the bar's width.
const CHARACTER_WIDTH: usize = 7;

struct Bar {
    operation: usize,
    x: usize,
    width: usize,
    y: usize,
}

struct Lane {
    client: u64,
    y: usize,
    height: usize,
}

struct Picture {
    bars: Vec<Bar>,
    lanes: Vec<Lane>,
    /// Stamps and their positions.
    ticks: Vec<(u64, usize)>,
    width: usize,
    height: usize,
}

impl Picture {
    /// `drawn` is ordered by invocation.
    fn lay_out(history: &History, drawn: Vec<usize>) -> Self {
        let operations = history.operations();
        let interval = |index: usize| {
            let operation = &operations[index];
            (operation.invoked, operation.response.as_ref().map(|response| response.at))
        };
        let mut events: Vec<(u64, bool)> = drawn
            .iter()
            .flat_map(|&index| {
                let (invoked, responded) = interval(index);
                [Some((invoked, false)), responded.map(|at| (at, true))].into_iter().flatten()
            })
            .collect();
        events.sort_unstable();
        events.dedup();
        let x_of =
            |event: (u64, bool)| LANE_LEFT + EVENT_WIDTH * events.binary_search(&event).unwrap_or_else(|rank| rank);
        let right = LANE_LEFT + EVENT_WIDTH * (events.len() + 1);
        let mut by_client: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for &index in &drawn {
            by_client.entry(operations[index].client).or_default().push(index);
        }
        let (mut bars, mut lanes) = (Vec::new(), Vec::new());
        let mut y = AXIS_HEIGHT;
        for (client, indices) in by_client {
            // By row: the end of its last bar.
            let mut rows: Vec<usize> = Vec::new();
            for operation in indices {
                let (invoked, responded) = interval(operation);
                let x = x_of((invoked, false));
                let end = responded.map_or(right, |at| x_of((at, true)));
                let row = rows.iter().position(|&busy_until| busy_until <= x);
                let row = row.unwrap_or_else(|| {
                    rows.push(0);
                    rows.len() - 1
                });
                rows[row] = end;
                // A gap separates adjacent bars; a bar is wide enough for a mouse pointer.
                let width = (end - x).saturating_sub(2).max(4);
                bars.push(Bar { operation, x, width, y: y + row * ROW_HEIGHT });
            }
            let height = rows.len() * ROW_HEIGHT;
            lanes.push(Lane { client, y, height });
            y += height + LANE_GAP;
        }
        let mut ticks: Vec<(u64, usize)> = events.iter().map(|&event| (event.0, x_of(event))).collect();
        ticks.dedup_by_key(|tick| tick.0);
        Self { bars, lanes, ticks, width: right + 16, height: y }
    }
}

const STYLE: &str = "
:root{color-scheme:light dark;--fg:#1b1f24;--bg:#fff;--soft:#eef1f4;--line:#c9d1d9;--op:#c7d7ea;--opl:#5b7ea8;
--bad:#f6b9b3;--badl:#b3261e;--ctx:#f5dfa8;--ctxl:#8a6a0a}
@media(prefers-color-scheme:dark){:root{--fg:#e3e7eb;--bg:#14171a;--soft:#1e2328;--line:#3a424a;--op:#2b3f57;--opl:#7fa3cc;
--bad:#6b2420;--badl:#ff8a80;--ctx:#55430f;--ctxl:#e3bd58}}
body{margin:24px;font:14px/1.45 system-ui,sans-serif;color:var(--fg);background:var(--bg)}
h1{font-size:20px;margin:0 0 4px}
pre{background:var(--soft);padding:12px;overflow-x:auto;font:12px/1.35 ui-monospace,monospace}
.scroll{overflow-x:auto;border:1px solid var(--line);margin:12px 0}
svg{display:block;font:11px ui-monospace,monospace}
svg text{fill:var(--fg)}
.lane{fill:var(--soft)} .tick{stroke:var(--line)}
.op rect{fill:var(--op);stroke:var(--opl)}
.pending rect{stroke-dasharray:4 3;fill-opacity:.5}
.bad rect{fill:var(--bad);stroke:var(--badl)}
.unplaced rect{fill:var(--bad);stroke:var(--badl);stroke-width:3}
.context rect{fill:var(--ctx);stroke:var(--ctxl)}
.key span{display:inline-block;padding:0 8px;margin-right:8px;border:1px solid}
.key .b{background:var(--bad);border-color:var(--badl)} .key .u{background:var(--bad);border:3px solid var(--badl)}
.key .c{background:var(--ctx);border-color:var(--ctxl)} .key .o{background:var(--op);border-color:var(--opl)}
.key .p{border-style:dashed;border-color:var(--opl)}
";

fn write_page(
    page: &mut String,
    history: &History,
    report: &Report,
    options: &Options,
    highlights: &Highlights,
    picture: &Picture,
    left_out: usize,
) -> fmt::Result {
    let title = Escaped(&options.title);
    write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\n\
         <style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n\
         <p>{} of {} operations drawn, {left_out} left out. The axis is the order of events, not to scale. \
         Point at a bar for the whole operation.</p>\n\
         <p class=\"key\"><span class=\"u\">cannot be placed</span><span class=\"b\">contradicts it</span>\
         <span class=\"c\">context</span><span class=\"o\">other</span><span class=\"p\">pending</span></p>\n",
        picture.bars.len(),
        history.operations().len(),
    )?;
    write_svg(page, history, highlights, picture)?;
    write!(page, "<pre>{}</pre>\n</body></html>\n", Escaped(&report.to_string()))
}

fn write_svg(page: &mut String, history: &History, highlights: &Highlights, picture: &Picture) -> fmt::Result {
    let Picture { width, height, .. } = *picture;
    writeln!(
        page,
        "<div class=\"scroll\"><svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\">"
    )?;
    for lane in &picture.lanes {
        let (top, tall) = (lane.y - 2, lane.height);
        writeln!(page, "<rect class=\"lane\" x=\"0\" y=\"{top}\" width=\"{width}\" height=\"{tall}\"/>")?;
        writeln!(page, "<text x=\"8\" y=\"{}\">client {}</text>", lane.y + 15, lane.client)?;
    }
    let mut labelled_until = 0;
    for &(stamp, x) in &picture.ticks {
        writeln!(page, "<path class=\"tick\" d=\"M{x} 22V{height}\"/>")?;
        // A label that would overlap the one before it is left out.
        if x >= labelled_until {
            writeln!(page, "<text x=\"{x}\" y=\"14\">{stamp}</text>")?;
            labelled_until = x + (stamp.to_string().len() + 1) * CHARACTER_WIDTH;
        }
    }
    let keys: BTreeSet<Option<&[u8]>> =
        picture.bars.iter().map(|bar| history.operations()[bar.operation].call.key()).collect();
    for bar in &picture.bars {
        let operation = &history.operations()[bar.operation];
        let class = highlights.class(bar.operation, operation);
        let Bar { x, y, width, .. } = *bar;
        let high = ROW_HEIGHT - 6;
        let responded = operation.response.as_ref().map_or("pending".to_owned(), |r| r.at.to_string());
        let full = text::operation(operation, true);
        let tip = format!(
            "operation {}, client {}: {full}\n{} – {responded}",
            bar.operation, operation.client, operation.invoked
        );
        // To save width, only the tooltips name the key if all bars have the same key.
        let label = text::operation(operation, keys.len() > 1);
        let label: String = label.chars().take(width.saturating_sub(6) / CHARACTER_WIDTH).collect();
        writeln!(
            page,
            "<g class=\"{class}\"><title>{}</title><rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{high}\" rx=\"3\"/>\
             <text x=\"{}\" y=\"{}\">{}</text></g>",
            Escaped(&tip),
            x + 4,
            y + 14,
            Escaped(&label),
        )?;
    }
    page.push_str("</svg></div>\n");
    Ok(())
}

/// Text that is safe between tags and in quoted attributes. Control characters, which XML cannot carry, become U+FFFD.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\n' => f.write_char('\n')?,
                other if other.is_control() => f.write_char('\u{fffd}')?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}
