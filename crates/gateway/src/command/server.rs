//! The gateway itself: `INFO`, `CONFIG GET`, `COMMAND`, `TIME`.

use super::table::{COMMANDS, look_up};
use super::{Command, Context, is, shown};
use crate::resp::Args;
use crate::store::record::now_ms;
use crate::{Fail, glob};
use std::fmt::Write;

/// The version of Redis whose commands these are, as far as they are there: what clients decide by.
pub(crate) const REDIS_VERSION: &str = "7.2.0";

/// `TIME`.
pub(crate) fn time(cx: &mut Context<'_>, _args: Args<'_>) -> Result<(), Fail> {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    cx.reply.array(2);
    cx.reply.bulk(since.as_secs().to_string().as_bytes());
    cx.reply.bulk(since.subsec_micros().to_string().as_bytes());
    Ok(())
}

/// `INFO [section ...]`.
pub(crate) fn info(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let wanted = |section: &str| {
        args.len() == 1
            || args.from(1).any(|arg| is(arg, section) || is(arg, "all") || is(arg, "default") || is(arg, "everything"))
    };
    let (shared, counters) = (cx.shared, &cx.shared.counters);
    let mut text = String::new();
    let mut section = |name: &str, lines: &[(&str, String)]| {
        if wanted(name) {
            let mut title = name.to_owned();
            if let Some(first) = title.get_mut(..1) {
                first.make_ascii_uppercase();
            }
            // Writing to a string does not fail.
            let _ = write!(text, "{}# {title}\r\n", if text.is_empty() { "" } else { "\r\n" });
            for (name, value) in lines {
                let _ = write!(text, "{name}:{value}\r\n");
            }
        }
    };
    let uptime = shared.started.elapsed().as_secs();
    section(
        "server",
        &[
            ("redis_version", REDIS_VERSION.to_owned()),
            ("redis_mode", "standalone".to_owned()),
            ("arch_bits", usize::BITS.to_string()),
            ("os", std::env::consts::OS.to_owned()),
            ("server_name", "farindex-gateway".to_owned()),
            ("farindex_version", env!("CARGO_PKG_VERSION").to_owned()),
            ("process_id", std::process::id().to_string()),
            ("tcp_port", shared.address.port().to_string()),
            ("server_time_usec", (now_ms() * 1000).to_string()),
            ("uptime_in_seconds", uptime.to_string()),
            ("uptime_in_days", (uptime / 86_400).to_string()),
            ("io_threads_active", shared.threads.to_string()),
        ],
    );
    section(
        "clients",
        &[
            ("connected_clients", counters.clients.get().to_string()),
            ("maxclients", shared.limits.clients.to_string()),
            ("blocked_clients", "0".to_owned()),
        ],
    );
    section(
        "memory",
        &[
            ("client_buffers_limit", shared.limits.buffers.to_string()),
            ("maxmemory", "0".to_owned()),
            ("maxmemory_policy", "noeviction".to_owned()),
        ],
    );
    section("persistence", &[("loading", "0".to_owned())]);
    section(
        "stats",
        &[
            ("total_connections_received", counters.accepted.get().to_string()),
            ("rejected_connections", counters.rejected.get().to_string()),
            ("total_commands_processed", counters.commands.get().to_string()),
            ("total_error_replies", counters.errors.get().to_string()),
            ("total_net_input_bytes", counters.bytes_in.get().to_string()),
            ("total_net_output_bytes", counters.bytes_out.get().to_string()),
            ("expired_keys", counters.expired.get().to_string()),
            ("compare_and_swap_retries", counters.retries.get().to_string()),
        ],
    );
    section("replication", &[("role", "master".to_owned()), ("connected_slaves", "0".to_owned())]);
    section("cluster", &[("cluster_enabled", "0".to_owned())]);
    // The number of keys would take a walk over all of them: DBSIZE does that.
    section("keyspace", &[]);
    cx.reply.text(&text);
    Ok(())
}

