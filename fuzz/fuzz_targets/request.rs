//! Fuzzes the memory node's request decoder, and the execution of what it decodes, with arbitrary bytes.
//!
//! Checked: no panic; a request that is refused or malformed changes nothing; no access is outside the region; the
//! reply of an executed request has the length that it states, and a client can decode it.

#![no_main]

use farindex_fabric::NodeId;
use farindex_fabric::call::{self, CallTable, RegionView};
use farindex_fabric::words::Words;
use farindex_remote::Rights;
use farindex_ucx::chain::{Answer, Head, MAX_CHAIN, Status, serve};
use libfuzzer_sys::fuzz_target;
use std::sync::atomic::{AtomicU64, Ordering};

const WORDS: u64 = 64;

fuzz_target!(|bytes: &[u8]| {
    let Some((first, request)) = bytes.split_first() else { return };
    let rights = if first & 1 == 0 { Rights::ReadWrite } else { Rights::ReadOnly };
    // The words behind the region stand for what does not belong to it.
    let memory: Vec<AtomicU64> = (0..2 * WORDS).map(AtomicU64::new).collect();
    let values = || memory.iter().map(|word| word.load(Ordering::Relaxed)).collect::<Vec<_>>();
    let before = values();
    let (mine, _) = memory.split_at(WORDS as usize);
    let mut reply = Vec::new();
    let calls = CallTable::builtin().into_handler();
    let calls = |request: &[u8]| call::answer(&*calls, &RegionView::shared(NodeId::new(0), mine), request);
    let outcome = serve(request, Words(mine), &calls, rights, &mut reply);
    let after = values();
    assert_eq!(before[WORDS as usize..], after[WORDS as usize..]);
    assert!(reply.len() <= MAX_CHAIN);
    match outcome {
        Err(_) => assert!(reply.is_empty() && before == after),
        Ok(outcome) => {
            let answer = Answer::read(&reply).expect("a reply that its client can read");
            assert_eq!(answer.sequence, Head::peek(request).expect("it was read").sequence);
            match outcome {
                Err(refused) => {
                    assert!(before == after && answer.status == refused.status && answer.status != Status::Done);
                }
                Ok(served) => {
                    assert_eq!(answer.status, Status::Done);
                    let results = 8 * (served.cas + served.faa) + served.bytes_read;
                    // Calls are answered by up to so much each, behind outcome and length.
                    let most = results + served.calls * (8 + call::MAX_CALL_LEN as u64);
                    assert!((16 + results + 8 * served.calls..=16 + most).contains(&(reply.len() as u64)));
                    if rights == Rights::ReadOnly {
                        assert_eq!(before, after);
                    }
                }
            }
        }
    }
});
