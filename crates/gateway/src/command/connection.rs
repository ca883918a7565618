//! The connection itself.

use super::{Context, is, shown};
use crate::Fail;
use crate::number::parse_integer;
use crate::resp::{Args, Protocol};

/// `PING [message]`.
pub(crate) fn ping(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    match (args.get(1), args.len()) {
        (None, _) => cx.reply.simple("PONG"),
        (Some(message), 2) => cx.reply.bulk(message),
        _ => return Err(Fail::text("wrong number of arguments for 'ping' command")),
    }
    Ok(())
}

/// `ECHO message`.
pub(crate) fn echo(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    cx.reply.bulk(args.at(1));
    Ok(())
}

/// `QUIT`.
pub(crate) fn quit(cx: &mut Context<'_>, _args: Args<'_>) -> Result<(), Fail> {
    cx.client.leaving = true;
    cx.reply.ok();
    Ok(())
}

/// `RESET`: the connection is as a new one.
pub(crate) fn reset(cx: &mut Context<'_>, _args: Args<'_>) -> Result<(), Fail> {
    cx.reply.protocol = Protocol::Resp2;
    cx.client.known = cx.shared.password.is_none();
    cx.client.row.with(|about| about.name.clear());
    cx.reply.simple("RESET");
    Ok(())
}

/// `SELECT 0`.
pub(crate) fn select(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    if parse_integer(args.at(1)) != Some(0) {
        return Err(Fail::text("DB index is out of range: there is one, 0; start another gateway with --index NAME"));
    }
    cx.reply.ok();
    Ok(())
}

/// `AUTH [username] password`.
pub(crate) fn auth(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    match (args.len(), cx.shared.password.is_some()) {
        (2, true) => authenticate(cx, b"default", args.at(1))?,
        (2, false) => {
            return Err(Fail::text(
                "AUTH <password> called without any password configured for the default user. Are you sure your \
                 configuration is correct?",
            ));
        }
        (3, _) => authenticate(cx, args.at(1), args.at(2))?,
        _ => return Err(Fail::Syntax),
    }
    cx.reply.ok();
    Ok(())
}

fn authenticate(cx: &mut Context<'_>, user: &[u8], password: &[u8]) -> Result<(), Fail> {
    let right = match &cx.shared.password {
        // Without a password the one user there is may show any.
        None => true,
        Some(wanted) => wanted.is(password),
    };
    if user == b"default" && right {
        cx.client.known = true;
        return Ok(());
    }
    cx.shared.counters.refused_passwords.inc();
    Err(Fail::Coded("WRONGPASS invalid username-password pair or user is disabled.".into()))
}

/// `HELLO [2|3 [AUTH username password] [SETNAME name]]`.
pub(crate) fn hello(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let protocol = match args.get(1) {
        None => cx.reply.protocol,
        Some(b"2") => Protocol::Resp2,
        Some(b"3") => Protocol::Resp3,
        Some(_) => return Err(Fail::Coded("NOPROTO unsupported protocol version".into())),
    };
    let (mut at, mut name) = (2, None);
    while let Some(word) = args.get(at) {
        if is(word, "auth") && at + 2 < args.len() {
            authenticate(cx, args.at(at + 1), args.at(at + 2))?;
            at += 3;
        } else if is(word, "setname") && at + 1 < args.len() {
            name = Some(checked_name(args.at(at + 1))?);
            at += 2;
        } else {
            return Err(Fail::text(format!("Syntax error in HELLO option '{}'", shown(word))));
        }
    }
    if !cx.client.known {
        return Err(Fail::Coded(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> \
             <pass> option can be used to authenticate the client and select the RESP protocol version at the same time"
                .into(),
        ));
    }
    if let Some(name) = name {
        cx.client.row.with(|about| about.name = name);
    }
    cx.reply.protocol = protocol;
    cx.reply.map(7);
    cx.reply.bulk(b"server");
    cx.reply.bulk(b"redis");
    cx.reply.bulk(b"version");
    cx.reply.bulk(super::server::REDIS_VERSION.as_bytes());
    cx.reply.bulk(b"proto");
    cx.reply.integer(if protocol == Protocol::Resp2 { 2 } else { 3 });
    cx.reply.bulk(b"id");
    cx.reply.integer(cx.client.row.id);
    cx.reply.bulk(b"mode");
    cx.reply.bulk(b"standalone");
    cx.reply.bulk(b"role");
    cx.reply.bulk(b"master");
    cx.reply.bulk(b"modules");
    cx.reply.array(0);
    Ok(())
}

