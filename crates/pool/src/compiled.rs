//! What this crate compiles for the crates above. See [`farindex_fabric::cold`].

use crate::audit::Audit;
use crate::{Client, Pool, PoolError, PoolOptions, catalog};
use farindex_fabric::{Cold, Endpoint, Fabric, Identity, NodeId, OpKind, cold};
use std::sync::Arc;

/// Awaits every operation. Nobody calls it: because of it, this crate compiles what [`cold`] keeps apart, and the crates
/// above need not.
#[doc(hidden)]
pub fn every_operation<'a>(
    fabric: &'a Arc<dyn Fabric>,
    identity: Identity,
    endpoint: &'a Endpoint,
) -> Cold<'a, Result<(), PoolError>> {
    cold(async move {
        let made = Pool::create(Arc::clone(fabric), endpoint, &PoolOptions::unseeded()).await?;
        let pool = Pool::open(Arc::clone(fabric), endpoint).await?;
        let client = Client::register(&pool, identity, endpoint).await?;
        let session = client.session(endpoint.clone());
        let span = session.span(OpKind::Other);
        let at = session.alloc(&span, NodeId::new(0), 64).await?;
        session.free(&span, at, 64).await?;
        session.maintain().await?;
        session.flush().await?;
        session.drain().await?;
        let info = catalog::find(&made, &span, "").await?;
        catalog::confirm(&session, &span, &info).await?;
        let info = catalog::begin_drop(&session, &span, &info).await?;
        catalog::end_drop(&session, &span, &info).await?;
        catalog::list(&made, &span).await?;
        Audit::begin(&session, &span).await?.settle(&session, &span).await?;
        Audit::begin(&session, &span).await?.reclaim(&session, &span).await?;
        client.evict_expired(endpoint).await?;
        client.close(endpoint).await
    })
}
