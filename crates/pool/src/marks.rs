//! Coverage marks: did the rare paths of a protocol run at all?
//!
//! `mark!("split: sids renewed")` counts with the feature `marks` of the crate that passes it, for each thread on its own;
//! elsewhere it compiles to nothing. A long run of the adversary asserts that each mark in the sources has been passed.

/// Counts that a place was passed.
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

    /// How often each mark was passed.
    pub type Marks = BTreeMap<&'static str, u64>;

    thread_local!(static MARKS: RefCell<Marks> = const { RefCell::new(BTreeMap::new()) });

    /// Counts one pass; [`mark!`](crate::mark) calls it.
    pub fn hit(name: &'static str) {
        MARKS.with_borrow_mut(|marks| *marks.entry(name).or_default() += 1);
    }

    /// This thread's counts since the last call.
    pub fn take() -> Marks {
        MARKS.take()
    }
}
#[cfg(feature = "marks")]
pub use counters::{Marks, hit, take};
