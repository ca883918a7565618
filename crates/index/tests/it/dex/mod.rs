//! DEX: what it adds to the tree of Sherman. The suites of all kinds test the rest.

mod adversary;
mod budgets;
mod commands;
mod crashed;
mod dropped;
mod held_up;
mod offload;
mod owners;
mod priority;
mod write_back;

use farindex_fabric::{NodeId, RemotePtr};
use farindex_testkit::world::Member;

/// Changes a word of a pool of 4 MiB that nothing else holds, as if of an owner's change only one word had landed.
async fn tear(member: &Member, (old, new): (&[u8; 8], &[u8; 8])) {
    let (span, memory) = (member.span(), RemotePtr::new(NodeId::new(0), 0));
    let [old, new] = [*old, *new].map(u64::from_le_bytes);
    let mut found = Vec::new();
    for at in (0..4 << 20).step_by(1 << 16) {
        let words = span.read(memory.add(at), 1 << 16).await.expect("a READ");
        found.extend((0..).zip(words.words()).filter(|(_, word)| **word == old).map(|(i, _)| memory.add(at + i * 8)));
    }
    assert_eq!(found.len(), 1);
    span.write(found[0], member.endpoint.buf_from_words(&[new])).await.expect("a WRITE");
}
