//! Ordered indexes.

pub mod blink;
