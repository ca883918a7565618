//! `farindex index create|kinds|list|stat|partitions|drop`.

use crate::entry::hex;
use crate::escape::escape;
use crate::exit::{self, Failure};
use crate::kind::{Settings, info_json, info_text, kinds, usual};
use crate::output::{Json, bytes};
use crate::pool_arg::Place;
use clap::Subcommand;
use clap::builder::PossibleValuesParser;
use farindex::{IndexConfig, IndexInfo, Inspection, PartitionInfo, Session};
use farindex::{KINDS, Kind};
use serde_json::{Value, json};

/// Create and examine the named indexes of a pool
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create an empty index
    Create {
        #[command(flatten)]
        name: Named,
        #[command(flatten)]
        new: New,
        #[command(flatten)]
        json: Json,
    },
    /// List the kinds of index: whether their keys are ordered (and can be scanned), and their settings with the
    /// defaults
    Kinds {
        #[command(flatten)]
        json: Json,
    },
    /// List the indexes of a pool
    List {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        json: Json,
    },
    /// Count an index's entries and memory by walking it
    Stat {
        #[command(flatten)]
        name: Named,
        #[command(flatten)]
        json: Json,
    },
    /// List the ranges of keys of an index that is divided among compute nodes (kind dex), and their owners
    Partitions {
        #[command(flatten)]
        name: Named,
        #[command(flatten)]
        json: Json,
    },
    /// Drop an index: its memory is freed once no client uses it
    Drop {
        #[command(flatten)]
        name: Named,
        #[command(flatten)]
        json: Json,
    },
}

/// An index of a pool.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Named {
    #[command(flatten)]
    pub(crate) place: Place,
    /// Name of the index, 1 to 72 bytes
    #[arg(value_name = "INDEX")]
    pub(crate) name: String,
}

impl Named {
    /// Opens the index in a session of its own.
    pub(crate) fn open(&self) -> Result<farindex::Index, Failure> {
        Ok(self.place.session()?.open_index(&self.name)?)
    }
}

/// What to create.
#[derive(Debug, clap::Args)]
pub(crate) struct New {
    /// Kind of index
    #[arg(long, default_value = IndexConfig::default().kind(), value_parser = PossibleValuesParser::new(kinds()))]
    kind: String,
    #[command(flatten)]
    settings: Settings,
}

impl New {
    pub(crate) fn config(&self) -> Result<IndexConfig, Failure> {
        self.settings.of(&self.kind)
    }
}

fn info_of(session: &Session, name: &str) -> Result<Value, Failure> {
    let indexes = session.indexes()?;
    Ok(indexes.iter().find(|info| info.name == name && !info.dropping).map_or(Value::Null, info_json))
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    match &args.command {
        Command::Create { name: Named { place, name }, new, json } => {
            let config = new.config()?;
            let session = place.session()?;
            session.create_index(name, config)?;
            json.give(&info_of(&session, name)?, || format!("created index {name:?}\n"))?;
        }
        Command::Kinds { json } => {
            let object = |kind: &Kind| {
                let mut object = serde_json::to_value(IndexConfig::of_kind(kind.name)?).unwrap_or_default();
                object["ordered"] = kind.ordered.into();
                Some(object)
            };
            let all: Vec<Value> = KINDS.iter().filter_map(object).collect();
            let line = |kind: &Kind| {
                let order = if kind.ordered { "ordered" } else { "unordered" };
                format!("{}\t{order}\t{}\t{}\n", kind.name, usual(kind.name), kind.about)
            };
            json.give(&json!({ "kinds": all }), || KINDS.iter().map(line).collect())?;
        }
        Command::List { place, json } => {
            let found = Inspection::of(&place.url()?)?.indexes;
            let line = |info: &IndexInfo| format!("{}\t{}\n", info.name, info_text(info));
            let all: Vec<_> = found.iter().map(info_json).collect();
            json.give(&json!({ "indexes": all }), || found.iter().map(line).collect())?;
        }
        Command::Stat { name, json } => stat(name, json)?,
        Command::Partitions { name, json } => partitions(name, json)?,
        Command::Drop { name: Named { place, name }, json } => {
            place.session()?.drop_index(name)?;
            json.give(&json!({ "dropped": name }), || format!("dropped index {name:?}\n"))?;
        }
    }
    Ok(exit::OK)
}

/// Keys are escaped as in a dump; a partition ends where the next one begins.
fn partitions(name: &Named, json: &Json) -> Result<(), Failure> {
    let partitions = name.open()?.partitions()?;
    let text = |key: &[u8]| {
        let mut out = Vec::new();
        escape(key, &mut out);
        String::from_utf8_lossy(&out).into_owned()
    };
    let object = |part: &PartitionInfo| {
        let high = part.high.as_deref().map(hex);
        json!({ "low_hex": hex(&part.low), "high_hex": high, "owner": part.owner })
    };
    let all: Vec<_> = partitions.iter().map(object).collect();
    json.give(&json!({ "index": name.name, "partitions": all }), || {
        let line = |part: &PartitionInfo| {
            let owner = part.owner.as_deref().unwrap_or("nobody");
            let high = part.high.as_deref().map(text).unwrap_or_default();
            format!("{}\t{high}\t{owner}\n", text(&part.low))
        };
        partitions.iter().map(line).collect()
    })
}

fn stat(name: &Named, json: &Json) -> Result<(), Failure> {
    let index = name.open()?;
    let audit = index.audit()?;
    let info = info_of(index.session(), &name.name)?;
    let cache = index.cache_bytes();
    let result = json!({ "index": info, "entries": audit.entries, "cache_bytes": cache, "audit": audit });
    json.give(&result, || {
        let mut figures = vec![("entries".to_owned(), audit.entries.to_string())];
        figures.extend(audit.figures.iter().map(|(name, count)| (name.replace('_', " "), count.to_string())));
        figures.push(("resizes".to_owned(), audit.resizes.to_string()));
        for (name, count) in
            [("index memory", audit.index_bytes), ("block memory", audit.block_bytes), ("client cache", cache)]
        {
            figures.push((name.to_owned(), format!("{} ({count} bytes)", bytes(count))));
        }
        figures.iter().map(|(name, figure)| format!("{name:<17} {figure}\n")).collect()
    })
}
