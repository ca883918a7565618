//! Ranges of sorted sets.
//!
//! A range is a series of scans of the ordered index, with what those promise: each member that it shows had that score at
//! some moment of the command, and a member that nobody changes meanwhile is shown exactly once. Ranges by index count
//! from the beginning, and ranges in reverse read what lies in front of them: they cost what the whole set costs.

use super::{Context, is};
use crate::Fail;
use crate::number::{integer, score};
use crate::resp::{Args, Protocol};
use crate::store::sorted::{Bounds, Member, PAGE, Set};
use std::ops::Bound;

/// The order in which members are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Index,
    Score,
    Name,
}

/// What a range command asks for.
struct Query<'a> {
    by: By,
    min: &'a [u8],
    max: &'a [u8],
    reverse: bool,
    offset: i64,
    /// Negative: all.
    count: i64,
    with_scores: bool,
}

/// `ZRANGE key start stop [BYSCORE|BYLEX] [REV] [LIMIT offset count] [WITHSCORES]`.
pub(crate) async fn zrange(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let mut query = Query {
        by: By::Index,
        min: args.at(2),
        max: args.at(3),
        reverse: false,
        offset: 0,
        count: -1,
        with_scores: false,
    };
    let (mut at, mut limited) = (4, false);
    while let Some(word) = args.get(at) {
        match word {
            word if is(word, "byscore") => query.by = By::Score,
            word if is(word, "bylex") => query.by = By::Name,
            word if is(word, "rev") => query.reverse = true,
            word if is(word, "withscores") => query.with_scores = true,
            word if is(word, "limit") => {
                (query.offset, query.count) = limit(args, at)?;
                limited = true;
                at += 2;
            }
            _ => return Err(Fail::Syntax),
        }
        at += 1;
    }
    if limited && query.by == By::Index {
        return Err(Fail::text("syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX"));
    }
    if query.with_scores && query.by == By::Name {
        return Err(Fail::text("syntax error, WITHSCORES not supported in combination with BYLEX"));
    }
    if query.reverse && query.by != By::Index {
        (query.min, query.max) = (query.max, query.min);
    }
    answer(cx, args.at(1), &query).await
}

/// `ZREVRANGE key start stop [WITHSCORES]`.
pub(crate) async fn zrevrange(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let with_scores = match args.get(4) {
        None => false,
        Some(word) if is(word, "withscores") && args.len() == 5 => true,
        Some(_) => return Err(Fail::Syntax),
    };
    let (min, max) = (args.at(2), args.at(3));
    answer(cx, args.at(1), &Query { by: By::Index, min, max, reverse: true, offset: 0, count: -1, with_scores }).await
}

/// `ZRANGEBYSCORE key min max [WITHSCORES] [LIMIT offset count]`.
pub(crate) async fn zrangebyscore(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    between(cx, args, By::Score, false).await
}
/// `ZREVRANGEBYSCORE key max min [WITHSCORES] [LIMIT offset count]`.
pub(crate) async fn zrevrangebyscore(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    between(cx, args, By::Score, true).await
}
/// `ZRANGEBYLEX key min max [LIMIT offset count]`.
pub(crate) async fn zrangebylex(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    between(cx, args, By::Name, false).await
}
/// `ZREVRANGEBYLEX key max min [LIMIT offset count]`.
pub(crate) async fn zrevrangebylex(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    between(cx, args, By::Name, true).await
}

async fn between(cx: &mut Context<'_>, args: Args<'_>, by: By, reverse: bool) -> Result<(), Fail> {
    let (min, max) = if reverse { (args.at(3), args.at(2)) } else { (args.at(2), args.at(3)) };
    let mut query = Query { by, min, max, reverse, offset: 0, count: -1, with_scores: false };
    let mut at = 4;
    while let Some(word) = args.get(at) {
        match word {
            word if is(word, "withscores") && by == By::Score => query.with_scores = true,
            word if is(word, "limit") => {
                (query.offset, query.count) = limit(args, at)?;
                at += 2;
            }
            _ => return Err(Fail::Syntax),
        }
        at += 1;
    }
    answer(cx, args.at(1), &query).await
}

