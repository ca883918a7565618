//! One client: a coroutine that executes operations, one after the other, and judges the answers.

use super::shared::{Phase, Shared};
use super::worker::Context;
use super::{Worker, many};
use crate::oracle::{Effect, Oracle, Scanning, WrongAnswer};
use crate::workload::{ABSENT, KeyOrder, Keys, Op, Stream, below};
use farindex_fabric::yield_now;
use farindex_index::{IndexError, Insert, OrderedIndex, PointIndex, Remove, Update, Upsert, Value};
use std::ops::Bound;
use std::rc::Rc;

/// A client yields to others after this many operations.
const TURN: u32 = 32;
/// One operation in 2^3 is timed.
pub(crate) const TIMED_SHIFT: u32 = 64 - 3;

/// Operations that a client has carried out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) counts: [u64; Op::COUNT],
    /// Entries that scans returned.
    pub(crate) entries_scanned: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Tally) {
        self.counts.iter_mut().zip(other.counts).for_each(|(sum, count)| *sum += count);
        self.entries_scanned += other.entries_scanned;
    }
}

/// Which key an operation is on.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub(crate) number: u64,
    /// A new key, which no other client knows yet.
    fresh: bool,
}

pub(crate) async fn target(
    shared: &Shared,
    (phase, part): (Phase, usize),
    op: Op,
    stream: &mut Stream,
    ordinal: u64,
) -> Option<Target> {
    let oracle = &shared.oracle;
    let known = |number| Some(Target { number, fresh: false });
    match (phase, op) {
        (Phase::Load, _) => Some(Target { number: ordinal, fresh: true }),
        (Phase::Audit, _) => known(ordinal),
        // An absent key lies between two that may be present, where keys are ordered.
        (_, Op::GetAbsent) => match shared.keys.order() {
            KeyOrder::Hashed => known(ABSENT + below(stream.key(), 1 << 40)),
            KeyOrder::Ordered => known(ABSENT + below(stream.key(), oracle.known().max(1))),
        },
        (_, Op::Insert) if oracle.appends() => loop {
            if let Some(number) = oracle.claim() {
                if shared.in_part(number, part) {
                    return Some(Target { number, fresh: true });
                }
                oracle.skip(number);
                continue;
            }
            if shared.over(phase) {
                return None;
            }
            yield_now().await;
        },
        // New keys of other parts are never inserted: those that were loaded are all that may be looked for.
        _ if shared.plan.parts > 1 => loop {
            let number = shared.chooser.choose(stream, shared.plan.loaded(), ordinal);
            if shared.in_part(number, part) {
                return known(number);
            }
        },
        _ => known(shared.chooser.choose(stream, oracle.known(), ordinal + shared.base(phase))),
    }
}

/// What the index said.
pub(crate) struct Answer {
    effect: Effect,
    value: Option<Value>,
    /// For a read-modify-write, what the read found.
    read: Option<Effect>,
}

impl From<Effect> for Answer {
    fn from(effect: Effect) -> Self {
        Answer { effect, value: None, read: None }
    }
}

impl From<Option<Value>> for Answer {
    fn from(value: Option<Value>) -> Self {
        let effect = if value.is_some() { Effect::Present } else { Effect::Absent };
        Answer { effect, value, read: None }
    }
}

impl From<Update> for Effect {
    fn from(update: Update) -> Self {
        match update {
            Update::Updated => Effect::Present,
            Update::Absent => Effect::Absent,
        }
    }
}

#[inline]
async fn ask(index: &impl PointIndex, op: Op, key: &[u8], value: &[u8]) -> Result<Answer, IndexError> {
    Ok(match op {
        // A scan has an answer of another form; [`scan`] asks for it.
        Op::Get | Op::GetAbsent | Op::Scan => index.get(key).await?.into(),
        Op::Insert => match index.insert(key, value).await? {
            Insert::Inserted => Effect::Added.into(),
            Insert::Exists => Effect::Present.into(),
        },
        Op::Update => Effect::from(index.update(key, value).await?).into(),
        Op::Upsert => match index.upsert(key, value).await? {
            Upsert::Inserted => Effect::Added.into(),
            Upsert::Updated => Effect::Present.into(),
            Upsert::Written => Effect::Written.into(),
        },
        Op::Remove => match index.remove(key).await? {
            Remove::Removed => Effect::Taken.into(),
            Remove::Absent => Effect::Absent.into(),
        },
        Op::Rmw => {
            let found = Answer::from(index.get(key).await?);
            let effect = Effect::from(index.update(key, value).await?);
            Answer { effect, read: Some(found.effect), value: found.value }
        }
    })
}

/// Presence is judged first: a key that cannot be there has no right value.
#[inline]
pub(crate) fn judge(
    shared: &Shared,
    op: Op,
    Target { number, fresh }: Target,
    window: crate::oracle::Window,
    answer: &Answer,
) -> Result<(), WrongAnswer> {
    let oracle: &Oracle = &shared.oracle;
    if op == Op::GetAbsent {
        return if answer.effect.was_present() == Some(true) { Err(WrongAnswer::Phantom) } else { Ok(()) };
    }
    let mut verdict = oracle.end(number, window, fresh, answer.effect);
    if let Some(read) = answer.read {
        // The window covers both halves, and neither half changes presence.
        verdict = verdict.and(oracle.end(number, window, fresh, read));
    }
    verdict?;
    match &answer.value {
        Some(value) => shared.values.verify(number, value).map_err(WrongAnswer::Value),
        None => Ok(()),
    }
}

