//! Fuzzes the decoder of the control channel with arbitrary bytes.
//!
//! Checked: no panic; a decoded message encodes to bytes with the same meaning; a frame never exceeds the maximum
//! length.

#![no_main]

use farindex_remote::control::{Frame, MAX_FRAME};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    while let Ok(Some((frame, len))) = Frame::decode(rest) {
        assert!(len <= MAX_FRAME && len <= rest.len());
        let mut again = Vec::new();
        frame.encode(&mut again);
        let (decoded, _) = Frame::decode(&again).expect("what was decoded").expect("whole");
        assert_eq!(decoded, frame);
        rest = &rest[len..];
    }
});
