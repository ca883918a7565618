mod common;
use farindex_fabric::{Executor, Fabric, NodeId, OpKind, RemotePtr};
use farindex_ucx::Poll;

#[test]
fn first() {
    let served = common::serve(1, 1 << 20, Poll::Adaptive);
    let endpoint = served.fabric.connect(&served.fabric.new_identity()).unwrap();
    let word = RemotePtr::new(NodeId::new(0), 64);
    Executor::new().block_on(&endpoint, async {
        let span = endpoint.span(OpKind::Other);
        assert_eq!(span.faa(word, 7).await, Ok(0));
        for i in 0..10 {
            assert_eq!(span.faa(word, 1).await, Ok(7 + i));
        }
    });
    println!("{:?}", served.fabric.transports());
    println!("{}", served.metrics[0].text());
}
