//! Indexes for far memory.

pub mod error;
pub mod traits;
pub mod value;

pub use error::IndexError;
pub use traits::{HashIndex, Insert, Limits, Remove, Update, Upsert};
pub use value::Value;
