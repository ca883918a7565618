//! Coverage marks: counts of rare paths of the protocols, for tests.
//!
//! `mark!("split: sids renewed")` counts with the feature `marks` of the crate that contains it, for each thread
//! separately; elsewhere it compiles to nothing. A long run of the adversary asserts that it passed every mark.

/// Counts one pass of this place.
#[macro_export]
macro_rules! mark {
    ($name:literal) => {
        #[cfg(feature = "marks")]
        $crate::marks::hit($name);
    };
}

#[cfg(feature = "marks")]
mod counters {
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    /// The number of passes of each mark.
    pub type Marks = BTreeMap<&'static str, u64>;

    thread_local!(static MARKS: RefCell<Marks> = const { RefCell::new(BTreeMap::new()) });

    /// Counts one pass of a mark; [`mark!`](crate::mark) calls it.
    pub fn hit(name: &'static str) {
        MARKS.with_borrow_mut(|marks| *marks.entry(name).or_default() += 1);
    }

    /// Returns this thread's counts, and resets them.
    pub fn take() -> Marks {
        MARKS.take()
    }
}
#[cfg(feature = "marks")]
pub use counters::{Marks, hit, take};
