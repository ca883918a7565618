use super::*;
use farindex_fabric::words::Words;
use farindex_fabric::{CallRefused, Endpoint, Fabric, MemoryFabric, NodeId, RemotePtr, Verb, VerbKind};
use farindex_remote::Rights;
use farindex_remote::wire::Reader;
use std::sync::atomic::{AtomicU64, Ordering};

const NODE: NodeId = NodeId::new(3);
const WORDS: u64 = 64;

fn memory() -> Vec<AtomicU64> {
    (0..WORDS).map(AtomicU64::new).collect()
}

fn no_calls(_: &[u8]) -> Result<Vec<u8>, CallRefused> {
    Err("none".into())
}

fn endpoint() -> Endpoint {
    let fabric = MemoryFabric::new(1, 4096).expect("a fabric");
    fabric.connect(&fabric.new_identity()).expect("an endpoint")
}

fn verb(word: u64, kind: VerbKind) -> Verb {
    Verb { ptr: RemotePtr::new(NODE, word * 8), fence: false, kind }
}

fn every_verb(endpoint: &Endpoint) -> Vec<Verb> {
    vec![
        verb(1, VerbKind::Read(endpoint.buf(16))),
        verb(4, VerbKind::Write(endpoint.buf_from_words(&[7, 8, 9]))),
        verb(4, VerbKind::Cas { expect: 7, new: 70, old: 0 }),
        // Another node's: it does not travel.
        Verb { ptr: RemotePtr::new(NodeId::new(1), 0), fence: false, kind: VerbKind::Faa { add: 1, old: 55 } },
        verb(5, VerbKind::Faa { add: 2, old: 0 }),
        Verb {
            fence: true,
            ..verb(6, VerbKind::MaskedCas { expect: 1, new: !0, compare_mask: 1, swap_mask: 0xf0, old: 0 })
        },
        verb(4, VerbKind::Read(endpoint.buf(24))),
        verb(0, VerbKind::Read(endpoint.buf(0))),
    ]
}

fn request(chain: &[Verb]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(chain, NODE, 11, 22, &mut bytes);
    finish(&mut bytes, 1);
    assert_eq!((bytes.len() - MESSAGE_HEADER) as u64, sizes(chain, NODE).request);
    bytes
}

/// Checks and carries out a message; the outcome of its only batch.
fn carry_out(
    request: &[u8],
    memory: &[AtomicU64],
    calls: &Calls<'_>,
    rights: Rights,
    reply: &mut Vec<u8>,
) -> Result<Result<Served, Refused>, Malformed> {
    let mut refused = Vec::new();
    check(request, Words(memory), rights, &mut refused)?;
    let served = serve(request, Words(memory), calls, &refused, reply, &mut |_| true)?;
    assert_eq!(served.refused, refused.len() as u64);
    Ok(refused.first().map_or(Ok(served), |first| Err(*first)))
}

/// The first answer of a reply.
fn first(reply: &[u8]) -> Result<Answer<'_>, Malformed> {
    Answer::take(&mut Reader::new(reply))?.ok_or(Malformed::Truncated)
}

fn values(memory: &[AtomicU64]) -> Vec<u64> {
    memory.iter().map(|word| word.load(Ordering::Relaxed)).collect()
}

#[test]
fn a_chain_is_carried_out_in_order() {
    let (endpoint, memory) = (endpoint(), memory());
    let mut chain = every_verb(&endpoint);
    let mut reply = Vec::new();
    let served = carry_out(&request(&chain), &memory, &no_calls, Rights::ReadWrite, &mut reply).expect("sense");
    let served = served.expect("carried out");
    assert_eq!((served.reads, served.writes, served.cas, served.faa), (3, 1, 2, 1));
    assert_eq!((served.bytes_read, served.bytes_written), (40, 24));
    assert_eq!((served.batches, reply.len() as u64), (1, sizes(&chain, NODE).answer));
    let answer = first(&reply).expect("a reply");
    assert_eq!((answer.sequence, answer.status), (22, Status::Done));
    fill(&mut chain, NODE, answer).expect("results");
    let got: Vec<Vec<u64>> = chain
        .iter()
        .map(|verb| match &verb.kind {
            VerbKind::Read(buf) => buf.words().to_vec(),
            VerbKind::Cas { old, .. } | VerbKind::Faa { old, .. } | VerbKind::MaskedCas { old, .. } => vec![*old],
            _ => vec![],
        })
        .collect();
    assert_eq!(got, [vec![1, 2], vec![], vec![7], vec![55], vec![8], vec![9], vec![70, 10, 0xf9], vec![]]);
}

