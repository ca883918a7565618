//! Strings.

use super::expiry::{Times, expiry_argument};
use super::{Context, is};
use crate::Fail;
use crate::number::{integer, parse_float, parse_integer};
use crate::resp::Args;
use crate::store::record::{self, Kind, Record};
use crate::store::{Change, MANY, Store};

/// `GET key`. Pipelines gather theirs instead: see [`crate::pipeline`].
pub(crate) async fn get(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let bytes = cx.store.raw(args.at(1)).await?;
    write_string(cx, args.at(1), bytes.as_deref()).await
}

/// Writes the string in a record that was read under `key`.
pub(crate) async fn write_string(cx: &mut Context<'_>, key: &[u8], bytes: Option<&[u8]>) -> Result<(), Fail> {
    let Some(bytes) = bytes else {
        cx.reply.null();
        return Ok(());
    };
    match record::string(bytes)? {
        Some(value) => cx.reply.bulk(value),
        None => {
            cx.store.expire(key, bytes).await?;
            cx.reply.null();
        }
    }
    Ok(())
}

/// `MGET key [key ...]`: what is no string is nil. Each key is read at a moment of its own.
pub(crate) async fn mget(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    cx.reply.array(args.len() - 1);
    let mut keys: Vec<&[u8]> = Vec::with_capacity(cx.store.chunk());
    let mut rest = args.from(1);
    loop {
        keys.clear();
        keys.extend(rest.by_ref().take(cx.store.chunk()));
        if keys.is_empty() {
            return Ok(());
        }
        let values = cx.store.raw_many(&keys).await?;
        for (key, bytes) in keys.iter().zip(&values) {
            match write_string(cx, key, bytes.as_deref()).await {
                Err(Fail::WrongType) => cx.reply.null(),
                written => written?,
            }
        }
        cx.room()?;
    }
}

/// `MSET key value [key value ...]`: one key after the other, not a transaction.
pub(crate) async fn mset(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    if args.len().is_multiple_of(2) {
        return Err(Fail::text("wrong number of arguments for 'mset' command"));
    }
    // Nothing is set if one cannot be.
    for at in (1..args.len()).step_by(2) {
        check_length(cx.store, args.at(at + 1).len())?;
    }
    let pairs: Vec<(&[u8], &[u8])> = (1..args.len()).step_by(2).map(|at| (args.at(at), args.at(at + 1))).collect();
    for pairs in pairs.chunks(MANY) {
        cx.store.put_strings(pairs).await.into_iter().collect::<Result<(), Fail>>()?;
    }
    cx.reply.ok();
    Ok(())
}

/// What `SET` may be told besides key and value.
#[derive(Default)]
struct SetOptions {
    only_absent: bool,
    only_present: bool,
    get: bool,
    keep_expiry: bool,
    expires: Option<u64>,
}

impl SetOptions {
    fn parse(args: Args<'_>) -> Result<Self, Fail> {
        let mut options = SetOptions::default();
        let mut at = 3;
        while let Some(arg) = args.get(at) {
            if is(arg, "nx") && !options.only_present {
                options.only_absent = true;
            } else if is(arg, "xx") && !options.only_absent {
                options.only_present = true;
            } else if is(arg, "get") {
                options.get = true;
            } else if is(arg, "keepttl") && options.expires.is_none() {
                options.keep_expiry = true;
            } else if let Some(times) = Times::of_option(arg)
                && options.expires.is_none()
                && !options.keep_expiry
            {
                at += 1;
                options.expires = Some(expiry_argument(args.get(at).ok_or(Fail::Syntax)?, times, "set")?);
            } else {
                return Err(Fail::Syntax);
            }
            at += 1;
        }
        Ok(options)
    }
}

/// Refuses a string that is too long.
pub(crate) fn check_length(store: &Store, len: usize) -> Result<(), Fail> {
    let most = store.longest_value();
    if len > most {
        return Err(Fail::text(format!("a string of {len} bytes is longer than the limit of {most}")));
    }
    Ok(())
}

