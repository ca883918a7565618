//! Hashes. All fields of one lie in one record, so each command takes effect at one moment, and a change writes all of
//! them.

use super::keys::{ScanOptions, cursor};
use super::strings::sum;
use super::{Context, shown};
use crate::Fail;
use crate::number::{integer, parse_float, parse_integer};
use crate::resp::Args;
use crate::store::fields::{self, Fields};
use crate::store::record::{self, HEADER, Kind, Record};
use crate::store::{Change, Store};
use farindex::Value;

/// The payload of a hash without fields.
const NO_FIELDS: &[u8] = &[0; 4];

/// A hash as it was read; an absent key has no fields.
struct Hash(Option<Value>);

impl Hash {
    async fn read(store: &Store, key: &[u8]) -> Result<Self, Fail> {
        let bytes = store.live(key).await?;
        if let Some(bytes) = &bytes {
            Record::parse(bytes)?.of(Kind::Hash)?;
        }
        Ok(Hash(bytes))
    }
    fn payload(&self) -> &[u8] {
        self.0.as_deref().and_then(|bytes| Some(Record::parse(bytes).ok()?.payload)).unwrap_or(NO_FIELDS)
    }
}

/// The fields and the expiry of a hash that is to change.
fn open<'a>(record: Option<Record<'a>>) -> Result<(&'a [u8], Option<u64>), Fail> {
    match record {
        Some(record) => Ok((record.of(Kind::Hash)?, record.expires)),
        None => Ok((NO_FIELDS, None)),
    }
}

/// Puts changed fields in the place of a hash. One without fields does not exist.
fn put<T>(store: &Store, fields: &Fields<'_>, expires: Option<u64>, result: T) -> Result<Change<T>, Fail> {
    if fields.len() == 0 {
        return Ok(Change::Remove(result));
    }
    let mut bytes = Vec::new();
    record::begin(&mut bytes, Kind::Hash, expires);
    fields.encode(&mut bytes);
    let most = store.longest_value() + HEADER;
    if bytes.len() > most {
        let len = bytes.len();
        return Err(Fail::text(format!(
            "a hash lies in one record: it would have {len} bytes, and the limit is {most}; divide it among several keys"
        )));
    }
    Ok(Change::Put(bytes, result))
}

/// Sets the fields of the arguments from 2 on; returns how many are new.
async fn set_pairs(cx: &Context<'_>, args: Args<'_>, name: &str) -> Result<usize, Fail> {
    if !args.len().is_multiple_of(2) {
        return Err(Fail::text(format!("wrong number of arguments for '{name}' command")));
    }
    let change = |record: Option<Record<'_>>| {
        let (payload, expires) = open(record)?;
        let mut fields = Fields::parse(payload)?;
        let pairs = (0..args.len() / 2 - 1).map(|pair| (args.at(2 * pair + 2), args.at(2 * pair + 3)));
        let added = fields.set(pairs);
        put(cx.store, &fields, expires, added)
    };
    cx.store.modify(args.at(1), change).await
}

/// `HSET key field value [field value ...]`.
pub(crate) async fn hset(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let added = set_pairs(cx, args, "hset").await?;
    cx.reply.count(added);
    Ok(())
}
/// `HMSET key field value [field value ...]`.
pub(crate) async fn hmset(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    set_pairs(cx, args, "hmset").await?;
    cx.reply.ok();
    Ok(())
}

/// `HSETNX key field value`.
pub(crate) async fn hsetnx(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let change = |record: Option<Record<'_>>| {
        let (payload, expires) = open(record)?;
        if fields::find(payload, args.at(2))?.is_some() {
            return Ok(Change::Keep(false));
        }
        let mut fields = Fields::parse(payload)?;
        fields.set([(args.at(2), args.at(3))].into_iter());
        put(cx.store, &fields, expires, true)
    };
    let set = cx.store.modify(args.at(1), change).await?;
    cx.reply.integer(i64::from(set));
    Ok(())
}

/// `HGET key field`.
pub(crate) async fn hget(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let hash = Hash::read(cx.store, args.at(1)).await?;
    cx.reply.bulk_or_null(fields::find(hash.payload(), args.at(2))?);
    Ok(())
}

/// `HMGET key field [field ...]`.
pub(crate) async fn hmget(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let hash = Hash::read(cx.store, args.at(1)).await?;
    cx.reply.array(args.len() - 2);
    if args.len() <= 10 {
        for name in args.from(2) {
            cx.reply.bulk_or_null(fields::find(hash.payload(), name)?);
        }
        return Ok(());
    }
    let all = fields::iter(hash.payload()).collect::<Result<std::collections::HashMap<_, _>, _>>()?;
    for name in args.from(2) {
        cx.reply.bulk_or_null(all.get(name).copied());
        cx.room()?;
    }
    Ok(())
}

