//! Memory as words of `AtomicU64`, and verbs carried out on it: shared by every fabric whose far memory is mapped.
//!
//! Invariants: every access is to a whole aligned word (G2), so concurrent verbs are defined behaviour and READs and
//! WRITEs tear at 8 bytes and nowhere else (N2); a chain is checked whole before any of it takes effect.
//!
//! Memory ordering. Atomics and the loads of a READ are `SeqCst`; a WRITE stores with `Release` and ends with a fence.
//! - A verb that sees a word sees everything that was completed before that word was stored (G5 between threads that
//!   learn of each other through far memory), and a WRITE's words cannot sink below a later verb of the chain (G4).
//! - The loads of a READ must not pass an earlier atomic either (G4 within a batch, G5 across batches): when one client
//!   does CAS A, READ B and another CAS B, READ A, one of them sees the other. `Acquire` loads would allow both to
//!   miss, on AArch64 as well as in the language; `SeqCst` ones do not, and cost nothing more on x86-64.
//! - An unfenced WRITE need not wait for earlier READs (N3); here it does, since `Release` stores pass no earlier load.

use crate::{FabricError, RemotePtr, Verb, VerbKind, region};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// 8-byte words of a cache line.
const WORDS_PER_LINE: usize = 8;
/// Verbs from which on a chain is prefetched. A processor overlaps the misses of fewer by itself.
const PREFETCH_FROM: usize = 4;
/// Cache lines that are asked for ahead of the verb that is carried out: about as many as a processor fetches at once.
const LINES_AHEAD: usize = 40;

/// READ: the words, each loaded when the iterator comes to it.
pub fn load(words: &[AtomicU64]) -> impl Iterator<Item = u64> + '_ {
    words.iter().map(|word| word.load(Ordering::SeqCst))
}

/// READ into a buffer of as many words. Eight at a time, since the compiler leaves atomic loads in a loop as they are.
#[inline]
pub(crate) fn fetch(to: &mut [u64], from: &[AtomicU64]) {
    let (to, to_rest) = to.as_chunks_mut::<8>();
    let (from, from_rest) = from.as_chunks::<8>();
    for (to, from) in to.iter_mut().zip(from) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.load(Ordering::SeqCst);
        }
    }
    for (to, from) in to_rest.iter_mut().zip(from_rest) {
        *to = from.load(Ordering::SeqCst);
    }
}

/// WRITE: stores as many of the values as there are words.
pub fn store(words: &[AtomicU64], values: impl Iterator<Item = u64>) {
    for (word, value) in words.iter().zip(values) {
        word.store(value, Ordering::Release);
    }
    // A later READ of the chain must not be satisfied before these stores are visible (G4).
    fence(Ordering::SeqCst);
}

/// CAS: returns the word before.
pub fn cas(word: &AtomicU64, expect: u64, new: u64) -> u64 {
    match word.compare_exchange(expect, new, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(old) | Err(old) => old,
    }
}

/// FAA: returns the word before.
pub fn faa(word: &AtomicU64, add: u64) -> u64 {
    word.fetch_add(add, Ordering::SeqCst)
}

/// CAS of the bits of `swap_mask`, if those of `compare_mask` are as expected: returns the word before.
pub fn masked_cas(word: &AtomicU64, expect: u64, new: u64, compare_mask: u64, swap_mask: u64) -> u64 {
    let swap = |seen: u64| ((seen ^ expect) & compare_mask == 0).then_some(seen & !swap_mask | new & swap_mask);
    match word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, swap) {
        Ok(old) | Err(old) => old,
    }
}

/// Has the processor fetch words. Returns the number of cache lines.
#[inline]
fn prefetch(words: &[AtomicU64]) -> usize {
    let (lines, rest) = words.as_chunks::<WORDS_PER_LINE>();
    lines.iter().map(|line| &line[0]).chain(rest.first()).for_each(region::prefetch);
    lines.len() + usize::from(!rest.is_empty())
}

/// Carries out a WRITE or an atomic on the words that it touches.
fn change(kind: &mut VerbKind, words: &[AtomicU64]) {
    match kind {
        VerbKind::Write(buf) => store(words, buf.words().iter().copied()),
        VerbKind::Cas { expect, new, old } => {
            if let Some(word) = words.first() {
                *old = cas(word, *expect, *new);
            }
        }
        VerbKind::Faa { add, old } => {
            if let Some(word) = words.first() {
                *old = faa(word, *add);
            }
        }
        VerbKind::MaskedCas { expect, new, compare_mask, swap_mask, old } => {
            if let Some(word) = words.first() {
                *old = masked_cas(word, *expect, *new, *compare_mask, *swap_mask);
            }
        }
        VerbKind::Read(_) | VerbKind::Call { .. } | VerbKind::Revoke(_) => {}
    }
}

/// One memory node's region.
#[derive(Clone, Copy)]
pub struct Words<'a>(pub &'a [AtomicU64]);

