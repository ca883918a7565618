//! Futures that are compiled apart from those that await them.
//!
//! The compiler treats the body of an `async fn` like a closure: when it optimises, it compiles the body once more in
//! every crate, and in every unit of code generation of that crate, that awaits it, and so on for all that it awaits.
//! [`apart`] and [`cold`] end that: what they contain is compiled in the first crate that polls it, and shared by the
//! crates above.
//!
//! Invariant: neither changes what a future does, in which order, or when it is woken.

use pin_project_lite::pin_project;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

pin_project! {
    /// A future that is compiled apart from those that await it. See [`apart`].
    #[must_use = "futures do nothing unless polled"]
    pub struct Apart<F> {
        #[pin]
        future: F,
    }
}

impl<F: Future> Future for Apart<F> {
    type Output = F::Output;

    // A generic function that is not inlined is shared between crates; a coroutine's body never is. A release build has
    // few crates, and there the call would cost a get some percent.
    #[cfg_attr(debug_assertions, inline(never))]
    #[cfg_attr(not(debug_assertions), inline)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.project().future.poll(cx)
    }
}

/// Compiles a future apart from those that await it. It costs a call for each poll: it is for the common paths of
/// public operations.
#[inline]
pub fn apart<F: Future>(future: F) -> Apart<F> {
    Apart { future }
}

/// A future behind a pointer. See [`cold`].
pub type Cold<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Compiles a future apart from those that await it, and keeps it out of their state. It costs an allocation: it is for
/// rare parts of an operation, and for operations that are rare.
#[inline(never)]
pub fn cold<'a, T>(future: impl Future<Output = T> + 'a) -> Cold<'a, T> {
    Box::pin(future)
}
