//! Verbs as requests of a send queue.
//!
//! Invariants: a READ or WRITE becomes requests of at most [`MAX_MESSAGE`] bytes each, every other verb one; a request
//! names memory that is registered, or carries its bytes within; an atomic behind a READ of its batch is fenced, by the
//! device or by the lane that posts it.
//!
//! That fence is G4's. When packets are lost, the sender repeats requests from the first one whose answer is missing.
//! The other side remembers what atomics returned, and ignores a WRITE that it has carried out; but it carries a READ
//! out once more. So a READ whose answer was lost may see the atomic behind it, and what others did after that. READs
//! among themselves, and READs behind atomics, keep their order: answers are accepted in order, so what a later one saw
//! is never older.
#![allow(unsafe_code)]

use crate::memory::Scratch;
use farindex_fabric::{Chain, NodeId, Verb, VerbKind};
use sideway::ibverbs::queue_pair::{
    GenericPostSendGuard, PostSendGuard, SetInlineData, SetScatterGatherEntry, WorkRequestFlags,
};

/// Bytes of one request at most; what is longer becomes several requests. At the end of a request the sender asks for an
/// acknowledgement, and with it Soft-RoCE counts repetitions from zero again: where packets are lost, a much longer WRITE
/// uses up all repetitions that it has (docs/bugs/213).
pub(crate) const MAX_MESSAGE: usize = 16 << 10;

/// Position in the requests of a batch to one node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    verb: usize,
    offset: usize,
    /// READs have been passed that no later request has waited for.
    reads_open: bool,
}

/// A request: a verb, which of its bytes, and whether it waits for the READs and atomics before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) verb: usize,
    pub(crate) offset: usize,
    pub(crate) len: usize,
    pub(crate) fenced: bool,
}

/// The next request to a node.
pub(crate) fn next_request(chain: &Chain, node: NodeId, cursor: &mut Cursor) -> Option<Request> {
    while let Some(verb) = chain.get(cursor.verb) {
        let left = verb.len().saturating_sub(cursor.offset);
        if verb.node() != node || left == 0 {
            (cursor.verb, cursor.offset) = (cursor.verb + 1, 0);
            continue;
        }
        let fenced = verb.fence && cursor.offset == 0 || is_atomic(verb) && cursor.reads_open;
        let request = Request { verb: cursor.verb, offset: cursor.offset, len: left.min(MAX_MESSAGE), fenced };
        cursor.offset += request.len;
        cursor.reads_open = matches!(verb.kind, VerbKind::Read(_)) || cursor.reads_open && !fenced;
        return Some(request);
    }
    None
}

/// Requests that can be posted together where the client itself keeps the fences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// Its first request is fenced.
    pub(crate) fenced: bool,
    /// Requests: up to the next fence, or the first READ or atomic behind a WRITE.
    pub(crate) count: usize,
    /// There is a WRITE among them: nothing follows before they have completed (docs/bugs/050).
    pub(crate) writes: bool,
}

/// The next part of a batch for one node, of `most` requests at most.
pub(crate) fn next_part(chain: &Chain, node: NodeId, mut cursor: Cursor, most: usize) -> Part {
    let mut part = Part { fenced: false, count: 0, writes: false };
    while part.count < most
        && let Some(request) = next_request(chain, node, &mut cursor)
    {
        let write = chain.get(request.verb).is_some_and(|verb| matches!(verb.kind, VerbKind::Write(_)));
        if part.count == 0 {
            part.fenced = request.fenced;
        } else if request.fenced || part.writes && !write {
            break;
        }
        part.writes |= write;
        part.count += 1;
    }
    part
}

/// Requests that a verb becomes.
pub(crate) fn requests_of(verb: &Verb) -> usize {
    verb.len().div_ceil(MAX_MESSAGE)
}

fn is_atomic(verb: &Verb) -> bool {
    matches!(verb.kind, VerbKind::Cas { .. } | VerbKind::Faa { .. } | VerbKind::MaskedCas { .. })
}

