//! What of a leaf's copy far memory does not have yet, and how it is written there.
//!
//! Invariants (`docs/protocols/dex.md`, "Write-back"): only entries with 8-byte keys and values have changed since far memory had
//! all of the leaf. Whatever part of the WRITEs of [`Dirty::post`] has taken effect, in their order, the bitmap in far memory names
//! whole entries alone, and each key has a state that it has had since.

use crate::tree::node::{CHECKSUM, Layout, MAX_SPAN, Node, USED};
use farindex_fabric::{Batch, RemotePtr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A bitmap of slots.
type Slots = [u64; MAX_SPAN.div_ceil(64)];

/// What of a leaf far memory does not have yet.
#[derive(Debug)]
pub(in crate::tree) struct Dirty {
    /// The slots that are used in far memory.
    used: Slots,
    /// Slots that have got another key since.
    filled: Slots,
    /// Slots whose value has changed since.
    touched: Slots,
    /// Since when, by the fabric's clock.
    since: Duration,
    /// Has it been written? Then far memory has all of the leaf.
    written: AtomicBool,
}

impl Clone for Dirty {
    fn clone(&self) -> Self {
        Dirty { written: AtomicBool::new(self.is_written()), ..*self }
    }
}

/// The bitmap of used slots in the words of a leaf.
fn used_of(words: &[u64], layout: Layout) -> Slots {
    let mut used = Slots::default();
    let map = words.get(USED..layout.inline()).unwrap_or_default();
    used.iter_mut().zip(map).for_each(|(to, from)| *to = *from);
    used
}

impl Dirty {
    /// What far memory does not have of a leaf of which it has all, and whose slots of this bitmap are used.
    pub(in crate::tree) fn new(used: &[u64], now: Duration) -> Self {
        let mut map = Slots::default();
        map.iter_mut().zip(used).for_each(|(to, from)| *to = *from);
        Dirty {
            used: map,
            filled: Slots::default(),
            touched: Slots::default(),
            since: now,
            written: AtomicBool::new(false),
        }
    }
    /// Adds one change of a leaf that had this bitmap of used slots before. `changed` is the slot whose value has changed, if the
    /// key was there.
    pub(in crate::tree) fn add(&mut self, before: &[u64], leaf: &Node, changed: Option<usize>) {
        let after = used_of(leaf.buf.words(), leaf.layout);
        let was = before.iter().copied().chain(std::iter::repeat(0));
        let (mut fresh, mut any) = (self.filled.iter_mut(), false);
        for (now, was) in after.iter().zip(was) {
            let new = now & !was;
            any |= new != 0;
            if let Some(filled) = fresh.next() {
                *filled |= new;
            }
        }
        if let Some(slot) = changed.filter(|_| !any)
            && let Some(touched) = self.touched.get_mut(slot / 64)
        {
            *touched |= 1 << (slot % 64);
        }
    }
    /// Since when far memory does not have all of the leaf.
    pub(in crate::tree) fn since(&self) -> Duration {
        self.since
    }
    pub(super) fn is_written(&self) -> bool {
        self.written.load(Ordering::SeqCst)
    }
    /// Notes that far memory has all of the leaf. The caller has kept others from changing it.
    pub(in crate::tree) fn set_written(&self) {
        self.written.store(true, Ordering::SeqCst);
    }

    /// Adds the WRITEs of all that far memory does not have of a leaf with these words, in their order:
    ///
    /// 1. the bitmap without the slots that are removed or have another key, if one of these slots is used in far memory and has
    ///    got another key: a WRITE of its words that lands in part would make an entry that never was;
    /// 2. all slots from the first changed one to the last, and the bitmap of inline entries ahead of them;
    /// 3. checksum and bitmap.
    pub(in crate::tree) fn post(&self, batch: &mut Batch<'_>, at: RemotePtr, words: &[u64], layout: Layout) {
        let part = |from: usize, to: usize| words.get(from..to).unwrap_or_default();
        let place = |word: usize| at.add(word as u64 * 8);
        let now = used_of(words, layout);
        let any = |map: &Slots| map.iter().any(|word| *word != 0);
        let mut reused = Slots::default();
        reused.iter_mut().zip(self.used.iter().zip(&self.filled)).for_each(|(to, (used, filled))| *to = used & filled);
        if any(&reused) {
            let kept: Vec<u64> = self
                .used
                .iter()
                .zip(&now)
                .zip(&self.filled)
                .map(|((used, now), filled)| used & now & !filled)
                .take(layout.map())
                .collect();
            batch.write_words(place(USED), &kept);
        }
        let changed = |slot: &usize| (self.filled[slot / 64] | self.touched[slot / 64]) >> (slot % 64) & 1 == 1;
        let slots = || (0..layout.span.min(MAX_SPAN)).filter(changed);
        if let (Some(first), Some(last)) = (slots().next(), slots().last()) {
            let from = if any(&self.filled) { layout.inline() } else { layout.slot_words(first).0 };
            let (last, len) = layout.slot_words(last);
            batch.write_words(place(from), part(from, last + len));
        }
        batch.write_words(place(CHECKSUM), part(CHECKSUM, layout.inline()));
    }
}
