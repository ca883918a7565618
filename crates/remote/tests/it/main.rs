//! Tests of the control channel.

mod control;
