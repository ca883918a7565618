//! Ordered indexes.

#[cfg(feature = "test-kinds")]
pub mod blink;
pub mod chime;