/// `SET key value [NX|XX] [GET] [EX|PX|EXAT|PXAT time | KEEPTTL]`.
pub(crate) async fn set(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let (key, value) = (args.at(1), args.at(2));
    check_length(cx.store, value.len())?;
    let options = SetOptions::parse(args)?;
    if !(options.only_absent || options.only_present || options.get || options.keep_expiry) {
        cx.store.put_string(key, value, options.expires).await?;
        cx.reply.ok();
        return Ok(());
    }
    let (done, old) = cx
        .store
        .modify(key, |record| {
            let old = match (options.get, record) {
                (true, Some(record)) => Some(record.of(Kind::String)?.to_vec()),
                _ => None,
            };
            if options.only_absent && record.is_some() || options.only_present && record.is_none() {
                return Ok(Change::Keep((false, old)));
            }
            let kept = record.and_then(|record| record.expires).filter(|_| options.keep_expiry);
            let new = Record { kind: Kind::String, expires: options.expires.or(kept), payload: value };
            Ok(Change::Put(new.encode(), (true, old)))
        })
        .await?;
    match (options.get, done) {
        (true, _) => cx.reply.bulk_or_null(old.as_deref()),
        (false, true) => cx.reply.ok(),
        (false, false) => cx.reply.null(),
    }
    Ok(())
}

/// `SETNX key value`.
pub(crate) async fn setnx(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    check_length(cx.store, args.at(2).len())?;
    let new = Record { kind: Kind::String, expires: None, payload: args.at(2) };
    let change = |record: Option<Record<'_>>| match record {
        None => Ok(Change::Put(new.encode(), true)),
        Some(_) => Ok(Change::Keep(false)),
    };
    let set = cx.store.modify(args.at(1), change).await?;
    cx.reply.integer(i64::from(set));
    Ok(())
}

/// `SETEX key seconds value`.
pub(crate) async fn setex(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    set_with_expiry(cx, args, Times::Seconds, "setex").await
}
/// `PSETEX key milliseconds value`.
pub(crate) async fn psetex(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    set_with_expiry(cx, args, Times::Milliseconds, "psetex").await
}
async fn set_with_expiry(cx: &mut Context<'_>, args: Args<'_>, times: Times, name: &str) -> Result<(), Fail> {
    check_length(cx.store, args.at(3).len())?;
    let expires = expiry_argument(args.at(2), times, name)?;
    cx.store.put_string(args.at(1), args.at(3), Some(expires)).await?;
    cx.reply.ok();
    Ok(())
}

/// `GETSET key value`.
pub(crate) async fn getset(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    check_length(cx.store, args.at(2).len())?;
    let new = Record { kind: Kind::String, expires: None, payload: args.at(2) };
    let change = |record: Option<Record<'_>>| {
        let old = record.map(|record| record.of(Kind::String).map(<[u8]>::to_vec)).transpose()?;
        Ok(Change::Put(new.encode(), old))
    };
    let old = cx.store.modify(args.at(1), change).await?;
    cx.reply.bulk_or_null(old.as_deref());
    Ok(())
}

/// `GETDEL key`.
pub(crate) async fn getdel(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let change = |record: Option<Record<'_>>| match record {
        None => Ok(Change::Keep(None)),
        Some(record) => Ok(Change::Remove(Some(record.of(Kind::String)?.to_vec()))),
    };
    let old = cx.store.modify(args.at(1), change).await?;
    cx.reply.bulk_or_null(old.as_deref());
    Ok(())
}

/// `GETEX key [EX|PX|EXAT|PXAT time | PERSIST]`.
pub(crate) async fn getex(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let expires = match (args.get(2), args.get(3), args.len()) {
        (None, ..) => return get(cx, args).await,
        (Some(word), None, _) if is(word, "persist") => None,
        (Some(word), Some(time), 4) => {
            let times = Times::of_option(word).ok_or(Fail::Syntax)?;
            Some(expiry_argument(time, times, "getex")?)
        }
        _ => return Err(Fail::Syntax),
    };
    let change = |record: Option<Record<'_>>| {
        let Some(record) = record else { return Ok(Change::Keep(None)) };
        let value = record.of(Kind::String)?.to_vec();
        if record.expires == expires {
            return Ok(Change::Keep(Some(value)));
        }
        Ok(Change::Put(Record { expires, ..record }.encode(), Some(value)))
    };
    let value = cx.store.modify(args.at(1), change).await?;
    cx.reply.bulk_or_null(value.as_deref());
    Ok(())
}

