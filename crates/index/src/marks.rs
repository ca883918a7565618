//! Coverage marks: did the rare paths of a protocol run at all?
//!
//! `mark!("split.renew")` counts in the unit tests and with the feature `marks`, for each thread on its own; elsewhere it
//! compiles to nothing.

/// Counts that a place was passed.
#[cfg(any(test, feature = "marks"))]
macro_rules! mark {
    ($name:literal) => {
        $crate::marks::hit($name)
    };
}
#[cfg(not(any(test, feature = "marks")))]
macro_rules! mark {
    ($name:literal) => {};
}
pub(crate) use mark;

#[cfg(any(test, feature = "marks"))]
mod counters {
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    /// How often each mark was passed.
    pub type Marks = BTreeMap<&'static str, u64>;

    thread_local!(static MARKS: RefCell<Marks> = const { RefCell::new(BTreeMap::new()) });

    pub(crate) fn hit(name: &'static str) {
        MARKS.with_borrow_mut(|marks| *marks.entry(name).or_default() += 1);
    }

    /// This thread's counts since the last call.
    pub fn take() -> Marks {
        MARKS.take()
    }
}
#[cfg(any(test, feature = "marks"))]
pub(crate) use counters::hit;
#[cfg(any(test, feature = "marks"))]
pub use counters::{Marks, take};