/// Called after every operation: a client yields after every [`TURN`].
#[inline]
async fn finish_turn(worker: &impl Worker, turn: &mut u32) {
    worker.between();
    *turn += 1;
    if *turn >= TURN {
        *turn = 0;
        yield_now().await;
    }
}

/// Scans from a key upwards and judges the entries.
async fn scan<W: Worker>(
    context: &Context<W>,
    (phase, timed): (Phase, bool),
    number: u64,
    (key, limit): (&[u8], usize),
    (scanning, tally): (&mut Scanning, &mut Tally),
) {
    let shared = &*context.shared;
    let Some(sorted) = shared.sorted.as_ref() else { return };
    shared.oracle.begin_scan(sorted, number, limit, scanning);
    let started = timed.then(|| context.worker.now());
    let answer = context.worker.index().scan((Bound::Included(key), Bound::Unbounded), limit).await;
    if let Some(started) = started {
        context.timed(Op::Scan, started, answer.is_ok());
    }
    match answer {
        Ok(entries) => {
            tally.entries_scanned += entries.len() as u64;
            if context.worker.answers()
                && let Err(wrong) = shared.oracle.end_scan(sorted, &shared.values, scanning, &entries)
            {
                context.wrong(phase, Op::Scan, number, wrong);
            }
        }
        Err(error) => context.failed(phase, Op::Scan, number, &error),
    }
}

/// Runs one client through one phase.
pub(crate) async fn run<W: Worker>(context: Rc<Context<W>>, phase: Phase) -> Tally {
    let shared = &*context.shared;
    let plan = &shared.plan;
    let index = context.worker.index();
    let keys: Keys = shared.keys;
    let answers = context.worker.answers();
    let every = context.worker.clock_is_free();
    let mut key = vec![0; keys.size()];
    let mut buf = vec![0; shared.values.longest()];
    let mut tally = Tally::default();
    let mut scanning = Scanning::default();
    let mut turn = 0;
    let part = context.worker.part();
    while let Some(stretch) = shared.claim(phase, part) {
        let mut stream = Stream::new(plan.seed, phase as u64, stretch.start);
        if plan.many > 1 && matches!(phase, Phase::Warmup | Phase::Measured) {
            for from in stretch.clone().step_by(plan.many) {
                if shared.over(phase) {
                    return tally;
                }
                let ordinals = from..stretch.end.min(from + plan.many as u64);
                many::get(&context, (phase, part), ordinals, &mut stream, &mut tally).await;
                finish_turn(&context.worker, &mut turn).await;
            }
            continue;
        }
        for ordinal in stretch {
            if shared.over(phase) {
                return tally;
            }
            if phase == Phase::Load && !shared.in_part(ordinal, part) {
                continue;
            }
            let draw = stream.op();
            let op = match phase {
                Phase::Load => Op::Insert,
                Phase::Audit => Op::Get,
                Phase::Warmup | Phase::Measured => plan.workload.mix.choose(draw),
            };
            let Some(target) = target(shared, (phase, part), op, &mut stream, ordinal).await else {
                return tally;
            };
            keys.write(target.number, &mut key);
            // Other bits of the draw than those that choose the operation.
            let timed = phase == Phase::Measured && (every || draw >> TIMED_SHIFT == 0);
            tally.counts[op as usize] += 1;
            if op == Op::Scan {
                let range = (key.as_slice(), plan.scan_length.draw(stream.value()));
                scan(&context, (phase, timed), target.number, range, (&mut scanning, &mut tally)).await;
                finish_turn(&context.worker, &mut turn).await;
                continue;
            }
            let value = match op {
                Op::Get | Op::GetAbsent | Op::Remove | Op::Scan => &[],
                _ => shared.values.fill(target.number, stream.value(), &mut buf),
            };
            let changes = matches!(op, Op::Insert | Op::Upsert | Op::Remove);
            let window = shared.oracle.begin(target.number, changes);
            let started = timed.then(|| context.worker.now());
            let answer = ask(index, op, &key, value).await;
            if let Some(started) = started {
                context.timed(op, started, answer.is_ok());
            }
            match answer {
                // Answers without meaning are not judged, or a baseline would pay for work that it does not do; but
                // what began must end, and a new key must be acknowledged.
                Ok(answer) if !answers => {
                    if changes {
                        let _ = shared.oracle.end(target.number, window, target.fresh, answer.effect);
                    }
                }
                Ok(answer) => {
                    if let Err(wrong) = judge(shared, op, target, window, &answer) {
                        context.wrong(phase, op, target.number, wrong);
                    }
                }
                Err(error) => {
                    if op != Op::GetAbsent {
                        shared.oracle.fail(target.number, window, changes);
                    }
                    context.failed(phase, op, target.number, &error);
                }
            }
            finish_turn(&context.worker, &mut turn).await;
        }
    }
    tally
}
