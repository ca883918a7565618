//! `farindex pool create|stat|check`.

use crate::exit::{self, Failure};
use crate::output::{Json, bytes, percent};
use crate::pool_arg::{Place, parse_size};
use clap::Subcommand;
use farindex::{
    CheckReport, ClientInfo, Error, Inspection, Kept, NodeUsage, Pool, PoolError, PoolOptions, PoolUrl, Repaired,
    Salvaged,
};
use farindex_bench::size::parse_duration;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Create and examine pools of far memory
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create a pool in a file that several processes can map
    ///
    /// All its space is reserved at once. An existing file is never overwritten.
    Create {
        #[command(flatten)]
        place: Place,
        /// Bytes of each memory node, such as 1GiB; memory nodes that are connected to have theirs already
        #[arg(long, value_name = "BYTES", value_parser = parse_size)]
        size: Option<u64>,
        /// One more memory node: another file of the same size (may be repeated)
        #[arg(long, value_name = "PATH")]
        node: Vec<PathBuf>,
        /// Clients (processes) that may be registered at once, 2 to 1024
        #[arg(long, value_name = "N", default_value_t = 64)]
        clients: u64,
        /// Lease: how long a client may go without a heartbeat before others may evict it, such as 10s
        #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
        lease: Duration,
        /// Bytes of a chunk, the unit in which memory is handed out: a power of two from 16KiB to 64KiB [default: by
        /// the size of the pool]
        #[arg(long, value_name = "BYTES", value_parser = parse_size)]
        chunk_size: Option<u64>,
        #[command(flatten)]
        json: Json,
    },
    /// Show what a pool is, which clients use it, and how full it is
    ///
    /// Takes no client slot and writes nothing; it needs only to read the files.
    Stat {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        json: Json,
    },
    /// Walk every index of a pool and account for every block; exit code 1 if anything is wrong, 9 if nothing is wrong
    /// but crashed clients have left something behind
    ///
    /// Changes nothing without --repair. May run while clients work; but memory that they have allocated and not yet
    /// linked can be distinguished from leaked memory only if no client that may be alive is registered, from beginning
    /// to end.
    Check {
        #[command(flatten)]
        place: Place,
        /// First evict clients that have crashed or whose lease has expired, and recover what they left: locks,
        /// unfinished steps and, if no other client is there, leaked memory. Takes slightly longer than one lease
        #[arg(long)]
        repair: bool,
        /// With --repair: then replace each index that is damaged by a copy of what can be read of it, and drop the
        /// rest for good. Needs room for the copy, and no other client may be there. See what is lost with `dump
        /// --skip-damaged` first
        #[arg(long, requires = "repair")]
        drop_damaged: bool,
        #[command(flatten)]
        json: Json,
    },
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    match &args.command {
        Command::Create { place, size, node, clients, lease, chunk_size, json } => {
            let options = PoolOptions {
                client_slots: *clients,
                lease: *lease,
                chunk_size: *chunk_size,
                ..PoolOptions::default()
            };
            create(place, *size, node, &options, json)
        }
        Command::Stat { place, json } => stat(place, json),
        Command::Check { place, repair, drop_damaged, json } => check(place, *repair, *drop_damaged, json),
    }
}

fn create(
    place: &Place,
    size: Option<u64>,
    more: &[PathBuf],
    options: &PoolOptions,
    json: &Json,
) -> Result<u8, Failure> {
    let mut url = place.url()?;
    let names: Vec<String> = match &mut url {
        PoolUrl::Shm { paths } if size.is_some() => {
            paths.extend(more.iter().cloned());
            paths.iter().map(|path| path.display().to_string()).collect()
        }
        PoolUrl::Shm { .. } => return Err(Failure::usage("a new pool takes --size, such as --size 1GiB")),
        PoolUrl::Remote { addrs, .. } if more.is_empty() => addrs.clone(),
        PoolUrl::Remote { .. } => return Err(Failure::usage("--node names files: name all memory nodes by --connect")),
        PoolUrl::Memory { .. } => return Err(Failure::usage("a pool in a file takes a path")),
    };
    let mut builder = Pool::builder().options(*options);
    if let Some(bytes) = size {
        builder = builder.node_bytes(bytes);
    }
    let pool = builder.create(&url)?;
    let block = pool.raw().superblock(farindex_fabric::NodeId::new(0));
    let result = json!({
        "paths": names,
        "nodes": block.nodes,
        "node_bytes": block.region_len,
        "chunk_bytes": block.chunk_size,
        "chunks": block.chunks,
        "client_slots": block.client_slots,
        "lease_ms": block.lease_ms,
        "format_version": block.version,
    });
    json.give(&result, || {
        let name = match names.as_slice() {
            [one] => one.clone(),
            many if matches!(url, PoolUrl::Remote { .. }) => format!("connect:{}", many.join(",")),
            many => format!("shm:{}", many.join(",")),
        };
        format!("created {name}: {} x {}\n", block.nodes, bytes(block.region_len))
    })?;
    Ok(exit::OK)
}