#[test]
fn a_refused_request_changes_nothing() {
    let (endpoint, memory) = (endpoint(), memory());
    let before = values(&memory);
    let write = || verb(0, VerbKind::Write(endpoint.buf_from_words(&[99])));
    let odd = Verb { ptr: RemotePtr::new(NODE, 4), fence: false, kind: VerbKind::Faa { add: 1, old: 0 } };
    let table = [
        (verb(WORDS, VerbKind::Faa { add: 1, old: 0 }), Rights::ReadWrite, Status::OutOfBounds, 1),
        (verb(WORDS - 1, VerbKind::Read(endpoint.buf(16))), Rights::ReadWrite, Status::OutOfBounds, 1),
        (odd, Rights::ReadWrite, Status::Misaligned, 1),
        (verb(0, VerbKind::Cas { expect: 0, new: 5, old: 0 }), Rights::ReadOnly, Status::ReadOnly, 0),
    ];
    for (bad, rights, status, at) in table {
        let said = format!("{bad:?}");
        let mut reply = Vec::new();
        let outcome = carry_out(&request(&[write(), bad]), &memory, &no_calls, rights, &mut reply);
        assert_eq!(outcome, Ok(Err(Refused { batch: 0, status, verb: at })), "{said}");
        let answer = first(&reply).expect("a reply");
        assert_eq!((answer.status, answer.verb), (status, at), "{said}");
        assert_eq!(values(&memory), before, "{said}");
    }
    // A reply larger than any, asked for in a few bytes.
    let large: Vec<AtomicU64> = (0..1 << 20).map(AtomicU64::new).collect();
    let many: Vec<Verb> = (0..9).map(|_| verb(0, VerbKind::Read(endpoint.buf(8 << 20)))).collect();
    let outcome = carry_out(&request(&many), &large, &no_calls, Rights::ReadWrite, &mut Vec::new());
    assert_eq!(outcome, Ok(Err(Refused { batch: 0, status: Status::TooLong, verb: 7 })));
}

#[test]
fn malformed_requests_are_recognised() {
    let (endpoint, memory) = (endpoint(), memory());
    let before = values(&memory);
    let good = request(&every_verb(&endpoint));
    let mut reply = Vec::new();
    let mut malformed = |what: &str, bytes: &[u8]| {
        let outcome = carry_out(bytes, &memory, &no_calls, Rights::ReadWrite, &mut reply);
        assert!(outcome.is_err() && reply.is_empty(), "{what}: {outcome:?}");
        assert_eq!(values(&memory), before, "{what}");
        outcome.expect_err("just seen")
    };
    for cut in 0..good.len() {
        malformed("cut off", &good[..cut]);
    }
    assert_eq!(malformed("left over", &[&good[..], &[0]].concat()), Malformed::Trailing);
    let with = |at: usize, bytes: &[u8]| {
        let mut changed = good.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        changed
    };
    assert_eq!(malformed("no verb", &with(32, &[9])), Malformed::Kind(9));
    assert_eq!(malformed("no verb", &with(32, &[0])), Malformed::Kind(0));
    assert!(matches!(malformed("flags", &with(33, &[2])), Malformed::Field(_)));
    assert!(matches!(malformed("reserved", &with(28, &[1])), Malformed::Field(_)));
    assert!(matches!(malformed("4 billion verbs", &with(24, &[255; 4])), Malformed::TooLong(_)));
    assert!(matches!(malformed("reserved", &with(12, &[1])), Malformed::Field(_)));
    assert!(matches!(malformed("4 billion batches", &with(8, &[255; 4])), Malformed::Truncated));
    assert_eq!(malformed("no batch", &with(8, &[0])), Malformed::Trailing);
    assert_eq!(malformed("more verbs", &with(24, &[8])), Malformed::Truncated);
    assert_eq!(malformed("fewer verbs", &with(24, &[6])), Malformed::Trailing);
    // The WRITE stands behind a READ's 16 bytes, the CAS behind its 24.
    assert_eq!(malformed("a WRITE of 4 GiB", &with(52, &[0xf8, 255, 255, 255])), Malformed::Truncated);
    assert!(matches!(malformed("a CAS of 16 bytes", &with(92, &[16])), Malformed::Field(_)));
}