/// Can the device reach the verb's buffer?
pub(crate) fn is_reachable(verb: &Verb, inline: usize) -> bool {
    match &verb.kind {
        VerbKind::Write(buf) => buf.len() <= inline || buf.key().is_some(),
        VerbKind::Read(buf) => buf.is_empty() || buf.key().is_some(),
        _ => true,
    }
}

/// A memory node's region, as requests name it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    pub(crate) start: u64,
    pub(crate) key: u32,
}

/// How a request is to be posted.
#[derive(Clone, Copy)]
pub(crate) struct Manner<'a> {
    /// Id of its completion.
    pub(crate) id: u64,
    /// Its place in the queue: where its old value goes, for an atomic.
    pub(crate) ordinal: u64,
    /// WRITEs up to this many bytes travel within the request.
    pub(crate) inline: usize,
    pub(crate) target: Target,
    pub(crate) scratch: &'a Scratch,
    /// The device keeps the fences.
    pub(crate) fences: bool,
}

/// Appends `count` requests of a batch to one node, from `cursor` on, to those that will be posted with one doorbell.
/// The last of them is signalled: its completion says that all are complete, because a connected queue pair completes in
/// order.
///
/// # Safety
///
/// From now on until the last request has completed, or the queue pair has been dropped, nothing drops, reads or writes
/// the buffers of these verbs, and `scratch` lives. That also holds if an error is returned.
pub(crate) unsafe fn append_batch(
    guard: &mut GenericPostSendGuard<'_>,
    chain: &mut Chain,
    node: NodeId,
    cursor: &mut Cursor,
    count: usize,
    first: &Manner<'_>,
) -> Result<(), String> {
    for i in 0..count as u64 {
        let request = next_request(chain, node, cursor).ok_or("the batch has fewer requests than were counted")?;
        let verb = chain.get_mut(request.verb).ok_or("the batch is shorter than it was")?;
        let manner = Manner { id: first.id + i, ordinal: first.ordinal + i, ..*first };
        let mut flags = WorkRequestFlags::none();
        if request.fenced && first.fences {
            flags |= WorkRequestFlags::Fence;
        }
        if i + 1 == count as u64 {
            flags |= WorkRequestFlags::Signaled;
        }
        // SAFETY: as the caller promises.
        if !unsafe { append(guard, verb, request, &manner, flags) } {
            return Err("a buffer is not registered".to_owned());
        }
    }
    Ok(())
}