fn limit(args: Args<'_>, at: usize) -> Result<(i64, i64), Fail> {
    match (args.get(at + 1), args.get(at + 2)) {
        (Some(offset), Some(count)) => Ok((integer(offset)?, integer(count)?)),
        _ => Err(Fail::Syntax),
    }
}

/// A bound of scores: `1.5`, `(1.5`, `-inf`, `+inf`.
fn score_bound(text: &[u8]) -> Result<Bound<f64>, Fail> {
    let not_a_float = |_| Fail::text("min or max is not a float");
    match text.strip_prefix(b"(") {
        Some(text) => score(text).map(Bound::Excluded).map_err(not_a_float),
        None => score(text).map(Bound::Included).map_err(not_a_float),
    }
}

/// A bound of names: `[a`, `(a`, `-`, `+`. The flag says that it lies behind all names.
fn name_bound(text: &[u8]) -> Result<(Bound<&[u8]>, Option<bool>), Fail> {
    match text.split_first() {
        Some((b'-', [])) => Ok((Bound::Unbounded, Some(false))),
        Some((b'+', [])) => Ok((Bound::Unbounded, Some(true))),
        Some((b'[', name)) => Ok((Bound::Included(name), None)),
        Some((b'(', name)) => Ok((Bound::Excluded(name), None)),
        _ => Err(Fail::text("min or max not valid string range item")),
    }
}

/// The bounds of a range of the ordered index; `None` if nothing can lie within.
fn bounds(set: &Set, query: &Query<'_>) -> Result<Option<Bounds>, Fail> {
    match query.by {
        By::Index => Ok(Some(set.score_bounds(Bound::Unbounded, Bound::Unbounded))),
        By::Score => Ok(Some(set.score_bounds(score_bound(query.min)?, score_bound(query.max)?))),
        By::Name => {
            let ((min, min_at), (max, max_at)) = (name_bound(query.min)?, name_bound(query.max)?);
            let empty = min_at == Some(true) || max_at == Some(false);
            Ok((!empty).then(|| set.name_bounds(min, max)))
        }
    }
}

/// Checks the bounds of a query whose key is absent.
fn check(query: &Query<'_>) -> Result<(), Fail> {
    if query.by == By::Index {
        integer(query.min)?;
        integer(query.max)?;
    }
    bounds(&Set { generation: [0; 16], mark: None }, query).map(drop)
}

/// Reads members of a range until there are `most`.
async fn read(cx: &Context<'_>, set: &Set, by: By, bounds: Bounds, most: usize) -> Result<Vec<Member>, Fail> {
    let (mut members, mut next, mut bytes) = (Vec::new(), Some(bounds), 0);
    while let Some(bounds) = next.take().filter(|_| members.len() < most) {
        let wanted = most - members.len();
        let (page, following) = match by {
            By::Index | By::Score => set.page_by_score(cx.store, &bounds, wanted).await?,
            By::Name => set.page_by_name(cx.store, &bounds, wanted).await?,
        };
        bytes += page.iter().map(|member| member.name.len() + 48).sum::<usize>();
        if bytes > cx.shared.limits.output {
            return Err(Fail::ReplyTooLarge);
        }
        members.extend(page);
        next = following;
        farindex::yield_now().await;
    }
    members.truncate(most);
    Ok(members)
}

async fn answer(cx: &mut Context<'_>, key: &[u8], query: &Query<'_>) -> Result<(), Fail> {
    check(query)?;
    let members = match cx.store.set(key).await? {
        Some(set) => select(cx, &set, query).await?,
        None => Vec::new(),
    };
    write(cx, &members, query.with_scores);
    Ok(())
}

/// Writes members, with or without their scores.
pub(crate) fn write(cx: &mut Context<'_>, members: &[Member], with_scores: bool) {
    if !with_scores {
        cx.reply.array(members.len());
        members.iter().for_each(|member| cx.reply.bulk(&member.name));
        return;
    }
    // Version 3 has pairs, version 2 one list.
    let pairs = cx.reply.protocol == Protocol::Resp3;
    cx.reply.array(if pairs { members.len() } else { 2 * members.len() });
    for member in members {
        if pairs {
            cx.reply.array(2);
        }
        cx.reply.bulk(&member.name);
        cx.reply.double(member.score);
    }
}

