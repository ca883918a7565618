//! Formats operations and explanations as text.
//!
//! Invariants:
//!
//! 1. a byte string is shown unambiguously: quoted text with escapes, or `0x` and digits; a shortened one states how
//!    many bytes are missing;
//! 2. a timeline's columns follow the order of events, not time: equal stamps share a column pair, and an interval
//!    looks longer than another only if more happens during it.

use std::fmt;

use crate::format;
use crate::history::{Call, History, Operation, Outcome};
use crate::map::{Effect, KeyOp};
use crate::model::Entry;
use crate::promise::Promise;
use crate::scan;

/// Longest text of a byte string, in characters.
const BYTES_SHOWN_MAX: usize = 32;
/// Widest timeline, in columns.
const COLUMNS_MAX: usize = 72;

/// Formats a byte string.
pub(crate) fn bytes(bytes: &[u8]) -> String {
    let (text, rest) = match format::printable(bytes) {
        Some(text) => {
            let shown: String = text.chars().take(BYTES_SHOWN_MAX).collect();
            let rest = bytes.len() - shown.len();
            (format!("{shown:?}"), rest)
        }
        None => {
            let shown = &bytes[..bytes.len().min(BYTES_SHOWN_MAX / 2)];
            (format!("0x{}", format::hex(shown)), bytes.len() - shown.len())
        }
    };
    if rest == 0 { text } else { format!("{text}… (+{rest} bytes)") }
}

/// Formats a call, with or without its key.
pub(crate) fn call(call: &Call, with_key: bool) -> String {
    let key = call.key().filter(|_| with_key).map(bytes);
    let value = call.value().map(|value| match call.expected() {
        Some(_) => format!("by {}", bytes(value)),
        None => bytes(value),
    });
    let mut text = call.name().to_owned();
    for part in [key, call.expected().map(bytes), value].into_iter().flatten() {
        text.push(' ');
        text.push_str(&part);
    }
    if let Call::Scan { from, to, limit } = call {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let (open, from) = match from {
            Included(key) => ('[', bytes(key)),
            Excluded(key) => ('(', bytes(key)),
            Unbounded => ('(', "-∞".to_owned()),
        };
        let (to, close) = match to {
            Included(key) => (bytes(key), ']'),
            Excluded(key) => (bytes(key), ')'),
            Unbounded => ("∞".to_owned(), ')'),
        };
        text.push_str(&format!(" {open}{from}, {to}{close}"));
        if let Some(limit) = limit {
            text.push_str(&format!(" limit {limit}"));
        }
    }
    text
}

/// Formats an outcome.
pub(crate) fn outcome(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Value(Some(value)) => bytes(value),
        Outcome::Value(None) => "nothing".to_owned(),
        Outcome::Pairs(pairs) => format!("{} pairs", pairs.len()),
        other => other.name().to_owned(),
    }
}

/// Formats a call, its outcome and its group.
pub(crate) fn operation(operation: &Operation, with_key: bool) -> String {
    let outcome = match &operation.response {
        Some(response) => self::outcome(&response.outcome),
        None => "?".to_owned(),
    };
    let group = operation.group.map(|group| format!(", group {group}")).unwrap_or_default();
    format!("{} → {outcome}{group}", call(&operation.call, with_key))
}

/// The contents of an explanation. `shown`, `context`, `longest` and `unplaced` are positions in `entries`.
pub(crate) struct View<'a> {
    pub(crate) history: &'a History,
    pub(crate) key: &'a [u8],
    pub(crate) promise: Promise,
    pub(crate) entries: &'a [Entry<KeyOp>],
    pub(crate) shown: &'a [usize],
    pub(crate) context: &'a [usize],
    pub(crate) longest: &'a [usize],
    pub(crate) unplaced: Option<usize>,
    pub(crate) irrelevant_writes: usize,
    pub(crate) prefix: usize,
}

