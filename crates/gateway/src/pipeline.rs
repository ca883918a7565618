//! Carries out what a client has sent, in order.
//!
//! Invariants: replies are in the order of the commands; GETs and EXISTS of one key that follow each other are read together
//! by one look-up of many keys, each at a moment of its own between the command before them and the command after them;
//! SETs that follow each other are prepared together, and take effect one after the other; every other command begins when
//! the one before it has taken effect.

use crate::client::Client;
use crate::command::strings::{self, write_string};
use crate::command::{Context, look_up, run, shown, table};
use crate::gateway::Shared;
use crate::resp::{Args, RequestLimits};
use crate::store::{MANY, Store};
use crate::{Fail, command};
use farindex::Value;
use std::cell::Cell;
use std::ops::Range;

/// What the clients of a thread share while their commands run.
pub(crate) struct Thread<'t> {
    pub(crate) store: &'t Store,
    pub(crate) shared: &'t Shared,
    /// A command has found that this process was evicted from the pool.
    pub(crate) evicted: &'t Cell<bool>,
}

/// A client that has this much waiting is sent it before its next command.
const SEND_EARLY: usize = 256 << 10;

/// Commands that follow each other and are carried out together: look-ups alone, or SETs alone.
#[derive(Default)]
struct Gathered {
    reads: Vec<Read>,
    writes: Vec<Write>,
}

impl Gathered {
    /// Are they enough?
    fn is_full(&self, store: &Store) -> bool {
        self.reads.len() >= store.chunk()
            || self.writes.len() >= MANY
            || self.writes.iter().map(|write| write.value.len()).sum::<usize>() > TOGETHER
    }
    async fn carry_out(&mut self, client: &mut Client, thread: &Thread<'_>) {
        read_all(client, thread, &mut self.reads).await;
        write_all(client, thread, &mut self.writes).await;
    }
}

/// SETs are carried out when their values are longer than this together.
const TOGETHER: usize = 256 << 10;

/// Bytes of replies after which a client's turn ends.
const TURN: usize = 1 << 20;

/// Carries out the whole commands that the client has sent, until their replies are long enough for one turn.
pub(crate) async fn serve(client: &mut Client, thread: &Thread<'_>) {
    let mut gathered = Gathered::default();
    let (mut at, mut commands) = (0, 0);
    let (begun, mut sent) = (client.reply.len(), 0);
    client.has_commands = false;
    while !client.closing && !client.broken {
        let limits = match client.identity.known {
            true => thread.shared.limits.requests,
            false => RequestLimits::UNKNOWN_CLIENT,
        };
        let rest = client.input.bytes().get(at..).unwrap_or_default();
        let len = match client.parser.parse(rest, &limits) {
            Ok(Some(len)) => len,
            Ok(None) => break,
            Err(why) => {
                gathered.carry_out(client, thread).await;
                client.reply.error(&format!("ERR {why}"));
                thread.shared.counters.errors.inc();
                client.closing = true;
                break;
            }
        };
        let args = client.parser.args(rest);
        if !args.is_empty() {
            commands += 1;
        }
        if let Some(next) = Next::of(args, at).filter(|_| client.identity.known) {
            match next {
                Next::Read(read) => {
                    write_all(client, thread, &mut gathered.writes).await;
                    gathered.reads.push(read);
                }
                Next::Write(write) => {
                    read_all(client, thread, &mut gathered.reads).await;
                    gathered.writes.push(write);
                }
            }
            if gathered.is_full(thread.store) {
                gathered.carry_out(client, thread).await;
            }
        } else if !args.is_empty() {
            gathered.carry_out(client, thread).await;
            one(client, thread, at).await;
        }
        client.parser.next();
        at += len;
        // One that takes nothing now is asked again when its connection has room.
        if client.reply.len() > SEND_EARLY && client.blocked.is_none() {
            let bytes = client.write();
            thread.shared.counters.bytes_out.inc_by(bytes as u64);
            sent += bytes;
        }
        if client.reply.len() > thread.shared.limits.output {
            // It reads too slowly, or not at all.
            thread.shared.counters.overrun.inc();
            client.broken = true;
        }
        if sent + client.reply.len() > begun + TURN {
            client.has_commands = true;
            break;
        }
    }
    gathered.carry_out(client, thread).await;
    client.input.consume(at);
    thread.shared.counters.commands.inc_by(commands);
}

/// Carries out one command whose arguments the parser has.
async fn one(client: &mut Client, thread: &Thread<'_>, at: usize) {
    let args = client.parser.args(client.input.bytes().get(at..).unwrap_or_default());
    let before = client.reply.len();
    let known = client.identity.known;
    let mut context =
        Context { store: thread.store, shared: thread.shared, reply: &mut client.reply, client: &mut client.identity };
    if let Err(why) = answer(&mut context, args, known).await {
        refuse(client, thread, before, &why);
    }
    client.closing |= client.identity.leaving;
}