/// `CONFIG GET pattern ...`.
pub(crate) fn config(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let word = args.at(1);
    if is(word, "resetstat") && args.len() == 2 {
        return Err(Fail::text("CONFIG RESETSTAT is not supported: counters only grow, as Prometheus wants them"));
    }
    if !is(word, "get") || args.len() < 3 {
        return Err(Fail::text(format!(
            "CONFIG {} is not supported: the settings of a gateway are those of its command line",
            shown(word).to_uppercase()
        )));
    }
    let limits = &cx.shared.limits;
    let all = [
        ("appendonly", "no".to_owned()),
        ("bind", cx.shared.address.ip().to_string()),
        ("client-query-buffer-limit", limits.requests.request.to_string()),
        ("databases", "1".to_owned()),
        ("io-threads", cx.shared.threads.to_string()),
        ("maxclients", limits.clients.to_string()),
        ("maxmemory", "0".to_owned()),
        ("maxmemory-clients", limits.buffers.to_string()),
        ("maxmemory-policy", "noeviction".to_owned()),
        ("port", cx.shared.address.port().to_string()),
        ("proto-max-bulk-len", limits.requests.argument.to_string()),
        ("save", String::new()),
        ("timeout", limits.idle.map_or(0, |idle| idle.as_secs()).to_string()),
    ];
    let patterns: Vec<Vec<u8>> = args.from(2).take(64).map(<[u8]>::to_ascii_lowercase).collect();
    let found =
        || all.iter().filter(|(name, _)| patterns.iter().any(|pattern| glob::matches(pattern, name.as_bytes())));
    cx.reply.map(found().count());
    for (name, value) in found() {
        cx.reply.bulk(name.as_bytes());
        cx.reply.bulk(value.as_bytes());
    }
    Ok(())
}

/// `COMMAND [COUNT | LIST | INFO name ... | DOCS name ...]`.
pub(crate) fn command(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    match (args.get(1), args.len()) {
        (None, _) => {
            cx.reply.array(COMMANDS.len());
            COMMANDS.iter().for_each(|command| about(cx, command));
        }
        (Some(word), 2) if is(word, "count") => cx.reply.count(COMMANDS.len()),
        (Some(word), 2) if is(word, "list") => {
            cx.reply.array(COMMANDS.len());
            COMMANDS.iter().for_each(|command| cx.reply.bulk(command.name.as_bytes()));
        }
        (Some(word), 2) if is(word, "info") => {
            cx.reply.array(COMMANDS.len());
            COMMANDS.iter().for_each(|command| about(cx, command));
        }
        (Some(word), _) if is(word, "info") => {
            cx.reply.array(args.len() - 2);
            for name in args.from(2) {
                match look_up(name) {
                    Some(command) => about(cx, command),
                    None => cx.reply.null(),
                }
                cx.room()?;
            }
        }
        (Some(word), _) if is(word, "docs") => {
            let named: Vec<&Command> = match args.len() {
                2 => COMMANDS.iter().collect(),
                _ => args.from(2).filter_map(look_up).collect(),
            };
            cx.reply.map(named.len());
            for command in named {
                docs(cx, command);
                cx.room()?;
            }
        }
        (Some(word), _) => {
            return Err(Fail::text(format!(
                "unknown subcommand '{}': COMMAND has COUNT, LIST, INFO and DOCS",
                shown(word)
            )));
        }
    }
    Ok(())
}

fn about(cx: &mut Context<'_>, command: &Command) {
    cx.reply.array(10);
    cx.reply.bulk(command.name.as_bytes());
    cx.reply.integer(command.arity.into());
    cx.reply.set(command.flags.names().count());
    command.flags.names().for_each(|flag| cx.reply.simple(flag));
    let (first, last, step) = command.keys;
    for number in [first, last, step] {
        cx.reply.integer(number.into());
    }
    cx.reply.set(1);
    cx.reply.simple(&format!("@{}", command.group.replace('-', "")));
    // Tips, key specifications, subcommands.
    for _ in 0..3 {
        cx.reply.array(0);
    }
}

fn docs(cx: &mut Context<'_>, command: &Command) {
    cx.reply.bulk(command.name.as_bytes());
    cx.reply.map(3);
    cx.reply.bulk(b"summary");
    cx.reply.bulk(format!("{} {}", command.name.to_uppercase(), command.syntax).trim_end().as_bytes());
    cx.reply.bulk(b"since");
    cx.reply.bulk(b"1.0.0");
    cx.reply.bulk(b"group");
    cx.reply.bulk(command.group.as_bytes());
}