async fn select(cx: &Context<'_>, set: &Set, query: &Query<'_>) -> Result<Vec<Member>, Fail> {
    let Some(bounds) = bounds(set, query)? else { return Ok(Vec::new()) };
    let as_count = |number: i64| usize::try_from(number).unwrap_or(usize::MAX);
    if query.by != By::Index {
        if query.offset < 0 {
            return Ok(Vec::new());
        }
        let (offset, count) = (as_count(query.offset), as_count(query.count));
        let most = if query.reverse { usize::MAX } else { offset.saturating_add(count) };
        let mut members = read(cx, set, query.by, bounds, most).await?;
        if query.reverse {
            members.reverse();
        }
        return Ok(members.into_iter().skip(offset).take(count).collect());
    }
    let (start, stop) = (integer(query.min)?, integer(query.max)?);
    // Only a range that counts from the beginning knows where it ends before the set does.
    let most = if start < 0 || stop < 0 || query.reverse { usize::MAX } else { as_count(stop.saturating_add(1)) };
    let mut members = read(cx, set, query.by, bounds, most).await?;
    if query.reverse {
        members.reverse();
    }
    let len = i64::try_from(members.len()).unwrap_or(i64::MAX);
    let from_end = |at: i64| if at < 0 { at.saturating_add(len) } else { at };
    let (start, stop) = (from_end(start).max(0), from_end(stop).min(len - 1));
    if start > stop {
        return Ok(Vec::new());
    }
    Ok(members.into_iter().skip(as_count(start)).take(as_count(stop - start + 1)).collect())
}

/// Counts the members within bounds.
async fn count(cx: &mut Context<'_>, key: &[u8], query: &Query<'_>) -> Result<(), Fail> {
    check(query)?;
    let mut counted = 0;
    if let Some(set) = cx.store.set(key).await? {
        let mut next = bounds(&set, query)?;
        while let Some(bounds) = next.take() {
            let (page, following) = match query.by {
                By::Score => set.page_by_score(cx.store, &bounds, PAGE).await?,
                By::Index | By::Name => set.page_by_name(cx.store, &bounds, PAGE).await?,
            };
            counted += page.len();
            next = following;
            farindex::yield_now().await;
        }
    }
    cx.reply.count(counted);
    Ok(())
}

/// `ZCARD key`.
pub(crate) async fn zcard(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let all = Query { by: By::Name, min: b"-", max: b"+", reverse: false, offset: 0, count: -1, with_scores: false };
    count(cx, args.at(1), &all).await
}
/// `ZCOUNT key min max`.
pub(crate) async fn zcount(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let (min, max) = (args.at(2), args.at(3));
    count(cx, args.at(1), &Query { by: By::Score, min, max, reverse: false, offset: 0, count: -1, with_scores: false })
        .await
}
/// `ZLEXCOUNT key min max`.
pub(crate) async fn zlexcount(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let (min, max) = (args.at(2), args.at(3));
    count(cx, args.at(1), &Query { by: By::Name, min, max, reverse: false, offset: 0, count: -1, with_scores: false })
        .await
}

/// `ZPOPMIN key [count]`: removes the members with the lowest scores, one after the other. A member that another client
/// takes first is left out.
pub(crate) async fn zpopmin(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let wanted = match args.get(2) {
        None => 1,
        Some(text) => {
            usize::try_from(integer(text)?).map_err(|_| Fail::text("value is out of range, must be positive"))?
        }
    };
    let mut popped = Vec::new();
    if let Some(set) = cx.store.set(args.at(1)).await? {
        let mut next = Some(set.score_bounds(Bound::Unbounded, Bound::Unbounded));
        while let Some(bounds) = next.take().filter(|_| popped.len() < wanted) {
            let (page, following) = set.page_by_score(cx.store, &bounds, wanted - popped.len()).await?;
            for member in page {
                if popped.len() < wanted
                    && let Some(score) = set.remove(cx.store, &member.name).await?
                {
                    popped.push(Member { score, ..member });
                }
            }
            next = following;
        }
    }
    if args.len() == 2 && cx.reply.protocol == Protocol::Resp3 {
        // One member is no list of pairs.
        cx.reply.array(2 * popped.len());
        for member in &popped {
            cx.reply.bulk(&member.name);
            cx.reply.double(member.score);
        }
        return Ok(());
    }
    write(cx, &popped, true);
    Ok(())
}
