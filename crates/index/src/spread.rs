//! Counters that many threads change: each thread has a cache line of its own, so that they do not wait for each other's.
//!
//! Invariant: a part belongs to the threads that drew its number; a value is what all parts say together, and no moment at which
//! they said so is promised.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Parts of a counter: threads beyond so many share.
const PARTS: usize = 16;

static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static PART: usize = NEXT.fetch_add(1, Ordering::Relaxed) % PARTS;
}

/// Two cache lines, because processors fetch them in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Padded<T>(T);

/// One `T` for each part.
#[derive(Default)]
pub(crate) struct Spread<T>([Padded<T>; PARTS]);

impl<T> Spread<T> {
    /// The calling thread's part.
    pub(crate) fn own(&self) -> &T {
        let Padded(own) = &self.0[PART.with(|part| *part)];
        own
    }
    /// All parts.
    pub(crate) fn all(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|Padded(part)| part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn threads_count_together() {
        let counter = Spread::<AtomicU64>::default();
        std::thread::scope(|scope| {
            for _ in 0..2 * PARTS {
                scope.spawn(|| {
                    let own = counter.own();
                    assert!(std::ptr::eq(own, counter.own()), "a thread keeps its part");
                    own.fetch_add(3, Ordering::Relaxed);
                });
            }
        });
        assert_eq!(counter.all().map(|part| part.load(Ordering::Relaxed)).sum::<u64>(), 6 * PARTS as u64);
    }
}
