//! In the end: keys and values that are longer than an index takes are refused by each operation.
//!
//! Invariants: the length alone decides, so nothing is drawn, no verb is posted, and nothing changes.

use crate::worker::Shared;
use farindex_index::{AnyIndex, IndexError, Limits, PointIndex};
use std::sync::LazyLock;

/// Longer than what any index takes. Nobody looks at these bytes. There is one such array for all runs of a process, because the
/// allocator zeroes what it hands out a second time: that took a tenth of the time of short runs.
static ZEROS: LazyLock<Vec<u8>> = LazyLock::new(|| vec![0; Limits::BLOCK.key.max(Limits::BLOCK.value) + 1]);

/// Asks each operation.
pub(crate) async fn judge(shared: &Shared, index: &AnyIndex) {
    let Limits { key, value } = index.limits();
    let (Some(long), Some(large)) = (ZEROS.get(..=key), ZEROS.get(..=value)) else {
        return shared.fail(format!("an index takes keys of {key} bytes, and values of {value}"));
    };
    let many = index.upsert_many(&[(long, b"value"), (b"key", large)]).await;
    let mut answers: Vec<_> = many.into_iter().map(|outcome| ("an upsert among several", outcome.map(drop))).collect();
    answers.extend([
        ("a get", index.get(long).await.map(drop)),
        ("a get among several", index.get_many(&[b"key", long]).await.map(drop)),
        ("an insert", index.insert(long, b"value").await.map(drop)),
        ("an insert", index.insert(b"key", large).await.map(drop)),
        ("an update", index.update(long, b"value").await.map(drop)),
        ("an update", index.update(b"key", large).await.map(drop)),
        ("an upsert", index.upsert(long, b"value").await.map(drop)),
        ("an upsert", index.upsert(b"key", large).await.map(drop)),
        ("a removal", index.remove(long).await.map(drop)),
        ("a replacement", index.replace(long, b"expected", b"value").await.map(drop)),
        ("a replacement", index.replace(b"key", b"expected", large).await.map(drop)),
        ("a removal of a value", index.remove_if(long, b"expected").await.map(drop)),
    ]);
    for (what, answer) in answers {
        if !matches!(answer, Err(IndexError::KeyTooLong { .. } | IndexError::ValueTooLong { .. })) {
            shared.fail(format!("{what} with a key or a value that is too long: {answer:?}"));
        }
    }
}
