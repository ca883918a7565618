//! `farindex index create|list|stat|drop`.

use crate::exit::{self, Failure};
use crate::output::{Json, bytes};
use crate::place::Place;
use clap::{Subcommand, ValueEnum};
use farindex::shard::{Config, KIND, Variant};
use farindex::{IndexConfig, IndexInfo, Inspection, Session};
use serde_json::{Value, json};

/// Make and examine the named indexes of a pool
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make an empty index
    Create {
        #[command(flatten)]
        name: Named,
        #[command(flatten)]
        settings: Settings,
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
    /// Drop an index: its memory goes back once nobody uses it
    Drop {
        #[command(flatten)]
        name: Named,
        #[command(flatten)]
        json: Json,
    },
}

/// An index of a pool.
#[derive(Debug, clap::Args)]
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

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Kind {
    /// Three-level hash table with ordered CAS and lazy resizing
    Shard,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Protocol {
    /// Linearizable
    Repaired,
    /// As in the paper, which loses a race: for checkers alone
    Published,
}

/// Settings of a new index.
#[derive(Debug, clap::Args)]
pub(crate) struct Settings {
    /// Kind of index
    #[arg(long, value_enum, default_value = "shard")]
    kind: Kind,
    /// A new table has 2^B level-1 buckets of 64 slots on each memory node, 0 to 20
    #[arg(long, value_name = "B", default_value_t = Config::default().initial_bits)]
    initial_bits: u64,
    /// Share of level-1 slots in use at which a table grows, 0.05 to 1
    #[arg(long, value_name = "SHARE", default_value_t = Config::default().threshold)]
    threshold: f64,
    /// How rarely workers synchronize with the root, 0 to 100
    #[arg(long, value_name = "ALPHA", default_value_t = Config::default().alpha)]
    alpha: f64,
    /// Which protocol
    #[arg(long, value_enum, default_value = "repaired")]
    variant: Protocol,
}

impl Settings {
    pub(crate) fn config(&self) -> IndexConfig {
        let variant = match self.variant {
            Protocol::Repaired => Variant::Repaired,
            Protocol::Published => Variant::Published,
        };
        let Kind::Shard = self.kind;
        let Settings { initial_bits, threshold, alpha, .. } = *self;
        IndexConfig::Shard(Config { initial_bits, threshold, alpha, variant })
    }
}

/// What the catalog says, in words.
pub(crate) fn kind_text(info: &IndexInfo) -> String {
    let dropping = if info.dropping { ", being dropped" } else { "" };
    match Config::decode(&info.config) {
        Ok(config) if info.kind == KIND => {
            let Config { initial_bits, threshold, alpha, variant } = config;
            let variant = if variant == Variant::Published { ", as published" } else { "" };
            format!("shard, {initial_bits} initial bits, threshold {threshold}, alpha {alpha}{variant}{dropping}")
        }
        _ => format!("kind {}, format version {}{dropping}", info.kind, info.version),
    }
}

pub(crate) fn info_json(info: &IndexInfo) -> Value {
    let settings = match Config::decode(&info.config) {
        Ok(config) if info.kind == KIND => json!({
            "initial_bits": config.initial_bits,
            "threshold": config.threshold,
            "alpha": config.alpha,
            "variant": if config.variant == Variant::Published { "published" } else { "repaired" },
        }),
        _ => Value::Null,
    };
    let kind = if info.kind == KIND { "shard".to_owned() } else { format!("kind {}", info.kind) };
    json!({
        "name": info.name,
        "kind": kind,
        "format_version": info.version,
        "uid": info.uid,
        "dropping": info.dropping,
        "settings": settings,
    })
}

fn info_of(session: &Session, name: &str) -> Result<Value, Failure> {
    let indexes = session.indexes()?;
    Ok(indexes.iter().find(|info| info.name == name && !info.dropping).map_or(Value::Null, info_json))
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    match &args.command {
        Command::Create { name: Named { place, name }, settings, json } => {
            let session = place.session()?;
            session.create_index(name, &settings.config())?;
            json.give(&info_of(&session, name)?, || format!("created index {name:?}\n"))?;
        }
        Command::List { place, json } => {
            let found = Inspection::of(&place.url()?)?.indexes;
            let line = |info: &IndexInfo| format!("{}\t{}\n", info.name, kind_text(info));
            let all: Vec<_> = found.iter().map(info_json).collect();
            json.give(&all, || found.iter().map(line).collect())?;
        }
        Command::Stat { name, json } => stat(name, json)?,
        Command::Drop { name: Named { place, name }, json } => {
            place.session()?.drop_index(name)?;
            json.give(&json!({ "dropped": name }), || format!("dropped index {name:?}\n"))?;
        }
    }
    Ok(exit::OK)
}

fn stat(name: &Named, json: &Json) -> Result<(), Failure> {
    let index = name.open()?;
    let audit = index.audit()?;
    let info = info_of(index.session(), &name.name)?;
    let cache = farindex::HashIndex::cache_bytes(&*index.concurrent());
    let result = json!({ "index": info, "entries": audit.total(), "cache_bytes": cache, "audit": audit });
    json.give(&result, || {
        let [one, two, three] = audit.entries;
        let lines = [
            format!("entries          {} ({one} + {two} + {three} in levels 1, 2, 3)", audit.total()),
            format!("level-1 slots    {}", audit.slots),
            format!("buckets          {} in use, {} to be split off yet", audit.buckets, audit.buckets_to_split),
            format!("dead slots       {}", audit.dead),
            format!("resizes          {}", audit.resizes),
            format!("bucket memory    {} ({} bytes)", bytes(audit.index_bytes), audit.index_bytes),
            format!("block memory     {} ({} bytes)", bytes(audit.block_bytes), audit.block_bytes),
            format!("client cache     {cache} bytes"),
        ];
        lines.join("\n") + "\n"
    })
}
