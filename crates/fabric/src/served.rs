//! The memory of one memory node, in the process that serves it to clients elsewhere.
//!
//! Invariants: its words stay where they are for as long as it lives; a file's content persists when the process ends;
//! an existing file is never emptied, cut or grown.

use crate::FabricError;
use crate::ptr::MAX_NODE_LEN;
use crate::region::{Mapping, Region};
use crate::shm::file::{self, Hold};
use crate::words::Words;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

/// The memory of one memory node.
pub struct ServedRegion {
    region: Region,
    file: Option<PathBuf>,
    zeroed: bool,
    /// The file, locked: no other process may map it meanwhile.
    _held: Vec<File>,
}

impl ServedRegion {
    /// Allocates zeroed memory in this process, in huge pages where the system has them. `len` is in bytes and
    /// rounded up to whole pages.
    pub fn anonymous(len: u64) -> Result<Self, FabricError> {
        let page = rustix::param::page_size() as u64;
        let bytes = len.checked_next_multiple_of(page).filter(|bytes| (page..=MAX_NODE_LEN).contains(bytes));
        let bytes = bytes.ok_or_else(|| {
            FabricError::Settings(format!("{len} bytes: a memory node has between {page} and {MAX_NODE_LEN}"))
        })?;
        let mapped = usize::try_from(bytes).map_err(|error| error.to_string());
        let mapped = mapped.and_then(|bytes| Mapping::anonymous(bytes).map_err(|error| error.to_string()));
        let mapping =
            mapped.map_err(|why| FabricError::Settings(format!("{bytes} bytes cannot be had: {why}; ask for less")))?;
        Ok(ServedRegion { region: Region::Mapped(mapping), file: None, zeroed: true, _held: Vec::new() })
    }

    /// Maps a file (or DAX device) with its content, or makes a new file of `len` bytes with all its space reserved.
    /// For a file that exists, another length than its own is an error.
    pub fn file(path: &Path, len: Option<u64>) -> Result<Self, FabricError> {
        let paths = [path.to_owned()];
        let mut nodes = match (path.exists(), len) {
            (true, _) => file::open_all(&paths, false, |_, _| Ok::<_, FabricError>(u64::MAX))?,
            (false, Some(len)) => file::create_all(&paths, len)?,
            (false, None) => return Err(file::refuse(path, "it does not exist: say how long it shall be (--size)")),
        };
        let Some(node) = nodes.pop() else { return Err(file::refuse(path, "it gave no region")) };
        let has = Words(node.region.words()).len();
        // A new file was rounded up to whole pages, huge ones on hugetlbfs.
        if let Some(len) = len.filter(|len| !(*len..*len + (1 << 30)).contains(&has)) {
            return Err(file::refuse(
                path,
                format!("it has {has} bytes, and {len} were asked for: leave the size out"),
            ));
        }
        let held = file::hold(&paths, Hold::Alone)?;
        Ok(ServedRegion { region: node.region, file: Some(path.to_owned()), zeroed: !node.is_device, _held: held })
    }

    /// Its words, all of them.
    pub fn words(&self) -> &[AtomicU64] {
        self.region.words()
    }
    /// The region as [`Words`], on which verbs can be carried out.
    pub fn as_words(&self) -> Words<'_> {
        Words(self.region.words())
    }
    /// Bytes.
    pub fn len(&self) -> u64 {
        self.as_words().len()
    }
    /// Always false.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The file, if there is one.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_deref()
    }
    /// Did the region read as zeros before the first WRITE?
    pub fn zeroed(&self) -> bool {
        self.zeroed
    }
}
