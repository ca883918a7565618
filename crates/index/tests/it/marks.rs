//! Which rare paths there are: the marks in the sources themselves, so that none can be forgotten.

use farindex_testkit::Totals;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Seeds from which on every mark must have been passed.
pub(crate) const MANY: u64 = 20_000;

fn collect(dir: &Path, marks: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).expect("the sources are there") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            collect(&path, marks);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("readable");
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            let found = code.flat_map(|line| line.split("mark!(\"").skip(1));
            marks.extend(found.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
        }
    }
}

/// Every mark in these folders of sources, from that of the crate of the indexes on.
pub(crate) fn of(folders: &[&str]) -> BTreeSet<String> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut marks = BTreeSet::new();
    for folder in folders {
        let before = marks.len();
        collect(&here.join(folder), &mut marks);
        assert!(marks.len() > before, "no marks in {folder}: they are not where they were");
    }
    marks
}

/// Asserts that these marks were passed: all if the run was long, otherwise those that are `common`.
#[track_caller]
pub(crate) fn assert_passed(totals: &Totals, all: &BTreeSet<String>, common: &[&str]) {
    let unknown: Vec<_> = common.iter().filter(|mark| !all.contains(**mark)).collect();
    assert!(unknown.is_empty(), "no such marks: {unknown:?}");
    if totals.seeds >= MANY {
        totals.assert_marks(all);
    } else if totals.seeds >= 150 {
        totals.assert_marks(common);
    }
}