async fn answer(cx: &mut Context<'_>, args: Args<'_>, known: bool) -> Result<(), Fail> {
    let name = args.at(0);
    let Some(command) = look_up(name) else {
        if !known {
            return Err(Fail::Coded("NOAUTH Authentication required.".into()));
        }
        if let Some(command::Handler::Never(why)) = table::why_never(name) {
            return Err(Fail::text(format!("{} is not supported by this gateway: {why}", shown(name).to_uppercase())));
        }
        let begin: String = args.from(1).take(8).map(|arg| format!("'{}' ", shown(arg))).collect();
        return Err(Fail::text(format!("unknown command '{}', with args beginning with: {begin}", shown(name))));
    };
    if !known && !command.flags.anybody() {
        return Err(Fail::Coded("NOAUTH Authentication required.".into()));
    }
    cx.client.last = command.name;
    if !command.takes(args.len()) {
        return Err(Fail::text(format!("wrong number of arguments for '{}' command", command.name)));
    }
    run(cx, command, args).await?;
    cx.room()
}

/// What a client wants to know of a key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// GET.
    Value,
    /// EXISTS.
    Presence,
}

/// A command that may be gathered.
enum Next {
    Read(Read),
    Write(Write),
}

impl Next {
    /// `at`: where the command begins in what the client has sent.
    fn of(args: Args<'_>, at: usize) -> Option<Self> {
        let (name, span) = (args.at(0), |arg| at + args.span(arg).start..at + args.span(arg).end);
        match (args.len(), name.len()) {
            (2, 3) if command::is(name, "get") => Some(Next::Read(Read { what: What::Value, key: span(1) })),
            (2, 6) if command::is(name, "exists") => Some(Next::Read(Read { what: What::Presence, key: span(1) })),
            (3, 3) if command::is(name, "set") => Some(Next::Write(Write { key: span(1), value: span(2) })),
            _ => None,
        }
    }
}

/// A look-up that a client has sent.
struct Read {
    what: What,
    /// Where the key is in what the client has sent.
    key: Range<usize>,
}

/// A SET without options that a client has sent: where its arguments are.
struct Write {
    key: Range<usize>,
    value: Range<usize>,
}

/// Sets strings one after the other, and writes the replies.
async fn write_all(client: &mut Client, thread: &Thread<'_>, writes: &mut Vec<Write>) {
    if writes.is_empty() {
        return;
    }
    client.identity.last = "set";
    let bytes = client.input.bytes();
    let of = |span: &Range<usize>| bytes.get(span.clone()).unwrap_or_default();
    let fits: Vec<_> = writes.iter().map(|write| strings::check_length(thread.store, write.value.len())).collect();
    let strings = writes.iter().zip(&fits).filter(|(_, fits)| fits.is_ok());
    let strings: Vec<_> = strings.map(|(write, _)| (of(&write.key), of(&write.value))).collect();
    let mut written = thread.store.put_strings(&strings).await.into_iter();
    for fits in fits {
        let missing = || Err(Fail::text("this command may have taken effect or not"));
        match fits.and_then(|()| written.next().unwrap_or_else(missing)) {
            Ok(()) => client.reply.ok(),
            Err(why) => refuse(client, thread, client.reply.len(), &why),
        }
    }
    writes.clear();
}

/// The records of keys. One that cannot be read does not keep the others from their values.
async fn look_up_all(store: &Store, keys: &[&[u8]]) -> Vec<Result<Option<Value>, Fail>> {
    if let [key] = keys {
        return vec![store.raw(key).await];
    }
    if let Ok(values) = store.raw_many(keys).await {
        return values.into_iter().map(Ok).collect();
    }
    let mut values = Vec::with_capacity(keys.len());
    for key in keys {
        values.push(store.raw(key).await);
    }
    values
}

/// Looks up the keys of reads that follow each other, and writes their replies.
async fn read_all(client: &mut Client, thread: &Thread<'_>, reads: &mut Vec<Read>) {
    if reads.is_empty() {
        return;
    }
    let bytes = client.input.bytes();
    let keys: Vec<&[u8]> = reads.iter().map(|read| bytes.get(read.key.clone()).unwrap_or_default()).collect();
    let values = look_up_all(thread.store, &keys).await;
    for (read, value) in reads.drain(..).zip(values) {
        reply(client, thread, &read, value).await;
    }
}

/// Writes the reply to a look-up.
async fn reply(client: &mut Client, thread: &Thread<'_>, read: &Read, value: Result<Option<Value>, Fail>) {
    let before = client.reply.len();
    let key = client.input.bytes().get(read.key.clone()).unwrap_or_default();
    client.identity.last = if read.what == What::Value { "get" } else { "exists" };
    let mut context =
        Context { store: thread.store, shared: thread.shared, reply: &mut client.reply, client: &mut client.identity };
    let written = async {
        let value = value?;
        match (read.what, &value) {
            (What::Value, value) => write_string(&mut context, key, value.as_deref()).await?,
            (What::Presence, None) => context.reply.integer(0),
            (What::Presence, Some(bytes)) => {
                let present = context.store.counts(key, bytes).await?;
                context.reply.integer(i64::from(present));
            }
        }
        Ok::<_, Fail>(())
    };
    if let Err(why) = written.await {
        client.reply.truncate(before);
        client.reply.error(&why.to_string());
        note(thread, &why);
    }
}

/// Puts an error in the place of a reply.
fn refuse(client: &mut Client, thread: &Thread<'_>, before: usize, why: &Fail) {
    client.reply.truncate(before);
    client.reply.error(&why.to_string());
    client.closing |= *why == Fail::ReplyTooLarge;
    note(thread, why);
}

fn note(thread: &Thread<'_>, why: &Fail) {
    thread.shared.counters.errors.inc();
    if why.is_eviction() {
        thread.evicted.set(true);
    }
}
