//! Fuzzes the memory node's request decoder, and the execution of what it decodes, with arbitrary bytes.
//!
//! Checked: no panic; checking changes nothing, and neither does a batch that is refused; no access is outside the
//! region; each batch of a message is answered once, in order, and the answers have the lengths that they state.

#![no_main]

use farindex_fabric::NodeId;
use farindex_fabric::call::{self, CallTable, RegionView};
use farindex_fabric::words::Words;
use farindex_remote::Rights;
use farindex_remote::wire::Reader;
use farindex_ucx::chain::{ANSWER_HEADER, Answer, MAX_CHAIN, Status, check, serve};
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
    let calls = CallTable::builtin().into_handler();
    let calls = |request: &[u8]| call::answer(&*calls, &RegionView::shared(NodeId::new(0), mine), request);
    let mut refused = Vec::new();
    let checked = check(request, Words(mine), rights, &mut refused);
    assert_eq!(before, values());
    let Ok(checked) = checked else { return };
    let (mut replies, mut reply) = (Vec::new(), Vec::new());
    let mut full = |reply: &mut Vec<u8>| {
        replies.push(std::mem::take(reply));
        true
    };
    let served = serve(request, Words(mine), &calls, &refused, &mut reply, &mut full).expect("it was checked");
    replies.push(reply);
    let after = values();
    assert_eq!(before[WORDS as usize..], after[WORDS as usize..]);
    assert_eq!((served.batches, served.refused), (u64::from(checked.batches), refused.len() as u64));
    if rights == Rights::ReadOnly || refused.len() as u64 == served.batches {
        assert_eq!(before, after);
    }
    let sum: usize = replies.iter().map(Vec::len).sum();
    assert!(sum <= MAX_CHAIN + replies.len() * ANSWER_HEADER + served.batches as usize * ANSWER_HEADER);
    let (mut answers, mut refusals) = (0, refused.iter());
    for reply in &replies {
        let mut rest = Reader::new(reply);
        while let Some(answer) = Answer::take(&mut rest).expect("a reply that its client can read") {
            if answer.status != Status::Done {
                let refused = refusals.next().expect("a refusal");
                assert_eq!((answers, answer.status, answer.verb), (refused.batch, refused.status, refused.verb));
            }
            answers += 1;
        }
    }
    assert_eq!(answers, checked.batches);
    let results = 8 * (served.cas + served.faa) + served.bytes_read;
    let fronts = served.batches * ANSWER_HEADER as u64;
    // Calls are answered by up to so much each, behind outcome and length.
    let most = results + served.calls * (8 + call::MAX_CALL_LEN as u64);
    assert!((fronts + results + 8 * served.calls..=fronts + most).contains(&(sum as u64)));
});
