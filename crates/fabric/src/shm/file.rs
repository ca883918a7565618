//! The files behind a shared-memory fabric: made, opened, checked and mapped.
//!
//! Invariants: an existing file is never overwritten, emptied or cut; a file that was made by a call which then fails
//! is removed again; nothing is reserved in a file before it is recognised; the part of it that is in use is mapped
//! with its space reserved, so that touching it does not fail for lack of room.

use crate::ptr::MAX_NODE_LEN;
use crate::region::{Mapping, Region};
use crate::{FabricError, NodeId};
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock, fstatfs};
use rustix::io::Errno;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes of a file that are shown to the caller that has to recognise it. No region is shorter.
const HEAD: usize = 4096;

const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// A mapped file, and what identifies it.
pub(crate) struct Node {
    pub(crate) region: Region,
    pub(crate) is_device: bool,
    key: (u64, u64),
}

/// Files made by a call that has not succeeded yet.
#[derive(Default)]
struct Made(Vec<PathBuf>);

impl Drop for Made {
    fn drop(&mut self) {
        for path in &self.0 {
            // No other process relies on it yet; if it cannot be removed, the first error is the one that matters.
            let _ = fs::remove_file(path);
        }
    }
}

pub(crate) fn refuse(path: &Path, reason: impl Into<String>) -> FabricError {
    FabricError::Region { path: path.display().to_string(), reason: reason.into() }
}

fn explain(path: &Path, doing: &str, error: &io::Error, hint: &str) -> FabricError {
    let advice = match error.kind() {
        ErrorKind::NotFound => "check the path, or create the pool first",
        ErrorKind::PermissionDenied => "files are made for their owner alone: use the same user, or change the mode",
        ErrorKind::AlreadyExists => "it is never overwritten: open it, remove it or choose another path",
        _ => hint,
    };
    let sep = if advice.is_empty() { "" } else { "; " };
    refuse(path, format!("{doing}: {error}{sep}{advice}"))
}

fn page_size(file: &File) -> u64 {
    let page = rustix::param::page_size() as u64;
    match fstatfs(file) {
        // Only whole huge pages exist there.
        Ok(fs) if fs.f_type as u64 == HUGETLBFS_MAGIC => page.max(fs.f_bsize as u64),
        _ => page,
    }
}

/// Bytes that a DAX device offers, from sysfs: a device node itself has no length.
fn dax_len(path: &Path, meta: &Metadata) -> Result<u64, FabricError> {
    let device = meta.rdev();
    let dir = format!("/sys/dev/char/{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let is_dax = fs::read_link(format!("{dir}/subsystem")).is_ok_and(|link| link.ends_with("dax"));
    let len = fs::read_to_string(format!("{dir}/size")).ok().and_then(|text| text.trim().parse().ok());
    len.filter(|_| is_dax).ok_or_else(|| refuse(path, "it is a device, but not a DAX device (/dev/daxX.Y)"))
}

/// The length of an existing file or device, if it can be a region at all.
fn usable_len(path: &Path, file: &File) -> Result<(u64, bool), FabricError> {
    let meta = file.metadata().map_err(|error| explain(path, "cannot be examined", &error, ""))?;
    let kind = meta.file_type();
    if kind.is_char_device() {
        return Ok((dax_len(path, &meta)?, true));
    }
    let len = meta.len();
    let page = page_size(file);
    if len == 0 {
        return Err(refuse(path, "it is empty: not a pool, or truncated; choose another path, or restore it"));
    }
    if !len.is_multiple_of(page) {
        let what = format!("its {len} bytes are no multiple of the page size {page}");
        return Err(refuse(path, format!("{what}: not a pool, or truncated; choose another path, or restore it")));
    }
    Ok((len, false))
}

/// Refuses what is neither a file nor a device, before it is opened: opening some of those waits, or has effects.
fn check_kind(path: &Path) -> Result<bool, FabricError> {
    let meta = fs::metadata(path).map_err(|error| explain(path, "cannot be opened", &error, ""))?;
    let kind = meta.file_type();
    if kind.is_dir() {
        return Err(refuse(path, "it is a directory; name a file in it"));
    }
    if kind.is_char_device() {
        dax_len(path, &meta)?;
    } else if !kind.is_file() {
        return Err(refuse(path, "it is neither a file nor a DAX device"));
    }
    Ok(kind.is_char_device())
}

/// Has the file's system set space aside for all `len` bytes, of which `has` are there. Existing content stays.
fn reserve(path: &Path, file: &File, len: u64, has: u64) -> Result<(), FabricError> {
    // Asked beforehand, since some file systems fill themselves up before they find that it is not enough. Where there
    // is no limit, zero blocks are reported.
    let free = match fstatfs(file) {
        Ok(fs) if fs.f_blocks > 0 => fs.f_bavail.saturating_mul(fs.f_bsize as u64),
        _ => u64::MAX,
    };
    let missing = len.saturating_sub(has);
    let result = if free < missing { Err(Errno::NOSPC) } else { fallocate(file, FallocateFlags::empty(), 0, len) };
    let error = match result {
        Ok(()) => return Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) if has > 0 => return Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => match fill_with_zeros(file, len) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        },
        Err(error) => error.into(),
    };
    let free = if free == u64::MAX { "an unknown number".to_owned() } else { free.to_string() };
    let hint = format!(
        "{missing} bytes are wanted and {free} are free: free some, ask for less or use another directory (/dev/shm grows \
         by `mount -o remount,size=... /dev/shm`, hugetlbfs by vm.nr_hugepages)"
    );
    Err(explain(path, "no space can be reserved", &error, &hint))
}

