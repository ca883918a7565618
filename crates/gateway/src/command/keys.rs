//! Keys of any type, one or all of them.

use super::{Context, is};
use crate::number::integer;
use crate::resp::Args;
use crate::store::record::Record;
use crate::{Fail, glob};
use farindex::Value;

/// `DEL key [key ...]` and `UNLINK`: one key after the other.
pub(crate) async fn del(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let mut removed = 0;
    for key in args.from(1) {
        removed += i64::from(cx.store.remove(key).await?);
    }
    cx.reply.integer(removed);
    Ok(())
}

/// `EXISTS key [key ...]` and `TOUCH`: a key that is given twice counts twice.
pub(crate) async fn exists(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let mut found = 0;
    let mut keys: Vec<&[u8]> = Vec::new();
    let mut rest = args.from(1);
    loop {
        keys.clear();
        keys.extend(rest.by_ref().take(cx.store.chunk()));
        if keys.is_empty() {
            cx.reply.integer(found);
            return Ok(());
        }
        let values = cx.store.raw_many(&keys).await?;
        for (key, bytes) in keys.iter().zip(&values) {
            if let Some(bytes) = bytes {
                found += i64::from(cx.store.counts(key, bytes).await?);
            }
        }
    }
}

/// `TYPE key`.
pub(crate) async fn kind(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let bytes = cx.store.live(args.at(1)).await?;
    let kind = bytes.map(|bytes| Ok::<_, Fail>(Record::parse(&bytes)?.kind.name())).transpose()?;
    cx.reply.simple(kind.unwrap_or("none"));
    Ok(())
}

/// What `SCAN` and its like are told besides the cursor.
pub(crate) struct ScanOptions<'a> {
    pub(crate) pattern: Option<&'a [u8]>,
    pub(crate) count: usize,
    kind: Option<&'a [u8]>,
    pub(crate) no_values: bool,
}

/// Most keys that one call of `SCAN` returns about.
const MOST: usize = 10_000;

impl<'a> ScanOptions<'a> {
    /// The options from this argument on.
    pub(crate) fn parse(args: Args<'a>, mut at: usize) -> Result<Self, Fail> {
        let mut options = ScanOptions { pattern: None, count: 10, kind: None, no_values: false };
        while let Some(word) = args.get(at) {
            let value = args.get(at + 1);
            match word {
                word if is(word, "match") => options.pattern = Some(value.ok_or(Fail::Syntax)?),
                word if is(word, "count") => {
                    let count = integer(value.ok_or(Fail::Syntax)?)?;
                    options.count =
                        usize::try_from(count).ok().filter(|count| *count > 0).ok_or(Fail::Syntax)?.min(MOST);
                }
                word if is(word, "type") => options.kind = Some(value.ok_or(Fail::Syntax)?),
                word if is(word, "novalues") => {
                    options.no_values = true;
                    at -= 1;
                }
                _ => return Err(Fail::Syntax),
            }
            at += 2;
        }
        Ok(options)
    }
    pub(crate) fn takes(&self, name: &[u8]) -> bool {
        self.pattern.is_none_or(|pattern| glob::matches(pattern, name))
    }
}

/// The cursor argument.
pub(crate) fn cursor(text: &[u8]) -> Result<u64, Fail> {
    let cursor = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    cursor.ok_or_else(|| Fail::text("invalid cursor"))
}

/// `SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]`.
pub(crate) async fn scan(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let cursor = cursor(args.at(1))?;
    let options = ScanOptions::parse(args, 2)?;
    let (next, mut keys) = cx.store.scan(cursor, options.count).await?;
    keys.retain(|key| options.takes(key));
    let mut present = Vec::with_capacity(keys.len());
    for keys in keys.chunks(cx.store.chunk()) {
        let names: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        for (key, bytes) in keys.iter().zip(cx.store.raw_many(&names).await?) {
            let Some(bytes) = bytes else { continue };
            let kind = Record::parse(&bytes)?.kind.name();
            if options.kind.is_none_or(|wanted| is(wanted, kind)) && cx.store.counts(key, &bytes).await? {
                present.push(key);
            }
        }
    }
    cx.reply.array(2);
    cx.reply.bulk(itoa::Buffer::new().format(next).as_bytes());
    cx.reply.array(present.len());
    for key in present {
        cx.reply.bulk(key);
    }
    Ok(())
}

/// `KEYS pattern`: all keys, by a walk.
pub(crate) async fn keys(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let (mut found, mut bytes): (Vec<Box<[u8]>>, usize) = (Vec::new(), 0);
    let (store, pattern, most) = (cx.store, args.at(1), cx.shared.limits.output);
    let each = async |key: &[u8], value: Value| {
        if glob::matches(pattern, key) && store.counts(key, &value).await? {
            found.push(key.into());
            bytes += key.len() + 16;
        }
        if bytes > most { Err(Fail::ReplyTooLarge) } else { Ok(true) }
    };
    store.walk(each).await?;
    cx.reply.array(found.len());
    for key in found {
        cx.reply.bulk(&key);
    }
    Ok(())
}

/// `DBSIZE`: counts all keys, by a walk.
pub(crate) async fn dbsize(cx: &mut Context<'_>, _args: Args<'_>) -> Result<(), Fail> {
    let (store, mut found) = (cx.store, 0);
    let each = async |key: &[u8], value: Value| {
        found += i64::from(store.counts(key, &value).await?);
        Ok(true)
    };
    store.walk(each).await?;
    cx.reply.integer(found);
    Ok(())
}

/// `RANDOMKEY`: each key with the same probability, by a walk.
pub(crate) async fn randomkey(cx: &mut Context<'_>, _args: Args<'_>) -> Result<(), Fail> {
    let (store, mut seen, mut chosen) = (cx.store, 0u64, None::<Box<[u8]>>);
    let each = async |key: &[u8], value: Value| {
        if store.counts(key, &value).await? {
            seen += 1;
            if store.nonce().is_multiple_of(seen) {
                chosen = Some(key.into());
            }
        }
        Ok(true)
    };
    store.walk(each).await?;
    cx.reply.bulk_or_null(chosen.as_deref());
    Ok(())
}

/// `FLUSHDB [ASYNC|SYNC]` and `FLUSHALL`: removes key after key.
pub(crate) async fn flush(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    match args.get(1) {
        None => {}
        Some(word) if args.len() == 2 && (is(word, "async") || is(word, "sync")) => {}
        Some(_) => return Err(Fail::Syntax),
    }
    let store = cx.store;
    let each = async |key: &[u8], value: Value| {
        store.clear(key, &value).await?;
        Ok(true)
    };
    store.walk(each).await?;
    cx.reply.ok();
    Ok(())
}
