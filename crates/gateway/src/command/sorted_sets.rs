//! Sorted sets, one member at a time. What a change writes, and in which order: [`crate::store::sorted`].

use super::{Context, is};
use crate::Fail;
use crate::number::score;
use crate::resp::Args;

/// What `ZADD` is told besides the members.
#[derive(Default, Clone, Copy)]
struct AddOptions {
    only_absent: bool,
    only_present: bool,
    only_greater: bool,
    only_less: bool,
    changed: bool,
    increment: bool,
}

impl AddOptions {
    /// The options from argument 2 on, and the number of the first argument behind them.
    fn parse(args: Args<'_>) -> Result<(Self, usize), Fail> {
        let (mut options, mut at) = (AddOptions::default(), 2);
        while let Some(word) = args.get(at) {
            match word {
                word if is(word, "nx") => options.only_absent = true,
                word if is(word, "xx") => options.only_present = true,
                word if is(word, "gt") => options.only_greater = true,
                word if is(word, "lt") => options.only_less = true,
                word if is(word, "ch") => options.changed = true,
                word if is(word, "incr") => options.increment = true,
                _ => break,
            }
            at += 1;
        }
        if options.only_absent && options.only_present {
            return Err(Fail::text("XX and NX options at the same time are not compatible"));
        }
        let one_way =
            usize::from(options.only_greater) + usize::from(options.only_less) + usize::from(options.only_absent);
        if one_way > 1 {
            return Err(Fail::text("GT, LT, and/or NX options at the same time are not compatible"));
        }
        Ok((options, at))
    }
    /// The score that a member gets, if it changes.
    fn decide(self, old: Option<f64>, given: f64) -> Result<Option<f64>, Fail> {
        let Some(before) = old else { return Ok((!self.only_present).then_some(given)) };
        if self.only_absent {
            return Ok(None);
        }
        let new = if self.increment { increased(before, given)? } else { given };
        let refused = self.only_greater && new <= before || self.only_less && new >= before;
        Ok((!refused).then_some(new))
    }
}

fn increased(score: f64, by: f64) -> Result<f64, Fail> {
    let new = score + by;
    if new.is_nan() { Err(Fail::text("resulting score is not a number (NaN)")) } else { Ok(new + 0.0) }
}

/// `ZADD key [NX|XX] [GT|LT] [CH] [INCR] score member [score member ...]`: one member after the other.
pub(crate) async fn zadd(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let (options, first) = AddOptions::parse(args)?;
    if args.len() <= first || !(args.len() - first).is_multiple_of(2) {
        return Err(Fail::Syntax);
    }
    if options.increment && args.len() - first != 2 {
        return Err(Fail::text("INCR option supports a single increment-element pair"));
    }
    // Nothing is added if one score is none.
    let mut members = Vec::with_capacity((args.len() - first) / 2);
    for at in (first..args.len()).step_by(2) {
        members.push((score(args.at(at))?, args.at(at + 1)));
    }
    let (mut added, mut changed, mut last) = (0, 0, None);
    let mut set = None;
    for (given, member) in members {
        // The set is looked up again before the command's patience ends.
        if set
            .as_ref()
            .is_none_or(|(_, since): &(_, std::time::Instant)| since.elapsed() > cx.store.periods.patience / 4)
        {
            set = cx.store.set_to_write(args.at(1), !options.only_present).await?;
        }
        let Some((set, since)) = &set else { break };
        let (old, new) = set.put(cx.store, member, *since, |old| options.decide(old, given)).await?;
        added += i64::from(old.is_none() && new.is_some());
        changed += i64::from(old.map(f64::to_bits) != new.map(f64::to_bits));
        // Of INCR: what it has become, if the options did not refuse.
        last = new.filter(|_| !matches!(options.decide(old, given), Ok(None)));
    }
    match (options.increment, last) {
        (true, Some(score)) => cx.reply.double(score),
        (true, None) => cx.reply.null(),
        (false, _) => cx.reply.integer(if options.changed { changed } else { added }),
    }
    Ok(())
}

/// `ZINCRBY key number member`.
pub(crate) async fn zincrby(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let by = score(args.at(2))?;
    let Some((set, since)) = cx.store.set_to_write(args.at(1), true).await? else { return Err(Fail::Syntax) };
    let decide = |old: Option<f64>| old.map_or(Ok(by), |old| increased(old, by)).map(Some);
    let (_, new) = set.put(cx.store, args.at(3), since, decide).await?;
    cx.reply.double(new.unwrap_or_default());
    Ok(())
}

/// `ZREM key member [member ...]`: one member after the other.
pub(crate) async fn zrem(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let mut removed = 0;
    if let Some(set) = cx.store.set(args.at(1)).await? {
        for member in args.from(2) {
            removed += i64::from(set.remove(cx.store, member).await?.is_some());
        }
    }
    cx.reply.integer(removed);
    Ok(())
}

/// `ZSCORE key member`.
pub(crate) async fn zscore(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let score = match cx.store.set(args.at(1)).await? {
        Some(set) => set.score(cx.store, args.at(2)).await?,
        None => None,
    };
    match score {
        Some(score) => cx.reply.double(score),
        None => cx.reply.null(),
    }
    Ok(())
}

/// `ZMSCORE key member [member ...]`: each member is read at a moment of its own.
pub(crate) async fn zmscore(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Fail> {
    let members: Vec<&[u8]> = args.from(2).collect();
    let scores = match cx.store.set(args.at(1)).await? {
        Some(set) => set.scores(cx.store, &members).await?,
        None => vec![None; members.len()],
    };
    cx.reply.array(scores.len());
    for score in scores {
        match score {
            Some(score) => cx.reply.double(score),
            None => cx.reply.null(),
        }
    }
    Ok(())
}
