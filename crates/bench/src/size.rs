//! Numbers, sizes and times as text: the library's parser.

pub use farindex::size::{parse_count, parse_duration};
