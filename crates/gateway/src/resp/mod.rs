//! RESP, the protocol of Redis: requests are read incrementally and within limits, replies are written into one buffer.
//!
//! The crate `redis-protocol` was looked at and left: it decodes each request into a vector of frames, begins again at the
//! first byte when a request is incomplete (a large one that arrives in small pieces costs the square of its length),
//! and knows no limits. A pipeline of small commands spends more time there than in the index.

pub mod reply;
pub mod request;

pub use reply::{Protocol, Reply};
pub use request::{Args, Malformed, Parser, RequestLimits};
