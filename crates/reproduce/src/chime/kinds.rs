//! Which kinds are compared, and their settings.
//!
//! Kinds and settings are named as text, as on the command line, so a kind that this build does not have is an error of
//! the figure.

use super::Args;
use super::paper::SPAN;
use crate::report::Error;
use farindex::{IndexConfig, KINDS};
use serde_json::{Value, json};

/// Enough for the inner nodes of a hundred million keys.
const ENOUGH: u64 = 1 << 30;

/// The settings of a kind with some changes; the name of each change has to be a setting of the kind.
pub(crate) fn config(kind: &str, changes: &Value) -> Result<IndexConfig, Error> {
    let usual = IndexConfig::of_kind(kind).ok_or_else(|| {
        let known: Vec<_> = KINDS.iter().map(|kind| kind.name).collect();
        Error::Usage(format!("unknown kind of index {kind:?}: there are {}", known.join(", ")))
    })?;
    let bad = |error: serde_json::Error| Error::Bug(format!("settings of {kind}: {error}"));
    let mut settings = serde_json::to_value(usual).map_err(bad)?;
    for (name, value) in changes.as_object().into_iter().flatten() {
        match settings.get_mut(name) {
            Some(setting) => *setting = value.clone(),
            None => return Err(Error::Bug(format!("{kind} has no setting {name:?}"))),
        }
    }
    serde_json::from_value(settings).map_err(bad)
}

/// Children of an inner node, at most.
const MOST: usize = 256;

/// A tree whose inner nodes and leaves have this span. Unless bytes are given, its cache holds every inner node.
pub(super) fn of_span(kind: &str, span: usize, cache_bytes: Option<u64>) -> Result<IndexConfig, Error> {
    let cache_bytes = cache_bytes.unwrap_or(ENOUGH);
    config(kind, &json!({ "leaf_span": span, "inner_span": span.min(MOST), "cache_bytes": cache_bytes }))
}

/// The kinds that were asked for, as the paper configures them: 100 MB of cache on each compute node. `kind:setting=value`
/// changes another setting.
pub(super) fn compared(args: &Args) -> Result<Vec<IndexConfig>, Error> {
    let usual = json!({ "leaf_span": SPAN, "inner_span": SPAN, "cache_bytes": 100_000_000 });
    let of = |kind: &String| {
        let (kind, changed) = kind.split_once(':').unwrap_or((kind, ""));
        let mut changes = usual.clone();
        if let Some((name, value)) = changed.split_once('=') {
            let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
            changes[name] = value;
        }
        config(kind, &changes)
    };
    args.kinds.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_kinds_and_settings_are_errors() {
        let unknown = config("btree", &json!({})).expect_err("an unknown kind").to_string();
        assert!(unknown.contains("unknown kind of index \"btree\"") && unknown.contains("sherman"), "{unknown}");
        let setting = config("sherman", &json!({ "spam": 1 })).expect_err("an unknown setting").to_string();
        assert!(setting.contains("no setting \"spam\""), "{setting}");
    }

    #[test]
    fn a_setting_is_changed_on_the_command_line() {
        let args = Args::example(&["--figure", "12", "--index", "chime,chime:hand_over=false"]);
        let settings =
            compared(&args).expect("settings").into_iter().map(|config| serde_json::to_value(config).expect("JSON"));
        let hand_over: Vec<_> = settings.map(|settings| settings["hand_over"].clone()).collect();
        assert_eq!(hand_over, [json!(true), json!(false)]);
    }

    #[test]
    fn a_change_replaces_one_setting() {
        let usual = serde_json::to_value(IndexConfig::of_kind("sherman")).expect("JSON");
        let changed = serde_json::to_value(of_span("sherman", 32, None).expect("settings")).expect("JSON");
        assert_eq!((&changed["leaf_span"], &changed["inner_span"]), (&json!(32), &json!(32)));
        assert_ne!(changed["leaf_span"], usual["leaf_span"]);
    }
}
