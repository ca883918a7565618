//! Commands: a table of them, and a module for each family.
//!
//! Invariant: a command writes one reply; if it fails, what it has written is dropped and the error is the reply.

pub(crate) mod connection;
pub(crate) mod expiry;
pub(crate) mod hashes;
pub(crate) mod keys;
pub(crate) mod server;
pub(crate) mod sorted_ranges;
pub(crate) mod sorted_sets;
pub(crate) mod strings;
pub(crate) mod table;

use crate::Fail;
use crate::client::Identity;
use crate::gateway::Shared;
use crate::resp::{Args, Reply};
use crate::store::Store;
use std::future::Future;
use std::pin::Pin;

pub(crate) use table::{Command, look_up};

/// What a command works with.
pub(crate) struct Context<'x> {
    pub(crate) store: &'x Store,
    pub(crate) shared: &'x Shared,
    pub(crate) reply: &'x mut Reply,
    pub(crate) client: &'x mut Identity,
}

impl Context<'_> {
    /// Fails if the reply has become longer than this client may have waiting.
    pub(crate) fn room(&self) -> Result<(), Fail> {
        if self.reply.len() > self.shared.limits.output { Err(Fail::ReplyTooLarge) } else { Ok(()) }
    }
}

/// A command that is being carried out.
pub(crate) type Running<'c> = Pin<Box<dyn Future<Output = Result<(), Fail>> + 'c>>;

/// What carries a command out.
#[derive(Clone, Copy)]
pub(crate) enum Handler {
    /// Without far memory.
    Local(for<'c, 'x> fn(&'c mut Context<'x>, Args<'c>) -> Result<(), Fail>),
    /// With it.
    Far(for<'c, 'x> fn(&'c mut Context<'x>, Args<'c>) -> Running<'c>),
    /// Not at all; the text says why.
    Never(&'static str),
}

/// Carries out a command that was looked up and whose number of arguments is right.
pub(crate) async fn run(context: &mut Context<'_>, command: &Command, args: Args<'_>) -> Result<(), Fail> {
    match command.handler {
        Handler::Local(handler) => handler(context, args),
        Handler::Far(handler) => handler(context, args).await,
        Handler::Never(why) => Err(Fail::text(why)),
    }
}

/// Is this argument that word, in upper or lower case?
pub(crate) fn is(arg: &[u8], word: &str) -> bool {
    arg.eq_ignore_ascii_case(word.as_bytes())
}

/// What was typed, for an error message: short, and nothing that ends a line.
pub(crate) fn shown(arg: &[u8]) -> String {
    String::from_utf8_lossy(arg.get(..arg.len().min(128)).unwrap_or_default()).into_owned()
}
