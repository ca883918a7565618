//! Presence of keys that come and go.
//!
//! Invariants: for each key, one word counts the changes (inserts, upserts, removals) that have begun, those under way,
//! and what the acknowledged ones add up to. A change registers before the index is asked and signs off after it has
//! answered, so two changes whose windows do not overlap here did not overlap in the index.
//!
//! ```text
//! 63            41  40      39      38            20 19             0
//! | begun (23)    | unknown | tainted | under way (19) | balance + 2^19 |
//! ```
//!
//! *Unknown*: changes overlapped of which one did not say what it did to presence, so the balance means nothing until
//! an operation that nothing overlaps tells. *Tainted* lasts for ever. *Begun* wraps around, which is harmless: it is
//! only compared for equality over one operation.

use super::{Effect, WrongAnswer};
use std::sync::atomic::{AtomicU64, Ordering};

const BALANCE_MASK: u64 = (1 << 20) - 1;
const BALANCE_ZERO: u64 = 1 << 19;
const UNDER_WAY: u64 = 1 << 20;
const UNDER_WAY_MASK: u64 = ((1 << 19) - 1) << 20;
const TAINTED: u64 = 1 << 39;
const UNKNOWN: u64 = 1 << 40;
const BEGUN: u64 = 1 << 41;

const fn balance(word: u64) -> i64 {
    (word & BALANCE_MASK) as i64 - BALANCE_ZERO as i64
}
const fn under_way(word: u64) -> u64 {
    (word & UNDER_WAY_MASK) / UNDER_WAY
}
const fn begun(word: u64) -> u64 {
    word / BEGUN
}
/// The same word of a key that is there, or is not, for sure.
const fn settled(word: u64, present: bool) -> u64 {
    word & !(BALANCE_MASK | UNKNOWN) | (BALANCE_ZERO + present as u64)
}

/// What an operation saw of its key's word when it began.
#[derive(Debug, Clone, Copy, Default)]
pub struct Window {
    before: u64,
    changes: bool,
}

/// One word for each key.
#[derive(Debug)]
pub struct Ledger {
    words: Box<[AtomicU64]>,
}

impl Ledger {
    /// `keys` keys, the first `present` of which are there.
    pub fn new(keys: u64, present: u64) -> Self {
        let word = |number| AtomicU64::new(BALANCE_ZERO + u64::from(number < present));
        Ledger { words: (0..keys).map(word).collect() }
    }
    /// How many keys there are, present or not.
    pub fn keys(&self) -> u64 {
        self.words.len() as u64
    }
    /// How many are present.
    pub fn entries(&self) -> u64 {
        self.words.iter().map(|word| balance(word.load(Ordering::Relaxed)).clamp(0, 1) as u64).sum()
    }

    /// An operation begins.
    #[inline]
    pub fn begin(&self, number: u64, changes: bool) -> Window {
        let Some(word) = self.words.get(number as usize) else {
            return Window::default();
        };
        // Sequentially consistent, as is `end`: the index's own verbs lie in between, and no registration may slip past
        // them.
        let before = match changes {
            true => word.fetch_add(BEGUN + UNDER_WAY, Ordering::SeqCst),
            false => word.load(Ordering::SeqCst),
        };
        Window { before, changes }
    }

    /// It has ended with this effect. Is that right?
    #[inline]
    pub fn end(&self, number: u64, window: Window, effect: Effect) -> Result<(), WrongAnswer> {
        let Some(word) = self.words.get(number as usize) else {
            return Ok(());
        };
        let Window { before, changes } = window;
        let mine = if changes { BEGUN } else { 0 };
        let is_alone = |last: u64| under_way(before) == 0 && begun(last) == begun(before.wrapping_add(mine));
        let Some(was_present) = effect.was_present() else {
            let signed_off = |last: u64| {
                let last = last.wrapping_sub(UNDER_WAY);
                if is_alone(last) { settled(last, true) } else { last | UNKNOWN }
            };
            word.update(Ordering::SeqCst, Ordering::SeqCst, signed_off);
            return Ok(());
        };
        let last = match changes {
            true => {
                let step = match effect {
                    Effect::Added => 1u64.wrapping_sub(UNDER_WAY),
                    Effect::Taken => 0u64.wrapping_sub(UNDER_WAY + 1),
                    _ => 0u64.wrapping_sub(UNDER_WAY),
                };
                word.fetch_add(step, Ordering::SeqCst).wrapping_add(step)
            }
            false => word.load(Ordering::SeqCst),
        };
        if last & TAINTED != 0 {
            return Ok(());
        }
        let undisturbed = is_alone(last);
        if last & UNKNOWN != 0 {
            if undisturbed {
                // Unless the next one has begun already.
                let known = settled(last, effect.is_present());
                let _ = word.compare_exchange(last, known, Ordering::SeqCst, Ordering::SeqCst);
            }
            return Ok(());
        }
        if undisturbed && was_present != (balance(before) == 1) {
            if changes {
                // Its effect and the books disagree; one fault is not to be counted again and again.
                word.fetch_or(TAINTED, Ordering::SeqCst);
            }
            return Err(if was_present { WrongAnswer::Phantom } else { WrongAnswer::Missing });
        }
        let balance = balance(last);
        if changes && under_way(last) == 0 && !(0..=1).contains(&balance) {
            // Once reported, the key has no state that later answers could be held against.
            word.fetch_or(TAINTED, Ordering::SeqCst);
            return Err(WrongAnswer::Unbalanced { balance });
        }
        Ok(())
    }

