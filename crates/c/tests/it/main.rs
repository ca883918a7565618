//! Tests of the C interface: the header is the generated one, and programs in C work with it.

mod header;
mod programs;