impl View<'_> {
    fn source(&self, index: usize) -> &Operation {
        &self.history.operations()[self.entries[index].source]
    }

    /// Describes an entry, without the key.
    fn describe(&self, index: usize) -> String {
        let source = self.source(index);
        if !self.entries[index].from_scan {
            return operation(source, false);
        }
        let mut values = scan::pairs(source).iter().filter(|(key, _)| key == self.key);
        let seen = values.next().map_or("nothing".to_owned(), |(_, value)| bytes(value));
        format!("scan saw {seen}")
    }

    /// The interval in the history. A relaxed write is shown with its response, although the argument does not use it.
    fn interval(&self, index: usize) -> (u64, Option<u64>) {
        let source = self.source(index);
        (source.invoked, source.response.as_ref().map(|response| response.at))
    }

    fn rows(&self) -> Vec<usize> {
        let mut rows: Vec<usize> = self.shown.iter().chain(self.context).copied().collect();
        rows.sort_by_key(|&index| self.interval(index));
        rows
    }

    fn write_timeline(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.rows();
        let columns = Columns::of(rows.iter().map(|&index| self.interval(index)));
        let labels: Vec<[String; 3]> = rows
            .iter()
            .map(|&index| {
                let (invoked, responded) = self.interval(index);
                let responded = responded.map_or("pending".to_owned(), |at| at.to_string());
                let client = self.source(index).client.to_string();
                [client, self.describe(index), format!("{invoked}–{responded}")]
            })
            .collect();
        let width = |column: usize, title: &str| {
            let longest = labels.iter().map(|label| label[column].chars().count()).max();
            longest.unwrap_or(0).max(title.len())
        };
        let (client, what, when) = (width(0, "client"), width(1, "operation"), width(2, "interval"));
        let title = ["client", "operation", "interval"];
        writeln!(f, "  {:>client$}  {:what$}  {:when$}  order of events", title[0], title[1], title[2])?;
        for (&index, label) in rows.iter().zip(&labels) {
            let [a, b, c] = label;
            let bar = columns.bar(self.interval(index));
            let note = if Some(index) == self.unplaced {
                "  ✗"
            } else if self.context.contains(&index) {
                "  (context)"
            } else {
                ""
            };
            writeln!(f, "  {a:>client$}  {b:what$}  {c:when$}  {bar}{note}")?;
        }
        Ok(())
    }

    fn write_longest(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.longest.is_empty() {
            writeln!(f, "  none of them can be first while the key is absent")?;
        } else {
            writeln!(f, "  longest order that explains its outcomes:")?;
        }
        let mut holds = "nothing".to_owned();
        for (number, &index) in self.longest.iter().enumerate() {
            match self.entries[index].op.effect {
                Effect::Keep => {}
                Effect::Clear => holds = "nothing".to_owned(),
                Effect::Set(_) => {
                    holds = match self.source(index).call.value() {
                        Some(value) => bytes(value),
                        None => continue,
                    }
                }
            }
            let client = self.source(index).client;
            let what = self.describe(index);
            writeln!(f, "  {:>3}. client {client}: {what}; the key now holds {holds}", number + 1)?;
        }
        if let Some(index) = self.unplaced {
            let client = self.source(index).client;
            writeln!(f, "    ✗ client {client}: {} cannot be placed", self.describe(index))?;
        }
        Ok(())
    }
}

impl fmt::Display for View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "key {}: {}", bytes(self.key), self.promise)?;
        let (shown, prefix) = (self.shown.len(), self.prefix);
        write!(f, "  {shown} of the first {prefix} operations on the key cannot all be true")?;
        match self.irrelevant_writes {
            0 => writeln!(f, ":")?,
            count => {
                writeln!(f, ",\n  whether or not the other {count} writes take effect, and however late they do:")?
            }
        }
        writeln!(f)?;
        self.write_timeline(f)?;
        writeln!(f)?;
        self.write_longest(f)
    }
}

/// The columns of a timeline: event stamps in order.
struct Columns {
    /// Distinct events in order: stamp, and whether it is a response (invocations first at equal stamps).
    events: Vec<(u64, bool)>,
    width: usize,
}

impl Columns {
    fn of(intervals: impl Iterator<Item = (u64, Option<u64>)>) -> Self {
        let mut events: Vec<(u64, bool)> = intervals
            .flat_map(|(invoked, responded)| {
                [Some((invoked, false)), responded.map(|at| (at, true))].into_iter().flatten()
            })
            .collect();
        events.sort_unstable();
        events.dedup();
        let width = (events.len() * 3).clamp(4, COLUMNS_MAX);
        Self { events, width }
    }

    fn column(&self, event: (u64, bool)) -> usize {
        let rank = self.events.binary_search(&event).unwrap_or_else(|rank| rank);
        rank * self.width / self.events.len().max(1)
    }

    fn bar(&self, (invoked, responded): (u64, Option<u64>)) -> String {
        let start = self.column((invoked, false));
        let (end, cap) = match responded {
            Some(at) => (self.column((at, true)).max(start + 1), '┤'),
            None => (self.width, '⇢'),
        };
        let mut bar = " ".repeat(start);
        bar.push('├');
        bar.extend(std::iter::repeat_n('─', (end - start).saturating_sub(1)));
        bar.push(cap);
        // Notes are aligned behind the widest bar.
        let drawn = end + 1;
        bar.extend(std::iter::repeat_n(' ', (self.width + 1).saturating_sub(drawn)));
        bar
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_shows_byte_strings_unambiguously() {
        assert_eq!(bytes(b"a\"b"), "\"a\\\"b\"");
        assert_eq!(bytes(b"\x00\xff"), "0x00ff");
        assert_eq!(bytes("é".repeat(40).as_bytes()), format!("\"{}\"… (+16 bytes)", "é".repeat(32)));
    }

    #[test]
    fn timeline_bars_keep_the_order_of_events() {
        let columns = Columns::of([(1, Some(3)), (2, None)].into_iter());
        assert_eq!(columns.bar((1, Some(3))), "├─────┤   ");
        assert_eq!(columns.bar((2, None)), "   ├─────⇢");
    }
}
