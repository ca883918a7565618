//! One page.

use super::Figure;
use std::fmt::{self, Write};

const STYLE: &str = "
:root{color-scheme:light}
body{margin:24px auto;max-width:980px;padding:0 16px;font:14px/1.5 system-ui,sans-serif;color:#1b1f24;background:#fff}
h1{font-size:20px;margin:0 0 8px}
.scroll{overflow-x:auto}
svg{display:block;margin:12px 0}
table{border-collapse:collapse;margin:12px 0;font-variant-numeric:tabular-nums}
th,td{padding:3px 10px;border-bottom:1px solid #d5dbe1;text-align:right;white-space:nowrap}
th:first-child,td:first-child,.t{text-align:left}
.t{white-space:normal}
";

/// Text that is safe between tags. Control characters, which no page can carry, become U+FFFD.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\n' => f.write_char('\n')?,
                other if other.is_control() => f.write_char('\u{fffd}')?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

/// Rows under a head.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    /// Names of the columns.
    pub head: Vec<String>,
    /// The rows.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// As CSV (RFC 4180): what needs quotes gets them.
    #[must_use]
    pub fn csv(&self) -> String {
        let field = |text: &String| match text.contains([',', '"', '\n', '\r']) {
            true => format!("\"{}\"", text.replace('"', "\"\"")),
            false => text.clone(),
        };
        let line = |row: &Vec<String>| row.iter().map(field).collect::<Vec<_>>().join(",") + "\n";
        std::iter::once(&self.head).chain(&self.rows).map(line).collect()
    }
}

/// A page that is being written.
#[derive(Debug)]
pub struct Page {
    html: String,
}

// Writing to a `String` cannot fail, so what `write!` returns is dropped throughout.
impl Page {
    /// Begins a page.
    #[must_use]
    pub fn new(title: &str) -> Self {
        let title = Escaped(title);
        let html = format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\n\
             <style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n"
        );
        Page { html }
    }
    /// A paragraph.
    pub fn paragraph(&mut self, text: &str) {
        let _ = writeln!(self.html, "<p>{}</p>", Escaped(text));
    }
    /// A figure.
    pub fn figure(&mut self, figure: &Figure) -> Result<(), String> {
        let _ = writeln!(self.html, "<div class=\"scroll\">{}</div>", figure.svg()?);
        Ok(())
    }
    /// A table.
    pub fn table(&mut self, table: &Table) {
        self.html.push_str("<div class=\"scroll\"><table>\n");
        for (cell, row) in std::iter::once(("th", &table.head)).chain(table.rows.iter().map(|row| ("td", row))) {
            self.html.push_str("<tr>");
            for text in row {
                // Numbers stand below each other, text begins at the left.
                let class = if cell == "td" && text.parse::<f64>().is_err() { " class=\"t\"" } else { "" };
                let _ = write!(self.html, "<{cell}{class}>{}</{cell}>", Escaped(text));
            }
            self.html.push_str("</tr>\n");
        }
        self.html.push_str("</table></div>\n");
    }
    /// The page.
    #[must_use]
    pub fn finish(mut self) -> String {
        self.html.push_str("</body></html>\n");
        self.html
    }
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn fields_with_commas_and_quotes_are_quoted() {
        let table = Table { head: vec!["a".into(), "b".into()], rows: vec![vec!["1,5".into(), "say \"x\"".into()]] };
        assert_eq!(table.csv(), "a,b\n\"1,5\",\"say \"\"x\"\"\"\n");
    }
}