impl<'a> Words<'a> {
    /// Bytes of the region.
    pub fn len(self) -> u64 {
        self.0.len() as u64 * 8
    }
    /// Has it no words at all?
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// The words of `len` bytes from a byte offset on, whole words both; `None` if they reach beyond the end.
    #[inline]
    pub fn range(self, offset: u64, len: u64) -> Option<&'a [AtomicU64]> {
        let first = usize::try_from(offset / 8).ok()?;
        let count = usize::try_from(len / 8).ok()?;
        self.0.get(first..first.checked_add(count)?)
    }

    /// The words that a verb touches.
    #[inline]
    fn slice(self, ptr: RemotePtr, len: usize) -> Result<&'a [AtomicU64], FabricError> {
        match self.range(ptr.offset(), len as u64) {
            Some(words) => Ok(words),
            None => Err(FabricError::OutOfBounds { ptr, len, region: self.len() }),
        }
    }
    /// Has the processor fetch what a verb touches, as far as it lies within the region. Returns the number of cache
    /// lines.
    pub(crate) fn prefetch(self, verb: &Verb) -> usize {
        prefetch(self.range(verb.ptr.offset(), verb.len() as u64).unwrap_or_default())
    }

    /// Can this verb be carried out?
    pub fn check(self, verb: &Verb) -> Result<(), FabricError> {
        verb.check(self.len())
    }

    /// Carries out a verb.
    pub fn execute(self, verb: &mut Verb) -> Result<(), FabricError> {
        let words = self.slice(verb.ptr, verb.len())?;
        Words::perform(&mut verb.kind, words);
        Ok(())
    }

    /// The words that a one-sided verb touches. `None` for a control verb, and for a verb that
    /// [`check`](Self::check) refuses.
    #[inline]
    pub(crate) fn one_sided(self, verb: &Verb) -> Option<&'a [AtomicU64]> {
        match &verb.kind {
            VerbKind::Read(buf) => self.aligned(verb.ptr, buf.len()),
            VerbKind::Call { .. } | VerbKind::Revoke(_) => None,
            _ => self.aligned(verb.ptr, verb.len()),
        }
    }
    /// The words of `len` bytes, whole words, from this address on; `None` if it is not aligned, or they reach beyond the end.
    #[inline]
    pub(crate) fn aligned(self, ptr: RemotePtr, len: usize) -> Option<&'a [AtomicU64]> {
        self.range(ptr.offset(), len as u64).filter(|_| ptr.offset().is_multiple_of(8))
    }

    /// Carries out a verb on memory that is mapped read-only, where it can only be a READ. Loads stronger than relaxed
    /// are not guaranteed to work on such pages, so fences order them instead.
    pub(crate) fn peek(self, verb: &mut Verb) -> Result<(), FabricError> {
        let words = self.slice(verb.ptr, verb.len())?;
        if let VerbKind::Read(buf) = &mut verb.kind {
            fence(Ordering::SeqCst);
            for (to, from) in buf.words_mut().iter_mut().zip(words) {
                *to = from.load(Ordering::Relaxed);
            }
            fence(Ordering::SeqCst);
        }
        Ok(())
    }

    /// Can this whole chain be carried out?
    pub(crate) fn check_all<'r>(
        chain: &[Verb],
        region: impl Fn(RemotePtr) -> Result<Words<'r>, FabricError>,
    ) -> Result<(), FabricError> {
        chain.iter().try_for_each(|verb| region(verb.ptr)?.check(verb))
    }

    /// Carries out a one-sided verb on the words that it touches.
    #[inline]
    pub(crate) fn perform(kind: &mut VerbKind, words: &[AtomicU64]) {
        match kind {
            VerbKind::Read(buf) => fetch(buf.words_mut(), words),
            _ => change(kind, words),
        }
    }

    /// Carries out a whole chain of one-sided verbs, which may name several nodes. `words` are those that a verb touches, and
    /// the result of `enter` is held while they are touched. `None`, and nothing is carried out, if a verb has no words.
    /// While it carries out one verb, the processor fetches what the next ones touch: the misses of a batch overlap.
    #[inline]
    pub(crate) fn run_one_sided<'r, P, E>(
        chain: &mut [Verb],
        words: impl Fn(&Verb) -> Option<&'r [AtomicU64]>,
        enter: impl FnOnce() -> Result<P, E>,
    ) -> Option<Result<(), E>> {
        // The usual chain is looked at once.
        if let [verb] = chain {
            let words = words(verb)?;
            return Some(enter().map(|_pass| Words::perform(&mut verb.kind, words)));
        }
        if chain.len() < PREFETCH_FROM {
            if !chain.iter().all(|verb| words(verb).is_some()) {
                return None;
            }
            return Some(enter().map(|_pass| {
                for verb in chain {
                    if let Some(words) = words(verb) {
                        Words::perform(&mut verb.kind, words);
                    }
                }
            }));
        }
        let found = chain.iter().map(&words).collect::<Option<Vec<_>>>()?;
        Some(enter().map(|_pass| {
            let (mut next, mut ahead) = (found.iter(), 0);
            for (verb, words) in chain.iter_mut().zip(&found) {
                while ahead < LINES_AHEAD
                    && let Some(words) = next.next()
                {
                    ahead += prefetch(words);
                }
                ahead = ahead.saturating_sub(words.len().div_ceil(WORDS_PER_LINE));
                Words::perform(&mut verb.kind, words);
            }
        }))
    }

    /// Carries out a whole chain whose verbs may name several nodes.
    pub fn run<'r>(
        chain: &mut [Verb],
        region: impl Fn(RemotePtr) -> Result<Words<'r>, FabricError>,
        mut control: impl FnMut(&mut Verb) -> Result<(), FabricError>,
    ) -> Result<(), FabricError> {
        Words::check_all(chain, &region)?;
        for verb in chain.iter_mut() {
            match verb.kind {
                VerbKind::Call { .. } | VerbKind::Revoke(_) => control(verb)?,
                _ => region(verb.ptr)?.execute(verb)?,
            }
        }
        Ok(())
    }
}
