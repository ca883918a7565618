//! Progress bars: on standard error, and only where a person looks at it.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;

/// A bar, or nothing.
pub(crate) fn bar(wanted: Option<bool>, template: &str) -> Option<ProgressBar> {
    if !wanted.unwrap_or_else(|| std::io::stderr().is_terminal()) {
        return None;
    }
    let style = ProgressStyle::with_template(template).ok()?.progress_chars("=> ");
    Some(ProgressBar::new(0).with_style(style))
}