fn fill_with_zeros(file: &File, len: u64) -> io::Result<()> {
    let zeros = vec![0; 1 << 20];
    let mut at = 0;
    while at < len {
        let step = (len - at).min(zeros.len() as u64);
        file.write_all_at(&zeros[..step as usize], at)?;
        at += step;
    }
    Ok(())
}

fn map(path: &Path, file: &File, len: u64, is_device: bool, read_only: bool) -> Result<Node, FabricError> {
    if len > MAX_NODE_LEN {
        return Err(refuse(path, format!("{len} bytes are more than the {MAX_NODE_LEN} of the largest memory node")));
    }
    let bytes = usize::try_from(len).map_err(|_| refuse(path, "too large for this machine's addresses"))?;
    let mapped = Mapping::map(file, bytes, read_only);
    let mapped = mapped.map_err(|error| explain(path, "cannot be mapped", &error, "too large, perhaps"))?;
    let meta = file.metadata().map_err(|error| explain(path, "cannot be examined", &error, ""))?;
    let key = if is_device { (u64::MAX, meta.rdev()) } else { (meta.dev(), meta.ino()) };
    Ok(Node { region: Region::Mapped(mapped), is_device, key })
}

/// Returns how many bytes of a file with these first bytes are in use, or why it is not the expected one.
pub(crate) trait Own<E>: Fn(NodeId, &[u8]) -> Result<u64, E> {}
impl<E, F: Fn(NodeId, &[u8]) -> Result<u64, E>> Own<E> for F {}

/// The first bytes of a file, read rather than mapped: to touch a mapped page of a sparse file may allocate it.
fn head_of(path: &Path, file: &File) -> Result<Vec<u8>, FabricError> {
    let mut head = vec![0; HEAD];
    let read = file.read_exact_at(&mut head, 0);
    read.map_err(|error| explain(path, "cannot be read", &error, ""))?;
    Ok(head)
}

/// Maps an existing file or device.
fn open_one<E: From<FabricError>>(path: &Path, node: NodeId, read_only: bool, own: &impl Own<E>) -> Result<Node, E> {
    check_kind(path)?;
    let file = OpenOptions::new().read(true).write(!read_only).open(path);
    let file = file.map_err(|error| explain(path, "cannot be opened", &error, ""))?;
    let (len, is_device) = usable_len(path, &file)?;
    if !is_device {
        let wanted = own(node, &head_of(path, &file)?)?.min(len);
        let reserved = file.metadata().map_or(0, |meta| meta.blocks().saturating_mul(512));
        if !read_only && reserved < wanted {
            reserve(path, &file, wanted, reserved)?;
        }
    }
    Ok(map(path, &file, len, is_device, read_only)?)
}