    /// It has ended in an error.
    pub fn fail(&self, number: u64, window: Window) {
        if let Some(word) = self.words.get(number as usize)
            && window.changes
        {
            // First the taint: no client may find the change ended and its effect unaccounted for.
            word.fetch_or(TAINTED, Ordering::SeqCst);
            word.fetch_sub(UNDER_WAY, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_alone_has_one_right_outcome() {
        for (present, changes, effect, verdict) in [
            (true, false, Effect::Present, Ok(())),
            (true, false, Effect::Absent, Err(WrongAnswer::Missing)),
            (false, false, Effect::Present, Err(WrongAnswer::Phantom)),
            (false, false, Effect::Absent, Ok(())),
            (true, true, Effect::Present, Ok(())),
            (true, true, Effect::Added, Err(WrongAnswer::Missing)),
            (true, true, Effect::Taken, Ok(())),
            (true, true, Effect::Absent, Err(WrongAnswer::Missing)),
            (false, true, Effect::Added, Ok(())),
            (false, true, Effect::Taken, Err(WrongAnswer::Phantom)),
            (false, true, Effect::Present, Err(WrongAnswer::Phantom)),
            (false, true, Effect::Absent, Ok(())),
        ] {
            let ledger = Ledger::new(2, u64::from(present));
            let window = ledger.begin(0, changes);
            assert_eq!(ledger.end(0, window, effect), verdict, "{present} {changes} {effect:?}");
        }
    }

    #[test]
    fn what_overlaps_is_judged_by_the_sum() {
        let ledger = Ledger::new(1, 0);
        let (one, two, reader) = (ledger.begin(0, true), ledger.begin(0, true), ledger.begin(0, false));
        assert_eq!(ledger.end(0, reader, Effect::Present), Ok(()), "either may be right meanwhile");
        assert_eq!(ledger.end(0, one, Effect::Added), Ok(()));
        assert_eq!(ledger.end(0, two, Effect::Added), Err(WrongAnswer::Unbalanced { balance: 2 }));

        let ledger = Ledger::new(1, 0);
        let (one, two) = (ledger.begin(0, true), ledger.begin(0, true));
        assert_eq!(ledger.end(0, two, Effect::Taken), Ok(()), "the insert may have come first");
        assert_eq!(ledger.end(0, one, Effect::Added), Ok(()));
        let window = ledger.begin(0, false);
        assert_eq!(ledger.end(0, window, Effect::Present), Err(WrongAnswer::Phantom));
        assert_eq!(ledger.entries(), 0);
    }

    #[test]
    fn a_blind_write_says_that_the_key_is_there_now() {
        for present in [0, 1] {
            let ledger = Ledger::new(1, present);
            assert_eq!(ledger.end(0, ledger.begin(0, true), Effect::Written), Ok(()));
            assert_eq!(ledger.entries(), 1);
            let missed = ledger.end(0, ledger.begin(0, false), Effect::Absent);
            assert_eq!(missed, Err(WrongAnswer::Missing));
            assert_eq!(ledger.end(0, ledger.begin(0, true), Effect::Taken), Ok(()));
            assert_eq!(ledger.end(0, ledger.begin(0, false), Effect::Present), Err(WrongAnswer::Phantom));
        }
    }

    #[test]
    fn presence_after_a_blind_write_is_settled_by_the_next_operation_without_overlap() {
        for (reported, then) in [(Effect::Present, Effect::Absent), (Effect::Absent, Effect::Present)] {
            let ledger = Ledger::new(1, 0);
            let (one, two) = (ledger.begin(0, true), ledger.begin(0, true));
            assert_eq!(ledger.end(0, one, Effect::Written), Ok(()));
            let reader = ledger.begin(0, false);
            assert_eq!(ledger.end(0, reader, Effect::Absent), Ok(()), "the removal may have come last");
            assert_eq!(ledger.end(0, two, Effect::Taken), Ok(()));
            let reader = ledger.begin(0, false);
            assert_eq!(ledger.end(0, reader, reported), Ok(()), "it may have come first or last");
            let reader = ledger.begin(0, false);
            assert!(ledger.end(0, reader, then).is_err(), "and now it is known which");
        }
    }

    #[test]
    fn a_reader_that_a_change_crossed_is_not_judged() {
        let ledger = Ledger::new(1, 1);
        let reader = ledger.begin(0, false);
        let remover = ledger.begin(0, true);
        assert_eq!(ledger.end(0, remover, Effect::Taken), Ok(()));
        assert_eq!(ledger.end(0, reader, Effect::Absent), Ok(()));
    }

    #[test]
    fn after_an_error_nothing_is_said() {
        let ledger = Ledger::new(1, 1);
        ledger.fail(0, ledger.begin(0, true));
        for effect in [Effect::Absent, Effect::Present] {
            let window = ledger.begin(0, false);
            assert_eq!(ledger.end(0, window, effect), Ok(()));
        }
    }
}
