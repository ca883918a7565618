//! Batches that mapped memory carries out in place.

use farindex_fabric::memory::Delivery;
use farindex_fabric::{
    Class, Counters, Endpoint, Executor, Fabric, FabricError, MemoryFabric, NodeId, OpKind, RemotePtr, Span,
};

const LEN: u64 = 4096;
const WORD: RemotePtr = RemotePtr::new(NodeId::new(0), 64);
const OTHER: RemotePtr = RemotePtr::new(NodeId::new(0), 128);
const BEYOND: RemotePtr = RemotePtr::new(NodeId::new(0), LEN);

/// Runs verbs where they are carried out in place, and where all are posted.
fn on_both<T>(verbs: impl AsyncFn(&Endpoint, &Span) -> T) -> [(T, Counters); 2] {
    [Delivery::Immediate, Delivery::Deferred].map(|delivery| {
        let fabric = MemoryFabric::new(1, LEN).expect("memory").with_delivery(delivery);
        let endpoint = fabric.connect(&fabric.new_identity()).expect("a connection");
        let span = endpoint.span(OpKind::Other);
        let done = Executor::new().block_on(&endpoint, verbs(&endpoint, &span));
        (done, span.cost())
    })
}

#[test]
fn verbs_in_place_count_as_the_batches_that_they_are() {
    let [in_place, posted] = on_both(async |_, span| {
        let swapped = [span.cas(WORD, 0, 5).await, span.cas(WORD, 0, 6).await, span.faa(WORD, 2).await];
        // Both are in flight at the same time: one round trip.
        let (first, second) = (span.read(WORD, 8), span.read(OTHER, 16));
        let second = second.await.map(|buf| buf.words().to_vec());
        let first = first.await.map(|buf| buf.words().to_vec());
        (swapped, first, second)
    });
    assert_eq!(in_place, posted);
    let ((swapped, first, second), cost) = in_place;
    assert_eq!((swapped, first, second), ([Ok(0), Ok(5), Ok(5)], Ok(vec![7]), Ok(vec![0, 0])));
    assert_eq!((cost.round_trips, cost.batches, cost.cas, cost.faa, cost.bytes_read), (4, 5, 2, 1, 24));
}

#[test]
fn a_verb_that_cannot_be_carried_out_is_refused_as_a_batch_is() {
    let [in_place, posted] = on_both(async |_, span| {
        let of = async |ptr, len| span.read(ptr, len).await.map(drop);
        [
            span.cas(WORD.add(4), 0, 1).await.map(drop),
            span.cas(BEYOND, 0, 1).await.map(drop),
            of(WORD, 12).await,
            of(BEYOND, 8).await,
            of(WORD, usize::MAX - 7).await,
        ]
    });
    assert_eq!(in_place, posted);
    let (errors, cost) = in_place;
    assert!(errors.iter().all(Result::is_err), "{errors:?}");
    assert!(matches!(errors[1], Err(FabricError::OutOfBounds { .. })), "{errors:?}");
    // Two are refused by the memory node alone.
    assert_eq!((cost.batches, cost.cas, cost.reads), (2, 1, 1));
}

#[test]
fn a_read_behind_a_write_sees_it_or_neither_is_done() {
    let [in_place, posted] = on_both(async |endpoint, span| {
        let mut along = Some((WORD, endpoint.buf_from_words(&[9])));
        // The READ, and then the WRITE, reaches beyond the region.
        let refused = span.read_behind_now(Class::Index, &mut along, BEYOND, 8).is_none();
        let mut beyond = Some((BEYOND, endpoint.buf_from_words(&[9])));
        let refused = refused && span.read_behind_now(Class::Index, &mut beyond, WORD, 8).is_none();
        assert!(refused && beyond.is_some(), "a WRITE that was not carried out is gone");
        assert_eq!(along.as_ref().map(|(_, buf)| buf.words()), Some(&[9][..]));
        assert_eq!(span.cost(), Counters::default());
        assert_eq!(span.read(WORD, 8).await.map(|buf| buf.words().to_vec()), Ok(vec![0]));
        let read = span.read_behind_now(Class::Block, &mut along, WORD, 16).map(|buf| buf.words().to_vec());
        (read, along.is_some())
    });
    assert_eq!(in_place.0, (Some(vec![9, 0]), false));
    let cost = in_place.1 - posted.1;
    assert_eq!((cost.batches, cost.writes, cost.bytes_written, cost.block_reads), (1, 1, 8, 1));
    assert_eq!((cost.round_trips, cost.block_round_trips), (1, 1));
    assert_eq!(posted.0, (None, true), "what is to be posted is left");
}