fn create_one(path: &Path, len: u64, made: &mut Made) -> Result<Node, FabricError> {
    if fs::metadata(path).is_ok() && check_kind(path)? {
        let node = open_one(path, NodeId::new(0), false, &|_, _: &[u8]| Ok::<_, FabricError>(u64::MAX))?;
        let has = node.region.words().len() as u64 * 8;
        if has < len {
            return Err(refuse(path, format!("the device has {has} bytes, and {len} are wanted")));
        }
        return Ok(node);
    }
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path);
    let file = file.map_err(|error| match error.kind() {
        ErrorKind::NotFound => refuse(path, format!("cannot be created: {error}; make its directory first")),
        ErrorKind::PermissionDenied => refuse(path, format!("cannot be created: {error}; choose another directory")),
        _ => explain(path, "cannot be created", &error, ""),
    })?;
    made.0.push(path.to_owned());
    let page = page_size(&file);
    let len = len.checked_next_multiple_of(page).filter(|len| *len <= MAX_NODE_LEN).ok_or_else(|| {
        refuse(path, format!("{len} bytes are more than the {MAX_NODE_LEN} of the largest memory node"))
    })?;
    file.set_len(len).map_err(|error| explain(path, "cannot be given its length", &error, "ask for less"))?;
    reserve(path, &file, len, 0)?;
    map(path, &file, len, false, false)
}

/// Checks that no two nodes are one file: every word would have two addresses.
fn check_distinct(paths: &[PathBuf], nodes: &[Node]) -> Result<(), FabricError> {
    for (i, node) in nodes.iter().enumerate() {
        if let Some(earlier) = nodes[..i].iter().position(|other| other.key == node.key) {
            let same = paths[earlier].display();
            return Err(refuse(&paths[i], format!("it is the same file as {same}; each memory node takes its own")));
        }
    }
    Ok(())
}

/// The process that has locked a file, as far as the system reports it.
fn locker(file: &File) -> Option<u32> {
    let meta = file.metadata().ok()?;
    let (device, inode) = (meta.dev(), meta.ino());
    let name = format!("{:02x}:{:02x}:{inode}", rustix::fs::major(device), rustix::fs::minor(device));
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let mut words = locks.lines().map(|line| line.split_ascii_whitespace().skip(1).collect::<Vec<_>>());
    words.find_map(|words| match words.as_slice() {
        ["FLOCK", _, _, pid, file, ..] if *file == name => pid.parse().ok().filter(|pid| *pid > 0),
        _ => None,
    })
}

/// Which processes may use a file at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hold {
    /// This process, and others that map it too.
    Shared,
    /// This process alone: it serves the memory to clients elsewhere.
    Alone,
}

/// Locks the files for as long as what is returned lives, or this process. Readers that change nothing need no lock.
///
/// A process that serves a file revokes its clients and counts them. Local processes do that for themselves. Neither
/// sees the other's clients, so a file has clients of one kind.
pub(crate) fn hold(paths: &[PathBuf], how: Hold) -> Result<Vec<File>, FabricError> {
    let one = |path: &PathBuf| {
        let file = File::open(path).map_err(|error| explain(path, "cannot be opened", &error, ""))?;
        let operation = match how {
            Hold::Shared => FlockOperation::NonBlockingLockShared,
            Hold::Alone => FlockOperation::NonBlockingLockExclusive,
        };
        // Where files have no locks, there is no protection.
        if flock(&file, operation) == Err(Errno::WOULDBLOCK) {
            let holder = locker(&file).map_or("another process".to_owned(), |pid| format!("process {pid}"));
            return Err(refuse(
                path,
                match how {
                    Hold::Shared => format!("it is being served by {holder}: use --connect with the address of that"),
                    Hold::Alone => format!("{holder} has it open: end that first, or have it use --connect"),
                },
            ));
        }
        Ok(file)
    };
    paths.iter().map(one).collect()
}

/// Maps existing files and devices, one for each memory node.
pub(crate) fn open_all<E: From<FabricError>>(
    paths: &[PathBuf],
    read_only: bool,
    own: impl Own<E>,
) -> Result<Vec<Node>, E> {
    let numbered = (0..).map(NodeId::new).zip(paths);
    let nodes = numbered.map(|(node, path)| open_one(path, node, read_only, &own)).collect::<Result<Vec<_>, _>>()?;
    check_distinct(paths, &nodes)?;
    Ok(nodes)
}

/// Makes and maps new files, one for each memory node, or takes devices as they are.
pub(crate) fn create_all(paths: &[PathBuf], len_each: u64) -> Result<Vec<Node>, FabricError> {
    let mut made = Made::default();
    let nodes = paths.iter().map(|path| create_one(path, len_each, &mut made)).collect::<Result<Vec<_>, _>>()?;
    check_distinct(paths, &nodes)?;
    made.0.clear();
    Ok(nodes)
}
