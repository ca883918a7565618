//! Where a tree begins: the anchor on the first memory node, which names the root.
//!
//! ```text
//! word 0   index tag; its complement once the index is dropped
//! word 1   address of the root
//! then     zeros up to 64 bytes
//! ```

use super::cache::{Copies, NodeCache};
use super::fence::Fence;
use super::node::{Layout, Node};
use super::skeleton::Tree;
use crate::IndexError;
use crate::handle::Handle;
use crate::maintenance::read_word;
use crate::table_per_node::{Creation, Opening, index_tag};
use farindex_fabric::{Buf, NodeId, RemotePtr, Span};
use farindex_pool::layout::HOME;
use std::cell::Cell;
use std::rc::Rc;

/// Bytes of an anchor.
pub(super) const ANCHOR_LEN: u64 = 64;

/// Where a tree begins; null on every memory node but the first.
#[derive(Debug, Clone, Copy)]
pub struct Anchor {
    pub(super) at: RemotePtr,
    pub(super) root: RemotePtr,
    /// An epoch that the client knew when it READ the anchor.
    pub(super) seen: u64,
}

impl Anchor {
    /// Creates a tree of one empty leaf, whose words `first` makes for its address, and returns the anchor. There is none
    /// on other memory nodes than the first.
    pub(super) async fn create<C>(
        new: &Creation<'_, C>,
        node: NodeId,
        (inner, leaf_len): (Layout, usize),
        first: impl FnOnce(RemotePtr) -> Buf,
    ) -> Result<RemotePtr, IndexError> {
        if node != HOME {
            return Ok(RemotePtr::NULL);
        }
        let (session, span, tag) = (new.session, new.span, new.index_tag);
        let mut allocated = Vec::new();
        let allocation = async {
            for len in [ANCHOR_LEN, inner.len() as u64, leaf_len as u64] {
                allocated.push((session.alloc(span, HOME, len).await?, len));
            }
            Ok::<_, IndexError>(())
        };
        if let Err(error) = allocation.await {
            for (ptr, len) in allocated {
                session.free(span, ptr, len).await?;
            }
            return Err(error);
        }
        let &[(anchor, _), (root_at, _), (leaf_at, _)] = &allocated[..] else { return Ok(RemotePtr::NULL) };
        let low = Fence::new(&[], RemotePtr::NULL);
        let mut root = Node::new(root_at, inner, session.endpoint().buf(inner.len()), (tag, 1), low);
        let separator = low.separator(leaf_at, 0);
        root.fill(0, (separator.word, separator.tag));
        root.set_used(0, true);
        root.seal(tag);
        let mut batch = span.batch();
        batch.write(leaf_at, first(leaf_at));
        batch.write(root_at, root.buf);
        batch.write_words(anchor, &[tag, root_at.to_bits(), 0, 0, 0, 0, 0, 0]);
        batch.post().await?;
        Ok(anchor)
    }

    /// Frees a tree that no client has seen.
    pub(super) async fn free_new<C>(
        new: &Creation<'_, C>,
        anchor: RemotePtr,
        (inner, leaf_len): (Layout, usize),
    ) -> Result<(), IndexError> {
        if anchor.is_null() {
            return Ok(());
        }
        let (session, span) = (new.session, new.span);
        let root = RemotePtr::from_bits(read_word(span, anchor.add(8)).await?);
        let buf = span.read(root, inner.len()).await?;
        let root_node = Node { at: root, layout: inner, buf };
        for slot in root_node.used() {
            session.free(span, root_node.separator(slot).child(), leaf_len as u64).await?;
        }
        session.free(span, root, inner.len() as u64).await?;
        Ok(session.free(span, anchor, ANCHOR_LEN).await?)
    }

    /// Opens the tree at this anchor.
    pub(super) async fn open<C, S>(of: &Opening<'_, C, S>, at: RemotePtr) -> Result<Anchor, IndexError> {
        if at.is_null() {
            return Ok(Anchor { at, root: RemotePtr::NULL, seen: 0 });
        }
        let anchor = of.pin.span().read(at, 16).await?;
        match anchor.words() {
            &[tag, root] if tag == of.index_tag => {
                Ok(Anchor { at, root: RemotePtr::from_bits(root), seen: of.pin.epoch() })
            }
            _ => Err(IndexError::Dropped),
        }
    }

    /// Marks the tree as dropped. An anchor that is marked already may be free before the caller's pin ends, so it is READ first:
    /// no CAS may land in what is there by then (docs/bugs/241).
    pub(super) async fn mark_dropped(span: &Span, anchor: RemotePtr, tag: u64) -> Result<(), IndexError> {
        if !anchor.is_null() && read_word(span, anchor).await? == tag {
            span.cas(anchor, tag, !tag).await?;
        }
        Ok(())
    }
}

impl Tree {
    /// Opens the tree of a handle, with a node cache.
    pub(super) fn new<C>(handle: &Handle<C, Anchor>, inner: Layout, cache_bytes: u64) -> Tree {
        let make = || NodeCache::new(cache_bytes, inner.len() as u64);
        let cache = handle.session.client().share(handle.uid, make);
        Tree::with_copies(handle, inner, Copies::Nodes(cache))
    }
    /// Opens the tree of a handle.
    pub(super) fn with_copies<C>(handle: &Handle<C, Anchor>, inner: Layout, cache: Copies) -> Tree {
        let anchor =
            handle.tables.first().copied().unwrap_or(Anchor { at: RemotePtr::NULL, root: RemotePtr::NULL, seen: 0 });
        let client = handle.session.client();
        Tree {
            session: Rc::clone(&handle.session),
            uid: handle.uid,
            tag: index_tag(&handle.session, handle.uid),
            anchor: anchor.at,
            root: anchor.root,
            inner,
            cache,
            height: Cell::new(0),
            open_at: Cell::new(anchor.seen),
            dropping: Cell::new(false),
            turn: Cell::new(client.slot()),
            subtree_levels: 0,
        }
    }
}
