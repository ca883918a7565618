//! Creating and freeing a directory together with the segments that it names.

use super::directory::Directory;
use super::layout::{Entry, Shape};
use crate::IndexError;
use crate::audit::Damage;
use farindex_fabric::{Buf, NodeId, OpKind, RemotePtr, Span};
use farindex_pool::Session;

/// Creates a directory and its first segments, of `segment_bytes` bytes each, on a memory node; returns the directory's
/// root. `contents` returns the words of the segment of a suffix. After an error nothing is left, unless a verb has failed.
pub(crate) async fn create_with_segments(
    session: &Session,
    span: &Span,
    node: NodeId,
    index_tag: u64,
    shape: Shape,
    segment_bytes: u64,
    contents: impl Fn(u64) -> Buf,
) -> Result<RemotePtr, IndexError> {
    let mut segments = Vec::new();
    let creation = async {
        for suffix in 0..1 << shape.initial_depth {
            let at = session.alloc(span, node, segment_bytes).await?;
            segments.push(at);
            span.write(at, contents(suffix)).await?;
        }
        let entries: Vec<_> = segments.iter().filter_map(|at| Entry::new(*at, 0)).collect();
        Directory::create(session, span, node, index_tag, shape, &entries).await
    };
    let created = creation.await;
    // What a failed batch has posted may still land (N5).
    if created.as_ref().is_err_and(|error| !matches!(error, IndexError::Fabric(_))) {
        for at in segments {
            session.free(span, at, segment_bytes).await?;
        }
    }
    created
}

/// Frees a directory that no client has seen, and its segments.
pub(crate) async fn free_new_directory(
    session: &Session,
    span: &Span,
    root: RemotePtr,
    index_tag: u64,
    segment_bytes: u64,
) -> Result<(), IndexError> {
    let pin = session.pin(session.span(OpKind::Other))?;
    let directory = Directory::open(&pin, root, index_tag, 0).await?;
    drop(pin);
    directory.free_with_segments(session, span, segment_bytes).await
}

impl Directory {
    /// Frees the directory and its segments, of `segment_bytes` bytes each, when no client can use them any more.
    pub(crate) async fn free_with_segments(
        &self,
        session: &Session,
        span: &Span,
        segment_bytes: u64,
    ) -> Result<(), IndexError> {
        for (_, entry) in self.segments(session.pool(), span, &mut Damage::fail).await? {
            session.free(span, entry.at(), segment_bytes).await?;
        }
        self.free(session, span).await
    }
}