/// `HGETALL key`.
pub(crate) async fn hgetall(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let hash = Hash::read(cx.store, args.at(1)).await?;
    cx.reply.map(fields::count(hash.payload())?);
    for field in fields::iter(hash.payload()) {
        let (name, value) = field?;
        cx.reply.bulk(name);
        cx.reply.bulk(value);
    }
    Ok(())
}

/// `HKEYS key`.
pub(crate) async fn hkeys(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    list(cx, args, |name, _| name).await
}
/// `HVALS key`.
pub(crate) async fn hvals(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    list(cx, args, |_, value| value).await
}
async fn list(
    cx: &mut Context<'_>,
    args: Args<'_>,
    part: for<'f> fn(&'f [u8], &'f [u8]) -> &'f [u8],
) -> Result<(), Fail> {
    let hash = Hash::read(cx.store, args.at(1)).await?;
    cx.reply.array(fields::count(hash.payload())?);
    for field in fields::iter(hash.payload()) {
        let (name, value) = field?;
        cx.reply.bulk(part(name, value));
    }
    Ok(())
}

/// `HLEN key`.
pub(crate) async fn hlen(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let hash = Hash::read(cx.store, args.at(1)).await?;
    cx.reply.count(fields::count(hash.payload())?);
    Ok(())
}

/// `HEXISTS key field`.
pub(crate) async fn hexists(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let hash = Hash::read(cx.store, args.at(1)).await?;
    cx.reply.integer(i64::from(fields::find(hash.payload(), args.at(2))?.is_some()));
    Ok(())
}

/// `HSTRLEN key field`.
pub(crate) async fn hstrlen(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let hash = Hash::read(cx.store, args.at(1)).await?;
    cx.reply.count(fields::find(hash.payload(), args.at(2))?.map_or(0, <[u8]>::len));
    Ok(())
}

/// `HDEL key field [field ...]`.
pub(crate) async fn hdel(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let names: Vec<&[u8]> = args.from(2).collect();
    let change = |record: Option<Record<'_>>| {
        let (payload, expires) = open(record)?;
        let mut fields = Fields::parse(payload)?;
        match fields.remove(&names) {
            0 => Ok(Change::Keep(0)),
            removed => put(cx.store, &fields, expires, removed),
        }
    };
    let removed = cx.store.modify(args.at(1), change).await?;
    cx.reply.count(removed);
    Ok(())
}

/// `HINCRBY key field number`.
pub(crate) async fn hincrby(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let by = integer(args.at(3))?;
    let change = |record: Option<Record<'_>>| {
        let (payload, expires) = open(record)?;
        let old = match fields::find(payload, args.at(2))? {
            Some(value) => parse_integer(value).ok_or_else(|| Fail::text("hash value is not an integer"))?,
            None => 0,
        };
        let new = old.checked_add(by).ok_or_else(|| Fail::text("increment or decrement would overflow"))?;
        let mut digits = itoa::Buffer::new();
        let mut fields = Fields::parse(payload)?;
        fields.set([(args.at(2), digits.format(new).as_bytes())].into_iter());
        put(cx.store, &fields, expires, new)
    };
    let new = cx.store.modify(args.at(1), change).await?;
    cx.reply.integer(new);
    Ok(())
}

/// `HINCRBYFLOAT key field number`.
pub(crate) async fn hincrbyfloat(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let by = parse_float(args.at(3)).ok_or(Fail::NotAFloat)?;
    let change = |record: Option<Record<'_>>| {
        let (payload, expires) = open(record)?;
        let old = match fields::find(payload, args.at(2))? {
            Some(value) => parse_float(value).ok_or_else(|| Fail::text("hash value is not a float"))?,
            None => 0.0,
        };
        let new = sum(old, by)?;
        let mut fields = Fields::parse(payload)?;
        fields.set([(args.at(2), new.as_bytes())].into_iter());
        put(cx.store, &fields, expires, new.clone())
    };
    let new = cx.store.modify(args.at(1), change).await?;
    cx.reply.bulk(new.as_bytes());
    Ok(())
}

/// `HSCAN key cursor [MATCH pattern] [COUNT count] [NOVALUES]`: all fields at once, as the record was read as a whole.
pub(crate) async fn hscan(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    if cursor(args.at(2))? != 0 {
        return Err(Fail::text(format!("invalid cursor {}: HSCAN returns everything at cursor 0", shown(args.at(2)))));
    }
    let options = ScanOptions::parse(args, 3)?;
    let hash = Hash::read(cx.store, args.at(1)).await?;
    let mut found = Vec::new();
    for field in fields::iter(hash.payload()) {
        let (name, value) = field?;
        if options.takes(name) {
            found.push(name);
            if !options.no_values {
                found.push(value);
            }
        }
    }
    cx.reply.array(2);
    cx.reply.bulk(b"0");
    cx.reply.array(found.len());
    for part in found {
        cx.reply.bulk(part);
    }
    Ok(())
}
