//! Kinds of index by name, and their settings by `--set`.

use crate::exit::{self, Failure};
use clap::builder::PossibleValue;
use farindex::KINDS;
use farindex::{IndexConfig, IndexInfo};
use serde_json::Value;

/// Every kind, as a flag takes it.
pub(crate) fn kinds() -> Vec<PossibleValue> {
    KINDS.iter().map(|kind| PossibleValue::new(kind.name).help(kind.about)).collect()
}

/// Settings that differ from the kind's own.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Settings {
    /// A setting of the index, such as threshold=0.5 (may be repeated); `farindex index kinds` lists them
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = pair)]
    settings: Vec<(String, String)>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("it takes NAME=VALUE, such as threshold=0.5".to_owned()),
    }
}

impl Settings {
    /// Was anything set?
    pub(crate) fn is_empty(&self) -> bool {
        self.settings.is_empty()
    }

    /// The kind's settings with these changes.
    pub(crate) fn of(&self, kind: &str) -> Result<IndexConfig, Failure> {
        let usual = IndexConfig::of_kind(kind).ok_or_else(|| {
            Failure::usage(format!(
                "no index of kind {kind:?}: there are {}",
                KINDS.iter().map(|kind| kind.name).collect::<Vec<_>>().join(", ")
            ))
        })?;
        let mut all = json(&usual);
        for (name, text) in &self.settings {
            let known: Vec<_> = names(&all).collect();
            if !known.contains(&name.as_str()) {
                let known = known.join(", ");
                return Err(Failure::usage(format!("{kind} has no setting {name:?}; it has {known}")));
            }
            let value = match &all[name.as_str()] {
                Value::String(_) => Ok(Value::from(text.as_str())),
                _ => text.parse::<Value>(),
            };
            let bad = |why: String| Failure::usage(format!("--set {name}={text}: {why}"));
            all[name.as_str()] = value.map_err(|_| bad("neither a number nor true or false".to_owned()))?;
            // One at a time, so that the error names the right one.
            serde_json::from_value::<IndexConfig>(all.clone()).map_err(|error| bad(error.to_string()))?;
        }
        serde_json::from_value(all).map_err(|error| Failure::new(exit::BUG, error.to_string()))
    }
}

/// The settings of a kind, and its name as `kind`.
fn json(config: &IndexConfig) -> Value {
    serde_json::to_value(config).unwrap_or_default()
}

fn names(settings: &Value) -> impl Iterator<Item = &str> {
    settings.as_object().into_iter().flat_map(|all| all.keys()).map(String::as_str).filter(|name| *name != "kind")
}

/// A kind's settings, as `--set` takes them.
pub(crate) fn usual(kind: &str) -> String {
    IndexConfig::of_kind(kind).map(|config| text(&json(&config))).unwrap_or_default()
}

fn text(settings: &Value) -> String {
    let value = |name: &str| match &settings[name] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    names(settings).map(|name| format!("{name}={}", value(name))).collect::<Vec<_>>().join(" ")
}

/// What the catalog says of an index, in words.
pub(crate) fn info_text(info: &IndexInfo) -> String {
    let dropping = if info.dropping { ", being dropped" } else { "" };
    match IndexConfig::of_info(info) {
        Some(config) => format!("{} {}{dropping}", config.kind(), text(&json(&config))),
        None => format!("{}, format version {}{dropping}", farindex_index::kind_name(info.kind), info.version),
    }
}

/// The same for machines.
pub(crate) fn info_json(info: &IndexInfo) -> Value {
    let settings = IndexConfig::of_info(info).map(|config| {
        let mut settings = json(&config);
        settings.as_object_mut().and_then(|all| all.remove("kind"));
        settings
    });
    serde_json::json!({
        "name": info.name,
        "kind": farindex_index::kind_name(info.kind),
        "format_version": info.version,
        "uid": info.uid,
        "dropping": info.dropping,
        "settings": settings,
    })
}