/// A name of a client or its library: visible characters without spaces.
fn checked_name(name: &[u8]) -> Result<String, Fail> {
    if name.len() > 256 || !name.iter().all(u8::is_ascii_graphic) {
        return Err(Fail::text("Client names cannot contain spaces, newlines or special characters."));
    }
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// `CLIENT ...`.
pub(crate) fn client(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    match (args.at(1), args.len()) {
        (word, 2) if is(word, "id") => cx.reply.integer(cx.client.row.id),
        (word, 2) if is(word, "getname") => {
            let name = cx.client.row.with(|about| about.name.clone());
            cx.reply.bulk_or_null(Some(name.as_bytes()).filter(|name| !name.is_empty()));
        }
        (word, 3) if is(word, "setname") => {
            let name = checked_name(args.at(2))?;
            cx.client.row.with(|about| about.name = name);
            cx.reply.ok();
        }
        (word, 4) if is(word, "setinfo") => {
            let value = checked_name(args.at(3))?;
            match args.at(2) {
                attribute if is(attribute, "lib-name") => cx.client.row.with(|about| about.library = value),
                attribute if is(attribute, "lib-ver") => cx.client.row.with(|about| about.library_version = value),
                attribute => return Err(Fail::text(format!("Unrecognized option '{}'", shown(attribute)))),
            }
            cx.reply.ok();
        }
        (word, _) if is(word, "list") => list(cx, args)?,
        (word, 2) if is(word, "info") => {
            let line = cx.client.row.line(cx.reply.protocol, cx.client.last);
            cx.reply.text(&line);
        }
        (word, 3) if is(word, "no-evict") || is(word, "no-touch") => {
            if !is(args.at(2), "on") && !is(args.at(2), "off") {
                return Err(Fail::Syntax);
            }
            cx.reply.ok();
        }
        (word, _) => {
            return Err(Fail::text(format!(
                "unknown subcommand or wrong number of arguments for 'CLIENT {}': this gateway has ID, GETNAME, SETNAME, \
                 SETINFO, LIST, INFO, NO-EVICT and NO-TOUCH",
                shown(word)
            )));
        }
    }
    Ok(())
}

/// `CLIENT LIST [TYPE type] [ID id ...]`: the clients of this gateway.
fn list(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let mut only: Option<Vec<i64>> = None;
    let mut nobody = false;
    match args.get(2) {
        None => {}
        Some(word) if is(word, "id") && args.len() > 3 => {
            let ids = args.from(3).map(|id| parse_integer(id).ok_or_else(|| Fail::text("Invalid client ID")));
            only = Some(ids.collect::<Result<_, _>>()?);
        }
        Some(word) if is(word, "type") && args.len() == 4 => match args.at(3) {
            kind if is(kind, "normal") => {}
            kind if is(kind, "master") || is(kind, "replica") || is(kind, "slave") || is(kind, "pubsub") => {
                nobody = true
            }
            kind => return Err(Fail::text(format!("Unknown client type '{}'", shown(kind)))),
        },
        Some(_) => return Err(Fail::Syntax),
    }
    let mut text = String::new();
    for row in cx.shared.clients.all().iter().filter(|_| !nobody) {
        if only.as_ref().is_none_or(|ids| ids.contains(&row.id)) {
            text.push_str(&row.line(cx.reply.protocol, "client"));
            text.push('\n');
        }
    }
    cx.reply.text(&text);
    Ok(())
}
