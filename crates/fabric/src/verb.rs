//! A verb, and a chain of verbs, as they travel from an endpoint to its fabric and back.

use crate::transport::Identity;
use crate::{Buf, CallRefused, FabricError, NodeId, RemotePtr};

/// Kind of a verb, with its buffer and operands, and its result once it has completed.
#[derive(Debug)]
pub enum VerbKind {
    /// Fills the buffer.
    Read(Buf),
    /// Stores the buffer.
    Write(Buf),
    /// Stores `new` if the word equals `expect`; `old` becomes what the word held.
    Cas {
        /// Expected word.
        expect: u64,
        /// Word to store.
        new: u64,
        /// Result: the word before.
        old: u64,
    },
    /// Adds to the word; `old` becomes what it held.
    Faa {
        /// Addend, wrapping.
        add: u64,
        /// Result: the word before.
        old: u64,
    },
    /// Compares the bits of `compare_mask`, and stores those of `swap_mask`. Only where
    /// [`Capabilities::masked_cas`](crate::Capabilities) says so.
    MaskedCas {
        /// Expected bits.
        expect: u64,
        /// Bits to store.
        new: u64,
        /// Which bits are compared.
        compare_mask: u64,
        /// Which bits are stored.
        swap_mask: u64,
        /// Result: the word before.
        old: u64,
    },
    /// A message that the memory node's CPU answers, see [`call`](crate::call). The pointer's offset is ignored.
    Call {
        /// The request.
        request: Buf,
        /// Result: the reply, or why the memory node refused the call.
        reply: Option<Result<Vec<u8>, CallRefused>>,
    },
    /// Control path (G6): nothing of that client takes effect on this node once it completes.
    Revoke(Identity),
}

/// One verb of a batch.
#[derive(Debug)]
pub struct Verb {
    /// First byte it touches.
    pub ptr: RemotePtr,
    /// Wait for all earlier READs and atomics of the batch (see N3).
    pub fence: bool,
    /// Kind and operands.
    pub kind: VerbKind,
}

impl VerbKind {
    /// May it change memory?
    pub fn changes(&self) -> bool {
        !matches!(self, VerbKind::Read(_) | VerbKind::Revoke(_))
    }
}

impl Verb {
    /// An unfenced verb.
    #[inline]
    pub fn new(ptr: RemotePtr, kind: VerbKind) -> Self {
        Verb { ptr, fence: false, kind }
    }
    /// Bytes it touches in far memory.
    #[inline]
    pub fn len(&self) -> usize {
        match &self.kind {
            VerbKind::Read(buf) | VerbKind::Write(buf) => buf.len(),
            VerbKind::Cas { .. } | VerbKind::Faa { .. } | VerbKind::MaskedCas { .. } => 8,
            VerbKind::Call { .. } | VerbKind::Revoke(_) => 0,
        }
    }
    /// Does it touch no bytes?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Checks alignment, and that the verb lies within a region of that many bytes.
    #[inline]
    pub fn check(&self, region: u64) -> Result<(), FabricError> {
        let (ptr, len) = (self.ptr, self.len());
        if !ptr.offset().is_multiple_of(8) || !len.is_multiple_of(8) {
            return Err(FabricError::Misaligned { ptr, len });
        }
        match ptr.offset().checked_add(len as u64) {
            Some(end) if end <= region => Ok(()),
            _ => Err(FabricError::OutOfBounds { ptr, len, region }),
        }
    }
    /// The node it goes to.
    pub fn node(&self) -> NodeId {
        self.ptr.node()
    }
}

/// The verbs of one batch in posting order. A fabric fills in the results and hands the chain back.
pub type Chain = Vec<Verb>;