fn alive(client: &ClientInfo) -> &'static str {
    match client.gone {
        Some(true) => "gone",
        Some(false) => "alive",
        None => "unknown",
    }
}

fn client_json(client: &ClientInfo) -> Value {
    json!({
        "slot": client.slot,
        "pid": client.identity.pid,
        "state": alive(client),
        "heartbeat": client.record.heartbeat,
        "quiesced_epoch": client.record.quiesced,
        "since_unix_s": client.record.since,
    })
}

/// `3 min ago`, from seconds of the Unix epoch.
fn ago(since: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    match now.saturating_sub(since) {
        seconds @ 0..120 => format!("{seconds} s ago"),
        seconds @ 120..7200 => format!("{} min ago", seconds / 60),
        seconds => format!("{} h ago", seconds / 3600),
    }
}

fn usage_text(out: &mut String, usage: &[NodeUsage]) {
    for (node, usage) in usage.iter().enumerate() {
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "node {node}: {} of {} in use ({}), {} free in chunks of blocks, {} in free chunks",
            bytes(usage.used_bytes),
            bytes(usage.data_bytes),
            percent(usage.used_bytes, usage.data_bytes),
            bytes(usage.free_block_bytes),
            bytes(usage.free_chunk_bytes),
        );
    }
}

fn stat(place: &Place, json: &Json) -> Result<u8, Failure> {
    let found = Inspection::of(&place.url()?)?;
    let Some(first) = found.superblocks.first() else {
        return Err(Failure::new(exit::FILE, "the pool has no memory node"));
    };
    let id = format!("{:016x}{:016x}", first.pool_id[1], first.pool_id[0]);
    let index = |info: &farindex::IndexInfo| crate::kind::info_json(info);
    let result = json!({
        "pool": id,
        "format_version": first.version,
        "client_slots": first.client_slots,
        "lease_ms": first.lease_ms,
        "nodes": found.superblocks.iter().zip(&found.usage).map(|(block, usage)| json!({
            "bytes": block.region_len,
            "chunk_bytes": block.chunk_size,
            "chunks": block.chunks,
            "usage": usage,
        })).collect::<Vec<_>>(),
        "clients": found.clients.iter().map(client_json).collect::<Vec<_>>(),
        "indexes": found.indexes.iter().map(index).collect::<Vec<_>>(),
    });
    json.give(&result, || {
        let mut out = String::new();
        let nodes = found.superblocks.len();
        let _ = writeln!(out, "pool {id}, format version {}, {nodes} x {}", first.version, bytes(first.region_len));
        let (chunk, lease) = (bytes(first.chunk_size), Duration::from_millis(first.lease_ms));
        let _ = writeln!(out, "chunks of {chunk}, {} client slots, lease {lease:?}", first.client_slots);
        usage_text(&mut out, &found.usage);
        for client in &found.clients {
            let (pid, state, since) = (client.identity.pid, alive(client), ago(client.record.since));
            let heartbeat = client.record.heartbeat;
            let _ = writeln!(out, "client {}: pid {pid}, {state}, since {since}, heartbeat {heartbeat}", client.slot);
        }
        if found.clients.is_empty() {
            out.push_str("no clients\n");
        }
        for info in &found.indexes {
            let _ = writeln!(out, "index {:?}: {}", info.name, crate::kind::info_text(info));
        }
        if found.indexes.is_empty() {
            out.push_str("no indexes\n");
        }
        out
    })?;
    Ok(exit::OK)
}

fn check_json(report: &CheckReport, usage: &[NodeUsage], problems: &[String]) -> Value {
    let node = |(node, usage): (&farindex_pool::audit::NodeReport, &NodeUsage)| {
        json!({
            "data_bytes": node.data_bytes,
            "live_bytes": node.live_bytes,
            "live_objects": node.live_objects,
            "held_bytes": node.held_bytes,
            "held_objects": node.held_objects,
            "free_block_bytes": node.free_block_bytes,
            "free_chunk_bytes": node.free_chunk_bytes,
            "used_bytes": usage.used_bytes,
        })
    };
    let index = |(name, audit): &(String, farindex::IndexAudit)| json!({ "name": name, "entries": audit.entries, "audit": audit });
    json!({
        "sound": problems.is_empty(),
        "problems": problems,
        "left_behind": report.left_behind().collect::<Vec<_>>(),
        "alone": report.pool.alone,
        "lost_objects": report.pool.lost,
        "lost_bytes": report.pool.lost_bytes,
        "clients": report.pool.clients.iter().map(client_json).collect::<Vec<_>>(),
        "nodes": report.pool.nodes.iter().zip(usage).map(node).collect::<Vec<_>>(),
        "indexes": report.indexes.iter().map(index).collect::<Vec<_>>(),
    })
}

fn salvaged_json(salvaged: &Salvaged) -> Value {
    match &salvaged.outcome {
        Ok(kept) => json!({
            "name": salvaged.name,
            "entries_kept": kept.entries,
            "places_dropped": kept.places,
            "dropped": kept.dropped.iter().map(|damage| &damage.what).collect::<Vec<_>>(),
        }),
        Err(error) => json!({ "name": salvaged.name, "error": error.to_string() }),
    }
}

