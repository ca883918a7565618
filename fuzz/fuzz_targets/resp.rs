//! Fuzzes the decoder of the gateway's requests with arbitrary bytes, in pieces of arbitrary size.
//!
//! Checked: no panic; the requests are the same whatever the pieces are; a request is no longer than its limits, and holds no
//! memory beyond what has arrived.

#![no_main]

use farindex_gateway::resp::{Malformed, Parser, RequestLimits};
use libfuzzer_sys::fuzz_target;

const LIMITS: RequestLimits = RequestLimits { arguments: 64, argument: 1 << 10, request: 1 << 12 };

fn requests(bytes: &[u8], step: usize) -> (Vec<Vec<Vec<u8>>>, Option<Malformed>) {
    let (mut parser, mut all, mut start) = (Parser::default(), Vec::new(), 0);
    for end in (0..bytes.len()).step_by(step).skip(1).chain([bytes.len()]) {
        loop {
            match parser.parse(&bytes[start..end], &LIMITS) {
                Ok(None) => break,
                Ok(Some(len)) => {
                    let args = parser.args(&bytes[start..end]);
                    assert!(args.len() <= LIMITS.arguments);
                    all.push(args.from(0).map(<[u8]>::to_vec).collect());
                    parser.next();
                    start += len;
                }
                Err(why) => return (all, Some(why)),
            }
        }
        assert!(parser.memory() <= 64 * (1 + bytes.len()));
    }
    (all, None)
}

fuzz_target!(|input: (u8, &[u8])| {
    let (step, bytes) = input;
    let pieces = requests(bytes, usize::from(step) + 1);
    assert_eq!(pieces, requests(bytes, bytes.len().max(1)));
});
