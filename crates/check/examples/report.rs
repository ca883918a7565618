//! Checks a recorded history and draws it.
//!
//! `cargo run -p farindex-check --example report -- history.jsonl [timeline.html]`
//!
//! Ends with an error if the history breaks a promise or could not be decided.

use std::error::Error;
use std::fs::File;
use std::io::BufReader;

use farindex_check::timeline::{Options, html};
use farindex_check::{Limits, Verdict, check, format};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let input = arguments.next().ok_or("usage: report history.jsonl [timeline.html]")?;
    let history = format::read(BufReader::new(File::open(&input)?))?;
    let report = check(&history, &Limits::default());
    println!("{report}");
    if let Some(output) = arguments.next() {
        let options = Options { title: input, ..Options::default() };
        std::fs::write(output, html(&history, &report, &options))?;
    }
    match report.verdict {
        Verdict::Ok => Ok(()),
        Verdict::Violation => Err("the history breaks a promise".into()),
        Verdict::Unknown => Err("the history could not be decided within the limits".into()),
    }
}
