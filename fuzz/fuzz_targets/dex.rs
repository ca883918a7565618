//! Fuzzes what DEX decodes: partition maps, words of proposals, requests to memory nodes, their replies; and what a memory node
//! does with a request in a region of arbitrary nodes. `farindex_index::dex::decoders` says what is checked.

#![no_main]

use farindex_index::dex::decoders::check;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| check(bytes));