/// Appends a request to those that will be posted together. `false` if its buffer is not registered.
///
/// # Safety
///
/// As for [`append_batch`].
unsafe fn append(
    guard: &mut GenericPostSendGuard<'_>,
    verb: &mut Verb,
    request: Request,
    manner: &Manner<'_>,
    mut flags: WorkRequestFlags,
) -> bool {
    let Target { start, key } = manner.target;
    let remote = start.wrapping_add(verb.ptr.offset()).wrapping_add(request.offset as u64);
    let (offset, len) = (request.offset, request.len as u32);
    match &mut verb.kind {
        VerbKind::Write(buf) => {
            let Some(bytes) = buf.bytes().get(offset..offset + request.len) else { return false };
            if bytes.len() <= manner.inline {
                flags |= WorkRequestFlags::Inline;
                guard.construct_wr(manner.id, flags).setup_write(key, remote).setup_inline_data(bytes);
                return true;
            }
            let (address, Some(local)) = (bytes.as_ptr() as u64, buf.key()) else { return false };
            let handle = guard.construct_wr(manner.id, flags).setup_write(key, remote);
            // SAFETY: these bytes are registered under `local`, and stay until the request has completed (the caller).
            unsafe { handle.setup_sge(local, address, len) };
        }
        VerbKind::Read(buf) => {
            let Some(local) = buf.key() else { return false };
            let Some(bytes) = buf.bytes_mut().get_mut(offset..offset + request.len) else { return false };
            let address = bytes.as_mut_ptr() as u64;
            let handle = guard.construct_wr(manner.id, flags).setup_read(key, remote);
            // SAFETY: as above; nothing reads them meanwhile (the caller).
            unsafe { handle.setup_sge(local, address, len) };
        }
        VerbKind::Cas { expect, new, .. } => {
            let request = guard.construct_wr(manner.id, flags);
            let handle = request.setup_atomic_compare_swap(key, remote, *expect, *new);
            // SAFETY: the word is registered under this key and lives as long as the scratch memory does (the caller);
            // this process has it as an atomic alone.
            unsafe { handle.setup_sge(manner.scratch.key(), manner.scratch.address(manner.ordinal), 8) };
        }
        VerbKind::Faa { add, .. } => {
            let handle = guard.construct_wr(manner.id, flags).setup_atomic_fetch_add(key, remote, *add);
            // SAFETY: as above.
            unsafe { handle.setup_sge(manner.scratch.key(), manner.scratch.address(manner.ordinal), 8) };
        }
        VerbKind::MaskedCas { .. } | VerbKind::Call { .. } | VerbKind::Revoke(_) => return false,
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use farindex_fabric::RemotePtr;
    use farindex_fabric::buf::BufPool;
    use std::rc::Rc;

    #[test]
    fn a_batch_becomes_requests_in_its_order() {
        let pool = Rc::new(BufPool::default());
        let at = |node: u16, len: usize| Verb {
            ptr: RemotePtr::new(NodeId::new(node), 64),
            fence: false,
            kind: VerbKind::Read(pool.take(len)),
        };
        let chain: Chain = vec![at(0, 8), at(1, 16), at(0, 0), at(0, 2 * MAX_MESSAGE + 8), at(1, MAX_MESSAGE)];
        let of = |node: u16| {
            let mut cursor = Cursor::default();
            std::iter::from_fn(|| next_request(&chain, NodeId::new(node), &mut cursor))
                .map(|request| (request.verb, request.offset, request.len))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(0), [(0, 0, 8), (3, 0, MAX_MESSAGE), (3, MAX_MESSAGE, MAX_MESSAGE), (3, 2 * MAX_MESSAGE, 8)]);
        assert_eq!(of(1), [(1, 0, 16), (4, 0, MAX_MESSAGE)]);
        assert!(of(2).is_empty());
        assert_eq!(chain.iter().map(requests_of).collect::<Vec<_>>(), [1, 1, 0, 3, 1]);
        assert!(!is_reachable(&chain[0], 64), "its buffer is not registered");
    }

    #[test]
    fn fences_split_a_batch() {
        let pool = Rc::new(BufPool::default());
        let node = NodeId::new(0);
        let verb = |fence, kind| Verb { ptr: RemotePtr::new(node, 64), fence, kind };
        let (read, faa) = (|| VerbKind::Read(pool.take(8)), || VerbKind::Faa { add: 1, old: 0 });
        let plain = |kind| verb(false, kind);
        // An atomic waits for READs before it, once; and whatever asks for it.
        let chain: Chain = vec![
            plain(faa()),
            plain(read()),
            plain(read()),
            plain(faa()),
            plain(faa()),
            plain(read()),
            verb(true, read()),
        ];
        let mut cursor = Cursor::default();
        let fenced = std::iter::from_fn(|| next_request(&chain, node, &mut cursor)).map(|request| request.fenced);
        assert_eq!(fenced.collect::<Vec<_>>(), [false, false, false, true, false, false, true]);
        let parts = |chain: &Chain| {
            let (mut cursor, mut parts, mut left) = (Cursor::default(), Vec::new(), chain.len());
            while left > 0 {
                let Part { fenced, count, writes } = next_part(chain, node, cursor, 256);
                (0..count).for_each(|_| assert!(next_request(chain, node, &mut cursor).is_some()));
                parts.push((fenced, count, writes));
                left -= count;
            }
            parts
        };
        assert_eq!(parts(&chain), [(false, 3, false), (true, 3, false), (true, 1, false)]);
        assert_eq!(next_part(&chain, node, Cursor::default(), 2).count, 2);
        // READs and atomics wait for WRITEs, and not the other way round.
        let write = || plain(VerbKind::Write(pool.take(8)));
        let chain: Chain = vec![plain(read()), write(), write(), plain(faa()), write()];
        assert_eq!(parts(&chain), [(false, 3, true), (true, 2, true)]);
        let chain: Chain = vec![write(), plain(faa())];
        assert_eq!(parts(&chain), [(false, 1, true), (false, 1, false)]);
    }
}
