//! The decoder of the control channel: any bytes at all.
//!
//! Held to: no panic; what is decoded can be encoded again and means the same; a frame is never longer than any may be.
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