#[test]
fn replies_are_not_trusted() {
    let (endpoint, memory) = (endpoint(), memory());
    let mut chain = every_verb(&endpoint);
    let mut reply = Vec::new();
    carry_out(&request(&chain), &memory, &no_calls, Rights::ReadWrite, &mut reply)
        .expect("sense")
        .expect("carried out");
    for cut in 0..reply.len() {
        let filled = first(&reply[..cut]).and_then(|answer| fill(&mut chain, NODE, answer));
        assert!(filled.is_err(), "cut at {cut}");
    }
    // An answer that is longer than its batch asked for.
    reply.push(0);
    let len = (reply.len() - ANSWER_HEADER) as u32;
    reply[12..16].copy_from_slice(&len.to_le_bytes());
    assert_eq!(fill(&mut chain, NODE, first(&reply).expect("its front")), Err(Malformed::Trailing));
    reply[8] = 77;
    assert!(first(&reply).is_err());
}

#[test]
fn greetings_and_answers_are_told_apart() {
    let greeting = Greeting { session: 0x0123_4567_89AB_CDEF, node: NODE };
    let mut bytes = Vec::new();
    greeting.encode(&mut bytes);
    assert_eq!(Greeting::decode(&bytes), Some(greeting));
    assert!(first(&bytes).is_err());
    for len in (0..bytes.len()).chain([11, ANSWER_HEADER, 24]) {
        assert_eq!(Greeting::decode(&vec![0; len]), None, "{len} bytes");
    }
}

#[test]
fn calls_keep_their_place_among_other_verbs() {
    let (endpoint, memory) = (endpoint(), memory());
    let calls = |request: &[u8]| match request.len() {
        8 => Ok(vec![memory[4].load(Ordering::Relaxed) as u8; 3]),
        _ => Err("not this one".into()),
    };
    let call = |words: &[u64]| verb(9, VerbKind::Call { request: endpoint.buf_from_words(words), reply: None });
    let mut chain =
        vec![verb(4, VerbKind::Write(endpoint.buf_from_words(&[99]))), call(&[1]), call(&[1, 2]), call(&[])];
    chain.push(verb(4, VerbKind::Faa { add: 1, old: 0 }));
    let bytes = request(&chain);
    let mut reply = Vec::new();
    let served = carry_out(&bytes, &memory, &calls, Rights::ReadWrite, &mut reply).expect("sense");
    assert_eq!(served.map(|served| (served.calls, served.faa)), Ok((3, 1)));
    assert!(reply.len() as u64 <= sizes(&chain, NODE).answer);
    fill(&mut chain, NODE, first(&reply).expect("a reply")).expect("results");
    let replies = chain.iter().filter_map(|verb| match &verb.kind {
        VerbKind::Call { reply, .. } => reply.clone(),
        _ => None,
    });
    let refused = || Err(CallRefused("not this one".to_owned()));
    assert_eq!(replies.collect::<Vec<_>>(), [Ok(vec![99; 3]), refused(), refused()]);
    // A call only reads, so a connection that may only read has it.
    let bytes = request(&[call(&[1])]);
    let served = carry_out(&bytes, &memory, &calls, Rights::ReadOnly, &mut Vec::new());
    assert!(served.is_ok_and(|served| served.is_ok()));
    // An offset makes no sense, and neither does a third outcome.
    let mut odd = bytes.clone();
    odd[40] = 8;
    let outcome = carry_out(&odd, &memory, &calls, Rights::ReadWrite, &mut Vec::new());
    assert!(matches!(outcome, Err(Malformed::Field(_))), "{outcome:?}");
    for cut in 0..reply.len() {
        let filled = first(&reply[..cut]).and_then(|answer| fill(&mut chain, NODE, answer));
        assert!(filled.is_err(), "cut at {cut}");
    }
    reply[16] = 2;
    assert!(fill(&mut chain, NODE, first(&reply).expect("its front")).is_err());
    // The worst case of the replies counts against the limit: many calls in a few bytes are refused.
    let many: Vec<Verb> = (0..2100).map(|_| call(&[1])).collect();
    let outcome = carry_out(&request(&many), &memory, &calls, Rights::ReadWrite, &mut Vec::new());
    assert!(matches!(outcome, Ok(Err(Refused { status: Status::TooLong, .. }))), "{outcome:?}");
}

