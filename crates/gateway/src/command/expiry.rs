//! When keys expire.
//!
//! The expiry lies in the record, in milliseconds since 1970 by the gateways' clocks.

use super::{Context, is};
use crate::Fail;
use crate::number::integer;
use crate::resp::Args;
use crate::store::Change;
use crate::store::record::{Record, now_ms};

/// How a command writes a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Times {
    /// Seconds from now.
    Seconds,
    /// Milliseconds from now.
    Milliseconds,
    /// Seconds since 1970.
    SecondsAt,
    /// Milliseconds since 1970.
    MillisecondsAt,
}

impl Times {
    /// The option of `SET` and `GETEX` of this name.
    pub(crate) fn of_option(word: &[u8]) -> Option<Self> {
        [
            ("ex", Times::Seconds),
            ("px", Times::Milliseconds),
            ("exat", Times::SecondsAt),
            ("pxat", Times::MillisecondsAt),
        ]
        .into_iter()
        .find_map(|(name, times)| is(word, name).then_some(times))
    }
    /// In milliseconds since 1970.
    fn resolve(self, number: i64) -> Option<i64> {
        let now = i64::try_from(now_ms()).ok()?;
        match self {
            Times::Seconds => number.checked_mul(1000)?.checked_add(now),
            Times::Milliseconds => number.checked_add(now),
            Times::SecondsAt => number.checked_mul(1000),
            Times::MillisecondsAt => Some(number),
        }
    }
}

fn invalid(command: &str) -> Fail {
    Fail::text(format!("invalid expire time in '{command}' command"))
}

/// The expiry that `SET` and its like are given: positive.
pub(crate) fn expiry_argument(text: &[u8], times: Times, command: &str) -> Result<u64, Fail> {
    let number = integer(text)?;
    let at = times.resolve(number).filter(|_| number > 0).ok_or_else(|| invalid(command))?;
    u64::try_from(at).map_err(|_| invalid(command))
}

/// `EXPIRE key seconds [NX|XX|GT|LT]`.
pub(crate) async fn expire(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    set_expiry(cx, args, Times::Seconds, "expire").await
}
/// `PEXPIRE key milliseconds [NX|XX|GT|LT]`.
pub(crate) async fn pexpire(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    set_expiry(cx, args, Times::Milliseconds, "pexpire").await
}
/// `EXPIREAT key seconds-since-1970 [NX|XX|GT|LT]`.
pub(crate) async fn expireat(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    set_expiry(cx, args, Times::SecondsAt, "expireat").await
}
/// `PEXPIREAT key milliseconds-since-1970 [NX|XX|GT|LT]`.
pub(crate) async fn pexpireat(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    set_expiry(cx, args, Times::MillisecondsAt, "pexpireat").await
}

async fn set_expiry(cx: &mut Context<'_>, args: Args<'_>, times: Times, name: &str) -> Result<(), Fail> {
    let at = times.resolve(integer(args.at(2))?).ok_or_else(|| invalid(name))?;
    // What has passed is as good as any other time that has.
    let at = u64::try_from(at).unwrap_or(0);
    let (mut only_without, mut only_with, mut only_later, mut only_earlier) = (false, false, false, false);
    for word in args.from(3) {
        match word {
            word if is(word, "nx") => only_without = true,
            word if is(word, "xx") => only_with = true,
            word if is(word, "gt") => only_later = true,
            word if is(word, "lt") => only_earlier = true,
            word => return Err(Fail::text(format!("Unsupported option {}", super::shown(word)))),
        }
    }
    if only_without && (only_with || only_later || only_earlier) {
        return Err(Fail::text("NX and XX, GT or LT options at the same time are not compatible"));
    }
    if only_later && only_earlier {
        return Err(Fail::text("GT and LT options at the same time are not compatible"));
    }
    let change = |record: Option<Record<'_>>| {
        let Some(record) = record else { return Ok(Change::Keep(false)) };
        // A key without an expiry has one that never comes.
        let refused = match record.expires {
            Some(expires) => only_without || only_later && at <= expires || only_earlier && at >= expires,
            None => only_with || only_later,
        };
        if refused {
            return Ok(Change::Keep(false));
        }
        if at <= now_ms() {
            return Ok(Change::Remove(true));
        }
        Ok(Change::Put(Record { expires: Some(at), ..record }.encode(), true))
    };
    let set = cx.store.modify(args.at(1), change).await?;
    cx.reply.integer(i64::from(set));
    Ok(())
}

/// `PERSIST key`.
pub(crate) async fn persist(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let change = |record: Option<Record<'_>>| match record {
        Some(record) if record.expires.is_some() => Ok(Change::Put(Record { expires: None, ..record }.encode(), true)),
        _ => Ok(Change::Keep(false)),
    };
    let persisted = cx.store.modify(args.at(1), change).await?;
    cx.reply.integer(i64::from(persisted));
    Ok(())
}

/// `TTL key`: seconds, rounded.
pub(crate) async fn ttl(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    show_expiry(cx, args, |expires| (left(expires) + 500) / 1000).await
}
/// `PTTL key`.
pub(crate) async fn pttl(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    show_expiry(cx, args, left).await
}
/// `EXPIRETIME key`.
pub(crate) async fn expiretime(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    show_expiry(cx, args, |expires| i64::try_from(expires / 1000).unwrap_or(i64::MAX)).await
}
/// `PEXPIRETIME key`.
pub(crate) async fn pexpiretime(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    show_expiry(cx, args, |expires| i64::try_from(expires).unwrap_or(i64::MAX)).await
}

fn left(expires: u64) -> i64 {
    i64::try_from(expires.saturating_sub(now_ms())).unwrap_or(i64::MAX - 500)
}

async fn show_expiry(cx: &mut Context<'_>, args: Args<'_>, show: impl Fn(u64) -> i64) -> Result<(), Fail> {
    let value = match cx.store.live(args.at(1)).await? {
        None => -2,
        Some(bytes) => Record::parse(&bytes)?.expires.map_or(-1, show),
    };
    cx.reply.integer(value);
    Ok(())
}