/// `STRLEN key`.
pub(crate) async fn strlen(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let bytes = cx.store.live(args.at(1)).await?;
    let len = bytes.map(|bytes| Ok::<_, Fail>(Record::parse(&bytes)?.of(Kind::String)?.len())).transpose()?;
    cx.reply.count(len.unwrap_or(0));
    Ok(())
}

/// `GETRANGE key start end`.
pub(crate) async fn getrange(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let (start, end) = (integer(args.at(2))?, integer(args.at(3))?);
    let bytes = cx.store.live(args.at(1)).await?;
    let value = match &bytes {
        Some(bytes) => Record::parse(bytes)?.of(Kind::String)?,
        None => &[],
    };
    let len = i64::try_from(value.len()).unwrap_or(i64::MAX);
    let from_end = |at: i64| if at < 0 { at.saturating_add(len).max(0) } else { at };
    let (start, end) = (from_end(start), from_end(end).min(len - 1));
    let range = usize::try_from(start).unwrap_or(usize::MAX)..usize::try_from(end + 1).unwrap_or(0);
    cx.reply.bulk(value.get(range).unwrap_or_default());
    Ok(())
}

/// `APPEND key value`.
pub(crate) async fn append(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let (more, most) = (args.at(2), cx.store.longest_value());
    let change = |record: Option<Record<'_>>| {
        let (old, expires) = match record {
            Some(record) => (record.of(Kind::String)?, record.expires),
            None => (&[][..], None),
        };
        let len = old.len() + more.len();
        if len > most {
            return Err(Fail::text(format!("a string of {len} bytes is longer than the limit of {most}")));
        }
        let mut bytes = Vec::with_capacity(record::HEADER + len);
        record::begin(&mut bytes, Kind::String, expires);
        bytes.extend_from_slice(old);
        bytes.extend_from_slice(more);
        Ok(Change::Put(bytes, len))
    };
    let len = cx.store.modify(args.at(1), change).await?;
    cx.reply.count(len);
    Ok(())
}

/// `INCR key`.
pub(crate) async fn incr(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    add(cx, args.at(1), 1).await
}
/// `DECR key`.
pub(crate) async fn decr(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    add(cx, args.at(1), -1).await
}
/// `INCRBY key number`.
pub(crate) async fn incrby(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    add(cx, args.at(1), integer(args.at(2))?).await
}
/// `DECRBY key number`.
pub(crate) async fn decrby(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let by = integer(args.at(2))?;
    add(cx, args.at(1), by.checked_neg().ok_or_else(|| Fail::text("decrement would overflow"))?).await
}
async fn add(cx: &mut Context<'_>, key: &[u8], by: i64) -> Result<(), Fail> {
    let change = |record: Option<Record<'_>>| {
        let old = match record {
            Some(record) => parse_integer(record.of(Kind::String)?).ok_or(Fail::NotAnInteger)?,
            None => 0,
        };
        let new = old.checked_add(by).ok_or_else(|| Fail::text("increment or decrement would overflow"))?;
        let mut digits = itoa::Buffer::new();
        let payload = digits.format(new).as_bytes();
        let expires = record.and_then(|record| record.expires);
        Ok(Change::Put(Record { kind: Kind::String, expires, payload }.encode(), new))
    };
    let new = cx.store.modify(key, change).await?;
    cx.reply.integer(new);
    Ok(())
}

/// `INCRBYFLOAT key number`.
pub(crate) async fn incrbyfloat(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let by = parse_float(args.at(2)).ok_or(Fail::NotAFloat)?;
    let change = |record: Option<Record<'_>>| {
        let old = match record {
            Some(record) => parse_float(record.of(Kind::String)?).ok_or(Fail::NotAFloat)?,
            None => 0.0,
        };
        let new = sum(old, by)?;
        let expires = record.and_then(|record| record.expires);
        Ok(Change::Put(Record { kind: Kind::String, expires, payload: new.as_bytes() }.encode(), new))
    };
    let new = cx.store.modify(args.at(1), change).await?;
    cx.reply.bulk(new.as_bytes());
    Ok(())
}

/// The sum of two numbers, as the commands with FLOAT in their names write it: without an exponent.
pub(crate) fn sum(a: f64, b: f64) -> Result<String, Fail> {
    let sum = a + b;
    if !sum.is_finite() {
        return Err(Fail::text("increment would produce NaN or Infinity"));
    }
    Ok(format!("{sum}"))
}