#[test]
fn batches_of_one_message_are_answered_each() {
    let (endpoint, memory) = (endpoint(), memory());
    let faa = |word| vec![verb(word, VerbKind::Faa { add: 1, old: 0 })];
    let mut chains = [
        faa(1),
        vec![verb(2, VerbKind::Write(endpoint.buf_from_words(&[5]))), verb(WORDS, VerbKind::Read(endpoint.buf(8)))],
        faa(1),
        vec![verb(2, VerbKind::Read(endpoint.buf(16)))],
    ];
    let mut bytes = Vec::new();
    chains.iter().zip(40..).for_each(|(chain, sequence)| encode(chain, NODE, 11, sequence, &mut bytes));
    finish(&mut bytes, 4);
    assert_eq!(Front::peek(&bytes), Ok(Front { session: 11, batches: 4 }));
    let (mut refused, mut reply) = (Vec::new(), Vec::new());
    let checked = check(&bytes, Words(&memory), Rights::ReadWrite, &mut refused);
    assert_eq!(checked, Ok(Checked { batches: 4, calls: 0 }));
    assert_eq!(refused, [Refused { batch: 1, status: Status::OutOfBounds, verb: 1 }]);
    let served = serve(&bytes, Words(&memory), &no_calls, &refused, &mut reply, &mut |_| true).expect("sense");
    assert_eq!((served.batches, served.refused, served.faa, served.writes), (4, 1, 2, 0));
    let mut rest = Reader::new(&reply);
    for (i, chain) in chains.iter_mut().enumerate() {
        let answer = Answer::take(&mut rest).expect("an answer").expect("one for each");
        assert_eq!(answer.sequence, 40 + i as u64);
        match answer.status {
            Status::Done => fill(chain, NODE, answer).expect("results"),
            status => assert_eq!((i, status, answer.verb), (1, Status::OutOfBounds, 1)),
        }
    }
    assert!(Answer::take(&mut rest).is_ok_and(|end| end.is_none()));
    let old = |chain: &[Verb]| match &chain[0].kind {
        VerbKind::Faa { old, .. } => *old,
        VerbKind::Read(buf) => buf.words()[0],
        _ => 0,
    };
    assert_eq!(chains.iter().map(|chain| old(chain)).collect::<Vec<_>>(), [1, 0, 2, 2], "in their order");
    // One that makes no sense leaves the others of its message undone.
    let end = bytes.len() - 16;
    bytes[end] = 99;
    let before = values(&memory);
    assert_eq!(check(&bytes, Words(&memory), Rights::ReadWrite, &mut Vec::new()), Err(Malformed::Kind(99)));
    assert_eq!(values(&memory), before);
}

#[test]
fn many_answers_are_several_replies() {
    let (endpoint, memory) = (endpoint(), memory());
    let read = vec![verb(0, VerbKind::Read(endpoint.buf(WORDS as usize * 8)))];
    let (mut bytes, batches) = (Vec::new(), 400);
    (0..batches).for_each(|sequence| encode(&read, NODE, 11, u64::from(sequence), &mut bytes));
    finish(&mut bytes, batches);
    let (mut replies, mut last) = (Vec::new(), Vec::new());
    let mut full = |reply: &mut Vec<u8>| {
        replies.push(std::mem::take(reply));
        true
    };
    serve(&bytes, Words(&memory), &no_calls, &[], &mut last, &mut full).expect("sense");
    replies.push(last);
    assert!(replies.len() > 2 && replies.iter().all(|reply| reply.len() < FULL_BYTES + 1024), "{}", replies.len());
    let mut next = 0;
    for reply in &replies {
        let mut rest = Reader::new(reply);
        while let Some(answer) = Answer::take(&mut rest).expect("an answer") {
            assert_eq!((answer.sequence, answer.status), (next, Status::Done));
            next += 1;
        }
    }
    assert_eq!(next, u64::from(batches));
    // A client that is to be served no further is not.
    let mut reply = Vec::new();
    let served = serve(&bytes, Words(&memory), &no_calls, &[], &mut reply, &mut |_| false).expect("sense");
    assert!(served.batches < 200, "{served:?}");
    // The answers to one message count together.
    let large: Vec<AtomicU64> = (0..1 << 20).map(AtomicU64::new).collect();
    let read = vec![verb(0, VerbKind::Read(endpoint.buf(8 << 20)))];
    let mut bytes = Vec::new();
    (0..9).for_each(|sequence| encode(&read, NODE, 11, sequence, &mut bytes));
    finish(&mut bytes, 9);
    let mut refused = Vec::new();
    assert!(check(&bytes, Words(&large), Rights::ReadWrite, &mut refused).is_ok());
    assert_eq!(refused.first(), Some(&Refused { batch: 7, status: Status::TooLong, verb: 0 }));
}