fn salvaged_text(out: &mut String, salvaged: &Salvaged) {
    let _ = match &salvaged.outcome {
        Ok(Kept { entries, places, dropped }) => {
            for damage in dropped {
                let _ = writeln!(out, "dropped: {} (at {})", damage.what, damage.at);
            }
            let more = *places - dropped.len() as u64;
            if more > 0 {
                let _ = writeln!(out, "and {more} more");
            }
            let s = if *places == 1 { "" } else { "s" };
            writeln!(out, "index {:?}: {entries} entries kept, {places} damaged place{s} dropped", salvaged.name)
        }
        Err(error) => writeln!(out, "{error}"),
    };
}

fn check(place: &Place, repair: bool, drop_damaged: bool, json: &Json) -> Result<u8, Failure> {
    let session = place.session_as_it_is()?;
    let repaired = if repair { Some(session.repair()?) } else { None };
    let salvaged = if drop_damaged { session.drop_damaged()? } else { Vec::new() };
    let report = match session.check() {
        Ok(report) => report,
        // Far memory that makes no sense is what a check looks for.
        Err(Error::Pool(error @ PoolError::Corrupt { .. })) => {
            let problem = error.to_string();
            json.give(&json!({ "sound": false, "problems": [problem] }), || format!("PROBLEM: {problem}\n"))?;
            return Ok(exit::NO);
        }
        Err(error) => return Err(error.into()),
    };
    let usage = session.usage()?;
    let problems: Vec<String> = report.problems().collect();
    let left_behind = report.left_behind().next().is_some();
    let mut result = check_json(&report, &usage, &problems);
    if let Some(Repaired { evicted, drops, recovered, reclaimed }) = repaired {
        result["repaired"] = json!({
            "evicted_clients": evicted,
            "finished_drops": drops,
            "mended_places": recovered,
            "reclaimed_bytes": reclaimed.bytes,
        });
    }
    if drop_damaged {
        result["salvaged"] = salvaged.iter().map(salvaged_json).collect();
    }
    json.give(&result, || {
        let mut out = String::new();
        salvaged.iter().for_each(|salvaged| salvaged_text(&mut out, salvaged));
        if let Some(Repaired { evicted, drops, recovered, reclaimed }) = repaired {
            let memory = if reclaimed.alone { bytes(reclaimed.bytes) } else { "no memory (others are there, or an index is not sound)".to_owned() };
            let _ = writeln!(
                out,
                "repaired: {evicted} crashed clients evicted, {drops} drops finished, {recovered} places recovered, {memory} reclaimed"
            );
        }
        for (name, audit) in &report.indexes {
            let figures: Vec<_> =
                audit.figures.iter().map(|(name, count)| format!("{count} {}", name.replace('_', " "))).collect();
            let _ = writeln!(
                out,
                "index {name:?}: {} entries ({}), {} resizes, {} of index, {} of blocks",
                audit.entries,
                figures.join(", "),
                audit.resizes,
                bytes(audit.index_bytes),
                bytes(audit.block_bytes),
            );
        }
        for (node, counted) in report.pool.nodes.iter().enumerate() {
            let _ = writeln!(
                out,
                "node {node}: {} of {} live ({}) in {} objects, {} held by clients or leaked",
                bytes(counted.live_bytes),
                bytes(counted.data_bytes),
                percent(counted.live_bytes, counted.data_bytes),
                counted.live_objects,
                bytes(counted.held_bytes),
            );
        }
        if !report.pool.alone {
            let others = report.pool.clients.iter().filter(|client| client.gone != Some(true)).count();
            let _ = writeln!(out, "{others} other clients are there, or were: nothing is called leaked");
        }
        for problem in &problems {
            let _ = writeln!(out, "PROBLEM: {problem}");
        }
        for left in report.left_behind() {
            let _ = writeln!(out, "left behind: {left}");
        }
        if left_behind {
            out.push_str(
                "Crashed clients left this behind. `farindex pool check --repair` recovers it, and so does the next client \
                 that opens the pool while no other is there.\n",
            );
        }
        let verdict = match (problems.is_empty(), left_behind) {
            (false, _) => "NOT SOUND",
            (true, true) => "sound, but crashed clients left something behind",
            (true, false) => "sound",
        };
        let _ = writeln!(out, "{}: {verdict}", place.display());
        out
    })?;
    // An index that could not be replaced has its own exit code: no room, or another client in the way.
    let refused = salvaged.iter().filter_map(|salvaged| salvaged.outcome.as_ref().err()).map(exit::code_of);
    let refused = refused.into_iter().find(|code| matches!(*code, exit::FULL | exit::BUSY));
    Ok(refused.unwrap_or(match (problems.is_empty(), left_behind) {
        (false, _) => exit::NO,
        (true, true) => exit::LEFT_BEHIND,
        (true, false) => exit::OK,
    }))
}
